"""Projected in-face steps, compiled by Numba: a gradient step of what a block uses, projected onto the minimal face.

The mathematics is that of ``project_in_face`` of a set and of its ``block_face_project``, letter by letter; the loops follow
:mod:`inface.kernels.loops`. The projection works on a short list of what a block uses. Gradient and momentum are looked at
there and nowhere else; where somebody keeps the list, the weights are too.
"""

# Types are Numba's; its loops are what they are.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, ARG001, C901, PLR0912, PLR0915

from __future__ import annotations

import math

import numpy as np
from numba import carray, float32, float64, int32, int64

# Numba's cache of this file does not see changes in that one: touch this file after them.
from .loops import (
    AT,
    BALL,
    BOX,
    COLUMNS,
    ENDS,
    GROUPS,
    PIECE,
    PRICES,
    RATES,
    REASSOCIATE,
    ROWS,
    SIMPLEX,
    SLOPES,
    START,
    ULPS,
    VALUES,
    WIDTH,
    G,
    M,
    X,
    average_into,
    bits_of,
    compiled,
    pointer,
    top_magnitude,
)  # fmt: skip
from .short import (
    LANES,
    average_short,
    average_whole,
    find,
    forget_listed,
    gather,
    keep_average,
    padded,
    pick,
    pick_prices,
    pick_values,
    unfinished,
    whole_row,
)
from .simplices import part_of, shrink, sparse_row
from .squeeze import SQUEEZES, squeeze
from .vectors import prefetch

__all__ = ["projected_float32", "projected_float64"]

# A sum of squares below this has lost digits, or all of them, and is added up again in units of the largest entry.
LEAST = 1e-200


# ---------------------------------------------------------------------- rows of boxes


@compiled(fastmath=REASSOCIATE)
def box_ends(x, g, lr, r, edge):
    """``<g, x - w>`` and ``|x - w|_1`` for ``w = clip(x - lr g)``, where entries at a bound stay, and how many arrive at one."""
    real = x.dtype.type
    fall, length, arrived = real(0), real(0), real(0)
    for k in range(x.shape[0]):
        own = x[k]
        free = abs(own) < edge
        end = own - lr * g[k]
        bound = r if end > 0 else -r
        end = bound if abs(end) >= edge else end
        end = end if free else own
        fall += g[k] * (own - end)
        length += abs(own - end)
        arrived += real(1) if free & (abs(end) >= edge) else real(0)
    return fall, length, arrived


@compiled()
def box_write(x, g, lr, r, edge, part):
    real = x.dtype.type
    if part >= 1:
        for k in range(x.shape[0]):
            own = x[k]
            end = own - lr * g[k]
            bound = r if end > 0 else -r
            end = bound if abs(end) >= edge else end
            x[k] = end if abs(own) < edge else own
    else:
        for k in range(x.shape[0]):
            own = x[k]
            end = own - lr * g[k]
            bound = r if end > 0 else -r
            end = bound if abs(end) >= edge else end
            end = end if abs(own) < edge else own
            x[k] = own + real(part) * (end - own)


@compiled()
def box_row(x, g, sign, radius, lr, phase, eps):
    """The step of one row of a box: ``(fall, moved, hit)``."""
    real = x.dtype.type
    r, edge, rate = real(radius), real(radius * (1 - ULPS * eps)), real(sign * lr)
    fall, length, arrived = 0.0, 0.0, 0.0
    for piece in range(0, x.shape[0], PIECE):
        end = min(piece + PIECE, x.shape[0])
        some = box_ends(x[piece:end], g[piece:end], rate, r, edge)
        fall += sign * float64(some[0])
        length += float64(some[1])
        arrived += float64(some[2])
    if not (0 < fall < np.inf):
        return fall, False, False
    part = part_of(lr, fall, length, phase)
    box_write(x, g, rate, r, edge, part)
    return fall, True, arrived > 0 and part >= 1


# ---------------------------------------------------------------------- blocks of groups


@compiled(fastmath=REASSOCIATE)
def inner(g, x):
    total = 0.0
    for k in range(x.shape[0]):
        total += float64(g[k]) * float64(x[k])
    return total


@compiled()
def norm_of(x, bits, mask):
    """``|x|``, also where its square vanishes."""
    top = float64(bits_of(top_magnitude(bits, mask)))
    if top == 0:
        return 0.0
    square = inner(x, x)
    if LEAST < square < np.inf:
        return math.sqrt(square)
    total = 0.0
    for k in range(x.shape[0]):
        total += (float64(x[k]) / top) ** 2
    return top * math.sqrt(total)


@compiled(fastmath=REASSOCIATE)
def way(x, g, a, b):
    """``<g, x - w>`` and ``|x - w|_1`` for ``w = a x + b g``."""
    fall, length = 0.0, 0.0
    for k in range(x.shape[0]):
        d = float64(x[k]) - (a * float64(x[k]) + b * float64(g[k]))
        fall += float64(g[k]) * d
        length += abs(d)
    return fall, length


@compiled(fastmath=REASSOCIATE)
def pushed_norm(x, g, b):
    """``|x + b g|``."""
    total = 0.0
    for k in range(x.shape[0]):
        end = float64(x[k]) + b * float64(g[k])
        total += end * end
    return math.sqrt(total)


@compiled()
def write_along(x, g, a, b):
    """``a x + b g`` in place; exact zeros where both are 0, whatever is in ``g``."""
    if b == 0:
        for k in range(x.shape[0]):
            x[k] = x.dtype.type(a * float64(x[k]))
    else:
        for k in range(x.shape[0]):
            x[k] = x.dtype.type(a * float64(x[k]) + b * float64(g[k]))


@compiled()
def group_block(x, g, sign, r, lr, phase, on, norms, at, v, held, eps):
    """The step of one block of a group-l1 ball or an l2 ball: ``(fall, moved, hit)``."""
    groups, width, count = x.shape[0], x.shape[1], 0
    turns = not on and width > 1  # inside, directions are free
    for j in range(groups):
        if norms[j] > 0 or (turns and groups == 1):
            at[count] = j
            held[count] = norms[j]
            if turns:
                v[count] = pushed_norm(x[j], g[j], -sign * lr)
            elif width == 1:
                price = sign * float64(g[j, 0])
                v[count] = norms[j] - lr * (price if x[j, 0] > 0 else -price)
            else:
                v[count] = norms[j] - lr * sign * (inner(g[j], x[j]) / norms[j])
            count += 1
    if count == 0 or (on and count == 1):
        return 0.0, False, False
    # From here on ``held`` is what a group is scaled by to become a unit of its direction.
    lengths = v[:count].copy()
    onto, gone = shrink(v, held, count, r, on, eps)
    fall, length = 0.0, 0.0
    for q in range(count):
        j = at[q]
        unit = lengths[q] if turns else norms[j]
        a = v[q] / unit if unit > 0 else 0.0
        b = -sign * lr * a if turns else 0.0
        some = way(x[j], g[j], a, b)
        fall += sign * some[0]
        length += some[1]
        v[q], held[q] = a, b
    if not (0 < fall < np.inf):
        return fall, False, False
    part = part_of(lr, fall, length, phase)
    for q in range(count):
        a, b = v[q], held[q]
        if part < 1:
            a, b = 1 + part * (a - 1), part * b
        write_along(x[at[q]], g[at[q]], a, b)
    return fall, True, part >= 1 and (gone or (onto and not on))


# ---------------------------------------------------------------------- all blocks


@compiled()
def block(x, xb, gb, g, m, sign, weight, r, lr, family, phase, project, scratch, at, mask, infinite, eps):
    """The step of one block that is no row of a short list, ``(fall, moved, hit, outside)``."""
    v, held, norms = scratch[0], scratch[1], scratch[2]
    size = 0.0
    if family == BOX:
        size = float64(bits_of(top_magnitude(xb[0], mask)))
        norms[0] = 1.0
    else:
        for j in range(x.shape[0]):
            norms[j] = norm_of(x[j], xb[j], mask)
            size += norms[j]
    for j in range(x.shape[0]):
        if (norms[j] > 0 or x.shape[0] == 1) and not top_magnitude(gb[j], mask) < infinite:
            return np.nan, False, False, False
    if weight > 0:
        for j in range(x.shape[0]):
            if norms[j] > 0 or x.shape[0] == 1:
                average_into(m[j], g[j], weight, sign)
        g, sign = m, 1.0
    outside = r * (1 + ULPS * eps) < size < np.inf
    if outside and project:
        return 0.0, False, False, True
    if family == BOX:
        fall, moved, hit = box_row(x[0], g[0], sign, r, lr, phase, eps)
    else:
        on = size >= r * (1 - ULPS * eps)
        fall, moved, hit = group_block(x, g, sign, r, lr, phase, on, norms, at, v, held, eps)
        if weight > 0 and hit:
            for j in range(x.shape[0]):
                if norms[j] > 0 and top_magnitude(xb[j], mask) == 0 and x.shape[0] > 1:
                    m[j, :] = np.nan
    return fall, moved, hit, outside


@compiled()
def all_blocks(
    x,
    xb,
    g,
    gb,
    m,
    radii,
    rates,
    slopes,
    counts,
    listed,
    ends,
    values,
    prices,
    weight,
    sign,
    first,
    groups,
    family,
    phase,
    project,
    mask,
    infinite,
    eps,
):
    """The step on every block from ``first`` on, with marks and counts as ``all_rows`` makes them; ``rates`` are ``lr``.

    Gradients and momentum are looked at where the step looks at them: at what a block uses.
    """
    longest = -(-(max(x.shape[1], groups) + 1 + LANES) // LANES) * LANES  # whole vectors are written
    # Views of an address: passing on what is counted by reference costs as much as a short row.
    memory = np.empty(8 * longest + 8)
    free = (int64(memory.ctypes.data) + 63) // 64 * 64  # no vector lies in two cache lines
    scratch = carray(pointer(free), (3, longest), np.float64)
    short = carray(pointer(free + 24 * longest), (4, longest), x.dtype)
    at = carray(pointer(free + 56 * longest), (longest,), np.int32)
    place = carray(pointer(free + 60 * longest), (longest,), np.int32)
    start = int64(x.ctypes.data)
    for i in range(first, slopes.shape[0]):
        begin, end = i * groups, (i + 1) * groups
        r, turn = radii[i if radii.shape[0] > 1 else 0], sign
        slopes[i] = 0.0
        if r == np.inf:
            continue
        if family in (BALL, SIMPLEX):
            compact, whole = values.shape[0] > 0, False
            own = values[ends[i] : ends[i + 1]] if compact else values
            if compact:
                if i + 2 < ends.shape[0]:  # the next row is written to when this one is computed
                    for q in range(ends[i + 1], ends[i + 2]):
                        prefetch(start + ((i + 1) * x.shape[1] + int64(listed[q])) * x.itemsize)
                count = pick_values(own, listed[ends[i] : ends[i + 1]], at, place, short[0])
                known = prices[ends[i] : ends[i + 1]] if prices.shape[0] else prices
                finite = pick_prices(known, g[i], at, place, short[0], short[1], count)
            elif SQUEEZES and ends.shape[0] == 0:
                if weight > 0:
                    count = squeeze(x[i], g[i], m[i], short[0], short[1], short[2], at)
                else:
                    count = squeeze(x[i], g[i], None, short[0], short[1], None, at)
                finite = unfinished(short[1], padded(count)) == 0
            else:
                if ends.shape[0] == 0:  # a row that is mostly in use is its own list
                    count, finite = whole_row(x[i], g[i], short[0], short[1])
                    whole = 5 * count > x.shape[1]
                if not whole:
                    count = pick(x[i], listed[ends[i] : ends[i + 1]], at) if ends.shape[0] else find(x[i], at)
                    finite = gather(x[i], g[i], at, short[0], short[1], count)
            fall, moved, hit, outside = np.nan, False, False, False
            if finite:
                if weight > 0:
                    if whole:
                        average_whole(x[i], m[i], short[1], weight, sign)
                    else:
                        if not SQUEEZES or ends.shape[0]:
                            for q in range(count):
                                short[2, q] = m[i, at[q]]
                        average_short(short[1], short[2], count, weight, sign)
                    turn = 1.0
                fall, moved, hit, outside = sparse_row(
                    x[i], turn, r, rates[i], phase, family, project, at, short, scratch[0], count, whole, eps
                )
                if whole and (hit or fall == np.inf):
                    find(short[0][: x.shape[1]], at)
                if whole and fall == np.inf:  # a step so long that it has to be taken from a list
                    for q in range(count):
                        short[0, q], short[1, q] = short[0, at[q]], short[1, at[q]]
                    for q in range(count, padded(count)):
                        short[0, q], short[1, q] = 0, 0
                    fall, moved, hit, outside = sparse_row(
                        x[i], turn, r, rates[i], phase, family, project, at, short, scratch[0], count, False, eps
                    )
                if weight > 0 and not whole:
                    keep_average(x[i], m[i], at, short[1], count)
                elif weight > 0 and hit:
                    forget_listed(x[i], m[i], at, count)
                if compact and moved:
                    for q in range(count):
                        own[place[q]] = x[i, at[q]]
        else:
            fall, moved, hit, outside = block(
                x[begin:end], xb[begin:end], gb[begin:end], g[begin:end], m[begin:end], turn, weight, r, rates[i], family,
                phase, project, scratch, at, mask, infinite, eps,
            )  # fmt: skip
        if outside:
            counts[3] += 1
            if project:
                slopes[i] = -1.0
                continue
        if not math.isfinite(fall):
            counts[2] += 1
            continue
        slopes[i] = -1 - max(fall, 0.0) if outside else max(fall, 0.0)
        counts[0] += moved
        counts[1] += hit
    memory[0] = 0  # until here nobody may let go of it


@compiled(entry=True)
def projected_float32(
    table, layers, first, last, radii, many_radii, weight, most, sign, family, counts, phase, project
):
    """The step on blocks ``first`` to ``last`` of float32 memory; arguments are those of ``rows_float32``."""
    lines = carray(pointer(table), (layers, COLUMNS), int64)
    for i in range(layers):
        line = lines[i]
        begin, end = max(first - line[START], 0), min(last - line[START], line[ROWS])
        if line[X] == 0 or begin >= end:
            continue
        n = (end * line[GROUPS], line[WIDTH])
        all_blocks(
            carray(pointer(line[X]), n, float32), carray(pointer(line[X]), n, int32),
            carray(pointer(line[G]), n, float32), carray(pointer(line[G]), n, int32),
            carray(pointer(line[M]), n, float32),
            carray(pointer(radii), (end if many_radii else 1,), float64),
            carray(pointer(line[RATES]), (end,), float64), carray(pointer(line[SLOPES]), (end,), float64),
            carray(pointer(counts), (4,), int64),
            carray(pointer(line[AT]), (carray(pointer(line[ENDS]), (end + 1,), int64)[end] if line[ENDS] else 0,), int32),
            carray(pointer(line[ENDS]), (end + 1 if line[ENDS] else 0,), int64),
            carray(pointer(line[VALUES]), (carray(pointer(line[ENDS]), (end + 1,), int64)[end] if line[VALUES] else 0,), float32),
            carray(pointer(line[PRICES]), (carray(pointer(line[ENDS]), (end + 1,), int64)[end] if line[PRICES] else 0,), float32),
            weight, sign, begin, line[GROUPS], family, phase, project, int32(0x7FFFFFFF), int32(0x7F800000), 2.0**-23,
        )  # fmt: skip


@compiled(entry=True)
def projected_float64(
    table, layers, first, last, radii, many_radii, weight, most, sign, family, counts, phase, project
):
    """The step on blocks ``first`` to ``last`` of float64 memory; arguments are those of ``rows_float64``."""
    lines = carray(pointer(table), (layers, COLUMNS), int64)
    for i in range(layers):
        line = lines[i]
        begin, end = max(first - line[START], 0), min(last - line[START], line[ROWS])
        if line[X] == 0 or begin >= end:
            continue
        n = (end * line[GROUPS], line[WIDTH])
        all_blocks(
            carray(pointer(line[X]), n, float64), carray(pointer(line[X]), n, int64),
            carray(pointer(line[G]), n, float64), carray(pointer(line[G]), n, int64),
            carray(pointer(line[M]), n, float64),
            carray(pointer(radii), (end if many_radii else 1,), float64),
            carray(pointer(line[RATES]), (end,), float64), carray(pointer(line[SLOPES]), (end,), float64),
            carray(pointer(counts), (4,), int64),
            carray(pointer(line[AT]), (carray(pointer(line[ENDS]), (end + 1,), int64)[end] if line[ENDS] else 0,), int32),
            carray(pointer(line[ENDS]), (end + 1 if line[ENDS] else 0,), int64),
            carray(pointer(line[VALUES]), (carray(pointer(line[ENDS]), (end + 1,), int64)[end] if line[VALUES] else 0,), float64),
            carray(pointer(line[PRICES]), (carray(pointer(line[ENDS]), (end + 1,), int64)[end] if line[PRICES] else 0,), float64),
            weight, sign, begin, line[GROUPS], family, phase, project, int64(0x7FFFFFFFFFFFFFFF), int64(0x7FF0000000000000),
            2.0**-52,
        )  # fmt: skip
