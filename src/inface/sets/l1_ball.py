"""The l1 ball: few large weights per node."""

from __future__ import annotations

from torch import Tensor

from .group_sum import GroupSum

__all__ = ["L1Ball"]


class L1Ball(GroupSum):
    """``{x : sum_j |x_j| <= radius}``, by default one ball per output node.

    Its extreme points ``+-radius e_j`` have one entry, so training inside it is sparse by construction. On the
    boundary the minimal face is the signed support: in-face steps never add an edge there.

    >>> import torch
    >>> ball = L1Ball(2.0)
    >>> ball.vertex(torch.tensor([[1.0, -3.0, 2.0]]))
    tensor([[0., 2., 0.]])
    >>> ball.face_vertex(torch.tensor([[1.5, 0.0, -0.5]]), torch.tensor([[1.0, -3.0, 2.0]]))
    tensor([[ 0.,  0., -2.]])
    """

    kind = "l1"
    kernel = "ball"
    has_atoms = True

    def to_blocks(self, x: Tensor) -> Tensor:
        return super().to_blocks(x).unsqueeze(2)
