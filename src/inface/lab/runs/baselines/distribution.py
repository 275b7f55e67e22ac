"""How the edges that are kept are distributed over layers, and networks that start with them alone."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Literal

import torch
from torch import Tensor, nn

__all__ = ["edge_counts", "sparse_init_"]


def edge_counts(shapes: Sequence[Sequence[int]], keep: float, distribution: Literal["uniform", "erk"]) -> list[int]:
    """The number of edges that each layer keeps, at least one.

    ``uniform``: ``round(keep * n)`` of the ``n`` edges of every layer. ``erk`` (Erdos-Renyi-Kernel, Evci et al., 2020): a
    density in proportion to the sum of the layer's dimensions over their product, so that small layers are denser, and
    ``round(keep * n)`` edges of all layers together. A layer that would be denser than dense is dense, and the others
    share what is left.

    >>> edge_counts([(300, 784), (10, 300)], 0.05, "uniform"), edge_counts([(300, 784), (10, 300)], 0.05, "erk")
    ([11760, 150], [9261, 2649])
    """
    sizes = [prod(shape) for shape in shapes]
    if distribution == "uniform":
        return [max(1, round(keep * size)) for size in sizes]
    wanted = max(len(sizes), round(keep * sum(sizes)))
    ratios = [sum(shape) / size for shape, size in zip(shapes, sizes, strict=True)]
    dense: set[int] = set()
    while True:
        others = [i for i in range(len(sizes)) if i not in dense]
        left = wanted - sum(sizes[i] for i in dense)
        scale = left / sum(ratios[i] * sizes[i] for i in others) if others else 0.0
        too_dense = {i for i in others if scale * ratios[i] >= 1 and ratios[i] == max(ratios[j] for j in others)}
        if not too_dense:
            break
        dense |= too_dense
    exact = [float(size) if i in dense else scale * ratios[i] * size for i, size in enumerate(sizes)]
    return _rounded(exact, sizes, wanted)


def sparse_init_(
    layers: Sequence[nn.Parameter], counts: Sequence[int], generator: torch.Generator | None = None
) -> None:
    """Set all but so many edges of each layer to zero; which ones stay is random.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.ones(4, 5))
    >>> sparse_init_([weight], [3])
    >>> int(weight.count_nonzero())
    3
    """
    with torch.no_grad():
        for p, count in zip(layers, counts, strict=True):
            order = torch.rand(p.numel(), generator=generator).to(p.device)
            order.masked_fill_(p.flatten() == 0, -1.0)  # a zero is no edge
            p.mul_(_mask_of(order.topk(count).indices, p))


def _mask_of(places: Tensor, p: Tensor) -> Tensor:
    """A tensor like ``p`` with ones at some places, and zeros elsewhere."""
    return torch.zeros(p.numel(), dtype=p.dtype, device=p.device).index_fill(0, places, 1.0).reshape(p.shape)


def _rounded(exact: Sequence[float], sizes: Sequence[int], total: int) -> list[int]:
    """Whole numbers between 1 and ``sizes`` near ``exact`` ones, with this sum: the largest remainders are rounded up."""
    found = [min(size, max(1, int(number))) for number, size in zip(exact, sizes, strict=True)]
    order = sorted(range(len(exact)), key=lambda i: found[i] - exact[i])
    while sum(found) != total:
        step = 1 if sum(found) < total else -1
        for i in order if step > 0 else reversed(order):
            if 1 <= found[i] + step <= sizes[i] and sum(found) != total:
                found[i] += step
    return found
