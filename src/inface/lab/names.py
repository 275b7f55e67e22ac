"""The names of the built-in experiments, for whoever needs nothing but their names."""

__all__ = ["EXPERIMENTS"]

EXPERIMENTS = ("mnist-mlp", "mnist-conv", "cifar10", "synthetic", "digits")
