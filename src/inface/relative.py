"""Relative steps: how long a step is does not change when the loss, a layer or a radius is rescaled.

A group with ``relative=c`` has no smoothness constant. With ``s = c * lr`` (on a path of densities at most 0.03, times a warm-up):

* a Frank-Wolfe step, and an in-face step along a direction, use ``C = 10 E[gap] / s``, where ``E[gap]`` is a running mean over
  the blocks and the steps of the group: on average a step goes the part ``s / 10`` of the way to its vertex;
* a projected in-face step uses ``lr = s |x| / (E|g| sqrt(1 - momentum))``, where ``E|g|`` is a running mean of the norm of the
  gradient where ``x`` is not zero: a step with independent gradients moves ``x`` by about ``s`` times its own length.
  Where the gradients of the momentum are larger than the mean knows, the step is shorter by as much.

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
from .dtensors import total
from .sets.base import computable, wide
from .units import Unit

__all__ = ["AUTO", "NUMBERS", "StepSize", "begin", "keep_gap", "step_size"]

# What is kept of a parameter here: numbers, whose precision is not that of the parameter.
MEANS = ("gradient_size", "gradient_norm", "recent_norm", "weight_size", "mean_gap")
NUMBERS = (*MEANS, "implied_lr")

# What lr="auto" stands for: the length of a step, relative to its layer.
AUTO = 0.03

# How much of the running means a new number replaces.
GRADIENT, GAP = 0.02, 0.1

# Norms change slowly, and cost about what a step costs: one projected step in so many looks at them.
LOOK = 5

# So does one that follows a gradient of so many times the usual norm.
JUMP = 2.0

# On a path of densities no step is longer, whatever a scheduler makes of lr: networks without normalisation die of 6 %.
LONGEST = 0.03

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
    length = group["relative"] * group["lr"]
    if group["path"] is not None:
        length = (length.clamp(max=LONGEST) if isinstance(length, Tensor) else min(length, LONGEST)) * warm_up(
            group["path"]
        )
    norm = _norm(unit, g, g)
    usual = _mean(state, "gradient_norm", norm, GRADIENT)
    recent = _mean(state, "recent_norm", norm, 1 - group["momentum"])
    surge = (
        (recent / usual).nan_to_num(nan=1.0).clamp(min=1)
    )  # of gradients that grow, or of one that is out of the way
    if state["phase"] and group["in_face"] == "projected":
        period = min(LOOK, group["in_face_steps"])
        look = (state["phase"] - 1) % period == 0 or "weight_size" not in state or not _known(state["gradient_size"])
        if look or not norm.is_cpu or bool(norm > JUMP * usual):
            _mean(state, "gradient_size", _norm(unit, g, x), 1 - (1 - GRADIENT) ** period)
            state["weight_size"] = _norm(unit, x, x)
        lr = length * state["weight_size"] / (state["gradient_size"] * surge * math.sqrt(1 - group["momentum"]))
        return StepSize(_number(torch.nan_to_num(lr, nan=0.0, posinf=0.0)))
    if not state.get("gap_known", "mean_gap" in state) or not _known(state["mean_gap"]):
        blocks, slopes = unit.blocks(x), unit.blocks(g)
        keep_gap(state, unit, unit.set.toward(blocks, slopes).slope)
    rate = torch.nan_to_num(TOWARD * length / (state["mean_gap"] * surge), nan=0.0, posinf=0.0)
    square = _mean_over(unit, torch.as_tensor(unit.diameter(), dtype=rate.dtype, device=rate.device).square())
    return StepSize(_number(rate * square), _number(rate))


def begin(state: dict[str, Any], p: Tensor) -> None:
    """Fill in what is missing of a parameter's state: a distributed checkpoint is read into what is there.

    ``gap_known`` says whether the mean of the gaps is one, where a look at it would wait for a device.
    """
    state["gap_known"] = "mean_gap" in state
    for name in MEANS:
        if name not in state:
            state[name] = torch.zeros((), dtype=wide(p), device=p.device)
    state.setdefault("implied_lr", math.nan)


def keep_gap(state: dict[str, Any], unit: Unit, gaps: Tensor) -> None:
    """Take the gaps of all blocks into the running mean."""
    finite = torch.isfinite(gaps)
    gap = torch.where(finite, gaps, 0).clamp(min=0).sum()
    gap, count = total(unit.params[0], torch.stack([gap, finite.sum().to(gap)]))
    _mean(state, "mean_gap", gap / count.clamp(min=1), GAP)
    state["gap_known"] = True


def _mean_over(unit: Unit, numbers: Tensor) -> Tensor:
    """The mean of a number, or of one for each block."""
    if not numbers.ndim:
        return numbers
    found, count = total(unit.params[0], torch.stack([numbers.sum(), numbers.new_tensor(numbers.numel())]))
    return found / count


def _mean(state: dict[str, Any], name: str, new: Tensor, part: float) -> Tensor:
    """The running mean of that name after ``new``; what is not finite, or zero, leaves it."""
    old = state.get(name)
    if old is None:
        state[name] = torch.where(torch.isfinite(new), new.detach(), 0)
    else:
        state[name] = torch.where(torch.isfinite(new) & (new > 0), torch.lerp(old, new.detach(), part), old)
        state[name] = torch.where(old > 0, state[name], torch.where(torch.isfinite(new), new.detach(), 0))
    return state[name]


def _known(mean: Tensor) -> bool:
    """Whether there was a finite gradient for a running mean; where a look at it would wait for a device, yes."""
    return torch.compiler.is_compiling() or not mean.is_cpu or bool(mean > 0)


def _norm(unit: Unit, tensors: Sequence[Tensor], where: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm of all tensors of a unit together, where others are not zero."""
    squares = []
    for p, tensor, other in zip(unit.params, tensors, where, strict=True):
        kept = computable(tensor.detach())
        kept = kept if tensor is other else kept * (other != 0)
        squares.append(total(p, torch.linalg.vector_norm(kept).to(wide(kept)).square()))
    return torch.stack(squares).sum().sqrt()


def _number(value: Tensor) -> float | Tensor:
    """A number where that waits for nothing: kernels take numbers."""
    return value if torch.compiler.is_compiling() or not value.is_cpu else float(value)
