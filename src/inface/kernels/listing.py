"""Compiled loops for lists of what rows use: finding them, and norms over them."""

# Types are Numba's; its loops are what they are.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202

from __future__ import annotations

from numba import carray, float32, float64, int32, int64

from .loops import PIECE, REASSOCIATE, compiled, pointer
from .short import find

__all__ = [
    "agree_float32", "agree_float64", "listed_float32", "listed_float64", "same_float32", "same_float64", "squares_float32", "squares_float64", "used_float32",
    "used_float64", "values_float32", "values_float64",
]  # fmt: skip


@compiled()
def listed(x, at, ends, room):
    """Write down where the rows of ``x`` are not zero; how many places that is, or -1 if there is no room for them."""
    count = 0
    for i in range(x.shape[0]):
        count += find(x[i], at[count:])
        if count > room:
            return -1
        ends[i + 1] = count
    return count


@compiled(fastmath=REASSOCIATE)
def squares_of_piece(x, g):
    """``|x|^2``, and ``|g|^2`` where ``x`` is not zero."""
    size, slope = x.dtype.type(0), x.dtype.type(0)
    for k in range(x.shape[0]):
        size += x[k] * x[k]
        slope += g[k] * g[k] if x[k] != 0 else x.dtype.type(0)
    return size, slope


@compiled(fastmath=REASSOCIATE)
def squares_of_list(x, g, at):
    """The same of the places of a list."""
    size, slope = 0.0, 0.0
    for q in range(at.shape[0]):
        own, price = float64(x[at[q]]), float64(g[at[q]])
        size += own * own
        slope += price * price if own != 0 else 0.0
    return size, slope


@compiled()
def squares(x, g, at, ends, out):
    for i in range(x.shape[0]):
        if ends.shape[0]:
            some = squares_of_list(x[i], g[i], at[ends[i] : ends[i + 1]])
            out[0] += some[0]
            out[1] += some[1]
            continue
        for piece in range(0, x.shape[1], PIECE):
            end = min(piece + PIECE, x.shape[1])
            part = squares_of_piece(x[i, piece:end], g[i, piece:end])
            out[0] += float64(part[0])
            out[1] += float64(part[1])


@compiled()
def gather_values(x, at, ends, out):
    for i in range(x.shape[0]):
        for q in range(ends[i], ends[i + 1]):
            out[q] = x[i, at[q]]


@compiled()
def same_rows(x, at, ends, values, looks):
    """Whether rows have the numbers of a list and no others; so many rows, evenly spread."""
    rows = x.shape[0]
    for k in range(min(looks, rows)):
        i = k * rows // min(looks, rows)
        used = 0
        for j in range(x.shape[1]):
            used += x[i, j] != 0
        for q in range(ends[i], ends[i + 1]):
            if x[i, at[q]] != values[q]:
                return False
            used -= values[q] != 0
        if used != 0:
            return False
    return True


@compiled()
def used_in(x, looks):
    """How much of some rows, evenly spread, is not zero."""
    used = 0
    for k in range(looks):
        i = k * x.shape[0] // looks
        for j in range(x.shape[1]):
            used += x[i, j] != 0
    return used


@compiled()
def agree(x, at, ends, values, looks):
    """Whether rows have the numbers of a list in its places: of each of so many parts the first row that is not all zeros."""
    rows = x.shape[0]
    parts = min(looks, rows)
    for k in range(parts):
        seen = False
        for i in range(k * rows // parts, (k + 1) * rows // parts):
            for q in range(ends[i], ends[i + 1]):
                if x[i, at[q]] != values[q]:
                    return False
                seen = seen or values[q] != 0
            if seen:
                break
    return True


@compiled(entry=True)
def agree_float32(x, rows, width, at, ends, values, looks):
    last = carray(pointer(ends), (rows + 1,), int64)
    n = (last[rows],)
    own = carray(pointer(values), n, float32)
    return agree(carray(pointer(x), (rows, width), float32), carray(pointer(at), n, int32), last, own, looks)


@compiled(entry=True)
def agree_float64(x, rows, width, at, ends, values, looks):
    last = carray(pointer(ends), (rows + 1,), int64)
    n = (last[rows],)
    own = carray(pointer(values), n, float64)
    return agree(carray(pointer(x), (rows, width), float64), carray(pointer(at), n, int32), last, own, looks)


@compiled(entry=True)
def values_float32(x, rows, width, at, ends, out):
    last = carray(pointer(ends), (rows + 1,), int64)
    n = (last[rows],)
    gather_values(
        carray(pointer(x), (rows, width), float32), carray(pointer(at), n, int32), last, carray(pointer(out), n, float32)
    )  # fmt: skip


@compiled(entry=True)
def values_float64(x, rows, width, at, ends, out):
    last = carray(pointer(ends), (rows + 1,), int64)
    n = (last[rows],)
    gather_values(
        carray(pointer(x), (rows, width), float64), carray(pointer(at), n, int32), last, carray(pointer(out), n, float64)
    )  # fmt: skip


@compiled(entry=True)
def same_float32(x, rows, width, at, ends, values, looks):
    last = carray(pointer(ends), (rows + 1,), int64)
    n = (last[rows],)
    own = carray(pointer(values), n, float32)
    return same_rows(carray(pointer(x), (rows, width), float32), carray(pointer(at), n, int32), last, own, looks)


@compiled(entry=True)
def same_float64(x, rows, width, at, ends, values, looks):
    last = carray(pointer(ends), (rows + 1,), int64)
    n = (last[rows],)
    own = carray(pointer(values), n, float64)
    return same_rows(carray(pointer(x), (rows, width), float64), carray(pointer(at), n, int32), last, own, looks)


@compiled(entry=True)
def listed_float32(x, rows, width, at, ends, room):
    return listed(
        carray(pointer(x), (rows, width), float32),
        carray(pointer(at), (room + width + 1,), int32),
        carray(pointer(ends), (rows + 1,), int64),
        room,
    )


@compiled(entry=True)
def listed_float64(x, rows, width, at, ends, room):
    return listed(
        carray(pointer(x), (rows, width), float64),
        carray(pointer(at), (room + width + 1,), int32),
        carray(pointer(ends), (rows + 1,), int64),
        room,
    )


@compiled(entry=True)
def squares_float32(x, g, rows, width, at, ends, out):
    last = carray(pointer(ends), (rows + 1 if ends else 0,), int64)
    squares(
        carray(pointer(x), (rows, width), float32),
        carray(pointer(g), (rows, width), float32),
        carray(pointer(at), (last[rows] if ends else 0,), int32),
        last,
        carray(pointer(out), (2,), float64),
    )


@compiled(entry=True)
def squares_float64(x, g, rows, width, at, ends, out):
    last = carray(pointer(ends), (rows + 1 if ends else 0,), int64)
    squares(
        carray(pointer(x), (rows, width), float64),
        carray(pointer(g), (rows, width), float64),
        carray(pointer(at), (last[rows] if ends else 0,), int32),
        last,
        carray(pointer(out), (2,), float64),
    )


@compiled(entry=True)
def used_float32(x, rows, width, looks):
    """How much of so many rows of float32 memory is not zero."""
    return used_in(carray(pointer(x), (rows, width), float32), looks)


@compiled(entry=True)
def used_float64(x, rows, width, looks):
    """The same of float64 memory."""
    return used_in(carray(pointer(x), (rows, width), float64), looks)
