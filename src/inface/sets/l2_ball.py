"""The l2 ball: a bound on the size of a node, without sparsity."""

from __future__ import annotations

import torch
from torch import Tensor

from .group_sum import GroupSum

__all__ = ["L2Ball"]


class L2Ball(GroupSum):
    """``{x : |x|_2 <= radius}``, by default one ball per output node.

    Every boundary point is extreme and its own minimal face, so in-face steps move interior points only.

    >>> import torch
    >>> L2Ball(5.0).vertex(torch.tensor([[3.0, -4.0]]))
    tensor([[-3.,  4.]])
    """

    kind = "l2"
    kernel = "groups"

    def group_size(self, block_shape: torch.Size) -> int:
        return block_shape.numel()

    def to_blocks(self, x: Tensor) -> Tensor:
        return super().to_blocks(x).unsqueeze(1)
