"""The arguments of an optimizer, checked before anything is modified."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, TypeGuard, get_args

import torch
from torch import Tensor

from .dtensors import is_sharded, whole
from .free import Norm
from .kernels import available, device, fits
from .paths import Path
from .sets import Set, blocks
from .sets.base import EXACT, InFace, computable, dot, number
from .state import before_rounding
from .units import Unit, names_of, units

__all__ = ["check_direction", "check_gradients", "check_group", "check_options"]

DTYPES = (*EXACT, torch.bfloat16, torch.float16)


def check_group(group: dict[str, Any], index: int) -> None:
    """Raise a ValueError if a group, complete with its defaults, cannot be optimised."""
    try:
        check_options(group)
        _check_lr(group["lr"])
    except ValueError as error:
        members = ", ".join(str(name) for name in group.get("param_names", [])[:3])
        raise ValueError(f"{error} (group {index}{': ' if members else ''}{members})") from None
    set_ = group["set"]
    _check_capturable(group, index)
    if set_ is not None and not isinstance(set_, Set):
        raise ValueError(f"FrankWolfe: set must be one of inface.sets or None, got {set_!r} (group {index})")
    called = names_of(group, index)
    for p, name in zip(group["params"], called, strict=True):
        where = f'parameter "{name}"' if "param_names" in group else f"{name} of shape {tuple(p.shape)}"
        if p.dtype not in DTYPES:
            raise ValueError(
                f"FrankWolfe: {where} has dtype {p.dtype}, wanted one of {', '.join(str(d) for d in DTYPES)}"
            )
        if p.layout is not torch.strided:
            raise ValueError(f"FrankWolfe: {where} has layout {p.layout}, wanted a dense tensor")
        if set_ is not None and p.numel():
            set_.check(p.shape, f'parameter "{name}"' if "param_names" in group else name)
            if p.is_meta:
                raise ValueError(
                    f"FrankWolfe: {where} is on the meta device, wanted weights to start from in its {set_!r} "
                    f"(model.to_empty, then an initialisation or a checkpoint)"
                )
        if is_sharded(p):
            _check_sharded(group, p, where)
    for unit in units(group, index) if set_ is not None else ():
        _check_unit(group, unit)


def check_gradients(group: dict[str, Any], index: int) -> None:
    """Raise a ValueError if a step with the gradients of a group cannot be taken."""
    if group["capturable"] and group["path"] is not None:
        raise ValueError(
            f"FrankWolfe: capturable=True does not go with a path of densities, which the host walks (group {index}: "
            f"{', '.join(names_of(group, index)[:3])})"
        )
    for p in group["params"]:
        g = p.grad
        if g is not None and g.layout is not torch.strided:
            raise ValueError(
                f"FrankWolfe: {_called(group, index, p)} has a gradient of layout {g.layout}, wanted a dense one "
                f"(for an Embedding: sparse=False)"
            )
    set_ = group["set"]
    if set_ is not None and set_.per == "group":
        for p in group["params"]:
            if not p.requires_grad and p.numel():
                raise ValueError(
                    f"FrankWolfe: {_called(group, index, p)} is frozen, but shares a set with its group (per='group'), whose "
                    f"steps move all of it; wanted requires_grad=True, or a group without it"
                )


def check_direction(set_: Set, unit: Unit, x: Tensor, g: Tensor, d: object, counts: Tensor) -> Tensor:
    """Raise a ValueError unless ``d`` satisfies Step 4b of the paper on the blocks ``x`` of ``set_`` where ``counts`` is set."""
    where = unit.where
    if not isinstance(d, Tensor) or d.shape != x.shape:
        shape = tuple(d.shape) if isinstance(d, Tensor) else type(d).__name__
        raise ValueError(f"in_face function: wanted directions of shape {tuple(x.shape)} for {where}, got {shape}")
    slack = 8 * torch.finfo(x.dtype).eps
    terms = 1.0 if set_.cheap_norm else min(x.shape[1:]) ** 0.5  # singular values, each rounded
    size, rise = set_.block_length(d), dot(g, d)
    diameter = set_.diameter(blocks.shape(unit.size, set_.per))
    diameter = number(diameter, size.dtype, size.device).expand_as(size)
    for wrong, wanted, value in (
        (~torch.isfinite(size), "a finite direction", size),
        # Relative to the set, not to d: at a vertex a direction is the rounding of two points that cancel.
        (rise > slack * diameter * set_.block_dual_length(g), "<g, d> <= 0", rise),
        (size > diameter * (1 + slack * terms), "|d| <= diam", size),
    ):
        bad = (wrong & counts).nonzero()
        if bad.numel():
            block = int(bad[0])
            raise ValueError(
                f"in_face function: wanted {wanted} in block {block} of {where}, got {float(value[block]):.6g}"
            )
    return d


def _check_capturable(group: dict[str, Any], index: int) -> None:
    """Raise a ValueError if steps of a group would need what no CUDA graph holds."""
    if not group["capturable"]:
        return
    lr, devices = group["lr"], {p.device for p in group["params"]}
    if isinstance(lr, Tensor) and lr.device not in devices and devices:
        found = ", ".join(sorted(map(str, devices)))
        raise ValueError(
            f"FrankWolfe: capturable=True wants a tensor lr beside its parameters, on {found}, got one on {lr.device} "
            f"(group {index})"
        )
    if callable(group["in_face"]):
        raise ValueError(
            f"FrankWolfe: capturable=True does not go with a function as in_face, whose directions are checked (group {index})"
        )


def _check_lr(lr: object) -> None:
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError(f"FrankWolfe: Tensor lr must be 1-element, got shape {tuple(lr.shape)}")
    if lr is None:
        raise ValueError("FrankWolfe: lr is missing, neither the optimizer nor the group has one")
    if not (_is_number(lr) and 0 < (lr.item() if isinstance(lr, Tensor) else lr) < math.inf):  # type: ignore[operator]
        raise ValueError(f"FrankWolfe: lr must be > 0 and finite, got {lr!r}")


def check_options(group: dict[str, Any]) -> None:
    """Raise a ValueError if an option of a group, other than its ``lr``, is not one."""
    momentum, bound, decay = group["momentum"], group["gradient_bound"], group["weight_decay"]
    if not (_is_plain_number(decay) and 0 <= decay < math.inf):
        raise ValueError(f"FrankWolfe: weight_decay must be >= 0 and finite, got {decay!r}")
    for option in ("every_gradient", "maximize", "precondition", "differentiable", "project", "capturable"):
        if not isinstance(group[option], bool):
            raise ValueError(f"FrankWolfe: {option} must be True or False, got {group[option]!r}")
    if not (_is_plain_number(momentum) and 0 <= momentum < 1):
        raise ValueError(f"FrankWolfe: momentum must be in [0, 1), got {momentum!r}")
    if group["in_face"] is not None and not callable(group["in_face"]) and group["in_face"] not in get_args(InFace):
        names = ", ".join(map(repr, get_args(InFace)))
        raise ValueError(f"FrankWolfe: in_face must be None, {names} or a function, got {group['in_face']!r}")
    steps = group["in_face_steps"]
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"FrankWolfe: in_face_steps must be a whole number >= 1, got {steps!r}")
    if group["norm"] not in get_args(Norm):
        names = ", ".join(map(repr, get_args(Norm)))
        raise ValueError(f"FrankWolfe: norm must be one of {names}, got {group['norm']!r}")
    _check_adaptive(group["betas"], group["eps"])
    _check_density(group["dampening"], group["relative"], group["path"])
    if group["fused"] not in (None, True, False):
        raise ValueError(f"FrankWolfe: fused must be None, True or False, got {group['fused']!r}")
    if bound is not None and not (
        bool(((bound > 0) & torch.isfinite(bound)).all())
        if isinstance(bound, Tensor)
        else _is_number(bound) and 0 < bound < math.inf
    ):
        raise ValueError(f"FrankWolfe: gradient_bound must be None or > 0 and finite, got {bound!r}")


def _check_density(dampening: object, relative: object, path: object) -> None:
    if dampening is not None and not (_is_plain_number(dampening) and 0 <= dampening < 1):
        raise ValueError(f"FrankWolfe: dampening must be None or in [0, 1), got {dampening!r}")
    if relative is not None and not (_is_plain_number(relative) and 0 < relative < math.inf):
        raise ValueError(f"FrankWolfe: relative must be None or > 0 and finite, got {relative!r}")
    if path is not None and not (isinstance(path, dict) and set(path) == set(Path.__annotations__)):
        raise ValueError(f"FrankWolfe: path must be None or a path of densities, got {path!r:.60}")


def _check_adaptive(betas: object, eps: object) -> None:
    pair = betas if isinstance(betas, tuple | list) and len(betas) == 2 else ()
    if not pair or not all(_is_plain_number(beta) and 0 <= beta < 1 for beta in pair):
        raise ValueError(f"FrankWolfe: betas must be two numbers in [0, 1), got {betas!r}")
    if not (_is_plain_number(eps) and 0 <= eps < math.inf):
        raise ValueError(f"FrankWolfe: eps must be >= 0 and finite, got {eps!r}")


def _check_sharded(group: dict[str, Any], p: Any, where: str) -> None:
    if group["differentiable"]:
        raise ValueError(f"FrankWolfe: {where} is a DTensor, which does not go with differentiable=True")
    if any(placement.is_partial() for placement in p.placements):
        raise ValueError(f"FrankWolfe: {where} has placements {p.placements}, wanted Shard and Replicate alone")


def _check_unit(group: dict[str, Any], unit: Unit) -> None:
    set_, where, own = unit.set, unit.where, group["set"]
    if len({(p.dtype, p.device) for p in unit.params}) > 1:
        found = ", ".join(sorted({f"{p.dtype} on {p.device}" for p in unit.params}))
        raise ValueError(f"FrankWolfe: {where} share a set (per='group'), wanted one dtype and one device, got {found}")
    bound, count = group["gradient_bound"], blocks.count(unit.size, set_.per)
    if isinstance(bound, Tensor) and (bound.ndim > 1 or bound.numel() not in (1, count)):
        raise ValueError(
            f"FrankWolfe: gradient_bound has {bound.numel()} values, wanted one for each of the {count} blocks of {where}"
        )
    if isinstance(group["in_face"], str) and not set_.has_faces:
        raise ValueError(
            f"FrankWolfe: {type(set_).__name__} offers no in-face steps (has_faces is False), got "
            f"in_face={group['in_face']!r} for {where}; give its group in_face=None"
        )
    if group["in_face"] == "projected" and not set_.projects_faces:
        raise ValueError(
            f"FrankWolfe: {type(set_).__name__} projects onto no faces (it has no block_face_project), got "
            f"in_face='projected' for {where}; wanted 'away', 'frank-wolfe' or 'pairwise'"
        )
    unit = unit._replace(params=[whole(p) for p in unit.params])  # so that all processes find the same
    if group["fused"]:
        _check_fused(group, unit)
    x = unit.blocks(unit.params)
    infinite = ~torch.isfinite(x).flatten(1).all(1)
    if set_.free is not None:
        infinite &= ~set_.free.to(x.device)
    if bool(infinite.any()):
        block = int(infinite.nonzero()[0])
        raise ValueError(f"FrankWolfe: {where} is not finite in block {block}, wanted a point of its {own!r}")
    if group["project"]:
        return
    x = unit.blocks(before_rounding(unit))
    inside = set_.inside(x)
    if not bool(inside.all()):
        block = int((~inside).nonzero()[0])
        norm = float(set_.block_norm(x)[block])
        radius = set_.radius[block] if isinstance(set_.radius, Tensor) else set_.radius
        raise ValueError(
            f"FrankWolfe: {where} starts outside its {own!r}: block {block} has norm {norm:.6g}, wanted a point of the "
            f"set of radius {float(radius):.6g}; start from inface.graph_init_, or let project=True move it there"
        )


def _check_fused(group: dict[str, Any], unit: Unit) -> None:
    set_, where, p = unit.set, unit.where, unit.params[0]
    if callable(group["in_face"]) or group["differentiable"]:
        why = "a function as in_face" if callable(group["in_face"]) else "differentiable=True"
        raise ValueError(f"FrankWolfe: fused=True does not go with {why} ({where}); fused=None takes what it can")
    if device.takes(set_, unit.blocks([computable(p.detach()) for p in unit.params]), group["in_face"]):
        return
    if not fits(set_, computable(p.detach()) if unit.joint is None else unit.joint.gather([computable(p.detach())])):
        raise ValueError(
            f"FrankWolfe: fused=True wants contiguous CPU memory (or CUDA memory, with Triton and rows of at most "
            f"{device.LONGEST} entries) of an L1Ball, Simplex, LInfBall, GroupL1Ball or L2Ball per output or tensor, got "
            f"{where} in {set_!r}, {'' if p.is_contiguous() else 'not '}contiguous, on {p.device}; fused=None takes what it can"
        )
    if available(set_, computable(p.detach()).dtype) is None:
        raise ValueError(f"FrankWolfe: fused=True, but the kernels are not available ({where}); is Numba installed?")


def _called(group: dict[str, Any], index: int, p: Tensor) -> str:
    position = next(i for i, other in enumerate(group["params"]) if other is p)
    name = names_of(group, index)[position]
    return f'parameter "{name}"' if "param_names" in group else f"{name} of shape {tuple(p.shape)}"


def _is_plain_number(value: object) -> TypeGuard[float]:
    return _is_number(value) and not isinstance(value, Tensor)


def _is_number(value: object) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1 and not value.is_complex()
    return isinstance(value, Real) and not isinstance(value, bool)
