"""Baselines, each an optimizer: magnitude pruning, gradual pruning, RigL, SET, proximal SGD."""

from .distribution import edge_counts, sparse_init_
from .proximal import ProximalAdamW, ProximalSGD
from .pruned import PrunedAdamW, PrunedSGD
from .rewired import SET, RigL, RigLAdamW, SETAdamW

__all__ = [
    "SET",
    "ProximalAdamW",
    "ProximalSGD",
    "PrunedAdamW",
    "PrunedSGD",
    "RigL",
    "RigLAdamW",
    "SETAdamW",
    "edge_counts",
    "sparse_init_",
]
