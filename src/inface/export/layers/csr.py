"""The product of a batch and a matrix in CSR form, compiled by Numba for one thread.

For one sample, every row of the matrix is a sparse dot product. Many samples are transposed in tiles, so that the
values of one feature are contiguous. Every non-zero then adds a multiple of one such vector to the result of its row,
which stays in registers. The results are transposed back.

LLVM does not vectorise these loops by itself. So the two innermost loops and the transpose of an 8 by 8 block are
written with LLVM's vector types, which it splits to the width of the processor. Code is compiled on first use and
cached on disk.
"""

# Numba infers the types of its functions when it compiles them.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202
from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import carray, float32, float64, int32, int64, types, uint16, uint32
from numba.core import cgutils
from numba.extending import intrinsic

# Numba's cache of this file does not see changes in that one: touch this file after them.
from inface.kernels.rows import compiled, pointer

__all__ = ["multiply_float32_int16", "multiply_float32_int32", "multiply_float64_int16", "multiply_float64_int32"]

LANES = 4  # of a dot product; with more, waiting for the entries costs more than it gains
BLOCK = 16  # rows of results that are transposed back together: a cache line of float32
SINGLE = 2  # up to this many samples are computed one by one

INDEX, PLACE = ir.IntType(64), ir.IntType(32)
CONTRACT, SUM = ("contract",), ("reassoc", "contract", "nsz")


def vector(real, width):
    return ir.VectorType(real, width)


def load(builder, at, width, size):
    """A vector of numbers of ``size`` bytes at an address; it need only be aligned to one number."""
    return builder.load(builder.bitcast(at, vector(at.type.pointee, width).as_pointer()), align=size)


def store(builder, value, at, size):
    builder.store(value, builder.bitcast(at, value.type.as_pointer()), align=size)


def splat(builder, value, width):
    none = ir.Constant(vector(value.type, width), ir.Undefined)
    first = builder.insert_element(none, value, PLACE(0))
    return builder.shuffle_vector(first, none, ir.Constant(vector(PLACE, width), [0] * width))


def fma(builder, a, b, c):
    return builder.fadd(builder.fmul(a, b, flags=CONTRACT), c, flags=CONTRACT)


def memory(context, builder, signature, arguments, n):
    """The address of an array, and the bytes per number."""
    kind = signature.args[n]
    return context.make_array(kind)(context, builder, arguments[n]).data, kind.dtype.bitwidth // 8


def entry(builder, columns, k):
    """The column of a non-zero."""
    return builder.zext(builder.load(builder.gep(columns, [k])), INDEX)


@intrinsic
def dot(typing_context, values, columns, first, last, x, at):  # noqa: ARG001 - Numba's interface
    """The sum of ``values[k] * x[at + columns[k]]`` from ``first`` to ``last``."""
    real = values.dtype

    def codegen(context, builder, signature, arguments):
        v, size = memory(context, builder, signature, arguments, 0)
        c, _ = memory(context, builder, signature, arguments, 1)
        x, _ = memory(context, builder, signature, arguments, 4)
        begin, end, x = arguments[2], arguments[3], builder.gep(x, [arguments[5]])
        full = builder.add(begin, builder.and_(builder.sub(end, begin), INDEX(-LANES)))
        kind = v.type.pointee
        sums = cgutils.alloca_once_value(builder, ir.Constant(vector(kind, LANES), [0.0] * LANES))
        with cgutils.for_range_slice(builder, begin, full, INDEX(LANES)) as (k, _):
            named = ir.Constant(vector(kind, LANES), ir.Undefined)
            for lane in range(LANES):
                at = builder.gep(x, [entry(builder, c, builder.add(k, INDEX(lane)))])
                named = builder.insert_element(named, builder.load(at), PLACE(lane))
            some = load(builder, builder.gep(v, [k]), LANES, size)
            builder.store(fma(builder, some, named, builder.load(sums)), sums)
        rest = cgutils.alloca_once_value(builder, kind(0.0))
        with cgutils.for_range_slice(builder, full, end, INDEX(1)) as (k, _):
            one, named = builder.load(builder.gep(v, [k])), builder.load(builder.gep(x, [entry(builder, c, k)]))
            builder.store(fma(builder, one, named, builder.load(rest)), rest)
        lanes = builder.load(sums)
        total = builder.load(rest)
        for lane in range(LANES):
            total = builder.fadd(total, builder.extract_element(lanes, PLACE(lane)), flags=SUM)
        return total

    return real(values, columns, types.int64, types.int64, x, types.int64), codegen


@intrinsic
def turn(typing_context, source, start, stride, target, goal, step):  # noqa: ARG001 - Numba's interface
    """Transpose the 8 by 8 block at ``source[start]`` (row stride ``stride``) to ``target[goal]`` (``step``)."""

    def codegen(context, builder, signature, arguments):
        src, size = memory(context, builder, signature, arguments, 0)
        dst, _ = memory(context, builder, signature, arguments, 3)
        _, start, stride, _, goal, step = arguments

        def at(array, place, apart, row):
            return builder.gep(array, [builder.add(place, builder.mul(apart, INDEX(row)))])

        rows = [load(builder, at(src, start, stride, row), 8, size) for row in range(8)]
        # Three rounds of exchanges between rows 1, 2 and 4 apart: each swaps the off-diagonal blocks of that size.
        for apart in (1, 2, 4):
            low = [k if not k & apart else k - apart + 8 for k in range(8)]
            high = [k + apart if not k & apart else k + 8 for k in range(8)]
            masks = [ir.Constant(vector(PLACE, 8), mask) for mask in (low, high)]
            for row in range(8):
                if not row & apart:
                    a, b = rows[row], rows[row + apart]
                    rows[row], rows[row + apart] = (builder.shuffle_vector(a, b, mask) for mask in masks)
        for row in range(8):
            store(builder, rows[row], at(dst, goal, step, row), size)
        return context.get_dummy_value()

    return types.none(source, types.int64, types.int64, target, types.int64, types.int64), codegen


@compiled()
def turn_over(x, start, inputs, width, turned):
    """Transpose samples ``start`` to ``start + width`` to the order of features."""
    for j in range(0, inputs - 7, 8):
        for s in range(0, width, 8):
            turn(x, (start + s) * inputs + j, inputs, turned, j * width + s, width)
    for j in range(inputs - inputs % 8, inputs):
        for s in range(width):
            turned[j * width + s] = x[(start + s) * inputs + j]


@compiled()
def turn_back(block, count, width, y, start, outputs):
    """Transpose ``count`` results of every sample back; the first sample begins at ``y[start]``."""
    whole = count - count % 8
    for s in range(0, width, 8):
        for k in range(0, whole, 8):
            turn(block, k * width + s, width, y, start + s * outputs + k, outputs)
    for k in range(whole, count):
        for s in range(width):
            y[start + s * outputs + k] = block[k * width + s]


def tile_of(width):
    """The product for ``width`` samples, which are transposed together."""

    @intrinsic
    def accumulate(typing_context, values, columns, first, last, x, bias, y, at):  # noqa: ARG001 - Numba's interface
        """``y[at:] = bias + sum of values[k] * x[width * columns[k]:]``, all ``width`` long."""

        def codegen(context, builder, signature, arguments):
            v, size = memory(context, builder, signature, arguments, 0)
            c, _ = memory(context, builder, signature, arguments, 1)
            x, _ = memory(context, builder, signature, arguments, 4)
            y, _ = memory(context, builder, signature, arguments, 6)
            sums = cgutils.alloca_once_value(builder, splat(builder, arguments[5], width))
            with cgutils.for_range_slice(builder, arguments[2], arguments[3], INDEX(1)) as (k, _):
                some = load(builder, builder.gep(x, [builder.mul(entry(builder, c, k), INDEX(width))]), width, size)
                one = splat(builder, builder.load(builder.gep(v, [k])), width)
                builder.store(fma(builder, one, some, builder.load(sums)), sums)
            store(builder, builder.load(sums), builder.gep(y, [arguments[7]]), size)
            return context.get_dummy_value()

        return types.none(values, columns, types.int64, types.int64, x, values.dtype, y, types.int64), codegen

    @compiled()
    def tile(x, y, start, values, columns, rows, bias, inputs, outputs, turned, block):
        """The results of samples ``start`` to ``start + width``."""
        turn_over(x, start, inputs, width, turned)
        for i in range(0, outputs, BLOCK):
            count = min(BLOCK, outputs - i)
            for k in range(count):
                own = bias[i + k] if bias.shape[0] > 0 else values.dtype.type(0)
                accumulate(values, columns, int64(rows[i + k]), int64(rows[i + k + 1]), turned, own, block, k * width)
            turn_back(block, count, width, y, start * outputs + i, outputs)

    return tile


tile_8, tile_16, tile_32 = tile_of(8), tile_of(16), tile_of(32)


@compiled()
def singly(x, y, batch, values, columns, rows, bias, inputs, outputs):
    """One sample after the other."""
    for s in range(batch):
        for i in range(outputs):
            own = bias[i] if bias.shape[0] > 0 else values.dtype.type(0)
            y[s * outputs + i] = own + dot(values, columns, int64(rows[i]), int64(rows[i + 1]), x, s * inputs)


@compiled()
def tiled(x, y, batch, values, columns, rows, bias, inputs, outputs):
    """Eight samples or more, in tiles of one width; the last tile may overlap the one before it."""
    width = 32 if batch >= 32 else 16 if batch >= 16 else 8
    turned = np.empty(inputs * width, values.dtype)
    block = np.empty(BLOCK * width, values.dtype)
    for tile in range(0, batch, width):
        start = min(tile, batch - width)
        if width == 32:
            tile_32(x, y, start, values, columns, rows, bias, inputs, outputs, turned, block)
        elif width == 16:
            tile_16(x, y, start, values, columns, rows, bias, inputs, outputs, turned, block)
        else:
            tile_8(x, y, start, values, columns, rows, bias, inputs, outputs, turned, block)


@compiled()
def padded(x, y, batch, values, columns, rows, bias, inputs, outputs):
    """Fewer than eight samples, padded with zeros."""
    eight_x, eight_y = np.zeros(8 * inputs, values.dtype), np.empty(8 * outputs, values.dtype)
    for k in range(batch * inputs):
        eight_x[k] = x[k]
    tiled(eight_x, eight_y, 8, values, columns, rows, bias, inputs, outputs)
    for k in range(batch * outputs):
        y[k] = eight_y[k]


@compiled()
def product(x, y, batch, values, columns, rows, bias, inputs, outputs):
    if batch <= SINGLE:
        singly(x, y, batch, values, columns, rows, bias, inputs, outputs)
    elif batch < 8:
        padded(x, y, batch, values, columns, rows, bias, inputs, outputs)
    else:
        tiled(x, y, batch, values, columns, rows, bias, inputs, outputs)


# ---------------------------------------------------------------------- entries: addresses and numbers


@compiled(entry=True)
def multiply_float32_int16(x, y, batch, values, columns, rows, bias, inputs, outputs):
    """``y = x W^T + bias`` for contiguous samples; an address of 0 is no bias."""
    product(
        carray(pointer(x), (batch * inputs,), float32), carray(pointer(y), (batch * outputs,), float32), batch,
        carray(pointer(values), (1,), float32), carray(pointer(columns), (1,), uint16),
        carray(pointer(rows), (outputs + 1,), int32), carray(pointer(bias), (outputs if bias else 0,), float32),
        inputs, outputs,
    )  # fmt: skip


@compiled(entry=True)
def multiply_float32_int32(x, y, batch, values, columns, rows, bias, inputs, outputs):
    """``y = x W^T + bias`` for contiguous samples; an address of 0 is no bias."""
    product(
        carray(pointer(x), (batch * inputs,), float32), carray(pointer(y), (batch * outputs,), float32), batch,
        carray(pointer(values), (1,), float32), carray(pointer(columns), (1,), uint32),
        carray(pointer(rows), (outputs + 1,), int32), carray(pointer(bias), (outputs if bias else 0,), float32),
        inputs, outputs,
    )  # fmt: skip


@compiled(entry=True)
def multiply_float64_int16(x, y, batch, values, columns, rows, bias, inputs, outputs):
    """``y = x W^T + bias`` for contiguous samples; an address of 0 is no bias."""
    product(
        carray(pointer(x), (batch * inputs,), float64), carray(pointer(y), (batch * outputs,), float64), batch,
        carray(pointer(values), (1,), float64), carray(pointer(columns), (1,), uint16),
        carray(pointer(rows), (outputs + 1,), int32), carray(pointer(bias), (outputs if bias else 0,), float64),
        inputs, outputs,
    )  # fmt: skip


@compiled(entry=True)
def multiply_float64_int32(x, y, batch, values, columns, rows, bias, inputs, outputs):
    """``y = x W^T + bias`` for contiguous samples; an address of 0 is no bias."""
    product(
        carray(pointer(x), (batch * inputs,), float64), carray(pointer(y), (batch * outputs,), float64), batch,
        carray(pointer(values), (1,), float64), carray(pointer(columns), (1,), uint32),
        carray(pointer(rows), (outputs + 1,), int32), carray(pointer(bias), (outputs if bias else 0,), float64),
        inputs, outputs,
    )  # fmt: skip
