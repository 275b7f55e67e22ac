"""The synthetic data of the paper's supplement: a regression whose true network is known and sparse."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor

from inface.lab.errors import ArgumentError, suggestion
from inface.lab.experiments.experiment import Data, Split

__all__ = ["ACTIVATIONS", "WIDTH", "LastLayer", "Synthetic", "synthetic", "true_output"]

LastLayer = Literal["gaussian", "signs"]
WIDTH = 50
ACTIVATIONS = {"relu": torch.relu, "sigmoid": torch.sigmoid}


@dataclass(frozen=True)
class Synthetic:
    """Data, and the true network that generated it.

    Attributes:
        data: the data, with a validation split; targets have the shape (N, 1).
        truth: the weights of the three layers, one row per node, as in ``torch.nn.Linear``.
    """

    data: Data
    truth: list[Tensor]


def synthetic(
    edges: int = 10,
    snr: float = 10.0,
    activation: Literal["relu", "sigmoid"] = "sigmoid",
    trial: int = 0,
    samples: tuple[int, int, int] = (100_000, 20_000, 100_000),
    normalised: bool = False,
    last: LastLayer = "gaussian",
) -> Synthetic:
    """A random sparse network of 50-50-50-1 nodes without biases, and noisy data from it.

    Each node of the first two layers has ``edges`` incoming edges, chosen at random, with weights +1 or -1 with equal
    probability. The last layer is fully connected. The paper does not give its weights; here they are standard
    Gaussian. Features are standard Gaussian. The target is the network's output f(x) plus Gaussian noise of variance
    Var f(x) / ``snr``, where Var is over the training features.

    Equal arguments give equal data. The true weights depend only on ``edges`` and ``trial``.

    Args:
        edges: m, the number of edges into each node of the first two layers; 5, 10 and 15 in the paper.
        snr: the signal-to-noise ratio; 1, 5 and 10 in the paper.
        activation: the activation after each of the first two layers.
        trial: the seed.
        samples: the number of training, validation and test samples.
        normalised: whether the features of every sample are scaled to norm 1.
        last: the weights of the last layer: standard Gaussian, or +1 and -1 with equal probability.

    >>> made = synthetic(edges=5, samples=(100, 20, 100))
    >>> made.data.train.inputs.shape, made.data.test.targets.shape
    (torch.Size([100, 50]), torch.Size([100, 1]))
    >>> [tuple(weight.shape) for weight in made.truth], int(made.truth[0].count_nonzero())
    ([(50, 50), (50, 50), (1, 50)], 250)
    """
    _check(edges, snr, activation, trial, samples)
    generator = Generator().manual_seed(trial)
    truth = [_sparse(edges, generator), _sparse(edges, generator), torch.randn(1, WIDTH, generator=generator)]
    if last == "signs":
        truth[2] = torch.where(truth[2] < 0, -1.0, 1.0)
    features = [torch.randn(count, WIDTH, generator=generator) for count in samples]
    if normalised:
        features = [x / x.norm(dim=1, keepdim=True) for x in features]
    signals = [true_output(truth, x, activation) for x in features]
    deviation = (signals[0].var(correction=0) / snr).sqrt()
    train, validation, test = (
        Split(x, signal + deviation * torch.randn(signal.shape, generator=generator))
        for x, signal in zip(features, signals, strict=True)
    )
    return Synthetic(Data(train=train, test=test, validation=validation), truth)


def true_output(truth: list[Tensor], x: Tensor, activation: Literal["relu", "sigmoid"]) -> Tensor:
    """The output of a network with these weights for the features ``x``, without noise.

    >>> true_output([torch.eye(2), torch.eye(2), torch.ones(1, 2)], torch.tensor([[3.0, -4.0]]), "relu")
    tensor([[3.]])
    """
    act = ACTIVATIONS[activation]
    return act(act(x @ truth[0].T) @ truth[1].T) @ truth[2].T


def _sparse(edges: int, generator: Generator) -> Tensor:
    columns = torch.rand(WIDTH, WIDTH, generator=generator).argsort(1)[:, :edges]
    signs = 2.0 * torch.randint(2, columns.shape, generator=generator) - 1
    return torch.zeros(WIDTH, WIDTH).scatter_(1, columns, signs)


def _check(edges: int, snr: float, activation: str, trial: int, samples: tuple[int, ...]) -> None:
    if not 1 <= edges <= WIDTH:
        raise ArgumentError(f"synthetic: edges must be from 1 to {WIDTH}, got {edges}")
    if not 0 < snr < math.inf:
        raise ArgumentError(f"synthetic: snr must be > 0, got {snr}")
    if activation not in ACTIVATIONS:
        raise ArgumentError(
            f"synthetic: activation must be relu or sigmoid, got {activation}{suggestion(activation, ACTIVATIONS)}"
        )
    if not 0 <= trial < 2**63:
        raise ArgumentError(f"synthetic: trial must be >= 0, got {trial}")
    if len(samples) != 3 or min(samples) < 1:
        raise ArgumentError(f"synthetic: samples must be three numbers >= 1, got {samples}")
