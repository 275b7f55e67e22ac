"""What the optimizer keeps of a parameter: its phase, its momentum, and a float32 copy of a half-precision one."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from .sets import Set
from .sets.base import EXACT, computable

__all__ = ["average_free", "create", "keep_average", "weights", "where_is", "write"]


def create(state: dict[str, Any], p: Tensor, group: dict[str, Any]) -> None:
    """Fill in what is missing of a parameter's state.

    ``phase``: 0 if the next gradient does the first half of an iteration, 1 if the second. ``started``: whether the
    momentum buffer holds gradients. A block of a buffer that has seen no finite gradient yet holds NaN.
    """
    state.setdefault("phase", 0)
    if p.dtype in EXACT:
        state.pop("master", None)  # of a parameter that was converted
    elif "master" not in state:
        master = computable(p.detach()).clone()
        set_: Set | None = group["set"]
        if set_ is not None:
            smaller, larger = (set_.to_blocks(_before_rounding(p.detach(), step)) for step in (-1, 1))
            master = set_.from_blocks(set_.onto_boundary(set_.to_blocks(master), smaller, larger), master).contiguous()
        state["master"] = master
    if group["momentum"] and "momentum_buffer" not in state:
        state["momentum_buffer"] = torch.full_like(computable(p.detach()), torch.nan)
        state["started"] = False
    elif group["momentum"]:
        state["momentum_buffer"] = state["momentum_buffer"].to(p.dtype if p.dtype in EXACT else torch.float32)


def _before_rounding(p: Tensor, step: Literal[-1, 1]) -> Tensor:
    """The smallest (-1) or largest (1) numbers in magnitude that are rounded to ``p``, in float32; a zero is a zero."""
    neighbour = (p.view(torch.int16) + step).view(p.dtype)
    # Just short of half way: a tie may be rounded to the neighbour.
    return torch.where(p == 0, 0, torch.lerp(p.float(), neighbour.float(), 0.499))


def weights(p: Tensor, state: dict[str, Any]) -> Tensor:
    """The values to compute with; entries of a half-precision parameter that somebody changed are taken over."""
    if "master" not in state:
        return p.clone() if torch.is_grad_enabled() else p
    master: Tensor = state["master"]
    return master.copy_(torch.where(master.to(p.dtype) == p, master, p.float()))


def write(p: Tensor, state: dict[str, Any], new: Tensor) -> None:
    """Make ``new`` the values of a parameter, unless they were written in place."""
    if "master" in state:
        _put(state["master"], new)
        p.copy_(new)
    else:
        _put(p, new)


def keep_average(state: dict[str, Any], average: Tensor) -> None:
    """Make ``average`` the momentum of a parameter."""
    if torch.is_grad_enabled():
        state["momentum_buffer"] = average
    else:
        _put(state["momentum_buffer"], average)
    state["started"] = True


def average_free(states: list[dict[str, Any]], grads: list[Tensor], momentum: float) -> list[Tensor]:
    """The averaged gradients of free parameters, which are also their momentum from now on."""
    if torch.is_grad_enabled():
        for state, g in zip(states, grads, strict=True):
            keep_average(
                state, torch.lerp(state["momentum_buffer"], g, 1 - momentum) if state["started"] else g.clone()
            )
    else:
        going = [i for i, state in enumerate(states) if state["started"]]
        if going:
            torch._foreach_lerp_([states[i]["momentum_buffer"] for i in going], [grads[i] for i in going], 1 - momentum)
        for i in set(range(len(states))).difference(going):
            keep_average(states[i], grads[i])
    return [state["momentum_buffer"] for state in states]


def _put(there: Tensor, new: Tensor) -> None:
    if torch.compiler.is_compiling() or torch.is_grad_enabled() or there.data_ptr() != new.data_ptr():
        there.copy_(new)


def where_is(group: dict[str, Any], index: int, p: Tensor) -> str:
    """A parameter's name, or its place where it has none."""
    position = next(i for i, other in enumerate(group["params"]) if other is p)
    if "param_names" in group:
        return str(group["param_names"][position])
    return f"group {index}, parameter {position}"
