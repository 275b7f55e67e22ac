"""The group-l1 ball: whole nodes or whole inputs go to zero together."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from . import blocks
from .base import Kernel, Set
from .blocks import Per
from .group_sum import GroupSum
from .norms import NormName

__all__ = ["GroupL1Ball"]

Groups = Literal["output", "input"]


class GroupL1Ball(GroupSum):
    """``{x : sum_j |x_j|_2 <= radius}`` over groups ``x_j``, by default one ball per tensor.

    Args:
        radius: the bound on the sum of the groups' l2 norms.
        groups: ``"output"``: a group is what enters one node (a row of a Linear, a filter of a Conv), so nodes vanish;
            ``"input"``: what leaves one input (a column, an input channel), so features vanish.
        per: the blocks, each with its own ball; it cannot be the same as ``groups``.
        norm: on a block, in which the diameter is measured: ``"l2"`` (default), ``"l1"`` or ``"linf"``.
        density: instead of a radius, the share of groups that the ball has room for.

    >>> import torch
    >>> GroupL1Ball(1.0).vertex(torch.tensor([[0.0, 1.0], [3.0, -4.0]])).tolist()
    [[0.0, 0.0], [-0.6000000238418579, 0.800000011920929]]
    """

    kind = "group-l1"
    kernel: Kernel | None = "groups"
    default_per: ClassVar[Per] = "tensor"
    has_atoms: ClassVar[bool] = True

    def __init__(
        self,
        radius: float | Tensor | None = None,
        groups: Groups = "output",
        per: Per | None = None,
        *,
        norm: NormName | None = None,
        density: float | None = None,
    ) -> None:
        super().__init__(radius, per, norm=norm, density=density)
        if groups not in get_args(Groups):
            raise ValueError(f"GroupL1Ball: groups must be 'output' or 'input', got {groups!r}")
        if groups == self.per:
            raise ValueError(
                f"GroupL1Ball: groups and per are both {groups!r}, which makes every block a single group; "
                f"use L2Ball(per={groups!r}) for that"
            )
        self.groups = groups
        if self._second:
            self.kernel = None  # a group is no piece of contiguous memory

    def options(self) -> dict[str, Any]:
        return {"groups": self.groups}

    def check(self, size: torch.Size, where: str) -> None:
        super().check(size, where)
        if len(size) < 2 and (self.groups == "input" or self.per not in blocks.WHOLE):
            raise ValueError(
                f"GroupL1Ball(groups={self.groups!r}, per={self.per!r}) needs a parameter of at least two dimensions, "
                f"got {where} of shape {tuple(size)}"
            )

    def to_blocks(self, x: Tensor) -> Tensor:
        split = blocks.split(x, self.per)
        return (split.movedim(2, 1) if self._second else split).flatten(2) if split.ndim > 2 else split.unsqueeze(2)

    def together(self) -> Set:
        one = copy.copy(self)
        one.per, one.groups = "tensor", "output"
        one.__dict__.pop("kernel", None)  # what is gathered is contiguous
        return one

    def gather(self, tensors: Sequence[Tensor]) -> Tensor:
        """The groups of all tensors below each other, filled up with zeros to the longest."""
        rows = [self.to_blocks(x)[0] for x in tensors]
        width = max(x.shape[1] for x in rows)
        return torch.cat([nn.functional.pad(x, (0, width - x.shape[1])) for x in rows])

    def scatter(self, gathered: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
        shapes = [self.to_blocks(x).shape for x in like]
        pieces = gathered.split([shape[1] for shape in shapes])
        cut = [piece[:, : shape[2]].unsqueeze(0) for piece, shape in zip(pieces, shapes, strict=True)]
        return [self.from_blocks(piece, x) for piece, x in zip(cut, like, strict=True)]

    def from_blocks(self, blocks_: Tensor, like: Tensor) -> Tensor:
        if self._second:
            first, second, *rest = like.shape
            blocks_ = blocks_.reshape(1, second, first, *rest).movedim(1, 2)
        return super().from_blocks(blocks_, like)

    def group_size(self, block_shape: torch.Size) -> int:
        return block_shape.numel() // block_shape[1 if self._second else 0]

    @property
    def _second(self) -> bool:
        """Whether the groups lie along the second dimension of a block."""
        return self.groups == "input" and self.per in blocks.WHOLE
