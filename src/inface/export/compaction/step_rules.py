"""Rules for steps without weights: how they carry channels."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg
from torch.nn import functional

from .channels import Flow
from .wiring import Rule, Unknown, Wiring, argument, called, finite, source, varying

__all__ = ["FUNCTIONS", "METHODS", "MODULES"]


def _same(wiring: Wiring, node: fx.Node) -> Flow | None:
    return wiring.flows.get(source(node))


def _dropout(wiring: Wiring, node: fx.Node) -> Flow | None:
    active = argument(node, ("p", "training"), "training", True)
    if wiring.module(node).training if node.op == "call_module" else active is not False:
        raise Unknown("it drops nodes even after eval()")
    return _same(wiring, node)


def _pointwise(wiring: Wiring, node: fx.Node) -> Flow | None:
    """An activation, or a sum or product of tensors: equal channels of all operands are tied."""
    operands = {each: wiring.flows[each] for each in node.all_input_nodes if each in wiring.flows}
    if not operands:
        return None
    shape = wiring.shape(node)
    axis, *more = {len(shape) - len(wiring.shape(each)) + flow.axis for each, flow in operands.items()}
    flows = list(operands.values())
    if more or any(len(flow.ids) != shape[axis] for flow in flows):
        raise Unknown("its operands have different channels")
    for flow in flows[1:]:
        wiring.classes.tie(flows[0].ids, flow.ids)
    others = [each for each in node.all_input_nodes if each not in operands]
    for each in others:
        other = wiring.graph.shapes.get(each, ())
        place = axis - len(shape) + len(other)
        if place >= 0 and (other[place] > 1 or shape[axis] == 1):
            wiring.classes.tie(flows[0].ids, wiring.read(each, place).ids)
    value = varying(shape[axis])
    if others:
        wiring.spoil(node, [each.ids for each in flows], "adds or multiplies what is not constant")
    else:
        # In the dtype of the network: at a jump (Hardshrink, Threshold) another dtype may give another value.
        values = {each: flow.value.to(wiring.graph.dtypes[each], copy=True) for each, flow in operands.items()}
        evaluated = _evaluated(wiring, node, values)
        value = torch.where(torch.stack([flow.value.isnan() for flow in flows]).any(0), math.nan, evaluated.double())
    if node.target in PRODUCTS:
        value = torch.where(torch.stack([flow.value == 0 for flow in flows]).any(0), 0, value)
    return Flow(axis, flows[0].ids, finite(value))


def _evaluated(wiring: Wiring, node: fx.Node, values: dict[fx.Node, Tensor]) -> Tensor:
    """The result of a step on constants."""
    args, kwargs = map_arg(node.args, values.__getitem__), map_arg(node.kwargs, values.__getitem__)
    if node.op == "call_module":
        return wiring.module(node)(*args, **kwargs)
    target: Any = getattr(Tensor, node.target) if isinstance(node.target, str) else node.target
    return target(*args, **kwargs)


def _over_positions(wiring: Wiring, node: fx.Node) -> Flow | None:
    """A step that works on the positions of each channel separately and keeps constants constant."""
    flow, name = wiring.flows.get(source(node)), called(wiring, node)
    if flow is None:
        return None
    before, after = wiring.shape(source(node)), wiring.shape(node)
    positions = int(name[-2]) if name.endswith("d") else len(before) - 2
    if flow.axis != len(before) - positions - 1 or len(after) != len(before):
        raise Unknown("it works along the channels")
    return flow


def _pool(wiring: Wiring, node: fx.Node) -> Flow | None:
    """Pooling over windows: with zero padding a constant is not constant at the border, unless it is zero."""
    flow = _over_positions(wiring, node)
    if flow is None:
        return None
    average = called(wiring, node).lower().startswith("avg")
    order = ("kernel_size", "stride", "padding", *(AVERAGE if average else MAXIMUM))
    module = wiring.module(node) if node.op == "call_module" else None
    padding, dilation, included, divisor = (
        getattr(module, name, default) if module is not None else argument(node, order, name, default)
        for name, default in (("padding", 0), ("dilation", 1), ("count_include_pad", True), ("divisor_override", None))
    )
    padded = any(padding) if isinstance(padding, list | tuple) else padding != 0
    if average and (divisor is not None or (padded and included is not False)):
        wiring.spoil(
            node, [flow.ids], "averages them with a border of zeros" if padded else "divides by another number"
        )
        return Flow(flow.axis, flow.ids, torch.where(flow.value == 0, flow.value, math.nan))
    if not average and padded and dilation not in (1, (1,), (1, 1), (1, 1, 1)):
        wiring.spoil(node, [flow.ids], "has windows that may miss the image")
        return Flow(flow.axis, flow.ids, varying(len(flow.ids)))
    return flow


def _reduce(wiring: Wiring, node: fx.Node) -> Flow | None:
    """The mean or maximum over dimensions other than the channels."""
    flow = wiring.flows.get(source(node))
    if flow is None:
        return None
    dims = _dims(argument(node, ("dim",), "dim", None), len(wiring.shape(source(node))))
    if flow.axis in dims:
        raise Unknown("it works along the channels")
    keeps = len(wiring.shape(node)) == len(wiring.shape(source(node)))
    return Flow(flow.axis - (0 if keeps else sum(each < flow.axis for each in dims)), flow.ids, flow.value)


def _flatten(wiring: Wiring, node: fx.Node) -> Flow | None:
    flow = wiring.flows.get(source(node))
    if flow is None:
        return None
    rank = len(wiring.shape(source(node)))
    if node.op == "call_module":
        module: Any = wiring.module(node)
        first, last = _dims((module.start_dim, module.end_dim), rank)
    else:
        names = ("start_dim", "end_dim")
        first, last = _dims((argument(node, names, "start_dim", 0), argument(node, names, "end_dim", -1)), rank)
    return _flattened(flow, wiring.shape(source(node)), first, last)


def _flattened(flow: Flow, shape: tuple[int, ...], first: int, last: int) -> Flow:
    if flow.axis < first or first == last:
        return flow
    if flow.axis > last:
        return Flow(flow.axis - (last - first), flow.ids, flow.value)
    if first == 0 and flow.axis > 0:
        raise Unknown("it flattens the batch and the channels together")
    along = [1] * (last - first + 1)
    along[flow.axis - first] = -1
    where = torch.arange(len(flow.ids)).reshape(along).expand(shape[first : last + 1]).reshape(-1)
    return Flow(first, flow.ids[where], flow.value[where])


def _view(wiring: Wiring, node: fx.Node) -> Flow | None:
    """``view`` and ``reshape``, where they are ``flatten(1)``."""
    flow = wiring.flows.get(source(node))
    if flow is None:
        return None
    sizes: Any = node.args[1] if len(node.args) == 2 else node.args[1:]
    before = wiring.shape(source(node))
    width = math.prod(before[1:])
    if (
        not isinstance(sizes, list | tuple)
        or len(sizes) != 2
        or len(before) < 2
        or wiring.shape(node) != (before[0], width)
    ):
        raise Unknown("it is not flatten(1)")
    batch, rest = sizes
    by_batch = isinstance(rest, int) and _is_batch(batch, before[0])
    by_width = isinstance(rest, int) and rest == width and isinstance(batch, int)
    if not by_batch and not by_width:
        raise Unknown("it is not flatten(1) for every input")
    if rest != -1:
        wiring.written.append(node)
    return _flattened(flow, before, 1, len(before) - 1)


def _is_batch(size: Any, count: int) -> bool:
    """Whether a size is the first of a tensor: ``x.size(0)``, ``x.shape[0]``, ``len(x)``, or the number itself."""
    if not isinstance(size, fx.Node):
        return isinstance(size, int) and size == count
    if size.target is operator.getitem and isinstance(size.args[0], fx.Node):
        return bool(size.args[1] == 0 and size.args[0].target in (getattr, "size"))
    return bool(size.target is len or (size.target == "size" and tuple(size.args[1:]) == (0,)))


def _cat(wiring: Wiring, node: fx.Node) -> Flow | None:
    if not any(each in wiring.flows for each in node.all_input_nodes):
        return None
    parts: Any = node.args[0] if node.args else node.kwargs.get("tensors")
    (dim,) = _dims(argument(node, ("dim",), "dim", node.kwargs.get("axis", 0)), len(wiring.shape(node)))
    if not isinstance(parts, list | tuple):
        raise Unknown("it does not join a list")
    if any(wiring.flows[each].axis != dim for each in parts if each in wiring.flows):
        raise Unknown("it joins along another dimension")
    flows = [wiring.read(each, dim) for each in parts]
    return Flow(dim, torch.cat([each.ids for each in flows]), torch.cat([each.value for each in flows]))


def _permute(wiring: Wiring, node: fx.Node) -> Flow | None:
    flow = wiring.flows.get(source(node))
    if flow is None:
        return None
    rank = len(wiring.shape(source(node)))
    order = _dims(node.args[1] if len(node.args) == 2 else node.args[1:], rank)
    if "transpose" in called(wiring, node):
        one, other = order
        order = list(range(rank))
        order[one], order[other] = other, one
    return Flow(order.index(flow.axis), flow.ids, flow.value)


def _squeeze(wiring: Wiring, node: fx.Node) -> Flow | None:
    flow = wiring.flows.get(source(node))
    if flow is None:
        return None
    shape, adds = wiring.shape(source(node)), called(wiring, node) == "unsqueeze"
    (dim,) = _dims(argument(node, ("dim",), "dim", None), len(shape) + adds)
    if not adds and (dim == flow.axis or shape[dim] != 1):
        raise Unknown("which dimensions it takes away depends on their sizes")
    return Flow(flow.axis + (dim <= flow.axis if adds else -(dim < flow.axis)), flow.ids, flow.value)


def _size(wiring: Wiring, node: fx.Node) -> None:
    """The shape of a tensor: harmless unless the number of channels is read."""
    flow = wiring.flows.get(source(node))
    if flow is None or (node.target is getattr and node.args[1] in ("dtype", "device", "ndim")):
        return
    if node.target is getattr and node.args[1] != "shape":
        raise Unknown(f"{node.args[1]} of a tensor is not understood")
    asked = 0 if node.target is len else argument(node, ("dim",), "dim", None) if node.target == "size" else None
    every: list[Any] = [asked]
    if asked is None:  # an unpacked shape asks for all sizes, and uses some
        every = [user.args[1] if user.target is operator.getitem else None for user in node.users if _is_used(user)]
    if any(not isinstance(each, int) or each % len(wiring.shape(source(node))) == flow.axis for each in every):
        raise Unknown("forward uses the number of channels")


def _is_used(node: fx.Node) -> bool:
    return bool(node.users) or node.target is not operator.getitem


def _getitem(wiring: Wiring, node: fx.Node) -> None:
    if source(node) in wiring.flows:
        raise Unknown("it takes a part of a tensor")


def _nothing(wiring: Wiring, node: fx.Node) -> None:
    """A step that tells nothing about the channels."""


def _dims(dims: Any, rank: int) -> list[int]:
    dims = [dims] if isinstance(dims, int) else dims
    if not isinstance(dims, list | tuple) or not dims or not all(isinstance(each, int) for each in dims):
        raise Unknown("its dimensions are not written as numbers")
    return [each % rank for each in dims]


# ---- the lists


def _each(names: str, *homes: Any) -> list[Any]:
    """The functions or classes of these names, wherever they are."""
    return [getattr(home, name) for home in homes for name in names.split() if hasattr(home, name)]


MAXIMUM = ("dilation", "ceil_mode", "return_indices")
AVERAGE = ("ceil_mode", "count_include_pad", "divisor_override")
PRODUCTS = (operator.mul, operator.imul, torch.mul, "mul", "mul_")
ACTIVATIONS = (
    "ReLU ReLU6 LeakyReLU ELU SELU CELU GELU SiLU Mish Sigmoid Tanh Softplus Softsign Hardtanh Hardswish Hardsigmoid "
    "LogSigmoid Tanhshrink Hardshrink Softshrink Threshold"
)
UNARY = (
    "relu relu6 leaky_relu elu selu celu gelu silu mish sigmoid tanh softplus softsign hardtanh hardswish hardsigmoid "
    "logsigmoid tanhshrink hardshrink softshrink threshold exp log1p expm1 abs neg square sqrt erf sin cos clamp"
)
BINARY = "add sub mul div true_divide maximum minimum pow"
POINTWISE = f"{UNARY} {BINARY} " + " ".join(f"{name}_" for name in (UNARY + " add sub mul div").split())
POOLS = "max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d"
DROPOUTS = "dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout"

MODULES: dict[type[nn.Module], Rule] = {
    **dict.fromkeys(_each(ACTIVATIONS, nn), _pointwise),
    **dict.fromkeys(_each("Dropout Dropout1d Dropout2d Dropout3d AlphaDropout FeatureAlphaDropout", nn), _dropout),
    **dict.fromkeys(_each("MaxPool1d MaxPool2d MaxPool3d AvgPool1d AvgPool2d AvgPool3d", nn), _pool),
    **dict.fromkeys(_each("AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d", nn), _over_positions),
    **dict.fromkeys(_each("AdaptiveMaxPool1d AdaptiveMaxPool2d AdaptiveMaxPool3d Upsample", nn), _over_positions),
    nn.Flatten: _flatten,
    nn.Identity: _same,
}
FUNCTIONS: dict[Any, Rule] = {
    **dict.fromkeys(_each(POINTWISE, torch, functional), _pointwise),
    **dict.fromkeys(_each("add sub mul truediv pow neg abs iadd isub imul itruediv", operator), _pointwise),
    **dict.fromkeys(_each(DROPOUTS, functional), _dropout),
    **dict.fromkeys(_each(POOLS, torch, functional), _pool),
    **dict.fromkeys(
        _each("adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d", torch, functional), _over_positions
    ),
    **dict.fromkeys(_each("mean amax amin", torch), _reduce),
    **dict.fromkeys(_each("cat concat", torch), _cat),
    **dict.fromkeys(_each("permute transpose", torch), _permute),
    **dict.fromkeys(_each("squeeze unsqueeze", torch), _squeeze),
    **dict.fromkeys((getattr, len), _size),
    torch.clone: _same,
    torch.flatten: _flatten,
    torch.reshape: _view,
    operator.getitem: _getitem,
}
METHODS: dict[Any, Rule] = {
    **dict.fromkeys(f"{POINTWISE} float double half bfloat16".split(), _pointwise),
    **dict.fromkeys(("contiguous", "clone", "detach"), _same),
    **dict.fromkeys(("mean", "amax", "amin"), _reduce),
    **dict.fromkeys(("permute", "transpose"), _permute),
    **dict.fromkeys(("squeeze", "unsqueeze"), _squeeze),
    **dict.fromkeys(("view", "reshape"), _view),
    "flatten": _flatten,
    "size": _size,
    "dim": _nothing,
}
