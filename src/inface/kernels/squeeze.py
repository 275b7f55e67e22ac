"""What is not zero of a row, side by side: one pass that reads the row from its beginning to its end, with AVX-512.

Where 5 % of a row is in use, more than half of its cache lines are. Reading all of them in order costs less than reading
those one by one. On other CPUs :data:`SQUEEZES` is False, and nothing here may be called.
"""

# Types are Numba's.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, ARG001

from __future__ import annotations

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils, config
from numba.extending import intrinsic

from .lanes import address, bytes_of
from .loops import compiled
from .vectors import splat, store

__all__ = ["SQUEEZES", "squeeze"]


def _squeezes() -> bool:
    if config.CPU_NAME or config.CPU_FEATURES is not None or not config.ENABLE_AVX:  # Numba is told to compile for less
        return False
    try:
        found = binding.get_host_cpu_features()
    except RuntimeError:  # nobody knows
        return False
    return all(found.get(feature, False) for feature in ("avx512f", "avx512vl", "popcnt"))


SQUEEZES = _squeezes()

# So many bytes ahead are fetched: a row is computed while the next one comes.
AHEAD = 4096


def _short(kind):
    return {ir.FloatType(): "f32", ir.DoubleType(): "f64", ir.IntType(32): "i32"}[kind]


def _squeezed(builder, value, mask):
    """The lanes of a mask, in front."""
    name = f"llvm.x86.avx512.mask.compress.v{value.type.count}{_short(value.type.element)}"
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(value.type, [value.type, value.type, mask.type]), name
    )
    return builder.call(function, [value, ir.Constant(value.type, None), mask])


def _put(builder, value, address):
    # To a register and then to memory: the instruction that does both is slow on some CPUs.
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=4)


@intrinsic
def used_lanes(typing_context, at, like):
    """Which of the numbers of a vector are not zero, as bits."""

    def codegen(context, builder, signature, arguments):
        count = 64 * 8 // like.bitwidth
        vector, bits = ir.VectorType(context.get_value_type(like), count), ir.IntType(count)
        held = builder.load(builder.inttoptr(arguments[0], vector.as_pointer()), align=like.bitwidth // 8)
        differ = builder.fcmp_unordered("!=", held, ir.Constant(vector, [0.0] * count))
        return builder.zext(builder.bitcast(differ, bits), ir.IntType(64))

    return types.int64(types.int64, like), codegen


@intrinsic
def move_lanes(typing_context, source, lanes, end, like):
    """Write the numbers of some lanes at ``source`` side by side to ``end``; a whole vector is written."""

    def codegen(context, builder, signature, arguments):
        count = 64 * 8 // like.bitwidth
        vector, bits = ir.VectorType(context.get_value_type(like), count), ir.IntType(count)
        mask = builder.bitcast(builder.trunc(arguments[1], bits), ir.VectorType(ir.IntType(1), count))
        held = builder.load(builder.inttoptr(arguments[0], vector.as_pointer()), align=4)
        _put(builder, _squeezed(builder, held, mask), arguments[2])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, like), codegen


@intrinsic
def move_places(typing_context, first, lanes, end, like):
    """Write the numbers of those lanes, of which the first is ``first``, side by side to ``end``."""

    def codegen(context, builder, signature, arguments):
        count = 64 * 8 // like.bitwidth
        vector, bits = ir.VectorType(ir.IntType(32), count), ir.IntType(count)
        mask = builder.bitcast(builder.trunc(arguments[1], bits), ir.VectorType(ir.IntType(1), count))
        first_ = builder.trunc(arguments[0], ir.IntType(32))
        one = builder.insert_element(ir.Constant(vector, ir.Undefined), first_, ir.Constant(ir.IntType(32), 0))
        all_ = builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), ir.Constant(vector, [0] * count))
        places = builder.add(all_, ir.Constant(vector, list(range(count))))
        _put(builder, _squeezed(builder, places, mask), arguments[2])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, like), codegen


@intrinsic
def fetch(typing_context, address):
    """Fetch the line at an address, which is going to be read."""

    def codegen(context, builder, signature, arguments):
        kind, whole = ir.IntType(8).as_pointer(), ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [kind, whole, whole, whole]), "llvm.prefetch.p0i8"
        )
        numbers = [ir.Constant(whole, number) for number in (0, 3, 1)]
        builder.call(function, [builder.inttoptr(arguments[0], kind), *numbers])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def ones(typing_context, bits):
    """How many bits are 1."""

    def codegen(context, builder, signature, arguments):
        return builder.ctpop(arguments[0])

    return types.int64(types.int64), codegen


@compiled()
def squeeze(x, g, m, own, price, old, at):
    """Where ``x`` is not zero: how many places that is, and there ``x``, its gradient, its momentum, and the place; then zeros.

    ``m`` and ``old`` are None where there is no momentum.
    """
    like = x.dtype.type(0)
    size = bytes_of(like)
    lanes = 64 // size
    source, slopes, end, ends, places = address(x), address(g), address(own), address(price), address(at)
    count, whole = 0, x.shape[0] - x.shape[0] % lanes
    for k in range(0, whole, lanes):
        used = used_lanes(source + k * size, like)
        fetch(source + k * size + AHEAD)
        fetch(slopes + k * size + AHEAD)
        move_lanes(source + k * size, used, end + count * size, like)
        move_lanes(slopes + k * size, used, ends + count * size, like)
        if m is not None:
            move_lanes(address(m) + k * size, used, address(old) + count * size, like)
        move_places(k, used, places + count * 4, like)
        count += ones(used)
    for k in range(whole, x.shape[0]):
        own[count], price[count], at[count] = x[k], g[k], k
        if m is not None:
            old[count] = m[k]
        count += x[k] != 0
    store(end + count * size, splat(like))
    store(ends + count * size, splat(like))
    return count
