"""The layers and operations that an architecture may name. Anything else is an error."""

from __future__ import annotations

import operator
from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from inface.export.compaction.select import Select

__all__ = ["BINARY", "DROPOUTS", "KNOWN", "LAYERS", "OPERATIONS", "VIEWS", "VIEW_LAYERS", "arguments"]


def arguments(kind: str) -> tuple[str, ...]:
    """The arguments of a layer in an architecture: all except device, dtype and ``inplace``.

    >>> arguments("Hardtanh")
    ('min_val', 'max_val')
    """
    untold = ("device", "dtype", "inplace", "args", "kwargs", "min_value", "max_value")
    return tuple(name for name in signature(LAYERS[kind]).parameters if name not in untold)


def _each(names: str, *homes: Any) -> dict[str, Any]:
    """The functions or classes of these names, each from the first module that has it."""
    found: dict[str, Any] = {}
    for name in names.split():
        found[name] = next(getattr(home, name) for home in homes if hasattr(home, name))
    return found


def _in_dimensions(names: str, *homes: Any) -> dict[str, Any]:
    """``Conv`` for ``Conv1d``, ``Conv2d`` and ``Conv3d``."""
    return _each(" ".join(f"{name}{size}d" for name in names.split() for size in (1, 2, 3)), *homes)


def _methods(names: str) -> dict[str, Callable[..., Any]]:
    """Methods of a tensor as functions that torch.fx can trace."""

    def function(name: str) -> Callable[..., Any]:
        return lambda tensor, *args, **kwargs: getattr(tensor, name)(*args, **kwargs)

    return {name: function(name) for name in names.split()}


DROPOUT_LAYERS = {**_in_dimensions("Dropout", nn), **_each("Dropout AlphaDropout FeatureAlphaDropout", nn)}
LAYERS: dict[str, type[nn.Module]] = {
    **_each("Linear", nn),
    **_in_dimensions("Conv ConvTranspose", nn),
    **_in_dimensions("BatchNorm InstanceNorm", nn),
    **_each("GroupNorm LayerNorm RMSNorm", nn),
    **_each("ReLU ReLU6 LeakyReLU PReLU ELU SELU CELU GELU SiLU Mish Sigmoid Tanh Softplus Softsign Hardtanh", nn),
    **_each("Hardswish Hardsigmoid LogSigmoid Tanhshrink Hardshrink Softshrink Threshold", nn),
    **_each("Softmax LogSoftmax Softmin Softmax2d", nn),
    **DROPOUT_LAYERS,
    **_in_dimensions("MaxPool AvgPool AdaptiveMaxPool AdaptiveAvgPool", nn),
    **_in_dimensions("ZeroPad ConstantPad ReflectionPad ReplicationPad CircularPad", nn),
    **_each("Upsample Flatten Identity", nn),
    "Select": Select,
}
# Layers whose result may be a view of their input.
VIEW_LAYERS = (nn.Flatten, nn.Identity, *DROPOUT_LAYERS.values())

UNARY = (
    "relu relu6 leaky_relu elu selu celu gelu silu mish sigmoid tanh softplus softsign hardtanh hardswish hardsigmoid "
    "logsigmoid tanhshrink hardshrink softshrink threshold exp log log1p expm1 square sqrt rsqrt erf sin cos clamp"
)
# Operations on two operands, tensors or numbers.
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    **_each("add sub mul pow floordiv matmul", operator),
    "div": operator.truediv,
    **_each("maximum minimum", torch),
}
TYPES = "float double half bfloat16"
VIEWS = (
    f"flatten reshape view permute transpose squeeze unsqueeze contiguous detach chunk split getitem {TYPES}".split()
)
OPERATIONS: dict[str, Callable[..., Any]] = {
    **_each(UNARY, functional, torch),
    **BINARY,
    **_each("neg abs getitem", operator),
    **_each("softmax log_softmax softmin normalize interpolate pad", functional),
    **_in_dimensions("max_pool avg_pool adaptive_max_pool adaptive_avg_pool", functional),
    **_each("mean sum amax amin max min cat stack flatten", torch),
    **_methods(f"reshape view permute transpose squeeze unsqueeze contiguous clone detach chunk split dim {TYPES}"),
    "shape": _methods("size")["size"],
}
# Aliases.
ALIASES = {"concat": "cat", "size": "shape", "true_divide": "div", "truediv": "div"}
OPERATORS = (*BINARY, "neg", "abs")


def _known() -> dict[Any, tuple[str, bool]]:
    """The operation of each function and tensor method, and whether it works in place."""
    found: dict[Any, tuple[str, bool]] = {operator.getitem: ("getitem", False)}
    for called, name in {**{name: name for name in OPERATIONS}, **ALIASES}.items():
        homes = (torch, functional, *((operator,) if name in OPERATORS else ()))
        found |= {getattr(home, called): (name, False) for home in homes if callable(getattr(home, called, None))}
        if callable(getattr(Tensor, called, None)):
            found[called] = (name, False)
        if called in UNARY.split() or name in OPERATORS:
            places = [(home, f"{called}_") for home in homes] + [(operator, f"i{called}")]
            found |= {getattr(home, place): (name, True) for home, place in places if hasattr(home, place)}
            if hasattr(Tensor, f"{called}_"):
                found[f"{called}_"] = (name, True)
    del found[torch.adaptive_max_pool1d]  # unlike its namesake in functional, it also returns indices
    return found


KNOWN = _known()
# Dropout functions: the position and the name of the argument that turns dropout on.
DROPOUTS: dict[Any, tuple[int, str]] = {
    **dict.fromkeys(_in_dimensions("dropout", functional).values(), (2, "training")),
    **dict.fromkeys(_each("dropout alpha_dropout feature_alpha_dropout", functional).values(), (2, "training")),
    **dict.fromkeys(_each("dropout alpha_dropout feature_alpha_dropout", torch).values(), (2, "train")),
}
