"""Compare two methods trial by trial: every method trains on the same trials, so differences between trials cancel."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Pairs", "Trial", "paired", "sign_test", "together"]

Trial = dict[str, Any] | None  # the numbers of a trial; None if it diverged


@dataclass(frozen=True)
class Pairs:
    """Two methods on the same trials.

    Attributes:
        lower: in how many trials the first has the lower value.
        higher: in how many it has the higher one.
        count: the trials that both finished.
        ratio: the median over these trials of the first's value divided by the second's.
    """

    lower: int
    higher: int
    count: int
    ratio: float

    @property
    def p(self) -> float:
        """The p-value of the sign test."""
        return sign_test(self.lower, self.higher)


def paired(first: Sequence[Trial], second: Sequence[Trial], value: Callable[[dict[str, Any]], float]) -> Pairs | None:
    """Compare the values of two methods in the trials that both finished; None if there are none.

    >>> paired([{"mse": 1.0}, None, {"mse": 3.0}], [{"mse": 2.0}, {"mse": 9.0}, {"mse": 2.0}], lambda own: own["mse"])
    Pairs(lower=1, higher=1, count=2, ratio=1.0)
    """
    found = [(value(a), value(b)) for a, b in together(first, second)]
    if not found:
        return None
    return Pairs(
        sum(a < b for a, b in found),
        sum(a > b for a, b in found),
        len(found),
        statistics.median(_ratio(a, b) for a, b in found),
    )


def together(*methods: Sequence[Trial]) -> list[tuple[dict[str, Any], ...]]:
    """The trials that all methods finished, each with the numbers of every method.

    >>> together([{"mse": 1}, {"mse": 2}], [None, {"mse": 3}])
    [({'mse': 2}, {'mse': 3})]
    """
    found = []
    for trial in zip(*methods, strict=False):  # trials have numbers: the longer list has some of its own
        finished = tuple(own for own in trial if own is not None)
        if len(finished) == len(methods):
            found.append(finished)
    return found


def sign_test(lower: int, higher: int) -> float:
    """The two-sided exact p-value of the sign test: both signs are equally likely. Ties are left out beforehand.

    >>> sign_test(0, 5), sign_test(3, 3)
    (0.0625, 1.0)
    """
    count = lower + higher
    tail = sum(math.comb(count, few) for few in range(min(lower, higher) + 1))
    return min(1.0, 2 * tail / 2**count)


def _ratio(a: float, b: float) -> float:
    if b == 0:
        return 1.0 if a == 0 else math.inf
    return a / b
