"""The built-in experiments, and how to find an experiment by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from inface.lab.errors import ArgumentError, suggestion
from inface.sets import L1Ball

from . import EXPERIMENTS, Activation, HeldOut, data, models
from .data.synthetic import LastLayer
from .experiment import Data, Experiment, mean_squared_error
from .options import bind
from .sources import file_in, load

__all__ = [
    "BUILT_IN",
    "cifar10",
    "digits",
    "find",
    "lenet_5",
    "lenet_300_100",
    "mnist_conv",
    "mnist_mlp",
    "options_of",
    "resnet",
    "synthetic",
    "vit",
]

Constrained = Literal[1, 2]
LastStart = Literal["pytorch", "signs"]

# Options that earlier runs do not have: left out at their defaults, so that such runs stay comparable.
VARIATIONS = ("held", "layers", "normalised", "last", "start")
# Of experiments without sets: all weights of their layers become sparse.
TO_A_DENSITY: dict[str, Any] = {"density": 0.05}


def mnist_mlp(held: HeldOut = "last") -> Experiment:
    """MNIST, a perceptron 784-512-512-10, its first two layers constrained.

    Args:
        held: the training images that --validate holds out.
    """
    return Experiment(
        data=lambda folder: replace(data.mnist(folder), held=held),
        model=lambda: models.perceptron(784, 512, 512, 10),
        sets={"fc1.weight": L1Ball(1.0), "fc2.weight": L1Ball(10.0)},
    )


def mnist_conv(layers: Constrained = 2, held: HeldOut = "last") -> Experiment:
    """MNIST, two convolutions and dense layers 800-500-10, both dense layers constrained.

    Args:
        layers: how many dense layers are constrained, from the first one on.
        held: the training images that --validate holds out.
    """
    return Experiment(
        data=lambda folder: replace(data.mnist(folder), held=held),
        model=models.mnist_conv,
        sets=_balls(layers),
    )


def cifar10(layers: Constrained = 2, held: HeldOut = "last") -> Experiment:
    """CIFAR-10, two convolutions and dense layers 400-120-84-10, the first two dense layers constrained.

    Args:
        layers: how many dense layers are constrained, from the first one on.
        held: the training images that --validate holds out.
    """
    return Experiment(
        data=lambda folder: replace(data.cifar10(folder), held=held),
        model=models.cifar10_conv,
        sets=_balls(layers),
    )


def synthetic(
    edges: int = 10,
    snr: float = 10.0,
    activation: Activation = "sigmoid",
    trial: int = 0,
    samples: int = 100_000,
    normalised: bool = False,
    last: LastLayer = "gaussian",
    start: LastStart = "pytorch",
) -> Experiment:
    """Data of a sparse 50-50-50-1 network with noise, learnt by a network of the same shape; no biases.

    Args:
        edges: non-zero edges into each node of the true network's first two layers.
        snr: the signal-to-noise ratio.
        activation: of both networks.
        trial: which true network and which noise.
        samples: to train on, and as many to test on; a fifth as many to validate on.
        normalised: whether the features of every sample are scaled to norm 1.
        last: the true network's last layer: gaussian, or signs, that is +1 and -1.
        start: the last layer of the trained network at the start: pytorch's initialisation, or signs.
    """
    if not 1 <= edges <= 50:
        raise ArgumentError(f"edges: wanted a whole number from 1 to 50, got {edges}")
    if samples < 5:
        raise ArgumentError(f"samples: wanted a whole number >= 5, got {samples}")
    sizes = (samples, samples // 5, samples)

    def made(_: Path) -> Data:
        return data.synthetic(edges, snr, activation, trial, sizes, normalised=normalised, last=last).data

    def model() -> nn.Sequential:
        network = models.perceptron(50, 50, 50, 1, activation=activation, bias=False)
        if start == "signs":
            weight = network.get_parameter("fc3.weight")
            weight.data = 2.0 * torch.randint(2, weight.shape) - 1
        return network

    return Experiment(
        data=made,
        model=model,
        sets={"fc1.weight": L1Ball(float(edges)), "fc2.weight": L1Ball(float(edges))},
        loss=nn.functional.mse_loss,
        metric=mean_squared_error,
    )


def _balls(layers: int) -> dict[str, L1Ball]:
    return dict(list({"fc1.weight": L1Ball(1.0), "fc2.weight": L1Ball(10.0)}.items())[:layers])


def digits() -> Experiment:
    """The 8x8 digits that come with scikit-learn, a perceptron 64-256-128-10, its first two layers constrained."""
    return Experiment(
        data=data.digits,
        model=lambda: models.perceptron(64, 256, 128, 10),
        sets={"fc1.weight": L1Ball(1.0), "fc2.weight": L1Ball(5.0)},
        defaults={"epochs": 100, "batch_size": 50},
    )


def lenet_300_100() -> Experiment:
    """MNIST, LeNet-300-100: a perceptron 784-300-100-10; all its weights become sparse."""
    return Experiment(data=data.mnist, model=lambda: models.perceptron(784, 300, 100, 10), defaults=TO_A_DENSITY)


def lenet_5() -> Experiment:
    """MNIST, LeNet-5 in the shapes of Caffe: two convolutions, dense layers 800-500-10; all its weights become sparse."""
    return Experiment(data=data.mnist, model=models.mnist_conv, defaults=TO_A_DENSITY)


def resnet(depth: int = 20, samples: int | None = None) -> Experiment:
    """CIFAR-10 with random flips and shifts, a residual network of three stages; all its weights become sparse.

    Args:
        depth: the number of layers with weights: 20, 32, 44, ..., that is 6 n + 2.
        samples: the number of training images; None for all.
    """
    if depth < 8 or depth % 6 != 2:
        raise ArgumentError(f"depth: wanted 6 n + 2, such as 8, 14, 20 or 32, got {depth}")
    return Experiment(
        data=lambda folder: data.cifar10(folder).first(samples),
        model=lambda: models.resnet((depth - 2) // 6),
        defaults={**TO_A_DENSITY, "epochs": 10, "batch_size": 125, "weight_decay": 1e-4},
        augment=data.flipped_and_shifted,
    )


def vit(samples: int | None = None) -> Experiment:
    """MNIST in patches of 7x7, a small image transformer, with AdamW; all its weights become sparse.

    Args:
        samples: the number of training images; None for all.
    """
    return Experiment(
        data=lambda folder: data.mnist(folder).first(samples),
        model=models.image_transformer,
        defaults={**TO_A_DENSITY, "epochs": 10, "free": "adamw"},
    )


BUILT_IN: dict[str, Callable[..., Experiment]] = dict(
    zip(
        EXPERIMENTS,
        (mnist_mlp, mnist_conv, cifar10, synthetic, digits, lenet_300_100, lenet_5, resnet, vit),
        strict=True,
    )
)


def find(name: str, options: Mapping[str, Any] | None = None, *, source: str | None = None) -> Experiment:
    """Find an experiment by name: a built-in one, or ``path/to/file.py:name``.

    The name in a file is an :class:`Experiment`, or a function that returns one. ``options`` are the arguments of that
    function, as values or as text. The file is imported, so its code runs. With ``source``, it must have that SHA-256.

    >>> find("synthetic", {"edges": "5", "activation": "relu"}).sets["fc1.weight"]
    L1Ball(radius=5.0, per='output')
    >>> find("minst-mlp")
    Traceback (most recent call last):
    inface.lab.errors.ArgumentError: there is no experiment minst-mlp; did you mean mnist-mlp?
    """
    found = _named(name, source)
    if isinstance(found, Experiment):
        if options:
            raise ArgumentError(f"{name} has no options, got {', '.join(options)}")
        return found
    arguments = bind(name, found, options or {})
    try:
        experiment = found(**arguments)
    except ValueError as error:
        if name not in BUILT_IN:  # the user's own function: show the traceback
            raise
        raise ArgumentError(f"{name}: {error}") from None
    if not isinstance(experiment, Experiment):
        raise ArgumentError(f"{name}: wanted an Experiment, got {type(experiment).__name__}")
    return experiment


def options_of(name: str, options: Mapping[str, Any] | None = None, *, source: str | None = None) -> dict[str, Any]:
    """All options of an experiment, converted to their types, with defaults; ``source`` is that of :func:`find`.

    Options of built-in experiments that only vary the paper's recipe are left out at their defaults.

    >>> options_of("synthetic", {"edges": "5"})
    {'edges': 5, 'snr': 10.0, 'activation': 'sigmoid', 'trial': 0, 'samples': 100000}
    """
    found = _named(name, source)
    if isinstance(found, Experiment):
        return {}
    parameters = inspect.signature(found).parameters
    defaults = {key: each.default for key, each in parameters.items() if each.default is not each.empty}
    every = bind(name, found, {**defaults, **(options or {})})
    if name not in BUILT_IN:
        return every
    return {key: value for key, value in every.items() if key not in VARIATIONS or value != defaults[key]}


def _named(name: str, source: str | None) -> Experiment | Callable[..., Any]:
    if name in BUILT_IN:
        return BUILT_IN[name]
    file, attribute = file_in(name), "" if name.endswith(".py") else name.rpartition(":")[2]
    if file is None:
        others = f"; wanted {', '.join(BUILT_IN)}, or path/to/file.py:name"
        raise ArgumentError(f"there is no experiment {name}{suggestion(name, BUILT_IN) or others}")
    module = load(file, source)
    found = getattr(module, attribute, None) if attribute else None
    if isinstance(found, Experiment) or (inspect.isfunction(found) and found.__module__ == module.__name__):
        return found
    known = [
        key
        for key, value in vars(module).items()
        if isinstance(value, Experiment)
        or (inspect.isfunction(value) and value.__module__ == module.__name__ and "return" in value.__annotations__)
    ]
    listed = f"; it has {', '.join(known) or 'none'}"
    if not attribute:
        raise ArgumentError(f"{file}: wanted the name of an experiment, {file}:NAME{listed}")
    raise ArgumentError(f"{file}: has no experiment {attribute}{suggestion(attribute, known) or listed}")
