"""A parameter seen as a batch of blocks: the one helper that everything else builds on."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

__all__ = ["Per", "count", "join", "shape", "split"]

# A "group" is all tensors of a parameter group together; a single tensor is then one block.
Per = Literal["output", "input", "tensor", "group"]

WHOLE = ("tensor", "group")


def split(x: Tensor, per: Per) -> Tensor:
    """View ``x`` as ``(N, *block)``, one row per block; a copy only where a view cannot do it.

    A parameter of fewer than two dimensions is a single block whatever ``per`` says.

    >>> import torch
    >>> weight = torch.zeros(20, 3, 5, 5)
    >>> split(weight, "output").shape
    torch.Size([20, 3, 5, 5])
    >>> split(weight, "input").shape
    torch.Size([3, 20, 5, 5])
    >>> split(weight, "tensor").shape
    torch.Size([1, 20, 3, 5, 5])
    >>> split(torch.zeros(7), "output").shape
    torch.Size([1, 7])
    """
    if x.ndim == 0:
        return x.reshape(1, 1)
    if x.ndim == 1 or per in WHOLE:
        return x.unsqueeze(0)
    return x if per == "output" else x.movedim(1, 0)


def join(blocks: Tensor, like: Tensor, per: Per) -> Tensor:
    """The inverse of :func:`split`: blocks of any inner shape, back in the shape of ``like``.

    >>> import torch
    >>> weight = torch.arange(24.0).reshape(2, 3, 4)
    >>> bool((join(split(weight, "input").flatten(1), weight, "input") == weight).all())
    True
    """
    if like.ndim < 2 or per != "input":
        return blocks.reshape(like.shape)
    first, second, *rest = like.shape
    return blocks.reshape(second, first, *rest).movedim(0, 1)


def count(size: torch.Size, per: Per) -> int:
    """How many blocks a parameter of this size has.

    >>> import torch
    >>> count(torch.Size([20, 3, 5, 5]), "input")
    3
    """
    if len(size) < 2 or per in WHOLE:
        return 1
    return size[0] if per == "output" else size[1]


def shape(size: torch.Size, per: Per) -> torch.Size:
    """The shape of one block of a parameter of this size.

    >>> import torch
    >>> shape(torch.Size([20, 3, 5, 5]), "output")
    torch.Size([3, 5, 5])
    """
    if len(size) == 0:
        return torch.Size([1])
    if len(size) == 1 or per in WHOLE:
        return size
    return size[1:] if per == "output" else torch.Size([size[0], *size[2:]])
