"""What a network costs: parameters, non-zeros, operations, memory, bytes and time, measured and not guessed."""

from __future__ import annotations

import gzip
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["LayerCost", "activation_bytes", "gzip_bytes", "latencies", "layer_costs", "weight_bytes"]


@dataclass(frozen=True)
class LayerCost:
    """What one layer costs.

    Attributes:
        name: of the layer.
        kind: its class.
        shape: of its weights.
        parameters: how many it has.
        nonzeros: how many of them are not zero.
        operations: multiplications and additions for one sample, if every weight takes part.
        sparse_operations: the same for the weights that are not zero.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    parameters: int
    nonzeros: int
    operations: int
    sparse_operations: int


@torch.no_grad()
def layer_costs(model: nn.Module, example_input: Tensor) -> list[LayerCost]:
    """The cost of every layer that has parameters, in the order in which they are used.

    Linear layers and convolutions multiply and add; what other layers do is not counted.

    >>> layer_costs(nn.Sequential(nn.Linear(3, 2)), torch.ones(1, 3))[0].operations
    12
    """
    found: dict[str, LayerCost] = {}
    names = {module: name for name, module in model.named_modules()}

    def look(layer: nn.Module, _: Any, output: Any) -> None:
        own = list(layer.parameters(recurse=False))
        weight = getattr(layer, "weight", None)
        parameters, nonzeros = sum(p.numel() for p in own), sum(int(p.count_nonzero()) for p in own)
        each = used = 0
        if isinstance(weight, Tensor) and weight.ndim > 1 and isinstance(output, Tensor):
            # Every weight is used once for each position of the output, of which there are as many as outputs of a node.
            positions = output.numel() // (max(1, len(example_input)) * weight.shape[0])
            each, used = (2 * count * positions for count in (weight.numel(), int(weight.count_nonzero())))
        before = found.get(names[layer])
        more = (before.operations, before.sparse_operations) if before else (0, 0)
        shape = tuple(weight.shape) if isinstance(weight, Tensor) else ()
        kind = type(layer).__name__
        found[names[layer]] = LayerCost(names[layer], kind, shape, parameters, nonzeros, each + more[0], used + more[1])

    layers = [module for module in model.modules() if list(module.parameters(recurse=False))]
    _forward(model, example_input, [layer.register_forward_hook(look) for layer in layers])
    return list(found.values())


@torch.no_grad()
def activation_bytes(model: nn.Module, example_input: Tensor) -> int:
    """The most that one layer's inputs and outputs take together, for this batch.

    >>> activation_bytes(nn.Sequential(nn.Linear(3, 2)), torch.ones(10, 3))
    200
    """
    most = 0

    def look(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        nonlocal most
        most = max(most, sum(each.nbytes for each in (*inputs, output) if isinstance(each, Tensor)))

    leaves = [module for module in model.modules() if not list(module.children())]
    _forward(model, example_input, [leaf.register_forward_hook(look) for leaf in leaves])
    return most


def weight_bytes(model: nn.Module) -> int:
    """What parameters and buffers take in memory, those that are shared once.

    >>> weight_bytes(nn.Linear(3, 2))
    32
    """
    held = {(each.data_ptr(), each.nbytes): each.nbytes for each in (*model.parameters(), *model.buffers())}
    return sum(held.values())


def gzip_bytes(contents: bytes) -> int:
    """What gzip makes of it, for reference."""
    return len(gzip.compress(contents, 6, mtime=0))


def latencies(runs: Mapping[str, Callable[[], Any]], *, seconds: float = 1.0) -> dict[str, float]:
    """The median time of each run, all of them measured in turns so that a busy machine is busy for all.

    Args:
        runs: what is measured, by name.
        seconds: how long each of them is measured, about; at least seven times.

    >>> sorted(latencies({"one": lambda: sum(range(100)), "two": lambda: sum(range(200))}, seconds=0.01))
    ['one', 'two']
    """
    inner: dict[str, int] = {}
    for name, run in runs.items():
        for _ in range(3):
            run()
        begun = time.perf_counter()
        run()
        inner[name] = max(1, int(0.002 / max(1e-7, time.perf_counter() - begun)))  # calls of about two milliseconds
    times: dict[str, list[float]] = {name: [] for name in runs}
    rounds = 0
    end = time.perf_counter() + seconds * len(runs)
    while rounds < 7 or time.perf_counter() < end:
        for name, run in runs.items():
            begun = time.perf_counter()
            for _ in range(inner[name]):
                run()
            times[name].append((time.perf_counter() - begun) / inner[name])
        rounds += 1
    return {name: statistics.median(each) for name, each in times.items()}


def _forward(model: nn.Module, inputs: Tensor, hooks: Iterable[torch.utils.hooks.RemovableHandle]) -> None:
    """Run a network once in evaluation mode with hooks, and take them off."""
    training = {module: module.training for module in model.modules()}
    try:
        model.eval()(inputs)
    finally:
        for hook in hooks:
            hook.remove()
        for module, before in training.items():
            module.training = before
