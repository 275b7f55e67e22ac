"""The paper's metrics: accuracy with all and with the largest edges, non-zeros, and the exact gap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import torch
from torch import Tensor, nn

import inface
from inface import FrankWolfe
from inface.lab.experiments.experiment import Experiment, Split
from inface.sparse import chosen_layers
from inface.sparsity import Nonzeros, hard_threshold, nonzeros

__all__ = [
    "THETAS",
    "Score",
    "batches",
    "constrained",
    "edges_per_node",
    "exact_gap",
    "finite",
    "kept",
    "score",
    "sparsity",
]

THETAS = (100, 50, 25, 10, 5, 2, 1)
THRESHOLD = 1e-3  # the paper counts smaller edges as zero


@dataclass(frozen=True)
class Score:
    """The mean loss and the metric over a split."""

    loss: float
    metric: float


def batches(split: Split, size: int = 500, device: torch.device | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """The samples in order, in batches, on a device if one is given.

    >>> import torch
    >>> [len(targets) for _, targets in batches(Split(torch.zeros(5, 1), torch.zeros(5)), 2)]
    [2, 2, 1]
    """
    for start in range(0, len(split), size):
        inputs, targets = split.inputs[start : start + size], split.targets[start : start + size]
        yield (inputs, targets) if device is None else (inputs.to(device), targets.to(device))


def score(model: nn.Module, experiment: Experiment, split: Split) -> Score:
    """The loss and the metric of a network in evaluation mode; its mode is restored.

    >>> import torch
    >>> from inface.lab import find
    >>> experiment = find("digits")
    >>> _ = torch.manual_seed(0)
    >>> score(experiment.model(), experiment, experiment.data(None).test).metric < 30
    True
    """
    training = model.training
    model.eval()
    loss = metric = 0.0
    try:
        with torch.inference_mode():
            for inputs, targets in batches(split, device=_device(model)):
                outputs = model(inputs)
                loss += float(experiment.loss(outputs, targets)) * len(targets)
                metric += float(experiment.metric.total(outputs, targets))
    finally:
        model.train(training)
    return Score(loss / len(split), experiment.metric.scale * metric / len(split))


def constrained(model: nn.Module, experiment: Experiment) -> list[str]:
    """The names of the constrained parameters, in the experiment's order.

    Of an experiment without sets, those that :func:`inface.sparse_optimizer` makes sparse where nobody says which.

    >>> from inface.lab import find
    >>> constrained(find("digits").model(), find("digits"))
    ['fc1.weight', 'fc2.weight']
    """
    if not experiment.sets:
        return list(chosen_layers(model))
    groups = inface.param_groups(model, experiment.sets)
    return [name for group in groups if group["set"] is not None for name, _ in group["params"]]


def kept(
    model: nn.Module,
    experiment: Experiment,
    split: Split,
    thetas: Sequence[int] = THETAS,
    scope: Literal["layer", "global", "balanced"] = "layer",
) -> dict[str, float]:
    """The metric with the largest theta percent of the edges, of each constrained layer or of all of them together.

    The scopes are those of :func:`inface.sparsity.hard_threshold`.
    """
    names = constrained(model, experiment)
    results = {}
    for theta in thetas:
        thinned = model if theta == 100 or not names else hard_threshold(model, theta / 100, layers=names, scope=scope)
        results[str(theta)] = score(thinned, experiment, split).metric
    return results


def edges_per_node(weight: Tensor) -> float:
    """The average fan-in: edges per node of at least 0.001. Fast enough to record during training.

    >>> import torch
    >>> edges_per_node(torch.tensor([[0.5, 0.0, 0.0009], [0.1, -0.2, 0.0]]))
    1.5
    """
    import numpy as np

    # NumPy is four times as fast as torch here.
    return int(np.count_nonzero(np.abs(weight.detach().cpu().numpy()) >= THRESHOLD)) / _nodes(weight)


def sparsity(model: nn.Module, experiment: Experiment) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """Non-zeros of each constrained layer (the paper's count) and of the whole network (the usual count)."""
    names = constrained(model, experiment)
    counted: Nonzeros = nonzeros(model, layers=names)
    parameters = dict(model.named_parameters())
    layers: dict[str, dict[str, float]] = {}
    for name in names:
        nodes = _nodes(parameters[name])
        inputs = parameters[name].numel() // max(1, nodes)
        layers[name] = {**asdict(counted.layers[name]), "inputs": inputs, "nodes": nodes}
    exact = sum(int(p.count_nonzero()) for p in parameters.values())
    network = {"percent": counted.percent, "count": counted.count, "total": counted.total}
    return layers, {**network, "exact_count": exact, "exact_percent": 100 * exact / max(1, counted.total)}


def exact_gap(
    model: nn.Module, experiment: Experiment, split: Split, optimizer: torch.optim.Optimizer | None
) -> float | None:
    """The exact modified gap over a split, in evaluation mode; None if the optimizer is not Frank-Wolfe."""
    if not isinstance(optimizer, FrankWolfe):
        return None
    training = model.training
    model.eval()
    try:
        return float(inface.modified_gap(model, experiment.loss, batches(split, device=_device(model)), optimizer))
    finally:
        model.train(training)


def finite(number: float | None) -> float | None:
    """The number, or None if it is not finite: JSON has no infinity."""
    return number if number is not None and number - number == 0 else None


def _nodes(weight: Tensor) -> int:
    return weight.shape[0] if weight.ndim > 1 else 1


def _device(model: nn.Module) -> torch.device | None:
    return next((p.device for p in model.parameters()), None)
