"""What is trained: data, networks and the sets their layers live in."""

from typing import Literal

__all__ = ["EXPERIMENTS", "Activation"]

EXPERIMENTS = ("mnist-mlp", "mnist-conv", "cifar10", "synthetic", "digits")
Activation = Literal["relu", "sigmoid"]
