"""Names of the built-in experiments, for whoever needs nothing but names."""

from typing import Literal

__all__ = ["EXPERIMENTS", "Activation"]

Activation = Literal["relu", "sigmoid"]

EXPERIMENTS = ("mnist-mlp", "mnist-conv", "cifar10", "synthetic", "digits")
