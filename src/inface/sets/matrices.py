"""What the sets of matrices have in common: how a block becomes one."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from .base import Set, spread
from .blocks import Per
from .norms import NormName

__all__ = ["MatrixSet"]


class MatrixSet(Set):
    """A set of matrices: a block is matricised as (first dimension, the rest); a vector is a matrix of one column."""

    default_per: ClassVar[Per] = "tensor"
    norms: ClassVar[tuple[NormName, ...]] = ("frobenius", "spectral", "nuclear")

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


def clean(g: Tensor) -> Tensor:
    """Blocks with a NaN or an infinity replaced by zeros: LAPACK refuses the whole batch for one of them."""
    return torch.where(spread(finite(g), g), g, 0)


def finite(x: Tensor) -> Tensor:
    """Whether each block has neither."""
    return torch.isfinite(x).flatten(1).all(1)
