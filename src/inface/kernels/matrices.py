"""Products of sparse matrices with batches: what :mod:`inface.kernels.products` computes, on tensors."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from concurrent.futures import wait
from typing import Any

import torch
from torch import Tensor

from . import _warn_once, thread_pool
from .lists import Listed

__all__ = ["Pattern", "pack", "packed_size", "products_available"]

BYTES = 64

# Below so many products of a number with a sample a second thread costs more than it gives.
LARGE = 1 << 22


@functools.cache
def products_available() -> bool:
    """Whether the kernels can be compiled here, or were; if not, after one warning, layers compute densely."""
    try:
        one = torch.ones(1, 1, dtype=torch.float32, device="cpu")
        at, ends = torch.zeros(1, dtype=torch.int32, device="cpu"), torch.tensor([0, 1], device="cpu")
        Pattern(Listed(at, ends), 1, 1).multiply(one, pack(one), 1)
    except Exception as error:  # noqa: BLE001 - whatever is wrong with a compiler, there is another way
        _warn_once(f"{type(error).__name__}: {error}")
        return False
    return True


def packed_size(batch: int, features: int, dtype: torch.dtype) -> int:
    """How many numbers a packed batch has: samples are padded to whole vectors."""
    lanes = BYTES // dtype.itemsize
    return -(-batch // lanes) * lanes * features


def pack(x: Tensor) -> Tensor:
    """Samples, one in a row, in the order in which the kernels read them.

    >>> import torch
    >>> pack(torch.tensor([[1.0, 2.0], [3.0, 4.0]])).view(2, 16)[:, :3]
    tensor([[1., 3., 0.],
            [2., 4., 0.]])
    """
    if x.stride(1) != 1 and x.shape[1] > 1:
        x = x.contiguous()
    batch, features = x.shape
    out = torch.empty(packed_size(batch, features, x.dtype), dtype=x.dtype, device="cpu")
    _kernel("pack", x.dtype)(x.data_ptr(), batch, features, x.stride(0), out.data_ptr())
    return out


class Pattern:
    """Where a matrix of ``rows`` and ``width`` has entries, and what can be done with numbers there.

    >>> import torch
    >>> pattern = Pattern(Listed(torch.tensor([1, 0, 2], dtype=torch.int32), torch.tensor([0, 1, 3])), 2, 3)
    >>> values = torch.tensor([5.0, 6.0, 7.0])                        # [[0, 5, 0], [6, 0, 7]]
    >>> pattern.multiply(values, pack(torch.tensor([[1.0, 10.0, 100.0]])), 1)
    tensor([[ 50., 706.]])
    >>> pattern.multiply_transposed(values, pack(torch.tensor([[1.0, 10.0]])), 1)
    tensor([[60.,  5., 70.]])
    """

    def __init__(self, listed: Listed, rows: int, width: int) -> None:
        self.listed, self.rows, self.width = listed, rows, width
        self.count = len(listed.at)
        self._columns: tuple[Listed, Tensor] | None = None

    def scatter(self, values: Tensor | None, x: Tensor) -> None:
        """Write numbers, or zeros, to these places of a dense matrix."""
        at, ends = self.listed
        _kernel("scatter", x.dtype)(
            0 if values is None else values.data_ptr(), at.data_ptr(), ends.data_ptr(), self.rows, self.width, x.data_ptr()
        )  # fmt: skip

    def multiply(self, values: Tensor, packed: Tensor, batch: int, bias: Tensor | None = None) -> Tensor:
        """The matrix of these values times packed samples, and a bias: one row for each sample."""
        return _multiply(self.listed, self.rows, self.width, values, packed, batch, bias)

    def multiply_transposed(self, values: Tensor, packed: Tensor, batch: int) -> Tensor:
        """The transposed matrix times packed samples."""
        listed, source = self._by_columns()
        own = torch.empty_like(values)
        _kernel("permute", values.dtype)(values.data_ptr(), source.data_ptr(), self.count, own.data_ptr())
        return _multiply(listed, self.width, self.rows, own, packed, batch, None)

    def slopes(self, packed: Tensor, steep: Tensor, batch: int) -> Tensor:
        """The gradient of the values: from packed samples, and from packed gradients of their products."""
        out = packed.new_empty(self.count)
        at, ends = self.listed
        kernel = _kernel("slopes", packed.dtype)
        _in_threads(
            lambda first, last: kernel(
                at.data_ptr(), ends.data_ptr(), first, last, packed.data_ptr(), self.width, steep.data_ptr(), self.rows,
                batch, out.data_ptr(),
            ),
            ends, self.rows, self.count * batch,
        )  # fmt: skip
        return out

    def _by_columns(self) -> tuple[Listed, Tensor]:
        if self._columns is None:
            at, ends = self.listed
            turned = Listed(torch.empty_like(at), torch.empty(self.width + 1, dtype=torch.int64, device="cpu"))
            source = torch.empty_like(at)
            _kernel("transposed", None)(
                at.data_ptr(), ends.data_ptr(), self.rows, self.width, turned.at.data_ptr(), turned.ends.data_ptr(),
                source.data_ptr(),
            )  # fmt: skip
            self._columns = turned, source
        return self._columns


def _multiply(
    listed: Listed, rows: int, width: int, values: Tensor, packed: Tensor, batch: int, bias: Tensor | None
) -> Tensor:
    y = values.new_empty(batch, rows)
    at, ends = listed
    kernel = _kernel("multiply", values.dtype)
    _in_threads(
        lambda first, last: kernel(
            values.data_ptr(), at.data_ptr(), ends.data_ptr(), first, last, packed.data_ptr(), width,
            0 if bias is None else bias.data_ptr(), y.data_ptr(), rows, batch,
        ),
        ends, rows, len(at) * batch,
    )  # fmt: skip
    return y


def _in_threads(job: Callable[[int, int], Any], ends: Tensor, rows: int, work: int) -> None:
    """Rows do not depend on each other, so the result does not depend on how they are dealt out."""
    threads = min(torch.get_num_threads(), rows) if work >= LARGE else 1
    if threads == 1:
        job(0, rows)
        return
    total = int(ends[-1])
    wanted = torch.tensor([total * i // threads for i in range(1, threads)], dtype=torch.int64, device="cpu")
    edges = [0, *torch.searchsorted(ends, wanted).clamp(max=rows).tolist(), rows]
    others = [thread_pool(os.getpid(), threads - 1).submit(job, *edges[i : i + 2]) for i in range(1, threads)]
    try:
        job(*edges[:2])
    finally:
        wait(others)  # whatever happens, nobody may still write when the memory is let go
    for other in others:
        other.result()


@functools.cache
def _kernel(name: str, dtype: torch.dtype | None) -> Callable[..., Any]:
    """A kernel of :mod:`inface.kernels.products`, which the first call compiles, or finds in the disk cache."""
    module = importlib.import_module(".products", __package__)
    found: Callable[..., Any] = getattr(module, name if dtype is None else f"{name}_{str(dtype).split('.')[1]}")
    return found
