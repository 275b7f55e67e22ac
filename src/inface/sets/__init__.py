"""The feasible regions: which convex set a parameter must live in, block by block."""

from .base import InFace, Set
from .group_l1_ball import GroupL1Ball
from .k_sparse_polytope import KSparsePolytope
from .l1_ball import L1Ball
from .l2_ball import L2Ball
from .linf_ball import LInfBall
from .nuclear_ball import NuclearBall
from .simplex import Simplex
from .spectral_ball import SpectralBall

__all__ = [
    "GroupL1Ball",
    "InFace",
    "KSparsePolytope",
    "L1Ball",
    "L2Ball",
    "LInfBall",
    "NuclearBall",
    "Set",
    "Simplex",
    "SpectralBall",
]
