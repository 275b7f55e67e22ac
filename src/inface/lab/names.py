"""Names of experiments, methods and settings, for whoever needs nothing but names."""

from typing import Literal, get_args

__all__ = ["EXPERIMENTS", "FORMATS", "METHODS", "READ_BY", "Activation", "Format"]

Activation = Literal["relu", "sigmoid"]

EXPERIMENTS = ("mnist-mlp", "mnist-conv", "cifar10", "synthetic", "digits")
Format = Literal["compact", "sparse", "onnx", "torch"]
FORMATS: tuple[Format, ...] = get_args(Format)
METHODS = ("sfw-if", "sfw", "sgd", "prune", "gradual", "proximal")

# The methods that look at a setting; what is not here, all of them do.
READ_BY = {
    "constrained_lr": ("sfw-if", "sfw"),
    "radius": ("sfw-if", "sfw"),
    "in_face": ("sfw-if",),
    "init": ("sfw-if", "sfw"),
    "free_momentum": ("sfw-if", "sfw"),
    "every_gradient": ("sfw-if",),
    "keep": ("prune", "gradual"),
    "weight_decay": ("sgd", "prune", "gradual", "proximal"),
    "shrinkage": ("proximal",),
}
