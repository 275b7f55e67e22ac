"""The step on rows of contiguous memory, compiled by Numba: one pass over a row to reduce, one to apply.

A row stays in cache between the passes, so the memory traffic is that of ``x.add_(g)``. The mathematics is that of
:mod:`inface.sets.group_sum` and :mod:`inface.sets.linf_ball`, letter by letter.
"""

from __future__ import annotations

import math

import numpy as np
from numba import carray, float32, float64, int32, int64

# Numba's cache of this file does not see changes in that one, such as another table: touch this file after them.
from .loops import (
    AWAY,
    BOX,
    COLUMNS,
    PAIRWISE,
    PIECE,
    RATES,
    REASSOCIATE,
    ROWS,
    SIMPLEX,
    SLOPES,
    START,
    TOWARD,
    ULPS,
    WIDTH,
    WITHIN,
    G,
    M,
    X,
    average_into,
    bits_of,
    compiled,
    find_key,
    find_signed,
    lies_outside,
    others,
    pointer,
    reduce_row,
    scale_by,
    sum_row,
    top_magnitude,
)  # fmt: skip

__all__ = ["rows_float32", "rows_float64"]

# ---------------------------------------------------------------------- rows of l1 balls and simplices


@compiled(inline="always")
def one_hot_row(x, xb, g, gb, r, rate, most, sign, family, phase, j, inner, size, sizes, mask, low, eps):
    """The step of one row whose vertices have one entry: ``(slope, step, hit)``. See ``group_sum`` for the formulas."""
    on = family == SIMPLEX or size >= r * (1 - ULPS * eps)
    whole = gb.dtype.type
    turned = low if sign < 0 else whole(0)
    if phase == TOWARD or not on:
        if family == SIMPLEX:
            j = find_signed(gb, whole(turned ^ low), low)
            u = 1.0
        else:
            if phase != TOWARD:
                j = reduce_row(x, g, gb, mask)[1]
            slant = -sign * g[j] if phase == AWAY else sign * g[j]
            u = -1.0 if slant > 0 else 1.0
    else:
        j = find_key(xb, gb, turned if phase == AWAY else whole(turned ^ low), mask, low)
        u = 1.0 if x[j] > 0 else -1.0
    w = find_key(xb, gb, turned, mask, low) if phase == PAIRWISE and on else j
    own, price = float64(x[j]), sign * float64(g[j])
    norm, along = abs(own), own * u
    scale, wanted, limit, keeps = 1.0, 0.0, 1.0, on

    if phase <= WITHIN:
        rest = size - norm if phase == TOWARD else others(x, j, j, sizes)
        slope = inner - r * u * price
        if phase == TOWARD:
            keeps = on and along >= norm * (1 - 4 * eps)
        elif on and rest == 0:
            slope = 0.0
    elif phase == AWAY:
        rest = others(x, j, j, sizes)
        slope = 0.0 if on and rest == 0 else r * u * price - inner
        if on:
            limit = norm / rest if rest > 0 else norm
        else:
            bend = (norm - along) * (norm + along) + (r - along - rest) * (r - along + rest)
            limit = (r - rest - norm) * (r - rest + norm) / (bend if bend > 0 else 1.0)
    else:
        rest = others(x, j, w, sizes)
        if on:
            worst = 1.0 if x[w] > 0 else -1.0
            slope = 0.0 if j == w else r * (worst * sign * float64(g[w]) - u * price)
            limit = abs(float64(x[w])) / r
        else:
            slope = 2 * r * abs(price)
            room = along * along + (r - rest - norm) * (r - rest + norm)
            limit = (math.sqrt(max(room, 0.0)) - along) / (2 * r)

    wanted = min(slope * rate, most) if 0 < slope < np.inf else 0.0
    hit = wanted >= limit and wanted > 0
    t = limit if hit else wanted
    if not t > 0:
        return slope, t, hit

    lost = 0.0
    if phase <= WITHIN:
        scale, new = 1 - t, (1 - t) * own + t * r * u
    elif phase == AWAY:
        scale = 1 + t
        new = (0.0 if hit else max(norm - t * rest, 0.0) * u) if on else (1 + t) * own - t * r * u
    elif on:
        held = float64(x[w])
        lost = 0.0 if hit else held * max(1 - t * r / abs(held), 0.0)
        new = own + t * r * u
    else:
        new = own + 2 * t * r * u
    total = scale * rest + abs(new) + abs(lost)
    repair = 1.0
    if total > 0 and not (hit and phase <= WITHIN) and (keeps or (hit and not on)):
        repair = r / total
    factor = x.dtype.type(scale * repair)
    if factor != 1:
        scale_by(x, factor)
    if w != j:
        x[w] = x.dtype.type(lost * repair)
    x[j] = x.dtype.type(new * repair)
    return slope, t, hit


# ---------------------------------------------------------------------- rows of boxes


@compiled(fastmath=REASSOCIATE)
def box_sums(x, g, sign, r, edge):
    """``sum |g_j| (r + sign(g_j) x_j)`` and ``sum |g_j| (r - sign(g_j) x_j)`` over the entries that are not at a bound."""
    real = x.dtype.type
    forth, back = real(0), real(0)
    for k in range(x.shape[0]):
        slant = sign * g[k] if abs(x[k]) < edge else real(0)
        way = x[k] if slant > 0 else -x[k]
        forth += abs(slant) * (r + way)
        back += abs(slant) * (r - way)
    return forth, back


@compiled()
def box_room(x, g, sign, r, edge, still, mask):
    """The least way to go, ``r + sign(g_j) x_j``, as bits, over the entries that move; those with ``g_j = 0`` if ``still``."""
    real = x.dtype.type
    least = mask
    for k in range(x.shape[0]):
        slant = sign * g[k]
        way = r + (x[k] if slant >= 0 else -x[k])
        room = bits_of(real(way))
        room = room if abs(x[k]) < edge else mask
        room = room if (slant != 0) | still else mask
        least = min(least, room)
    return least


@compiled()
def box_reduce(x, g, sign, r, edge):
    forth, back = 0.0, 0.0
    for piece in range(0, x.shape[0], PIECE):
        end = min(piece + PIECE, x.shape[0])
        part = box_sums(x[piece:end], g[piece:end], sign, r, edge)
        forth += float64(part[0])
        back += float64(part[1])
    return forth, back


# In the loops below an entry that does not move is given itself as its end: a select between a value and what is
# already in memory would become a branch, and the loop would not be vectorised.


@compiled()
def box_toward(x, g, sign, r, edge, t):
    """``x + t (v - x)``; an entry that is at its end stays, and a step of one arrives exactly."""
    rest = x.dtype.type(1) - t
    if t < 0.5:
        for k in range(x.shape[0]):
            own = x[k]
            v = -r if sign * g[k] > 0 else r
            v = v if abs(own) < edge else own
            x[k] = own + t * (v - own)
    else:
        for k in range(x.shape[0]):
            own = x[k]
            v = -r if sign * g[k] > 0 else r
            v = v if abs(own) < edge else own
            x[k] = v - (v - own) * rest


@compiled()
def box_away(x, g, sign, r, edge, t, reach):
    """``x + t (x - w)``; entries whose ratio is within ``reach`` arrive at ``-w`` exactly."""
    for k in range(x.shape[0]):
        own = x[k]
        w = r if sign * g[k] >= 0 else -r
        way = own if w > 0 else -own
        free = abs(own) < edge
        d = own - w if free else own - own
        end = own + t * d
        end = -r if end < -r else end
        end = r if end > r else end
        x[k] = -w if (r + way <= reach * (r - way)) & free else end


@compiled()
def box_pairwise(x, g, sign, r, edge, t, reach):
    """``x + t (v - w)``; entries with no more than ``reach`` to go arrive at ``v`` exactly."""
    for k in range(x.shape[0]):
        own, slant = x[k], sign * g[k]
        v = -r if slant > 0 else r
        way = r + (own if slant > 0 else -own)
        moves = (abs(own) < edge) & (slant != 0)
        d = v + v if moves else own - own
        end = own + t * d
        end = -r if end < -r else end
        end = r if end > r else end
        x[k] = v if (way <= reach) & moves else end


@compiled()
def box_row(x, g, radius, rate, most, sign, phase, mask, eps):
    """The step of one row of a box: ``(slope, step, hit)``. See ``linf_ball`` for the formulas."""
    real = x.dtype.type
    r, s = real(radius), real(sign)
    edge = real(np.inf) if phase == TOWARD else real(radius * (1 - ULPS * eps))
    forth, back = box_reduce(x, g, s, r, edge)
    limit = 1.0
    if phase <= WITHIN:
        slope = forth
    else:
        least = box_room(x, g, s, r, edge, phase == AWAY, mask)
        room = bits_of(least) if least < mask else real(np.inf)
        if phase == AWAY:
            slope = back
            limit = float64(room / (r - (room - r))) if least < mask else np.inf
        else:
            slope = forth + back
            limit = float64(room) / (2 * radius)
    wanted = min(slope * rate, most) if 0 < slope < np.inf else 0.0
    hit = wanted >= limit and wanted > 0
    t = limit if hit else wanted
    if t > 0:
        if phase <= WITHIN:
            box_toward(x, g, s, r, edge, real(t))
        elif phase == AWAY:
            box_away(x, g, s, r, edge, real(t), real(t) * real(1 + ULPS * eps) if hit else real(-1))
        else:
            reach = real(2) * r * real(t) * real(1 + ULPS * eps) if hit else real(-1)
            box_pairwise(x, g, s, r, edge, real(t), reach)
    return slope, t, hit


# ---------------------------------------------------------------------- all rows


@compiled()
def all_rows(
    x,
    xb,
    g,
    gb,
    m,
    mb,
    radii,
    rates,
    slopes,
    counts,
    weight,
    most,
    sign,
    first,
    family,
    phase,
    project,
    mask,
    low,
    infinite,
    eps,
):
    """The step on every row from ``first`` on; a row whose gradient is not finite is left alone, and counted.

    A row outside of its set is counted too, and its slope ``s`` marked as ``-1 - s``. With ``project`` it is left where it
    is, with a slope of -1: the caller sees to it. A row of infinite radius is free, and somebody else's.
    """
    sizes = np.empty(-(-x.shape[1] // PIECE))
    for i in range(first, x.shape[0]):
        h, hb, turn = g[i], gb[i], sign
        r, rate = radii[i if radii.shape[0] > 1 else 0], rates[i]
        slopes[i] = 0.0
        if r == np.inf:
            continue
        if (weight > 0 or family == BOX) and top_magnitude(hb, mask) >= infinite:
            counts[2] += 1
            continue
        if weight > 0:
            average_into(m[i], h, weight, sign)
            h, hb, turn = m[i], mb[i], 1.0
        j, inner = 0, 0.0
        if family == BOX:
            size, finite = float64(bits_of(top_magnitude(xb[i], mask))), True
        elif phase == TOWARD:
            top, j, inner, size = reduce_row(x[i], h, hb, mask)
            finite = top < infinite
        else:
            inner, size = sum_row(x[i], h, sizes)
            finite = math.isfinite(inner)
        if not finite:
            counts[2] += 1
            continue
        outside = lies_outside(xb[i], size, r, family, low, eps)
        if outside:
            counts[3] += 1
            if project:
                slopes[i] = -1.0
                continue
        if family == BOX:
            slope, step, hit = box_row(x[i], h, r, rate, most, turn, phase, mask, eps)
        else:
            slope, step, hit = one_hot_row(
                x[i], xb[i], h, hb, r, rate, most, turn, family, phase, j, turn * inner, size, sizes, mask, low, eps
            )
        if not math.isfinite(slope):
            counts[2] += 1
            continue
        slopes[i] = -1 - max(slope, 0.0) if outside else max(slope, 0.0)
        counts[0] += step > 0
        counts[1] += hit


@compiled(entry=True)
def rows_float32(table, layers, first, last, radii, many_radii, weight, most, sign, family, counts, phase, project):
    """The step on rows ``first`` to ``last`` of float32 memory; arguments are addresses and numbers."""
    lines = carray(pointer(table), (layers, COLUMNS), int64)
    for i in range(layers):
        line = lines[i]
        begin, end = max(first - line[START], 0), min(last - line[START], line[ROWS])
        if line[X] == 0 or begin >= end:
            continue
        n = (end, line[WIDTH])
        all_rows(
            carray(pointer(line[X]), n, float32), carray(pointer(line[X]), n, int32),
            carray(pointer(line[G]), n, float32), carray(pointer(line[G]), n, int32),
            carray(pointer(line[M]), n, float32), carray(pointer(line[M]), n, int32),
            carray(pointer(radii), (end if many_radii else 1,), float64),
            carray(pointer(line[RATES]), (end,), float64),
            carray(pointer(line[SLOPES]), (end,), float64), carray(pointer(counts), (4,), int64),
            weight, most, sign, begin, family, phase, project,
            int32(0x7FFFFFFF), int32(-0x80000000), int32(0x7F800000), 2.0**-23,
        )  # fmt: skip


@compiled(entry=True)
def rows_float64(table, layers, first, last, radii, many_radii, weight, most, sign, family, counts, phase, project):
    """The step on rows ``first`` to ``last`` of float64 memory; arguments are addresses and numbers."""
    lines = carray(pointer(table), (layers, COLUMNS), int64)
    for i in range(layers):
        line = lines[i]
        begin, end = max(first - line[START], 0), min(last - line[START], line[ROWS])
        if line[X] == 0 or begin >= end:
            continue
        n = (end, line[WIDTH])
        all_rows(
            carray(pointer(line[X]), n, float64), carray(pointer(line[X]), n, int64),
            carray(pointer(line[G]), n, float64), carray(pointer(line[G]), n, int64),
            carray(pointer(line[M]), n, float64), carray(pointer(line[M]), n, int64),
            carray(pointer(radii), (end if many_radii else 1,), float64),
            carray(pointer(line[RATES]), (end,), float64),
            carray(pointer(line[SLOPES]), (end,), float64), carray(pointer(counts), (4,), int64),
            weight, most, sign, begin, family, phase, project,
            int64(0x7FFFFFFFFFFFFFFF), int64(-0x8000000000000000), int64(0x7FF0000000000000), 2.0**-52,
        )  # fmt: skip
