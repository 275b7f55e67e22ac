"""Baselines, each an optimizer: magnitude pruning, gradual pruning, proximal SGD."""

from .proximal import ProximalSGD
from .pruned import PrunedSGD

__all__ = ["ProximalSGD", "PrunedSGD"]
