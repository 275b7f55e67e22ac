"""Vectors of 64 bytes for Numba: 16 floats or 8 doubles, which a loop cannot be trusted to become.

Addresses are integers. ``like`` is a number of the type that the memory holds.
"""

# Types are Numba's.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, ARG001

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

__all__ = ["BYTES", "dots_of_eight", "get", "load", "plus_times", "prefetch", "put", "splat", "store", "transpose"]

BYTES = 64
FAST = ("contract", "nsz")  # nothing is reassociated: places of zeros in a list do not change a sum


class Lanes(types.Type):
    """A vector of numbers of one type."""

    def __init__(self, kind) -> None:
        self.kind, self.count = kind, BYTES * 8 // kind.bitwidth
        super().__init__(name=f"Lanes({kind})")


@register_model(Lanes)
class LanesModel(models.PrimitiveModel):
    """A vector in a register."""

    def __init__(self, manager, kind) -> None:
        number = ir.FloatType() if kind.kind == types.float32 else ir.DoubleType()
        super().__init__(manager, kind, ir.VectorType(number, kind.count))


def _vector(context, kind):
    return context.get_value_type(Lanes(kind))


def _load(builder, address, vector):
    size = 4 if isinstance(vector.element, ir.FloatType) else 8
    return builder.load(builder.inttoptr(address, vector.as_pointer()), align=size)


def _store(builder, value, address):
    size = 4 if isinstance(value.type.element, ir.FloatType) else 8
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=size)


def _offset(builder, address, number):
    return builder.add(address, ir.Constant(ir.IntType(64), number))


@intrinsic
def load(typing_context, address, like):
    """The vector at an address."""

    def codegen(context, builder, signature, arguments):
        return _load(builder, arguments[0], _vector(context, like))

    return Lanes(like)(types.int64, like), codegen


@intrinsic
def store(typing_context, address, value):
    """Write a vector to an address."""

    def codegen(context, builder, signature, arguments):
        _store(builder, arguments[1], arguments[0])
        return context.get_dummy_value()

    return types.void(types.int64, value), codegen


@intrinsic
def get(typing_context, address, like):
    """The number at an address."""

    def codegen(context, builder, signature, arguments):
        return builder.load(builder.inttoptr(arguments[0], arguments[1].type.as_pointer()))

    return like(types.int64, like), codegen


@intrinsic
def put(typing_context, address, number):
    """Write a number to an address."""

    def codegen(context, builder, signature, arguments):
        builder.store(arguments[1], builder.inttoptr(arguments[0], arguments[1].type.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, number), codegen


@intrinsic
def splat(typing_context, number):
    """A vector of one number."""

    def codegen(context, builder, signature, arguments):
        return _splat(builder, arguments[0], _vector(context, number))

    return Lanes(number)(number), codegen


def _splat(builder, number, vector):
    empty = ir.Constant(vector, ir.Undefined)
    one = builder.insert_element(empty, number, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(
        one, empty, ir.Constant(ir.VectorType(ir.IntType(32), vector.count), [0] * vector.count)
    )


@intrinsic
def plus_times(typing_context, total, one, other):
    """``total + one * other``."""

    def codegen(context, builder, signature, arguments):
        return builder.fadd(arguments[0], builder.fmul(arguments[1], arguments[2], flags=FAST), flags=FAST)

    return total(total, one, other), codegen


@intrinsic
def prefetch(typing_context, address):
    """Fetch the line at an address, which is going to be written to."""

    def codegen(context, builder, signature, arguments):
        kind, whole = ir.IntType(8).as_pointer(), ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [kind, whole, whole, whole]), "llvm.prefetch.p0i8"
        )
        numbers = [ir.Constant(whole, number) for number in (1, 3, 1)]
        builder.call(function, [builder.inttoptr(arguments[0], kind), *numbers])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def transpose(typing_context, source, step, end, stride, like):
    """Write the square of numbers whose rows begin at ``source``, ``step`` bytes apart, as rows ``stride`` apart at ``end``."""

    def codegen(context, builder, signature, arguments):
        begin, step_, end_, stride_ = arguments[:4]
        vector = _vector(context, like)
        count, places, rows = vector.count, ir.IntType(32), []
        for _ in range(count):
            rows.append(_load(builder, begin, vector))
            begin = builder.add(begin, step_)
        half = 1
        while half < count:  # exchange the blocks of this size beside the diagonal
            low = [k if not k & half else count + k - half for k in range(count)]
            high = [k + half if not k & half else count + k for k in range(count)]
            for i in range(count):
                if not i & half:
                    one, other = rows[i], rows[i + half]
                    for place, mask in ((i, low), (i + half, high)):
                        rows[place] = builder.shuffle_vector(
                            one, other, ir.Constant(ir.VectorType(places, count), mask)
                        )
            half *= 2
        for row in rows:
            _store(builder, row, end_)
            end_ = builder.add(end_, stride_)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64, like), codegen


@intrinsic(prefer_literal=True)
def dots_of_eight(typing_context, at, base, width, g, vectors, out, like):
    """Add to eight numbers at ``out`` the products of the vectors at ``g`` with eight rows of the block at ``base``.

    ``at`` is where the numbers of the rows are, ``width`` the bytes of a row; ``vectors`` is a constant.
    """
    many = vectors.literal_value

    def codegen(context, builder, signature, arguments):
        places, base_, width_, g_, _, out_ = arguments[:6]
        vector = _vector(context, like)
        long, count = ir.IntType(64), vector.count
        own = [_load(builder, _offset(builder, g_, BYTES * k), vector) for k in range(many)]
        place = builder.inttoptr(places, ir.IntType(32).as_pointer())
        sums = []
        for q in range(8):
            number = builder.load(builder.gep(place, [ir.Constant(ir.IntType(32), q)]), align=4)
            row = builder.add(base_, builder.mul(builder.sext(number, long), width_))
            total = builder.fmul(own[0], _load(builder, row, vector), flags=FAST)
            for k in range(1, many):
                product = builder.fmul(own[k], _load(builder, _offset(builder, row, BYTES * k), vector), flags=FAST)
                total = builder.fadd(total, product, flags=FAST)
            sums.append(total)
        # Pairs of vectors become one of sums of neighbours, until there is one.
        while len(sums) > 1:
            even = ir.Constant(ir.VectorType(ir.IntType(32), count), [2 * k for k in range(count)])
            odd = ir.Constant(ir.VectorType(ir.IntType(32), count), [2 * k + 1 for k in range(count)])
            sums = [
                builder.fadd(
                    builder.shuffle_vector(one, other, even), builder.shuffle_vector(one, other, odd), flags=FAST
                )
                for one, other in zip(sums[::2], sums[1::2], strict=True)
            ]
        (total,) = sums
        if count == 16:
            empty = ir.Constant(total.type, ir.Undefined)
            even, odd = (
                ir.Constant(ir.VectorType(ir.IntType(32), 8), [2 * k + odd for k in range(8)]) for odd in (0, 1)
            )
            total = builder.fadd(
                builder.shuffle_vector(total, empty, even), builder.shuffle_vector(total, empty, odd), flags=FAST
            )
        before = _load(builder, out_, total.type)
        _store(builder, builder.fadd(before, total, flags=FAST), out_)
        return context.get_dummy_value()

    return (
        types.void(types.int64, types.int64, types.int64, types.int64, vectors, types.int64, like),
        codegen,
    )
