"""A path of densities: from the atoms that a model starts with to the share of them that is wanted.

An atom is what a set counts: an edge of an l1 ball, a group of a group-l1 ball, a rank of a nuclear ball. Between ``begin``
and ``end`` (parts of all steps) the density falls along a cubic. Now and then the atoms that matter least leave, and the
blocks of a layer share the layer's budget: :func:`advance` does both. Between two cuts the optimizer's in-face steps train
what is there, and its Frank-Wolfe steps bring back what was dropped by mistake.

What is kept is decided by the LAMP score (J. Lee et al., "Layer-adaptive sparsity for the magnitude-based pruning", 2021):
the square of an atom over the sum of squares of all atoms of its layer that are at least as large. It does not change when a
layer is rescaled, and the largest atom of a layer always stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

import torch
from torch import Tensor
from torch.optim import Optimizer

from .registry import constrain
from .state import unit_weights, write
from .units import Unit, units

__all__ = ["DensityScheduler", "Path", "advance", "attach", "regrows", "warm_up"]

BEGIN, END = 0.1, 0.8

# Above this density every block has most of its atoms: there is nothing to bring back.
REGROW_BELOW = 0.5


class Path(TypedDict):
    """Where a group is on its path: plain data, which a ``state_dict`` holds.

    Attributes:
        step: gradients that were consumed.
        steps: gradients in all.
        begin: the part of them after which atoms leave.
        end: the part of them after which none leave.
        every: gradients between two cuts.
        pool: groups of one pool share their atoms.
        start: the density at step 0.
        target: the density after ``end``.
        density: the density now.
        budget: the sum of the radii of all blocks at a density of one.
        by_itself: whether the optimizer advances the path with every step, or a scheduler does.
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


class DensityScheduler:
    """Lowers the density of an optimizer's sets with every step, in the manner of torch's learning-rate schedulers.

    The optimizer's sets must have been made with a ``density``, which is where their path ends. A path starts at the density
    that the weights have when the scheduler is made.

    Args:
        optimizer: a :class:`inface.FrankWolfe`.
        steps: gradients in all; one call of :meth:`step` each.
        begin: the part of the steps before the first atom leaves.
        end: the part of the steps after which no atom leaves.
        every: gradients between two cuts; by default about a hundredth of the path.
        share: ``"network"``: all groups of one density share their atoms; ``"layer"``: each group has its own.

    >>> import torch, inface
    >>> from inface.sets import L1Ball
    >>> _ = torch.manual_seed(0)
    >>> model, x = torch.nn.Linear(100, 3), torch.randn(32, 100)
    >>> opt = inface.FrankWolfe(model, {"weight": L1Ball(density=0.1)}, lr=0.1, in_face="projected")
    >>> scheduler = inface.DensityScheduler(opt, steps=50)
    >>> for _ in range(50):
    ...     opt.zero_grad()
    ...     model(x).square().mean().backward()
    ...     opt.step()
    ...     scheduler.step()
    >>> scheduler.get_last_density(), int(model.weight.count_nonzero()) <= 30
    ([0.1], True)
    """

    def __init__(
        self,
        optimizer: Optimizer,
        steps: int,
        *,
        begin: float = BEGIN,
        end: float = END,
        every: int | None = None,
        share: str = "network",
    ) -> None:
        if share not in ("network", "layer"):
            raise ValueError(f"DensityScheduler: share must be 'network' or 'layer', got {share!r}")
        groups = [group for group in optimizer.param_groups if group.get("set") is not None and group["set"].density]
        if not groups:
            raise ValueError("DensityScheduler: no set of the optimizer has a density; wanted L1Ball(density=...), say")
        check_path(steps, begin, end, every)
        pools = [str(group["set"].density) if share == "network" else str(i) for i, group in enumerate(groups)]
        attach(optimizer, groups, pools, steps=steps, begin=begin, end=end, every=every, by_itself=False)
        self.optimizer = optimizer

    def step(self) -> None:
        """Take the path one gradient further: call it after the optimizer's own step."""
        advance(self.optimizer, by_itself=False)

    def get_last_density(self) -> list[float]:
        """The density that each group is at."""
        return [path["density"] for path in self._paths()]

    def state_dict(self) -> dict[str, Any]:
        """Where the path is, as plain data. The optimizer's own ``state_dict`` has it too."""
        return {"paths": [dict(path) for path in self._paths()]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where another scheduler was."""
        saved, paths = state_dict.get("paths"), self._paths()
        if not isinstance(saved, list) or len(saved) != len(paths):
            raise ValueError(f"DensityScheduler: wanted the paths of {len(paths)} groups, got {saved!r:.60}")
        for path, found in zip(paths, saved, strict=True):
            if not isinstance(found, dict) or set(found) != set(path):
                raise ValueError(f"DensityScheduler: wanted a path with {', '.join(path)}, got {found!r:.60}")
        for path, found in zip(paths, saved, strict=True):
            path.update(found)

    def _paths(self) -> list[Path]:
        return [group["path"] for group in self.optimizer.param_groups if group["path"] is not None]


def check_path(steps: object, begin: float, end: float, every: object, caller: str = "DensityScheduler") -> None:
    """Raise a ValueError if these are not numbers of a path."""
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"{caller}: steps must be a whole number >= 1, the gradients in all, got {steps!r}")
    if not 0 <= begin < end <= 1:
        raise ValueError(f"{caller}: wanted 0 <= begin < end <= 1, got begin={begin!r}, end={end!r}")
    if every is not None and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
        raise ValueError(f"{caller}: every must be None or a whole number >= 1, got {every!r}")


def attach(
    optimizer: Optimizer,
    groups: Sequence[dict[str, Any]],
    pools: Sequence[str],
    *,
    steps: int,
    begin: float = BEGIN,
    end: float = END,
    every: int | None = None,
    by_itself: bool,
) -> None:
    """Put groups on a path to the densities of their sets, from the densities and the lengths that their weights have."""
    for group, pool in zip(groups, pools, strict=True):
        layer = _layer(optimizer, group)
        sizes = layer.sizes
        length = torch.linalg.vector_norm(sizes, dim=1)
        budget = float(length.sum()) * sizes.shape[1] ** 0.5
        start = float((sizes > 0).double().mean())
        group["path"] = Path(
            step=0,
            steps=steps,
            begin=float(begin),
            end=float(end),
            every=max(1, round((end - begin) * steps / 100)) if every is None else every,
            pool=pool,
            start=start,
            target=float(group["set"].density),
            density=start,
            budget=budget,
            by_itself=by_itself,
        )
        _share(layer, start)


def warm_up(path: Path | None) -> float:
    """The factor of relative steps: it rises while the path has not begun.

    >>> warm_up(None)
    1.0
    """
    if path is None or not path["begin"]:
        return 1.0
    return min(1.0, (path["step"] + 1) / (path["begin"] * path["steps"]))


def regrows(path: Path | None) -> bool:
    """Whether Frank-Wolfe steps may add atoms: always without a path, on one while atoms leave and most have left."""
    return path is None or (path["density"] < REGROW_BELOW and path["step"] < path["end"] * path["steps"])


def advance(optimizer: Optimizer, *, by_itself: bool) -> None:
    """Take the paths of an optimizer one gradient further, and cut what has to go."""
    groups = [
        group
        for group in optimizer.param_groups
        if group["path"] is not None and group["path"]["by_itself"] is by_itself
    ]
    for pool in dict.fromkeys(group["path"]["pool"] for group in groups):
        _advance(optimizer, [group for group in groups if group["path"]["pool"] == pool])


def unfinished(groups: Sequence[Mapping[str, Any]]) -> str | None:
    """What to say of paths that were begun and not walked to their end; None if there are none."""
    for group in groups:
        path = group.get("path")
        if path is not None and 0 < path["step"] < path["steps"]:
            return (
                f"stopped after {path['step']} of the {path['steps']} steps that were announced, at a density of "
                f"{path['density']:.3g} on the way to {path['target']:.3g}"
            )
    return None


class _Layer(NamedTuple):
    """The weights of a group on a path."""

    optimizer: Optimizer
    group: dict[str, Any]
    unit: Unit
    x: Tensor

    @property
    def sizes(self) -> Tensor:
        return self.unit.set.atom_sizes(self.x)

    def put(self, x: Tensor) -> None:
        states = [self.optimizer.state[p] for p in self.unit.params]
        write(self.unit, states, self.unit.tensors(x))


def _layer(optimizer: Optimizer, group: dict[str, Any]) -> _Layer:
    (unit,) = units(group, 0)
    states = [optimizer.state[p] for p in unit.params]
    return _Layer(optimizer, group, unit, unit.blocks([x.detach() for x in unit_weights(unit, states)]))


@torch.no_grad()
def _advance(optimizer: Optimizer, groups: Sequence[dict[str, Any]]) -> None:
    path: Path = groups[0]["path"]
    step = path["step"] + 1
    begin, end = path["begin"] * path["steps"], path["end"] * path["steps"]
    done = min(1.0, max(0.0, (step - begin) / (end - begin)))
    last = step - 1 < end <= step or step == path["steps"]
    for group in groups:
        group["path"]["step"] = step
    if not (last or step % path["every"] == 0):
        return
    layers = [_layer(optimizer, group) for group in groups]
    if begin < step and (step <= end or last):
        path["density"] = (
            path["target"] + (path["start"] - path["target"]) * (1 - done) ** 3 if done < 1 else path["target"]
        )
        layers = list(_cut(layers, path["density"]))
    for layer in layers:
        layer.group["path"]["density"] = path["density"]
        _share(layer, path["density"])


def _cut(layers: Sequence[_Layer], density: float) -> Iterator[_Layer]:
    """The layers with the atoms of the highest scores alone: at most this share of all."""
    sizes = [layer.sizes for layer in layers]
    room = int(density * sum(size.numel() for size in sizes) + 1e-6)
    places = [size.flatten().nonzero().flatten() for size in sizes]
    found = [_lamp(size.flatten()[place]) for size, place in zip(sizes, places, strict=True)]
    scores = torch.cat([score for score, _ in found])
    surplus = scores.numel() - room
    threshold = scores.kthvalue(surplus).values if surplus > 0 else -1.0
    for layer, size, place, (score, order) in zip(layers, sizes, places, found, strict=True):
        gone = place[order[: int((score <= threshold).sum())]]
        keep = torch.ones_like(size, dtype=torch.bool)
        keep.view(-1)[gone] = False
        x = layer.unit.set.keep_atoms(layer.x, keep)
        layer.put(x)
        yield layer._replace(x=x)


def _lamp(sizes: Tensor) -> tuple[Tensor, Tensor]:
    """The LAMP scores in rising order, and that order."""
    ordered, order = sizes.double().sort()
    squares = ordered.square()
    return squares / squares.flip(0).cumsum(0).flip(0).clamp(min=torch.finfo(torch.float64).tiny), order


def _share(layer: _Layer, density: float) -> None:
    """Give the blocks of a layer radii that share its budget in proportion to their norms; shrink what is over it."""
    group, set_ = layer.group, layer.unit.set
    norms = set_.block_norm(layer.x)
    total = float(norms.sum())
    if not total > 0:
        return
    scale = group["path"]["budget"] * density**0.5 / total
    if scale < 1:
        layer.put(layer.x * scale)
    radii = (norms * scale).clamp(min=1e-12 * total * scale)
    group["set"] = group["set"].with_radius(radii if len(radii) > 1 else float(radii[0]))
    for p in group["params"]:
        constrain(p, group["set"])
