"""What a set constrains at once: the blocks of one parameter, or one block of all parameters of a group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .sets import Set, blocks

__all__ = ["Unit", "constrained_places", "free_part", "names_of", "put_free_part", "units", "with_gradients"]


class Unit(NamedTuple):
    """Parameters whose blocks are stepped on together.

    Attributes:
        set: as it sees the blocks.
        params: one parameter; with ``per="group"`` all of a group.
        name: what to call them.
        joint: the group's own set, where all of its parameters are one block.
        named: whether ``name`` is made of parameter names, or of places.

    >>> import torch
    >>> from inface.sets import L1Ball
    >>> group = {"params": [torch.zeros(2, 3), torch.zeros(4)], "set": L1Ball(1.0, per="group")}
    >>> (unit,) = units(group, 0)
    >>> unit.blocks(unit.params).shape, unit.name
    (torch.Size([1, 10, 1]), 'group 0, parameter 0 + group 0, parameter 1')
    """

    set: Set
    params: list[Tensor]
    name: str
    joint: Set | None
    named: bool = True

    @property
    def called(self) -> str:
        """The name, cut short where a group has many parameters."""
        if len(self.params) <= 3:
            return self.name
        return f"{' + '.join(self.name.split(' + ')[:3])} + {len(self.params) - 3} more"

    @property
    def where(self) -> str:
        """What an error calls it."""
        if self.named:
            return f'parameter "{self.called}"' if self.joint is None else f'the parameters "{self.called}"'
        return f"{self.called} of shape {tuple(self.size)}"

    @property
    def size(self) -> torch.Size:
        """The size of what the set takes for a parameter."""
        if self.joint is None:
            return self.params[0].shape
        return self.joint.gather([torch.empty(p.shape, device="meta") for p in self.params]).shape

    def blocks(self, tensors: Sequence[Tensor]) -> Tensor:
        """Tensors like the parameters, in the shape that the set computes in."""
        return self.set.to_blocks(tensors[0] if self.joint is None else self.joint.gather(tensors))

    def tensors(self, blocks_: Tensor) -> list[Tensor]:
        """Back from :meth:`blocks`."""
        if self.joint is None:
            return [self.set.from_blocks(blocks_, self.params[0])]
        return self.joint.scatter(blocks_.reshape(self.size), self.params)

    def diameter(self) -> float | Tensor:
        """The diameter of each block's set."""
        return self.set.diameter(blocks.shape(self.size, self.set.per))


def units(group: dict[str, Any], index: int) -> list[Unit]:
    """The units of a constrained group; parameters without entries belong to none."""
    set_: Set = group["set"]
    members = [(p, name) for p, name in zip(group["params"], names_of(group, index), strict=True) if p.numel()]
    named = "param_names" in group
    if set_.per != "group":
        return [Unit(set_, [p], name, None, named) for p, name in members]
    if not members:
        return []
    return [Unit(set_.together(), [p for p, _ in members], " + ".join(name for _, name in members), set_, named)]


def with_gradients(group: dict[str, Any], index: int) -> list[Unit]:
    """The units of a constrained group that have a gradient; what is missing of one is zero."""
    return [unit for unit in units(group, index) if any(p.grad is not None for p in unit.params)]


def names_of(group: dict[str, Any], index: int) -> list[str]:
    """The names of a group's parameters, or their places where they have none; places too where two have one name.

    >>> names_of({"params": [1, 2, 3], "param_names": ["weight", "bias", "weight"]}, 0)
    ['weight (parameter 0)', 'bias', 'weight (parameter 2)']
    """
    # ZeroRedundancyOptimizer hands out parameters without their names, and all names to every process.
    if "param_names" in group and len(group["param_names"]) == len(group["params"]):
        names = [str(name) for name in group["param_names"]]
        times = Counter(names)
        if len(times) == len(names):
            return names
        return [f"{name} (parameter {i})" if times[name] > 1 else name for i, name in enumerate(names)]
    return [f"group {index}, parameter {i}" for i in range(len(group["params"]))]


def free_part(set_: Set | None, x: Tensor) -> Tensor | None:
    """What of a tensor like a parameter is free: all of it, its blocks of infinite radius, or nothing.

    >>> import torch
    >>> from inface.sets import L1Ball
    >>> free_part(L1Ball(torch.tensor([1.0, torch.inf])), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([[3., 4.]])
    """
    if set_ is None:
        return x
    if set_.free is None:
        return None
    return x if set_.all_free else x.index_select(*_places(set_, x))


def put_free_part(set_: Set | None, x: Tensor, part: Tensor) -> Tensor:
    """``x`` with another free part: in place, unless autograd looks on."""
    if set_ is None or set_.all_free:
        return part
    if torch.is_grad_enabled():
        return x.index_copy(*_places(set_, x), part)
    return x.index_copy_(*_places(set_, x), part)


def constrained_places(set_: Set | None, x: Tensor) -> tuple[int, Tensor] | None:
    """Where the constrained blocks of a tensor like a parameter lie, for ``index_select``; None if that is everywhere."""
    kept = None if set_ is None else set_.constrained(x)
    return None if set_ is None or kept is None else (_dimension(set_), kept)


def _places(set_: Set, x: Tensor) -> tuple[int, Tensor]:
    return _dimension(set_), set_.free_blocks.to(x.device)


def _dimension(set_: Set) -> int:
    """Along which the blocks of a set lie that has several."""
    return 1 if set_.per == "input" else 0
