"""Rules for layers with weights: how they carry channels, and how to make them smaller."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, fx, nn

from .channels import Flow, Layer
from .select import Select
from .wiring import Rule, Unknown, Wiring, finite, only

__all__ = ["LAYERS", "shape_of", "shrink"]


def shape_of(module: Any) -> tuple[int, ...]:
    """The shape of a layer's weights; its width if it has none.

    >>> shape_of(nn.Linear(3, 2)), shape_of(nn.BatchNorm1d(3, affine=False))
    ((2, 3), (3,))
    """
    if isinstance(module, Select):
        return (module.count,)
    return tuple(module.weight.shape) if module.weight is not None else (int(module.num_features),)


def shrink(module: Any, layer: Layer, rows: Tensor, columns: Tensor) -> int:
    """Make a layer smaller, in place; return the number of constants folded into its bias.

    Args:
        module: the layer's module, or a copy of it.
        layer: the layer.
        rows: which output channels to keep.
        columns: which input channels to keep.
    """
    if rows.all() and columns.all():
        return 0
    if isinstance(module, Select):
        kept = module.index[_on(rows, module.index)]
        module.index = (columns.cumsum(0) - 1).to(kept.device)[kept]
        module.count = len(kept)
        return 0
    if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return _shrink_mixing(module, layer, rows, columns)
    for name in ("weight", "bias", "running_mean", "running_var"):
        _replace(module, name, rows)
    setattr(module, "num_parameters" if isinstance(module, nn.PReLU) else "num_features", int(rows.sum()))
    return 0


def _shrink_mixing(module: Any, layer: Layer, rows: Tensor, columns: Tensor) -> int:
    count = 0
    if layer.edges is not None:
        folded = layer.folds & ~columns & (layer.reads.value != 0) & layer.edges[rows].any(0)
        count = int(folded.sum())
        if count:
            _add_to_bias(module, _sums(module.weight, folded) @ layer.reads.value[folded])
    inputs, outputs = int(columns.sum()), int(rows.sum())
    if isinstance(module, nn.Linear):
        module.in_features, module.out_features = inputs, outputs
    else:
        if layer.edges is None:  # groups are removed as a whole
            module.groups = module.groups * inputs // module.in_channels
        module.in_channels, module.out_channels = inputs, outputs
    _replace(module, "weight", rows, columns if layer.edges is not None else None)
    _replace(module, "bias", rows)
    return count


def _add_to_bias(module: Any, constant: Tensor) -> None:
    bias = module.bias
    if bias is None:
        bias = nn.Parameter(module.weight.detach().new_zeros(len(constant)), requires_grad=module.weight.requires_grad)
    total = bias.detach().to("cpu", torch.float64) + constant
    module.bias = nn.Parameter(total.to(bias.device, bias.dtype), requires_grad=bias.requires_grad)


def _replace(module: nn.Module, name: str, rows: Tensor, columns: Tensor | None = None) -> None:
    """Keep some rows and columns of a parameter or buffer, in its memory format."""
    old = getattr(module, name, None)
    if old is None:
        return
    kept = old.detach()[_on(rows, old)]
    if columns is not None:
        kept = kept[:, _on(columns, old)]
    for rank, order in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if old.ndim == rank and old.stride() == torch.empty(old.shape, device="meta", memory_format=order).stride():
            kept = torch.empty(kept.shape, dtype=old.dtype, device=old.device, memory_format=order).copy_(kept)
    kept = nn.Parameter(kept, requires_grad=old.requires_grad) if isinstance(old, nn.Parameter) else kept
    setattr(module, name, kept)


def _on(mask: Tensor, tensor: Tensor) -> Tensor:
    return mask.to(tensor.device)


def _taps(weight: Tensor) -> Tensor:
    """Weights as (nodes, inputs, positions)."""
    return weight.detach().reshape(*weight.shape[:2], -1)


def _sums(weight: Tensor, columns: Tensor) -> Tensor:
    """The contribution of each of these inputs to a node, if the input is 1 everywhere."""
    return _taps(weight)[:, _on(columns, weight)].to("cpu", torch.float64).sum(2)


# ---- how they carry channels


def _linear(wiring: Wiring, node: fx.Node) -> Flow:
    reads = wiring.read(only(node), len(wiring.shape(only(node))) - 1)
    module: Any = wiring.module(node)
    return _mixing(wiring, node, module, reads, ~reads.value.isnan())


def _convolution(wiring: Wiring, node: fx.Node) -> Flow:
    module: Any = wiring.module(node)
    reads = wiring.read(only(node), len(wiring.shape(only(node))) - module.weight.ndim + 1)
    padded = module.padding == "same" if isinstance(module.padding, str) else any(module.padding)
    # With zero padding a constant is not constant at the border, unless it is zero.
    known = reads.value == 0 if padded and module.padding_mode == "zeros" else ~reads.value.isnan()
    if module.groups == 1:
        return _mixing(wiring, node, module, reads, known)
    return _groups(wiring, node, module, reads, known)


def _mixing(wiring: Wiring, node: fx.Node, module: Any, reads: Flow, known: Tensor) -> Flow:
    """Every node is a sum over all inputs; ``known`` says which inputs are constant."""
    edges = (_taps(module.weight) != 0).any(2).cpu()
    value = _value(module, edges, known, _sums(module.weight, known) @ reads.value[known])
    return wiring.layer(node, reads, Flow(reads.axis, wiring.classes.new(len(value)), value), edges, known)


def _groups(wiring: Wiring, node: fx.Node, module: Any, reads: Flow, known: Tensor) -> Flow:
    """Every node is a sum over its group; a group is removed as a whole, with its inputs."""
    width = len(module.weight) // module.groups
    given = known.reshape(module.groups, -1).repeat_interleave(width, 0)
    values = torch.where(known, reads.value, 0).reshape(module.groups, -1).repeat_interleave(width, 0)
    edges = (_taps(module.weight) != 0).any(2).cpu()
    sums = (_sums(module.weight, torch.ones(edges.shape[1], dtype=torch.bool)) * values).sum(1)
    gives = Flow(reads.axis, wiring.classes.new(len(edges)), _value(module, edges, given, sums))
    for group in torch.cat([reads.ids.reshape(module.groups, -1), gives.ids.reshape(module.groups, -1)], 1):
        wiring.classes.tie(group[:-1], group[1:])
    return wiring.layer(node, reads, gives)


def _value(module: Any, edges: Tensor, known: Tensor, sums: Tensor) -> Tensor:
    """The values of nodes whose inputs are all constant."""
    if module.bias is not None:
        sums = sums + module.bias.detach().to("cpu", torch.float64)
    return finite(torch.where((edges & ~known).any(1), math.nan, sums))


def _batch_norm(wiring: Wiring, node: fx.Node) -> Flow:
    module: Any = wiring.module(node)
    if module.training:
        raise Unknown("it is in training mode even after eval()")
    reads = wiring.read(only(node), 1)
    value = _own_mean(wiring, node, reads)
    if module.running_mean is not None:
        mean, variance = (each.to("cpu", torch.float64) for each in (module.running_mean, module.running_var))
        value = (reads.value - mean) / (variance + module.eps).sqrt()
    if module.affine:
        scale, shift = (each.detach().to("cpu", torch.float64) for each in (module.weight, module.bias))
        value = torch.where(scale == 0, shift, value * scale + shift)
    return wiring.layer(node, reads, Flow(1, reads.ids, finite(value)))


def _own_mean(wiring: Wiring, node: fx.Node, reads: Flow) -> Tensor:
    """A constant minus its own mean, without running statistics: 0, except for the rounding of large constants."""
    module: Any = wiring.module(node)
    dtype = wiring.graph.dtypes[only(node)]
    small = reads.value.abs() <= math.sqrt(module.eps / torch.finfo(dtype).eps)
    if module.running_mean is None:
        wiring.spoil(node, [reads.ids[~small]], "normalises them by their own mean, which is not exact")
    return torch.where(small, 0, math.nan).double()


def _prelu(wiring: Wiring, node: fx.Node) -> Flow | None:
    module: Any = wiring.module(node)
    one = module.num_parameters == 1
    reads = wiring.flows.get(only(node)) if one else wiring.read(only(node), 1)
    if reads is None:
        return None
    slope = module.weight.detach().to("cpu", torch.float64)
    gives = Flow(reads.axis, reads.ids, torch.where(reads.value < 0, slope * reads.value, reads.value))
    return gives if one else wiring.layer(node, reads, gives)


def _select(wiring: Wiring, node: fx.Node) -> Flow:
    module: Any = wiring.module(node)
    reads = wiring.read(only(node), module.dim % len(wiring.shape(only(node))))
    index = module.index.cpu()
    edges = torch.zeros(len(index), len(reads.ids), dtype=torch.bool)
    edges[torch.arange(len(index)), index] = True
    return wiring.layer(node, reads, Flow(reads.axis, wiring.classes.new(len(index)), reads.value[index]), edges)


LAYERS: dict[type[nn.Module], Rule] = {
    nn.Linear: _linear,
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), _convolution),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d), _batch_norm),
    nn.PReLU: _prelu,
    Select: _select,
}
