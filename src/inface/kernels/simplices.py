"""Projected steps of rows of l1 balls and simplices, taken on a short list of what a row uses."""

# Types are Numba's; its loops are what they are.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, C901, PLR0912

from __future__ import annotations

import numpy as np
from numba import float64

# Numba's cache of a file does not see changes in another: touch projected.py after this one.
from .lanes import EIGHT, address, bytes_of, many, narrow, put_narrow, sum_of, where, wide, zeros
from .loops import SIMPLEX, TAXICAB, ULPS, compiled
from .short import padded

__all__ = ["part_of", "shrink", "sparse_row"]


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


# ---------------------------------------------------------------------- passes over a padded list


@compiled()
def gradient_step(own, price, v, n, sign, lr, r):
    """``v = |x| - lr sign(x) g``, and below every cut where there is nothing.

    Returns the sums of ``|x|``, of ``v`` and of its positive part, how much of ``x`` is negative, and how much of ``v`` is far.
    """
    like, at, prices, out = own.dtype.type(0), address(own), address(price), address(v)
    step = bytes_of(like)
    size, total, positive, low, near = zeros(), zeros(), zeros(), 0, 0
    for q in range(0, n, EIGHT):
        held, slope = wide(at + q * step, like), wide(prices + q * step, like) * sign
        magnitude = abs(held)
        end = magnitude - where(held > 0.0, slope, 0.0 - slope) * lr
        size = size + magnitude
        total = total + end
        positive = positive + where(end > 0.0, end, 0.0)
        low += many(held < 0.0)
        near += many(abs(end) <= 4 * r)
        put_narrow(out + q * 8, where(magnitude > 0.0, end, -8 * r), 0.0)
    return sum_of(size), sum_of(total), sum_of(positive), low, n - near


@compiled()
def above_cut(v, n, cut):
    """The sum of what is above the cut, and how much is."""
    at, total, left = address(v), zeros(), 0
    for q in range(0, n, EIGHT):
        over = wide(at + q * 8, 0.0) - cut
        total = total + where(over > 0.0, over, 0.0)
        left += many(over > 0.0)
    return sum_of(total), left


@compiled()
def ends_of(own, price, v, end, n, sign, cut, least, scale):
    """The ends ``max(v - cut, 0)``, scaled, as they will be written; what rounding leaves is zero too.

    Returns the sum before it is scaled, how much of it is not zero, and ``<g, x - end>``.
    """
    like, at, prices, values, out = own.dtype.type(0), address(own), address(price), address(v), address(end)
    step = bytes_of(like)
    total, left, fall = zeros(), 0, zeros()
    for q in range(0, n, EIGHT):
        held, slope, w = wide(at + q * step, like), wide(prices + q * step, like), wide(values + q * 8, 0.0) - cut
        w = where((w <= least) & (w < abs(held)), 0.0, w)
        w = where(w > 0.0, w, 0.0)
        left += many(w > 0.0)
        total = total + w
        w = w * scale
        new = narrow(where(held > 0.0, w, 0.0 - w), like) + 0.0  # no negative zeros
        fall = fall + slope * (held - new)
        put_narrow(out + q * step, new, like)
    return sum_of(total), left, sign * sum_of(fall)


@compiled(fastmath={"reassoc", "nsz"})
def way_to(own, end, n):
    """``|x - end|_1``."""
    length = 0.0
    for q in range(n):
        length += abs(float64(own[q]) - float64(end[q]))
    return length


# ---------------------------------------------------------------------- a row


@compiled()
def sparse_row(x, sign, r, lr, phase, family, project, at, short, v, count, whole, eps):
    """The step of one row of an l1 ball or a simplex, ``(fall, moved, hit, outside)``, of its short list, or ``whole``.

    ``short`` is the list: numbers, gradients, momentum if there is any, and where the ends go; ``v`` is room.
    """
    own, price, end = short[0], short[1], short[3]
    real, n = x.dtype.type, padded(x.shape[0] if whole else count)
    size, total, positive, low, far = gradient_step(own, price, v, n, sign, lr, r)
    outside = r * (1 + ULPS * eps) < size < np.inf
    if family == SIMPLEX:
        outside = size < np.inf and (abs(size - r) > r * ULPS * eps or low > 0)
    on = family == SIMPLEX or size >= r * (1 - ULPS * eps)
    if (outside and project) or count == 0 or (on and count == 1):
        return 0.0, False, False, outside
    onto, cut, least, vanished = on or not positive < r * (1 - ULPS * eps), 0.0, r * ULPS * eps, False
    if far > 0:  # so far away that sums would lose digits
        if whole:  # somebody makes a list first
            return np.inf, False, False, False
        for q in range(count):
            if not abs(v[q]) < np.inf:  # nobody knows where that ends
                return np.nan, False, False, outside
        onto, vanished = shrink(v, own, count, r, on, eps)
        for q in range(count, n):
            v[q] = 0.0
        least = 0.0
    elif onto:
        cut, active = (total - r) / count, count
        while True:  # Michelot's iteration
            total, left = above_cut(v, n, cut)
            if left >= active or left == 0:
                break
            cut += (total - r) / left
            active = left
    total, left, fall = ends_of(own, price, v, end, n, sign, cut, least, 1.0)
    if onto and far == 0 and total > 0 and abs(total - r) > 2.0**-10 * eps * r:
        _, left, fall = ends_of(own, price, v, end, n, sign, cut, least, r / total)
    if not (0 < fall < np.inf):
        return fall, False, False, outside
    part = part_of(lr, fall, way_to(own, end, n) if phase == TAXICAB else 0.0, phase)
    if part < 1:
        size = 0.0
        for q in range(n):
            v[q] = float64(own[q]) + part * (float64(end[q]) - float64(own[q]))
            size += abs(v[q])
        repair = r / size if on or size >= r * (1 - ULPS * eps) else 1.0
        for q in range(n):
            end[q] = real(v[q] * repair + 0.0)
    if whole:
        for q in range(x.shape[0]):
            x[q] = end[q]
    else:
        for q in range(count):
            x[at[q]] = end[q]
    return fall, True, part >= 1 and (vanished or left < count or (onto and not on)), outside
