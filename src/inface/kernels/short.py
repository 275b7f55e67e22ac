"""What a row uses, side by side: its places, its numbers and their gradients, and zeros to a multiple of eight."""

# Types are Numba's; its loops are what they are.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ARG001

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import int64, types, uint64
from numba.cpython.unsafe.numbers import trailing_zeros
from numba.extending import intrinsic

# Numba's cache of a file does not see changes in another: touch projected.py and listing.py after this one.
from .lanes import EIGHT, address, bytes_of, sum_of, wide, zeros
from .loops import compiled

__all__ = [
    "LANES", "average_short", "average_whole", "find", "forget_listed", "gather", "keep_average", "padded", "pick", "pick_prices", "pick_values",
    "unfinished", "whole_row",
]  # fmt: skip

LANES = 32


@intrinsic
def nonzero_bits(typing_context: Any, address: Any, zero: Any) -> Any:
    """Which of the 32 floats at an address are not zero, as bits: one comparison of vectors, which no loop becomes."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = context.get_value_type(signature.args[1])
        vector = ir.VectorType(kind, LANES)
        place = builder.inttoptr(arguments[0], vector.as_pointer())
        held = builder.load(place, align=signature.args[1].bitwidth // 8)
        differ = builder.fcmp_unordered("!=", held, ir.Constant(vector, [0.0] * LANES))
        return builder.zext(builder.bitcast(differ, ir.IntType(LANES)), ir.IntType(64))

    return types.uint64(types.int64, zero), codegen


@compiled(inline="always")
def padded(count):
    """How long a list is with its padding: loops over it have no remainder, which would cost more than they do."""
    return -(-count // EIGHT) * EIGHT


@compiled()
def find(x, at):
    """Write down where ``x`` is not zero; how many places that is."""
    count, whole = 0, x.shape[0] - x.shape[0] % LANES
    address, size, zero = x.ctypes.data, x.itemsize, x.dtype.type(0)
    for piece in range(0, whole, LANES):
        found = nonzero_bits(int64(address + piece * size), zero)
        while found != uint64(0):
            at[count] = piece + trailing_zeros(found)
            count += 1
            found &= found - uint64(1)
    for k in range(whole, x.shape[0]):
        at[count] = k
        count += x[k] != 0
    return count


@compiled()
def pick(x, listed, at):
    """The places of a list where ``x`` is still not zero; how many these are."""
    count = 0
    for q in range(listed.shape[0]):
        at[count] = listed[q]
        count += x[listed[q]] != 0
    return count


@compiled()
def pick_values(values, listed, at, place, own):
    """The same where the numbers of the list are at hand, with their places in it; also writes down the numbers."""
    count, none = 0, 0
    for q in range(listed.shape[0]):
        none += values[q] == 0
    if none == 0:  # nearly always, and loops without a choice are vectorised
        for q in range(listed.shape[0]):
            at[q] = listed[q]
        for q in range(listed.shape[0]):
            place[q] = q
        for q in range(listed.shape[0]):
            own[q] = values[q]
        return listed.shape[0]
    for q in range(listed.shape[0]):
        at[count], place[count], own[count] = listed[q], q, values[q]
        count += values[q] != 0
    return count


@compiled()
def unfinished(price, n):
    """Zero if all numbers of a padded list are finite."""
    like, at, rest = price.dtype.type(0), address(price), zeros()
    step = bytes_of(like)
    for q in range(0, n, EIGHT):
        some = wide(at + q * step, like)
        rest = rest + (some - some)
    return sum_of(rest)


@compiled()
def pick_prices(prices, g, at, place, own, price, count):
    """The gradient in those places, from the list or from all of it, and padding; whether it is finite there."""
    rest = own.dtype.type(0)
    if prices.shape[0] == count:
        for q in range(count):
            price[q] = prices[q]
        for q in range(count, padded(count)):
            price[q] = 0
        rest = unfinished(price, padded(count))
    elif prices.shape[0]:
        for q in range(count):
            price[q] = prices[place[q]]
            rest += price[q] - price[q]
    else:
        for q in range(count):
            price[q] = g[at[q]]
            rest += price[q] - price[q]
    for q in range(count, padded(count)):
        own[q], price[q] = 0, 0
    return rest == 0


@compiled()
def gather(x, g, at, own, price, count):
    """``x`` and its gradient in those places, then zeros, to a multiple of eight; whether the gradient is finite there."""
    rest = x.dtype.type(0)
    for q in range(count):
        own[q], price[q] = x[at[q]], g[at[q]]
        rest += price[q] - price[q]
    for q in range(count, padded(count)):
        own[q], price[q] = 0, 0
    return rest == 0


@compiled()
def average_short(price, old, count, weight, sign):
    """The gradient taken into the momentum that was ``old``: that is the ``price`` from now on."""
    s, w, rest = price.dtype.type(sign), price.dtype.type(weight), price.dtype.type(1 - weight)
    for q in range(count):
        new = s * price[q]
        mixed = old[q] + w * (new - old[q]) if weight < 0.5 else new - rest * (new - old[q])
        price[q] = mixed if old[q] == old[q] else new


@compiled()
def keep_average(x, m, at, price, count):
    """Write the averages down; what is zero now has no momentum any more."""
    for q in range(count):
        m[at[q]] = price[q] if x[at[q]] != 0 else x.dtype.type(np.nan)


@compiled()
def forget_listed(x, m, at, count):
    """What is zero now has no momentum any more."""
    for q in range(count):
        m[at[q]] = m[at[q]] if x[at[q]] != 0 else x.dtype.type(np.nan)


@compiled()
def whole_row(x, g, own, price):
    """A row with its gradient where it is not zero, instead of a list; how much is not, and whether the gradient is finite there."""
    zero = x.dtype.type(0)
    count = 0
    for k in range(x.shape[0]):
        own[k] = x[k]
    for k in range(x.shape[0]):
        price[k] = g[k] if x[k] != zero else zero
    for k in range(x.shape[0]):
        count += 1 if x[k] != zero else 0
    for k in range(x.shape[0], padded(x.shape[0])):
        own[k], price[k] = zero, zero
    return count, unfinished(price, padded(x.shape[0])) == 0


@compiled()
def average_whole(x, m, price, weight, sign):
    """The momentum takes in the gradient where the row is not zero, and is the ``price`` there."""
    s, w, rest = m.dtype.type(sign), m.dtype.type(weight), m.dtype.type(1 - weight)
    zero = x.dtype.type(0)
    for k in range(x.shape[0]):
        new, old = s * price[k], m[k]
        mixed = old + w * (new - old) if weight < 0.5 else new - rest * (new - old)
        new = mixed if old == old else new  # noqa: PLR0124 - NaN is not itself: no average yet
        m[k] = new if x[k] != zero else old
        price[k] = new if x[k] != zero else zero
