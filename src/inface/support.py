"""Which gradient the next half of an iteration needs: that of a whole parameter, or that of what is not zero."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from torch import Tensor

from .paths import REGROW_BELOW, Path, regrows
from .sets import Set, blocks

__all__ = [
    "Compute",
    "looks_at_entries",
    "next_phase",
    "support_suffices",
    "upcoming_phase",
]

# Kernels of sets whose projected steps look at entries that are not zero, and at nothing else.
ENTRIES = ("ball", "simplex")


class Compute(TypedDict):
    """How the layers of a group compute: plain data, which a ``state_dict`` holds, so that a resumed run computes alike.

    Attributes:
        mode: ``"auto"``, ``"sparse"`` or ``"dense"``.
        nonzeros: of each parameter, when it was last counted: after steps that may have brought some, and after cuts.
        limits: the densities below which leaving zeros out is faster, in products and in gradients of weights, by shape and batch.
    """

    mode: str
    nonzeros: list[int]
    limits: dict[str, list[float]]


def next_phase(group: Mapping[str, Any], phase: int) -> int:
    """What comes after a phase: a first half (0), or one of the second halves of an iteration."""
    if group["in_face"] is None:
        return 0
    return phase + 1 if phase < group["in_face_steps"] else 0 if regrows(group["path"]) else 1


def upcoming_phase(group: Mapping[str, Any], state: Mapping[str, Any]) -> int:
    """The phase that the next gradient of a parameter is for."""
    phase: int = state.get("phase", 0)
    if phase > (0 if group["in_face"] is None else group["in_face_steps"]):
        phase = 0  # of a second half that was switched off
    return phase or next_phase(group, group["in_face_steps"])  # a path may have no first halves


def looks_at_entries(group: Mapping[str, Any]) -> bool:
    """Whether second halves of a group look at what is not zero, and at nothing else."""
    return group["in_face"] == "projected" and group["set"] is not None and group["set"].kernel in ENTRIES


def support_suffices(group: Mapping[str, Any], state: Mapping[str, Any], p: Tensor) -> bool:
    """Whether the step with the next gradient of a parameter looks at it where the parameter is not zero, and nowhere else.

    >>> import torch
    >>> from inface.sets import L1Ball
    >>> group = {"in_face": "projected", "in_face_steps": 1, "path": None, "set": L1Ball(1.0), "differentiable": False}
    >>> p = torch.zeros(2, 3)
    >>> support_suffices(group, {"phase": 0}, p), support_suffices(group, {"phase": 1}, p)
    (False, True)
    """
    set_: Set | None = group["set"]
    path: Path | None = group["path"]
    if set_ is None or set_.free is not None or not looks_at_entries(group):
        return False
    if group["differentiable"] or (path is not None and path["by_itself"] and path["density"] >= REGROW_BELOW):
        return False  # edges return by their gradients
    alone = set_.per != "group" and blocks.shape(p.shape, set_.per).numel() == 1  # such a block moves from zero too
    return not alone and upcoming_phase(group, state) > 0
