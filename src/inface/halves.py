"""One half of an iteration on a batch of blocks, with torch operations: the reference, on any device."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .sets import InFace, Set
from .sets.base import Decision, Move, decide, spread

__all__ = ["Half", "average", "forget", "take_half"]

# Blocks are taken in pieces of about this many entries: temporaries then stay in a CPU's cache, and are never as large as
# the parameter.
PIECE = 1 << 18


class Half(NamedTuple):
    """What a half of an iteration came to: the blocks and their average gradient, and per block, what it did."""

    x: Tensor
    m: Tensor | None
    slope: Tensor
    decision: Decision


def take_half(
    set_: Set,
    x: Tensor,
    g: Tensor,
    m: Tensor | None,
    *,
    momentum: float,
    rate: float | Tensor,
    in_face: InFace | None,
    diameter: float | Tensor = 1.0,
    direction: Tensor | None = None,
    most: float | Tensor = math.inf,
) -> Half:
    """A step of blocks ``x`` with gradients ``g``: the first half if ``in_face`` and ``direction`` are None, else the second.

    On a CPU, where nothing is differentiated or compiled, large ``x`` and ``m`` are written in place, piece by piece.
    A block whose gradient is not finite has a slope that is not. ``rate`` is ``1 / C``; projected steps need the
    ``diameter`` of the set too. No other step is longer than ``most``.

    >>> import torch
    >>> from inface.sets import L1Ball
    >>> x = torch.zeros(1, 3, 1)
    >>> half = take_half(
    ...     L1Ball(1.0), x, torch.tensor([[[0.0], [2.0], [1.0]]]), None, momentum=0.0, rate=0.25, in_face=None
    ... )
    >>> half.x.flatten(), half.slope
    (tensor([ 0.0000, -0.5000,  0.0000]), tensor([2.], dtype=torch.float64))
    """
    rows = x.shape[0] if _whole(x) else max(1, PIECE * x.shape[0] // x.numel())
    if rows >= x.shape[0]:
        return _take(set_, x, g, m, momentum, rate, in_face, diameter, direction, most)
    halves = []
    for start in range(0, x.shape[0], rows):
        part = slice(start, start + rows)
        half = _take(
            set_.part(part),
            x[part],
            g[part],
            None if m is None else m[part],
            momentum,
            rate[part] if isinstance(rate, Tensor) and rate.ndim else rate,
            in_face,
            diameter[part] if isinstance(diameter, Tensor) and diameter.ndim else diameter,
            None if direction is None else direction[part],
            most,
        )
        x[part] = half.x
        if m is not None:
            m[part] = half.m  # type: ignore[assignment]
        halves.append((half.slope, *half.decision))
    slope, step, hit = (torch.cat(numbers) for numbers in zip(*halves, strict=True))
    return Half(x, m, slope, Decision(step, hit))


def average(m: Tensor, g: Tensor, momentum: float, used: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The averaged gradient of each block after ``g``, and which blocks of ``g`` are finite.

    ``m <- momentum m + (1 - momentum) g``, from ``m = g`` in entries without an average, which hold NaN; a block of ``g`` that
    is not finite leaves its average. So does, where it is said what is ``used``, everything else.

    >>> import torch
    >>> average(torch.tensor([[1.0], [float("nan")]]), torch.tensor([[2.0], [2.0]]), 0.5)
    (tensor([[1.5000],
            [2.0000]]), tensor([True, True]))
    """
    seen = g if used is None else torch.where(used, g, 0)
    finite = torch.isfinite(torch.linalg.vector_norm(seen, torch.inf, dim=tuple(range(1, g.ndim))))
    mixed = torch.where(torch.isnan(m), g, torch.lerp(m, g, 1 - momentum))
    taken = spread(finite, g) if used is None else spread(finite, g) & used
    return torch.where(taken, mixed, m), finite


def forget(set_: Set, used: Tensor, x: Tensor, m: Tensor) -> Tensor:
    """The averages of blocks ``x`` without those of what was ``used`` and is zero now: it begins anew if it comes back."""
    now = set_.in_use(x)
    return m if now is None else torch.where(used & ~now, torch.nan, m)


def _take(
    set_: Set,
    x: Tensor,
    g: Tensor,
    m: Tensor | None,
    momentum: float,
    rate: float | Tensor,
    in_face: InFace | None,
    diameter: float | Tensor,
    direction: Tensor | None,
    most: float | Tensor,
) -> Half:
    finite, used = None, set_.in_use(x) if in_face == "projected" and direction is None else None
    if m is not None:
        m, finite = average(m, g, momentum, used)
        g = m
    if used is not None:
        g = torch.where(used, g, 0)
    move: Move
    if direction is not None:
        move = set_.along(x, g, direction)
    elif in_face == "projected":
        move = set_.project_in_face(x, g, rate, diameter)
    elif in_face is not None:
        move = set_.in_face(in_face, x, g)
    else:
        move = set_.toward(x, g)
    if finite is not None:
        move.slope = torch.where(finite, move.slope, torch.nan)
    decision = decide(set_, x, move, rate, math.inf if in_face == "projected" and direction is None else most)
    end = set_.apply(x, move, decision)
    if used is not None and m is not None:
        m = forget(set_, used, end, m)
    return Half(end, m, move.slope, decision)


def _whole(x: Tensor) -> bool:
    """Whether the blocks must be taken all at once."""
    return torch.is_grad_enabled() or torch.compiler.is_compiling() or x.device.type != "cpu" or x.numel() <= PIECE
