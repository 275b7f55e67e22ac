"""The small vocabularies; without torch, so that the command line can use them at once."""

from typing import Literal

__all__ = ["ComputeMode", "Format", "Free", "InFace"]

InFace = Literal["away", "frank-wolfe", "pairwise", "projected"]
Free = Literal["sgd", "adamw"]
Format = Literal["compact", "sparse", "onnx", "torch"]
ComputeMode = Literal["auto", "sparse", "dense"]
