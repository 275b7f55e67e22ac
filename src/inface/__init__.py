"""Train sparse, low-rank and otherwise structured PyTorch models by construction."""

from typing import TYPE_CHECKING

from .lazy import exports

if TYPE_CHECKING:
    from . import batches, export, sets, sparsity, theory
    from .compute import sparse_compute_
    from .density import DensityScheduler
    from .gap import ModifiedGap, convex_bound, modified_gap
    from .gradients import dense_gradients
    from .groups import param_groups
    from .init import graph_init_
    from .iterate import RandomIterate
    from .optimizer import FrankWolfe
    from .report import Report
    from .sparse import sparse_optimizer
    from .version import __version__

__all__ = [
    "DensityScheduler",
    "FrankWolfe",
    "ModifiedGap",
    "RandomIterate",
    "Report",
    "__version__",
    "batches",
    "convex_bound",
    "dense_gradients",
    "export",
    "graph_init_",
    "modified_gap",
    "param_groups",
    "sets",
    "sparse_compute_",
    "sparse_optimizer",
    "sparsity",
    "theory",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "DensityScheduler": "density",
        "FrankWolfe": "optimizer",
        "ModifiedGap": "gap",
        "RandomIterate": "iterate",
        "Report": "report",
        "__version__": "version",
        "batches": "batches",
        "convex_bound": "gap",
        "dense_gradients": "gradients",
        "export": "export",
        "graph_init_": "init",
        "modified_gap": "gap",
        "param_groups": "groups",
        "sets": "sets",
        "sparse_compute_": "compute",
        "sparse_optimizer": "sparse",
        "sparsity": "sparsity",
        "theory": "theory",
    },
)
