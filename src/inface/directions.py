"""Directions that somebody's own function gives, and the blocks of a unit that they are for."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import torch
from torch import Tensor

from .checks import check_direction
from .descent import gradient
from .halves import average
from .sets.base import spread
from .state import unit_weights
from .units import with_gradients

__all__ = ["all_blocks", "custom_directions", "only", "only_of"]

States = MutableMapping[Tensor, dict[str, Any]]


def custom_directions(group: dict[str, Any], index: int, all_states: States) -> dict[Tensor, Tensor]:
    """What a function given as ``in_face`` says of the units of a group, checked before any parameter is touched."""
    found = {}
    for unit in with_gradients(group, index):
        states = [all_states[p] for p in unit.params]
        x, g = unit.blocks(unit_weights(unit, states)), unit.blocks([gradient(group, p) for p in unit.params])
        kept = unit.set.constrained(x)
        if states[0]["phase"] == 0 or (kept is not None and not len(kept)):
            continue
        set_ = unit.set if kept is None else unit.set.part(kept)
        x, g = only(x, kept), only(g, kept)
        if group["project"]:
            x = set_.projected(x)  # as the step will
        finite = torch.isfinite(g).flatten(1).all(1)
        if group["momentum"]:
            m = unit.blocks([state["momentum_buffer"] for state in states])
            g, _ = average(only(m, kept), g, group["momentum"])
        d = group["in_face"](set_, x.clone(), g.clone())
        d = check_direction(set_, unit, x, g, d, finite)
        found[unit.params[0]] = torch.where(spread(finite, d), d, 0)
    return found


def only(x: Tensor, kept: Tensor | None) -> Tensor:
    """Some of the blocks; all of them if it is not said which."""
    return x if kept is None else x[kept]


def only_of(numbers: float | Tensor, kept: Tensor | None) -> float | Tensor:
    """The same of one number for all blocks, or one for each."""
    return only(numbers, kept) if isinstance(numbers, Tensor) and numbers.ndim else numbers


def all_blocks(some: Tensor, kept: Tensor | None, x: Tensor | None) -> Tensor:
    """All blocks ``x``, of which some are other ones."""
    return some if kept is None or x is None else x.index_copy(0, kept, some)
