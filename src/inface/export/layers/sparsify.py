"""Make a network faster: each Linear stays dense, or becomes sparse or low-rank, as measured on this machine."""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from .low_rank import thin_layers
from .sparse_linear import SparseLinear

__all__ = ["LayerChoice", "layer_choices", "sparsify"]

Kind = Literal["dense", "sparse", "low-rank"]

# About how long the forms of a layer are measured at one batch size, and how often at least.
SECONDS = 0.02
ROUNDS = 5

# A form within this factor of another one is not slower: times vary by as much from run to run.
NOISE = 0.05


@dataclass(frozen=True)
class LayerChoice:
    """The choice for one Linear layer.

    Attributes:
        kind: ``"dense"``: it stays; ``"sparse"``: a :class:`SparseLinear`; ``"low-rank"``: two thin Linear layers.
        reason: the reason, in a few words.
        nonzeros: the number of non-zero weights.
        total: the number of weights.
        bytes: the bytes of the weight in memory, for every kind considered.
        seconds: the time of one call, for every batch size and kind measured.

    >>> import torch, inface
    >>> linear = torch.nn.Linear(64, 32)
    >>> _ = torch.nn.init.sparse_(linear.weight, sparsity=0.75)
    >>> inface.export.layer_choices(linear, above=0.5)[""]  # doctest: +NORMALIZE_WHITESPACE
    LayerChoice(kind='sparse', reason='75.0 % of the weights are zero', nonzeros=512, total=2048,
                bytes={'dense': 8192, 'sparse': 3204}, seconds={})
    """

    kind: Kind
    reason: str
    nonzeros: int
    total: int
    bytes: dict[Kind, int] = field(default_factory=dict)
    seconds: dict[int, dict[Kind, float]] = field(default_factory=dict)


def sparsify(
    model: nn.Module,
    *,
    batch: int | Iterable[int] = (1, 64),
    above: float | None = None,
    choices: Mapping[str, LayerChoice] | None = None,
) -> nn.Module:
    """A copy of the network with faster Linear layers, and the same outputs up to rounding.

    A layer with many zeros becomes a :class:`SparseLinear` if that is smaller, and if it is faster at some batch size
    and not slower at any (within 5 %), measured on this machine with torch's number of threads. A low-rank layer
    becomes two thin Linear layers if they are smaller than the other forms; their error is only rounding (16 eps of the
    whole matrix). All other layers stay dense. So do layers with shared parameters, subclasses of Linear, layers with
    hooks, layers inside torch's own modules that read their weights (``nn.TransformerEncoderLayer``), and layers that
    are not float32 or float64 on the CPU.

    ``docs/benchmarks.md``, written by ``make bench``, has the gains for several shapes and sparsities.

    Args:
        model: the network; it is not changed.
        batch: the batch sizes that matter.
        above: do not measure; layers become sparse if at least this part of their weights is zero, from 0 to 1.
        choices: do not choose; use these choices of :func:`layer_choices`.

    Raises:
        ValueError: an argument is wrong.

    >>> import torch, inface
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    >>> _ = torch.nn.init.sparse_(model[0].weight, sparsity=0.95)
    >>> inface.export.sparsify(model, above=0.9)
    Sequential(
      (0): SparseLinear(in_features=64, out_features=32, bias=True, nonzeros=64)
      (1): ReLU()
      (2): Linear(in_features=32, out_features=10, bias=True)
    )
    """
    _check_model(model)
    if choices is None:
        choices = layer_choices(model, batch=batch, above=above)
    elif not isinstance(choices, Mapping):
        raise ValueError(f"sparsify: choices must be a result of layer_choices, got {choices!r}")
    modules = dict(model.named_modules())
    replaced: dict[int, nn.Module] = {}
    for name, choice in choices.items():
        layer = modules.get(name)
        if not isinstance(layer, nn.Linear):
            raise ValueError(f'sparsify: choices must name Linear layers of the model, got "{name}"')
        if not isinstance(choice, LayerChoice) or choice.kind not in get_args(Kind):
            kinds = ", ".join(get_args(Kind))
            raise ValueError(f'sparsify: choices["{name}"] must be a LayerChoice of kind {kinds}, got {choice!r}')
        made = _made(layer, choice.kind)
        if made is not layer:
            replaced[id(layer)] = made
    # deepcopy takes the replacements from its memo, so that replaced layers are not copied, wherever they are held.
    return copy.deepcopy(model, dict(replaced))


def layer_choices(
    model: nn.Module, *, batch: int | Iterable[int] = (1, 64), above: float | None = None
) -> dict[str, LayerChoice]:
    """The choices of :func:`sparsify` for every Linear layer, with reasons, sizes and times measured here.

    Args:
        model: the network.
        batch: as in :func:`sparsify`.
        above: as in :func:`sparsify`.

    Raises:
        ValueError: an argument is wrong.

    >>> import torch, inface
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 32))
    >>> _ = torch.nn.init.sparse_(model[0].weight, sparsity=0.75)
    >>> choice = inface.export.layer_choices(model, above=0.9)["0"]
    >>> choice.kind, choice.reason
    ('dense', '75.0 % of the weights are zero, less than 90.0 %')
    """
    _check_model(model)
    sizes = _sizes(batch)
    if above is not None and (isinstance(above, bool) or not isinstance(above, Real) or not 0 <= above <= 1):
        raise ValueError(f"above must be a number in [0, 1], got {above!r}")
    kept = _kept(model)
    return {
        name: LayerChoice("dense", kept[layer], _nonzeros(layer.weight), layer.weight.numel())
        if layer in kept
        else _choice(layer, sizes, above)
        for name, layer in _linears(model)
    }


def _check_model(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise ValueError(f"sparsify: model must be a torch.nn.Module, got {model!r}")


def _sizes(batch: int | Iterable[int]) -> list[int]:
    sizes = list(batch) if isinstance(batch, Iterable) else [batch]
    for size in sizes:
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"batch: sizes must be integers >= 1, got {size!r}")
    if not sizes:
        raise ValueError("batch: wanted at least one size, got none")
    return sizes


# ---------------------------------------------------------------------- which layers may change


def _linears(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            yield name, module


def _kept(model: nn.Module) -> dict[nn.Module, str]:
    """The layers that must stay dense, and why."""
    shared, read = _shared(model), _read_by_torch(model)
    kept: dict[nn.Module, str] = {}
    for _, layer in _linears(model):
        reason = _unusual(layer)
        if reason is None and layer in read:
            reason = f"torch's {read[layer]} reads its weights"
        if reason is None and shared.intersection((id(layer.weight), id(layer.bias))):
            reason = "its parameters are shared with another module"
        if reason is not None:
            kept[layer] = reason
    return kept


def _shared(model: nn.Module) -> set[int]:
    """The parameters of more than one module."""
    held = [id(p) for module in model.modules() for p in module.parameters(recurse=False)]
    return {each for each, times in Counter(held).items() if times > 1}


def _read_by_torch(model: nn.Module) -> dict[nn.Module, str]:
    """Children of torch's own modules that read the weights of their children."""
    containers = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
    return {
        child: type(module).__name__
        for module in model.modules()
        if type(module).__module__.startswith("torch.nn.") and not isinstance(module, containers)
        for child in module.children()
    }


def _unusual(layer: nn.Linear) -> str | None:
    """The reason in the layer itself why it must stay dense; None if there is none."""
    weight = layer.weight
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    hooks = [getattr(layer, name) for name in names]
    reason = None
    if type(layer) is not nn.Linear:
        reason = f"{type(layer).__name__} is not exactly a Linear"
    elif any(hooks):
        reason = "it has hooks"
    elif type(weight) is not nn.Parameter or weight.device.type != "cpu":
        reason = f"its weight is a {type(weight).__name__} on {weight.device}, not a Parameter on the CPU"
    elif weight.dtype not in (torch.float32, torch.float64):
        reason = f"its weight is {weight.dtype}, not float32 or float64"
    elif weight.numel() == 0:
        reason = "it has no weights"
    return reason


# ---------------------------------------------------------------------- the form of a layer


def _nonzeros(weight: Tensor) -> int:
    return 0 if weight.is_meta else int(weight.count_nonzero())


def _bytes(layer: nn.Module) -> int:
    """The bytes of the weights, in any form."""
    return sum(t.nbytes for name, t in (*layer.named_parameters(), *layer.named_buffers()) if not name.endswith("bias"))


def _made(layer: nn.Linear, kind: Kind) -> nn.Module:
    if kind == "sparse":
        return SparseLinear.from_linear(layer)
    if kind == "low-rank":
        thin = thin_layers(layer)
        if thin is None:
            raise ValueError(f"sparsify: the choice is low-rank, but {layer} does not have a low rank")
        return thin
    return layer


def _choice(layer: nn.Linear, sizes: list[int], above: float | None) -> LayerChoice:
    count, total = _nonzeros(layer.weight), layer.weight.numel()
    zeros = f"{100 * (1 - count / total):.1f} % of the weights are zero"
    forms: dict[Kind, nn.Module] = {"dense": layer, "sparse": SparseLinear.from_linear(layer)}
    bytes_ = {kind: _bytes(form) for kind, form in forms.items()}
    seconds: dict[int, dict[Kind, float]] = {}
    kind: Kind = "dense"
    if above is not None:
        if 1 - count / total >= above:
            kind, reason = "sparse", zeros
        else:
            reason = f"{zeros}, less than {100 * above:.1f} %"
    elif bytes_["sparse"] >= bytes_["dense"]:
        reason = f"{zeros}: the sparse form would not be smaller"
    else:
        seconds = {size: _measure(forms, layer, size) for size in sizes}
        ratios = {size: found["dense"] / found["sparse"] for size, found in seconds.items()}
        if min(ratios.values()) > 1 - NOISE and max(ratios.values()) > 1:
            kind = "sparse"
        shown = ", ".join(f"{ratio:.2f}x dense speed (batch {size})" for size, ratio in ratios.items())
        reason = f"{zeros}: the sparse kernel runs at {shown}"
    thin = thin_layers(layer, -(-bytes_[kind] // layer.weight.element_size()))
    if thin is not None:
        bytes_["low-rank"] = _bytes(thin)
        rank = thin[0].out_features
        reason = f"rank {rank}: {bytes_['low-rank']} bytes instead of {bytes_[kind]}"
        kind = "low-rank"
        if above is None:
            forms["low-rank"] = thin
            seconds = {size: _measure(forms, layer, size) for size in sizes}
    return LayerChoice(kind, reason, count, total, bytes_, seconds)


@torch.no_grad()
def _measure(forms: Mapping[Kind, nn.Module], layer: nn.Linear, size: int) -> dict[Kind, float]:
    """The least time of each form for this batch size, measured in turns."""
    x = torch.randn(size, layer.in_features, generator=torch.Generator().manual_seed(0), dtype=layer.weight.dtype)
    best: dict[Kind, float] = dict.fromkeys(forms, float("inf"))
    for form in forms.values():
        form(x)
    end = time.perf_counter() + SECONDS * len(forms)
    rounds = 0
    while rounds < ROUNDS or time.perf_counter() < end:
        for kind, form in forms.items():
            begun = time.perf_counter()
            form(x)
            best[kind] = min(best[kind], time.perf_counter() - begun)
        rounds += 1
    return best
