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

import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypedDict

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from .descent import gradient, momentum_weight
from .dtensors import is_sharded, keep, whole
from .halves import forget
from .registry import constrain
from .sets.base import can_look, computable, spread, wide
from .state import unit_weights, write
from .units import Unit, names_of, units
from .warning import warn

__all__ = [
    "DensityScheduler", "Path", "advance", "announce", "attach", "check_announced", "keeping_blocks", "regrows", "room",
    "warm_up",
]  # fmt: skip

BEGIN, END = 0.1, 0.8

# A path's balls are three times as large as the length of a layer at its start asks for. Trained layers are longer than new ones,
# and where nothing behind them rescales what they compute, that is how outputs become certain: small networks underfit
# without this room. With much more of it there is no pressure to leave edges out.
ROOM = 3.0

# The length of a node as PyTorch initialises it: uniform in +-1 / sqrt(n). Layers that start shorter, as heads and
# transformers often do, may grow to it.
USUAL = 3**-0.5

# Above this density every block has most of its atoms: Frank-Wolfe steps have nothing to bring back.
REGROW_BELOW = 0.5

# On the way to a density above that, edges that met zero return on its other side, of this size, relative to the mean.
RETURN = 1e-3


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
) -> None:
    """Put groups on a path to the densities of their sets, from the densities and the lengths that their weights have.

    Raises:
        ValueError: a density that leaves less than one atom to each layer, before anything is modified.
    """
    every = _between_cuts(begin, end, steps) if every is None else int(every)
    layers = [_layer(optimizer, group) for group in groups]
    sizes = [layer.sizes for layer in layers]
    made: list[Path] = []
    for pool, group, each in zip(pools, groups, every_block or [False] * len(groups), strict=True):
        own = [size for size, other in zip(sizes, pools, strict=True) if other == pool]
        total = sum(size.numel() for size in own)
        if room(group["set"].density, total) < len(own):
            raise ValueError(
                f"{_caller(by_itself)}: density {group['set'].density:g} leaves {room(group['set'].density, total)} of {total} "
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
            )
        )
    for group, layer, size, path in zip(groups, layers, sizes, made, strict=True):
        if _goes_on(group["path"], path):
            continue
        path["budget"] = _budget(size, path["target"])
        group["path"] = path
        with torch.no_grad():
            _share(layer, float((size > 0).double().mean()), shrink=False)


def _budget(sizes: Tensor, target: float) -> float:
    """The sum of the radii of all blocks at a density of one.

    Where less than a half has to leave, there is more room: at a density of one a ball would bound nothing.
    """
    length = torch.linalg.vector_norm(sizes, dim=1).clamp(min=USUAL)
    room_ = ROOM * max(1.0, 0.5 / max(1 - target, 0.01))
    return room_ * float(length.sum()) * sizes.shape[1] ** 0.5


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
    for group in optimizer.param_groups:
        path: Path | None = group.get("path")
        if path is not None and not path["steps"]:
            path["steps"], path["every"] = steps, _between_cuts(path["begin"], path["end"], steps)


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
    cut: list[dict[str, Any]] = []
    for pool in dict.fromkeys(group["path"]["pool"] for group, moves in groups if moves):
        members = [group for group, _ in groups if group["path"]["pool"] == pool]
        cut += members if _advance(optimizer, members) else []
    if cut and hasattr(optimizer, "_count"):
        optimizer._count(cut)  # noqa: SLF001 - layers that leave out their zeros have other ones


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


class _Layer(NamedTuple):
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


def _layer(optimizer: Optimizer, group: dict[str, Any]) -> _Layer:
    (unit,) = units(group, 0)
    states = [optimizer.state.get(p, {}) for p in unit.params]  # an empty state would look like one that was begun
    if any(is_sharded(p) for p in unit.params):
        unit = unit._replace(params=[whole(p) for p in unit.params])
        states = [{"master": whole(state["master"])} if "master" in state else {} for state in states]
    x = unit.blocks([computable(x.detach()) for x in unit_weights(unit, states)])
    return _Layer(optimizer, group, unit, states, x)


@torch.no_grad()
def _advance(optimizer: Optimizer, groups: Sequence[dict[str, Any]]) -> bool:
    path: Path = groups[0]["path"]
    step = path["step"] + 1
    begin, end = path["begin"] * path["steps"], path["end"] * path["steps"]
    done = min(1.0, max(0.0, (step - begin) / (end - begin)))
    last = step - 1 < end <= step or step == path["steps"]
    for group in groups:
        group["path"]["step"] = step
    if not (last or step % path["every"] == 0):
        return False
    layers = [_layer(optimizer, group) for group in groups]
    density = path["density"]
    if begin < step and (step <= end or last):
        cubic = path["target"] + (path["start"] - path["target"]) * (1 - done) ** 3 if done < 1 else path["target"]
        falls = path["start"] > path["target"]
        density = min(density, cubic) if falls else cubic  # one that was made longer on the way does not rise again
        if step - path["every"] <= begin:
            _warn_of_unreached(layers)
        layers = list(_cut(layers, density))
    if path["by_itself"] and path["target"] >= REGROW_BELOW and step < path["steps"]:
        layers = list(_returned(layers, density))
    for layer in layers:
        layer.group["path"]["density"] = density
        if not layer.unit.set.all_free or (step > begin and _enter(layer, last=done == 1)):
            _share(layer, density)
    return True


def _warn_of_unreached(layers: Sequence[_Layer]) -> None:
    names = [name for layer in layers if not _is_reached(layer) for name in names_of(layer.group, 0)]
    if names and len(names) < len(layers):
        path: Path = layers[0].group["path"]
        warn(
            f"{_caller(path['by_itself'])}: no gradient reached {', '.join(names[:3])}"
            f"{f' and {len(names) - 3} more' if len(names) > 3 else ''} in {path['step']} steps; weights leave there before "
            f"they leave layers that are used"
        )


def _caller(by_itself: bool) -> str:
    return "sparse_optimizer" if by_itself else "DensityScheduler"


def _enter(layer: _Layer, *, last: bool) -> bool:
    """Bound a layer that started at zero and moved freely, once it has weights; at the end of a path, whatever it has."""
    group, sizes = layer.group, layer.sizes
    if not (last or bool(sizes.any())):
        return False
    group["path"]["budget"] = _budget(sizes, group["path"]["target"])
    group["set"] = group["set"].with_radius(group["path"]["budget"] / len(sizes))
    for p in group["params"]:
        state = layer.optimizer.state.get(p, {})
        state.pop("exp_avg", None)
        if state.get("momentum_buffer") is not None:
            state["momentum_buffer"] /= momentum_weight(group)  # constrained layers keep the average
    return True


def _cut(layers: Sequence[_Layer], density: float) -> Iterator[_Layer]:
    """The layers with the atoms of the highest scores alone: at most this share of all."""
    sizes = [layer.sizes for layer in layers]
    safe = [_safe(layer, size) for layer, size in zip(layers, sizes, strict=True)]
    ordered = [_ordered(torch.where(stays, 0, size).flatten()) for size, stays in zip(sizes, safe, strict=True)]
    scores = []
    for layer, size, stays, values in zip(layers, sizes, safe, ordered, strict=True):
        found = _lamp(values, size[stays])
        scores.append(found if _is_reached(layer) else _first_to_go(found))
    kept = sum(int(stays.sum()) for stays in safe)
    surplus = sum(score.numel() for score in scores) - (room(density, sum(size.numel() for size in sizes)) - kept)
    if surplus <= 0:
        yield from layers
        return
    threshold = torch.cat(scores).kthvalue(surplus).values
    for layer, size, stays, values, score in zip(layers, sizes, safe, ordered, scores, strict=True):
        gone = int((score <= threshold).sum())
        keep = size > 0
        if gone:
            keep = _largest(torch.where(stays, 0, size).flatten(), values, len(values) - gone).view(size.shape) | stays
        cut = layer._replace(x=layer.unit.set.keep_atoms(layer.x, keep))
        if gone and layer.group["in_face"] == "projected":
            _forget(layer, cut.x)
        yield cut


def _safe(layer: _Layer, sizes: Tensor) -> Tensor:
    """The atoms that no cut takes: the largest of each block, where every block has to keep one."""
    stays = torch.zeros_like(sizes, dtype=torch.bool)
    if layer.group["path"]["every_block"]:
        stays.scatter_(1, sizes.argmax(1, keepdim=True), value=True)
    return stays


@contextmanager
def keeping_blocks(
    group: dict[str, Any], found: Sequence[Unit], states: Mapping[Tensor, dict[str, Any]]
) -> Iterator[None]:
    """Within it, blocks that must keep an atom do not vanish: a step that would leave them none is not taken."""
    if group["path"] is None or not group["path"]["every_block"]:
        yield
        return
    before = [unit.blocks(unit_weights(unit, [states[p] for p in unit.params])).clone() for unit in found]
    yield
    for unit, old in zip(found, before, strict=True):
        own = [states[p] for p in unit.params]
        x = unit.blocks(unit_weights(unit, own))
        gone = ~x.flatten(1).any(1)
        if not can_look(x) or bool(gone.any()):
            write(unit, own, unit.tensors(torch.where(spread(gone, x), old, x)))


def _returned(layers: Sequence[_Layer], density: float) -> Iterator[_Layer]:
    """The layers with edges back that in-face steps left at zero, as many as the density has room for.

    A step in a face changes no sign: what crosses zero stays there. Those that are pulled most, relative to their layer,
    go on to the side that they are pulled to.
    """
    sizes = [layer.sizes for layer in layers]
    missing = room(density, sum(size.numel() for size in sizes)) - sum(int(size.count_nonzero()) for size in sizes)
    pulls = [_pull(layer) for layer in layers]
    strengths = [torch.where(size > 0, 0, pull.abs()) for size, pull in zip(sizes, pulls, strict=True)]
    places = torch.cat([strength.flatten() for strength in strengths])
    chosen = torch.zeros_like(places, dtype=torch.bool)
    if missing > 0:
        chosen[places.topk(min(missing, len(places))).indices] = True
    parts = (chosen & (places > 0)).split([size.numel() for size in sizes])
    for layer, size, pull, part in zip(layers, sizes, pulls, parts, strict=True):
        small = RETURN * size.sum() / size.count_nonzero().clamp(min=1)
        new = torch.where(part.view(size.shape), pull.sign() * small, 0).view(layer.x.shape).to(layer.x.dtype)
        yield layer._replace(x=layer.x + new)


def _pull(layer: _Layer) -> Tensor:
    """Where the averaged gradient of each edge pulls it, relative to the layer; 0 if nothing is known."""
    states = [layer.optimizer.state.get(p, {}) for p in layer.params]
    if layer.unit.set.all_free or any(p.grad is None for p in layer.params):
        return torch.zeros_like(layer.sizes)
    found = []
    for p, state in zip(layer.params, states, strict=True):
        g = gradient(layer.group, p)
        m = state.get("momentum_buffer", g)  # which has nothing of what in-face steps did not look at
        found.append(whole(torch.where(torch.isnan(m), g, m)))
    g = layer.unit.blocks(found).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    g = g.view(layer.sizes.shape).to(layer.sizes.dtype)
    return -g / g.abs().mean().clamp(min=1e-30)


def _is_reached(layer: _Layer) -> bool:
    """Whether gradients have reached a layer, or it was frozen: what is frozen may serve, what has no gradient does not."""
    if layer.group["relative"] is None or layer.unit.set.all_free:
        return True  # nothing is known of its gradients
    states = [layer.optimizer.state.get(p, {}) for p in layer.params]
    sizes = [max(float(state.get(key, 0.0)) for key in ("gradient_size", "gradient_norm")) for state in states]
    return any(size > 0 or not p.requires_grad for size, p in zip(sizes, layer.params, strict=True))


def _first_to_go(scores: Tensor) -> Tensor:
    """Scores below those of all other layers, but for the largest atom, which stays."""
    return torch.where(scores < 1, scores - 1, scores)


def _forget(layer: _Layer, cut: Tensor) -> None:
    """What leaves has no momentum any more: projected steps do not look at its gradients."""
    used = layer.unit.set.in_use(layer.x)
    buffers = [layer.optimizer.state.get(p, {}).get("momentum_buffer") for p in layer.params]
    if used is None or any(buffer is None for buffer in buffers):
        return
    m = forget(layer.unit.set, used, cut, layer.unit.blocks([whole(buffer) for buffer in buffers]))
    for buffer, rest in zip(buffers, layer.unit.tensors(m), strict=True):
        keep(buffer, rest)


def _ordered(sizes: Tensor) -> Tensor:
    """What is not zero, in rising order."""
    if sizes.is_cpu:
        # Many times as fast as torch's sort, which keeps the places too.
        ordered = torch.from_numpy(np.sort(sizes.numpy()))
        return ordered[int(torch.searchsorted(ordered, 0.0, right=True)) :]
    return sizes[sizes > 0].sort().values


def _lamp(ordered: Tensor, others: Tensor) -> Tensor:
    """The LAMP scores of sizes in rising order, in a layer that has others, which stay: they rise too."""
    squares = ordered.to(wide(ordered)).square()
    larger = squares.flip(0).cumsum(0).flip(0)
    if others.numel():
        larger = larger + others.to(larger.dtype).square().sum()
    return squares / larger.clamp(min=torch.finfo(squares.dtype).tiny)


def _largest(sizes: Tensor, ordered: Tensor, count: int) -> Tensor:
    """Where the ``count`` largest are; of equal ones, those of lower index."""
    if not count:
        return torch.zeros_like(sizes, dtype=torch.bool)
    least = ordered[len(ordered) - count]
    keep = sizes >= least
    surplus = int(keep.sum()) - count
    if surplus:
        keep[(sizes == least).nonzero().flatten()[-surplus:]] = False
    return keep


def _share(layer: _Layer, density: float, *, shrink: bool = True) -> None:
    """Give the blocks of a layer radii that share its budget in proportion to their norms; shrink what is over it.

    The weights are written after their set is known: half precision is rounded into it.
    """
    group, unit = layer.group, layer.unit
    norms = unit.set.block_norm(layer.x)
    total = float(norms.sum())
    if total > 0:
        scale = group["path"]["budget"] * density**0.5 / total
        if scale < 1 and not shrink:
            scale = 1.0
        radii = (norms * scale).clamp(min=1e-12 * total * scale)
        group["set"] = group["set"].with_radius(radii if len(radii) > 1 else float(radii[0]))
        for p in group["params"]:
            constrain(p, group["set"])
        (fresh,) = units(group, 0)
        unit = fresh._replace(params=unit.params)
    if shrink:
        x = layer.x * scale if total > 0 and scale < 1 else layer.x
        write(unit, layer.states, unit.tensors(x))
        for p, own, state in zip(layer.params, unit.params, layer.states, strict=True):
            if is_sharded(p):
                keep(p, own)
                if "master" in state:
                    keep(layer.optimizer.state[p]["master"], state["master"])
