"""Products with sparse matrices, compiled by Numba, with batches as the inner loop.

Activations are packed first: samples in vectors of 64 bytes, four vectors in a block, a block as one line of 256 bytes for each
feature. What is left over are blocks of one vector. A block of 2048 features is half a megabyte, so that lines which a row
of the matrix picks come from the cache of the core, and the sums of a row stay in registers.

A matrix is a list of places by row, ``at`` and ``ends``, with its values beside it. Places that hold a zero change nothing, not even
the rounding: every sum runs over its places in their order.
"""

# Types are Numba's; its loops are what they are.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202

from __future__ import annotations

import numpy as np
from numba import carray, float32, float64, int32, int64

# Numba's cache of this file does not see changes in those two: touch this file after them.
from .loops import compiled, pointer
from .vectors import BYTES, dots_of_eight, get, load, plus_times, put, splat, store, transpose

__all__ = [
    "multiply_float32", "multiply_float64", "pack_float32", "pack_float64", "permute_float32",
    "permute_float64", "scatter_float32", "scatter_float64", "slopes_float32", "slopes_float64", "transposed",
]  # fmt: skip

BLOCK = 4  # vectors


@compiled(inline="always")
def place(v, vectors, features):
    """Where a vector of samples begins in packed memory, and the bytes from one feature to the next."""
    whole = vectors - vectors % BLOCK
    if v < whole:
        return BYTES * (v - v % BLOCK) * features + BYTES * (v % BLOCK), BYTES * BLOCK
    return BYTES * v * features, BYTES


@compiled()
def pack(x, batch, features, stride, out, zero, size):
    """Samples in rows of ``stride`` numbers, packed; what is missing of the last vector is zero."""
    lanes = BYTES // size
    vectors = -(-batch // lanes)
    for v in range(vectors):
        start, width = place(v, vectors, features)
        begin, have = x + v * lanes * stride * size, min(lanes, batch - v * lanes)
        squares = features - features % lanes if have == lanes else 0
        for f in range(0, squares, lanes):
            transpose(begin + f * size, stride * size, out + start + f * width, width, zero)
        for f in range(squares, features):
            line = out + start + f * width
            store(line, splat(zero))
            for b in range(have):
                put(line + b * size, get(begin + (b * stride + f) * size, zero))


@compiled()
def unpack_tile(tile, vectors, count, y, stride, have, zero, size):
    """Write the sums of ``count`` rows, of ``vectors`` vectors each, as columns of samples."""
    lanes = BYTES // size
    for v in range(vectors):
        here = min(lanes, have - v * lanes)
        begin = y + v * lanes * stride * size
        if here == lanes and count == lanes:
            transpose(tile + BYTES * v, BYTES * vectors, begin, stride * size, zero)
            continue
        for b in range(here):
            for o in range(count):
                number = get(tile + BYTES * (o * vectors + v) + b * size, zero)
                put(begin + (b * stride + o) * size, number)


@compiled()
def multiply_block(values, at, ends, first, last, base, bias, tile, y, stride, have, zero, size):
    """The rows of a matrix times a block of four vectors."""
    lanes = BYTES // size
    for o in range(first, last):
        begin = splat(bias[o] if bias.shape[0] else zero)
        a, b, c, d = begin, begin, begin, begin
        for q in range(ends[o], ends[o + 1]):
            line = base + int64(at[q]) * (BYTES * BLOCK)
            w = splat(values[q])
            a = plus_times(a, w, load(line, zero))
            b = plus_times(b, w, load(line + BYTES, zero))
            c = plus_times(c, w, load(line + 2 * BYTES, zero))
            d = plus_times(d, w, load(line + 3 * BYTES, zero))
        row = (o - first) % lanes
        own = tile + row * BYTES * BLOCK
        store(own, a)
        store(own + BYTES, b)
        store(own + 2 * BYTES, c)
        store(own + 3 * BYTES, d)
        if row == lanes - 1 or o == last - 1:
            unpack_tile(tile, BLOCK, row + 1, y + (o - row) * size, stride, have, zero, size)


@compiled()
def multiply_vector(values, at, ends, first, last, base, bias, tile, y, stride, have, zero, size):
    """The rows of a matrix times one vector of samples."""
    lanes = BYTES // size
    for o in range(first, last):
        total = splat(bias[o] if bias.shape[0] else zero)
        for q in range(ends[o], ends[o + 1]):
            total = plus_times(total, splat(values[q]), load(base + int64(at[q]) * BYTES, zero))
        row = (o - first) % lanes
        store(tile + row * BYTES, total)
        if row == lanes - 1 or o == last - 1:
            unpack_tile(tile, 1, row + 1, y + (o - row) * size, stride, have, zero, size)


@compiled()
def multiply(values, at, ends, first, last, packed, features, bias, y, stride, batch, zero, size):
    """Rows ``first`` to ``last`` of a matrix times packed samples, as columns of ``y``."""
    lanes = BYTES // size
    memory = np.empty((BLOCK * lanes + 1) * BYTES, dtype=np.uint8)
    tile = (int64(memory.ctypes.data) + BYTES - 1) // BYTES * BYTES
    vectors, v = -(-batch // lanes), 0
    while v < vectors:
        base, out, have = packed + BYTES * v * features, y + v * lanes * stride * size, batch - v * lanes
        if v + BLOCK <= vectors:
            multiply_block(values, at, ends, first, last, base, bias, tile, out, stride, have, zero, size)
            v += BLOCK
        else:
            multiply_vector(values, at, ends, first, last, base, bias, tile, out, stride, have, zero, size)
            v += 1
    memory[0] = 0  # until here nobody may let go of it


@compiled()
def slopes(at, ends, first, last, packed, features, steep, rows, batch, out, zero, size):
    """The gradient of a matrix in its places, from packed samples and packed gradients of the outputs, ``steep``."""
    lanes = BYTES // size
    spare = np.zeros(8, dtype=np.int32)
    some = np.zeros(8, dtype=out.dtype)
    places, sums, few, sum_of_few = at.ctypes.data, out.ctypes.data, spare.ctypes.data, some.ctypes.data
    for q in range(ends[first], ends[last]):
        out[q] = zero
    vectors, v = -(-batch // lanes), 0
    while v < vectors:
        base, g = packed + BYTES * v * features, steep + BYTES * v * rows
        many = v + BLOCK <= vectors
        width = BYTES * BLOCK if many else BYTES
        for o in range(first, last):
            end, own = ends[o + 1], g + o * width
            whole = end - (end - ends[o]) % 8
            for q in range(ends[o], whole, 8):
                if many:
                    dots_of_eight(places + 4 * q, base, width, own, 4, sums + size * q, zero)
                else:
                    dots_of_eight(places + 4 * q, base, width, own, 1, sums + size * q, zero)
            if whole < end:
                for i in range(end - whole):
                    spare[i] = at[whole + i]
                    some[i] = out[whole + i]
                if many:
                    dots_of_eight(few, base, width, own, 4, sum_of_few, zero)
                else:
                    dots_of_eight(few, base, width, own, 1, sum_of_few, zero)
                for i in range(end - whole):
                    out[whole + i] = some[i]
        v += BLOCK if many else 1
    spare[0], some[0] = 0, 0  # until here nobody may let go of them


@compiled()
def scatter(values, at, ends, x):
    for i in range(x.shape[0]):
        for q in range(ends[i], ends[i + 1]):
            x[i, at[q]] = values[q] if values.shape[0] else x.dtype.type(0)


@compiled(entry=True)
def transposed(at, ends, rows, width, rows_at, rows_ends, source):
    """The list of a matrix by columns, and for each of its places, which one of the list by rows it is."""
    last = carray(pointer(ends), (rows + 1,), int64)
    at_ = carray(pointer(at), (last[rows],), int32)
    begins = carray(pointer(rows_ends), (width + 1,), int64)
    rows_at_, source_ = carray(pointer(rows_at), (last[rows],), int32), carray(pointer(source), (last[rows],), int32)
    begins[:] = 0
    for q in range(last[rows]):
        begins[at_[q]] += 1
    total = int64(0)
    for j in range(width):
        begins[j], total = total, total + begins[j]
    for i in range(rows):
        for q in range(last[i], last[i + 1]):
            k = begins[at_[q]]
            begins[at_[q]] = k + 1
            rows_at_[k], source_[k] = i, q
    for j in range(width, 0, -1):
        begins[j] = begins[j - 1]
    begins[0] = 0


@compiled(entry=True)
def pack_float32(x, batch, features, stride, out):
    pack(x, batch, features, stride, out, float32(0), 4)


@compiled(entry=True)
def pack_float64(x, batch, features, stride, out):
    pack(x, batch, features, stride, out, float64(0), 8)


@compiled(entry=True)
def multiply_float32(values, at, ends, first, last, packed, features, bias, y, stride, batch):
    last_ends = carray(pointer(ends), (last + 1,), int64)
    multiply(
        carray(pointer(values), (last_ends[last],), float32), carray(pointer(at), (last_ends[last],), int32), last_ends,
        first, last, packed, features, carray(pointer(bias), (last if bias else 0,), float32), y, stride, batch, float32(0), 4,
    )  # fmt: skip


@compiled(entry=True)
def multiply_float64(values, at, ends, first, last, packed, features, bias, y, stride, batch):
    last_ends = carray(pointer(ends), (last + 1,), int64)
    multiply(
        carray(pointer(values), (last_ends[last],), float64), carray(pointer(at), (last_ends[last],), int32), last_ends,
        first, last, packed, features, carray(pointer(bias), (last if bias else 0,), float64), y, stride, batch, float64(0), 8,
    )  # fmt: skip


@compiled(entry=True)
def slopes_float32(at, ends, first, last, packed, features, steep, rows, batch, out):
    last_ends = carray(pointer(ends), (last + 1,), int64)
    slopes(
        carray(pointer(at), (last_ends[last],), int32), last_ends, first, last, packed, features, steep, rows, batch,
        carray(pointer(out), (last_ends[last],), float32), float32(0), 4,
    )  # fmt: skip


@compiled(entry=True)
def slopes_float64(at, ends, first, last, packed, features, steep, rows, batch, out):
    last_ends = carray(pointer(ends), (last + 1,), int64)
    slopes(
        carray(pointer(at), (last_ends[last],), int32), last_ends, first, last, packed, features, steep, rows, batch,
        carray(pointer(out), (last_ends[last],), float64), float64(0), 8,
    )  # fmt: skip


@compiled(entry=True)
def scatter_float32(values, at, ends, rows, width, x):
    last = carray(pointer(ends), (rows + 1,), int64)
    n = last[rows]
    scatter(
        carray(pointer(values), (n if values else 0,), float32), carray(pointer(at), (n,), int32), last,
        carray(pointer(x), (rows, width), float32),
    )  # fmt: skip


@compiled(entry=True)
def scatter_float64(values, at, ends, rows, width, x):
    last = carray(pointer(ends), (rows + 1,), int64)
    n = last[rows]
    scatter(
        carray(pointer(values), (n if values else 0,), float64), carray(pointer(at), (n,), int32), last,
        carray(pointer(x), (rows, width), float64),
    )  # fmt: skip


@compiled(entry=True)
def permute_float32(values, source, count, out):
    values_, out_ = carray(pointer(values), (count,), float32), carray(pointer(out), (count,), float32)
    source_ = carray(pointer(source), (count,), int32)
    for k in range(count):
        out_[k] = values_[source_[k]]


@compiled(entry=True)
def permute_float64(values, source, count, out):
    values_, out_ = carray(pointer(values), (count,), float64), carray(pointer(out), (count,), float64)
    source_ = carray(pointer(source), (count,), int32)
    for k in range(count):
        out_[k] = values_[source_[k]]
