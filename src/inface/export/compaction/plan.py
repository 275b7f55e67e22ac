"""Plan which channels to remove, and build the smaller network."""

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
    """The change of one layer.

    Attributes:
        name: the name of its module in the original network.
        kind: the class of the module.
        before: the shape of its weights before.
        after: the shape of its weights after.
        removed: the number of removed nodes (rows, filters, channels).
        folded: the number of constant inputs folded into its bias.
        selected: the number of inputs taken by an :class:`inface.export.Select` before it; None if there is none.

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
    """A part that was left unchanged.

    Attributes:
        name: the name of the module, of a parameter of the network itself, or of a step of ``forward``.
        reason: the reason.
        nodes: the number of constant nodes or unused inputs that stay for this reason; 0 for the part as a whole.

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
    """The part of a layer that stays.

    Attributes:
        layer: the layer.
        rows: which output channels stay.
        columns: which input channels stay.
        taken: which of these inputs the layer itself needs; at least one.
    """

    layer: Layer
    rows: Tensor
    columns: Tensor
    taken: Tensor


@dataclass(frozen=True, eq=False)
class Plan:
    """The part of a network that stays.

    Attributes:
        parts: the parts of its layers with weights.
        left: what could not be removed, and why.
        widths: the new widths of the steps that contain the width of their result as a number.
        is_last: whether nothing more can be removed afterwards. False if a convolution is left with a single group,
            because then single channels can be removed.
    """

    parts: tuple[Part, ...]
    left: tuple[Left, ...]
    widths: dict[fx.Node, int]
    is_last: bool


def make_plan(graph: Graph, distrusted: frozenset[str] = frozenset()) -> Plan:
    """Find what can be removed; ``distrusted`` are the names of steps to treat as unknown.

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
    """Build the smaller network, in eval mode; return it, the changes of its layers, and the unused inputs that stay.

    Args:
        model: the network; it is not changed.
        plan: the parts that stay.
        select: as in :func:`inface.export.compact`.
        never: the reason, if ``select`` is ``"never"``.
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
    """Merge the changes of two plans that were applied one after the other."""
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

    Measured on a CPU: copying a number takes as long as 16 multiplications, or 160 if the channels are innermost in
    memory; calling the copy takes as long as 40,000.
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
    """Carry the sets of constrained parameters over, if they mean the same for a smaller parameter."""
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
    for part in parts:  # constants that a reader cannot fold
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
