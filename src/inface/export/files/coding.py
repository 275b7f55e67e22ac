"""Encode the positions of non-zeros in few bytes: one bit per entry, or the gaps between non-zeros."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

__all__ = ["Coding", "decode", "encode"]

Coding = Literal["bitmap", "gaps8", "gaps16"]

CODINGS: tuple[Coding, ...] = ("bitmap", "gaps8", "gaps16")
GAPS = {"gaps8": (torch.uint8, 2**8 - 1), "gaps16": (torch.uint16, 2**16 - 1)}
KINDS = {"bitmap": torch.uint8, **{coding: kind for coding, (kind, _) in GAPS.items()}}


def encode(mask: Tensor) -> tuple[Coding, Tensor]:
    """The positions at which a flat mask is true, in the coding with the fewest bytes.

    A gap is the number of entries between two non-zeros. A gap that does not fit into an integer is written as several
    integers: the largest one stands for that many entries with no non-zero after them.

    >>> import torch
    >>> encode(torch.tensor([True, False, False, False, True] + [False] * 300))
    ('gaps8', tensor([0, 3], dtype=torch.uint8))
    >>> encode(torch.tensor([True, False] * 8))
    ('bitmap', tensor([170, 170], dtype=torch.uint8))
    """
    positions = mask.nonzero().flatten()
    gaps = positions.diff(prepend=positions.new_full((1,), -1)) - 1
    sizes = {"bitmap": -(-mask.numel() // 8)}
    for coding, (kind, most) in GAPS.items():
        sizes[coding] = int(len(gaps) + (gaps // most).sum()) * kind.itemsize
    best = min(CODINGS, key=lambda coding: sizes[coding])
    return best, _bits(mask) if best == "bitmap" else _numbers(gaps, *GAPS[best])


def decode(coding: Coding, code: Tensor, count: int) -> Tensor:
    """The positions written by :func:`encode`, for an array of ``count`` entries.

    Raises:
        ValueError: the code does not fit such an array.

    >>> import torch
    >>> decode("gaps8", torch.tensor([0, 255, 3], dtype=torch.uint8), 300)
    tensor([  0, 259])
    """
    if code.ndim != 1 or code.dtype != KINDS[coding]:
        raise ValueError(f"positions of {code.dtype} in {code.ndim} dimensions, wanted a list of {KINDS[coding]}")
    if coding == "bitmap":
        if len(code) != -(-count // 8):
            raise ValueError(f"a bitmap of {len(code)} bytes, wanted {-(-count // 8)} for {count} entries")
        shifts = torch.arange(7, -1, -1, dtype=torch.uint8)
        bits = (code[:, None] >> shifts & 1).flatten()
        if bool(bits[count:].any()):
            raise ValueError(f"a bitmap with bits set after the last of {count} entries")
        return bits.nonzero().flatten()
    gaps = code.to(torch.int64)
    there = gaps != GAPS[coding][1]
    positions = gaps.cumsum(0)[there] + torch.arange(int(there.sum()))
    if (len(gaps) and not there[-1]) or (len(positions) and int(positions[-1]) >= count):
        raise ValueError(f"gaps that end after the last of {count} entries")
    return positions


def _bits(mask: Tensor) -> Tensor:
    padded = torch.zeros(-(-mask.numel() // 8) * 8, dtype=torch.uint8)
    padded[: mask.numel()] = mask
    weights = torch.tensor([128, 64, 32, 16, 8, 4, 2, 1], dtype=torch.uint8)
    return (padded.view(-1, 8) * weights).sum(1).to(torch.uint8)


def _numbers(gaps: Tensor, kind: torch.dtype, most: int) -> Tensor:
    """Every gap as its remainder, after as many of the largest integer as fit into it."""
    whole = gaps // most
    ends = (whole + 1).cumsum(0)
    numbers = torch.full((int(ends[-1]) if len(ends) else 0,), most, dtype=torch.int64)
    numbers[ends - 1] = gaps - whole * most
    return numbers.to(kind)
