"""What the optimizer keeps of a parameter: its phase, its averages, and a float32 copy of a half-precision one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from .adaptive import Betas, Moments, accumulate, correction, count
from .dtensors import entries
from .sets import Set
from .sets.base import EXACT, can_look, computable
from .units import Unit, free_part, put_free_part

__all__ = [
    "average_free", "average_moments", "before_rounding", "create", "create_masters", "implied", "keep_average", "moments_of", "put",
    "rounded", "unit_weights", "weights", "write",
]  # fmt: skip

State = dict[str, Any]


def create(state: State, p: Tensor, group: dict[str, Any]) -> None:
    """Fill in what is missing of a parameter's state.

    ``phase``: 0 if the next gradient does the first half of an iteration, ``i`` if its i-th second half. ``started``:
    whether the momentum buffer holds gradients. A block of a buffer that has seen no finite gradient yet holds NaN.
    ``exp_avg``, ``exp_avg_sq`` and ``step``: the moments of what is free under ``norm="adaptive"``, under Adam's names.
    """
    set_: Set | None = group["set"]
    adaptive = group["norm"] == "adaptive" and (set_ is None or set_.free is not None)
    averaged = group["momentum"] and not (adaptive and (set_ is None or set_.all_free))
    state.setdefault("phase", 0)
    if p.dtype in EXACT:
        state.pop("master", None)  # of a parameter that was converted
    elif "master" not in state and set_ is None:
        state["master"] = computable(p.detach()).clone()
    if averaged and "momentum_buffer" not in state:
        state["momentum_buffer"] = torch.full_like(computable(p.detach()), torch.nan)
        state["started"] = False
    elif averaged and state["momentum_buffer"].dtype is not p.dtype:
        state["momentum_buffer"] = state["momentum_buffer"].to(p.dtype if p.dtype in EXACT else torch.float32)
    if adaptive or (group["precondition"] and set_ is not None):
        for key in ("exp_avg", "exp_avg_sq") if adaptive else ("exp_avg_sq",):
            if key not in state:
                state[key] = torch.zeros_like(computable(p.detach()))
            elif state[key].dtype is not p.dtype:
                state[key] = state[key].to(p.dtype if p.dtype in EXACT else torch.float32)
        _create_count(state, p, group)


def _create_count(state: State, p: Tensor, group: dict[str, Any]) -> None:
    """The number of gradients of a parameter: on the CPU, as torch's, or beside the parameter if a graph is to count."""
    device = p.device if group["capturable"] else torch.device("cpu")
    if "step" not in state:
        state["step"] = torch.zeros((), dtype=torch.float32, device=device)
    elif state["step"].device != device and not torch.compiler.is_compiling():
        state["step"] = state["step"].to(device)  # of a state that was loaded


def create_masters(unit: Unit, states: Sequence[State]) -> None:
    """Fill in the float32 copies of constrained half-precision parameters."""
    if unit.params[0].dtype in EXACT or all("master" in state for state in states):
        return
    for state, master in zip(states, before_rounding(unit), strict=True):
        state.setdefault("master", master.clone())


def before_rounding(unit: Unit) -> list[Tensor]:
    """Parameters as they may have been before they were rounded to half precision: on the boundary, if that can be.

    A set contains a half-precision parameter if it contains this, with the tolerance of float32.
    """
    values = [p.detach() for p in unit.params]
    if values[0].dtype in EXACT:
        return values
    bounds = ([_bound(value, step) for value in values] for step in (-1, 1))
    return _onto_boundary(unit, [computable(value) for value in values], *bounds)


def _onto_boundary(
    unit: Unit, values: Sequence[Tensor], smaller: Sequence[Tensor], larger: Sequence[Tensor]
) -> list[Tensor]:
    """Values that were rounded, on the boundary of their set if they may have been there: between these bounds."""
    x, low, high = (unit.blocks(tensors) for tensors in (values, smaller, larger))
    kept = unit.set.constrained(x)
    if kept is None:
        found = unit.set.onto_boundary(x, low, high)
    else:
        found = x.index_copy(0, kept, unit.set.part(kept).onto_boundary(x[kept], low[kept], high[kept]))
    return [value.contiguous() for value in unit.tensors(found)]


def _bound(p: Tensor, step: Literal[-1, 1]) -> Tensor:
    """The smallest (-1) or largest (1) numbers in magnitude that are rounded to ``p``, in float32; a zero is a zero."""
    neighbour = (p.view(torch.int16) + step).view(p.dtype)
    # Just short of half way: a tie may be rounded to the neighbour.
    return torch.where(p == 0, 0, torch.lerp(p.float(), neighbour.float(), 0.499))


def rounded(unit: Unit, values: Sequence[Tensor]) -> list[Tensor]:
    """Values in the dtype of the parameters, and in their set."""
    dtype = unit.params[0].dtype
    return list(values) if dtype in EXACT else unit.tensors(unit.set.round_into(unit.blocks(values), dtype))


def weights(p: Tensor, state: State) -> Tensor:
    """The values of a free parameter to compute with; entries in half precision that somebody changed are taken over."""
    if "master" not in state:
        return p.clone() if torch.is_grad_enabled() else p
    master: Tensor = state["master"]
    return master.copy_(torch.where(master.to(p.dtype) == p, master, p.float()))


def unit_weights(unit: Unit, states: Sequence[State]) -> list[Tensor]:
    """The same for constrained parameters; what somebody wrote may be a point of the boundary, rounded.

    An entry was changed if it is neither what was written nor what its float32 copy started from.
    """
    params = unit.params
    if "master" not in states[0]:
        return [p.clone() if torch.is_grad_enabled() else p for p in params]
    masters: list[Tensor] = [state["master"] for state in states]
    owns = rounded(unit, masters)
    same = [(own == p) | (x.to(p.dtype) == p) for p, x, own in zip(params, masters, owns, strict=True)]

    def changed(other: Callable[[Tensor], Tensor]) -> list[Tensor]:
        return [torch.where(keep, x, other(p)) for p, x, keep in zip(params, masters, same, strict=True)]

    values = changed(computable)
    # A look at what changed waits for a device, so that only a CPU gets the finer answer.
    if can_look(masters[0]) and not all(bool(keep.all()) for keep in same):
        values = _onto_boundary(unit, values, changed(partial(_bound, step=-1)), changed(partial(_bound, step=1)))
    return [x.copy_(value) for x, value in zip(masters, values, strict=True)]


def write(unit: Unit, states: Sequence[State], new: Sequence[Tensor]) -> None:
    """Make ``new`` the values of constrained parameters, unless they were written in place."""
    if "master" not in states[0]:
        for p, value in zip(unit.params, new, strict=True):
            put(p, value)
        return
    for p, state, value, own in zip(unit.params, states, new, rounded(unit, new), strict=True):
        put(state["master"], value)
        p.copy_(own)


def keep_average(state: State, average: Tensor) -> None:
    """Make ``average`` the momentum of a parameter."""
    if torch.is_grad_enabled():
        state["momentum_buffer"] = average
    else:
        put(state["momentum_buffer"], average)
    state["started"] = True


@contextmanager
def preconditioned(group: dict[str, Any], units: Sequence[Unit], states: Mapping[Tensor, State]) -> Iterator[None]:
    """Within it, units of a group that asks for it have gradients over the root of the running mean of their squares.

    Gradients that are not finite stay what they are, and leave no trace; nor do those that a projected in-face step does
    not look at.
    """
    if not group["precondition"]:
        yield
        return
    kept = [(p, p.grad) for unit in units for p in unit.params if p.grad is not None and entries(p)]
    beta = group["betas"][1]
    looked = [own for unit in units for own in _looked_at(group, unit, states)]
    for (p, g), used in zip(kept, looked, strict=True):
        state, own = states[p], computable(g)
        if "exp_avg_sq" not in state:
            state["exp_avg_sq"] = torch.zeros_like(computable(p.detach()))
            state.pop("step", None)
        _create_count(state, p, group)
        second: Tensor = state["exp_avg_sq"]
        count([state["step"]])
        if used is not None:
            second.lerp_(torch.where(torch.isfinite(own) & used, own.square(), second), 1 - beta)
        elif can_look(own) and math.isfinite(own.sum()):
            second.mul_(beta).addcmul_(own, own, value=1 - beta)
        else:
            second.lerp_(torch.where(torch.isfinite(own), own.square(), second), 1 - beta)
        root = second.sqrt().mul_(correction(beta, state["step"]) ** -0.5).add_(group["eps"])
        p.grad = torch.div(own, root, out=root).to(g.dtype)
    try:
        yield
    finally:
        for p, g in kept:
            p.grad = g


def _looked_at(group: dict[str, Any], unit: Unit, states: Mapping[Tensor, State]) -> list[Tensor | None]:
    """For each parameter of a unit that has a gradient, what the next half looks at; None for everything."""
    own = [states[p] for p in unit.params]
    used = None
    if group["in_face"] == "projected" and own[0]["phase"]:
        x = unit.blocks(unit_weights(unit, own))
        used = unit.set.in_use(x)
    masks = [None] * len(own) if used is None else unit.tensors(used.expand_as(x))
    return [mask for p, mask in zip(unit.params, masks, strict=True) if p.grad is not None]


def implied(state: Mapping[str, Any]) -> float | Tensor | None:
    """The learning rate that the last relative step of a parameter implied; None before there was one."""
    lr = state.get("implied_lr")
    return None if isinstance(lr, float) and math.isnan(lr) else lr


def average_free(
    states: list[State], grads: list[Tensor], momentum: float, dampening: float | None = None
) -> list[Tensor]:
    """The averaged gradients of free parameters, which are also their momentum from now on.

    With ``dampening`` it is torch's momentum: ``momentum m + (1 - dampening) g``.
    """
    if dampening is not None and dampening != momentum:
        for state, g in zip(states, grads, strict=True):
            old: Tensor = state["momentum_buffer"]
            if not state["started"]:
                keep_average(state, g.clone())
            elif torch.is_grad_enabled():
                keep_average(state, momentum * old + (1 - dampening) * g)
            else:
                old.mul_(momentum).add_(g, alpha=1 - dampening)
        return [state["momentum_buffer"] for state in states]
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


def moments_of(set_: Set | None, state: State) -> Moments:
    """The moments of what is free of a parameter."""
    first, second = free_part(set_, state["exp_avg"]), free_part(set_, state["exp_avg_sq"])
    if first is None or second is None:
        raise TypeError(f"{set_!r} has no free blocks")
    return Moments(first, second, state["step"])


def average_moments(set_: Set | None, states: list[State], grads: list[Tensor], betas: Betas) -> list[Moments]:
    """The moments of what is free, with these gradients; they are the state from now on."""
    found = accumulate([moments_of(set_, state) for state in states], grads, betas)
    for state, moments in zip(states, found, strict=True):
        state["exp_avg"] = put_free_part(set_, state["exp_avg"], moments.first)
        state["exp_avg_sq"] = put_free_part(set_, state["exp_avg_sq"], moments.second)
        if "momentum_buffer" in state and set_ is not None and not set_.all_free:
            # Else it would hold NaN for free blocks whose group goes over to another norm.
            state["momentum_buffer"] = put_free_part(set_, state["momentum_buffer"], moments.first)
    return found


def put(there: Tensor, new: Tensor) -> None:
    """Copy ``new`` there, unless it lies there already.

    Subclasses of Tensor, such as sharded ones, may all say that they lie at 0.
    """
    at = 0 if torch.compiler.is_compiling() or torch.is_grad_enabled() else there.data_ptr()
    if at == 0 or at != new.data_ptr():
        there.copy_(new)
