"""The graph of a network: its steps, their shapes on an example, and a comparison of two graphs."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from .select import Select

__all__ = ["Graph", "Untraceable", "copied", "differences", "follow", "tensors", "trace"]

PLAIN = (bool, int, float, str, type(None))
VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Untraceable(ValueError):  # noqa: N818 (an answer more than an error)
    """The steps of a network cannot be traced well enough to change it."""


@dataclass(frozen=True)
class Graph:
    """The steps of a network.

    Attributes:
        root: the network.
        nodes: the steps, in order.
        closed: modules that could not be traced, and why.
        shapes: the shapes of the steps' results on the example, if they are tensors.
        dtypes: the dtypes of the steps' results.
        overwritten: steps whose result is changed in place while another step still reads it.
        result: the output on the example.
    """

    root: nn.Module
    nodes: tuple[fx.Node, ...]
    closed: dict[str, str]
    shapes: dict[fx.Node, tuple[int, ...]] = field(default_factory=dict)
    dtypes: dict[fx.Node, torch.dtype] = field(default_factory=dict)
    overwritten: frozenset[fx.Node] = frozenset()
    result: Any = None


def trace(model: nn.Module, example: tuple[Any, ...]) -> Graph:
    """Trace a network and run it on an example. Pass a copy: both may leave attributes on the network.

    Raises:
        Untraceable: the network's own ``forward`` cannot be traced.

    >>> graph = trace(nn.Sequential(nn.Linear(3, 2), nn.ReLU()), (torch.zeros(5, 3),))
    >>> [(node.op, graph.shapes[node]) for node in graph.nodes[1:3]]
    [('call_module', (5, 2)), ('call_module', (5, 2))]
    """
    graph = follow(model, example)
    watch = _Watch(model, graph.nodes[0].graph)
    try:
        with torch.no_grad():
            result = watch.run(*copied(example))
    except Exception as error:
        raise Untraceable(f"forward cannot be traced: {_line(error)}") from error
    return replace(
        graph, shapes=watch.shapes, dtypes=watch.dtypes, overwritten=frozenset(watch.overwritten), result=result
    )


def follow(model: nn.Module, example: tuple[Any, ...]) -> Graph:
    """Trace a network without running it. A module whose steps depend on its data becomes one step.

    Raises:
        Untraceable: the network's own ``forward`` depends on its data.
    """
    closed: dict[str, str] = {}
    while True:
        tracer = _Tracer(closed)
        try:
            return Graph(model, tuple(tracer.trace(model, _fixed(model, example)).nodes), closed)
        except Exception as error:
            if tracer.failed is None or tracer.failed in closed:
                raise Untraceable(f"forward cannot be traced: {_line(error)}") from error
            closed[tracer.failed] = _line(error)


def differences(one: Graph, other: Graph, widths: dict[fx.Node, int]) -> tuple[set[str], str | None]:
    """Compare the steps of two networks of the same class.

    Args:
        one: a graph.
        other: a graph.
        widths: the widths wanted in ``other``, for the steps of ``one`` that contain the width of their result.

    Returns:
        The names of these steps that have another width, and the first other difference.
    """
    wrong: set[str] = set()
    if len(one.nodes) != len(other.nodes):
        return wrong, "forward takes other steps when its layers have other widths"
    partner = dict(zip(one.nodes, other.nodes, strict=True))
    for node, twin in partner.items():
        arguments = (map_arg(node.args, partner.__getitem__), map_arg(node.kwargs, partner.__getitem__))
        if node in widths:
            if _written(twin) != widths[node]:
                wrong.add(node.name)
        elif (node.op, node.target, *arguments) != (twin.op, twin.target, twin.args, twin.kwargs):
            return wrong, f"forward uses the width of a layer as a number ({node.name})"
        elif node.op == "get_attr" and not _same(_attribute(one, node), _attribute(other, twin)):
            return wrong, f"forward uses a tensor of a layer ({node.target})"
    return wrong, None


def tensors(structure: Any) -> Iterator[Tensor]:
    """The tensors in nested lists, tuples and dictionaries, in order.

    >>> [each.item() for each in tensors({"a": torch.tensor(1), "b": [torch.tensor(2), None]})]
    [1, 2]
    """
    if isinstance(structure, Tensor):
        yield structure
    elif isinstance(structure, dict):
        for each in structure.values():
            yield from tensors(each)
    elif isinstance(structure, list | tuple):
        for each in structure:
            yield from tensors(each)


def copied(example: tuple[Any, ...]) -> tuple[Any, ...]:
    """A copy of the example, because networks may write into their input."""
    return tuple(_copy(each) for each in example)


class _Tracer(fx.Tracer):
    def __init__(self, closed: dict[str, str]) -> None:
        super().__init__()
        self.closed = closed
        self.failed: str | None = None

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return (
            module_qualified_name in self.closed
            or isinstance(m, Select)
            or super().is_leaf_module(m, module_qualified_name)
        )

    def call_module(self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception:
            if self.failed is None:  # the innermost one
                self.failed = self.path_of_module(m)
            raise


class _Watch(fx.Interpreter):
    """Runs a graph, and records shapes and in-place writes to tensors that are read again."""

    def __init__(self, module: nn.Module, graph: fx.Graph) -> None:
        super().__init__(module, graph=graph)
        self.order = {node: number for number, node in enumerate(graph.nodes)}
        self.shapes: dict[fx.Node, tuple[int, ...]] = {}
        self.dtypes: dict[fx.Node, torch.dtype] = {}
        self.memory: dict[fx.Node, int] = {}
        self.overwritten: set[fx.Node] = set()

    def run_node(self, n: fx.Node) -> Any:
        read = [each for node in n.all_input_nodes for each in tensors(self.env[node])]
        versions = [each._version for each in read]  # noqa: SLF001 (counts the writes)
        result = super().run_node(n)
        for each, version in zip(read, versions, strict=True):
            if each._version != version:  # noqa: SLF001
                self._note(n, each.untyped_storage().data_ptr())
        if isinstance(result, Tensor):
            self.shapes[n] = tuple(result.shape)
            self.dtypes[n] = result.dtype
            self.memory[n] = result.untyped_storage().data_ptr()
        return result

    def _note(self, writer: fx.Node, memory: int) -> None:
        for node, where in self.memory.items():
            if where == memory and any(self.order[user] > self.order[writer] for user in node.users):
                self.overwritten.add(node)


def _fixed(model: nn.Module, example: tuple[Any, ...]) -> dict[str, Any]:
    """The arguments of ``forward`` that are not tensors, given or default; branches on them are fixed."""
    parameters = [each for each in inspect.signature(model.forward).parameters.values() if each.kind not in VARIABLE]
    given = {each.name: value for each, value in zip(parameters, example, strict=False)}
    default = {each.name: each.default for each in parameters[len(example) :]}
    return {name: value for name, value in (given | default).items() if isinstance(value, PLAIN)}


def _copy(structure: Any) -> Any:
    if isinstance(structure, Tensor):
        return structure.detach().clone()
    if type(structure) is dict:
        return {name: _copy(each) for name, each in structure.items()}
    return type(structure)(_copy(each) for each in structure) if type(structure) in (list, tuple) else structure


def _written(node: fx.Node) -> Any:
    """The last number of ``view(-1, 400)``, however it is written."""
    last = node.args[-1]
    return last[-1] if isinstance(last, list | tuple) else last


def _attribute(graph: Graph, node: fx.Node) -> Any:
    found: Any = graph.root
    for part in str(node.target).split("."):
        found = getattr(found, part)
    return found


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and torch.equal(one, other)
    return type(one) is type(other)


def _line(error: Exception) -> str:
    """The first line of an error's message."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
