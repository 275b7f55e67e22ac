"""The simplex: non-negative weights of a fixed sum."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import spread, wide
from .group_sum import Atom, GroupSum, project_simplex, take
from .linf_ball import POWERS
from .rays import in_face

__all__ = ["Simplex"]


class Simplex(GroupSum):
    """``{x >= 0 : sum_j x_j = radius}``, by default one simplex per output node.

    Every point lies on a proper face, its support, so in-face steps never add an entry. A block of one entry is a
    point and never moves.

    >>> import torch
    >>> Simplex(1.0).vertex(torch.tensor([[1.0, -3.0, 2.0]]))
    tensor([[0., 1., 0.]])
    """

    kind = "simplex"
    kernel = "simplex"
    has_inside = False
    signed = False

    def to_blocks(self, x: Tensor) -> Tensor:
        return super().to_blocks(x).unsqueeze(2)

    def block_contains(self, x: Tensor, tol: float | None = None) -> Tensor:
        """Whether each block is non-negative and sums to the radius, up to ``tol`` times its radius.

        By default only the sum has a tolerance: rounding never makes an entry negative, and a negative one has no vertex
        to move to.
        """
        low = 0 if tol is None else -tol * self.r(x)
        slack = self.r(x) * (self.tolerance(x) if tol is None else tol)
        return ((x.flatten(1).sum(1, dtype=wide(x)) - self.r(x)).abs() <= slack) & (x.flatten(1).amin(1) >= low)

    def round_into(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """To the nearest: no rounding of single entries keeps a sum, which half precision has to its own accuracy."""
        return x.to(dtype)

    def block_norm(self, x: Tensor) -> Tensor:
        """The sum of a block; ``inf`` for one with a negative entry, which no multiple of the simplex contains."""
        return torch.where((x < 0).flatten(1).any(1), torch.inf, x.flatten(1).sum(1, dtype=wide(x)))

    def diameter(self, block_shape: torch.Size) -> float | Tensor:
        return (0.0 if block_shape.numel() == 1 else 2 ** POWERS[self.norm_name]) * self.radius

    def best(self, g: Tensor) -> Atom:
        index = g.squeeze(2).argmin(1)
        return Atom(index, torch.ones_like(take(g, index)))

    def bounded(self, size: Tensor, x: Tensor) -> Tensor:  # noqa: ARG002 - every point of a simplex
        return torch.ones_like(size, dtype=torch.bool)

    def ray(self, x: Tensor, d: Tensor) -> Tensor:
        """Only directions that sum to zero leave the point on the simplex."""
        r, eps = self.r(x), torch.finfo(x.dtype).eps
        x, d = x.flatten(1).to(wide(x)), d.flatten(1).to(wide(d))
        length = d.abs().sum(1)
        level = in_face(d.sum(1).abs(), r, length, eps)
        stays = (x <= 0) & in_face(-d, spread(r, d), spread(length, d), eps)
        steps = torch.where(stays | (d >= 0), torch.inf, x.clamp(min=0) / torch.where(d < 0, -d, 1)).amin(1)
        return torch.where(level, steps, 0)

    def land(self, x: Tensor, end: Tensor, hit: Tensor) -> Tensor:
        gone = (end <= spread(self.r(x) * self.tolerance(x), end)) & spread(hit, end) & (x > 0)
        end = torch.where(gone, 0, end.clamp(min=0))
        return end * spread(self.r(x) / end.flatten(1).sum(1, dtype=wide(x)), x).to(x.dtype)

    def block_project(self, x: Tensor) -> Tensor:
        kept = project_simplex(x.squeeze(2).to(wide(x)), self.r(x)).unsqueeze(2)
        return (kept * spread(self.r(x) / kept.flatten(1).sum(1), kept)).to(x.dtype)
