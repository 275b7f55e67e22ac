"""What the kernels share: how they are compiled, the table of layers, and loops over one piece and over one row.

The loops are written for LLVM's vectoriser: over 1-D slices that start at 0, with arg max taken on the *bit patterns* of
floats, which order like the floats do, vectorise without fast-math, and put NaN on top, where it is seen. Nothing here is
compiled before it is called, and compiled code is cached on disk.
"""

# Types are Numba's; its loops are what they are.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202, ARG001

from __future__ import annotations

import math
from typing import Any

from numba import float64, njit, types
from numba.extending import intrinsic

__all__ = ["BALL", "BOX", "FAMILIES", "GROUPED", "PHASES", "SIMPLEX", "compiled"]

# Families of sets, and phases: toward the best vertex of the set, or in the face to the best, from the worst, or both.
BALL, SIMPLEX, BOX, GROUPED = 0, 1, 2, 3
TOWARD, WITHIN, AWAY, PAIRWISE = 0, 1, 2, 3
PROJECTED, TAXICAB = 4, 5  # to the projection of a gradient step; the same where distances are measured in l1

# What the library calls them; sets of groups, and projected steps, have kernels of their own.
FAMILIES = {"ball": BALL, "simplex": SIMPLEX, "box": BOX, "groups": GROUPED}
PHASES = {None: TOWARD, "frank-wolfe": WITHIN, "away": AWAY, "pairwise": PAIRWISE, "projected": PROJECTED}

# The entries step on all layers of a table: one line for each, of the columns below. Rows are numbered through all layers;
# a layer whose ``X`` is 0 is left out. ``AT`` and ``ENDS``, where they are not 0, list what its rows use; ``VALUES`` and
# ``PRICES`` are the weights and their gradients in these places, and ``NEW`` is where a first half writes down which place is new.
X, G, M, ROWS, WIDTH, START, RATES, SLOPES, GROUPS, AT, ENDS = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
VALUES, PRICES, NEW, COLUMNS = 11, 12, 13, 14

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
    """``m <- (1 - weight) m + weight g``, from ``m = g`` in entries that have no average yet."""
    s, w, rest = m.dtype.type(sign), m.dtype.type(weight), m.dtype.type(1 - weight)
    if weight < 0.5:
        for k in range(m.shape[0]):
            new = s * g[k]
            m[k] = m[k] + w * (new - m[k]) if m[k] == m[k] else new
    else:
        for k in range(m.shape[0]):
            new = s * g[k]
            m[k] = new - rest * (new - m[k]) if m[k] == m[k] else new


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
