"""Times of one thing that was measured many times, and whether two of them differ by more than they vary."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Timing", "measurable", "timing"]


@dataclass(frozen=True)
class Timing:
    """A time that was measured in many rounds.

    Attributes:
        median: of the rounds, in seconds.
        spread: from the first to the third quartile: the middle half of the rounds lies within it.
    """

    median: float
    spread: float


def timing(rounds: Sequence[float]) -> Timing:
    """The median of what the rounds took, and their spread.

    >>> timing([1.0, 2.0, 3.0, 4.0, 100.0])
    Timing(median=3.0, spread=2.0)
    """
    if len(rounds) < 2:
        raise ValueError(f"timing: wanted at least 2 rounds, got {len(rounds)}")
    first, median, third = statistics.quantiles(rounds, n=4, method="inclusive")
    return Timing(median, third - first)


def measurable(one: Timing, other: Timing) -> bool:
    """Whether two times differ by more than both of them vary from round to round, together.

    On a busy machine rounds are either disturbed or not, and the spread of one alone is often less than what lies between.

    >>> measurable(Timing(3.0, 0.1), Timing(2.0, 0.5)), measurable(Timing(3.0, 0.1), Timing(2.0, 1.5))
    (True, False)
    """
    return abs(one.median - other.median) > one.spread + other.spread
