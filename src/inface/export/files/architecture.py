"""Describe a network as plain data: its layers and operations in order, without code.

With the description and the weights, a network runs without its Python class.
"""

from __future__ import annotations

import copy
import inspect
import operator
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.prune import BasePruningMethod

from inface.export.layers.sparse_linear import SparseLinear

from .network import Network, unused
from .vocabulary import BINARY, DROPOUTS, KNOWN, LAYERS, OPERATIONS, VIEW_LAYERS, VIEWS, arguments

__all__ = ["Network", "describe"]

SIZES = ("shape", "dim")
ATTRIBUTES = {"shape": "shape", "ndim": "dim"}


def describe(model: nn.Module) -> dict[str, Any]:
    """The architecture of a network, as plain data from which :class:`Network` builds a network.

    It describes the network after ``eval()``; the network itself is not changed. Optional arguments of ``forward`` have
    their defaults, and in-place steps are described as out-of-place steps.

    Args:
        model: a network of the usual layers and operations, whose ``forward`` torch.fx can trace.

    Raises:
        ValueError: the network has another layer or operation, which the message names; or hooks; or a step that
            works in place on a tensor that is read again.

    Returns:
        ``layers`` (by name), ``steps`` (in order), ``output``, and ``unused``: the tensors of the network's state dict
        that its ``forward`` does not need.

    >>> from torch import nn
    >>> describe(nn.Sequential(nn.Linear(3, 2), nn.ReLU()))["steps"]
    [{'layer': '0', 'of': [{'value': 0}]}, {'layer': '1', 'of': [{'value': 1}]}]
    """
    kind = type(model).__name__
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: wanted a network, got a {kind}")
    if type(model) in LAYERS.values():
        raise ValueError(f"{kind}: is a single layer, wanted a network: nn.Sequential(layer)")
    _check_modules(model)
    twin = _copied(model).eval()  # tracing may leave attributes on the network
    for name, module in twin.named_modules():
        if module.training:
            raise ValueError(f"{name or kind}: is in training mode even after eval()")
    graph = _followed(twin)
    _check_writes(graph, twin)
    architecture = _told(graph, twin)
    try:
        architecture["unused"] = unused(Network(architecture), model.state_dict())
    except ValueError as error:
        raise ValueError(f"{kind}: cannot be made again: {error}") from None
    return architecture


def _told(graph: fx.Graph, model: nn.Module) -> dict[str, Any]:
    steps: list[dict[str, Any]] = []
    values: dict[fx.Node, int] = {}
    output: Any = None
    called: dict[nn.Module, str] = {}
    for node in graph.nodes:
        if node.op == "call_module":
            name, layer = str(node.target), model.get_submodule(str(node.target))
            called[layer] = name
            _layer(name, layer)
            given = inspect.signature(layer.forward).bind(*node.args, **node.kwargs).args
            steps.append({"layer": name, "of": [_plain(each, values, name) for each in given]})
        elif node.target in DROPOUTS:
            values[node] = values[_dropped(node)]
            continue
        elif node.op in ("call_function", "call_method"):
            operation, args, kwargs = _operation(node)
            step = {"operation": operation, "of": [_plain(each, values, node.name) for each in args]}
            steps.append({**step, "with": {key: _plain(each, values, node.name) for key, each in kwargs.items()}})
        elif node.op == "output":
            output = _plain(node.args[0], values, "the output")
        elif node.op != "placeholder":
            raise ValueError(f"{type(model).__name__}: uses {node.target} outside of a layer")
        values[node] = len(steps)
    layers: dict[str, Any] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if module in called:
            layers[name] = _layer(name, module) if called[module] == name else {"same": called[module]}
    if output is None:
        raise ValueError(f"{type(model).__name__}: returns None, wanted a tensor")
    return {"layers": layers, "steps": steps, "output": output}


# ---- tracing


class _Proxy(fx.Proxy):
    """A proxy that records in-place changes; torch.fx records ``x += y`` as ``x = x + y``."""


def _in_place(name: str) -> Callable[[_Proxy, Any], fx.Proxy]:
    def method(self: _Proxy, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", getattr(operator, name), (self, other), {})

    return method


for _operator in ("iadd", "isub", "imul", "itruediv", "ifloordiv", "ipow", "imatmul", "imod"):
    setattr(_Proxy, f"__{_operator}__", _in_place(_operator))


class _Refused(ValueError):  # noqa: N818 (an answer more than an error)
    """Something that an architecture cannot describe; the message names it."""


class _Tracer(fx.Tracer):
    def __init__(self) -> None:
        super().__init__()
        self._autocast = _autocast()

    def create_node(self, kind: str, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        if _autocast() != self._autocast:
            raise _Refused(f"{type(self.root).__name__}: its forward uses torch.autocast, wanted one that does not")
        return super().create_node(kind, target, *args, **kwargs)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) in (*LAYERS.values(), SparseLinear) or super().is_leaf_module(m, module_qualified_name)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def create_args_for_root(
        self,
        root_fn: Any,
        is_module: bool,  # noqa: ARG002 (torch's names)
        concrete_args: Any = None,  # noqa: ARG002
    ) -> tuple[Any, list[Any]]:
        """Only the first argument of ``forward``; the others have their defaults."""
        return root_fn, [self.root, self.create_proxy("placeholder", "inputs", (), {})]

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, Tensor):
            holders: Iterable[tuple[str, Tensor]] = (*self.root.named_parameters(), *self.root.named_buffers())
            name = next((name for name, tensor in holders if tensor is a), "a tensor of its own")
            raise _Refused(f"{type(self.root).__name__}: uses {name} outside of a layer")
        return super().create_arg(a)


def _autocast() -> list[bool]:
    return [torch.is_autocast_enabled(device) for device in ("cpu", "cuda")]


def _followed(model: nn.Module) -> fx.Graph:
    kind = type(model).__name__
    needed = [
        each.name
        for each in inspect.signature(model.forward).parameters.values()
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    if len(needed) > 1:
        raise ValueError(f"{kind}: takes several inputs ({', '.join(needed)}), wanted one")
    try:
        return _Tracer().trace(model)
    except _Refused:
        raise
    except Exception as error:
        raise ValueError(f"{kind}: its forward cannot be traced: {' '.join(str(error).split())}") from error


def _copied(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:
        message = " ".join(str(error).split())
        raise ValueError(f"{type(model).__name__}: cannot be copied for tracing: {message}") from error


def _check_modules(model: nn.Module) -> None:
    """Raise an error for hooks and replaced ``forward`` methods, which change what a module does."""
    for path, module in model.named_modules():
        name = path or type(model).__name__
        for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values()):  # noqa: SLF001
            if isinstance(hook, BasePruningMethod):
                which = hook._tensor_name  # noqa: SLF001 (nothing else tells)
                raise ValueError(
                    f"{name}: has a mask of torch.nn.utils.prune, wanted prune.remove(layer, {which!r}) first"
                )
            called = getattr(hook, "__name__", type(hook).__name__)
            raise ValueError(f"{name}: has a hook ({called}), which a file cannot hold; wanted a network without hooks")
        if "forward" in vars(module):
            raise ValueError(f"{name}: its forward has been replaced, wanted that of its class {type(module).__name__}")


# ---- steps


def _operation(node: fx.Node) -> tuple[str, list[Any], dict[str, Any]]:
    """The name of an operation, and its arguments."""
    if node.target is getattr:
        if node.args[1] not in ATTRIBUTES:
            raise ValueError(f"{node.name}: asks for {node.args[1]} of a tensor, wanted one of {', '.join(ATTRIBUTES)}")
        return ATTRIBUTES[str(node.args[1])], [node.args[0]], {}
    if node.target not in KNOWN:
        called = getattr(node.target, "__name__", node.target)
        raise ValueError(f"{node.name}: does {called}, wanted one of {', '.join(OPERATIONS)}")
    name, _ = KNOWN[node.target]
    kwargs = {key: value for key, value in node.kwargs.items() if key not in ("inplace", "_stacklevel")}
    args = list(node.args)
    if not args and "input" in kwargs:
        args = [kwargs.pop("input")]
    for key in ("out", "dtype"):
        if key in kwargs and kwargs[key] is None:
            del kwargs[key]
    if name in BINARY:
        args += [kwargs.pop(key) for key in ("other", "exponent") if key in kwargs]
    if "out" in kwargs or (name in BINARY and (kwargs or len(args) != 2)):
        raise ValueError(f"{node.name}: does {name} with {', '.join(kwargs)}, wanted it without")
    return name, args, kwargs


def _dropped(node: fx.Node) -> fx.Node:
    """The input of dropout, which is also its result in evaluation mode."""
    place, key = DROPOUTS[node.target]
    args = (*node.args, *(() if node.args else (node.kwargs["input"],)))
    if (args[place] if len(args) > place else node.kwargs.get(key)) is not False or not isinstance(args[0], fx.Node):
        raise ValueError(f"{node.name}: drops even after eval(), wanted training=self.training")
    return args[0]


def _plain(argument: Any, values: Mapping[fx.Node, int], where: str) -> Any:
    """An argument in the form of an architecture."""
    if isinstance(argument, fx.Node):
        return {"value": values[argument]}
    if isinstance(argument, tuple):
        return {"tuple": [_plain(each, values, where) for each in argument]}
    if isinstance(argument, list):
        return [_plain(each, values, where) for each in argument]
    if isinstance(argument, slice):
        parts = (argument.start, argument.stop, argument.step)
        return {"slice": [_plain(each, values, where) for each in parts]}
    if argument is ...:
        return {"ellipsis": []}
    return _constant(argument, where)


def _constant(value: Any, where: str) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise ValueError(f"{where}: has the value {value!r}, wanted numbers, names and tensors")


def _layer(name: str, layer: nn.Module) -> dict[str, Any]:
    """A layer's kind, and the arguments that make it."""
    kind = type(layer).__name__
    if isinstance(layer, SparseLinear):
        raise ValueError(f"{name}: is a SparseLinear; save the network before sparsify, the file is sparse anyway")
    if LAYERS.get(kind) is not type(layer):
        raise ValueError(f"{name}: is a {kind}, wanted one of {', '.join(LAYERS)}")
    told: dict[str, Any] = {"kind": kind}
    for key in arguments(kind):
        value = getattr(layer, key)
        if key == "bias":  # a layer without weights has no bias, and older versions of torch lack the argument
            value = value is not None or layer.weight is None
        if value != inspect.signature(LAYERS[kind]).parameters[key].default:
            is_list = isinstance(value, list | tuple)
            told[key] = [_constant(each, name) for each in value] if is_list else _constant(value, name)
    return told


# ---- steps that work in place


def _check_writes(graph: fx.Graph, model: nn.Module) -> None:
    """Raise an error for an in-place step on a tensor that is read again: out of place, the result would differ."""
    order = {node: number for number, node in enumerate(graph.nodes)}
    memory: dict[fx.Node, set[fx.Node]] = {}  # the earlier steps whose results may share memory
    numbers: set[fx.Node] = set()  # sizes, and numbers calculated from them
    for node in graph.nodes:
        if _name(node) in SIZES or (node.all_input_nodes and numbers.issuperset(node.all_input_nodes)):
            numbers.add(node)
            memory[node] = {node}
            continue
        writes = _writes(node, model)
        sources = node.all_input_nodes if _is_view(node, model) else []
        if writes:
            sources = node.all_input_nodes[:1]
        shared = {node}.union(*(memory[each] for each in sources))
        memory |= dict.fromkeys(shared, shared)
        for each in shared - {node} if writes else ():
            for user in each.users:
                if order[user] > order[node] and _name(user) not in SIZES:
                    what = node.target if node.op == "call_module" else node.name
                    raise ValueError(
                        f"{what}: works in place on what {user.name} reads again, wanted a step that does not"
                    )


def _writes(node: fx.Node, model: nn.Module) -> bool:
    if node.op == "call_module":
        layer = model.get_submodule(str(node.target))
        return bool(getattr(layer, "inplace", False)) and not isinstance(layer, VIEW_LAYERS)
    if not node.op.startswith("call_") or node.target in DROPOUTS:
        return False
    return bool(node.kwargs.get("inplace")) or KNOWN.get(node.target, ("", False))[1]


def _is_view(node: fx.Node, model: nn.Module) -> bool:
    if node.op == "call_module":
        return isinstance(model.get_submodule(str(node.target)), VIEW_LAYERS)
    return node.op.startswith("call_") and (node.target in DROPOUTS or _name(node) in VIEWS)


def _name(node: fx.Node) -> str:
    if node.target is getattr:
        return ATTRIBUTES.get(str(node.args[1]), "")
    return KNOWN.get(node.target, ("", False))[0] if node.op.startswith("call_") else ""
