"""Baselines, each an optimizer: magnitude pruning, gradual pruning, RigL, SET, proximal SGD."""

from .distribution import edge_counts, sparse_init_
from .proximal import ProximalSGD
from .pruned import PrunedSGD
from .rewired import SET, RigL

__all__ = ["SET", "ProximalSGD", "PrunedSGD", "RigL", "edge_counts", "sparse_init_"]
