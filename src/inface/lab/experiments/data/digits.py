"""The digits that come with scikit-learn."""

from __future__ import annotations

from pathlib import Path

import torch

from inface.lab.experiments.experiment import Data, Split

__all__ = ["digits"]

TRAIN = 1_437
HELD_OUT = 287


def digits(folder: Path | None = None) -> Data:  # noqa: ARG001 - every data set is given the folder
    """The small handwritten digits bundled with scikit-learn: images of 8 by 8 in [0, 1], nothing to download.

    The 1,797 images are shuffled, always in the same way: 1,437 to train, 360 to test.

    Args:
        folder: ignored.

    >>> data = digits()
    >>> data.train.inputs.shape, len(data.test), data.image
    (torch.Size([1437, 1, 8, 8]), 360, (1, 8, 8))
    """
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    bunch = load_digits()
    order = torch.randperm(len(bunch.target), generator=torch.Generator().manual_seed(0))
    inputs = torch.from_numpy(bunch.images).float().unsqueeze(1).div(16)[order]
    targets = torch.from_numpy(bunch.target).long()[order]
    return Data(
        train=Split(inputs[:TRAIN], targets[:TRAIN]),
        test=Split(inputs[TRAIN:], targets[TRAIN:]),
        held_out=HELD_OUT,
        image=(1, 8, 8),
    )
