"""Random changes of training images."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn

__all__ = ["flipped_and_shifted"]

MARGIN = 4  # pixels


def flipped_and_shifted(images: Tensor, generator: Generator) -> Tensor:
    """The usual augmentation of CIFAR-10: half of the images mirrored, each cropped from itself with a margin of zeros.

    The margin is 4 pixels wide on every side, and the crop is as large as the image.

    >>> images = torch.arange(32.0).expand(500, 1, 32, 32)
    >>> changed = flipped_and_shifted(images, Generator().manual_seed(0))
    >>> changed.shape, changed[:, 0, 16, 16].unique().tolist()
    (torch.Size([500, 1, 32, 32]), [11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 17.0, 18.0, 19.0, 20.0])
    """
    count, _, height, width = images.shape
    top, left = torch.randint(2 * MARGIN + 1, (2, count, 1), generator=generator)
    rows = top + torch.arange(height)
    columns = left + torch.arange(width)
    flipped = torch.rand(count, 1, generator=generator) < 0.5
    columns = torch.where(flipped, columns.flip(1), columns)
    padded = nn.functional.pad(images, [MARGIN] * 4)
    each = torch.arange(count).view(-1, 1, 1)
    return padded.permute(0, 2, 3, 1)[each, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
