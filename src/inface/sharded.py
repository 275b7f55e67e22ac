"""Steps on parameters that several processes hold together (DTensors): the same steps, on ordinary tensors.

Between ``FrankWolfe.step`` and its two step paths stands :class:`Shards`. For every DTensor it has a *twin*, an ordinary
tensor, and for every group of the optimizer one or more groups of twins. A step is:

1. **down**: twins get the values, the gradients and the state of their DTensors;
2. an ordinary step on the groups of twins, which knows nothing of processes;
3. **up**: DTensors get the values and the state of their twins. State is made of DTensors with the placements of the
   parameter, so that distributed checkpoints can cut it in another way.

What a twin is depends on where the blocks of the set lie:

=========  ===========================================================================  =======================
twin       for                                                                          sent in a step
=========  ===========================================================================  =======================
*part*     blocks that lie whole on a process: ``Shard(0)`` with ``per="output"``,      nothing (relative steps:
           ``Shard(1)`` with ``per="input"``, and free parameters under the norms       a few numbers)
           ``l2`` and ``adaptive``. It is ``to_local()`` itself: nothing is copied.
           Radii and gradient bounds of blocks are cut as the parameter is.
*replica*  ``Replicate()``: also ``to_local()`` itself; every process does the same.    nothing
*whole*    everything else: the other sets, and free parameters under ``l1``, ``linf``  weight, gradient, state
           and ``spectral``. Every process gathers all of it, does the same step, and
           keeps its own part: one parameter at a time, unless they share
           a norm or a block. The memory is given back then.
=========  ===========================================================================  =======================

Processes with different kinds of blocks would do different things, and wait for each other. So a parameter is taken *whole*
too if some of its blocks are free and its steps are relative, adaptive or preconditioned; or if a process may hold nothing
of it and its steps are relative, or blocks of it are free. A group whose parameters are one block (``per="group"``) has no
parts.

Numbers of parts are added up over the processes when ``gap`` or ``report()`` are read, which all processes must do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from .dtensors import (
    MARK,
    Holders,
    holders,
    is_sharded,
    local,
    own_part,
    sharding,
    some_are_empty,
    total,
    whole,
    whole_blocks,
    wrap,
)
from .gap import BlockGaps, FreeNorm
from .sets import Set
from .sets.base import EXACT, computable, wide
from .state import create
from .units import names_of, units

__all__ = ["Engine", "Shards", "any_sharded"]

State = dict[str, Any]
States = MutableMapping[Tensor, State]
Group = dict[str, Any]

# What has a number for each entry of its parameter.
ENTRIES = ("master", "momentum_buffer", "exp_avg", "exp_avg_sq")

# The norms under which a step of a free parameter looks at each entry by itself.
BY_ENTRY = ("l2", "adaptive")


class Engine(Protocol):
    """An optimizer of ordinary tensors."""

    param_groups: list[Group]
    state: Any

    _outside: list[str]

    def _halves(self, some: Sequence[int]) -> list[int]:
        """One half of an iteration of some groups; those that moved."""

    def _gaps_of(self, index: int, group: Group) -> list[BlockGaps]:
        """The gaps of the blocks of a group."""

    def _free_norm_of(self, index: int) -> FreeNorm | None:
        """The norm of a group's free gradient."""

    def _counts_of(self, index: int, group: Group) -> Tensor:
        """What the blocks of a group did."""


@dataclass
class Twin:
    """An ordinary tensor that stands for a DTensor, or for the part of it that this process holds."""

    p: Any
    tensor: Tensor
    holders: Holders | None = None  # of a part
    gathered: bool = False
    taken: State = field(default_factory=dict)  # the state as it came down
    version: int = -1  # of the DTensor's own part when it was written to

    def down(self, state: State) -> State:
        """Take the values and the gradient; the twin's state."""
        twin, p = self.tensor, self.p
        if self.gathered:
            twin.data = whole(p)
            if local(p)._version != self.version:
                twin.mul_(1)  # so that the step sees that somebody else wrote to it
        twin.requires_grad_(p.requires_grad)
        g = p.grad
        if g is not None:
            g = g if g.placements == p.placements else g.redistribute(placements=p.placements)
            g = whole(g) if self.gathered else local(g)
        twin.grad = g
        for key in ENTRIES:
            if key in state:
                state[key] = _placed(state[key], p)
        self.taken = {key: self._down(value) if key in ENTRIES else value for key, value in state.items()}
        return dict(self.taken)

    def up(self, state: State, new: State) -> None:
        """Give back the values, and the state ``new`` of the twin."""
        if self.gathered:
            part = local(self.p)
            part.copy_(own_part(self.tensor, self.p))
            self.version = part._version
        for key in state.keys() - new.keys():
            del state[key]
        for key, value in new.items():
            if key not in ENTRIES:
                state[key] = value
            else:
                self._keep(state, key, value)
        if self.p.dtype not in EXACT and not self.tensor.numel():
            state.setdefault("master", computable(self.p.detach()).clone())  # as the others have

    def _keep(self, state: State, key: str, value: Tensor) -> None:
        if value is not self.taken.get(key):
            state[key] = wrap(own_part(value, self.p).clone() if self.gathered else value, self.p)
        elif self.gathered:
            local(state[key]).copy_(own_part(value, self.p))

    def release(self) -> None:
        """Give back memory that is not the DTensor's."""
        self.tensor.grad = None
        self.taken = {}
        if self.gathered:
            self.tensor.untyped_storage().resize_(0)

    def fits(self, gathered: bool) -> bool:
        """Whether it is still what stands for its DTensor."""
        if gathered is not self.gathered:
            return False
        if gathered:
            return self.tensor.dtype is self.p.dtype
        part = local(self.p)
        return (
            part.data_ptr() == self.tensor.data_ptr()
            and part.shape == self.tensor.shape
            and part.stride() == self.tensor.stride()
            and part.dtype is self.tensor.dtype
        )

    def _down(self, value: Tensor) -> Tensor:
        return whole(value) if self.gathered else local(value)


class Shards:
    """The twins of an optimizer's DTensors, and an optimizer of them."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._twins: dict[Tensor, Twin] = {}
        # Sets and gradient bounds of parts, beside what they were cut from.
        self._cuts: dict[object, tuple[object, Any]] = {}
        self._outer: list[int] = []  # for every group of twins, the group that it is of

    def step(self, groups: list[Group], states: States) -> list[int]:
        """One half of an iteration of all groups; those that moved."""
        self._arrange(groups)
        self._twins = {p: self._twins[p] for group in groups for p in group["params"] if p in self._twins}
        present = {p: group for group in groups for p in _present(group)}
        of_twins = {twin.tensor: twin for twin in self._twins.values()}
        dear: list[int] = []
        cheap: list[int] = []
        for i, group in enumerate(self.engine.param_groups):
            gathered = any(p in of_twins and of_twins[p].gathered for p in group["params"])
            (dear if gathered else cheap).append(i)
        moved = []
        for some in (cheap, *([i] for i in dear)):  # so that little is gathered at a time
            members = [(p, of_twins.get(p)) for i in some for p in self.engine.param_groups[i]["params"]]
            moved += self._step(some, members, present, states)
        return sorted({self._outer[index] for index in moved})

    def _step(
        self,
        some: list[int],
        members: list[tuple[Tensor, Twin | None]],
        present: dict[Tensor, Group],
        states: States,
    ) -> list[int]:
        """The same of some groups, which have these members: twins, and parameters that need none."""
        own: States = defaultdict(dict)
        twins = [twin for _, twin in members if twin is not None and twin.p in present]
        self.engine.state = own
        try:
            for twin in twins:
                create(states[twin.p], twin.p, present[twin.p])  # of the whole parameter: processes must have the same
                own[twin.tensor] = twin.down(states[twin.p])
            for p, other in members:
                if other is None and p in present:
                    own[p] = states[p]
            moved = self.engine._halves(some)
            for twin in twins:
                twin.up(states[twin.p], own[twin.tensor])
        finally:
            self.engine.state = defaultdict(dict)
            for twin in twins:
                twin.release()
        return moved

    def outside(self) -> list[str]:
        """The names of what this process found outside of its set in the last step."""
        found = list(self.engine._outside)
        self.engine._outside.clear()
        return found

    def parts(self, groups: list[Group]) -> Iterator[tuple[int, BlockGaps | FreeNorm]]:
        """The gaps of all blocks and the norms of free gradients, by group: added up over the processes."""
        known: dict[tuple[int, str], tuple[Tensor, Any]] = {}
        for inner, index in enumerate(self._outer):
            group = self.engine.param_groups[inner]
            for part in self.engine._gaps_of(inner, group) if group["set"] is not None else ():
                sizes = list(part.parameters.values())
                for name, gaps in zip(part.parameters, part.gaps.split(sizes), strict=True):
                    known[index, name] = (gaps, part.lr)
        for index, group in enumerate(groups):
            for unit in units(group, index) if group["set"] is not None else ():
                twin, found = self._twins.get(unit.params[0]), known.get((index, unit.name))
                if twin is not None and twin.holders is not None:
                    found = _everywhere(twin.tensor, twin.holders, found)
                if found is not None and any(p.requires_grad for p in unit.params):
                    gaps, lr = found
                    yield index, BlockGaps({unit.name: len(gaps)}, gaps, unit.diameter(), lr, group["gradient_bound"])
        for inner, index in enumerate(self._outer):
            norm = self._free_norm(inner, groups[index]["set"])
            if norm is not None:
                yield index, norm

    def _free_norm(self, inner: int, set_: Set | None) -> FreeNorm | None:
        """The norm of the free gradient of a group of twins, on all processes."""
        norm, first = self.engine._free_norm_of(inner), self._first(inner)
        if first is None or (set_ is not None and set_.free is None):
            return norm
        numbers = [0.0, 0.0, 0.0] if norm is None else [norm.square, norm.lr, 1.0]
        square, lr, times = total(first, _stacked(numbers, first))
        return FreeNorm(square, lr / times) if bool(times > 0) else None

    def counts(self) -> Iterator[Tensor]:
        """What the blocks of every group did, on all processes."""
        for inner in range(len(self._outer)):
            counts, first = self.engine._counts_of(inner, self.engine.param_groups[inner]), self._first(inner)
            yield counts if first is None else total(first, counts.to(first.device))

    def _first(self, inner: int) -> Tensor | None:
        """The first tensor of a group of parts; None if it is a group of something else."""
        params = self.engine.param_groups[inner]["params"]
        return params[0] if params and hasattr(params[0], MARK) else None

    def _arrange(self, groups: list[Group]) -> None:
        """Make the groups of twins, as the groups are now."""
        self._outer, made = [], []
        for index, group in enumerate(groups):
            for one in self._divided(index, group):
                made.append(one)
                self._outer.append(index)
        self.engine.param_groups = made

    def _divided(self, index: int, group: Group) -> list[Group]:
        """A group as groups of twins: parts that are cut differently have sets of their own."""
        if not any_sharded(group["params"]):
            return [group]
        found: dict[object, Group] = {}
        for p, name in zip(group["params"], names_of(group, index), strict=True):
            twin = self._twin(p, group) if is_sharded(p) else None
            held = None if twin is None else twin.holders
            cut = held is not None and any(_by_block(group, option) for option in ("set", "gradient_bound"))
            key: object = None
            if held is not None:
                key = held.groups, p.shape if cut else None, p.placements if cut else None
            elif twin is not None and twin.gathered and _alone(group):
                key = name
            if key not in found:
                found[key] = {**group, "params": [], "param_names": []}
                if held is not None and cut:
                    found[key] |= self._cut(index, key, group, held)
            found[key]["params"].append(p if twin is None else twin.tensor)
            found[key]["param_names"].append(name)
        return list(found.values())

    def _cut(self, index: int, key: object, group: Group, held: Holders) -> Group:
        """The options of a group that have a number for each block, for the blocks that are here."""
        made: Group = {}
        for option in ("set", "gradient_bound"):
            if not _by_block(group, option):
                continue
            source, kept = group[option], self._cuts.get((index, key, option))
            if kept is None or kept[0] is not source:
                values: Tensor = source.radius if isinstance(source, Set) else source  # type: ignore[assignment]
                values = values[held.index.to(values.device)]
                kept = source, source.with_radius(values) if isinstance(source, Set) else values
                self._cuts[index, key, option] = kept
            made[option] = kept[1]
        return made

    def _twin(self, p: Any, group: Group) -> Twin:
        gathered, twin = _gathered(p, group), self._twins.get(p)
        if twin is None or not twin.fits(gathered):
            set_ = group["set"]
            if gathered:
                twin = Twin(p, torch.empty(p.shape, dtype=p.dtype, device=local(p).device), gathered=True)
                twin.release()
            else:
                twin = Twin(p, local(p).detach())
                if sharding(p):
                    twin.holders = holders(p, None if set_ is None else set_.per)
                    setattr(twin.tensor, MARK, twin.holders)
            self._twins[p] = twin
        return twin


def any_sharded(params: Iterable[Tensor]) -> bool:
    """Whether one of the parameters is a DTensor."""
    return any(is_sharded(p) for p in params)


def _gathered(p: Any, group: Group) -> bool:
    """Whether a step needs all of a DTensor."""
    set_: Set | None = group["set"]
    if not sharding(p):
        return False
    if (set_ is None or set_.free is not None) and group["norm"] not in BY_ENTRY:
        return True
    if set_ is None:
        return False
    if not whole_blocks(p, set_.per):
        return True
    relative, partly = group["relative"] is not None, set_.free is not None and not set_.all_free
    if partly and (relative or group["norm"] == "adaptive" or group["precondition"]):
        return True
    return (relative or set_.free is not None) and some_are_empty(p)


def _alone(group: Group) -> bool:
    """Whether the steps of a group's parameters have nothing to do with each other."""
    set_: Set | None = group["set"]
    return set_ is not None and set_.per != "group" and set_.free is None


def _present(group: Group) -> list[Tensor]:
    """The parameters of a group that have state after a step."""
    present = [p for p in group["params"] if p.grad is not None and p.numel()]
    if present and group["set"] is not None and group["set"].per == "group":
        return [p for p in group["params"] if p.numel()]
    return present


def _by_block(group: Group, option: str) -> bool:
    """Whether an option has a number for each block."""
    value = group[option].radius if isinstance(group[option], Set) else group[option]
    return isinstance(value, Tensor) and value.numel() > 1


def _placed(value: Tensor, p: Any) -> Tensor:
    """State of a DTensor, cut as it is: what was saved by one process, or for other placements, may not be."""
    if not is_sharded(value):
        return wrap(own_part(value, p).clone(), p)
    if value.placements != p.placements:
        return value.redistribute(placements=p.placements)
    return value


def _everywhere(twin: Tensor, held: Holders, found: tuple[Tensor, Any] | None) -> tuple[Tensor, Any] | None:
    """The gaps of all blocks of a parameter, and its learning rate, from the processes that know them."""
    numbers = torch.zeros(held.count + 2, dtype=wide(twin), device=twin.device)
    if found is not None:
        numbers[held.index] = found[0].to(numbers)
        numbers[held.count :] = _stacked([found[1], 1.0], twin)
    numbers = total(twin, numbers)
    times = numbers[-1]
    return (numbers[: held.count], numbers[-2] / times) if bool(times > 0) else None


def _stacked(numbers: Iterable[float | Tensor], like: Tensor) -> Tensor:
    return torch.stack(
        [torch.as_tensor(number, dtype=wide(like), device=like.device).reshape(()) for number in numbers]
    )
