"""The density below which leaving out zeros is faster, measured on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from .kernels.lists import Listed
from .kernels.matrices import Pattern, pack

__all__ = ["break_even", "random_pattern", "seconds"]

# Products are measured on so many rows: cost grows with rows on both sides alike.
ROWS = 512

# Two densities say what a list costs beside what its entries cost.
DENSITIES = (0.05, 0.25)
REPEATS = 3


def break_even(rows: int, width: int, batch: int, dtype: torch.dtype) -> tuple[float, float]:
    """The densities of a layer of this size below which products, and gradients of its weight, are faster without zeros.

    >>> import torch
    >>> products, gradients = break_even(64, 64, 32, torch.float32)
    >>> 0 <= products <= 1, 0 <= gradients <= 1
    (True, True)
    """
    rows = min(rows, ROWS)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        x = torch.randn(batch, width, generator=generator, dtype=dtype, device="cpu")
        g = torch.randn(batch, rows, generator=generator, dtype=dtype, device="cpu")
        weight = torch.randn(rows, width, generator=generator, dtype=dtype, device="cpu")
        memory = torch.empty_like(weight)
        dense = (
            seconds(lambda: (x @ weight.t(), g @ weight)),
            seconds(lambda: torch.mm(g.t(), x, out=memory)),
        )
        costs = []
        for density in DENSITIES:
            pattern = random_pattern(rows, width, density, generator)
            costs.append(_costs(pattern, x, g, memory))
    limits = []
    for own, (low, high) in zip(dense, zip(*costs, strict=True), strict=True):
        slope = max((high - low) / (DENSITIES[1] - DENSITIES[0]), 1e-12)
        limits.append(min(1.0, max(0.0, DENSITIES[0] + (own - low) / slope)))
    return limits[0], limits[1]


def _costs(pattern: Pattern, x: Tensor, g: Tensor, memory: Tensor) -> tuple[float, float]:
    """The seconds of both products, and of the gradient of the weight."""
    batch = len(x)

    def products() -> None:
        fresh = Pattern(pattern.listed, pattern.rows, pattern.width)  # its columns are listed once in an iteration
        fresh.multiply(values, pack(x), batch)
        fresh.multiply_transposed(values, pack(g), batch)

    packed, steep, values = pack(x), pack(g), torch.ones(pattern.count, dtype=x.dtype, device="cpu")
    return seconds(products), seconds(lambda: pattern.scatter(pattern.slopes(packed, steep, batch), memory))


def random_pattern(rows: int, width: int, density: float, generator: torch.Generator) -> Pattern:
    """A list of about so many places."""
    used = torch.rand(rows, width, generator=generator, device="cpu") < density
    ends = torch.cat([torch.zeros(1, dtype=torch.int64, device="cpu"), used.sum(1).cumsum(0)])
    return Pattern(Listed(used.nonzero()[:, 1].to(torch.int32), ends), rows, width)


def seconds(run: Callable[[], object]) -> float:
    """The least time of a few, after one that does not count; of one thread its own, which other programs do not change."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    run()
    best = float("inf")
    for _ in range(REPEATS):
        begun = clock()
        run()
        best = min(best, clock() - begun)
    return best
