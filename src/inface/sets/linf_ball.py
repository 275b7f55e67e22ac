"""The box: bounded weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .base import Decision, FaceProjection, Move, Set, dot, spread, wide
from .norms import NormName
from .rays import box_ray

__all__ = ["LInfBall"]

# The norm of n entries of size one is n to this power.
POWERS: dict[NormName, float] = {"l2": 0.5, "l1": 1, "linf": 0}


@dataclass
class BoxMove(Move):
    """A move of the coordinates that are not at a bound.

    An extreme point is a vector of signs, implied by the gradient, so nothing but the gradient is kept.
    """

    g: Tensor
    free: Tensor


class Toward(BoxMove):
    """``d = v - x``"""


class Away(BoxMove):
    """``d = x - w``"""


class Pairwise(BoxMove):
    """``d = v - w``"""


class LInfBall(Set):
    """``{x : max_j |x_j| <= radius}``, by default one box per output node.

    Its extreme points are sign vectors. In the minimal face the coordinates at a bound stay where they are.

    >>> import torch
    >>> LInfBall(0.5).vertex(torch.tensor([[1.0, -3.0, 0.0]]))
    tensor([[-0.5000,  0.5000,  0.5000]])
    """

    kind = "linf"
    kernel = "box"

    def toward(self, x: Tensor, g: Tensor) -> Toward:
        everywhere = torch.ones_like(x, dtype=torch.bool)
        slope = dot(g, x - self._signs(g))
        return Toward(slope=slope, limit=torch.ones_like(slope), g=g, free=everywhere)

    def within(self, x: Tensor, g: Tensor) -> Toward:
        free = self._free(x)
        slope = dot(g, torch.where(free, x - self._signs(g), 0))
        return Toward(slope=slope, limit=torch.ones_like(slope), g=g, free=free)

    def away(self, x: Tensor, g: Tensor) -> Away:
        free = self._free(x)
        slope = dot(g, torch.where(free, self._signs(-g) - x, 0))
        ratios = torch.where(free, self._ratios(x, g), torch.inf)
        return Away(slope=slope, limit=ratios.amin(1).to(wide(x)), g=g, free=free)

    def pairwise(self, x: Tensor, g: Tensor) -> Pairwise:
        free = self._free(x)
        slope = 2 * dot(g, torch.where(free, self._signs(-g), 0))
        room = torch.where(free & (g != 0), self._room(x, g), torch.inf).amin(1).to(wide(x))
        return Pairwise(slope=slope, limit=room / (2 * self.r(x)), g=g, free=free)

    def apply(self, x: Tensor, move: Move, decision: Decision) -> Tensor:
        if not isinstance(move, BoxMove):
            return super().apply(x, move, decision)
        t = spread(decision.step, x).to(x.dtype)
        best, worst = self._signs(move.g), self._signs(-move.g)
        r = spread(self.r(x), x).to(x.dtype)
        if isinstance(move, Toward):
            # lerp leaves an entry that is already at its end alone, and arrives exactly at a step of one.
            end = torch.lerp(x, best, t)
        elif isinstance(move, Away):
            end = torch.minimum((x + t * (x - worst)).maximum(-r), r)
            arrived = self._ratios(x, move.g) <= t * (1 + self.tolerance(x))
            end = torch.where(arrived & spread(decision.hit, x), -worst, end)
        else:
            end = torch.minimum((x + t * (best - worst)).maximum(-r), r)
            arrived = (self._room(x, move.g) <= 2 * r * t * (1 + self.tolerance(x))) & (move.g != 0)
            end = torch.where(arrived & spread(decision.hit, x), best, end)
        return torch.where(move.free & (t > 0), end, x)

    def dense_vertex(self, g: Tensor) -> Tensor:
        return self._signs(g)

    def dense_face_vertex(self, x: Tensor, g: Tensor) -> Tensor:
        return torch.where(self._free(x), self._signs(g), x)

    def block_face_project(self, x: Tensor, y: Tensor) -> FaceProjection:
        """The coordinates at a bound stay; the others are cut at the bounds."""
        free = self._free(x)
        end = snap_to_bounds(y.to(x.dtype), spread(self.r(x), x), self.tolerance(x))
        return FaceProjection(torch.where(free, end, x), (free & ~self._free(end)).any(1))

    def ray(self, x: Tensor, d: Tensor) -> Tensor:
        return box_ray(x.to(wide(x)), d.to(wide(d)), self.r(x), torch.finfo(x.dtype).eps)

    def land(self, x: Tensor, end: Tensor, hit: Tensor) -> Tensor:  # noqa: ARG002 - a bound is a bound
        return snap_to_bounds(end, spread(self.r(x), x), self.tolerance(x))

    def onto_boundary(self, x: Tensor, smaller: Tensor, larger: Tensor) -> Tensor:
        return onto_bounds(x, smaller, larger, spread(self.r(x), x))

    def block_norm(self, x: Tensor) -> Tensor:
        return x.abs().amax(1).to(wide(x))

    def block_project(self, x: Tensor) -> Tensor:
        r = spread(self.r(x), x).to(x.dtype)
        return torch.minimum(x.maximum(-r), r)

    def diameter(self, block_shape: torch.Size) -> float | Tensor:
        return 2 * self.radius * block_shape.numel() ** POWERS[self.norm_name]

    def _signs(self, g: Tensor) -> Tensor:
        """The vertex that minimises ``<g, v>``; positive where ``g`` is zero."""
        r = spread(self.r(g), g).to(g.dtype)
        return torch.where(g > 0, -r, r)

    def _free(self, x: Tensor) -> Tensor:
        return ~at_bound(x, self.r(x), self.tolerance(x))

    def _room(self, x: Tensor, g: Tensor) -> Tensor:
        """How far each coordinate is from the bound that it moves to."""
        return spread(self.r(x), x).to(x.dtype) + torch.where(g > 0, x, -x)

    def _ratios(self, x: Tensor, g: Tensor) -> Tensor:
        """The away step at which each coordinate reaches the bound opposite to the worst vertex."""
        worst = self._signs(-g)
        toward_worst = torch.where(worst > 0, x, -x)
        r = spread(self.r(x), x).to(x.dtype)
        way = r - toward_worst  # 0 at the worst vertex itself: dividing by it would make autograd's gradients NaN
        return torch.where(way > 0, (r + toward_worst) / torch.where(way > 0, way, 1), torch.inf)


def onto_bounds(x: Tensor, smaller: Tensor, larger: Tensor, radius: Tensor) -> Tensor:
    """Entries that may have been ``+-radius`` before they were rounded, put exactly there."""
    r = radius.to(x.dtype)
    return torch.where((smaller.abs() <= r) & (larger.abs() >= r), torch.copysign(r, x), x)


def at_bound(x: Tensor, radius: Tensor, tol: float) -> Tensor:
    """Which entries are within ``tol`` of ``+-radius``, or beyond it."""
    return x.abs() >= spread(radius * (1 - tol), x).to(x.dtype)


def snap_to_bounds(x: Tensor, radius: Tensor, tol: float) -> Tensor:
    """Entries within ``tol`` of ``+-radius``, or beyond it, put exactly there."""
    r = radius.to(x.dtype)
    return torch.where(x.abs() >= (radius * (1 - tol)).to(x.dtype), torch.where(x > 0, r, -r), x)
