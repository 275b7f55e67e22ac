"""A layer that takes some of the channels of its input."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["Select"]


class Select(nn.Module):
    """The channels ``index`` of the input, along ``dim``; at first the first ``count`` of them.

    It is put before a layer that does not read all of its input. ``index`` is a buffer, so it is saved with the
    weights.

    Args:
        count: the number of channels.
        dim: the dimension of the channels.

    >>> select = Select(2)
    >>> _ = select.index.copy_(torch.tensor([0, 3]))
    >>> select(torch.arange(8).reshape(2, 4))
    tensor([[0, 3],
            [4, 7]])
    """

    index: Tensor

    def __init__(self, count: int, dim: int = -1) -> None:
        super().__init__()
        self.count = count
        self.dim = dim
        self.register_buffer("index", torch.arange(count))

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        return input.index_select(self.dim, self.index)

    def extra_repr(self) -> str:
        return f"{self.count}, dim={self.dim}"
