"""Repeated timings, and whether two of them differ by more than they vary."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Timing", "measurable", "timing"]


@dataclass(frozen=True)
class Timing:
    """A time measured in many rounds.

    Attributes:
        median: the median of the rounds, in seconds.
        spread: the interquartile range.
    """

    median: float
    spread: float


def timing(rounds: Sequence[float]) -> Timing:
    """The median of the rounds and their spread.

    >>> timing([1.0, 2.0, 3.0, 4.0, 100.0])
    Timing(median=3.0, spread=2.0)
    """
    if len(rounds) < 2:
        raise ValueError(f"timing: wanted at least 2 rounds, got {len(rounds)}")
    first, median, third = statistics.quantiles(rounds, n=4, method="inclusive")
    return Timing(median, third - first)


def measurable(one: Timing, other: Timing) -> bool:
    """Whether two times differ by more than the sum of their spreads.

    On a busy machine each round is either disturbed or not, so a single spread is often too small.

    >>> measurable(Timing(3.0, 0.1), Timing(2.0, 0.5)), measurable(Timing(3.0, 0.1), Timing(2.0, 1.5))
    (True, False)
    """
    return abs(one.median - other.median) > one.spread + other.spread
