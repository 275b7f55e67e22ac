"""The networks of the experiments, with PyTorch's own initialisation."""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise

import torch
from torch import Tensor, nn

from . import Activation

__all__ = ["cifar10_conv", "image_transformer", "mnist_conv", "perceptron", "resnet"]


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


def resnet(blocks: int) -> nn.Sequential:
    """The residual network of He et al. (2016) for CIFAR-10: three stages of ``blocks`` blocks, 16, 32 and 64 channels.

    A block is two 3x3 convolutions with batch norm. Where a stage begins, the shortcut takes every second pixel and has
    zeros for the new channels (option A), so that it has no weights.

    >>> import torch
    >>> model = resnet(3)
    >>> model(torch.zeros(2, 3, 32, 32)).shape, sum(p.numel() for p in model.parameters())
    (torch.Size([2, 10]), 269722)
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv=nn.Conv2d(3, 16, 3, padding=1, bias=False), norm=nn.BatchNorm2d(16), relu=nn.ReLU()
    )
    for stage, (inputs, outputs) in enumerate(((16, 16), (16, 32), (32, 64)), 1):
        first = _Block(inputs, outputs, stride=outputs // inputs)
        layers[f"stage{stage}"] = nn.Sequential(first, *(_Block(outputs, outputs) for _ in range(blocks - 1)))
    layers |= {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), "fc": nn.Linear(64, 10)}
    return _fast(nn.Sequential(layers))


class _Block(nn.Module):
    """A residual block."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.stride, self.new = stride, outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        if self.new:
            x = nn.functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.new))
        return torch.relu(x + y)


def image_transformer(side: int = 28, patch: int = 7, width: int = 64, layers: int = 2) -> nn.Module:
    """A transformer on the patches of an image of one channel; the mean over the patches is classified.

    >>> import torch
    >>> image_transformer()(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    return _ImageTransformer(side, patch, width, layers)


class _ImageTransformer(nn.Module):
    """Patches, their places, attention layers, and a linear classifier."""

    def __init__(self, side: int, patch: int, width: int, layers: int) -> None:
        super().__init__()
        self.patch = patch
        self.embed = nn.Linear(patch**2, width)
        self.places = nn.Parameter(0.02 * torch.randn((side // patch) ** 2, width))
        self.layers = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(
                    width, 4, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
                )
                for _ in range(layers)
            )
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        patches = nn.functional.unfold(x, self.patch, stride=self.patch).mT
        found: Tensor = self.head(self.norm(self.layers(self.embed(patches) + self.places)).mean(1))
        return found


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
