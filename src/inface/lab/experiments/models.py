"""The networks of the paper's experiments, with PyTorch's own initialisation."""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise

import torch
from torch import nn

from . import Activation

__all__ = ["cifar10_conv", "mnist_conv", "perceptron"]


def perceptron(*widths: int, activation: Activation = "relu", bias: bool = True) -> nn.Sequential:
    """A multilayer perceptron on flattened inputs; its layers are ``fc1``, ``fc2``, ...

    >>> [name for name, _ in perceptron(784, 512, 512, 10).named_parameters() if name.endswith("weight")]
    ['fc1.weight', 'fc2.weight', 'fc3.weight']
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for number, (inputs, outputs) in enumerate(pairwise(widths), 1):
        if number > 1:
            layers[f"activation{number - 1}"] = nn.ReLU() if activation == "relu" else nn.Sigmoid()
        layers[f"fc{number}"] = nn.Linear(inputs, outputs, bias=bias)
    return nn.Sequential(layers)


def mnist_conv() -> nn.Sequential:
    """Two convolutions of 5x5 (20 and 50 filters) with pooling, and dense layers 800-500-10.

    >>> import torch
    >>> mnist_conv()(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    return _fast(nn.Sequential(_convolutions(1, 20, 50) | _dense(800, 500, 10)))


def cifar10_conv() -> nn.Sequential:
    """Two convolutions of 5x5 (6 and 16 filters) with pooling, and dense layers 400-120-84-10.

    >>> import torch
    >>> cifar10_conv()(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    return _fast(nn.Sequential(_convolutions(3, 6, 16) | _dense(400, 120, 84, 10)))


def _convolutions(*channels: int) -> OrderedDict[str, nn.Module]:
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, (inputs, outputs) in enumerate(pairwise(channels), 1):
        layers[f"conv{number}"] = nn.Conv2d(inputs, outputs, 5)
        layers[f"pool{number}"] = nn.MaxPool2d(2)
        layers[f"relu{number}"] = nn.ReLU()  # after pooling: the same function, on a quarter of the numbers
    return layers


def _dense(*widths: int) -> OrderedDict[str, nn.Module]:
    return OrderedDict(perceptron(*widths).named_children())


def _fast(model: nn.Sequential) -> nn.Sequential:
    """The network in the memory format in which convolutions and pooling are fast on a CPU."""
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
