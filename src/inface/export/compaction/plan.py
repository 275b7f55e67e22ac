"""What can go from a network, and the network without it."""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor, fx, nn

from inface.registry import constrain, set_of

from .channels import Layer, alive
from .graph import Graph
from .layer_rules import LAYERS, shape_of, shrink
from .select import Select
from .step_rules import FUNCTIONS, METHODS, MODULES
from .wiring import Rules, Wiring

__all__ = ["RULES", "LayerChange", "Left", "Part", "Plan", "Selection", "build", "make_plan", "merge"]

RULES = Rules(LAYERS, MODULES, FUNCTIONS, METHODS)

Selection = Literal["faster", "smaller", "never"]


@dataclass(frozen=True)
class LayerChange:
    """What happened to a layer.

    Attributes:
        name: of its module in the network that was given.
        kind: the class of the module.
        before: the shape of its weights before.
        after: and after.
        removed: how many of its nodes (rows, filters, channels) are gone.
        folded: how many constant inputs went into its bias.
        selected: how many inputs a :class:`inface.export.Select` before it takes; None if there is none.

    >>> import torch, inface
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> _ = model[2].weight.data.copy_(torch.tensor([[1.0, 0.0, 2.0]]))
    >>> inface.export.compact(model, torch.zeros(1, 2)).compaction.layers[0]
    LayerChange(name='0', kind='Linear', before=(3, 2), after=(2, 2), removed=1, folded=0, selected=None)
    """

    name: str
    kind: str
    before: tuple[int, ...]
    after: tuple[int, ...]
    removed: int
    folded: int
    selected: int | None


@dataclass(frozen=True)
class Left:
    """Something that was left as it is.

    Attributes:
        name: of the module, of the parameter if the network holds it itself, or of the step of ``forward``.
        reason: why.
        nodes: how many constant nodes, or dead inputs, stay for this reason; 0 if the part itself is meant.

    >>> import torch, inface
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
    >>> inface.export.compact(model, torch.zeros(1, 2)).compaction.left
    (Left(name='1', reason='LayerNorm is not understood', nodes=0),)
    """

    name: str
    reason: str
    nodes: int = 0


@dataclass(frozen=True, eq=False)
class Part:
    """What stays of a layer.

    Attributes:
        layer: the layer.
        rows: which of the channels that it gives stay.
        columns: which of the channels that it reads stay.
        taken: which of these it needs itself, at least one.
    """

    layer: Layer
    rows: Tensor
    columns: Tensor
    taken: Tensor


@dataclass(frozen=True, eq=False)
class Plan:
    """What stays of a network.

    Attributes:
        parts: of its layers with weights.
        left: what could not go, and why.
        widths: of steps that write down the width of their result, the width that it will have.
        is_last: whether nothing more can go afterwards; not so if only one group of a convolution stays, because then
            single channels can go.
    """

    parts: tuple[Part, ...]
    left: tuple[Left, ...]
    widths: dict[fx.Node, int]
    is_last: bool


def make_plan(graph: Graph, distrusted: frozenset[str] = frozenset()) -> Plan:
    """Find what can go; ``distrusted`` are the names of steps that are not to be understood.

    >>> import torch
    >>> from inface.export.compaction.graph import trace
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> _ = model[2].weight.data.copy_(torch.tensor([[1.0, 0.0, 2.0]]))
    >>> make_plan(trace(model, (torch.zeros(1, 2),))).parts[0].rows
    tensor([ True, False,  True])
    """
    wiring = Wiring(graph, RULES, distrusted)
    stays, spare = alive(wiring.classes, wiring.layers, wiring.flows.values())
    parts = []
    for layer in wiring.layers:
        rows, columns = stays[layer.gives.ids], stays[layer.reads.ids]
        taken = columns.clone()
        if layer.edges is not None and not isinstance(layer.module, Select):
            taken &= layer.edges[rows & ~spare[layer.gives.ids]].any(0) & ~layer.folds
            taken[columns.nonzero()[:1]] |= not taken.any()
        parts.append(Part(layer, rows, columns, taken))
    left = [Left(name, reason) for name, reason in wiring.left.items()]
    left += [*_unused(graph), *_constants(wiring, parts, spare)]
    widths = {node: int(stays[wiring.flows[node].ids].sum()) for node in wiring.written}
    return Plan(tuple(parts), tuple(left), widths, not any(_becomes_plain(part) for part in parts))


def build(
    model: nn.Module, plan: Plan, select: Selection, never: str = "select='never'"
) -> tuple[nn.Module, list[LayerChange], list[Left]]:
    """The network that a plan leaves, in eval mode, what happened to its layers, and the inputs that could have gone.

    Args:
        model: the network, which is not changed.
        plan: what stays of it.
        select: as in :func:`inface.export.compact`.
        never: why, if it is ``"never"``.
    """
    small = copy.deepcopy(model).eval()
    changes, left = [], []
    for part in plan.parts:
        layer, module = part.layer, small.get_submodule(part.layer.name)
        before = shape_of(module)
        dead = int(part.columns.sum() - part.taken.sum())
        selects = dead > 0 and _pays(part, select)
        folded = shrink(module, layer, part.rows, part.taken if selects else part.columns)
        removed = int((~part.rows).sum())
        selected = int(part.taken.sum()) if selects else None
        changes.append(
            LayerChange(layer.name, type(module).__name__, before, shape_of(module), removed, folded, selected)
        )
        if selects:
            _put(small, layer.name, _selecting(module, part))
        elif dead:
            why = never if select == "never" else f"picking out the others would not be {select}"
            left.append(Left(layer.name, f"inputs that it does not need stay: {why}", dead))
    _carry_sets(model, small)
    return small, changes, left


def merge(earlier: list[LayerChange], later: list[LayerChange]) -> list[LayerChange]:
    """What happened to the layers of a network in two plans, one after the other."""
    first = {each.name: each for each in earlier}
    return [
        replace(
            each,
            before=first[each.name].before,
            removed=first[each.name].removed + each.removed,
            folded=first[each.name].folded + each.folded,
        )
        if each.name in first
        else each
        for each in later
    ]


def _becomes_plain(part: Part) -> bool:
    groups = getattr(part.layer.module, "groups", 1)
    return groups > 1 and int(part.columns.sum()) * groups == len(part.columns)


def _pays(part: Part, select: Selection) -> bool:
    """Whether a selection before a layer saves more than it costs.

    Time, measured on a CPU: to copy a number costs what 16 multiplications cost, and 160 if the channels are innermost in
    memory; to call the copy costs what 40,000 do.
    """
    weight: Any = part.layer.module.weight
    taken, nodes = int(part.taken.sum()), int(part.rows.sum())
    saved = (int(part.columns.sum()) - taken) * nodes * (weight[0, 0].numel() if weight.ndim > 2 else 1)
    if select == "faster":
        copying = 16 if weight.is_contiguous() else 160
        return part.layer.positions * (saved - copying * taken) > 40_000
    return select == "smaller" and saved * weight.element_size() > taken * 8


def _selecting(module: Any, part: Part) -> nn.Sequential:
    index = part.taken[part.columns].nonzero()[:, 0]
    select = Select(len(index), dim=1 - module.weight.ndim if module.weight.ndim > 2 else -1)
    select.index = index.to(module.weight.device)
    return nn.Sequential(OrderedDict(select=select, layer=module)).train(module.training)


def _put(model: nn.Module, name: str, module: nn.Module) -> None:
    owner, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(owner), attribute, module)


def _carry_sets(model: nn.Module, small: nn.Module) -> None:
    """What is constrained stays constrained, as far as the set says the same about a smaller parameter."""
    there = dict(small.named_parameters())
    for name, p in model.named_parameters():
        owner, _, attribute = name.rpartition(".")
        copied = there.get(name, there.get(f"{owner}.layer.{attribute}"))
        set_ = set_of(p)
        if copied is not None and set_ is not None:
            per_block = isinstance(getattr(set_, "radius", None), Tensor)
            constrain(copied, None if per_block and copied.shape != p.shape else set_)


# ---- what is left, and why


def _unused(graph: Graph) -> list[Left]:
    """Modules with parameters that no step uses."""
    used = [str(node.target) for node in graph.nodes if node.op == "call_module"]
    used += [str(node.target).rpartition(".")[0] for node in graph.nodes if node.op == "get_attr"]
    return [
        Left(name, "forward does not use it")
        for name, module in graph.root.named_modules()
        if any(True for _ in module.parameters(recurse=False))
        and not any(name == each or name.startswith(f"{each}.") for each in used)
    ]


def _constants(wiring: Wiring, parts: list[Part], spare: Tensor) -> list[Left]:
    """Constant nodes that stay."""
    roots, pins = wiring.classes.roots(), wiring.classes.pins()
    reasons: dict[int, str] = {}
    for part in parts:  # constants that a reader cannot take over
        if part.layer.edges is not None:
            stuck = part.layer.edges[part.rows].any(0) & ~part.layer.reads.value.isnan() & ~part.layer.folds
            reasons |= dict.fromkeys(roots[part.layer.reads.ids[stuck]].tolist(), f"{part.layer.name} pads with zeros")
    for ids, why in reversed(wiring.spoiled):
        reasons |= dict.fromkeys(roots[ids].tolist(), why)
    left = []
    for part in parts:
        constant = part.rows & ~part.layer.gives.value.isnan()
        if part.layer.edges is None:
            constant &= part.layer.reads.value.isnan() if len(part.rows) == len(part.columns) else True
        found: Counter[str] = Counter()
        for each in part.layer.gives.ids[constant].tolist():
            root = int(roots[each])
            why = pins.get(root) or reasons.get(root) or "they go only together with nodes that stay"
            found["a layer keeps at least one node" if spare[each] else why] += 1
        left += [Left(part.layer.name, f"constant nodes stay: {why}", count) for why, count in found.items()]
    return left
