"""Measure how a network uses its layers, and the memory and time that they take."""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from inface.export.layers.sparse_linear import SparseLinear

from .timing import Timing, timing

__all__ = ["Use", "counts", "gzip_bytes", "latencies", "uses", "weight_bytes"]

_CONV = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass(frozen=True)
class Use:
    """The use of one module for one batch.

    Attributes:
        positional: the positional arguments of its first call.
        named: the keyword arguments of its first call.
        activations: the largest number of bytes of the inputs and outputs of a call.
        operations: multiply-adds of all its calls, for one sample.
    """

    positional: tuple[Any, ...]
    named: dict[str, Any]
    activations: int
    operations: int


@torch.no_grad()
def uses(model: nn.Module, example_input: Tensor) -> dict[str, Use]:
    """The use of all modules in evaluation mode, in the order in which they finish.

    Only the operations of linear layers and convolutions are counted.

    >>> found = uses(nn.Sequential(nn.Linear(3, 2)), torch.ones(10, 3))
    >>> found["0"].operations, found["0"].activations
    (12, 200)
    """
    found: dict[str, Use] = {}

    def look(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
            tensors = [each for each in (*inputs, *named.values(), output) if isinstance(each, Tensor)]
            first = found.get(name, Use(inputs, named, 0, 0))
            found[name] = Use(
                first.positional,
                first.named,
                max(first.activations, sum(each.nbytes for each in tensors)),
                first.operations + _operations(module, tensors) // max(1, len(example_input)),
            )

        return hook

    hooks = [module.register_forward_hook(look(name), with_kwargs=True) for name, module in model.named_modules()]
    training = {module: module.training for module in model.modules()}
    try:
        model.eval()(example_input)
    finally:
        for hook in hooks:
            hook.remove()
        for module, before in training.items():
            module.training = before
    return found


def _operations(layer: nn.Module, tensors: Sequence[Tensor]) -> int:
    """Multiply-adds of one call: one per weight and position of the output."""
    if isinstance(layer, SparseLinear):
        return 2 * layer.values.numel() * (tensors[-1].numel() // max(1, layer.out_features))
    if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return 2 * layer.weight.numel() * (tensors[-1].numel() // max(1, layer.weight.shape[0]))
    if isinstance(layer, _TRANSPOSED):  # of the input
        return 2 * layer.weight.numel() * (tensors[0].numel() // max(1, layer.in_channels))
    return 0


def counts(module: nn.Module, *, recurse: bool = True) -> tuple[int, int]:
    """The number of parameters of a module and of its non-zeros; shared parameters count once.

    >>> layer = nn.Linear(3, 2, bias=False)
    >>> _ = layer.weight.data.copy_(torch.eye(2, 3))
    >>> counts(layer)
    (6, 2)
    """
    own = list(module.parameters(recurse=recurse))
    return sum(p.numel() for p in own), sum(int(p.count_nonzero()) for p in own)


def weight_bytes(module: nn.Module, *, recurse: bool = True) -> int:
    """The bytes of parameters and buffers in memory; shared ones count once.

    >>> weight_bytes(nn.Linear(3, 2))
    32
    """
    tensors = (*module.parameters(recurse=recurse), *module.buffers(recurse=recurse))
    return sum({(each.data_ptr(), each.nbytes): each.nbytes for each in tensors}.values())


def gzip_bytes(contents: bytes) -> int:
    """The size after gzip, for reference.

    >>> gzip_bytes(bytes(1000)) < 100
    True
    """
    return len(gzip.compress(contents, 6, mtime=0))


def latencies(runs: Mapping[str, Callable[[], Any]], *, seconds: float = 1.0) -> dict[str, Timing]:
    """The time of each run and its spread, measured in turns, so that other load on the machine affects all of them.

    Args:
        runs: the functions to measure, by name.
        seconds: about how long to measure each; at least seven rounds.

    >>> sorted(latencies({"one": lambda: sum(range(100)), "two": lambda: sum(range(200))}, seconds=0.01))
    ['one', 'two']
    """
    inner: dict[str, int] = {}
    for name, run in runs.items():
        once = min(_seconds(run) for _ in range(5))  # an interrupted call would make the rounds of this run shorter
        inner[name] = max(1, int(0.002 / max(1e-7, once)))  # calls of about two milliseconds
    times: dict[str, list[float]] = {name: [] for name in runs}
    order = list(runs)
    rounds = 0
    end = time.perf_counter() + seconds * len(runs)
    while rounds < 7 or time.perf_counter() < end:
        for name in order:
            times[name].append(_seconds(runs[name], inner[name]) / inner[name])
        order.append(order.pop(0))  # each run is first in one of the rounds
        rounds += 1
    return {name: timing(each) for name, each in times.items()}


def _seconds(run: Callable[[], Any], calls: int = 1) -> float:
    begun = time.perf_counter()
    for _ in range(calls):
        run()
    return time.perf_counter() - begun
