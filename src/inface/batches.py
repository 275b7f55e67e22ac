"""Batch-size schedules ``b_k``, and batches drawn as the theorems draw them: independently, with replacement."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch.utils.data import Sampler

__all__ = ["RandomBatches", "Schedule", "constant", "growing"]

Schedule = Callable[[int], int]


def constant(size: int) -> Schedule:
    """``b_k = size``. With ``size = K`` the bound of the theorems falls like ``1 / K``.

    >>> [constant(250)(k) for k in range(3)]
    [250, 250, 250]
    """
    if not isinstance(size, int) or size < 1:
        raise ValueError(f"constant: size must be a whole number >= 1, got {size!r}")
    return lambda k: size  # noqa: ARG005 - a schedule is asked for every k


def growing(rate: float = 1.0) -> Schedule:
    """``b_k = rate k``, and at least 1. The bound of the theorems falls like ``ln(K) / K``.

    >>> [growing()(k) for k in range(5)], [growing(0.5)(k) for k in range(5)]
    ([1, 1, 2, 3, 4], [1, 1, 1, 2, 2])
    """
    if not 0 < rate < math.inf:
        raise ValueError(f"growing: rate must be > 0 and finite, got {rate!r}")
    return lambda k: max(1, math.ceil(rate * k))


class RandomBatches(Sampler[list[int]]):
    """Indices of i.i.d. samples, ``b_k`` of them for every gradient of iteration ``k``: a DataLoader's ``batch_sampler``.

    Args:
        samples: how many there are to draw from.
        schedule: ``b_k``.
        iterations: how many iterations to make batches for.
        gradients: batches per iteration: 2 with in-face steps, which take a fresh gradient of the same size, else 1.
        generator: for reproducibility.

    >>> import torch
    >>> batches = RandomBatches(10, growing(), iterations=3, gradients=2, generator=torch.Generator().manual_seed(0))
    >>> len(batches), [len(batch) for batch in batches]
    (6, [1, 1, 1, 1, 2, 2])
    """

    def __init__(
        self,
        samples: int,
        schedule: Schedule,
        *,
        iterations: int,
        gradients: int = 1,
        generator: torch.Generator | None = None,
    ) -> None:
        if samples < 1 or iterations < 0 or gradients not in (1, 2):
            raise ValueError(
                f"RandomBatches: wanted samples >= 1, iterations >= 0 and 1 or 2 gradients per iteration, "
                f"got {samples!r}, {iterations!r} and {gradients!r}"
            )
        self.samples = samples
        self.schedule = schedule
        self.iterations = iterations
        self.gradients = gradients
        self.generator = generator

    def __len__(self) -> int:
        return self.iterations * self.gradients

    def __iter__(self) -> Iterator[list[int]]:
        for k in range(self.iterations):
            for _ in range(self.gradients):
                yield torch.randint(self.samples, (self.schedule(k),), generator=self.generator, device="cpu").tolist()
