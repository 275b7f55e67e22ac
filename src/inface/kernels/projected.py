"""Projected in-face steps, compiled by Numba: a gradient step of what a block uses, projected onto the minimal face.

The mathematics is that of ``project_in_face`` of a set and of its ``block_face_project``, letter by letter; the loops follow
:mod:`inface.kernels.loops`. The projection works on a short list of what a block uses. Gradient and momentum are looked at
there and nowhere else; where somebody keeps the list, the weights are too.
"""

# Types are Numba's; its loops are what they are.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, ARG001, C901, PLR0912, PLR0915

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, float32, float64, int32, int64, types, uint64
from numba.cpython.unsafe.numbers import trailing_zeros
from numba.extending import intrinsic

# Numba's cache of this file does not see changes in that one: touch this file after them.
from .loops import (
    AT,
    BALL,
    BOX,
    COLUMNS,
    ENDS,
    GROUPS,
    PIECE,
    PRICES,
    RATES,
    REASSOCIATE,
    ROWS,
    SIMPLEX,
    SLOPES,
    START,
    TAXICAB,
    ULPS,
    VALUES,
    WIDTH,
    G,
    M,
    X,
    average_into,
    bits_of,
    compiled,
    pointer,
    top_magnitude,
)  # fmt: skip
from .vectors import prefetch

__all__ = ["projected_float32", "projected_float64"]

LANES = 32
SUMS = {"reassoc", "nsz"}  # no product is contracted with a sum, so that both paths round alike

# A sum of squares below this has lost digits, or all of them, and is added up again in units of the largest entry.
LEAST = 1e-200


# ---------------------------------------------------------------------- what a row uses


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
    return -(-count // LANES) * LANES


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
    count, zeros = 0, 0
    for q in range(listed.shape[0]):
        zeros += values[q] == 0
    if zeros == 0:  # nearly always, and loops without a choice are vectorised
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


@compiled(fastmath={"reassoc"})
def unfinished(price):
    """Zero if all numbers are finite."""
    rest = price.dtype.type(0)
    for q in range(price.shape[0]):
        rest += price[q] - price[q]
    return rest


@compiled()
def pick_prices(prices, g, at, place, own, price, count):
    """The gradient in those places, from the list or from all of it, and padding; whether it is finite there."""
    rest = own.dtype.type(0)
    if prices.shape[0] == count:
        for q in range(count):
            price[q] = prices[q]
        rest = unfinished(price[:count])
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
    """``x`` and its gradient in those places, then zeros, to a multiple of 32; whether the gradient is finite there."""
    rest = x.dtype.type(0)
    for q in range(count):
        own[q], price[q] = x[at[q]], g[at[q]]
        rest += price[q] - price[q]
    for q in range(count, padded(count)):
        own[q], price[q] = 0, 0
    return rest == 0


@compiled()
def average_listed(m, at, price, count, weight, sign):
    """The momentum in those places takes in the gradient, and is the ``price`` from now on."""
    s, w, rest = m.dtype.type(sign), m.dtype.type(weight), m.dtype.type(1 - weight)
    for q in range(count):
        new, old = s * price[q], m[at[q]]
        if old == old:  # noqa: PLR0124 - NaN is not itself: no average yet
            new = old + w * (new - old) if weight < 0.5 else new - rest * (new - old)
        m[at[q]] = price[q] = new


@compiled()
def forget_listed(x, m, at, count):
    """What is zero now has no momentum any more."""
    for q in range(count):
        if x[at[q]] == 0:
            m[at[q]] = np.nan


# ---------------------------------------------------------------------- the projection of a short list


@compiled()
def shrink(v, held, count, r, on, eps):
    """Make of ``v`` its projection: onto the simplex of sum ``r``, or onto ``{w >= 0, sum w <= r}`` where not ``on``.

    Returns whether the sum is ``r``, and whether something vanished. What rounding leaves of what was to vanish, from what was ``held``, vanishes
    too.
    """
    positive, top = 0.0, -np.inf
    for q in range(count):
        positive += max(v[q], 0.0)
        top = v[q] if not v[q] <= top else top  # a NaN is seen
    onto = on or not positive < r * (1 - ULPS * eps)
    cut = -top
    if onto:
        # Michelot's iteration, measured from the largest one, from those that can be in the end: within r of it.
        total, active = 0.0, 0
        for q in range(count):
            if v[q] - top > -r:
                total += v[q] - top
                active += 1
        while active > 0:
            cut = (total - r) / active
            total, left = 0.0, 0
            for q in range(count):
                if v[q] - top > cut:
                    total += v[q] - top
                    left += 1
            if left == active:
                break
            active = left
    size, least, gone = 0.0, r * ULPS * eps, False
    for q in range(count):
        w = max((v[q] - top) - cut if onto else v[q], 0.0)
        if w <= least and w < abs(float64(held[q])):
            w = 0.0
        gone = gone or w == 0
        v[q] = w
        size += w
    if onto and size > 0:
        scale = r / size
        for q in range(count):
            v[q] *= scale
    return onto, gone


@compiled(inline="always")
def part_of(lr, fall, length, phase):
    """How much of the way to the projection is gone: all of it, unless distances are measured in l1."""
    if phase != TAXICAB or not length > 0:
        return 1.0
    return min(lr * fall / (length * length), 1.0)


# ---------------------------------------------------------------------- rows of l1 balls and simplices


# Loops over a padded list, each a function of its own: together LLVM does not vectorise them.


@compiled(fastmath=SUMS)
def gradient_step(own, price, v, n, sign, lr, r):
    """``v = |x| - lr sign(x) g``; the sums of ``|x|``, of ``v`` and of its positive part; how much is negative, or far."""
    size, total, positive, low, far = 0.0, 0.0, 0.0, 0.0, 0.0
    for q in range(n):
        held, slope = float64(own[q]), sign * float64(price[q])
        end = abs(held) - lr * (slope if held > 0 else -slope)
        size += abs(held)
        total += end
        positive += end if end > 0 else 0.0
        low += 1.0 if held < 0 else 0.0
        far += 0.0 if abs(end) <= 4 * r else 1.0
        v[q] = end
    return size, total, positive, low, far


@compiled(fastmath=SUMS | {"nnan"})
def above_cut(v, n, cut):
    """The sum of what is above the cut, and how much is; nothing is NaN, which makes vectors of it."""
    total, left = 0.0, 0.0
    for q in range(n):
        total += v[q] - cut if v[q] > cut else 0.0
        left += 1.0 if v[q] > cut else 0.0
    return total, left


@compiled(fastmath=SUMS)
def cut_off(own, v, n, cut, least):
    """``max(v - cut, 0)`` in place, its sum, and how much of it is zero; what rounding leaves is zero too."""
    total, gone = 0.0, 0.0
    for q in range(n):
        w = v[q] - cut
        w = 0.0 if (w <= least) & (w < abs(float64(own[q]))) else w
        w = w if w > 0 else 0.0
        gone += 1.0 if w == 0 else 0.0
        total += w
        v[q] = w
    return total, gone


@compiled(fastmath=SUMS)
def round_ends(own, price, v, n, sign, scale):
    """The ends as they will be written, ``<g, x - w>`` and ``|x - w|_1``."""
    real = own.dtype.type
    fall, length = 0.0, 0.0
    for q in range(n):
        held, w = float64(own[q]), v[q] * scale
        new = float64(real(w if held > 0 else 0.0 - w))
        fall += sign * float64(price[q]) * (held - new)
        length += abs(held - new)
        v[q] = new
    return fall, length


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
    return count, unfinished(price[: x.shape[0]]) == 0


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


@compiled()
def hide_zeros(own, v, n, low):
    """Below every cut, where there is nothing."""
    for q in range(n):
        v[q] = v[q] if own[q] != 0 else low


@compiled()
def sparse_row(x, sign, r, lr, phase, family, project, at, own, price, v, count, whole, eps):
    """The step of one row of an l1 ball or a simplex, ``(fall, moved, hit, outside)``, of its short list, or ``whole``."""
    real, n = x.dtype.type, padded(x.shape[0] if whole else count)
    size, total, positive, low, far = gradient_step(own, price, v, n, sign, lr, r)
    outside = r * (1 + ULPS * eps) < size < np.inf
    if family == SIMPLEX:
        outside = size < np.inf and (abs(size - r) > r * ULPS * eps or low > 0)
    on = family == SIMPLEX or size >= r * (1 - ULPS * eps)
    if (outside and project) or count == 0 or (on and count == 1):
        return 0.0, False, False, outside
    onto, gone, scale = on or not positive < r * (1 - ULPS * eps), 0.0, 1.0
    if far > 0:
        if whole:  # somebody makes a list first
            return np.inf, False, False, False
        onto, vanished = shrink(v, own, count, r, on, eps)
        gone += vanished
        for q in range(count, n):
            v[q] = 0.0
    else:
        cut, active = 0.0, float64(count)
        hide_zeros(own, v, n, -8 * r)
        if onto:
            cut = (total - r) / active  # Michelot's iteration
            while True:
                total, left = above_cut(v, n, cut)
                if left >= active or left == 0:
                    break
                cut += (total - r) / left
                active = left
        total, gone = cut_off(own, v, n, cut, r * ULPS * eps)
        gone -= n - count
        scale = r / total if onto and total > 0 else 1.0
    fall, length = round_ends(own, price, v, n, sign, scale)
    if not (0 < fall < np.inf):
        return fall, False, False, outside
    part = part_of(lr, fall, length, phase)
    if part < 1:
        size = 0.0
        for q in range(n):
            v[q] = float64(own[q]) + part * (v[q] - float64(own[q]))
            size += abs(v[q])
        repair = r / size if on or size >= r * (1 - ULPS * eps) else 1.0
        for q in range(n):
            v[q] *= repair
    if whole:
        for q in range(x.shape[0]):
            x[q] = real(v[q] + 0.0)  # no negative zeros
    else:
        for q in range(count):
            x[at[q]] = real(v[q] + 0.0)
    return fall, True, part >= 1 and (gone > 0 or (onto and not on)), outside


# ---------------------------------------------------------------------- rows of boxes


@compiled(fastmath=REASSOCIATE)
def box_ends(x, g, lr, r, edge):
    """``<g, x - w>`` and ``|x - w|_1`` for ``w = clip(x - lr g)``, where entries at a bound stay, and how many arrive at one."""
    real = x.dtype.type
    fall, length, arrived = real(0), real(0), real(0)
    for k in range(x.shape[0]):
        own = x[k]
        free = abs(own) < edge
        end = own - lr * g[k]
        bound = r if end > 0 else -r
        end = bound if abs(end) >= edge else end
        end = end if free else own
        fall += g[k] * (own - end)
        length += abs(own - end)
        arrived += real(1) if free & (abs(end) >= edge) else real(0)
    return fall, length, arrived


@compiled()
def box_write(x, g, lr, r, edge, part):
    real = x.dtype.type
    if part >= 1:
        for k in range(x.shape[0]):
            own = x[k]
            end = own - lr * g[k]
            bound = r if end > 0 else -r
            end = bound if abs(end) >= edge else end
            x[k] = end if abs(own) < edge else own
    else:
        for k in range(x.shape[0]):
            own = x[k]
            end = own - lr * g[k]
            bound = r if end > 0 else -r
            end = bound if abs(end) >= edge else end
            end = end if abs(own) < edge else own
            x[k] = own + real(part) * (end - own)


@compiled()
def box_row(x, g, sign, radius, lr, phase, eps):
    """The step of one row of a box: ``(fall, moved, hit)``."""
    real = x.dtype.type
    r, edge, rate = real(radius), real(radius * (1 - ULPS * eps)), real(sign * lr)
    fall, length, arrived = 0.0, 0.0, 0.0
    for piece in range(0, x.shape[0], PIECE):
        end = min(piece + PIECE, x.shape[0])
        some = box_ends(x[piece:end], g[piece:end], rate, r, edge)
        fall += sign * float64(some[0])
        length += float64(some[1])
        arrived += float64(some[2])
    if not (0 < fall < np.inf):
        return fall, False, False
    part = part_of(lr, fall, length, phase)
    box_write(x, g, rate, r, edge, part)
    return fall, True, arrived > 0 and part >= 1


# ---------------------------------------------------------------------- blocks of groups


@compiled(fastmath=REASSOCIATE)
def inner(g, x):
    total = 0.0
    for k in range(x.shape[0]):
        total += float64(g[k]) * float64(x[k])
    return total


@compiled()
def norm_of(x, bits, mask):
    """``|x|``, also where its square vanishes."""
    top = float64(bits_of(top_magnitude(bits, mask)))
    if top == 0:
        return 0.0
    square = inner(x, x)
    if LEAST < square < np.inf:
        return math.sqrt(square)
    total = 0.0
    for k in range(x.shape[0]):
        total += (float64(x[k]) / top) ** 2
    return top * math.sqrt(total)


@compiled(fastmath=REASSOCIATE)
def way(x, g, a, b):
    """``<g, x - w>`` and ``|x - w|_1`` for ``w = a x + b g``."""
    fall, length = 0.0, 0.0
    for k in range(x.shape[0]):
        d = float64(x[k]) - (a * float64(x[k]) + b * float64(g[k]))
        fall += float64(g[k]) * d
        length += abs(d)
    return fall, length


@compiled(fastmath=REASSOCIATE)
def pushed_norm(x, g, b):
    """``|x + b g|``."""
    total = 0.0
    for k in range(x.shape[0]):
        end = float64(x[k]) + b * float64(g[k])
        total += end * end
    return math.sqrt(total)


@compiled()
def write_along(x, g, a, b):
    """``a x + b g`` in place; exact zeros where both are 0, whatever is in ``g``."""
    if b == 0:
        for k in range(x.shape[0]):
            x[k] = x.dtype.type(a * float64(x[k]))
    else:
        for k in range(x.shape[0]):
            x[k] = x.dtype.type(a * float64(x[k]) + b * float64(g[k]))


@compiled()
def group_block(x, g, sign, r, lr, phase, on, norms, at, v, held, eps):
    """The step of one block of a group-l1 ball or an l2 ball: ``(fall, moved, hit)``."""
    groups, width, count = x.shape[0], x.shape[1], 0
    turns = not on and width > 1  # inside, directions are free
    for j in range(groups):
        if norms[j] > 0 or (turns and groups == 1):
            at[count] = j
            held[count] = norms[j]
            if turns:
                v[count] = pushed_norm(x[j], g[j], -sign * lr)
            elif width == 1:
                price = sign * float64(g[j, 0])
                v[count] = norms[j] - lr * (price if x[j, 0] > 0 else -price)
            else:
                v[count] = norms[j] - lr * sign * (inner(g[j], x[j]) / norms[j])
            count += 1
    if count == 0 or (on and count == 1):
        return 0.0, False, False
    # From here on ``held`` is what a group is scaled by to become a unit of its direction.
    lengths = v[:count].copy()
    onto, gone = shrink(v, held, count, r, on, eps)
    fall, length = 0.0, 0.0
    for q in range(count):
        j = at[q]
        unit = lengths[q] if turns else norms[j]
        a = v[q] / unit if unit > 0 else 0.0
        b = -sign * lr * a if turns else 0.0
        some = way(x[j], g[j], a, b)
        fall += sign * some[0]
        length += some[1]
        v[q], held[q] = a, b
    if not (0 < fall < np.inf):
        return fall, False, False
    part = part_of(lr, fall, length, phase)
    for q in range(count):
        a, b = v[q], held[q]
        if part < 1:
            a, b = 1 + part * (a - 1), part * b
        write_along(x[at[q]], g[at[q]], a, b)
    return fall, True, part >= 1 and (gone or (onto and not on))


# ---------------------------------------------------------------------- all blocks


@compiled()
def block(x, xb, gb, g, m, sign, weight, r, lr, family, phase, project, scratch, at, mask, infinite, eps):
    """The step of one block that is no row of a short list, ``(fall, moved, hit, outside)``."""
    v, held, norms = scratch[0], scratch[1], scratch[2]
    size = 0.0
    if family == BOX:
        size = float64(bits_of(top_magnitude(xb[0], mask)))
        norms[0] = 1.0
    else:
        for j in range(x.shape[0]):
            norms[j] = norm_of(x[j], xb[j], mask)
            size += norms[j]
    for j in range(x.shape[0]):
        if (norms[j] > 0 or x.shape[0] == 1) and not top_magnitude(gb[j], mask) < infinite:
            return np.nan, False, False, False
    if weight > 0:
        for j in range(x.shape[0]):
            if norms[j] > 0 or x.shape[0] == 1:
                average_into(m[j], g[j], weight, sign)
        g, sign = m, 1.0
    outside = r * (1 + ULPS * eps) < size < np.inf
    if outside and project:
        return 0.0, False, False, True
    if family == BOX:
        fall, moved, hit = box_row(x[0], g[0], sign, r, lr, phase, eps)
    else:
        on = size >= r * (1 - ULPS * eps)
        fall, moved, hit = group_block(x, g, sign, r, lr, phase, on, norms, at, v, held, eps)
        if weight > 0 and hit:
            for j in range(x.shape[0]):
                if norms[j] > 0 and top_magnitude(xb[j], mask) == 0 and x.shape[0] > 1:
                    m[j, :] = np.nan
    return fall, moved, hit, outside


@compiled()
def all_blocks(
    x,
    xb,
    g,
    gb,
    m,
    radii,
    rates,
    slopes,
    counts,
    listed,
    ends,
    values,
    prices,
    weight,
    sign,
    first,
    groups,
    family,
    phase,
    project,
    mask,
    infinite,
    eps,
):
    """The step on every block from ``first`` on, with marks and counts as ``all_rows`` makes them; ``rates`` are ``lr``.

    Gradients and momentum are looked at where the step looks at them: at what a block uses.
    """
    longest = padded(max(x.shape[1], groups) + 1)
    # Views of an address: passing on what is counted by reference costs as much as a short row.
    memory = np.empty(7 * longest)
    scratch = carray(pointer(int64(memory.ctypes.data)), (3, longest), np.float64)
    short = carray(pointer(int64(memory[3 * longest :].ctypes.data)), (2, longest), x.dtype)
    at = carray(pointer(int64(memory[5 * longest :].ctypes.data)), (longest,), np.int64)
    place = carray(pointer(int64(memory[6 * longest :].ctypes.data)), (longest,), np.int64)
    start = int64(x.ctypes.data)
    for i in range(first, slopes.shape[0]):
        begin, end = i * groups, (i + 1) * groups
        r, turn = radii[i if radii.shape[0] > 1 else 0], sign
        slopes[i] = 0.0
        if r == np.inf:
            continue
        if family in (BALL, SIMPLEX):
            compact, whole = values.shape[0] > 0, False
            own = values[ends[i] : ends[i + 1]] if compact else values
            if compact:
                if i + 2 < ends.shape[0]:  # the next row is written to when this one is computed
                    for q in range(ends[i + 1], ends[i + 2]):
                        prefetch(start + ((i + 1) * x.shape[1] + int64(listed[q])) * x.itemsize)
                count = pick_values(own, listed[ends[i] : ends[i + 1]], at, place, short[0])
                known = prices[ends[i] : ends[i + 1]] if prices.shape[0] else prices
                finite = pick_prices(known, g[i], at, place, short[0], short[1], count)
            else:
                if ends.shape[0] == 0:  # a row that is mostly in use is its own list
                    count, finite = whole_row(x[i], g[i], short[0], short[1])
                    whole = 5 * count > x.shape[1]
                if not whole:
                    count = pick(x[i], listed[ends[i] : ends[i + 1]], at) if ends.shape[0] else find(x[i], at)
                    finite = gather(x[i], g[i], at, short[0], short[1], count)
            fall, moved, hit, outside = np.nan, False, False, False
            if finite:
                if weight > 0:
                    if whole:
                        average_whole(x[i], m[i], short[1], weight, sign)
                    else:
                        average_listed(m[i], at, short[1], count, weight, sign)
                    turn = 1.0
                fall, moved, hit, outside = sparse_row(
                    x[i],
                    turn,
                    r,
                    rates[i],
                    phase,
                    family,
                    project,
                    at,
                    short[0],
                    short[1],
                    scratch[0],
                    count,
                    whole,
                    eps,
                )
                if whole and (hit or fall == np.inf):
                    find(short[0][: x.shape[1]], at)
                if whole and fall == np.inf:  # a step so long that it has to be taken from a list
                    for q in range(count):
                        short[0, q], short[1, q] = short[0, at[q]], short[1, at[q]]
                    for q in range(count, padded(count)):
                        short[0, q], short[1, q] = 0, 0
                    fall, moved, hit, outside = sparse_row(
                        x[i],
                        turn,
                        r,
                        rates[i],
                        phase,
                        family,
                        project,
                        at,
                        short[0],
                        short[1],
                        scratch[0],
                        count,
                        False,
                        eps,
                    )
                if weight > 0 and hit:
                    forget_listed(x[i], m[i], at, count)
                if compact and moved:
                    for q in range(count):
                        own[place[q]] = x[i, at[q]]
        else:
            fall, moved, hit, outside = block(
                x[begin:end], xb[begin:end], gb[begin:end], g[begin:end], m[begin:end], turn, weight, r, rates[i], family,
                phase, project, scratch, at, mask, infinite, eps,
            )  # fmt: skip
        if outside:
            counts[3] += 1
            if project:
                slopes[i] = -1.0
                continue
        if not math.isfinite(fall):
            counts[2] += 1
            continue
        slopes[i] = -1 - max(fall, 0.0) if outside else max(fall, 0.0)
        counts[0] += moved
        counts[1] += hit
    memory[0] = 0  # until here nobody may let go of it


@compiled(entry=True)
def projected_float32(
    table, layers, first, last, radii, many_radii, weight, most, sign, family, counts, phase, project
):
    """The step on blocks ``first`` to ``last`` of float32 memory; arguments are those of ``rows_float32``."""
    lines = carray(pointer(table), (layers, COLUMNS), int64)
    for i in range(layers):
        line = lines[i]
        begin, end = max(first - line[START], 0), min(last - line[START], line[ROWS])
        if line[X] == 0 or begin >= end:
            continue
        n = (end * line[GROUPS], line[WIDTH])
        all_blocks(
            carray(pointer(line[X]), n, float32), carray(pointer(line[X]), n, int32),
            carray(pointer(line[G]), n, float32), carray(pointer(line[G]), n, int32),
            carray(pointer(line[M]), n, float32),
            carray(pointer(radii), (end if many_radii else 1,), float64),
            carray(pointer(line[RATES]), (end,), float64), carray(pointer(line[SLOPES]), (end,), float64),
            carray(pointer(counts), (4,), int64),
            carray(pointer(line[AT]), (carray(pointer(line[ENDS]), (end + 1,), int64)[end] if line[ENDS] else 0,), int32),
            carray(pointer(line[ENDS]), (end + 1 if line[ENDS] else 0,), int64),
            carray(pointer(line[VALUES]), (carray(pointer(line[ENDS]), (end + 1,), int64)[end] if line[VALUES] else 0,), float32),
            carray(pointer(line[PRICES]), (carray(pointer(line[ENDS]), (end + 1,), int64)[end] if line[PRICES] else 0,), float32),
            weight, sign, begin, line[GROUPS], family, phase, project, int32(0x7FFFFFFF), int32(0x7F800000), 2.0**-23,
        )  # fmt: skip


@compiled(entry=True)
def projected_float64(
    table, layers, first, last, radii, many_radii, weight, most, sign, family, counts, phase, project
):
    """The step on blocks ``first`` to ``last`` of float64 memory; arguments are those of ``rows_float64``."""
    lines = carray(pointer(table), (layers, COLUMNS), int64)
    for i in range(layers):
        line = lines[i]
        begin, end = max(first - line[START], 0), min(last - line[START], line[ROWS])
        if line[X] == 0 or begin >= end:
            continue
        n = (end * line[GROUPS], line[WIDTH])
        all_blocks(
            carray(pointer(line[X]), n, float64), carray(pointer(line[X]), n, int64),
            carray(pointer(line[G]), n, float64), carray(pointer(line[G]), n, int64),
            carray(pointer(line[M]), n, float64),
            carray(pointer(radii), (end if many_radii else 1,), float64),
            carray(pointer(line[RATES]), (end,), float64), carray(pointer(line[SLOPES]), (end,), float64),
            carray(pointer(counts), (4,), int64),
            carray(pointer(line[AT]), (carray(pointer(line[ENDS]), (end + 1,), int64)[end] if line[ENDS] else 0,), int32),
            carray(pointer(line[ENDS]), (end + 1 if line[ENDS] else 0,), int64),
            carray(pointer(line[VALUES]), (carray(pointer(line[ENDS]), (end + 1,), int64)[end] if line[VALUES] else 0,), float64),
            carray(pointer(line[PRICES]), (carray(pointer(line[ENDS]), (end + 1,), int64)[end] if line[PRICES] else 0,), float64),
            weight, sign, begin, line[GROUPS], family, phase, project, int64(0x7FFFFFFFFFFFFFFF), int64(0x7FF0000000000000),
            2.0**-52,
        )  # fmt: skip
