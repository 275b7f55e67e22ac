"""The data sets of the laboratory, as tensors in memory."""

from .augmentation import flipped_and_shifted
from .batches import cifar10
from .check import DatasetStatus, status
from .digits import digits
from .download import REMOTES, Remote, fetch
from .folders import folder
from .idx import mnist
from .synthetic import Synthetic, synthetic

__all__ = [
    "REMOTES",
    "DatasetStatus",
    "Remote",
    "Synthetic",
    "cifar10",
    "digits",
    "fetch",
    "flipped_and_shifted",
    "folder",
    "mnist",
    "status",
    "synthetic",
]
