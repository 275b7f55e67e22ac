"""Comparable times: all contenders are measured in one run, in turns; the minimum of many counts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Contender", "contest"]


def nothing() -> None:
    """What most contenders do before they are timed."""


@dataclass(frozen=True)
class Contender:
    """A function to time, and a function to call before each call of it, outside the measured time."""

    run: Callable[[], object]
    before: Callable[[], object] = nothing


def contest(
    contenders: dict[str, Contender],
    *,
    seconds: float,
    least: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """The minimum time of each contender; they are called in turns for about ``seconds``.

    A contender that alternates between kinds of work (the halves of an iteration) returns the kind of each call. Each
    kind then has its own time.
    """
    best: dict[str, float] = {}
    for contender in contenders.values():
        for _ in range(2):
            contender.before()
            contender.run()
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < least or time.perf_counter() < end:
        for name, contender in contenders.items():
            contender.before()
            run = contender.run
            start = clock()
            kind = run()
            taken = clock() - start
            key = f"{name} {kind}" if isinstance(kind, str) else name
            best[key] = min(taken, best.get(key, taken))
        rounds += 1
    return best
