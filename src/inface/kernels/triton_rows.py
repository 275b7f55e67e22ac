"""The step on rows of an l1 ball, a simplex or a box, for Triton: one program does a row.

The mathematics is that of :mod:`inface.kernels.rows` and :mod:`inface.kernels.projected`, letter by letter, but for the search
for vertices, which is done in the pass that adds up the row. A row is read two to four times in a step along a direction,
from memory once: the rest comes from caches. Numbers of a row are float64; entries are added up in their own dtype over a
piece of ``PIECE``, and in float64 from piece to piece.
"""

# Types are Triton's; its kernels are what they are.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, C901, PLR0912, PLR0915

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["box_kernel", "box_projected_kernel", "one_hot_kernel", "projected_kernel"]

TOWARD, WITHIN, AWAY, PAIRWISE = (tl.constexpr(phase) for phase in (0, 1, 2, 3))
ULPS = tl.constexpr(8)
INF = tl.constexpr(float("inf"))


@triton.jit
def averaged(m, g, weight):
    """``m <- (1 - weight) m + weight g``, from ``m = g`` in entries that have no average yet: they hold NaN."""
    w = weight.to(g.dtype)
    near = m + w * (g - m)
    far = g - (1 - weight).to(g.dtype) * (g - m)
    mixed = tl.where(weight < 0.5, near, far)
    return tl.where(m == m, mixed, g)  # noqa: PLR0124


@triton.jit
def is_finite(row, at_g, width, PIECE: tl.constexpr):
    """Whether a row of gradients is."""
    bad = tl.full((), 0, tl.int32)
    for start in range(0, width, PIECE):
        k = start + tl.arange(0, PIECE)
        g = tl.load(at_g + row * width + k, mask=k < width, other=0.0)
        bad += tl.sum((tl.abs(g) < INF).to(tl.int32) == 0, axis=0).to(tl.int32)
    return bad == 0


@triton.jit
def average_row(row, at_m, at_g, width, weight, PIECE: tl.constexpr):
    """Take the gradients of a row into its momentum."""
    for start in range(0, width, PIECE):
        k = start + tl.arange(0, PIECE)
        here = row * width + k
        m = tl.load(at_m + here, mask=k < width, other=0.0)
        g = tl.load(at_g + here, mask=k < width, other=0.0)
        tl.store(at_m + here, averaged(m, g, weight), mask=k < width)
    tl.debug_barrier()  # the passes that follow read it


@triton.jit
def one_hot_kernel(
    at_x, at_g, at_m, at_radius, at_rate, at_most, at_slope, at_step, at_hit, width, at_weight,
    SIMPLEX: tl.constexpr, PHASE: tl.constexpr, MOMENTUM: tl.constexpr, RADII: tl.constexpr, RATES: tl.constexpr,
    EPS: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    """A step toward or away from vertices of one entry: l1 balls and simplices."""
    row = tl.program_id(0).to(tl.int64)
    r, rate = tl.load(at_radius + row * RADII), tl.load(at_rate + row * RATES)
    most, weight = tl.load(at_most), tl.load(at_weight)
    finite = is_finite(row, at_g, width, PIECE)
    at_h = at_g
    if MOMENTUM:
        if finite:
            average_row(row, at_m, at_g, width, weight, PIECE)
        at_h = at_m

    # ``<h, x>``, ``|x|_1``, the best vertex of the set, and the best and the worst of the face.
    inner, size = tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64)
    top, low, high = (
        tl.full((), -INF, tl.float64), tl.full((), INF, tl.float64), tl.full((), -INF, tl.float64),
    )  # fmt: skip
    any_at, low_at, high_at = tl.full((), 0, tl.int64), tl.full((), 0, tl.int64), tl.full((), 0, tl.int64)
    for start in range(0, width, PIECE):
        k = start + tl.arange(0, PIECE)
        here = k < width
        x = tl.load(at_x + row * width + k, mask=here, other=0.0)
        h = tl.load(at_h + row * width + k, mask=here, other=0.0)
        inner += tl.sum(h * x, axis=0).to(tl.float64)
        size += tl.sum(tl.abs(x), axis=0).to(tl.float64)
        key = tl.where(here, -h if SIMPLEX else tl.abs(h), -INF)
        value, at = tl.max(key, axis=0, return_indices=True)
        better = value.to(tl.float64) > top
        any_at = tl.where(better, start + at.to(tl.int64), any_at)
        top = tl.where(better, value.to(tl.float64), top)
        if PHASE != TOWARD:
            price = tl.where(x > 0, h, -h)
            held = here & (x != 0)
            if PHASE != AWAY:
                value, at = tl.min(tl.where(held, price, INF), axis=0, return_indices=True)
                better = value.to(tl.float64) < low
                low_at = tl.where(better, start + at.to(tl.int64), low_at)
                low = tl.where(better, value.to(tl.float64), low)
            if PHASE != WITHIN:
                value, at = tl.max(tl.where(held, price, -INF), axis=0, return_indices=True)
                better = value.to(tl.float64) > high
                high_at = tl.where(better, start + at.to(tl.int64), high_at)
                high = tl.where(better, value.to(tl.float64), high)

    on = size >= r * (1 - ULPS * EPS)
    if SIMPLEX:
        on = size == size  # noqa: PLR0124
    face_at = high_at if PHASE == AWAY else low_at
    j = any_at if PHASE == TOWARD else tl.where(on, face_at, any_at)
    own = tl.load(at_x + row * width + j).to(tl.float64)
    price = tl.load(at_h + row * width + j).to(tl.float64)
    slant = -price if PHASE == AWAY else price
    free = tl.where(slant > 0, -1.0, 1.0)
    if SIMPLEX:
        free = free * 0 + 1
    held = tl.where(own > 0, 1.0, -1.0)
    u = (free if PHASE == TOWARD else tl.where(on, held, free)).to(tl.float64)
    w = tl.where(on, high_at, j) if PHASE == PAIRWISE else j
    other = tl.load(at_x + row * width + w).to(tl.float64)
    cost = tl.load(at_h + row * width + w).to(tl.float64)
    norm, along = tl.abs(own), own * u

    if PHASE == TOWARD:
        rest = size - norm
    else:
        rest = tl.full((), 0.0, tl.float64)  # added up directly: a difference would cancel
        for start in range(0, width, PIECE):
            k = start + tl.arange(0, PIECE)
            x = tl.load(at_x + row * width + k, mask=k < width, other=0.0)
            rest += tl.sum(tl.where((k != j) & (k != w), tl.abs(x), 0.0), axis=0).to(tl.float64)

    limit, keeps = rest * 0 + 1, on
    if PHASE <= WITHIN:
        slope = inner - r * u * price
        if PHASE == TOWARD:
            keeps = on & (along >= norm * (1 - 4 * EPS))
        else:
            slope = tl.where(on & (rest == 0), 0.0, slope)
    elif PHASE == AWAY:
        slope = tl.where(on & (rest == 0), 0.0, r * u * price - inner)
        bend = (norm - along) * (norm + along) + (r - along - rest) * (r - along + rest)
        inside = (r - rest - norm) * (r - rest + norm) / tl.where(bend > 0, bend, 1.0)
        limit = tl.where(on, norm / tl.where(rest > 0, rest, 1.0), inside)
    else:
        worst = tl.where(other > 0, 1.0, -1.0)
        within = tl.where(j == w, 0.0, r * (worst * cost - u * price))
        slope = tl.where(on, within, 2 * r * tl.abs(price))
        room = along * along + (r - rest - norm) * (r - rest + norm)
        limit = tl.where(on, tl.abs(other) / r, (tl.sqrt(tl.maximum(room, 0.0)) - along) / (2 * r))

    usable = finite & (slope > 0) & (slope < INF)
    wanted = tl.where(usable, tl.minimum(slope * rate, most), 0.0)
    hit = (wanted >= limit) & (wanted > 0)
    t = tl.where(hit, limit, wanted)
    tl.store(at_slope + row, tl.where(finite, slope, float("nan")))
    tl.store(at_step + row, t)
    tl.store(at_hit + row, hit.to(tl.int8))
    if t > 0:
        lost = t * 0
        if PHASE <= WITHIN:
            scale, new = 1 - t, (1 - t) * own + t * r * u
        elif PHASE == AWAY:
            scale = 1 + t
            left = tl.where(hit, 0.0, tl.maximum(norm - t * rest, 0.0) * u)
            new = tl.where(on, left, (1 + t) * own - t * r * u)
        else:
            scale = t * 0 + 1
            kept = other * tl.maximum(1 - t * r / tl.where(other != 0, tl.abs(other), 1.0), 0.0)
            lost = tl.where(on & (j != w) & (hit == 0), kept, 0.0)
            new = own + tl.where(on, t, 2 * t) * r * u
        total = scale * rest + tl.abs(new) + tl.abs(lost)
        mends = keeps | (hit & (on == 0))
        if PHASE <= WITHIN:
            mends = mends & (hit == 0)
        repair = tl.where(mends & (total > 0), r / tl.where(total > 0, total, 1.0), 1.0)
        for start in range(0, width, PIECE):
            k = start + tl.arange(0, PIECE)
            here = row * width + k
            x = tl.load(at_x + here, mask=k < width, other=0.0)
            x = x * (scale * repair).to(x.dtype)
            x = tl.where(k == w, (lost * repair).to(x.dtype), x)
            x = tl.where(k == j, (new * repair).to(x.dtype), x)
            tl.store(at_x + here, x, mask=k < width)


@triton.jit
def box_kernel(
    at_x, at_g, at_m, at_radius, at_rate, at_most, at_slope, at_step, at_hit, width, at_weight,
    PHASE: tl.constexpr, MOMENTUM: tl.constexpr, RADII: tl.constexpr, RATES: tl.constexpr,
    EPS: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    """A step toward or away from vectors of signs, of the entries that are not at a bound."""
    row = tl.program_id(0).to(tl.int64)
    radius, rate = tl.load(at_radius + row * RADII), tl.load(at_rate + row * RATES)
    most, weight = tl.load(at_most), tl.load(at_weight)
    finite = is_finite(row, at_g, width, PIECE)
    at_h = at_g
    if MOMENTUM:
        if finite:
            average_row(row, at_m, at_g, width, weight, PIECE)
        at_h = at_m

    forth, back, room = (
        tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64), tl.full((), INF, tl.float64),
    )  # fmt: skip
    for start in range(0, width, PIECE):
        k = start + tl.arange(0, PIECE)
        here = k < width
        x = tl.load(at_x + row * width + k, mask=here, other=0.0)
        h = tl.load(at_h + row * width + k, mask=here, other=0.0)
        r = radius.to(x.dtype)
        free = here
        if PHASE != TOWARD:
            free = free & (tl.abs(x) < (radius * (1 - ULPS * EPS)).to(x.dtype))
        h = tl.where(free, h, 0.0)
        way = tl.where(h > 0, x, -x)
        forth += tl.sum(tl.abs(h) * (r + way), axis=0).to(tl.float64)
        back += tl.sum(tl.abs(h) * (r - way), axis=0).to(tl.float64)
        if PHASE >= AWAY:
            moves = free
            if PHASE == PAIRWISE:
                moves = moves & (h != 0)
            left = tl.where(moves, r + tl.where(h >= 0, x, -x), INF)
            room = tl.minimum(room, tl.min(left, axis=0).to(tl.float64))

    limit = forth * 0 + 1
    if PHASE <= WITHIN:
        slope = forth
    elif PHASE == AWAY:
        slope = back
        least = tl.where(room < INF, room, 0.0)
        limit = tl.where(room < INF, least / (radius - (least - radius)), INF)
    else:
        slope = forth + back
        limit = room / (2 * radius)
    usable = finite & (slope > 0) & (slope < INF)
    wanted = tl.where(usable, tl.minimum(slope * rate, most), 0.0)
    hit = (wanted >= limit) & (wanted > 0)
    t = tl.where(hit, limit, wanted)
    tl.store(at_slope + row, tl.where(finite, slope, float("nan")))
    tl.store(at_step + row, t)
    tl.store(at_hit + row, hit.to(tl.int8))
    if t > 0:
        for start in range(0, width, PIECE):
            k = start + tl.arange(0, PIECE)
            here = k < width
            x = tl.load(at_x + row * width + k, mask=here, other=0.0)
            h = tl.load(at_h + row * width + k, mask=here, other=0.0)
            r, s = radius.to(x.dtype), t.to(x.dtype)
            v = tl.where(h > 0, -r, r)
            free = here
            if PHASE != TOWARD:
                free = free & (tl.abs(x) < (radius * (1 - ULPS * EPS)).to(x.dtype))
            if PHASE <= WITHIN:
                # An entry at its end stays, and a step of one arrives exactly.
                end = tl.where(t < 0.5, x + s * (v - x), v - (v - x) * (1 - t).to(x.dtype))
            elif PHASE == AWAY:
                worst = tl.where(h >= 0, r, -r)
                way = tl.where(worst > 0, x, -x)
                end = tl.minimum(tl.maximum(x + s * (x - worst), -r), r)
                reach = tl.where(hit, s * (1 + ULPS * EPS), -1.0)
                end = tl.where(r + way <= reach * (r - way), -worst, end)
            else:
                way = r + tl.where(h > 0, x, -x)
                free = free & (h != 0)
                end = tl.minimum(tl.maximum(x + s * (v + v), -r), r)
                end = tl.where(way <= tl.where(hit, 2 * r * s * (1 + ULPS * EPS), -1.0), v, end)
            tl.store(at_x + row * width + k, tl.where(free, end, x), mask=here)


# ---------------------------------------------------------------------- projected steps


@triton.jit
def pushed(at_x, at_h, row, k, width, lr):
    """Entries, their slopes, and ``|x| - lr sign(x) h`` where they are not zero, in float64; which these are."""
    x = tl.load(at_x + row * width + k, mask=k < width, other=0.0).to(tl.float64)
    used = x != 0
    h = tl.load(at_h + row * width + k, mask=used, other=0.0).to(tl.float64)
    return x, h, tl.abs(x) - lr * tl.where(x > 0, h, -h), used


@triton.jit
def shrunk(x, v, used, top, cut, onto, r, EPS: tl.constexpr):
    """What the projection makes of ``v``; what rounding leaves of what was to vanish vanishes too."""
    w = tl.maximum(tl.where(onto, (v - top) - cut, v), 0.0)
    return tl.where(used & ((w > r * ULPS * EPS) | (w >= tl.abs(x))), w, 0.0)


@triton.jit
def projected_kernel(
    at_x, at_g, at_m, at_radius, at_lr, at_slope, at_step, at_hit, width, at_weight,
    SIMPLEX: tl.constexpr, TAXICAB: tl.constexpr, MOMENTUM: tl.constexpr, RADII: tl.constexpr, LRS: tl.constexpr,
    EPS: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    """A gradient step of the support, projected onto the minimal face: l1 balls and simplices.

    Gradient and momentum are looked at where the row is not zero, and nowhere else.
    """
    row = tl.program_id(0).to(tl.int64)
    r, lr = tl.load(at_radius + row * RADII), tl.load(at_lr + row * LRS)
    weight = tl.load(at_weight)
    size, bad = tl.full((), 0.0, tl.float64), tl.full((), 0, tl.int32)
    count = tl.full((), 0, tl.int32)
    for start in range(0, width, PIECE):
        k = start + tl.arange(0, PIECE)
        x = tl.load(at_x + row * width + k, mask=k < width, other=0.0)
        g = tl.load(at_g + row * width + k, mask=x != 0, other=0.0)
        bad += tl.sum((tl.abs(g) < INF).to(tl.int32) == 0, axis=0).to(tl.int32)
        count += tl.sum((x != 0).to(tl.int32), axis=0)
        size += tl.sum(tl.abs(x).to(tl.float64), axis=0)
    finite = bad == 0
    at_h = at_g
    if MOMENTUM:
        if finite:
            for start in range(0, width, PIECE):
                k = start + tl.arange(0, PIECE)
                here = row * width + k
                x = tl.load(at_x + here, mask=k < width, other=0.0)
                m = tl.load(at_m + here, mask=x != 0, other=0.0)
                g = tl.load(at_g + here, mask=x != 0, other=0.0)
                tl.store(at_m + here, averaged(m, g, weight), mask=x != 0)
            tl.debug_barrier()
        at_h = at_m

    fall, moved, hit = tl.full((), 0.0, tl.float64), tl.full((), 0, tl.int32), tl.full((), 0, tl.int32)
    on = size >= r * (1 - ULPS * EPS)
    if SIMPLEX:
        on = size == size  # noqa: PLR0124
    if finite & (count > 0) & ((count > 1) | (on == 0)):
        positive, top = tl.full((), 0.0, tl.float64), tl.full((), -INF, tl.float64)
        for start in range(0, width, PIECE):
            x, h, v, used = pushed(at_x, at_h, row, start + tl.arange(0, PIECE), width, lr)
            positive += tl.sum(tl.where(used, tl.maximum(v, 0.0), 0.0), axis=0)
            top = tl.maximum(top, tl.max(tl.where(used, v, -INF), axis=0))
        onto = on | (positive >= r * (1 - ULPS * EPS))
        # Michelot's iteration, measured from the largest one, from those that can be in the end: within r of it.
        cut, active = -r, tl.full((), -1, tl.int32)
        left = tl.where(onto, 0, -1)
        while left != active:
            active, left = left, tl.full((), 0, tl.int32)
            total = tl.full((), 0.0, tl.float64)
            for start in range(0, width, PIECE):
                x, h, v, used = pushed(at_x, at_h, row, start + tl.arange(0, PIECE), width, lr)
                above = used & (v - top > cut)
                total += tl.sum(tl.where(above, v - top, 0.0), axis=0)
                left += tl.sum(above.to(tl.int32), axis=0)
            cut = tl.where(left > 0, (total - r) / tl.maximum(left, 1).to(tl.float64), cut)
        total, gone = tl.full((), 0.0, tl.float64), tl.full((), 0, tl.int32)
        for start in range(0, width, PIECE):
            x, h, v, used = pushed(at_x, at_h, row, start + tl.arange(0, PIECE), width, lr)
            end = shrunk(x, v, used, top, cut, onto, r, EPS)
            total += tl.sum(end, axis=0)
            gone += tl.sum((used & (end == 0)).to(tl.int32), axis=0)
        scale = tl.where(onto & (total > 0), r / tl.where(total > 0, total, 1.0), 1.0)
        length = tl.full((), 0.0, tl.float64)
        for start in range(0, width, PIECE):
            x, h, v, used = pushed(at_x, at_h, row, start + tl.arange(0, PIECE), width, lr)
            end = shrunk(x, v, used, top, cut, onto, r, EPS) * scale
            end = tl.where(x > 0, end, -end).to(at_x.dtype.element_ty).to(tl.float64)
            fall += tl.sum(tl.where(used, h * (x - end), 0.0), axis=0)
            if TAXICAB:
                length += tl.sum(tl.where(used, tl.abs(x - end), 0.0), axis=0)
        if (fall > 0) & (fall < INF):
            part, repair = fall * 0 + 1, fall * 0 + 1
            if TAXICAB:
                part = tl.where(
                    length > 0, tl.minimum(lr * fall / tl.where(length > 0, length * length, 1.0), 1.0), 1.0
                )
                if part < 1:
                    total = tl.full((), 0.0, tl.float64)
                    for start in range(0, width, PIECE):
                        x, h, v, used = pushed(at_x, at_h, row, start + tl.arange(0, PIECE), width, lr)
                        end = shrunk(x, v, used, top, cut, onto, r, EPS) * scale
                        total += tl.sum(tl.where(used, tl.abs(x) + part * (end - tl.abs(x)), 0.0), axis=0)
                    repair = tl.where(on | (total >= r * (1 - ULPS * EPS)), r / total, 1.0)
            moved += 1
            hit += ((part >= 1) & ((gone > 0) | (onto & (on == 0)))).to(tl.int32)
            for start in range(0, width, PIECE):
                k = start + tl.arange(0, PIECE)
                x, h, v, used = pushed(at_x, at_h, row, k, width, lr)
                end = shrunk(x, v, used, top, cut, onto, r, EPS) * scale
                end = tl.where(part < 1, (tl.abs(x) + part * (end - tl.abs(x))) * repair, end)
                new = tl.where(x > 0, end, -end).to(at_x.dtype.element_ty)
                if MOMENTUM:
                    # What is zero now has no momentum any more.
                    nothing = (h * 0 + float("nan")).to(at_m.dtype.element_ty)
                    tl.store(at_m + row * width + k, nothing, mask=used & (end <= tl.where(hit > 0, 0.0, -1.0)))
                tl.store(at_x + row * width + k, tl.where(end > 0, new, new * 0), mask=used)
    tl.store(at_slope + row, tl.where(finite & (tl.abs(fall) < INF), fall, float("nan")))
    tl.store(at_step + row, moved.to(tl.float64))
    tl.store(at_hit + row, hit.to(tl.int8))


@triton.jit
def box_ends(at_x, at_h, row, k, width, radius, lr, EPS: tl.constexpr):
    """Entries, their slopes, and where a gradient step of those that are not at a bound ends; which these are."""
    x = tl.load(at_x + row * width + k, mask=k < width, other=0.0)
    h = tl.load(at_h + row * width + k, mask=k < width, other=0.0)
    r, edge = radius.to(x.dtype), (radius * (1 - ULPS * EPS)).to(x.dtype)
    free = (tl.abs(x) < edge) & (k < width)
    end = x - lr.to(x.dtype) * h
    end = tl.where(tl.abs(end) >= edge, tl.where(end > 0, r, -r), end)
    return x, h, tl.where(free, end, x), free, tl.abs(end) >= edge


@triton.jit
def box_projected_kernel(
    at_x, at_g, at_m, at_radius, at_lr, at_slope, at_step, at_hit, width, at_weight,
    TAXICAB: tl.constexpr, MOMENTUM: tl.constexpr, RADII: tl.constexpr, LRS: tl.constexpr,
    EPS: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    """A gradient step of the entries that are not at a bound, cut at the bounds."""
    row = tl.program_id(0).to(tl.int64)
    radius, lr = tl.load(at_radius + row * RADII), tl.load(at_lr + row * LRS)
    weight = tl.load(at_weight)
    finite = is_finite(row, at_g, width, PIECE)
    at_h = at_g
    if MOMENTUM:
        if finite:
            average_row(row, at_m, at_g, width, weight, PIECE)
        at_h = at_m
    fall, length = tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64)
    arrived = tl.full((), 0, tl.int32)
    for start in range(0, width, PIECE):
        x, h, end, free, there = box_ends(
            at_x, at_h, row, start + tl.arange(0, PIECE), width, radius, lr, EPS
        )  # fmt: skip
        fall += tl.sum(h * (x - end), axis=0).to(tl.float64)
        length += tl.sum(tl.abs(x - end), axis=0).to(tl.float64)
        arrived += tl.sum((free & there).to(tl.int32), axis=0)
    moves = finite & (fall > 0) & (fall < INF)
    part = fall * 0 + 1
    if TAXICAB:
        part = tl.where(length > 0, tl.minimum(lr * fall / tl.where(length > 0, length * length, 1.0), 1.0), 1.0)
    tl.store(at_slope + row, tl.where(finite & (tl.abs(fall) < INF), fall, float("nan")))
    tl.store(at_step + row, moves.to(tl.float64))
    tl.store(at_hit + row, (moves & (arrived > 0) & (part >= 1)).to(tl.int8))
    if moves:
        for start in range(0, width, PIECE):
            k = start + tl.arange(0, PIECE)
            x, h, end, free, there = box_ends(at_x, at_h, row, k, width, radius, lr, EPS)
            end = tl.where(part < 1, x + part.to(x.dtype) * (end - x), end)
            tl.store(at_x + row * width + k, end, mask=free)
