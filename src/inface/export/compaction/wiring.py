"""Follow the channels of a network through its steps, with one rule for each kind of step.

A step without a rule, or used in a way that its rule does not cover, is unknown: its inputs keep their width, and
nothing is known about its outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from .channels import Classes, Flow, Layer
from .graph import Graph

__all__ = ["Rule", "Rules", "Unknown", "Wiring", "argument", "called", "finite", "only", "source", "varying"]


class Unknown(Exception):  # noqa: N818 (an answer, not an error)
    """A step is unknown; the message says why."""


class Wiring:
    """The channels of a network.

    Args:
        graph: its steps.
        rules: how they carry channels.
        distrusted: the names of steps to treat as unknown.

    Attributes:
        classes: which channels are tied together, and which must stay.
        flows: the channels of each step's result.
        layers: the steps with weights that can get smaller, in order.
        left: the unknown steps, and why.
        written: steps like ``view(-1, 400)``, which contain the width of their result as a number.
        spoiled: channels that are no longer constant behind a step, and why.
    """

    def __init__(self, graph: Graph, rules: Rules, distrusted: frozenset[str] = frozenset()) -> None:
        self.graph = graph
        self.classes = Classes()
        self.flows: dict[fx.Node, Flow] = {}
        self.layers: list[Layer] = []
        self.left: dict[str, str] = {}
        self.written: list[fx.Node] = []
        self.spoiled: list[tuple[Tensor, str]] = []
        self._tensors = {name for name, _ in [*_parameters(graph.root), *_buffers(graph.root)]}
        self._rules = rules
        self._distrusted = distrusted
        self._shared = _shared(graph)
        for node in graph.nodes:
            flow = self._visit(node)
            if flow is not None:
                self.flows[node] = flow

    def module(self, node: fx.Node) -> nn.Module:
        """The module that a step calls."""
        return self.graph.root.get_submodule(str(node.target))

    def name(self, node: fx.Node) -> str:
        """The name of a step for users: its module, the module whose weights it takes, or its place in ``forward``."""
        if node.op == "call_module":
            return str(node.target)
        held = [each for each in (node, *node.all_input_nodes) if self._is_tensor(each)]
        if held:
            return _owner(held[0]) or str(held[0].target)
        inside = [path for path, _ in node.meta.get("nn_module_stack", {}).values()]
        return ".".join(filter(None, (*inside[-1:], node.name)))

    def spoil(self, node: fx.Node, ids: list[Tensor], why: str) -> None:
        """Record why channels are no longer constant behind a step."""
        self.spoiled += [(each, f"{self.name(node)} {why}") for each in ids]

    def shape(self, node: fx.Node) -> tuple[int, ...]:
        """The shape of a step's result; Unknown if it is not a tensor."""
        if node not in self.graph.shapes:
            raise Unknown("it is not used on one tensor")
        return self.graph.shapes[node]

    def read(self, node: fx.Node, axis: int) -> Flow:
        """The result of a step as channels along this dimension; otherwise new channels, all of which must stay."""
        flow = self.flows.get(node)
        if flow is not None and flow.axis == axis:
            return flow
        if flow is not None:
            self.classes.pin(flow.ids, "read along another dimension")
        ids = self.classes.new(self.shape(node)[axis])
        self.classes.pin(
            ids, "tied to the network's input" if node.op == "placeholder" else f"tied to {self.name(node)}"
        )
        return Flow(axis, ids, varying(len(ids)))

    def layer(
        self, node: fx.Node, reads: Flow, gives: Flow, edges: Tensor | None = None, folds: Tensor | None = None
    ) -> Flow:
        """Record a layer that can get smaller; return its output. Unknown if its weights are used elsewhere too."""
        if str(node.target) in self._shared:
            raise Unknown(self._shared[str(node.target)])
        folds = torch.zeros(len(reads.ids), dtype=torch.bool) if folds is None else folds
        shape = list(self.shape(node))
        del shape[gives.axis]
        positions = math.prod(shape[1:] if gives.axis else shape)
        self.layers.append(Layer(str(node.target), self.module(node), reads, gives, edges, folds, positions))
        return gives

    def _visit(self, node: fx.Node) -> Flow | None:
        read = [self.flows[each] for each in node.all_input_nodes if each in self.flows]
        if node.op == "output":
            for each in read:
                self.classes.pin(each.ids, "an output of the network")
        if node.op == "get_attr":
            self._note(node)
        if not node.op.startswith("call_"):
            return None
        try:
            flow = self._understand(node)
        except Unknown as why:
            name = self.name(node)
            if node.op == "call_module":
                weighted = any(True for _ in self.module(node).parameters())
            else:
                weighted = any(self._is_tensor(each) for each in node.all_input_nodes)
            is_output = not weighted and self._ends(node)
            for each in read:
                self.classes.pin(each.ids, "an output of the network" if is_output else f"read by {name}")
            if weighted or (read and not is_output):
                self.left.setdefault(name, str(why))
            return None
        if flow is not None and node in self.graph.overwritten:
            self.classes.pin(flow.ids, "changed in place while others read it")
            return Flow(flow.axis, flow.ids, varying(len(flow.ids)))
        return flow

    def _note(self, node: fx.Node) -> None:
        """Record a parameter that ``forward`` uses directly: it stays unchanged."""
        found = dict(_parameters(self.graph.root)).get(str(node.target))
        if found is None or found.numel() == 1:  # a single number has no channels
            return
        owner = _owner(node)
        module = self.graph.root.get_submodule(owner)
        attribute = str(node.target).removeprefix(f"{owner}.")
        if type(module) in self._rules.layers:
            why = "forward uses its weights directly"
        elif not owner:
            why = "forward uses it directly"
        elif any(True for child in module.children() for _ in child.parameters()):
            why = f"forward uses {attribute} directly"
        else:
            why = f"{type(module).__name__} is not understood"
        self.left.setdefault(self.name(node), why)

    def _is_tensor(self, node: fx.Node) -> bool:
        """Whether a step takes a parameter or buffer of the network."""
        return node.op == "get_attr" and str(node.target) in self._tensors

    def _ends(self, node: fx.Node) -> bool:
        """Whether a step only transforms the network's output, like a softmax."""
        shapes = [self.graph.shapes.get(each) for each in node.all_input_nodes]
        return shapes == [self.graph.shapes.get(node)] and all(user.op == "output" for user in node.users)

    def _understand(self, node: fx.Node) -> Flow | None:
        if node.name in self._distrusted:
            raise Unknown("forward writes the width as a number, where flatten(1) would follow it")
        if node.op == "call_module":
            rule = self._rule_of(str(node.target), self.module(node))
        else:
            rule = (self._rules.functions if node.op == "call_function" else self._rules.methods).get(node.target)
        if rule is None:
            raise Unknown(f"{called(self, node)} is not understood")
        return rule(self, node)

    def _rule_of(self, name: str, module: nn.Module) -> Rule | None:
        if name in self.graph.closed:
            raise Unknown(f"{type(module).__name__} cannot be traced: {self.graph.closed[name]}")
        if module._forward_hooks or module._forward_pre_hooks:  # noqa: SLF001 (nothing else tells)
            raise Unknown("it has hooks")
        if type(module) not in self._rules.layers:
            return self._rules.modules.get(type(module))
        for tensor in [*module.parameters(recurse=False), *module.buffers(recurse=False)]:
            if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout != torch.strided or tensor.is_complex():
                raise Unknown(f"its weights are a {type(tensor).__name__} ({tensor.dtype}, {tensor.layout})")
        return self._rules.layers[type(module)]


Rule = Callable[[Wiring, fx.Node], Flow | None]


@dataclass(frozen=True)
class Rules:
    """The rules for known steps: layers that can get smaller, other modules, functions, tensor methods."""

    layers: Mapping[type[nn.Module], Rule]
    modules: Mapping[type[nn.Module], Rule]
    functions: Mapping[Any, Rule]
    methods: Mapping[Any, Rule]


def source(node: fx.Node) -> fx.Node:
    """The tensor that a step works on; Unknown if it is not the first argument."""
    first = node.args[0] if node.args else node.kwargs.get("input")
    if not isinstance(first, fx.Node):
        raise Unknown("it is not used on one tensor")
    return first


def only(node: fx.Node) -> fx.Node:
    """The same, for a step without other arguments."""
    if len(node.args) + len(node.kwargs) != 1:
        raise Unknown("it is called with several arguments")
    return source(node)


def argument(node: fx.Node, names: tuple[str, ...], name: str, default: Any) -> Any:
    """An argument after the first, by position (in the order of ``names``) or by name."""
    place = names.index(name) + 1 if name in names else len(node.args)
    return node.args[place] if place < len(node.args) else node.kwargs.get(name, default)


def called(wiring: Wiring, node: fx.Node) -> str:
    """The name of what a step calls: ``"MaxPool2d"``, ``"max_pool2d"``."""
    if node.op == "call_module":
        return type(wiring.module(node)).__name__
    return str(getattr(node.target, "__name__", node.target))


def varying(count: int) -> Tensor:
    """The value of channels that are not constant."""
    return torch.full((count,), math.nan, dtype=torch.float64)


def finite(value: Tensor) -> Tensor:
    """The constants; those that are not finite count as varying, so they are not folded."""
    return torch.where(value.isfinite(), value, math.nan)


def _owner(node: fx.Node) -> str:
    """The module that holds the tensor of a step; empty if it is the network itself."""
    return str(node.target).rpartition(".")[0]


def _parameters(root: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return root.named_parameters(remove_duplicate=False)


def _buffers(root: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return root.named_buffers(remove_duplicate=False)


def _shared(graph: Graph) -> dict[str, str]:
    """Modules whose tensors are used elsewhere too, and where."""
    owners: dict[int, list[str]] = {}
    for name, tensor in [*_parameters(graph.root), *_buffers(graph.root)]:
        owners.setdefault(id(tensor), []).append(name.rpartition(".")[0])
    calls: dict[str, int] = {}
    shared: dict[str, str] = {}
    for node in graph.nodes:
        if node.op == "call_module":
            calls[str(node.target)] = calls.get(str(node.target), 0) + 1
        elif node.op == "get_attr":
            shared[_owner(node)] = "forward uses its weights directly"
    shared |= {name: f"it is used {count} times" for name, count in calls.items() if count > 1}
    for names in owners.values():
        shared |= dict.fromkeys(names, "its weights are also those of another layer") if len(names) > 1 else {}
    return shared
