"""Lists of what the rows of a parameter use: found once, good for many in-face steps, which add nothing to it.

A list may hold places that have become zero since. It is made again after somebody else wrote to the parameter, which
autograd's counter tells, and now and then, for those who write behind its back.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["Entries", "Listed", "Lists", "version"]

# Above this density a list costs more than it saves.
DENSEST = 0.2

# Below this density it saves even where a kernel reads whole rows quickly.
THIN = 0.02

# So many steps are taken with one list.
SERVES = 16

# So many rows are compared with a list.
LOOKS = 8


class Listed(NamedTuple):
    """Row ``i`` uses the places ``at[ends[i]:ends[i + 1]]``."""

    at: Tensor
    ends: Tensor


class Entries(NamedTuple):
    """A list with the numbers in its places, and, if they are known, the gradients there."""

    listed: Listed
    values: Tensor
    prices: Tensor | None = None


@dataclass
class _Kept:
    listed: Listed | None  # None: denser than that
    densest: float
    version: int
    place: int  # in memory
    served: int = 0
    values: Tensor | None = None


class _Prices(NamedTuple):
    listed: Listed
    prices: Tensor
    place: int
    version: int


class Lists:
    """The lists of parameters in the memory of a CPU: contiguous, of float32 or float64.

    >>> import torch
    >>> x = torch.zeros(2, 8)
    >>> x[0, 1] = x[1, 3] = 1
    >>> Lists().of(x, rows=2)
    Listed(at=tensor([1, 3], dtype=torch.int32), ends=tensor([0, 1, 2]))
    """

    def __init__(self) -> None:
        self._kept: dict[Tensor, dict[int, _Kept]] = {}
        self._prices: dict[Tensor, _Prices] = {}

    def of(self, x: Tensor, rows: int, densest: float = DENSEST) -> Listed | None:
        """What the rows of ``x`` use, with room for what has become zero; None if that is more than ``densest`` of it."""
        kept = self._kept.get(x, {}).get(rows)
        if kept is not None and kept.served < SERVES and kept.version == version(x) and kept.place == x.data_ptr():
            if kept.listed is not None:
                return kept.listed if len(kept.listed.at) <= densest * x.numel() else None
            if kept.densest >= densest:
                return None
        listed = _find(x, rows, densest)
        self._kept.setdefault(x, {})[rows] = _Kept(listed, densest, version(x), x.data_ptr())
        return listed

    def pays(self, x: Tensor, rows: int) -> bool:
        """Whether a step in the face is better taken with a list: others need it too, or rows are nearly empty.

        A kernel that reads whole rows, where there is one, is faster than lists that reach into nearly every cache line.
        """
        kept = self._kept.get(x, {}).get(rows)
        known = kept is not None and kept.values is not None and kept.version == version(x)
        return known or not _streams() or _looks_thin(x, rows)

    def entries(self, x: Tensor, rows: int, densest: float = DENSEST, *, look: bool = False) -> Entries | None:
        """What the rows of ``x`` use, with the numbers there.

        They are kept up to date by steps. Those who ``look`` compare some rows with ``x``: whoever writes behind autograd's back
        writes to most of it.
        """
        listed = self.of(x, rows, densest)
        if listed is None:
            return None
        kept = self._kept[x][rows]
        if look and kept.values is not None and not _same(x, rows, Entries(listed, kept.values)):
            del self._kept[x][rows]
            return self.entries(x, rows, densest)
        if kept.values is None:
            kept.values = x.new_empty(len(listed.at), requires_grad=False)
            kernel("values", x.dtype)(
                x.data_ptr(), rows, x.numel() // max(rows, 1), listed.at.data_ptr(), listed.ends.data_ptr(), kept.values.data_ptr()
            )  # fmt: skip
        return Entries(listed, kept.values)

    def keep_prices(self, x: Tensor, listed: Listed, prices: Tensor, g: Tensor) -> None:
        """Keep the gradients in the places of a list beside ``g``, which has them too."""
        self._prices[x] = _Prices(listed, prices, g.data_ptr(), version(g))

    def prices(self, x: Tensor, listed: Listed, g: Tensor) -> Tensor | None:
        """The entries of ``g`` in the places of a list, if they were kept and nobody changed ``g``.

        Autograd does not count what is done to ``g.data``: some rows are compared.
        """
        found = self._prices.get(x)
        if found is None or found.listed is not listed or (found.place, found.version) != (g.data_ptr(), version(g)):
            return None
        rows = len(listed.ends) - 1
        agree = kernel("agree", x.dtype)(
            g.data_ptr(), rows, x.numel() // max(rows, 1), listed.at.data_ptr(), listed.ends.data_ptr(),
            found.prices.data_ptr(), LOOKS,
        )  # fmt: skip
        return found.prices if agree else None

    def stepped(self, x: Tensor, before: int, noted: int | None) -> None:
        """Say that a step in the face wrote to ``x``, whose version was ``before``: lists that were good then are good now.

        ``noted``: of how many rows the list is whose numbers the step wrote down too, if there is one.
        """
        for rows, kept in self._kept.get(x, {}).items():
            if kept.version == before and kept.listed is not None:
                kept.version, kept.served = version(x), kept.served + 1
                kept.values = kept.values if rows == noted else None

    def grown(self, x: Tensor, rows: int, new: Tensor) -> None:
        """Take in what a first half brought: of each row one place, or none (-1)."""
        kept = self._kept[x][rows]
        if kept.listed is None or kept.values is None:
            raise RuntimeError("inface: a first half without a list")
        (at, ends), values = kept.listed, kept.values
        room = len(at) + rows + 1
        at_new, ends_new, values_new = at.new_empty(room), torch.empty_like(ends), values.new_empty(room)
        count = kernel("merged", x.dtype)(
            x.data_ptr(), rows, x.numel() // max(rows, 1), at.data_ptr(), ends.data_ptr(), values.data_ptr(), new.data_ptr(),
            at_new.data_ptr(), ends_new.data_ptr(), values_new.data_ptr(),
        )  # fmt: skip
        listed = Listed(at_new[:count], ends_new)
        served, densest = kept.served + 1, kept.densest
        self._kept[x] = {rows: _Kept(listed, densest, version(x), x.data_ptr(), served, values_new[:count])}

    def norms(self, x: Tensor, g: Tensor, rows: int) -> tuple[float, float]:
        """``|x|``, and ``|g|`` where ``x`` is not zero.

        >>> import torch
        >>> Lists().norms(torch.tensor([[0.0, 3.0, -4.0]]), torch.tensor([[9.0, 0.0, 2.0]]), rows=1)
        (5.0, 2.0)
        """
        listed, squares = self.of(x, rows), torch.zeros(2, dtype=torch.float64, device="cpu")
        prices = None if listed is None else self.prices(x, listed, g)
        if listed is not None and prices is not None:
            known = self.entries(x, rows)
            if known is not None:  # as one row of all of them
                kernel("squares", x.dtype)(
                    known.values.data_ptr(), prices.data_ptr(), 1, len(prices), 0, 0, squares.data_ptr()
                )
                size, slope = squares.sqrt().tolist()
                return size, slope
        at, ends = (0, 0) if listed is None else (listed.at.data_ptr(), listed.ends.data_ptr())
        kernel("squares", x.dtype)(
            x.data_ptr(), g.data_ptr(), rows, x.numel() // max(rows, 1), at, ends, squares.data_ptr()
        )
        size, slope = squares.sqrt().tolist()
        return size, slope


def _looks_thin(x: Tensor, rows: int) -> bool:
    """Whether few of the numbers in some rows are not zero."""
    width = x.numel() // max(rows, 1)
    looks = min(LOOKS, rows)
    return bool(kernel("used", x.dtype)(x.data_ptr(), rows, width, looks) <= THIN * looks * width)


@functools.cache
def _streams() -> bool:
    return bool(importlib.import_module(".squeeze", __package__).SQUEEZES)


def _find(x: Tensor, rows: int, densest: float) -> Listed | None:
    room, width = int(densest * x.numel()), x.numel() // max(rows, 1)
    at = torch.empty(room + width + 1, dtype=torch.int32, device="cpu")  # a row is written before it is counted
    ends = torch.zeros(rows + 1, dtype=torch.int64, device="cpu")
    count = kernel("listed", x.dtype)(x.data_ptr(), rows, width, at.data_ptr(), ends.data_ptr(), room)
    return None if count < 0 else Listed(at[:count].clone(), ends)


def _same(x: Tensor, rows: int, entries: Entries) -> bool:
    """Whether some rows of ``x`` are those of a list."""
    (at, ends), values = entries.listed, entries.values
    width = x.numel() // max(rows, 1)
    return bool(
        kernel("same", x.dtype)(x.data_ptr(), rows, width, at.data_ptr(), ends.data_ptr(), values.data_ptr(), LOOKS)
    )


def version(x: Tensor) -> int:
    """What changes when a tensor is written to."""
    return -1 if x.is_inference() else x._version  # noqa: SLF001


@functools.cache
def kernel(name: str, dtype: torch.dtype) -> Callable[..., Any]:
    """A kernel for lists, which the first call compiles, or finds in the disk cache."""
    module = importlib.import_module(".toward" if name == "merged" else ".listing", __package__)
    found: Callable[..., Any] = getattr(module, f"{name}_{str(dtype).split('.')[1]}")
    return found
