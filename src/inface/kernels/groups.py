"""The step on blocks of groups of contiguous memory, compiled by Numba: group-l1 balls and l2 balls.

The mathematics is that of :mod:`inface.sets.group_sum`, letter by letter; the loops follow :mod:`inface.kernels.loops`.
A block is ``groups`` rows of ``width`` numbers, and a step reads it twice: once to reduce it to the norms of its groups,
once to scale it.
"""

from __future__ import annotations

import math

import numpy as np
from numba import carray, float32, float64, int32, int64

# Numba's cache of this file does not see changes in that one, such as another table: touch this file after them.
from .loops import (
    AWAY,
    COLUMNS,
    GROUPS,
    RATES,
    REASSOCIATE,
    ROWS,
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
    pointer,
    scale_by,
    top_magnitude,
)  # fmt: skip

__all__ = ["groups_float32", "groups_float64"]

# Gradients are measured in units of their largest entry, or of this where that has no inverse.
TINY = 1e-290

# A sum of squares below this has lost digits, or all of them, and is added up again in units of the largest entry.
LEAST = 1e-200


@compiled(fastmath=REASSOCIATE)
def products(g, x, inverse):
    """``<h, x>``, ``<h, h>`` and ``<x, x>`` in float64, with ``h = inverse g``: no square may vanish or overflow."""
    hx, hh, xx = 0.0, 0.0, 0.0
    for k in range(x.shape[0]):
        a, b = float64(g[k]) * inverse, float64(x[k])
        hx += a * b
        hh += a * a
        xx += b * b
    return hx, hh, xx


@compiled()
def scaled_norm(x, bits, mask):
    """``|x|`` where its square vanishes."""
    top = float64(bits_of(top_magnitude(bits, mask)))
    if top == 0:
        return 0.0
    total = 0.0
    for k in range(x.shape[0]):
        total += (float64(x[k]) / top) ** 2
    return top * math.sqrt(total)


@compiled(fastmath=REASSOCIATE)
def pushed_norm(x, g, a, b):
    """``|a x + b g|``."""
    total = 0.0
    for k in range(x.shape[0]):
        end = a * float64(x[k]) + b * float64(g[k])
        total += end * end
    return math.sqrt(total)


@compiled()
def push_along(x, g, a, b):
    """``a x + b g`` in place."""
    for k in range(x.shape[0]):
        x[k] = x.dtype.type(a * float64(x[k]) + b * float64(g[k]))


@compiled()
def block_step(x, g, sign, r, rate, most, phase, inner, prices, pushes, norms, eps):
    """The step of one block: ``(slope, step, hit)``."""
    groups = x.shape[0]
    size = 0.0
    for j in range(groups):
        size += norms[j]
    on = size >= r * (1 - ULPS * eps)

    # The vertex that a move gains (j) and the one that it loses (w), with the price of a unit of each.
    j, w = 0, 0
    if phase == TOWARD or not on:
        for i in range(groups):
            if pushes[i] > pushes[j]:
                j = i
        w = j
        gain, lose = -pushes[j], pushes[j]
    else:
        best, worst = np.inf, -np.inf
        for i in range(groups):
            if norms[i] > 0:
                price = prices[i] / norms[i]
                if price < best:
                    best, j = price, i
                if price > worst:
                    worst, w = price, i
        gain, lose = best, worst
    at = w if phase == AWAY else j
    rest = 0.0
    for i in range(groups):
        rest += norms[i] if i != at and (phase <= AWAY or i != w) else 0.0
    norm = norms[at]
    # Inside, how far the group leans towards the vertex: <x_j, u> with u = -g_j / |g_j|. No gradient, no slope, no step.
    lean = -prices[j] / pushes[j] if pushes[j] > 0 else 0.0
    limit = 1.0
    if phase <= WITHIN:
        slope = inner - r * gain
        if phase == WITHIN and on and rest == 0:
            slope = 0.0
    elif phase == AWAY:
        slope = 0.0 if on and rest == 0 else r * lose - inner
        if on:
            limit = norm / rest if rest > 0 else norm
        else:
            bend = (norm - lean) * (norm + lean) + (r + lean - rest) * (r + lean + rest)
            limit = (r - rest - norm) * (r - rest + norm) / (bend if bend > 0 else 1.0)
    else:
        slope = 0.0 if on and j == w else r * (lose - gain)
        if on:
            limit = norms[w] / r
        else:
            room = lean * lean + (r - rest - norm) * (r - rest + norm)
            limit = (math.sqrt(max(room, 0.0)) - lean) / (2 * r)

    wanted = min(slope * rate, most) if 0 < slope < np.inf else 0.0
    hit = wanted >= limit and wanted > 0
    t = limit if hit else wanted
    if not t > 0:
        return slope, t, hit

    # How the groups that are rewritten end: ``own`` times what they hold, plus ``push`` against the gradient.
    scale, own, push, lost = 1.0, 1.0, 0.0, 1.0
    if phase <= WITHIN:
        scale = 1 - t
        own, push = 1 - t, t * r
        if phase == WITHIN and on:
            own, push = ((1 - t) * norm + t * r) / norm, 0.0
    elif phase == AWAY:
        scale = 1 + t
        own, push = 1 + t, t * r
        if on:
            own, push = (0.0 if hit else max(norm - t * rest, 0.0) / norm), 0.0
    elif on:
        own, push = (norm + t * r) / norm, 0.0
        lost = 0.0 if hit else max(1 - t * r / norms[w], 0.0)
    else:
        own, push = 1.0, 2 * t * r
    # The norm of what is about to be written, |own x_j + push u| with u = -g_j / |g_j|.
    along = -sign * push / pushes[at] if push != 0 else 0.0
    new = own * norm if push == 0 else pushed_norm(x[at], g[at], own, along)
    total = scale * rest + new + (lost * norms[w] if phase > AWAY and on else 0.0)
    keeps = on
    if phase == TOWARD:
        keeps = on and lean >= norm * (1 - 4 * eps)
    repair = 1.0
    if total > 0 and not (hit and phase <= WITHIN) and (keeps or (hit and not on)):
        repair = r / total

    factor = x.dtype.type(scale * repair)
    for i in range(groups):
        if i == at:
            if push == 0:
                scale_by(x[i], x.dtype.type(own * repair))
            else:
                push_along(x[i], g[i], own * repair, along * repair)
        elif i == w and phase > AWAY and on:
            scale_by(x[i], x.dtype.type(lost * repair))
        elif factor != 1:
            scale_by(x[i], factor)
    return slope, t, hit


@compiled()
def all_blocks(
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
    groups,
    phase,
    project,
    mask,
    infinite,
    eps,
):
    """The step on every block from ``first`` on; see ``all_rows``."""
    scratch = np.empty((3, groups))
    for i in range(first, slopes.shape[0]):
        rows = slice(i * groups, (i + 1) * groups)
        y, yb, h, hb = x[rows], xb[rows], g[rows], gb[rows]
        r, rate = radii[i if radii.shape[0] > 1 else 0], rates[i]
        slopes[i] = 0.0
        if r == np.inf:
            continue
        finite = True
        for j in range(groups):
            finite = finite and top_magnitude(hb[j], mask) < infinite
        if not finite:
            counts[2] += 1
            continue
        turn = sign
        if weight > 0:
            for j in range(groups):
                average_into(m[i * groups + j], h[j], weight, sign)
            h, hb, turn = m[rows], mb[rows], 1.0
        inner, total = 0.0, 0.0
        for j in range(groups):
            size = max(float64(bits_of(top_magnitude(hb[j], mask))), TINY)
            hx, hh, xx = products(h[j], y[j], 1 / size)
            norm = math.sqrt(xx) if xx > LEAST else scaled_norm(y[j], yb[j], mask)
            scratch[0, j], scratch[1, j], scratch[2, j] = turn * size * hx, size * math.sqrt(hh), norm
            inner += turn * size * hx
            total += scratch[2, j]
        outside = r * (1 + ULPS * eps) < total < np.inf
        if outside:
            counts[3] += 1
            if project:
                slopes[i] = -1.0
                continue
        slope, step, hit = block_step(y, h, turn, r, rate, most, phase, inner, scratch[0], scratch[1], scratch[2], eps)
        if not math.isfinite(slope):
            counts[2] += 1
            continue
        slopes[i] = -1 - max(slope, 0.0) if outside else max(slope, 0.0)
        counts[0] += step > 0
        counts[1] += hit


@compiled(entry=True)
def groups_float32(table, layers, first, last, radii, many_radii, weight, most, sign, family, counts, phase, project):
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
            carray(pointer(line[M]), n, float32), carray(pointer(line[M]), n, int32),
            carray(pointer(radii), (end if many_radii else 1,), float64),
            carray(pointer(line[RATES]), (end,), float64), carray(pointer(line[SLOPES]), (end,), float64),
            carray(pointer(counts), (4,), int64),
            weight, most, sign, begin, line[GROUPS], phase, project, int32(0x7FFFFFFF), int32(0x7F800000), 2.0**-23,
        )  # fmt: skip


@compiled(entry=True)
def groups_float64(table, layers, first, last, radii, many_radii, weight, most, sign, family, counts, phase, project):
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
            carray(pointer(line[M]), n, float64), carray(pointer(line[M]), n, int64),
            carray(pointer(radii), (end if many_radii else 1,), float64),
            carray(pointer(line[RATES]), (end,), float64), carray(pointer(line[SLOPES]), (end,), float64),
            carray(pointer(counts), (4,), int64),
            weight, most, sign, begin, line[GROUPS], phase, project, int64(0x7FFFFFFFFFFFFFFF), int64(0x7FF0000000000000), 2.0**-52,
        )  # fmt: skip
