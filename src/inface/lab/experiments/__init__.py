"""Experiments: data, networks, and the sets that constrain their layers."""

from typing import Literal

__all__ = ["EXPERIMENTS", "Activation", "MeasuredOn"]

EXPERIMENTS = (
    "mnist-mlp",
    "mnist-conv",
    "cifar10",
    "synthetic",
    "digits",
    "lenet-300-100",
    "lenet-5",
    "resnet",
    "vit",
)
Activation = Literal["relu", "sigmoid"]
MeasuredOn = Literal["test", "validation"]
