"""What the sets of matrices have in common: how a block becomes one."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ..linalg import frobenius
from .base import EXACT, Set, spread, wide
from .blocks import Per
from .norms import NormName

__all__ = ["MatrixSet"]


class MatrixSet(Set):
    """A set of matrices: a block is matricised as (first dimension, the rest); a vector is a matrix of one column."""

    default_per: ClassVar[Per] = "tensor"
    norms: ClassVar[tuple[NormName, ...]] = ("frobenius", "spectral", "nuclear")
    joinable: ClassVar[bool] = False
    cheap_norm: ClassVar[bool] = False
    has_edges: ClassVar[bool] = False

    def to_blocks(self, x: Tensor) -> Tensor:
        flat = super().to_blocks(x)
        inner = x.ndim if self.per == "tensor" or x.ndim < 2 else x.ndim - 1
        rows = flat.shape[1]
        if inner >= 2:
            rows = x.shape[1] if self.per == "output" else x.shape[0]
        return flat.reshape(flat.shape[0], rows, -1)

    def rank(self, block_shape: torch.Size) -> int:
        """The largest rank of a block of this shape."""
        return min(block_shape[0], block_shape.numel() // block_shape[0])

    def pulled_in(self, x: Tensor) -> Tensor:
        """What a decomposition left outside, where rounding grows with the size of the matrix, back on the boundary."""
        return x * spread((self.r(x) / self.block_norm(x)).clamp(max=1), x).to(x.dtype)

    def round_into(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """To the nearest, after scaling so that the norms of point and rounding error together are at most the radius.

        The error's norm is bounded by its Frobenius norm (times :meth:`norm_ratio`), so no decomposition is needed.
        """
        if dtype in EXACT:
            return x.to(dtype)
        ratio, r = self.norm_ratio(x), self.r(x)
        size = torch.minimum(r, ratio * frobenius(x.to(wide(x))))

        def rounded(scale: Tensor) -> tuple[Tensor, Tensor]:
            wanted = x * spread(scale, x).to(x.dtype)
            near = wanted.to(dtype)
            return near, ratio * frobenius((near.to(x.dtype) - wanted).to(wide(x)))

        _, error = rounded(torch.ones_like(r.expand_as(size)))
        scale = ((r - error) / size.clamp(min=torch.finfo(size.dtype).tiny)).clamp(0, 1)
        near, error = rounded(scale)
        # The error of the scaled point is another one; where it happens to be larger, the worst case is safe.
        worst = r / (r + ratio * frobenius(x.to(wide(x))) * torch.finfo(dtype).eps)
        fits = scale * size + error <= r * (1 + self.tolerance(x))
        return torch.where(spread(fits, x), near, rounded(worst)[0])

    def norm_ratio(self, x: Tensor) -> float:
        """The largest ratio of this set's norm to the Frobenius norm, for blocks of this shape."""
        raise NotImplementedError(type(self).__name__)


def clean(g: Tensor) -> Tensor:
    """Blocks with a NaN or an infinity replaced by zeros: LAPACK refuses the whole batch for one of them."""
    return torch.where(spread(finite(g), g), g, 0)


def finite(x: Tensor) -> Tensor:
    """Whether each block has neither."""
    return torch.isfinite(x).flatten(1).all(1)
