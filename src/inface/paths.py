"""Where groups are on their paths of densities, and the layers that walk there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

from torch import Tensor
from torch.optim import Optimizer

from .dtensors import is_sharded, whole
from .sets.base import computable
from .state import unit_weights
from .units import Unit, units

__all__ = [
    "REGROW_BELOW",
    "Path",
    "PathLayer",
    "abandon",
    "caller",
    "cool_down",
    "in_face_steps_for",
    "layer_of",
    "regrows",
    "room",
    "unfinished",
    "warm_up",
]

# Above this density every block has most of its atoms: Frank-Wolfe steps have nothing to bring back.
REGROW_BELOW = 0.5

# One gradient in fifty brings back edges, the others train those that are there; a short training takes a few such steps.
MOST_IN_FACE, LEAST_IN_FACE = 49, 9

# Relative steps have no bound but their own until this part of the steps is left, and this part of it in the end.
COOL, COOLEST = 0.875, 0.05


class Path(TypedDict):
    """Where a group is on its path: plain data, which a ``state_dict`` holds.

    Attributes:
        step: gradients that were consumed.
        steps: gradients in all; 0 while nobody has said how many.
        begin: the part of them after which atoms leave.
        end: the part of them after which none leave.
        every: gradients between two cuts.
        pool: groups of one pool share their atoms.
        start: the density at step 0; layers that start at zero count as full.
        target: the density after ``end``.
        density: the density now.
        budget: the sum of the radii of all blocks at a density of one.
        by_itself: whether the optimizer advances the path with every step, or a scheduler does.
        every_block: whether each block keeps an atom at least.
        length: of a relative step at the learning rate that the optimizer was made with; 0 where a scheduler advances the path.
    """

    step: int
    steps: int
    begin: float
    end: float
    every: int
    pool: str
    start: float
    target: float
    density: float
    budget: float
    by_itself: bool
    every_block: bool
    length: float


def warm_up(path: Path | None) -> float:
    """The factor of relative steps: it rises while the path has not begun.

    >>> warm_up(None)
    1.0
    """
    if path is None or not path["begin"]:
        return 1.0
    return min(1.0, (path["step"] + 1) / (path["begin"] * path["steps"]))


def cool_down(path: Path) -> float:
    """The factor that bounds relative steps: at the end they are short, also where no scheduler lowers ``lr``.

    Their length does not fall with the gradients, so that a training at a constant learning rate would end in noise. The
    factor falls on a line that cosine and linear schedules stay below. Who trains on after the path moves at its end.

    >>> [round(cool_down({"step": step, "steps": 100}), 2) for step in (10, 30, 65, 100, 200)]
    [1.0, 0.8, 0.4, 0.05, 0.05]
    """
    return max(min(1.0, (1 - path["step"] / path["steps"]) / COOL), COOLEST)


def regrows(path: Path | None) -> bool:
    """Whether Frank-Wolfe steps may add atoms: always without a path, on one while atoms leave and most have left."""
    return path is None or (path["density"] < REGROW_BELOW and path["step"] < path["end"] * path["steps"])


def in_face_steps_for(steps: int) -> int:
    """How many in-face steps follow each Frank-Wolfe step in a training of so many gradients.

    >>> [in_face_steps_for(steps) for steps in (60, 300, 5000)]
    [9, 30, 49]
    """
    return min(MOST_IN_FACE, max(LEAST_IN_FACE, steps // 10))


def room(density: float, total: int) -> int:
    """How many of all atoms a density leaves; of a product that rounding put below a whole number, that number.

    >>> room(0.07, 100), room(0.05, 39)
    (7, 1)
    """
    return int(density * total + 1e-6)


def unfinished(groups: Sequence[Mapping[str, Any]]) -> str | None:
    """What to say of paths that were begun and not walked to their end; None if there are none.

    At the density that was wanted, a few gradients may be missing: those of steps that a GradScaler skipped, or at which a
    schedule was at 0.
    """
    for group in groups:
        path: Path | None = group.get("path")
        if path is None or not path["step"]:
            continue
        missing = path["steps"] - path["step"]
        if missing > (max(2, 0.01 * path["steps"]) if path["density"] == path["target"] else 0):
            return (
                f"stopped after {path['step']} of the {path['steps']} steps that were announced, at a density of "
                f"{path['density']:.3g} on the way to {path['target']:.3g}"
            )
    return None


def abandon(optimizer: Optimizer) -> None:
    """Forget the paths of an optimizer that is not needed any more, so that nobody is told where they ended."""
    for group in optimizer.param_groups:
        if "path" in group:
            group["path"] = None


class PathLayer(NamedTuple):
    """The weights of a group on a path; of what several processes hold, all of them, on each."""

    optimizer: Optimizer
    group: dict[str, Any]
    unit: Unit
    states: list[dict[str, Any]]
    x: Tensor

    @property
    def sizes(self) -> Tensor:
        return self.unit.set.atom_sizes(self.x)

    @property
    def params(self) -> list[Tensor]:
        """The parameters of the group itself, of which the unit may have copies."""
        return [p for p in self.group["params"] if p.numel()]


def layer_of(optimizer: Optimizer, group: dict[str, Any]) -> PathLayer:
    (unit,) = units(group, 0)
    states = [optimizer.state.get(p, {}) for p in unit.params]  # an empty state would look like one that was begun
    if any(is_sharded(p) for p in unit.params):
        unit = unit._replace(params=[whole(p) for p in unit.params])
        states = [{"master": whole(state["master"])} if "master" in state else {} for state in states]
    x = unit.blocks([computable(x.detach()) for x in unit_weights(unit, states)])
    return PathLayer(optimizer, group, unit, states, x)


def caller(by_itself: bool) -> str:
    """What a message about a path begins with."""
    return "sparse_optimizer" if by_itself else "DensityScheduler"
