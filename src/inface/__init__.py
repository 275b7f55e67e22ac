"""Train sparse, low-rank and otherwise structured PyTorch models by construction."""

from . import sets
from .gap import ModifiedGap, convex_bound, modified_gap
from .groups import param_groups
from .optimizer import FrankWolfe
from .report import Report

__all__ = [
    "FrankWolfe",
    "ModifiedGap",
    "Report",
    "convex_bound",
    "modified_gap",
    "param_groups",
    "sets",
]
