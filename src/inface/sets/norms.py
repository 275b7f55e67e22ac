"""The norms on a block (the paper's ``|.|_X``), which set the step size through the diameter.

======================  =============  ================  ==========================
norm                    dual norm      most of l2 in it  most of it in l2
======================  =============  ================  ==========================
``l2``, ``frobenius``   itself         1                 1
``l1``                  ``linf``       1                 ``sqrt(n)``
``linf``                ``l1``         ``sqrt(n)``       1
``spectral``            ``nuclear``    ``sqrt(rank)``    1
``nuclear``             ``spectral``   1                 ``sqrt(rank)``
======================  =============  ================  ==========================
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ..linalg import power_of_two

__all__ = ["DUAL", "NormName", "equivalence", "length"]

NormName = Literal["l2", "l1", "linf", "frobenius", "spectral", "nuclear"]

DUAL: dict[NormName, NormName] = {
    "l2": "l2",
    "l1": "linf",
    "linf": "l1",
    "frobenius": "frobenius",
    "spectral": "nuclear",
    "nuclear": "spectral",
}


def length(x: Tensor, norm: NormName) -> Tensor:
    """The norm of each block, in float64 where the device has it; blocks are matrices for spectral and nuclear norms.

    >>> import torch
    >>> x = torch.tensor([[3.0, -4.0]])
    >>> [length(x, norm).item() for norm in ("l2", "l1", "linf")]
    [5.0, 7.0, 4.0]
    >>> length(torch.eye(2).unsqueeze(0), "nuclear")
    tensor([2.], dtype=torch.float64)
    """
    x = x if x.device.type == "mps" else x.double()
    if norm in {"spectral", "nuclear"}:
        usable = torch.isfinite(x).flatten(1).all(1)  # LAPACK refuses what is not finite
        values = torch.linalg.svdvals(torch.where(usable.reshape(-1, 1, 1), x, 0))
        return torch.where(usable, values.sum(1) if norm == "nuclear" else values.amax(1), torch.nan)
    x = x.flatten(1)
    if norm == "l1":
        return x.abs().sum(1)
    largest = x.abs().amax(1)
    if norm == "linf":
        return largest
    scale = power_of_two(largest)
    return torch.linalg.vector_norm(x / scale.unsqueeze(1), dim=1) * scale


def equivalence(norm: NormName, numel: int, rank: int) -> tuple[float, float]:
    """The largest ratios ``|x|_2 / |x|`` and ``|x| / |x|_2`` over blocks of that many entries, of at most that rank.

    >>> equivalence("l1", 9, 1), equivalence("spectral", 12, 4)
    ((1.0, 3.0), (2.0, 1.0))
    """
    most = {
        "l1": (1.0, numel**0.5),
        "linf": (numel**0.5, 1.0),
        "spectral": (rank**0.5, 1.0),
        "nuclear": (1.0, rank**0.5),
    }
    return most.get(norm, (1.0, 1.0))
