"""Bound the cost of a forward pass from shapes, before anything is calculated.

An operation is a multiply-add, or one entry of a pooling window. Each number in a result counts as 64 operations,
because it takes memory. So does each number that a convolution may copy for its matrix product.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from inface.export.compaction.graph import tensors

from .vocabulary import BINARY

__all__ = ["FLOOR", "PER_NUMBER", "check_numbers", "operations", "pieces", "without_memory"]

NUMBER = 64  # operations per number in a result
PIECE = 4096  # operations per tensor that another one is split into
FLOOR = 1 << 30  # operations that every forward pass may take: about a second, and 64 MB of float32
PER_NUMBER = 1 << 18  # further operations, per number of the input, and per sample and value in the file
LARGEST = 1 << 63

_CONV = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_POOLS = ("MaxPool", "AvgPool", "max_pool", "avg_pool")


def check_numbers(kind: str, operands: Sequence[Any]) -> None:
    """Raise an error unless the operands are tensors or numbers, and the result is not too large for a size.

    Raises:
        ValueError: an operand is something else (a list times a number is a longer list), or the result is too large.

    >>> check_numbers("mul", [28, 28])
    >>> check_numbers("pow", [10, 10**9])
    Traceback (most recent call last):
    ValueError: pow: 10 and 1000000000, wanted a result below 2 to the 63
    """
    if kind not in BINARY or not all(isinstance(each, bool | int | float | str | list | tuple) for each in operands):
        return
    shown = " and ".join(str(each)[:40] for each in operands)
    if not all(isinstance(each, bool | int | float) for each in operands):
        raise ValueError(f"{kind}: {shown}, wanted tensors and numbers")
    whole = [abs(each) for each in operands if isinstance(each, int)]
    bits = whole[0].bit_length() * whole[1] if kind == "pow" and len(whole) == 2 else 0
    if bits >= 64 or any(each >= LARGEST for each in whole):
        raise ValueError(f"{kind}: {shown}, wanted a result below 2 to the 63")


def pieces(kind: str, tensor: Any) -> int:
    """The operations of splitting a tensor, before it is split."""
    return PIECE * max(tensor.shape, default=0) if kind in ("split", "chunk") and isinstance(tensor, Tensor) else 0


def operations(what: str | nn.Module, of: Sequence[Any], given: Mapping[str, Any], result: Any) -> int:
    """The operations of a step: a layer, or an operation by name.

    >>> import torch
    >>> layer = nn.Linear(3, 2)
    >>> operations(layer, [torch.zeros(5, 3)], {}, torch.zeros(5, 2)) == 5 * 2 * 3 + 64 * 10
    True
    """
    count = sum(each.numel() for each in tensors(result))
    taken = NUMBER * count
    if isinstance(what, nn.Linear):
        taken += count * what.in_features
    elif isinstance(what, (*_CONV, *_TRANSPOSED)):
        fan = math.prod(what.weight.shape[1:])
        positions = of[0].numel() // max(1, what.in_channels)
        if isinstance(what, _CONV):
            positions = count // max(1, what.out_channels)
        taken += positions * fan * (what.weight.shape[0] + NUMBER * what.groups)
    elif what == "matmul":
        taken += count * (of[0].shape[-1] if isinstance(of[0], Tensor) and of[0].ndim else 1)
    else:
        name = what if isinstance(what, str) else type(what).__name__
        if name.startswith(_POOLS):
            size = getattr(what, "kernel_size", None) or given.get("kernel_size", of[1] if len(of) > 1 else 1)
            sides = list(size) if isinstance(size, list | tuple) else [size]
            taken += count * math.prod(sides if len(sides) > 1 else sides * int(name[-2]))
    return int(taken)


def without_memory(layer: nn.Module, *, casts: bool = False) -> nn.Module:
    """A copy of a layer on the meta device, in float32 if it ``casts``; without hooks if its ``forward`` is called."""
    twin = copy.copy(layer)
    for held in ("_parameters", "_buffers"):
        found: dict[str, Tensor | None] = vars(layer)[held]
        vars(twin)[held] = type(found)(
            (name, None if each is None else _meta(each.detach(), casts=casts)) for name, each in found.items()
        )
    return twin


def _meta(tensor: Tensor, *, casts: bool) -> Tensor:
    empty = tensor.to("meta")
    return empty.float() if casts and tensor.is_floating_point() else empty
