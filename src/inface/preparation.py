"""What becomes of a group before it is optimised: one for each parameter where sizes differ, radii for densities, projections."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .dtensors import is_sharded, keep, whole
from .registry import constrain
from .relative import AUTO
from .serialization import beside
from .sets import Set
from .sets.base import computable, spread
from .state import before_rounding, rounded
from .units import Unit, names_of, units

__all__ = ["Moved", "apart", "prepare", "put_back", "resolve"]

# Parameters that were projected when an optimizer was made: torch's count of writes to them since, and what they were before.
Moved = dict[Tensor, tuple[int, Tensor]]


def apart(group: dict[str, Any], defaults: dict[str, Any]) -> list[dict[str, Any]]:
    """A group as the groups that it becomes: of relative steps, or of a density, one for each parameter."""
    known = {**defaults, **group}
    params = group["params"]
    if not isinstance(known["set"], Set) or isinstance(params, Tensor) or known["set"].per == "group":
        return [group]
    if known["relative"] is None and not isinstance(known["lr"], str) and known["set"].sized:
        return [group]
    return [{**group, "params": [p]} for p in params] or [group]  # a process may have none of them


def resolve(group: dict[str, Any], index: int) -> None:
    """What a group says in words, as numbers: ``lr="auto"``, and the radius of a set that has a density."""
    set_ = group["set"]
    if isinstance(group["lr"], str) and group["lr"] == "auto":
        if set_ is None:
            raise ValueError(
                f"FrankWolfe: lr='auto' is for groups with a set, wanted a number for free parameters (group {index}: "
                f"{', '.join(names_of(group, index)[:3])})"
            )
        group["lr"], group["relative"] = AUTO, 1.0 if group["relative"] is None else group["relative"]
    if isinstance(set_, Set) and not set_.sized:
        found = units(group, index)
        if len(found) != 1:
            raise ValueError(
                f"FrankWolfe: a density gives every parameter a radius of its own, wanted one parameter in a group of "
                f"{set_!r}, got {len(found)} (group {index})"
            )
        group["set"] = _sized(found[0])
        group["project"] = True


def _sized(unit: Unit) -> Set:
    own = unit.set.sized_for(unit.blocks([computable(whole(p)) for p in unit.params]))
    return own if unit.joint is None else unit.joint.with_radius(own.radius)


def prepare(group: dict[str, Any], index: int) -> Moved:
    """Put a checked group's parameters where its set wants them; those that moved, with what they were."""
    moved: Moved = {}
    set_: Set | None = group["set"]
    if set_ is None:
        for p in group["params"]:
            constrain(p, None)
        return moved
    group["set"] = set_ = beside(set_, group["params"])
    for p in group["params"]:
        constrain(p, set_)
    for unit in units(group, index) if group["project"] else ():
        with torch.no_grad():
            params, unit = unit.params, unit._replace(params=[whole(p) for p in unit.params])  # noqa: PLW2901
            x = unit.blocks([computable(p) for p in unit.params])
            inside = unit.tensors(spread(unit.set.inside(x), x).expand_as(x))  # bit for bit: resumed runs rely on it
            values = unit.tensors(unit.set.projected(unit.blocks(before_rounding(unit))))
            for p, own, old, same in zip(params, rounded(unit, values), unit.params, inside, strict=True):
                before = None if same.all() or is_sharded(p) or set_.density is None else old.clone()
                keep(p, torch.where(same, old, own))
                if before is not None:
                    moved[p] = (p._version, before)
    return moved


@torch.no_grad()
def put_back(moved: Moved) -> None:
    """Undo the projections, for a state that is loaded.

    Who resumes may load the weights before the optimizer is made. These lie in the saved sets, and not in those that a
    density makes of weights that are sparse already. Weights that were written to since are left as they are.
    """
    for p, (version, before) in moved.items():
        if p._version == version:
            p.copy_(before)
    moved.clear()
