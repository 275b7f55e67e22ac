"""How far a ray may go before a norm exceeds the radius.

A ray inside a face leaves it by rounding alone: the direction is the difference of two points, each off by some eps of
the radius. :func:`in_face` says which rises are rounding.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..linalg import power_of_two
from .base import ULPS, can_look, spread

__all__ = ["box_ray", "in_face", "l1_ray_start", "norm_ray"]

# A convex function met from above: quadratic convergence where it is smooth, one linear piece a turn where it is not.
TURNS = 100


def in_face(rise: Tensor, radius: Tensor, length: Tensor, eps: float) -> Tensor:
    """Whether a norm that rises that fast along a direction of that length is constant, up to rounding.

    Rounding makes rises of at most ``8 eps (radius + length)``. In a short direction that points out of the set so small
    a rise is real: it counts only if it is also less than ``sqrt(eps)`` of the length, so that no step ends farther
    outside than that.
    """
    return (rise <= ULPS * eps * (radius + length)) & (rise <= eps**0.5 * length)


def norm_ray(
    value_and_slope: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    x: Tensor,
    d: Tensor,
    radius: Tensor,
    eps: float,
    start: Tensor | None = None,
    turns: int = TURNS,
) -> Tensor:
    """The largest ``a >= 0`` with ``|x + a d| <= radius``, per block, by Newton's method from the right.

    ``value_and_slope(y, d)`` gives the norm of ``y`` and its one-sided derivative along ``d``. The norm is convex
    along the ray, so the iterates fall monotonically to the root. From a point of the boundary, a slope that is rounding
    (see :func:`in_face`) is taken off along the whole ray; what a norm gains by its curvature stays. ``start`` is a number to
    the right of the root, if one is known; it must be close if ``turns`` are few.
    """
    # Powers of two, so that nothing is rounded: no square vanishes or overflows, whatever the radius and the direction.
    unit, stride = power_of_two(radius), power_of_two(d.abs().flatten(1).amax(1)).to(radius.dtype)
    x, d = (x / spread(unit, x)).to(x.dtype), (d / spread(stride, d)).to(d.dtype)
    radius, scale = radius / unit, unit / stride
    size, rise = value_and_slope(x, d)
    length, _ = value_and_slope(d, d)
    still = length == 0
    on = size >= radius * (1 - ULPS * eps)
    drift = torch.where(on & in_face(rise, radius * scale, length, eps), rise.clamp(min=0), 0)
    # A point that is outside by rounding may stay there, and half of what counts as inside is left to the caller's rounding.
    allowed = torch.minimum(torch.maximum(radius, size) + ULPS / 2 * eps * radius, radius * (1 + ULPS * eps))
    # A direction that is rounding as a whole, as that from a vertex to itself, may use up what counts as inside.
    goal = torch.where(length <= ULPS * eps * radius * scale, allowed - eps * radius, radius)
    at = 2 * (radius + size) / torch.where(still, 1, length) if start is None else start / scale
    for _ in range(turns):
        value, slope = value_and_slope(x + spread(at, x).to(x.dtype) * d, d)
        value, slope = value - at * drift, slope - drift
        outside = (value > allowed) & (at > 0)
        if can_look(x) and not bool(outside.any()):
            break
        newton = (at - (value - goal) / torch.where(slope > 0, slope, 1)).clamp(min=0)
        at = torch.where(outside, torch.where(slope > 0, newton, at / 2), at)
    return torch.where(still, torch.inf, at * scale)


def l1_ray_start(x: Tensor, d: Tensor, radius: Tensor) -> Tensor:
    """The ``a`` at which ``|x + a d|_1`` exceeds the radius, per block of vectors, up to the rounding of a sum in order.

    The norm is linear between the places where an entry crosses zero. With these in order its values there are known, and no
    loop has to look whether it is done: a start for :func:`norm_ray` on a device.
    """
    crosses = x * d < 0
    at, order = torch.where(crosses, -x / torch.where(crosses, d, 1), torch.inf).sort(1)
    bends = torch.where(crosses, 2 * d.abs(), 0).gather(1, order)
    known = torch.where(torch.isfinite(at), at, 0)
    rises, offsets = (torch.nn.functional.pad(numbers.cumsum(1), (1, 0)) for numbers in (bends, bends * known))
    size, slope = x.abs().sum(1, keepdim=True), torch.where(x != 0, x.sign() * d, d.abs()).sum(1, keepdim=True)
    values = size + (slope + rises[:, :-1]) * known - offsets[:, :-1]
    piece = (torch.isfinite(at) & (values <= spread(radius, x))).sum(1, keepdim=True)
    slope = slope + rises.gather(1, piece)
    root = (spread(radius, x) - size + offsets.gather(1, piece)) / torch.where(slope > 0, slope, 1)
    return (root * (1 + 1e-9)).clamp(min=0).squeeze(1)


def box_ray(x: Tensor, d: Tensor, radius: Tensor, eps: float) -> Tensor:
    """The largest ``a >= 0`` with every ``|x_j + a d_j| <= radius``, per block; entries at a bound stay up to rounding."""
    r, size = spread(radius, x), d.abs()
    room = (r - torch.where(d < 0, -x, x)).clamp(min=0)
    stays = (room <= ULPS * eps * r) & in_face(size, r, size.amax(1, keepdim=True), eps)
    steps = torch.where(stays | (d == 0), torch.inf, room / torch.where(d != 0, size, 1))
    return steps.amin(1)
