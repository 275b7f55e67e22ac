"""Relative steps: how long a step is does not change when the loss, a layer or a radius is rescaled.

A group with ``relative=c`` has no smoothness constant. With ``s = c * lr`` (on a path of densities times a warm-up, and
bounded; with ``sparse_optimizer`` times a factor for the number of steps, :func:`share_of`):

* a Frank-Wolfe step, and an in-face step along a direction, use ``C = 10 E[gap] / s``, where ``E[gap]`` is a running mean over
  the blocks and the steps of the group: on average a step goes the part ``s / 10`` of the way to its vertex, and no block
  more than ``s`` of it, however small the gaps were that the mean knows;
* a projected in-face step uses ``lr = s |x| / (E|g| sqrt(1 - momentum))``, where ``E|g|`` is a running mean of the norm of the
  gradient where ``x`` is not zero: a step with independent gradients moves ``x`` by about ``s`` times its own length.
  Where the gradients of the momentum are larger than the mean knows, the step is shorter by the square of that. On a path
  ``|x| / E|g|`` is at most four times the least there was since it began: steps end with the gradients.

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

from .dtensors import total
from .paths import Path, cool_down, warm_up
from .sets.base import can_look, computable, number, wide
from .types import Free
from .units import Unit

__all__ = ["AUTO", "LENGTH", "LONGEST", "NUMBERS", "StepSize", "begin", "keep_gap", "share_of", "step_size"]

# Never the default device, nor its dtype.
FLOAT64: Any = {"dtype": torch.float64, "device": "cpu"}

# What is kept of a parameter here: numbers, whose precision is not that of the parameter.
MEANS = ("gradient_size", "recent_size", "gradient_norm", "recent_norm", "least_ratio", "mean_gap")
NUMBERS = (*MEANS, "implied_lr")

# What lr="auto" stands for: the length of a step, relative to its layer.
AUTO = 0.03

# How much of the running means a new number replaces.
GRADIENT, GAP = 0.02, 0.1

# On a path of densities no step is longer, whatever a scheduler makes of lr: networks without normalisation die of 6 %.
LONGEST = 0.04

# A step of a layer of sparse_optimizer is this part of its length, at fast learning rates and above.
LENGTH: dict[Free, float] = {"sgd": 0.03, "adamw": 0.0164}

# The steps of sparse_optimizer are those of a training of so many gradients; of four times as many, half as long.
STEPS = 5000

# Nor does a network that has learnt its data by heart, and has nothing but noise for gradients, move on at full length:
# against its gradients a step grows to so many times of what it was when they were largest.
GROWTH = 4.0

# A vertex is far: a step to it is so much shorter than one in the face.
TOWARD = 0.1


class StepSize(NamedTuple):
    """The learning rate that a half of an iteration implies.

    ``rate`` is ``1 / C`` of its blocks where that is not ``lr / diam^2``; no block goes more than ``most`` of the way to its vertex.
    """

    lr: float | Tensor
    rate: float | Tensor | None = None
    most: Any = math.inf  # a number, or a tensor on a device that it does not leave


def step_size(
    group: dict[str, Any],
    unit: Unit,
    state: dict[str, Any],
    x: Sequence[Tensor],
    g: Sequence[Tensor],
    norms: tuple[float, float] | None = None,
) -> StepSize:
    """How far the next half of an iteration goes in a group of relative steps, from its weights and gradients.

    ``norms``, if somebody has them: ``|x|``, and ``|g|`` where ``x`` is not zero.
    """
    length = group["relative"] * group["lr"]
    if group["path"] is not None:
        length = _on_path(length, group["path"], LENGTH["adamw" if group["precondition"] else "sgd"])
    if state["phase"] and group["in_face"] == "projected":
        if norms is None:
            size, norm = _norm(unit, x, x), _norm(unit, g, x)
        else:
            size, norm = total(unit.params[0], torch.tensor(norms, **FLOAT64).square()).sqrt()
        usual, surge = _usual(state, "gradient_size", "recent_size", norm, group["momentum"])
        ratio = _bounded(state, group["path"], size / usual)
        lr = length * ratio / (surge.square() * math.sqrt(1 - group["momentum"]))
        return StepSize(_number(torch.nan_to_num(lr, nan=0.0, posinf=0.0)))
    _, surge = _usual(state, "gradient_norm", "recent_norm", _norm(unit, g, g), group["momentum"])
    if not state.get("gap_known", "mean_gap" in state) or not _known(state["mean_gap"]):
        blocks, slopes = unit.blocks(x), unit.blocks(g)
        keep_gap(state, unit, unit.set.toward(blocks, slopes).slope)
    rate = torch.nan_to_num(TOWARD * length / (state["mean_gap"] * surge), nan=0.0, posinf=0.0)
    square = _mean_over(unit, number(unit.diameter(), rate.dtype, rate.device).square())
    return StepSize(_number(rate * square), _number(rate), _number(number(length, rate.dtype, rate.device)))


def share_of(steps: int) -> float:
    """The factor of the steps of a path: they are shorter the more there are, as their noise adds up like a random walk.

    >>> share_of(STEPS), share_of(4 * STEPS)
    (1.0, 0.5)
    """
    return math.sqrt(STEPS / steps)


def _on_path(length: float | Tensor, path: Path, usual: float) -> float | Tensor:
    """The length of a step on a path; ``usual`` is the one of a fast learning rate in a training of ``STEPS`` gradients."""
    if path["by_itself"]:
        own, length = path["length"], _least(length, usual)
        full = length.clamp(min=own) if isinstance(length, Tensor) else max(length, own)
        part = min(share_of(path["steps"]), LONGEST / own)
        length = _least(length * part, _least(full * part, LONGEST) * cool_down(path))
    return _least(length, LONGEST) * warm_up(path)


def _least(a: float | Tensor, b: float | Tensor) -> float | Tensor:
    """The smaller one; a number on a device stays there."""
    return a.clamp(max=b) if isinstance(a, Tensor) else min(a, b)


def _usual(state: dict[str, Any], mean: str, recent: str, norm: Tensor, momentum: float) -> tuple[Tensor, Tensor]:
    """The running mean of a norm, and by how much the norms in the momentum are above it, if they are."""
    usual = _mean(state, mean, norm, GRADIENT)
    return usual, (_mean(state, recent, norm, 1 - momentum) / usual).nan_to_num(nan=1.0).clamp(min=1)


def _bounded(state: dict[str, Any], path: Path | None, ratio: Tensor) -> Tensor:
    """The size of a layer over that of its gradients; on a path, once it has begun, at most so many times the least there was."""
    if path is None or path["step"] < path["begin"] * path["steps"]:
        return ratio
    known = state.get("least_ratio", ratio)
    least = torch.where((known > 0) & ~(ratio < known), known, ratio)
    least = _keep(state, "least_ratio", torch.where(torch.isfinite(least), least, 0))
    return torch.where(least > 0, ratio.clamp(max=GROWTH * least), ratio)


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
    found, count = total(unit.params[0], torch.stack([numbers.sum(), torch.full_like(numbers[0], numbers.numel())]))
    return found / count


def _mean(state: dict[str, Any], name: str, new: Tensor, part: float) -> Tensor:
    """The running mean of that name after ``new``; what is not finite, or zero, leaves it."""
    old, new = state.get(name), new.detach()
    begun = torch.where(torch.isfinite(new), new, 0)
    if old is None:
        return _keep(state, name, begun)
    mixed = torch.where(torch.isfinite(new) & (new > 0), torch.lerp(old, new, part), old)
    return _keep(state, name, torch.where(old > 0, mixed, begun))


def _keep(state: dict[str, Any], name: str, new: Tensor) -> Tensor:
    """Make ``new`` the number of that name; on a device it stays where it is: a captured graph finds it there.

    On a CPU it must not: torch.compile drops what is written to a float64 tensor without dimensions.
    """
    if name in state and not state[name].is_cpu:
        state[name].copy_(new)
    else:
        state[name] = new.detach()
    return new.detach()


def _known(mean: Tensor) -> bool:
    """Whether there was a finite gradient for a running mean; where a look at it would wait for a device, yes."""
    return not can_look(mean) or bool(mean > 0)


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
    return float(value) if can_look(value) else value
