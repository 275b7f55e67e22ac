"""The data sets of the laboratory, whole in memory as tensors."""

from .batches import cifar10
from .folders import folder
from .idx import mnist
from .small import digits
from .truth import Synthetic, synthetic

__all__ = ["Synthetic", "cifar10", "digits", "folder", "mnist", "synthetic"]
