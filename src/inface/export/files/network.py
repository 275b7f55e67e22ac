"""Build a network from its architecture: known layers and operations in order, without code.

Nothing in an architecture is executed, and no memory is allocated for it. Names outside the vocabulary are errors.
Before the first forward pass with a new input shape, its cost is counted, and a cost above the limit is an error: a few
steps in a small file could ask for any amount of memory and time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from . import bounds
from .bounds import FLOOR, PER_NUMBER, check_numbers, operations, pieces, without_memory
from .vocabulary import LAYERS, OPERATIONS, arguments

__all__ = ["Network", "unused"]

MOST_LAYERS = 100_000  # including the modules that hold them
MOST_STEPS = 1_000_000
DEEPEST = 32  # nesting of modules
MOST_SHAPES = 256  # remembered input shapes
LARGEST = 1 << 31


class Network(nn.Module):
    """A network built from an architecture; its parameters have their original names.

    The parameters have no memory yet; fill them with ``load_state_dict(..., assign=True)``. No step works in place.

    Args:
        architecture: the result of :func:`inface.export.describe`, or the same from an untrusted file.
        work: the limit of operations of a forward pass; a larger one is an error, before it runs. By default 2**18 per
            number of its input, plus 2**18 per sample and value, and at least 2**30. An operation is a multiply-add;
            each number in a result counts as 64. A network whose layers have been replaced is not checked.
        values: the number of values stored for it; by default its number of parameters.

    Raises:
        ValueError: it is not an architecture, or names an unknown layer or operation.

    >>> import torch
    >>> from torch import nn
    >>> from inface.export import describe
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(6, 2), nn.ReLU())
    >>> again = Network(describe(model))
    >>> again.load_state_dict(model.state_dict(), assign=True)
    <All keys matched successfully>
    >>> torch.equal(again(torch.ones(1, 2, 3)), model(torch.ones(1, 2, 3)))
    True
    """

    # Private names, because any other name may be that of a layer.

    def __init__(self, architecture: Mapping[str, Any], *, work: int | None = None, values: int | None = None) -> None:
        super().__init__()
        self.__work, self.__values = work, values
        self.__fitting: set[Any] = set()  # shapes and dtypes of inputs
        layers = _wanted(architecture, "layers", dict, MOST_LAYERS)
        steps = _wanted(architecture, "steps", list, MOST_STEPS)
        self.__steps = [_checked(step, number, layers) for number, step in enumerate(steps)]
        self.__output = architecture.get("output")
        if self.__output is None:
            raise ValueError("architecture: output: wanted a value, got None")
        _check_argument(self.__output, len(steps), "output")
        _add(self, layers)

    def forward(self, inputs: Tensor) -> Any:
        # Tracing costs no time, and torch.jit.trace would record the counting.
        followed = torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None  # noqa: SLF001
        if type(inputs) in (Tensor, nn.Parameter) and not followed:
            self.__check(inputs)
        values: list[Any] = [inputs]
        for step in self.__steps:
            of = [_filled(each, values) for each in step["of"]]
            if "layer" in step:
                values.append(self.get_submodule(step["layer"])(*of))
            else:
                given = {name: _filled(each, values) for name, each in step["with"].items()}
                check_numbers(step["operation"], of)
                values.append(OPERATIONS[step["operation"]](*of, **given))
        return _filled(self.__output, values)

    def __check(self, inputs: Tensor) -> None:
        """Raise an error if a forward pass on these inputs would exceed the limit."""
        kind = (inputs.shape, inputs.dtype)
        if kind in self.__fitting:
            return
        layers = {step["layer"]: self.get_submodule(step["layer"]) for step in self.__steps if "layer" in step}
        if not all(type(layer) in LAYERS.values() for layer in layers.values()):
            return
        count = sum(p.numel() for p in self.parameters()) if self.__values is None else self.__values
        numbers = inputs.numel() + count * (len(inputs) if inputs.ndim > 1 else 1)
        allowed = max(FLOOR, PER_NUMBER * numbers) if self.__work is None else self.__work
        taken = 0
        casts = torch.is_autocast_enabled(inputs.device.type)
        values: list[Any] = [torch.empty(inputs.shape, dtype=inputs.dtype, device="meta")]
        for number, step in enumerate(self.__steps):
            if casts:  # autocast mixes floating dtypes, but not on the meta device: there, all are float32
                values[-1] = _in_float32(values[-1])
            what: Any = without_memory(layers[step["layer"]], casts=casts) if "layer" in step else step["operation"]
            where = f"step {number}, {step.get('layer') or step['operation']}"
            of = [_filled(each, values) for each in step["of"]]
            given = {name: _filled(each, values) for name, each in step.get("with", {}).items()}
            taken += pieces(str(step.get("operation")), of[0] if of else None)
            if taken <= allowed:
                values.append(_sized(what, of, given, where))
                taken += operations(what, of, given, values[-1])
            if taken > allowed:
                raise ValueError(
                    f"{where}: for inputs of the shape {tuple(inputs.shape)} the network would take {taken:,} "
                    f"operations up to there, wanted at most {allowed:,}; work={taken} allows them"
                )
        if len(self.__fitting) >= MOST_SHAPES:
            self.__fitting.clear()
        self.__fitting.add(kind)


@torch.no_grad()
def _sized(what: Any, of: Sequence[Any], given: Mapping[str, Any], where: str) -> Any:
    """The result of a step on the meta device."""
    try:
        if isinstance(what, nn.Module):
            return what.forward(*of)
        check_numbers(what, of)
        return OPERATIONS[what](*of, **given)
    except Exception as error:  # steps check their arguments in many ways
        raise ValueError(f"{where}: {' '.join(str(error).split())}") from error


def _in_float32(value: Any) -> Any:
    """The result of a step with its floating-point tensors in float32."""
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        return [_in_float32(each) for each in value]
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value


def unused(network: Network, state: Mapping[str, Tensor]) -> list[str]:
    """The tensors of a state dict that the network does not have, in order.

    Raises:
        ValueError: a needed tensor is missing or has another shape or dtype, or a layer has an additional tensor.

    >>> from inface.export import describe
    >>> network = Network(describe(nn.Sequential(nn.Linear(3, 2, bias=False))))
    >>> unused(network, {"0.weight": torch.zeros(2, 3), "1.weight": torch.zeros(5)})
    ['1.weight']
    """
    wanted = network.state_dict()
    for name, tensor in wanted.items():
        if name not in state:
            raise ValueError(f"{name}: is missing, wanted a tensor of the shape {tuple(tensor.shape)}")
        found = state[name]
        if found.shape != tensor.shape or found.is_floating_point() != tensor.is_floating_point():
            has, needs = (f"{each.dtype} of the shape {tuple(each.shape)}" for each in (found, tensor))
            raise ValueError(f"{name}: is {has}, wanted {needs}, as its layer says")
    modules = dict(network.named_modules(remove_duplicate=False))
    more = [name for name in state if name not in wanted]
    for name in more:
        layer = modules.get(name.rpartition(".")[0], network)
        if type(layer) in LAYERS.values():
            raise ValueError(f"{name}: is a tensor that its layer {layer} does not have")
    return more


def _add(network: nn.Module, layers: Mapping[str, Any]) -> None:
    """Add layers under their dotted names, and the modules in between."""
    made: dict[str, nn.Module] = {}
    for name, layer in layers.items():
        parts = name.split(".")
        if not all(parts) or len(parts) > DEEPEST:
            raise ValueError(f"architecture: layer {name[:200]!r}, wanted a name of 1 to {DEEPEST} parts between dots")
        at = network
        for place, part in enumerate(parts):
            path = ".".join(parts[: place + 1])
            is_last = place + 1 == len(parts)
            if path in (layers if not is_last else made):
                raise ValueError(f"architecture: layer {name!r}: {path!r} cannot be a layer and hold others")
            if len(made) >= MOST_LAYERS:
                raise ValueError(f"architecture: layer {name!r}: wanted at most {MOST_LAYERS:,} modules")
            if path not in made:
                made[path] = _made(name, layer, layers, made) if is_last else nn.Module()
                try:
                    at.add_module(part, made[path])
                except KeyError as error:
                    raise ValueError(f"architecture: layer {name!r}: {error.args[0]}") from None
            at = made[path]


def _made(name: str, layer: Any, layers: Mapping[str, Any], made: Mapping[str, nn.Module]) -> nn.Module:
    """The layer of an architecture, from its kind and arguments, or from the name of the layer that it shares."""
    same = layer.get("same") if isinstance(layer, dict) else None
    if isinstance(same, str) and len(layer) == 1:
        if same not in layers or same not in made:
            raise ValueError(f"architecture: layer {name!r}: the same as {same!r}, wanted a layer before it")
        return made[same]
    kind = layer.get("kind") if isinstance(layer, dict) else None
    if not isinstance(kind, str) or kind not in LAYERS:
        raise ValueError(f"architecture: layer {name!r}: kind {kind!r}, wanted one of {', '.join(LAYERS)}")
    given = {key: value for key, value in layer.items() if key != "kind"}
    for key, value in given.items():
        if key not in arguments(kind):
            raise ValueError(f"architecture: layer {name!r}: {key!r}, wanted one of {', '.join(arguments(kind))}")
        if not _is_simple(value):
            raise ValueError(
                f"architecture: layer {name!r}: {key} {str(value)[:200]}, wanted numbers below {LARGEST:,}"
            )
    try:
        with torch.device("meta"):  # no memory is allocated for an untrusted size
            return LAYERS[kind](
                **{key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
            )
    except Exception as error:  # layers check their arguments in many ways
        raise ValueError(f"architecture: layer {name!r}: {' '.join(str(error).split())}") from error


def _is_simple(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) <= 8 and all(_is_simple(each) and not isinstance(each, list) for each in value)
    if isinstance(value, int):
        return abs(value) < LARGEST
    return value is None or isinstance(value, float) or (isinstance(value, str) and len(value) <= 20)


def _wanted(architecture: Any, key: str, kind: type, most: int) -> Any:
    found = architecture.get(key) if isinstance(architecture, Mapping) else None
    if not isinstance(found, kind):
        raise ValueError(f"architecture: {key}: wanted a {kind.__name__}, got {type(found).__name__}")
    if len(found) > most:  # type: ignore[arg-type]
        raise ValueError(f"architecture: {key}: wanted at most {most:,}, got {len(found):,}")  # type: ignore[arg-type]
    return found


def _checked(step: Any, number: int, layers: Mapping[str, Any]) -> dict[str, Any]:
    of, given = (step.get("of"), step.get("with", {})) if isinstance(step, dict) else (None, None)
    if not isinstance(of, list) or not isinstance(given, dict):
        raise ValueError(f"architecture: step {number}: wanted a layer or an operation, and its arguments")
    for each in [*of, *given.values()]:
        _check_argument(each, number, f"step {number}")
    name, kind = step.get("layer"), step.get("operation")
    if isinstance(name, str) and name in layers and kind is None:
        if not of or given:
            raise ValueError(f"architecture: step {number}: layer {name!r}: wanted one input and no named arguments")
        return {"layer": name, "of": of}
    if isinstance(kind, str) and kind in OPERATIONS and name is None:
        if not given.keys().isdisjoint(("out", "inplace")):
            raise ValueError(f"architecture: step {number}: {kind}: works in place, wanted a step that does not")
        return {"operation": kind, "of": of, "with": given}
    raise ValueError(
        f"architecture: step {number}: {name or kind!r}, wanted a layer that is there or one of {', '.join(OPERATIONS)}"
    )


# An argument is a number, a string, None, a list of arguments, or an object with one of these keys:
#   {"value": 3}: the network's input is 0, the first step's result 1, and so on;
#   {"tuple": [...]}, {"slice": [first, last, step]}, {"ellipsis": []}: types that JSON lacks.


def _check_argument(argument: Any, before: int, where: str, depth: int = 0) -> None:
    """Raise an error if this is not an argument, or if it reads a value that does not exist yet."""
    if isinstance(argument, dict):
        ((kind, inside),) = argument.items() if len(argument) == 1 else [(None, None)]
        if kind == "value":
            if type(inside) is not int or not 0 <= inside <= before:
                raise ValueError(f"architecture: {where}: {str(argument)[:200]}, wanted a value from 0 to {before}")
            return
        count = {"slice": 3, "ellipsis": 0}.get(str(kind))
        if (
            kind not in ("tuple", "slice", "ellipsis")
            or not isinstance(inside, list)
            or len(inside) != (len(inside) if count is None else count)
        ):
            raise ValueError(f"architecture: {where}: {str(argument)[:200]}, wanted a value, tuple, slice or ellipsis")
        argument = inside
    if isinstance(argument, list) and depth < 4:
        for each in argument:
            _check_argument(each, before, where, depth + 1)
    elif isinstance(argument, int) and abs(argument) >= bounds.LARGEST:
        raise ValueError(
            f"architecture: {where}: a number of {argument.bit_length()} bits, wanted one below 2 to the 63"
        )
    elif isinstance(argument, list) or not (argument is None or isinstance(argument, bool | int | float | str)):
        raise ValueError(f"architecture: {where}: {str(argument)[:200]}, wanted numbers and earlier values")


def _filled(argument: Any, values: Sequence[Any]) -> Any:
    if isinstance(argument, list):
        return [_filled(each, values) for each in argument]
    if not isinstance(argument, dict):
        return argument
    ((kind, inside),) = argument.items()
    if kind == "value":
        return values[inside]
    if kind == "ellipsis":
        return ...
    parts = [_filled(each, values) for each in inside]
    return tuple(parts) if kind == "tuple" else slice(*parts)
