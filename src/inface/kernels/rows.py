"""The step on rows of contiguous memory, compiled by Numba: one pass over a row to reduce, one to apply.

A row stays in cache between the passes, so the memory traffic is that of ``x.add_(g)``. The loops are written for LLVM's
vectoriser: over 1-D slices that start at 0, with arg max taken on the *bit patterns* of floats, which order like the
floats do, vectorise without fast-math, and put NaN on top, where it is seen.

The mathematics is that of :mod:`inface.sets.group_sum` and :mod:`inface.sets.linf_ball`, letter by letter. Nothing here
is compiled before it is called, and compiled code is cached on disk.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import carray, float32, float64, int32, int64, njit, types
from numba.extending import intrinsic

__all__ = ["BALL", "BOX", "FAMILIES", "PHASES", "SIMPLEX", "rows_float32", "rows_float64"]

# Families of sets, and phases: toward the best vertex of the set, or in the face to the best, from the worst, or both.
BALL, SIMPLEX, BOX = 0, 1, 2
TOWARD, WITHIN, AWAY, PAIRWISE = 0, 1, 2, 3

# What the library calls them; sets of groups have a kernel of their own.
FAMILIES = {"ball": BALL, "simplex": SIMPLEX, "box": BOX, "groups": BALL}
PHASES = {None: TOWARD, "frank-wolfe": WITHIN, "away": AWAY, "pairwise": PAIRWISE}

PIECE = 256
ULPS = 8
REASSOCIATE = {"reassoc", "contract", "nsz"}


def compiled(*, entry: bool = False, **options: Any) -> Any:
    """``njit`` that releases the GIL; an entry is cached on disk with all it calls, where there is a place for a cache.

    What happens once in a row is inlined: an array is seven arguments of a call, and short rows paid more for calls than
    for numbers. Functions with ``fastmath`` are not, because they would lose it.
    """

    def compile_(function: Any) -> Any:
        try:
            return njit(nogil=True, cache=entry, error_model="numpy", **options)(function)
        except RuntimeError:
            return njit(nogil=True, error_model="numpy", **options)(function)

    return compile_


@intrinsic
def pointer(typing_context: Any, address: Any) -> Any:
    """An address as a pointer: passing numbers costs a fraction of what passing arrays costs."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.voidptr(types.int64), codegen


@intrinsic
def bits_of(typing_context: Any, value: Any) -> Any:
    """The bits of a float as an integer of its size, and the other way round."""
    other = {
        types.float32: types.int32,
        types.float64: types.int64,
        types.int32: types.float32,
        types.int64: types.float64,
    }

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(signature.return_type))

    return other[value](value), codegen


# ---------------------------------------------------------------------- loops over one piece
#
# A negative float is its sign bit and a magnitude; as an integer that orders like it, it is minus that magnitude, which
# makes one zero of both. Numba widens small integers; casting every result back (``whole``) keeps the vectors full. Sums
# run in the dtype of the row over a piece of at most 256, spread over the lanes of a vector, and in float64 from piece to
# piece.


@compiled()
def top_magnitude(bits, mask):
    """The bit pattern of the largest magnitude."""
    whole = bits.dtype.type
    top = whole(0)
    for k in range(bits.shape[0]):
        top = max(top, whole(bits[k] & mask))
    return top


@compiled()
def first_magnitude(bits, top, mask):
    """The first place of that magnitude in a piece that has it."""
    whole = bits.dtype.type
    first = whole(PIECE)
    for k in range(bits.shape[0]):
        first = min(first, whole(k) if whole(bits[k] & mask) == top else whole(PIECE))
    return first


@compiled()
def top_signed(gb, flip, low):
    """The largest number, as an integer that orders like it; ``flip`` changes its sign."""
    whole = gb.dtype.type
    top = low
    for k in range(gb.shape[0]):
        bits = whole(gb[k] ^ flip)
        key = whole(low - bits) if bits < whole(0) else bits
        top = max(top, key)
    return top


@compiled()
def first_signed(gb, top, flip, low):
    """The first place of that number in a piece that has it."""
    whole = gb.dtype.type
    first = whole(PIECE)
    for k in range(gb.shape[0]):
        bits = whole(gb[k] ^ flip)
        key = whole(low - bits) if bits < whole(0) else bits
        first = min(first, whole(k) if key == top else whole(PIECE))
    return first


@compiled()
def top_key(xb, gb, flip, mask, low):
    """The largest ``sign(x) g`` over the support, as an integer that orders like it; ``flip`` changes its sign."""
    whole = xb.dtype.type
    top = low
    for k in range(xb.shape[0]):
        bits = whole(whole(gb[k] ^ whole(xb[k] & low)) ^ flip)
        key = whole(low - bits) if bits < whole(0) else bits
        key = low if whole(xb[k] & mask) == whole(0) else key
        top = max(top, key)
    return top


@compiled()
def first_key(xb, gb, top, flip, mask, low):
    """The first place of that key in a piece that has it."""
    whole = xb.dtype.type
    first = whole(PIECE)
    for k in range(xb.shape[0]):
        bits = whole(whole(gb[k] ^ whole(xb[k] & low)) ^ flip)
        key = whole(low - bits) if bits < whole(0) else bits
        key = low if whole(xb[k] & mask) == whole(0) else key
        first = min(first, whole(k) if key == top else whole(PIECE))
    return first


@compiled(fastmath=REASSOCIATE)
def dot_and_size(g, x):
    """``<g, x>`` and ``|x|_1``."""
    inner, size = x.dtype.type(0), x.dtype.type(0)
    for k in range(x.shape[0]):
        inner += g[k] * x[k]
        size += abs(x[k])
    return inner, size


@compiled(fastmath=REASSOCIATE)
def size_of(x):
    """``|x|_1``."""
    size = x.dtype.type(0)
    for k in range(x.shape[0]):
        size += abs(x[k])
    return size


# ---------------------------------------------------------------------- loops over a row


@compiled()
def scale_by(x, a):
    for k in range(x.shape[0]):
        x[k] *= a


@compiled()
def average_into(m, g, weight, sign):
    """``m <- (1 - weight) m + weight g``, from ``m = g`` where there is no average yet."""
    s, w, rest = m.dtype.type(sign), m.dtype.type(weight), m.dtype.type(1 - weight)
    if math.isnan(m[0]):
        for k in range(m.shape[0]):
            m[k] = s * g[k]
    elif weight < 0.5:
        for k in range(m.shape[0]):
            m[k] += w * (s * g[k] - m[k])
    else:
        for k in range(m.shape[0]):
            new = s * g[k]
            m[k] = new - rest * (new - m[k])


@compiled(inline="always")
def reduce_row(x, g, gb, mask):
    """The largest magnitude of ``g`` with its first place, ``<g, x>`` and ``|x|_1``."""
    best, start, inner, size = gb.dtype.type(0), 0, 0.0, 0.0
    for piece in range(0, x.shape[0], PIECE):
        end = min(piece + PIECE, x.shape[0])
        top = top_magnitude(gb[piece:end], mask)
        if top > best:
            best, start = top, piece
        part = dot_and_size(g[piece:end], x[piece:end])
        inner += float64(part[0])
        size += float64(part[1])
    start += first_magnitude(gb[start : min(start + PIECE, x.shape[0])], best, mask)
    return best, start, inner, size


@compiled(inline="always")
def find_key(xb, gb, flip, mask, low):
    """The first place of the largest ``sign(x) g`` over the support."""
    best, start = low, 0
    for piece in range(0, xb.shape[0], PIECE):
        end = min(piece + PIECE, xb.shape[0])
        top = top_key(xb[piece:end], gb[piece:end], flip, mask, low)
        if top > best:
            best, start = top, piece
    end = min(start + PIECE, xb.shape[0])
    return start + first_key(xb[start:end], gb[start:end], best, flip, mask, low)


@compiled()
def find_signed(gb, flip, low):
    """The first place of the largest number."""
    best, start = low, 0
    for piece in range(0, gb.shape[0], PIECE):
        top = top_signed(gb[piece : min(piece + PIECE, gb.shape[0])], flip, low)
        if top > best:
            best, start = top, piece
    return start + first_signed(gb[start : min(start + PIECE, gb.shape[0])], best, flip, low)


@compiled(inline="always")
def sum_row(x, g, sizes):
    """``<g, x>``, which is not finite if ``g`` is not, and ``|x|_1``, whose parts are kept piece by piece."""
    inner, size = 0.0, 0.0
    for piece in range(0, x.shape[0], PIECE):
        end = min(piece + PIECE, x.shape[0])
        part = dot_and_size(g[piece:end], x[piece:end])
        inner += float64(part[0])
        sizes[piece // PIECE] = float64(part[1])
        size += sizes[piece // PIECE]
    return inner, size


@compiled(inline="always")
def others(x, j, w, sizes):
    """The sum of all magnitudes but two, added up directly: a difference would cancel."""
    own, held = x[j], x[w]
    x[j] = x[w] = 0
    total = 0.0
    for i in range(sizes.shape[0]):
        touched = i == j // PIECE or i == w // PIECE
        total += float64(size_of(x[i * PIECE : min((i + 1) * PIECE, x.shape[0])])) if touched else sizes[i]
    x[j], x[w] = own, held
    return total


# ---------------------------------------------------------------------- rows of l1 balls and simplices


@compiled(inline="always")
def one_hot_row(x, xb, g, gb, r, rate, sign, family, phase, j, inner, size, sizes, mask, low, eps):
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

    wanted = slope * rate if 0 < slope < np.inf else 0.0
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
def box_row(x, g, radius, rate, sign, phase, mask, eps):
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
    wanted = slope * rate if 0 < slope < np.inf else 0.0
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


@compiled(inline="always")
def any_negative(xb, low):
    """Whether an entry is below 0, by its bits; a negative zero is not."""
    whole = xb.dtype.type
    least = whole(0)
    for k in range(xb.shape[0]):
        least = min(least, whole(0) if xb[k] == low else xb[k])
    return least < whole(0)


@compiled(inline="always")
def lies_outside(xb, size, r, family, low, eps):
    """Whether a row of this norm is not in its set, by more than rounding makes; what is not finite is nowhere."""
    if not math.isfinite(size):
        return False
    if family == SIMPLEX:
        return abs(size - r) > r * ULPS * eps or any_negative(xb, low)
    return size > r * (1 + ULPS * eps)


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
            slope, step, hit = box_row(x[i], h, r, rate, turn, phase, mask, eps)
        else:
            slope, step, hit = one_hot_row(
                x[i], xb[i], h, hb, r, rate, turn, family, phase, j, turn * inner, size, sizes, mask, low, eps
            )
        if not math.isfinite(slope):
            counts[2] += 1
            continue
        slopes[i] = -1 - max(slope, 0.0) if outside else max(slope, 0.0)
        counts[0] += step > 0
        counts[1] += hit


# The entries step on all layers of a table: one line for each, of the columns below. Rows are numbered through all layers;
# a layer whose ``X`` is 0 is left out.
X, G, M, ROWS, WIDTH, START, RATES, SLOPES, GROUPS, COLUMNS = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9


@compiled(entry=True)
def rows_float32(table, layers, first, last, radii, many_radii, weight, sign, family, counts, phase, project):
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
            weight, sign, begin, family, phase, project,
            int32(0x7FFFFFFF), int32(-0x80000000), int32(0x7F800000), 2.0**-23,
        )  # fmt: skip


@compiled(entry=True)
def rows_float64(table, layers, first, last, radii, many_radii, weight, sign, family, counts, phase, project):
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
            weight, sign, begin, family, phase, project,
            int64(0x7FFFFFFFFFFFFFFF), int64(-0x8000000000000000), int64(0x7FF0000000000000), 2.0**-52,
        )  # fmt: skip
