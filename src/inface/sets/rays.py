"""How far a ray may go before a norm exceeds the radius."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .base import spread

__all__ = ["box_ray", "norm_ray"]

# A convex function met from above: quadratic convergence where it is smooth, one linear piece a turn where it is not.
TURNS = 100


def norm_ray(
    value_and_slope: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    x: Tensor,
    d: Tensor,
    radius: Tensor,
    eps: float,
    start: Tensor | None = None,
) -> Tensor:
    """The largest ``a >= 0`` with ``|x + a d| <= radius``, per block, by Newton's method from the right.

    ``value_and_slope(y, d)`` gives the norm of ``y`` and its one-sided derivative along ``d``. The norm is convex
    along the ray, so the iterates fall monotonically to the root. From a point of the boundary, a slope below
    ``8 eps (radius + |d|)`` is flat: the ray runs inside a face there, and what is left of the distance is rounding
    (unless it is far more than rounding makes, with a ``d`` too small to tell).
    """
    size, _ = value_and_slope(x, d)
    length, _ = value_and_slope(d, d)
    still = length == 0
    flat = torch.where(size < radius * (1 - 8 * eps), 0, 8 * eps * (radius + length))
    at = (radius + size) / torch.where(still, 1, length) if start is None else start
    for _ in range(TURNS):
        value, slope = value_and_slope(x + spread(at, x).to(x.dtype) * d, d)
        excess = value - radius
        steep = (slope > flat) | ((excess > eps**0.5 * radius) & (slope > 0))
        outside = (excess > 8 * eps * (radius + at * length)) & steep & (at > 0)
        if not bool(outside.any()):
            break
        at = torch.where(outside, (at - excess / torch.where(slope > 0, slope, 1)).clamp(min=0), at)
    return torch.where(still, torch.inf, at)


def box_ray(x: Tensor, d: Tensor, radius: Tensor) -> Tensor:
    """The largest ``a >= 0`` with every ``|x_j + a d_j| <= radius``, per block."""
    r = spread(radius, x)
    room = (r - torch.where(d < 0, -x, x)).clamp(min=0)
    steps = torch.where(d != 0, room / torch.where(d != 0, d.abs(), 1), torch.inf)
    return steps.flatten(1).amin(1)
