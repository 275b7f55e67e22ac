"""A path of densities: from the atoms that a model starts with to the share of them that is wanted.

An atom is what a set counts: an edge of an l1 ball, a group of a group-l1 ball, a rank of a nuclear ball. Between ``begin``
and ``end`` (parts of all steps) the density falls along a cubic. Now and then the atoms that matter least leave
(:mod:`inface.cuts`), and the blocks of a layer share the layer's budget (:mod:`inface.budgets`): :func:`advance` does both.
The optimizer's in-face steps train what is there, and now and then its Frank-Wolfe steps bring back what was dropped by
mistake.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .budgets import budget_of, enter, grow, share
from .cuts import cut, returned, warn_of_unreached
from .paths import REGROW_BELOW, Path, caller, in_face_steps_for, layer_of, room
from .units import names_of

__all__ = ["DensityScheduler", "advance", "announce", "attach", "check_announced", "checked_steps"]

BEGIN, END = 0.1, 0.8


class DensityScheduler:
    """Lowers the density of an optimizer's sets with every step, in the manner of torch's learning-rate schedulers.

    The optimizer's sets must have been made with a ``density``, which is where their path ends. A path starts at the density
    that the weights have when the scheduler is made. An optimizer that was loaded in the middle of the same path goes on.

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
        steps = checked_steps(steps, "DensityScheduler")
        _check_parts(begin, end, every)
        if any(group["path"] is not None and group["path"]["by_itself"] for group in groups):
            raise ValueError(
                "DensityScheduler: the optimizer follows a path by itself; wanted one without (FrankWolfe)"
            )
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


def checked_steps(steps: object, caller: str) -> int:
    """The steps of a path as a plain number: NumPy's and 0-d tensors are whole numbers too.

    Raises:
        ValueError: not a whole number >= 1.
    """
    found = _whole(steps)
    if found is None:
        raise ValueError(f"{caller}: steps must be a whole number >= 1, the gradients in all, got {steps!r}")
    return found


def _check_parts(begin: float, end: float, every: object) -> None:
    """Raise a ValueError if these are not the parts of a path."""
    numbers = all(isinstance(part, int | float) and not isinstance(part, bool) for part in (begin, end))
    if not numbers or not 0 <= begin < end <= 1:
        raise ValueError(f"DensityScheduler: wanted 0 <= begin < end <= 1, got begin={begin!r}, end={end!r}")
    if every is not None and _whole(every) is None:
        raise ValueError(f"DensityScheduler: every must be None or a whole number >= 1, got {every!r}")


def _whole(value: Any) -> int | None:
    """A whole number >= 1 of any type; None if it is something else."""
    if isinstance(value, bool) or (isinstance(value, Tensor) and (value.ndim or value.dtype is torch.bool)):
        return None
    try:
        found = operator.index(value)
    except TypeError:
        return None
    return found if found >= 1 else None


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
    every_block: Sequence[bool] | None = None,
    length: float = 0.0,
) -> None:
    """Put groups on a path to the densities of their sets, from the densities and the lengths that their weights have.

    Raises:
        ValueError: a density that leaves less than one atom to each layer, before anything is modified.
    """
    every = _between_cuts(begin, end, steps) if every is None else int(every)
    layers = [layer_of(optimizer, group) for group in groups]
    sizes = [layer.sizes for layer in layers]
    made: list[Path] = []
    for pool, group, each in zip(pools, groups, every_block or [False] * len(groups), strict=True):
        own = [size for size, other in zip(sizes, pools, strict=True) if other == pool]
        total = sum(size.numel() for size in own)
        if room(group["set"].density, total) < len(own):
            raise ValueError(
                f"{caller(by_itself)}: density {group['set'].density:g} leaves {room(group['set'].density, total)} of {total} "
                f"to {len(own)} layers, wanted at least one for each ({', '.join(names_of(group, 0)[:3])})"
            )
        start = sum(int(size.count_nonzero()) or size.numel() for size in own) / total
        target = float(group["set"].density)
        made.append(
            Path(
                step=0,
                steps=steps,
                begin=float(begin),
                end=float(end),
                every=every,
                pool=pool,
                start=start,
                target=target,
                density=start,
                budget=0.0,
                by_itself=by_itself,
                every_block=each,
                length=length,
            )
        )
    for group, layer, size, path in zip(groups, layers, sizes, made, strict=True):
        if _goes_on(group["path"], path):
            continue
        path["budget"] = budget_of(size, path["target"])
        group["path"] = path
        with torch.no_grad():
            share(layer, float((size > 0).double().mean()), shrink=False)


def announce(optimizer: Optimizer, steps: int) -> None:
    """Say how many gradients a training has, to an optimizer that was made with ``steps="auto"``.

    Paths whose length is known are left as they are. The integrations of frameworks call it when a training begins.

    >>> import torch, inface
    >>> model = torch.nn.Linear(100, 3)
    >>> opt = inface.sparse_optimizer(model, density=0.1, lr=0.1, steps="auto")
    >>> announce(opt, 500)
    >>> opt.param_groups[0]["path"]["steps"]
    500
    """
    steps = checked_steps(steps, "announce")
    unknown: list[Path] = [group["path"] for group in optimizer.param_groups if group.get("path")]
    unknown = [path for path in unknown if not path["steps"]]
    for path in unknown:
        path["steps"], path["every"] = steps, _between_cuts(path["begin"], path["end"], steps)
    if any(path["by_itself"] for path in unknown):
        for group in optimizer.param_groups:
            group["in_face_steps"] = in_face_steps_for(steps)


def check_announced(groups: Sequence[Mapping[str, Any]]) -> None:
    """Raise a ValueError if a step is to be taken on a path of unknown length."""
    if any(group["path"] is not None and not group["path"]["steps"] for group in groups):
        raise ValueError(
            'sparse_optimizer: steps is "auto"; wanted the gradients in all before the first step: '
            "steps=..., or inface.density.announce(optimizer, steps)"
        )


def _between_cuts(begin: float, end: float, steps: int) -> int:
    return max(1, round((end - begin) * steps / 100))


def _goes_on(found: Path | None, made: Path) -> bool:
    """Whether a group was loaded in the middle of the path that is to be made."""
    same = ("steps", "begin", "end", "every", "pool", "target", "by_itself")
    return found is not None and found["step"] > 0 and all(found[key] == made[key] for key in same)  # type: ignore[literal-required]


def advance(optimizer: Optimizer, *, by_itself: bool, moved: Collection[int] | None = None) -> None:
    """Take the paths of an optimizer one gradient further, and cut what has to go.

    Where it is said which groups ``moved``, the others, whose learning rate is 0 or which have no gradient, do not take
    their pool along.
    """
    groups = [
        (group, moved is None or index in moved)
        for index, group in enumerate(optimizer.param_groups)
        if group["path"] is not None and group["path"]["by_itself"] is by_itself
    ]
    changed: list[dict[str, Any]] = []
    for pool in dict.fromkeys(group["path"]["pool"] for group, moves in groups if moves):
        members = [group for group, _ in groups if group["path"]["pool"] == pool]
        changed += members if _advance(optimizer, members) else []
    if changed and hasattr(optimizer, "_count"):
        optimizer._count(changed)  # noqa: SLF001 - layers that leave out their zeros have other ones


@torch.no_grad()
def _advance(optimizer: Optimizer, groups: Sequence[dict[str, Any]]) -> bool:
    """Whether layers may have changed."""
    path: Path = groups[0]["path"]
    step = path["step"] + 1
    begin, end = path["begin"] * path["steps"], path["end"] * path["steps"]
    done = min(1.0, max(0.0, (step - begin) / (end - begin)))
    last = step - 1 < end <= step or step == path["steps"]
    for group in groups:
        group["path"]["step"] = step
    if not (last or step % path["every"] == 0):
        return False
    layers = [layer_of(optimizer, group) for group in groups]
    density = path["density"]
    if begin < step and (step <= end or last):
        cubic = path["target"] + (path["start"] - path["target"]) * (1 - done) ** 3 if done < 1 else path["target"]
        falls = path["start"] > path["target"]
        density = min(density, cubic) if falls else cubic  # one that was made longer on the way does not rise again
        if step - path["every"] <= begin:
            warn_of_unreached(layers)
        layers = list(cut(layers, density))
    if path["by_itself"] and density >= REGROW_BELOW and step < path["steps"]:
        layers = list(returned(layers, density))
    for layer in layers:
        layer.group["path"]["density"] = density
        if not layer.unit.set.all_free or (step > begin and enter(layer, last=done == 1)):
            grow(layer, density)
            share(layer, density)
    return True
