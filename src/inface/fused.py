"""Steps by compiled kernels: one call for all parameters of a group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .gap import BlockGaps
from .halves import take_half
from .kernels import PLAIN, Lists, Memory, Options, Table, addressable, alike, available, enabled, fits, knows
from .kernels.lists import DENSEST as LISTS
from .kernels.lists import Entries, version
from .sets import Set, blocks
from .sets.base import EXACT, InFace, computable
from .state import keep_average, unit_weights, write
from .support import Compute
from .units import Unit, units, with_gradients

__all__ = ["Fused"]

States = Mapping[Tensor, dict[str, Any]]

# Families of kernels whose projected steps look at entries that are not zero, and at nothing else.
LISTED = ("ball", "simplex")

# Above this density no layer leaves its zeros out.
DENSEST = 0.8


class Layers(NamedTuple):
    """The units of a group, in the order of its table; per unit, the learning rate of its last first half."""

    units: list[Unit]
    params: list[Tensor]  # one of each unit; none, if a unit has several, or blocks that are not rows
    members: list[tuple[int, torch.Size]]
    table: Table
    lrs: list[float | Tensor | None]


class Fused:
    """What the kernels keep of the groups of an optimizer."""

    def __init__(self) -> None:
        self._layers: dict[int, Layers] = {}
        self.lists = Lists()

    def step(self, index: int, group: dict[str, Any], states: States, options: Options) -> tuple[list[Unit], list[str]]:
        """Take one half of an iteration on everything in a group that has a gradient and that the kernels take.

        Returns the units that are left to do, and the names of those that were found outside of their set.
        """
        layers = self._of(index, group)
        if layers is None:
            return with_gradients(group, index), []
        left: list[Unit] = []
        memory = self._all_at_once(layers, states, options, group["in_face"])
        if memory is not None:
            calls = {(memory[0].x.dtype, states[memory[0].x]["phase"] > 0): list[Memory | None](memory)}
        else:
            calls = self._one_by_one(layers, states, options, left, group["in_face"])
        outside: list[str] = []
        for (_, second), some in calls.items():
            outside += self._call(layers, group, some, states, options, group["in_face"] if second else None)
        return left, outside

    def _all_at_once(
        self, layers: Layers, states: States, options: Options, in_face: InFace | None
    ) -> list[Memory] | None:
        """The memory of all layers, where they are all alike, as they nearly always are; None if they are not.

        The same checks as one by one, in one loop without calls: they are most of what a step on small layers costs.
        """
        params = layers.params
        if not params or not enabled() or params[0].grad is None:  # without a gradient there may be no state either
            return None
        dtype, second, momentum = params[0].dtype, states[params[0]]["phase"] > 0, bool(options.momentum)
        if dtype not in EXACT or not available(layers.table.set, dtype, in_face if second else None):
            return None
        memory = []
        for p, shape in zip(params, layers.table.shapes, strict=True):
            g = p.grad
            if g is None:
                return None
            state = states[p]
            if (
                (state["phase"] > 0) is not second
                or not (type(p) in PLAIN and p.is_cpu and p.dtype is dtype and p.is_contiguous() and not p.is_neg())
                or not (type(g) in PLAIN and g.is_cpu and g.dtype is dtype and g.shape == shape and not g.is_neg())
            ):
                return None
            m = state["momentum_buffer"] if momentum else None
            if m is not None and not (
                type(m) in PLAIN and m.is_cpu and m.dtype is dtype and m.shape == shape and m.is_contiguous()
            ):
                return None
            memory.append(Memory(p, g, m))
        return memory

    def _one_by_one(
        self, layers: Layers, states: States, options: Options, left: list[Unit], in_face: InFace | None
    ) -> dict[tuple[torch.dtype, bool], list[Memory | None]]:
        """The memory of the layers that the kernels take, by dtype and half; the others are left."""
        calls: dict[tuple[torch.dtype, bool], list[Memory | None]] = {}
        for i, unit in enumerate(layers.units):
            if all(p.grad is None for p in unit.params):
                continue
            second = states[unit.params[0]]["phase"] > 0
            layer = _memory(unit, states, bool(options.momentum))
            strategy = in_face if second else None
            if not (fits(unit.set, layer.x) and alike(*layer[:3]) and available(unit.set, layer.x.dtype, strategy)):
                left.append(unit)
                continue
            key = layer.x.dtype, second
            if key not in calls:
                calls[key] = [None] * len(layers.units)
            calls[key][i] = layer
        return calls

    def gaps(self, index: int, names: list[str], gradient_bound: float | Tensor | None) -> list[BlockGaps]:
        """The gaps of a group's parameters at their last first half, as long as they are not frozen."""
        layers = self._layers.get(index)
        if layers is None:
            return []
        table, parts = layers.table, []
        live = [
            lr if any(p.requires_grad for p in unit.params) else None
            for lr, unit in zip(layers.lrs, layers.units, strict=True)
        ]
        if live and live[0] is not None and all(lr is live[0] for lr in live):
            parameters = dict(zip(names, table.rows, strict=True))
            bound = table.bound(gradient_bound)
            return [BlockGaps(parameters, table.gaps.clone(), table.diameter, live[0], bound)]
        for i, lr in enumerate(live):
            if lr is not None:
                gaps = table.gaps[table.blocks_of(i)].clone()
                diameter = layers.units[i].diameter()
                parts.append(BlockGaps({names[i]: len(gaps)}, gaps, diameter, lr, gradient_bound))
        return parts

    def norms(self, set_: Set, x: Tensor, g: Tensor) -> tuple[float, float] | None:
        """``|x|`` and ``|g|`` where ``x`` is not zero; None where no kernel can say it."""
        if not (fits(set_, x) and alike(x, g, None) and g.is_contiguous() and available(set_, x.dtype, "projected")):
            return None
        return self.lists.norms(x, g, blocks.count(x.shape, set_.per) if set_.kernel in LISTED else 1)

    def support(self, x: Tensor) -> Entries | None:
        """Where the rows of a parameter have entries, with room for what has become zero; None if that is nearly everywhere."""
        if not (addressable(x) and x.is_contiguous() and x.ndim > 1):
            return None
        return self.lists.entries(x, x.shape[0], DENSEST, look=True)

    def nonzeros(self, x: Tensor) -> int:
        """How many these are; all of it where there is no list."""
        entries = self.support(x)
        return x.numel() if entries is None else len(entries.listed.at)

    def blocks(self, index: int) -> Tensor:
        """The gaps of all blocks of a group at their last first half."""
        return self._layers[index].table.gaps

    def forget(self, index: int, p: Tensor) -> None:
        """Forget the gaps of a parameter whose last first half was taken elsewhere."""
        if index in self._layers:
            layers = self._layers[index]
            for i, unit in enumerate(layers.units):
                if unit.params[0] is p:
                    layers.lrs[i] = None

    def counts(self, index: int | None = None) -> list[Tensor]:
        """What the blocks of each group did, or of one."""
        return [layers.table.counts for i, layers in self._layers.items() if index in (None, i)]

    def _of(self, index: int, group: dict[str, Any]) -> Layers | None:
        """The layers of a group; None if the kernels do not know its set, or are not there."""
        layers = self._layers.get(index)
        if layers is None and not (knows(group["set"]) and available(group["set"], torch.float32)):
            return None
        members = [(id(p), p.shape) for p in group["params"]]
        if layers is None or not layers.table.is_of(group["set"]) or layers.members != members:
            made = units(group, index)
            if layers is not None and layers.members == members and made:
                params = [unit.params[0] for unit in made] if layers.params else []
                if layers.table.resize(made[0].set, source=group["set"]):
                    layers = self._layers[index] = layers._replace(units=made, params=params)
                    return layers
            counts = None if layers is None else layers.table.counts
            set_ = made[0].set if made else group["set"]
            table = Table(set_, [unit.size for unit in made], counts, source=group["set"])
            plain = all(unit.joint is None and (unit.set.per != "input" or unit.params[0].ndim < 2) for unit in made)
            params = [unit.params[0] for unit in made] if plain else []
            layers = self._layers[index] = Layers(made, params, members, table, [None] * len(made))
        return layers

    def _with_lists(
        self, layers: Layers, group: dict[str, Any], memory: list[Memory | None], strategy: InFace | None
    ) -> list[Memory | None]:
        """The memory of layers with lists of what their rows use, where a step needs no more of the weights than these."""
        if layers.table.set.kernel not in LISTED or strategy not in (None, "projected"):
            return memory
        return [
            layer
            if layer is None or layers.units[i].joint is not None or (strategy is None and not _few(group, layer.x))
            else self._with_list(layer, layers.table.rows[i], strategy)
            for i, layer in enumerate(memory)
        ]

    def _with_list(self, layer: Memory, rows: int, strategy: InFace | None) -> Memory:
        if strategy is not None and not self.lists.pays(layer.x, rows):
            return layer
        entries = self.lists.entries(layer.x, rows, look=strategy is None)
        if entries is None:
            return layer
        if strategy is None:
            return layer._replace(entries=entries, new=torch.empty(rows, dtype=torch.int32, device="cpu"))
        return layer._replace(entries=entries._replace(prices=self.lists.prices(layer.x, entries.listed, layer.g)))

    def _step(
        self, layers: Layers, memory: list[Memory | None], options: Options, strategy: InFace | None, *, project: bool
    ) -> int:
        """The step itself: one call, or two where a first half has lists of some layers; how many blocks were outside."""
        found, versions = 0, [-1 if layer is None else version(layer.x) for layer in memory]
        if strategy is None:
            for grows in (False, True):
                some = [layer if layer is not None and (layer.new is not None) is grows else None for layer in memory]
                if any(layer is not None for layer in some):
                    found += layers.table.step(some, options, strategy, project=project)
            for i, layer in enumerate(memory):
                if layer is not None and layer.new is not None:
                    self.lists.grown(layer.x, layers.table.rows[i], layer.new)
        else:
            found = layers.table.step(memory, options, strategy, project=project)
        if strategy == "projected" and layers.table.set.kernel in LISTED:
            for layer, before, rows in zip(memory, versions, layers.table.rows, strict=True):
                if layer is not None:
                    self.lists.stepped(layer.x, before, None if layer.entries is None else rows)
        return found

    def _call(
        self,
        layers: Layers,
        group: dict[str, Any],
        memory: list[Memory | None],
        states: States,
        options: Options,
        strategy: InFace | None,
    ) -> list[str]:
        """One call of a kernel, and what has to be done after it."""
        memory = self._with_lists(layers, group, memory, strategy)
        found = self._step(layers, memory, options, strategy, project=group["project"])
        lr = options.lr.detach().clone() if isinstance(options.lr, Tensor) else options.lr
        if strategy is None:
            layers.lrs[:] = [old if layer is None else lr for old, layer in zip(layers.lrs, memory, strict=True)]
        outside: list[str] = []
        if (
            not found
            and layers.params
            and all(layer is None or layer.x is p for layer, p in zip(memory, layers.params, strict=True))
        ):
            return outside
        for i, layer in enumerate(memory):
            if layer is None:
                continue
            unit = layers.units[i]
            if found:
                marked = layers.table.marked(i, strategy)
                if len(marked):
                    outside.append(unit.called)
                if len(marked) and group["project"]:
                    _project_and_step(layers.table, i, layer, marked, options, strategy)
            if layer.x is not unit.params[0]:
                _write_back(unit, layer, states)
        return outside


def _few(group: dict[str, Any], x: Tensor) -> bool:
    """Whether a layer leaves out its zeros, and had few entries when they were last counted: then first halves use its list.

    A resumed run has the count, not the list: it decides alike.
    """
    compute: Compute | None = group.get("compute")
    if compute is None or compute["mode"] == "dense":
        return False
    counts = zip(group["params"], compute["nonzeros"], strict=True)
    return any(p is x and count <= LISTS * x.numel() for p, count in counts)


def _memory(unit: Unit, states: States, momentum: bool) -> Memory:
    """Where the step on a unit happens; parameters that are one block are copied into one tensor."""
    own = [states[p] for p in unit.params]
    values = unit_weights(unit, own)
    gradients = [
        torch.zeros_like(x) if p.grad is None else computable(p.grad) for p, x in zip(unit.params, values, strict=True)
    ]
    buffers = [state["momentum_buffer"] for state in own] if momentum else None
    if unit.joint is None:
        return Memory(values[0], gradients[0], None if buffers is None else buffers[0])
    gather = unit.joint.gather
    return Memory(gather(values), gather(gradients), None if buffers is None else gather(buffers))


def _write_back(unit: Unit, layer: Memory, states: States) -> None:
    """Float32 copies and copies of several parameters, back where they are from."""
    own = [states[p] for p in unit.params]
    if unit.joint is None:
        write(unit, own, [layer.x])
        return
    write(unit, own, unit.joint.scatter(layer.x, unit.params))
    if layer.m is not None:
        for state, average in zip(own, unit.joint.scatter(layer.m, unit.params), strict=True):
            keep_average(state, average)


def _project_and_step(
    table: Table, i: int, layer: Memory, marked: Tensor, options: Options, strategy: InFace | None
) -> None:
    """What a kernel left undone: blocks outside of their set are projected, and then take the step."""
    set_ = table.set
    x, g = set_.to_blocks(layer.x), set_.to_blocks(layer.g if layer.m is None else layer.m)
    turned = options.maximize and layer.m is None  # averages are turned already
    half = take_half(
        set_.part(marked),
        set_.part(marked).block_project(x[marked]),
        -g[marked] if turned else g[marked],
        None,
        momentum=0.0,
        rate=table.rates(i)[marked],
        in_face=strategy,
        diameter=table.diameters(i)[marked],
        most=options.most,
    )
    layer.x.copy_(set_.from_blocks(x.index_copy(0, marked, half.x), layer.x))
    table.add(i, marked, strategy, half.slope, half.decision)
