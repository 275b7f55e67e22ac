"""The data sets of the laboratory, whole in memory as tensors."""

from .batches import cifar10
from .check import DatasetStatus, status
from .download import REMOTES, Remote, fetch
from .folders import folder
from .idx import mnist
from .small import digits
from .truth import Synthetic, synthetic

__all__ = [
    "REMOTES",
    "DatasetStatus",
    "Remote",
    "Synthetic",
    "cifar10",
    "digits",
    "fetch",
    "folder",
    "mnist",
    "status",
    "synthetic",
]
