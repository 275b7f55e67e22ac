"""Relative steps: how long a step is does not change when the loss, a layer or a radius is rescaled.

A group with ``relative=c`` has no smoothness constant. With ``s = c * lr`` (``s = c * lr * warm-up`` on a path of densities):

* a Frank-Wolfe step, and an in-face step along a direction, use ``C = 10 E[gap] / s``, where ``E[gap]`` is a running mean over
  the blocks and the steps of the group: on average a step goes the part ``s / 10`` of the way to its vertex;
* a projected in-face step uses ``lr = s |x| / (E|g| sqrt(1 - momentum))``, where ``E|g|`` is a running mean of the norm of the
  gradient where ``x`` is not zero: a step with independent gradients moves ``x`` by about ``s`` times its own length.

Multiplying the loss by a number multiplies ``E[gap]`` and ``E|g|``; multiplying a layer by ``a`` and the next one by ``1/a``
multiplies ``|x|`` by ``a`` and ``E|g|`` by ``1/a``. The steps stay the same. The constant ``L = 1 / (2 lr)`` that they imply
is in ``report().smoothness``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .density import warm_up
from .sets.base import computable, wide
from .units import Unit

__all__ = ["AUTO", "NUMBERS", "StepSize", "keep_gap", "step_size"]

# What is kept of a parameter here: numbers, whose precision is not that of the parameter.
NUMBERS = ("gradient_size", "weight_size", "mean_gap", "implied_lr")

# What lr="auto" stands for: the length of a step, relative to its layer.
AUTO = 0.03

# How much of the running means a new number replaces.
GRADIENT, GAP = 0.02, 0.1

# Norms change slowly, and cost about what a step costs: one projected step in so many looks at them.
LOOK = 5

# A vertex is far: a step to it is so much shorter than one in the face.
TOWARD = 0.1


class StepSize(NamedTuple):
    """The learning rate that a half of an iteration implies, and ``1 / C`` of its blocks where that is not ``lr / diam^2``."""

    lr: float | Tensor
    rate: float | Tensor | None = None


def step_size(
    group: dict[str, Any], unit: Unit, state: dict[str, Any], x: Sequence[Tensor], g: Sequence[Tensor]
) -> StepSize:
    """How far the next half of an iteration goes in a group of relative steps, from its weights and gradients."""
    length = group["relative"] * group["lr"] * warm_up(group["path"])
    if state["phase"] and group["in_face"] == "projected":
        period = min(LOOK, group["in_face_steps"])
        if (state["phase"] - 1) % period == 0 or "weight_size" not in state or not _known(state["gradient_size"]):
            _mean(state, "gradient_size", _norm(g, x), 1 - (1 - GRADIENT) ** period)
            state["weight_size"] = _norm(x, x)
        lr = length * state["weight_size"] / (state["gradient_size"] * math.sqrt(1 - group["momentum"]))
        return StepSize(_number(torch.nan_to_num(lr, nan=0.0, posinf=0.0)))
    if "mean_gap" not in state or not _known(state["mean_gap"]):
        blocks, slopes = unit.blocks(x), unit.blocks(g)
        keep_gap(state, unit.set.toward(blocks, slopes).slope)
    rate = torch.nan_to_num(TOWARD * length / state["mean_gap"], nan=0.0, posinf=0.0)
    square = torch.as_tensor(unit.diameter(), dtype=rate.dtype, device=rate.device).square().mean()
    return StepSize(_number(rate * square), _number(rate))


def keep_gap(state: dict[str, Any], gaps: Tensor) -> None:
    """Take the gaps of blocks into the running mean."""
    finite = torch.isfinite(gaps)
    gap = torch.where(finite, gaps, 0).clamp(min=0).sum() / finite.sum().clamp(min=1)
    _mean(state, "mean_gap", gap, GAP)


def _mean(state: dict[str, Any], name: str, new: Tensor, part: float) -> Tensor:
    """The running mean of that name after ``new``; what is not finite, or zero, leaves it."""
    old = state.get(name)
    if old is None:
        state[name] = new.detach().clone()
    else:
        state[name] = torch.where(torch.isfinite(new) & (new > 0), torch.lerp(old, new.detach(), part), old)
        state[name] = torch.where(old > 0, state[name], new.detach())
    return state[name]


def _known(mean: Tensor) -> bool:
    """Whether there was a finite gradient for a running mean; where a look at it would wait for a device, yes."""
    return torch.compiler.is_compiling() or not mean.is_cpu or bool(mean > 0)


def _norm(tensors: Sequence[Tensor], where: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm of all tensors together, where others are not zero."""
    squares = []
    for tensor, other in zip(tensors, where, strict=True):
        kept = computable(tensor.detach())
        kept = kept if tensor is other else kept * (other != 0)
        squares.append(torch.linalg.vector_norm(kept).to(wide(kept)).square())
    return torch.stack(squares).sum().sqrt()


def _number(value: Tensor) -> float | Tensor:
    """A number where that waits for nothing: kernels take numbers."""
    return value if torch.compiler.is_compiling() or not value.is_cpu else float(value)
