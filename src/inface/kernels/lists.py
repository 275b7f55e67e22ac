"""Lists of what the rows of a parameter use: found once, good for many in-face steps, which add nothing to it.

A list may hold places that have become zero since. It is made again after somebody else wrote to the parameter, which
autograd's counter tells, and now and then, for those who write behind its back.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["Listed", "Lists"]

# Above this density a list costs more than it saves.
DENSEST = 0.3

# So many steps are taken with one list.
SERVES = 16


class Listed(NamedTuple):
    """Row ``i`` uses the places ``at[ends[i]:ends[i + 1]]``."""

    at: Tensor
    ends: Tensor


class _Kept(NamedTuple):
    listed: Listed | None  # None: too dense for one
    version: int
    served: int


class Lists:
    """The lists of parameters in the memory of a CPU: contiguous, of float32 or float64.

    >>> import torch
    >>> x = torch.zeros(2, 4)
    >>> x[0, 1] = x[1, 3] = 1
    >>> Lists().of(x, rows=2)
    Listed(at=tensor([1, 3], dtype=torch.int32), ends=tensor([0, 1, 2]))
    """

    def __init__(self) -> None:
        self._kept: dict[Tensor, _Kept] = {}

    def of(self, x: Tensor, rows: int) -> Listed | None:
        """What the rows of ``x`` use, with room for what has become zero; None if that is most of them."""
        kept = self._kept.get(x)
        if kept is None or kept.version != _version(x) or not kept.served < SERVES:
            kept = _Kept(_find(x, rows), _version(x), 0)
            self._kept[x] = kept
        return kept.listed

    def stepped(self, written: Sequence[Tensor]) -> None:
        """Say that steps in the face wrote to these: their lists are still good."""
        for x in written:
            kept = self._kept[x]
            self._kept[x] = kept._replace(version=_version(x), served=kept.served + 1)

    def norms(self, x: Tensor, g: Tensor, rows: int) -> tuple[float, float]:
        """``|x|``, and ``|g|`` where ``x`` is not zero.

        >>> import torch
        >>> Lists().norms(torch.tensor([[0.0, 3.0, -4.0]]), torch.tensor([[9.0, 0.0, 2.0]]), rows=1)
        (5.0, 2.0)
        """
        listed, squares = self.of(x, rows), torch.zeros(2, dtype=torch.float64, device="cpu")
        at, ends = (0, 0) if listed is None else (listed.at.data_ptr(), listed.ends.data_ptr())
        kernel("squares", x.dtype)(
            x.data_ptr(), g.data_ptr(), rows, x.numel() // max(rows, 1), at, ends, squares.data_ptr()
        )
        size, slope = squares.sqrt().tolist()
        return size, slope


def _find(x: Tensor, rows: int) -> Listed | None:
    room, width = int(DENSEST * x.numel()), x.numel() // max(rows, 1)
    at = torch.empty(room + width + 1, dtype=torch.int32, device="cpu")  # a row is written before it is counted
    ends = torch.zeros(rows + 1, dtype=torch.int64, device="cpu")
    count = kernel("listed", x.dtype)(x.data_ptr(), rows, width, at.data_ptr(), ends.data_ptr(), room)
    return None if count < 0 else Listed(at[:count].clone(), ends)


def _version(x: Tensor) -> int:
    return -1 if x.is_inference() else x._version  # noqa: SLF001


@functools.cache
def kernel(name: str, dtype: torch.dtype) -> Callable[..., Any]:
    """A kernel of :mod:`inface.kernels.listing`, which the first call compiles, or finds in the disk cache."""
    module = importlib.import_module(".listing", __package__)
    found: Callable[..., Any] = getattr(module, f"{name}_{str(dtype).split('.')[1]}")
    return found
