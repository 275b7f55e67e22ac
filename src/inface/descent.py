"""One step of the free parameters of a group, from its gradients to its weights."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import torch
from torch import Tensor

from .adaptive import descend_adaptively
from .free import descend
from .gap import FreeNorm
from .sets import Set
from .sets.base import computable
from .state import average_free, average_moments, put, unit_weights, weights
from .units import Unit, free_part, put_free_part

__all__ = ["free_step", "gradient", "is_zero", "momentum_weight", "now", "scalar"]

States = MutableMapping[Tensor, dict[str, Any]]


def free_step(group: dict[str, Any], params: list[Tensor], all_states: States) -> FreeNorm | None:
    """Descend on free parameters, or on the free blocks of constrained ones; the gap's part of a first half."""
    set_ = group["set"]
    grads = [_free(set_, gradient(group, p)) for p in params]  # before the state is looked at, as above
    states = [all_states[p] for p in params]
    values = [_target(set_, p, state) for p, state in zip(params, states, strict=True)]
    parts = [_free(set_, x) for x in values]
    adaptive = group["norm"] == "adaptive"
    moments = average_moments(set_, states, grads, group["betas"]) if adaptive else []
    if group["momentum"] and not adaptive:
        averages: list[dict[str, Any]] = [
            {"momentum_buffer": _free(set_, state["momentum_buffer"]), "started": state["started"]} for state in states
        ]
        grads = average_free(averages, grads, group["momentum"], group["dampening"])
        for state, average_ in zip(states, averages, strict=True):
            state["momentum_buffer"] = put_free_part(set_, state["momentum_buffer"], average_["momentum_buffer"])
    first = [state["phase"] == 0 for state in states]
    moving = [i for i in range(len(params)) if first[i] or group["every_gradient"]]
    if moving:
        lr, decay, targets = scalar(group["lr"]), group["weight_decay"], [parts[i] for i in moving]
        if adaptive:
            averages_ = [moments[i] for i in moving]
            square = descend_adaptively(
                targets, averages_, lr, betas=group["betas"], eps=group["eps"], weight_decay=decay
            )
        else:
            square = descend(targets, [grads[i] for i in moving], lr, group["norm"], decay)
            weight = momentum_weight(group)
            square, lr = square / weight**2, lr * weight  # of the average, which is what the gap is about
        for i in moving:
            if values[i] is not params[i]:
                put_free_part(set_, values[i], parts[i])
                parts[i] = parts[i].to(params[i].dtype)
            if parts[i] is not params[i]:
                put(params[i], put_free_part(set_, params[i], parts[i]))
        if any(first):
            return FreeNorm(square.detach(), now(lr))
    return None


def gradient(group: dict[str, Any], p: Tensor) -> Tensor:
    """The gradient of a parameter, in a dtype to compute in, of what is minimised; zero where there is none."""
    g = torch.zeros_like(computable(p)) if p.grad is None else computable(p.grad)
    return -g if group["maximize"] else g


def scalar(lr: float | Tensor) -> float | Tensor:
    """A learning rate as a number, or a tensor of no dimensions."""
    return lr.reshape(()) if isinstance(lr, Tensor) else lr


def now(lr: float | Tensor) -> float | Tensor:
    """A learning rate as it is: schedulers change tensors in place."""
    return lr.detach().clone() if isinstance(lr, Tensor) else lr


def is_zero(lr: float | Tensor) -> bool:
    """Whether a step would not move; a tensor that only a device or a compiler knows is not asked."""
    if isinstance(lr, Tensor):
        return not torch.compiler.is_compiling() and lr.device.type == "cpu" and lr.item() == 0
    return lr == 0


def momentum_weight(group: dict[str, Any]) -> float:
    """How many times the average the momentum of free parameters is: once, unless their ``dampening`` says otherwise."""
    momentum, dampening = group["momentum"], group["dampening"]
    return 1.0 if not momentum or dampening is None else (1 - dampening) / (1 - momentum)


def _free(set_: Set | None, x: Tensor) -> Tensor:
    """The free part of a tensor that has one."""
    part = free_part(set_, x)
    if part is None:
        raise TypeError(f"{set_!r} has no free blocks")
    return part


def _target(set_: Set | None, p: Tensor, state: dict[str, Any]) -> Tensor:
    """What descent moves: the parameter, or its float32 copy."""
    if "master" not in state:
        return p
    return weights(p, state) if set_ is None else unit_weights(Unit(set_, [p], "", None), [state])[0]
