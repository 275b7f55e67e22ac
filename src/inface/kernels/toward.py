"""First halves on rows of l1 balls and simplices whose few entries are listed, compiled by Numba.

The mathematics is that of ``one_hot_row`` in :mod:`inface.kernels.rows`. The gradient is read once, for its vertex; of the weights only
what the list has is touched, and the vertex that comes.
"""

# Types are Numba's; its loops are what they are.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, C901

from __future__ import annotations

import math

import numpy as np
from numba import carray, float32, float64, int32, int64

# Numba's cache of this file does not see changes in that one: touch this file after them.
from .loops import (
    AT,
    COLUMNS,
    ENDS,
    NEW,
    PIECE,
    RATES,
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
    compiled,
    find_signed,
    first_magnitude,
    pointer,
    top_magnitude,
)  # fmt: skip

__all__ = ["merged_float32", "merged_float64", "toward_float32", "toward_float64"]


@compiled(inline="always")
def largest(gb, mask):
    """The largest magnitude of a row, as bits, and its first place."""
    best, start = gb.dtype.type(0), 0
    for piece in range(0, gb.shape[0], PIECE):
        top = top_magnitude(gb[piece : min(piece + PIECE, gb.shape[0])], mask)
        if top > best:
            best, start = top, piece
    return best, start + first_magnitude(gb[start : min(start + PIECE, gb.shape[0])], best, mask)


@compiled()
def sums(g, values, at):
    """``<g, x>``, ``|x|_1`` and the least entry."""
    inner, size, low = 0.0, 0.0, 0.0
    for q in range(at.shape[0]):
        own = float64(values[q])
        inner += float64(g[at[q]]) * own
        size += abs(own)
        low = min(low, own)
    return inner, size, low


@compiled()
def rescale(x, values, at, factor):
    for q in range(at.shape[0]):
        values[q] *= factor
        x[at[q]] = values[q]


@compiled()
def row(x, values, at, g, j, inner, size, r, rate, most, sign, family, eps):
    """The step of one row: ``(slope, step, hit)``."""
    on = family == SIMPLEX or size >= r * (1 - ULPS * eps)
    u = 1.0 if family == SIMPLEX or not sign * g[j] > 0 else -1.0
    own, price = float64(x[j]), sign * float64(g[j])
    norm, along = abs(own), own * u
    slope = sign * inner - r * u * price
    keeps = on and along >= norm * (1 - 4 * eps)
    wanted = min(slope * rate, most) if 0 < slope < np.inf else 0.0
    hit = wanted >= 1 and wanted > 0
    t = 1.0 if hit else wanted
    if not t > 0:
        return slope, t, hit
    scale, new = 1 - t, (1 - t) * own + t * r * u
    total = scale * (size - norm) + abs(new)
    repair = r / total if total > 0 and not hit and keeps else 1.0
    factor = x.dtype.type(scale * repair)
    if factor != 1:
        rescale(x, values, at, factor)
    x[j] = x.dtype.type(new * repair)
    for q in range(at.shape[0]):
        if at[q] == j:
            values[q] = x[j]
    return slope, t, hit


@compiled()
def all_rows(
    x, g, gb, m, mb, radii, rates, slopes, counts, listed, ends, values, new, weight, most, sign, first, family, project,
    mask, low, infinite, eps,
):  # fmt: skip
    """The step on every row from ``first`` on, with marks and counts as in ``rows``; ``new`` are the vertices that were stepped to."""
    whole = gb.dtype.type
    for i in range(first, x.shape[0]):
        h, hb, turn = g[i], gb[i], sign
        r, rate = radii[i if radii.shape[0] > 1 else 0], rates[i]
        slopes[i], new[i] = 0.0, -1
        if r == np.inf:
            continue
        if weight > 0:
            if top_magnitude(hb, mask) >= infinite:
                counts[2] += 1
                continue
            average_into(m[i], h, weight, sign)
            h, hb, turn = m[i], mb[i], 1.0
        top, j = largest(hb, mask)
        if top >= infinite:
            counts[2] += 1
            continue
        at, own = listed[ends[i] : ends[i + 1]], values[ends[i] : ends[i + 1]]
        inner, size, least = sums(h, own, at)
        outside = math.isfinite(size) and size > r * (1 + ULPS * eps)
        if family == SIMPLEX:
            outside = math.isfinite(size) and (abs(size - r) > r * ULPS * eps or least < 0)
            j = find_signed(hb, whole((low if turn < 0 else whole(0)) ^ low), low)
        if outside:
            counts[3] += 1
            if project:
                slopes[i] = -1.0
                continue
        slope, step, hit = row(x[i], own, at, h, j, inner, size, r, rate, most, turn, family, eps)
        if not math.isfinite(slope):
            counts[2] += 1
            continue
        slopes[i] = -1 - max(slope, 0.0) if outside else max(slope, 0.0)
        counts[0] += step > 0
        counts[1] += hit
        if step > 0:
            new[i] = j


@compiled(entry=True)
def toward_float32(table, layers, first, last, radii, many_radii, weight, most, sign, family, counts, _, project):
    """The step on rows ``first`` to ``last`` of float32 memory; arguments are those of ``rows_float32``."""
    lines = carray(pointer(table), (layers, COLUMNS), int64)
    for i in range(layers):
        line = lines[i]
        begin, end = max(first - line[START], 0), min(last - line[START], line[ROWS])
        if line[X] == 0 or begin >= end:
            continue
        n, ends = (end, line[WIDTH]), carray(pointer(line[ENDS]), (end + 1,), int64)
        all_rows(
            carray(pointer(line[X]), n, float32),
            carray(pointer(line[G]), n, float32), carray(pointer(line[G]), n, int32),
            carray(pointer(line[M]), n, float32), carray(pointer(line[M]), n, int32),
            carray(pointer(radii), (end if many_radii else 1,), float64),
            carray(pointer(line[RATES]), (end,), float64),
            carray(pointer(line[SLOPES]), (end,), float64), carray(pointer(counts), (4,), int64),
            carray(pointer(line[AT]), (ends[end],), int32), ends, carray(pointer(line[VALUES]), (ends[end],), float32),
            carray(pointer(line[NEW]), (end,), int32), weight, most, sign, begin, family, project,
            int32(0x7FFFFFFF), int32(-0x80000000), int32(0x7F800000), 2.0**-23,
        )  # fmt: skip


@compiled(entry=True)
def toward_float64(table, layers, first, last, radii, many_radii, weight, most, sign, family, counts, _, project):
    """The step on rows ``first`` to ``last`` of float64 memory; arguments are those of ``rows_float64``."""
    lines = carray(pointer(table), (layers, COLUMNS), int64)
    for i in range(layers):
        line = lines[i]
        begin, end = max(first - line[START], 0), min(last - line[START], line[ROWS])
        if line[X] == 0 or begin >= end:
            continue
        n, ends = (end, line[WIDTH]), carray(pointer(line[ENDS]), (end + 1,), int64)
        all_rows(
            carray(pointer(line[X]), n, float64),
            carray(pointer(line[G]), n, float64), carray(pointer(line[G]), n, int64),
            carray(pointer(line[M]), n, float64), carray(pointer(line[M]), n, int64),
            carray(pointer(radii), (end if many_radii else 1,), float64),
            carray(pointer(line[RATES]), (end,), float64),
            carray(pointer(line[SLOPES]), (end,), float64), carray(pointer(counts), (4,), int64),
            carray(pointer(line[AT]), (ends[end],), int32), ends, carray(pointer(line[VALUES]), (ends[end],), float64),
            carray(pointer(line[NEW]), (end,), int32), weight, most, sign, begin, family, project,
            int64(0x7FFFFFFFFFFFFFFF), int64(-0x8000000000000000), int64(0x7FF0000000000000), 2.0**-52,
        )  # fmt: skip


@compiled()
def merge(x, listed, ends, values, new, at_new, ends_new, values_new):
    """The list without its zeros and with what is new, in order; how long it is."""
    count = 0
    ends_new[0] = 0
    for i in range(x.shape[0]):
        j = new[i]
        for q in range(ends[i], ends[i + 1]):
            if 0 <= j <= listed[q]:
                if j < listed[q] and x[i, j] != 0:
                    at_new[count], values_new[count] = j, x[i, j]
                    count += 1
                j = -1
            at_new[count], values_new[count] = listed[q], values[q]
            count += values[q] != 0
        if j >= 0 and x[i, j] != 0:
            at_new[count], values_new[count] = j, x[i, j]
            count += 1
        ends_new[i + 1] = count
    return count


@compiled(entry=True)
def merged_float32(x, rows, width, listed, ends, values, new, at_new, ends_new, values_new):
    last = carray(pointer(ends), (rows + 1,), int64)
    n = last[rows]
    return merge(
        carray(pointer(x), (rows, width), float32), carray(pointer(listed), (n,), int32), last,
        carray(pointer(values), (n,), float32), carray(pointer(new), (rows,), int32),
        carray(pointer(at_new), (n + rows + 1,), int32), carray(pointer(ends_new), (rows + 1,), int64),
        carray(pointer(values_new), (n + rows + 1,), float32),
    )  # fmt: skip


@compiled(entry=True)
def merged_float64(x, rows, width, listed, ends, values, new, at_new, ends_new, values_new):
    last = carray(pointer(ends), (rows + 1,), int64)
    n = last[rows]
    return merge(
        carray(pointer(x), (rows, width), float64), carray(pointer(listed), (n,), int32), last,
        carray(pointer(values), (n,), float64), carray(pointer(new), (rows,), int32),
        carray(pointer(at_new), (n + rows + 1,), int32), carray(pointer(ends_new), (rows + 1,), int64),
        carray(pointer(values_new), (n + rows + 1,), float64),
    )  # fmt: skip
