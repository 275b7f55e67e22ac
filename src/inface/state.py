"""What the optimizer keeps of a parameter: its phase, its momentum, and a float32 copy of a half-precision one."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from .sets import Set
from .sets.base import spread

__all__ = ["average", "computable", "create", "weights", "where_is", "write"]

EXACT = (torch.float32, torch.float64)


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


def computable(x: Tensor) -> Tensor:
    """``x`` in a dtype that can be computed in: itself, or a float32 copy."""
    return x if x.dtype in EXACT else x.float()


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
    """Make ``new`` the values of a parameter."""
    if "master" in state:
        state["master"].copy_(new)
    p.copy_(new)


def average(set_: Set, g: Tensor, state: dict[str, Any], momentum: float) -> tuple[Tensor, Tensor]:
    """The averaged gradient of each block after ``g``, and which blocks of ``g`` are finite; nothing is changed.

    ``m <- momentum m + (1 - momentum) g`` from ``m_1 = g_1``; a block of ``g`` that is not finite leaves its average.
    """
    m = set_.to_blocks(state["momentum_buffer"])
    finite = torch.isfinite(torch.linalg.vector_norm(g, torch.inf, dim=tuple(range(1, g.ndim))))
    started = ~torch.isnan(m.flatten(1)[:, 0])
    mixed = torch.where(spread(started, g), torch.lerp(m, g, 1 - momentum), g)
    return torch.where(spread(finite, g), mixed, m), finite


def where_is(group: dict[str, Any], index: int, p: Tensor) -> str:
    """A parameter's name, or its place where it has none."""
    position = next(i for i, other in enumerate(group["params"]) if other is p)
    if "param_names" in group:
        return str(group["param_names"][position])
    return f"group {index}, parameter {position}"
