"""The step on blocks of groups, group-l1 balls and l2 balls, for Triton: programs for groups, then for blocks, then for groups.

The mathematics is that of :mod:`inface.kernels.groups` and :mod:`inface.kernels.projected`. The first pass finds the largest
gradients of each group, the second takes them into the momentum and reduces a group to three products, one program per
block decides how its groups end, ``a x + b h``, and the last pass writes that.
"""

# Types are Triton's; its kernels are what they are.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, C901, PLR0912, PLR0915

from __future__ import annotations

import triton
import triton.language as tl

from .triton_rows import AWAY, INF, PAIRWISE, TOWARD, ULPS, WITHIN, averaged

__all__ = ["apply_kernel", "decide_kernel", "products_kernel", "project_kernel", "tops_kernel"]

# Gradients are measured in units of their largest entry, or of this where that has no inverse.
TINY = tl.constexpr(1e-290)


@triton.jit
def largest(at, group, width, PIECE: tl.constexpr):
    """The largest magnitude of a group; infinite if one is not finite."""
    top = tl.full((), 0.0, tl.float64)
    for start in range(0, width, PIECE):
        k = start + tl.arange(0, PIECE)
        x = tl.abs(tl.load(at + group * width + k, mask=k < width, other=0.0).to(tl.float64))
        top = tl.maximum(top, tl.max(tl.where(x < INF, x, INF), axis=0))
    return top


@triton.jit
def tops_kernel(at_x, at_g, at_flag, width, groups, SUPPORT: tl.constexpr, PIECE: tl.constexpr):
    """Count, for each block, the groups whose gradient is not finite; with ``SUPPORT``, of those that are not zero."""
    group = tl.program_id(0).to(tl.int64)
    top = largest(at_g, group, width, PIECE)
    bad = top == INF
    if SUPPORT:
        bad = bad & ((largest(at_x, group, width, PIECE) > 0) | (groups == 1))
    if bad:
        tl.atomic_add(at_flag + group // groups, 1)


@triton.jit
def products_kernel(
    at_x, at_g, at_m, at_flag, at_lr, at_price, at_push, at_norm, at_end, width, groups, at_weight,
    SUPPORT: tl.constexpr, MOMENTUM: tl.constexpr, LRS: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    """``<h, x>``, ``|h|`` and ``|x|`` of a group, with its momentum; with ``SUPPORT`` also ``|x - lr h|``."""
    group = tl.program_id(0).to(tl.int64)
    block = group // groups
    weight = tl.load(at_weight)
    tall = largest(at_x, group, width, PIECE)
    used = (tall > 0) | (groups == 1)
    at_h = at_g
    if MOMENTUM:
        takes = tl.load(at_flag + block) == 0
        if SUPPORT:
            takes = takes & used
        if takes:
            for start in range(0, width, PIECE):
                k = start + tl.arange(0, PIECE)
                here = group * width + k
                m = tl.load(at_m + here, mask=k < width, other=0.0)
                g = tl.load(at_g + here, mask=k < width, other=0.0)
                tl.store(at_m + here, averaged(m, g, weight), mask=k < width)
            tl.debug_barrier()
        at_h = at_m
    tall = tl.where(tall > 0, tall, 1.0)
    high = tl.maximum(largest(at_h, group, width, PIECE), TINY)
    high = tl.where(high < INF, high, 1.0)
    hx, hh, xx = tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64)
    for start in range(0, width, PIECE):
        k = start + tl.arange(0, PIECE)
        x = tl.load(at_x + group * width + k, mask=k < width, other=0.0).to(tl.float64) / tall
        h = tl.load(at_h + group * width + k, mask=k < width, other=0.0).to(tl.float64) / high
        hx += tl.sum(h * x, axis=0)
        hh += tl.sum(h * h, axis=0)
        xx += tl.sum(x * x, axis=0)
    tl.store(at_price + group, high * (tall * hx))
    tl.store(at_push + group, high * tl.sqrt(hh))
    tl.store(at_norm + group, tall * tl.sqrt(xx))
    if SUPPORT:
        lr = tl.load(at_lr + block * LRS)
        square = tl.full((), 0.0, tl.float64)
        for start in range(0, width, PIECE):
            k = start + tl.arange(0, PIECE)
            x = tl.load(at_x + group * width + k, mask=k < width, other=0.0).to(tl.float64)
            h = tl.load(at_h + group * width + k, mask=k < width, other=0.0).to(tl.float64)
            end = x - lr * h
            square += tl.sum(end * end, axis=0)
        tl.store(at_end + group, tl.where(used, tl.sqrt(square), 0.0))


@triton.jit
def decide_kernel(
    at_x, at_h, at_radius, at_rate, at_most, at_flag, at_price, at_push, at_norm, at_a, at_b,
    at_slope, at_step, at_hit, width, groups,
    PHASE: tl.constexpr, RADII: tl.constexpr, RATES: tl.constexpr, EPS: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    """How the groups of one block end, for a step toward or away from vertices."""
    block = tl.program_id(0).to(tl.int64)
    r, rate = tl.load(at_radius + block * RADII), tl.load(at_rate + block * RATES)
    most = tl.load(at_most)
    finite = tl.load(at_flag + block) == 0
    size, inner = tl.full((), 0.0, tl.float64), tl.full((), 0.0, tl.float64)
    top, low, high = (
        tl.full((), -INF, tl.float64), tl.full((), INF, tl.float64), tl.full((), -INF, tl.float64),
    )  # fmt: skip
    any_at, low_at, high_at = tl.full((), 0, tl.int64), tl.full((), 0, tl.int64), tl.full((), 0, tl.int64)
    for start in range(0, groups, PIECE):
        i = start + tl.arange(0, PIECE)
        here = i < groups
        norm = tl.load(at_norm + block * groups + i, mask=here, other=0.0)
        price = tl.load(at_price + block * groups + i, mask=here, other=0.0)
        push = tl.load(at_push + block * groups + i, mask=here, other=-1.0)
        size += tl.sum(norm, axis=0)
        inner += tl.sum(price, axis=0)
        value, at = tl.max(push, axis=0, return_indices=True)
        better = value > top
        any_at = tl.where(better, start + at.to(tl.int64), any_at)
        top = tl.where(better, value, top)
        unit = price / tl.where(norm > 0, norm, 1.0)
        value, at = tl.min(tl.where(norm > 0, unit, INF), axis=0, return_indices=True)
        better = value < low
        low_at = tl.where(better, start + at.to(tl.int64), low_at)
        low = tl.where(better, value, low)
        value, at = tl.max(tl.where(norm > 0, unit, -INF), axis=0, return_indices=True)
        better = value > high
        high_at = tl.where(better, start + at.to(tl.int64), high_at)
        high = tl.where(better, value, high)

    on = size >= r * (1 - ULPS * EPS)
    along_face = on
    if PHASE == TOWARD:
        along_face = on & (on == 0)
    gain, lose = tl.where(along_face, low, -top), tl.where(along_face, high, top)
    j, w = tl.where(along_face, low_at, any_at), tl.where(along_face, high_at, any_at)
    at = w if PHASE == AWAY else j
    rest = tl.full((), 0.0, tl.float64)
    for start in range(0, groups, PIECE):
        i = start + tl.arange(0, PIECE)
        norm = tl.load(at_norm + block * groups + i, mask=i < groups, other=0.0)
        others = i != at
        if PHASE == PAIRWISE:
            others = others & (i != w)
        rest += tl.sum(tl.where(others, norm, 0.0), axis=0)
    norm, held = tl.load(at_norm + block * groups + at), tl.load(at_norm + block * groups + w)
    push_j = tl.load(at_push + block * groups + j)
    # Inside, how far the group leans towards the vertex: <x_j, u> with u = -h_j / |h_j|. No gradient, no slope, no step.
    lean = tl.where(push_j > 0, -tl.load(at_price + block * groups + j) / tl.where(push_j > 0, push_j, 1.0), 0.0)
    limit = rest * 0 + 1
    if PHASE <= WITHIN:
        slope = inner - r * gain
        if PHASE == WITHIN:
            slope = tl.where(on & (rest == 0), 0.0, slope)
    elif PHASE == AWAY:
        slope = tl.where(on & (rest == 0), 0.0, r * lose - inner)
        bend = (norm - lean) * (norm + lean) + (r + lean - rest) * (r + lean + rest)
        inside = (r - rest - norm) * (r - rest + norm) / tl.where(bend > 0, bend, 1.0)
        limit = tl.where(on, norm / tl.where(rest > 0, rest, 1.0), inside)
    else:
        slope = tl.where(on & (j == w), 0.0, r * (lose - gain))
        room = lean * lean + (r - rest - norm) * (r - rest + norm)
        limit = tl.where(on, held / r, (tl.sqrt(tl.maximum(room, 0.0)) - lean) / (2 * r))

    usable = finite & (slope > 0) & (slope < INF)
    wanted = tl.where(usable, tl.minimum(slope * rate, most), 0.0)
    hit = (wanted >= limit) & (wanted > 0)
    t = tl.where(hit, limit, wanted)
    tl.store(at_slope + block, tl.where(finite, slope, float("nan")))
    tl.store(at_step + block, t)
    tl.store(at_hit + block, hit.to(tl.int8))

    # How the groups that are rewritten end: ``own`` times what they hold, plus ``push`` against the gradient.
    lost = t * 0 + 1
    positive = tl.where(norm > 0, norm, 1.0)
    if PHASE <= WITHIN:
        scale, own, push = 1 - t, 1 - t, t * r
        if PHASE == WITHIN:
            own = tl.where(on, ((1 - t) * norm + t * r) / positive, own)
            push = tl.where(on, 0.0, push)
    elif PHASE == AWAY:
        scale = 1 + t
        own = tl.where(on, tl.where(hit, 0.0, tl.maximum(norm - t * rest, 0.0) / positive), 1 + t)
        push = tl.where(on, 0.0, t * r)
    else:
        scale = t * 0 + 1
        own, push = tl.where(on, (norm + t * r) / positive, 1.0), tl.where(on, 0.0, 2 * t * r)
        lost = tl.where(hit, 0.0, tl.maximum(1 - t * r / tl.where(held > 0, held, 1.0), 0.0))
    push_at = tl.load(at_push + block * groups + at)
    along = tl.where(push != 0, -push / tl.where(push_at > 0, push_at, 1.0), 0.0)
    # The norm of what is about to be written, |own x_j + push u|.
    square = tl.full((), 0.0, tl.float64)
    for start in range(0, width, PIECE):
        k = start + tl.arange(0, PIECE)
        here = (block * groups + at) * width + k
        x = tl.load(at_x + here, mask=k < width, other=0.0).to(tl.float64)
        h = tl.load(at_h + here, mask=k < width, other=0.0).to(tl.float64)
        end = own * x + along * h
        square += tl.sum(end * end, axis=0)
    new = tl.where(push == 0, own * norm, tl.sqrt(square))
    total = scale * rest + new
    if PHASE == PAIRWISE:
        total += tl.where(on & (j != w), lost * held, 0.0)
    keeps = on
    if PHASE == TOWARD:
        keeps = on & (lean >= norm * (1 - 4 * EPS))
    mends = keeps | (hit & (on == 0))
    if PHASE <= WITHIN:
        mends = mends & (hit == 0)
    repair = tl.where(mends & (total > 0), r / tl.where(total > 0, total, 1.0), 1.0)
    still = (t > 0) == 0
    for start in range(0, groups, PIECE):
        i = start + tl.arange(0, PIECE)
        a, b = scale * repair + i * 0.0, along * 0.0 + i * 0.0
        if PHASE == PAIRWISE:
            a = tl.where(i == tl.where(on, w, -1), lost * repair, a)
        a, b = tl.where(i == at, own * repair, a), tl.where(i == at, along * repair, b)
        tl.store(at_a + block * groups + i, tl.where(still, 1.0, a), mask=i < groups)
        tl.store(at_b + block * groups + i, tl.where(still, 0.0, b), mask=i < groups)


@triton.jit
def drawn(at_price, at_norm, at_end, group, here, lr, turns, single):
    """Norms of groups, how long they are after a gradient step along their directions, and which there are."""
    norm = tl.load(at_norm + group, mask=here, other=0.0)
    used = here & (norm > tl.where(turns & single, -1.0, 0.0))
    price = tl.load(at_price + group, mask=here, other=0.0)
    end = tl.load(at_end + group, mask=here, other=0.0)
    v = tl.where(turns, end, norm - lr * (price / tl.where(norm > 0, norm, 1.0)))
    return norm, v, price, used


@triton.jit
def kept(norm, v, used, top, cut, onto, r, EPS: tl.constexpr):
    """What the projection makes of ``v``; what rounding leaves of what was to vanish vanishes too."""
    w = tl.maximum(tl.where(onto, (v - top) - cut, v), 0.0)
    return tl.where(used & ((w > r * ULPS * EPS) | (w >= norm)), w, 0.0)


@triton.jit
def project_kernel(
    at_radius, at_lr, at_flag, at_price, at_push, at_norm, at_end, at_a, at_b, at_slope, at_step, at_hit,
    width, groups, RADII: tl.constexpr, LRS: tl.constexpr, EPS: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    """How the groups of one block end, for a projected gradient step."""
    block = tl.program_id(0).to(tl.int64)
    r, lr = tl.load(at_radius + block * RADII), tl.load(at_lr + block * LRS)
    finite = tl.load(at_flag + block) == 0
    single = groups == 1
    size = tl.full((), 0.0, tl.float64)
    for start in range(0, groups, PIECE):
        i = start + tl.arange(0, PIECE)
        size += tl.sum(tl.load(at_norm + block * groups + i, mask=i < groups, other=0.0), axis=0)
    on = size >= r * (1 - ULPS * EPS)
    turns = (on == 0) & (width > 1)  # inside, directions are free
    positive, top = tl.full((), 0.0, tl.float64), tl.full((), -INF, tl.float64)
    count = tl.full((), 0, tl.int32)
    for start in range(0, groups, PIECE):
        i = start + tl.arange(0, PIECE)
        norm, v, price, used = drawn(at_price, at_norm, at_end, block * groups + i, i < groups, lr, turns, single)
        positive += tl.sum(tl.where(used, tl.maximum(v, 0.0), 0.0), axis=0)
        top = tl.maximum(top, tl.max(tl.where(used, v, -INF), axis=0))
        count += tl.sum(used.to(tl.int32), axis=0)
    onto = on | (positive >= r * (1 - ULPS * EPS))
    moves = finite & (count > 0) & ((count > 1) | (on == 0))
    cut, active = -r, tl.full((), -1, tl.int32)
    left = tl.where(onto & moves, 0, -1)
    while left != active:
        active, left = left, tl.full((), 0, tl.int32)
        total = tl.full((), 0.0, tl.float64)
        for start in range(0, groups, PIECE):
            i = start + tl.arange(0, PIECE)
            norm, v, price, used = drawn(at_price, at_norm, at_end, block * groups + i, i < groups, lr, turns, single)
            above = used & (v - top > cut)
            total += tl.sum(tl.where(above, v - top, 0.0), axis=0)
            left += tl.sum(above.to(tl.int32), axis=0)
        cut = tl.where(left > 0, (total - r) / tl.maximum(left, 1).to(tl.float64), cut)
    total, gone = tl.full((), 0.0, tl.float64), tl.full((), 0, tl.int32)
    for start in range(0, groups, PIECE):
        i = start + tl.arange(0, PIECE)
        norm, v, price, used = drawn(at_price, at_norm, at_end, block * groups + i, i < groups, lr, turns, single)
        end = kept(norm, v, used, top, cut, onto, r, EPS)
        total += tl.sum(end, axis=0)
        gone += tl.sum((used & (end == 0)).to(tl.int32), axis=0)
    scale = tl.where(onto & (total > 0), r / tl.where(total > 0, total, 1.0), 1.0)
    fall = tl.full((), 0.0, tl.float64)
    for start in range(0, groups, PIECE):
        i = start + tl.arange(0, PIECE)
        norm, v, price, used = drawn(at_price, at_norm, at_end, block * groups + i, i < groups, lr, turns, single)
        push = tl.load(at_push + block * groups + i, mask=i < groups, other=0.0)
        unit = tl.where(turns, v, norm)
        a = tl.where(unit > 0, kept(norm, v, used, top, cut, onto, r, EPS) * scale / tl.where(unit > 0, unit, 1.0), 0.0)
        b = tl.where(turns, -lr * a, 0.0)
        # <h, x - (a x + b h)>
        fall += tl.sum(tl.where(used, (1 - a) * price - b * push * push, 0.0), axis=0)
        tl.store(at_a + block * groups + i, tl.where(used, a, 1.0), mask=i < groups)
        tl.store(at_b + block * groups + i, tl.where(used, b, 0.0), mask=i < groups)
    moves = moves & (fall > 0) & (fall < INF)
    if moves == 0:
        for start in range(0, groups, PIECE):
            i = start + tl.arange(0, PIECE)
            tl.store(at_a + block * groups + i, i * 0.0 + 1.0, mask=i < groups)
            tl.store(at_b + block * groups + i, i * 0.0, mask=i < groups)
    usable = finite & ((tl.abs(fall) < INF) | (count == 0) | (on & (count == 1)))
    alone = (count == 0) | (on & (count == 1))
    tl.store(at_slope + block, tl.where(usable, tl.where(alone, 0.0, fall), float("nan")))
    tl.store(at_step + block, moves.to(tl.float64))
    tl.store(at_hit + block, (moves & ((gone > 0) | (onto & (on == 0)))).to(tl.int8))


@triton.jit
def apply_kernel(
    at_x, at_h, at_a, at_b, at_norm, at_hit, width, groups, FORGETS: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    """``a x + b h`` in place; with ``FORGETS``, a group that vanishes has no momentum any more."""
    group = tl.program_id(0).to(tl.int64)
    a, b = tl.load(at_a + group), tl.load(at_b + group)
    if (a != 1) | (b != 0):
        for start in range(0, width, PIECE):
            k = start + tl.arange(0, PIECE)
            here = group * width + k
            x = tl.load(at_x + here, mask=k < width, other=0.0).to(tl.float64)
            h = tl.load(at_h + here, mask=k < tl.where(b != 0, width, 0), other=0.0).to(tl.float64)
            end = a * x + b * h
            tl.store(at_x + here, end.to(at_x.dtype.element_ty), mask=k < width)
            if FORGETS:
                gone = (a == 0) & (b == 0) & (tl.load(at_norm + group) > 0) & (groups > 1)
                gone = gone & (tl.load(at_hit + group // groups) != 0)
                nothing = (end * 0 + float("nan")).to(at_h.dtype.element_ty)
                tl.store(at_h + here, nothing, mask=k < tl.where(gone, width, 0))
