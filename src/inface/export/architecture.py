"""A network as plain data, and back: known layers and operations in order, and no code.

Somebody who has a file of weights and no Python class can run the network from its architecture. Nothing in it is
executed: a name that is not in the lists below is refused.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from .selection import Select

__all__ = ["Network", "describe"]

# The layers that an architecture may name.
LAYERS: dict[str, type[nn.Module]] = {
    kind.__name__: kind
    for kind in (
        nn.AdaptiveAvgPool1d,
        nn.AdaptiveAvgPool2d,
        nn.AvgPool1d,
        nn.AvgPool2d,
        nn.BatchNorm1d,
        nn.BatchNorm2d,
        nn.BatchNorm3d,
        nn.Conv1d,
        nn.Conv2d,
        nn.Conv3d,
        nn.Dropout,
        nn.ELU,
        nn.Flatten,
        nn.GELU,
        nn.GroupNorm,
        nn.Identity,
        nn.LayerNorm,
        nn.LeakyReLU,
        nn.Linear,
        nn.LogSoftmax,
        nn.MaxPool1d,
        nn.MaxPool2d,
        nn.ReLU,
        Select,
        nn.SiLU,
        nn.Sigmoid,
        nn.Softmax,
        nn.Tanh,
    )
}

# The operations between them.
OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "adaptive_avg_pool2d": functional.adaptive_avg_pool2d,
    "avg_pool2d": functional.avg_pool2d,
    "cat": torch.cat,
    "flatten": torch.flatten,
    "gelu": functional.gelu,
    "getitem": operator.getitem,
    "log_softmax": functional.log_softmax,
    "max_pool2d": functional.max_pool2d,
    "mean": torch.mean,
    "mul": operator.mul,
    "relu": functional.relu,
    "reshape": torch.reshape,
    "shape": Tensor.size,
    "sigmoid": torch.sigmoid,
    "silu": functional.silu,
    "softmax": functional.softmax,
    "sub": operator.sub,
    "tanh": torch.tanh,
}
# Other names of them, as functions and as methods of a tensor.
SAME: dict[Any, str] = {
    **{operation: name for name, operation in OPERATIONS.items()},
    torch.add: "add",
    torch.mul: "mul",
    torch.sub: "sub",
    torch.relu: "relu",
    torch.max_pool2d: "max_pool2d",
    operator.iadd: "add",
    "size": "shape",
    "view": "reshape",
    **{name: name for name in ("add", "flatten", "mean", "mul", "relu", "reshape", "sigmoid", "tanh")},
}


def describe(model: nn.Module) -> dict[str, Any]:
    """The architecture of a network: what :class:`Network` makes a network of, as plain data.

    Args:
        model: a network whose ``forward`` torch.fx can follow, of the usual layers.

    Raises:
        ValueError: it has something else in it, which is named.

    >>> from torch import nn
    >>> describe(nn.Sequential(nn.Linear(3, 2), nn.ReLU()))["steps"]
    [{'layer': '0', 'of': [{'value': 0}]}, {'layer': '1', 'of': [{'value': 1}]}]
    """
    if type(model) in LAYERS.values():
        raise ValueError(f"{type(model).__name__}: is a layer by itself, wanted a network: nn.Sequential(layer)")
    try:
        graph = _Tracer().trace(model)
    except Exception as error:
        raise ValueError(f"{type(model).__name__}: its forward cannot be followed: {error}") from error
    layers: dict[str, Any] = {}
    steps: list[dict[str, Any]] = []
    values: dict[fx.Node, int] = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            if values:
                raise ValueError(f"{type(model).__name__}: takes several inputs, wanted one")
        elif node.op == "call_module":
            layers[str(node.target)] = _layer(str(node.target), model.get_submodule(str(node.target)))
            steps.append({"layer": str(node.target), "of": [_plain(each, values) for each in node.args]})
        elif node.op in ("call_function", "call_method"):
            name, arguments = _operation(node)
            step = {"operation": name, "of": [_plain(each, values) for each in arguments]}
            steps.append({**step, "with": {name: _plain(each, values) for name, each in node.kwargs.items()}})
        elif node.op == "get_attr":
            raise ValueError(f"{type(model).__name__}: uses {node.target} outside of a layer")
        else:
            return {"layers": layers, "steps": steps, "output": _plain(node.args[0], values)}
        values[node] = len(steps)
    raise ValueError(f"{type(model).__name__}: returns nothing")


class Network(nn.Module):
    """A network made of an architecture; its parameters have the names that they had.

    They have no memory yet: ``load_state_dict(..., assign=True)`` gives it to them.

    Args:
        architecture: what :func:`describe` gave, or somebody wrote.

    Raises:
        ValueError: it is not an architecture, or names something that is not known.

    >>> import torch
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(6, 2), nn.ReLU())
    >>> again = Network(describe(model))
    >>> again.load_state_dict(model.state_dict(), assign=True)
    <All keys matched successfully>
    >>> torch.equal(again(torch.ones(1, 2, 3)), model(torch.ones(1, 2, 3)))
    True
    """

    def __init__(self, architecture: Mapping[str, Any]) -> None:
        super().__init__()
        layers = _wanted(architecture, "layers", dict)
        for name, layer in layers.items():
            self._put(name, _made(name, layer))
        self.steps = [
            _checked(step, number, layers) for number, step in enumerate(_wanted(architecture, "steps", list))
        ]
        self.output = _value(architecture.get("output"), len(self.steps))

    def forward(self, inputs: Tensor) -> Any:
        values = [inputs]
        for step in self.steps:
            of = [_filled(each, values) for each in step["of"]]
            if "layer" in step:
                values.append(self.get_submodule(step["layer"])(*of))
            else:
                given = {name: _filled(each, values) for name, each in step["with"].items()}
                values.append(OPERATIONS[step["operation"]](*of, **given))
        return values[self.output["value"]]

    def _put(self, name: str, layer: nn.Module) -> None:
        """Add a layer under a name with dots, with the modules between."""
        *path, last = str(name).split(".")
        at: nn.Module = self
        for part in path:
            if part not in dict(at.named_children()):
                at.add_module(part, nn.Module())
            at = at.get_submodule(part)
        try:
            at.add_module(last, layer)
        except KeyError as error:
            raise ValueError(f"architecture: layer {name!r}: {error.args[0]}") from None


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) in LAYERS.values() or super().is_leaf_module(m, module_qualified_name)


def _operation(node: fx.Node) -> tuple[str, Sequence[Any]]:
    """The name of an operation, and its arguments."""
    if node.target is getattr and node.args[1] == "shape":
        return "shape", node.args[:1]
    if node.target not in SAME:
        raise ValueError(f"{node}: does {node.target}, wanted one of {', '.join(OPERATIONS)}")
    if node.op == "call_method" and node.target in ("reshape", "view") and not isinstance(node.args[1], list | tuple):
        return "reshape", (node.args[0], list(node.args[1:]))  # a method takes numbers, the function a list of them
    return SAME[node.target], node.args


def _plain(argument: Any, values: dict[fx.Node, int]) -> Any:
    if isinstance(argument, fx.Node):
        return {"value": values[argument]}
    if isinstance(argument, list | tuple):
        return [_plain(each, values) for each in argument]
    if argument is None or isinstance(argument, bool | int | float | str):
        return argument
    raise ValueError(f"an argument {argument!r}, wanted numbers and names")


def _layer(name: str, layer: nn.Module) -> dict[str, Any]:
    """A layer's kind, and the arguments that make it."""
    kind = type(layer).__name__
    if LAYERS.get(kind) is not type(layer):
        raise ValueError(f"{name}: is a {kind}, wanted one of {', '.join(LAYERS)}")
    given: dict[str, Any] = {}
    for parameter in signature(LAYERS[kind]).parameters.values():
        if parameter.name in ("device", "dtype", "inplace", "args", "kwargs"):
            continue
        value = getattr(layer, parameter.name)
        if isinstance(value, Tensor) or parameter.name == "bias":
            value = value is not None
        if value != parameter.default:
            given[parameter.name] = list(value) if isinstance(value, tuple) else value
    return {"kind": kind, **given}


def _made(name: str, layer: Any) -> nn.Module:
    kind = layer.get("kind") if isinstance(layer, dict) else None
    if not isinstance(kind, str) or kind not in LAYERS:
        raise ValueError(f"architecture: layer {name!r}: kind {kind!r}, wanted one of {', '.join(LAYERS)}")
    given = {key: value for key, value in layer.items() if key != "kind"}
    for key, value in given.items():
        if not _is_simple(value):
            raise ValueError(f"architecture: layer {name!r}: {key} {value!r}, wanted numbers")
    try:
        with torch.device("meta"):  # nothing is allocated for what an architecture merely says
            return LAYERS[kind](
                **{key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
            )
    except (TypeError, ValueError, RuntimeError, ArithmeticError, AttributeError, NotImplementedError) as error:
        raise ValueError(f"architecture: layer {name!r}: {' '.join(str(error).split())}") from None


def _is_simple(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) <= 8 and all(_is_simple(each) and not isinstance(each, list) for each in value)
    return value is None or isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) <= 20)


def _wanted(architecture: Any, key: str, kind: type) -> Any:
    found = architecture.get(key) if isinstance(architecture, Mapping) else None
    if not isinstance(found, kind):
        raise ValueError(f"architecture: {key}: wanted a {kind.__name__}, got {type(found).__name__}")
    return found


def _checked(step: Any, number: int, layers: Mapping[str, Any]) -> dict[str, Any]:
    of, given = (step.get("of"), step.get("with", {})) if isinstance(step, dict) else (None, None)
    if not isinstance(of, list) or not isinstance(given, dict):
        raise ValueError(f"architecture: step {number}: wanted a layer or an operation, and what it is of")
    for each in [*of, *given.values()]:
        _check_argument(each, number)
    name, kind = step.get("layer"), step.get("operation")
    if isinstance(name, str) and name in layers and kind is None:
        return {"layer": name, "of": of}
    if isinstance(kind, str) and kind in OPERATIONS and name is None:
        return {"operation": kind, "of": of, "with": given}
    raise ValueError(
        f"architecture: step {number}: {name or kind!r}, wanted a layer that is there or one of {', '.join(OPERATIONS)}"
    )


def _check_argument(argument: Any, number: int, depth: int = 0) -> None:
    if isinstance(argument, dict):
        _value(argument, number)
    elif isinstance(argument, list) and depth < 2:
        for each in argument:
            _check_argument(each, number, depth + 1)
    elif not _is_simple(argument) or isinstance(argument, list):
        raise ValueError(f"architecture: step {number}: argument {argument!r}, wanted numbers and earlier values")


def _value(argument: Any, before: int) -> dict[str, int]:
    """A value: the network's input is 0, the first step's result 1, and so on."""
    number = argument.get("value") if isinstance(argument, dict) and len(argument) == 1 else None
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= before:
        raise ValueError(f"architecture: {argument!r}, wanted a value from 0 to {before}")
    return {"value": number}


def _filled(argument: Any, values: Sequence[Any]) -> Any:
    if isinstance(argument, dict):
        return values[argument["value"]]
    if isinstance(argument, list):
        return [_filled(each, values) for each in argument]
    return argument
