"""Which parameters of a network become sparse, and what patterns of names mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from numbers import Real
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from .warning import warn

__all__ = ["Layer", "chosen_layers", "holds_inputs_first", "pools", "unwrapped"]


class Layer(NamedTuple):
    """A parameter that can become sparse.

    Attributes:
        param: the parameter.
        per: what its nodes are.
        every_node: whether each node has to keep a weight: weight normalisation divides by their lengths.
        weight: the name of the weight that is computed from it, where that is another one.
    """

    param: Tensor
    per: Literal["output", "input"]
    every_node: bool = False
    weight: str | None = None


Layers = dict[str, Layer]

DENSE = (nn.Embedding, nn.EmbeddingBag)
SUMS = (nn.Linear, nn.Bilinear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
SEVERAL = (nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase)

# What torch.compile, activation checkpointing and FSDP put into the names of parameters.
WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
PARALLEL = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def chosen_layers(model: nn.Module, *, frozen: bool = False) -> Layers:
    """The parameters that are made sparse where nobody says which, by name; ``frozen``: those that need no gradient too.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Embedding(5, 4), nn.LayerNorm(4), nn.Linear(4, 3), nn.LSTM(4, 3))
    >>> list(chosen_layers(model))
    ['2.weight', '3.weight_ih_l0', '3.weight_hh_l0']
    """
    return _found(model, frozen=frozen)[0]


def _found(model: nn.Module, *, frozen: bool = False) -> tuple[Layers, list[str]]:
    """The usual layers by name, and the weights that would be among them but are computed in another way."""
    dense = {id(p) for module in model.modules() if isinstance(module, DENSE) for p in module.parameters(recurse=False)}
    names = {id(p): name for name, p in model.named_parameters()}
    found: Layers = {}
    unknown = []
    for path, module in model.named_modules():
        for attribute, per in _weights(module):
            weight = f"{path}.{attribute}" if path else attribute
            layer = _parameter_behind(module, attribute, per)
            if layer is None:
                unknown.append(weight)
                continue
            p = layer.param
            if id(p) in names and id(p) not in dense and (frozen or p.requires_grad) and _has_shape(p):
                found.setdefault(names[id(p)], layer._replace(weight=weight))
    order = list(names.values())
    return dict(sorted(found.items(), key=lambda item: order.index(item[0]))), unknown


def pools(
    model: nn.Module, density: float | Mapping[str, float], layers: str | list[str] | None
) -> dict[str, tuple[float, Layers]]:
    """The parameters that become sparse, in pools of one density each; what is to stay dense is in none.

    Raises:
        ValueError: naming the argument, the value and what was wanted.
    """
    names = _Names(model)
    if isinstance(density, Mapping):
        if layers is not None:
            raise ValueError(f"sparse_optimizer: a mapping of densities names the layers itself, got layers={layers!r}")
        return _mapped(density, names)
    share = _density(density, "")
    patterns = _patterns(layers)
    if not names.usual and layers is None:
        raise ValueError(
            "sparse_optimizer: the model has no linear, convolutional, attention or recurrent layer; say which layers"
        )
    members: Layers = {}
    for pattern in patterns:
        members.update(names.matching(pattern))
    return {"": (share, members)} if share < 1 else {}


def _weights(module: nn.Module) -> Iterator[tuple[str, Literal["output", "input"]]]:
    """The attributes of a layer that are sums over inputs, of two dimensions or more."""
    if isinstance(module, SUMS):
        yield "weight", "output"
    elif isinstance(module, TRANSPOSED):
        yield "weight", "input" if module.groups == 1 else "output"
    elif isinstance(weight := getattr(module, "weight", None), Tensor) and _is_conv1d_of_transformers(module, weight):
        yield "weight", "input"
    elif isinstance(module, SEVERAL):
        for name in _computed(module):
            p = getattr(module, name)
            if p.ndim >= 2 and (p.shape[0] > 1 or not isinstance(module, nn.MultiheadAttention)):
                yield name, "output"


def _computed(module: nn.Module) -> list[str]:
    """The attributes that a layer computes with: its parameters, or what others are made of under these names."""
    own = [name for name, _ in module.named_parameters(recurse=False)]
    hooks = [getattr(hook, "name", None) for hook in module._forward_pre_hooks.values()]  # noqa: SLF001 - as below
    rewritten = [name for name in hooks if isinstance(name, str) and hasattr(module, name)]
    behind = {f"{name}_{end}" for name in rewritten for end in ("g", "v", "orig")}
    names = [*(name for name in own if name not in behind), *getattr(module, "parametrizations", ()), *rewritten]
    return list(dict.fromkeys(names))


def _parameter_behind(module: nn.Module, attribute: str, per: Literal["output", "input"]) -> Layer | None:
    """The parameter whose zeros are those of a weight; None if there is none.

    It is the weight itself, or what weight normalisation and spectral normalisation rescale.
    """
    own = dict(module.named_parameters(recurse=False))
    if attribute in own:
        return Layer(own[attribute], per)
    if parametrize.is_parametrized(module, attribute):
        steps: Any = module.parametrizations[attribute]  # type: ignore[index]
        kind = type(steps[0]).__name__ if len(steps) == 1 else ""
        if kind == "_SpectralNorm":
            return Layer(steps.original, per)
        return _normalised(steps.original1, steps[0].dim, per) if kind == "_WeightNorm" else None
    for hook in module._forward_pre_hooks.values():  # noqa: SLF001 - torch's older functions
        if getattr(hook, "name", None) == attribute and type(hook) is WeightNorm:
            return _normalised(own[f"{attribute}_v"], hook.dim, per)
        if getattr(hook, "name", None) == attribute and type(hook) is SpectralNorm:
            return Layer(own[f"{attribute}_orig"], per)
    return None


def _normalised(direction: Tensor, dim: int, per: Literal["output", "input"]) -> Layer | None:
    """What weight normalisation divides by its lengths: of the whole (-1), or along a dimension, whose nodes must stay."""
    if dim == -1:
        return Layer(direction, per)
    return Layer(direction, "input" if dim else "output", every_node=True) if dim in (0, 1) else None


def holds_inputs_first(model: nn.Module) -> set[int]:
    """The ids of the weights of linear layers that are (inputs, outputs): those of GPT-2's Conv1D."""
    found = ((module, getattr(module, "weight", None)) for module in model.modules())
    return {id(p) for module, p in found if isinstance(p, Tensor) and _is_conv1d_of_transformers(module, p)}


def _is_conv1d_of_transformers(module: nn.Module, weight: Tensor) -> bool:
    """Whether it is the linear layer of GPT-2, whose weight is (inputs, outputs); transformers need not be installed."""
    named = any(kind.__name__ == "Conv1D" for kind in type(module).__mro__)
    return named and weight.ndim == 2 and getattr(module, "nf", None) == weight.shape[1]


def _has_shape(p: Tensor) -> bool:
    """Whether a parameter has entries: lazy ones have none yet."""
    return not isinstance(p, nn.parameter.UninitializedParameter) and bool(p.numel())


class _Names:
    """The parameters of a model under all of their names."""

    def __init__(self, model: nn.Module) -> None:
        self.usual, unknown = _found(model)
        self.unknown = [unwrapped(model, name) for name in unknown]
        self.all: Layers = {
            name: self.usual.get(name, Layer(p, "output"))
            for name, p in model.named_parameters()
            if _has_shape(p) and p.ndim >= 2
        }
        own = {id(layer.param): name for name, layer in self.all.items()}
        self.called: dict[str, set[str]] = {name: set() for name in self.all}
        for name, p in model.named_parameters(remove_duplicate=False):
            if id(p) in own:
                self.called[own[id(p)]] |= {name, unwrapped(model, name)}
        for name, layer in self.usual.items():
            if layer.weight is not None:
                self.called[name] |= {layer.weight, unwrapped(model, layer.weight)}

    def matching(self, pattern: str) -> Layers:
        """The parameters that a pattern means: one by its very name, or of the usual ones all that match."""
        for name, layer in self.all.items():
            if pattern in self.called[name]:
                return {name: layer}
        found = self._matching(pattern, self.usual)
        unknown = [name for name in self.unknown if fnmatchcase(name, pattern)]
        if unknown and found:
            warn(f"sparse_optimizer: {self._said_of(unknown)}; it stays dense")
        elif unknown:
            raise ValueError(f"sparse_optimizer: {self._said_of(unknown)}; wanted an ordinary parameter")
        found = found or self._matching(pattern, self.all)
        if not found:
            raise ValueError(
                f'sparse_optimizer: pattern "{pattern}" matches none of the layers {", ".join(self.usual) or "(none)"}'
            )
        return found

    def _said_of(self, unknown: list[str]) -> str:
        more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        return f"{', '.join(unknown[:3])}{more} is computed from other parameters, whose zeros are not its own"

    def _matching(self, pattern: str, layers: Layers) -> Layers:
        return {
            name: layer
            for name, layer in layers.items()
            if any(fnmatchcase(called, pattern) for called in self.called[name])
        }


def unwrapped(model: nn.Module, name: str) -> str:
    """A parameter's name without what wrappers have put into it.

    >>> from torch import nn
    >>> unwrapped(nn.DataParallel(nn.Sequential(nn.Linear(2, 2))), "module.0.weight")
    '0.weight'
    """
    kept: list[str] = []
    module: object = model
    for part in name.split("."):
        if part not in WRAPPERS and not (part == "module" and isinstance(module, PARALLEL)):
            kept.append(part)
        module = getattr(module, part, None)
    return ".".join(kept)


def _patterns(layers: object) -> list[str]:
    found = ["*"] if layers is None else [layers] if isinstance(layers, str) else layers
    if not isinstance(found, list | tuple) or not found or not all(isinstance(one, str) for one in found):
        raise ValueError(f"sparse_optimizer: layers must be None, a name or pattern, or a list of them, got {layers!r}")
    return list(found)


def _mapped(density: Mapping[str, float], names: _Names) -> dict[str, tuple[float, Layers]]:
    """The pools of a mapping from patterns to densities: a layer is in that of the last pattern that matches it."""
    if not density:
        raise ValueError("sparse_optimizer: wanted a density, or a mapping from patterns to densities, got {}")
    shares: dict[str, float] = {}
    owner: dict[str, str] = {}
    for pattern, share in density.items():
        if not isinstance(pattern, str):
            raise ValueError(f"sparse_optimizer: density must have names or patterns as keys, got {pattern!r}")
        shares[pattern] = _density(share, f' for "{pattern}"')
        owner |= dict.fromkeys(names.matching(pattern), pattern)
    found = {}
    for pattern, share in shares.items():
        members = {name: layer for name, layer in names.all.items() if owner.get(name) == pattern}
        if not members:
            later = dict.fromkeys(owner[name] for name in names.matching(pattern))
            raise ValueError(
                f'sparse_optimizer: pattern "{pattern}" is left without a layer, because the last pattern that matches wins: '
                f'wanted it after "{", ".join(later)}"'
            )
        if share < 1:
            found[pattern] = (share, members)
    return found


def _density(density: object, where: str) -> float:
    if isinstance(density, bool) or not isinstance(density, Real) or not 0 < float(density) <= 1:
        raise ValueError(f"sparse_optimizer: density{where} must be in (0, 1], got {density!r}")
    return float(density)
