"""Arithmetic on vectors of eight doubles in Numba, with ordinary operators: rows are short, and a loop that LLVM makes
vectors of pays for its beginning and its end.

Addresses are integers; ``like`` is a number of the type that the memory holds. Nothing is contracted or reassociated but
the eight lanes of :func:`sum_of`.
"""

# Types are Numba's.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, ARG001, PLW0108

from __future__ import annotations

import operator

from llvmlite import ir
from numba import float64, int64, types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

from .loops import compiled
from .vectors import Lanes

__all__ = ["EIGHT", "address", "bytes_of", "many", "narrow", "put_narrow", "sum_of", "where", "wide", "zeros"]

EIGHT = 8
DOUBLES = Lanes(float64)
DOUBLE, BITS = ir.VectorType(ir.DoubleType(), EIGHT), ir.VectorType(ir.IntType(1), EIGHT)


class Chosen(types.Type):
    """Some of eight lanes."""

    def __init__(self) -> None:
        super().__init__(name="Chosen")


CHOSEN = Chosen()


@register_model(Chosen)
class ChosenModel(models.PrimitiveModel):
    """A bit for each lane."""

    def __init__(self, manager, kind) -> None:
        super().__init__(manager, kind, BITS)


def _all_lanes(builder, value):
    """A vector, of a number if it is one."""
    if value.type == DOUBLE:
        return value
    empty = ir.Constant(DOUBLE, ir.Undefined)
    one = builder.insert_element(empty, value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(one, empty, ir.Constant(ir.VectorType(ir.IntType(32), EIGHT), [0] * EIGHT))


def _between(operation, result, make):
    """Give vectors, or a vector and a number, an operator."""

    @intrinsic
    def both(typing_context, one, other):
        def codegen(context, builder, signature, arguments):
            return make(builder, *(_all_lanes(builder, argument) for argument in arguments))

        return result(one, other), codegen

    @overload(operation)
    def chosen(one, other):
        if DOUBLES in (one, other) and {one, other} <= {DOUBLES, float64}:
            return lambda one, other: both(one, other)
        return None


_between(operator.add, DOUBLES, lambda builder, one, other: builder.fadd(one, other))
_between(operator.sub, DOUBLES, lambda builder, one, other: builder.fsub(one, other))
_between(operator.mul, DOUBLES, lambda builder, one, other: builder.fmul(one, other))
_between(operator.gt, CHOSEN, lambda builder, one, other: builder.fcmp_ordered(">", one, other))
_between(operator.lt, CHOSEN, lambda builder, one, other: builder.fcmp_ordered("<", one, other))
_between(operator.le, CHOSEN, lambda builder, one, other: builder.fcmp_ordered("<=", one, other))
_between(operator.eq, CHOSEN, lambda builder, one, other: builder.fcmp_ordered("==", one, other))


@intrinsic
def _both(typing_context, one, other):
    def codegen(context, builder, signature, arguments):
        return builder.and_(*arguments)

    return CHOSEN(one, other), codegen


@overload(operator.and_)
def _and(one, other):
    return (lambda one, other: _both(one, other)) if one == other == CHOSEN else None


@intrinsic
def _magnitude(typing_context, vector):
    def codegen(context, builder, signature, arguments):
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(DOUBLE, [DOUBLE]), "llvm.fabs.v8f64")
        return builder.call(function, arguments)

    return DOUBLES(vector), codegen


@overload(abs)
def _abs(vector):
    return (lambda vector: _magnitude(vector)) if vector == DOUBLES else None


@intrinsic
def where(typing_context, chosen, one, other):
    """``one`` in the chosen lanes, ``other`` elsewhere; both can be numbers."""

    def codegen(context, builder, signature, arguments):
        return builder.select(arguments[0], _all_lanes(builder, arguments[1]), _all_lanes(builder, arguments[2]))

    return DOUBLES(chosen, one, other), codegen


@intrinsic
def many(typing_context, chosen):
    """How many lanes are chosen."""

    def codegen(context, builder, signature, arguments):
        bits = builder.zext(builder.bitcast(arguments[0], ir.IntType(EIGHT)), ir.IntType(64))
        return builder.ctpop(bits)

    return types.int64(chosen), codegen


@intrinsic
def sum_of(typing_context, vector):
    """The sum of the lanes."""

    def codegen(context, builder, signature, arguments):
        (whole,) = arguments
        for half in (4, 2, 1):
            low, high = (
                builder.shuffle_vector(
                    whole, whole, ir.Constant(ir.VectorType(ir.IntType(32), half), list(range(start, start + half)))
                )
                for start in (0, half)
            )
            whole = builder.fadd(low, high)
        return builder.extract_element(whole, ir.Constant(ir.IntType(32), 0))

    return float64(vector), codegen


@compiled(inline="always")
def address(numbers):
    """Where an array lies."""
    return int64(numbers.ctypes.data)


@intrinsic
def bytes_of(typing_context, like):
    """The size of such a number, as a constant."""

    def codegen(context, builder, signature, arguments):
        return ir.Constant(ir.IntType(64), like.bitwidth // 8)

    return types.int64(like), codegen


@intrinsic
def zeros(typing_context):
    """A vector of zeros."""

    def codegen(context, builder, signature, arguments):
        return ir.Constant(DOUBLE, None)

    return DOUBLES(), codegen


@intrinsic
def wide(typing_context, address, like):
    """Eight numbers, as doubles."""

    def codegen(context, builder, signature, arguments):
        vector = ir.VectorType(context.get_value_type(like), EIGHT)
        held = builder.load(builder.inttoptr(arguments[0], vector.as_pointer()), align=like.bitwidth // 8)
        return held if vector == DOUBLE else builder.fpext(held, DOUBLE)

    return DOUBLES(types.int64, like), codegen


@intrinsic
def narrow(typing_context, vector, like):
    """Doubles, rounded as the memory does."""

    def codegen(context, builder, signature, arguments):
        if like == float64:
            return arguments[0]
        short = ir.VectorType(context.get_value_type(like), EIGHT)
        return builder.fpext(builder.fptrunc(arguments[0], short), DOUBLE)

    return DOUBLES(vector, like), codegen


@intrinsic
def put_narrow(typing_context, address, vector, like):
    """Write eight doubles, rounded."""

    def codegen(context, builder, signature, arguments):
        value, kind = arguments[1], ir.VectorType(context.get_value_type(like), EIGHT)
        value = value if kind == DOUBLE else builder.fptrunc(value, kind)
        builder.store(value, builder.inttoptr(arguments[0], kind.as_pointer()), align=like.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(types.int64, vector, like), codegen
