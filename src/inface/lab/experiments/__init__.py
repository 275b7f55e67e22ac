"""Experiments: data, networks, and the sets that constrain their layers."""

from typing import Literal

__all__ = ["EXPERIMENTS", "Activation", "HeldOut", "MeasuredOn"]

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
HeldOut = Literal["last", "first", "random"]
MeasuredOn = Literal["test", "validation"]
