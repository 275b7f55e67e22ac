"""Successive halving: all settings are trained up to a rung, and the best quarter of them continues."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from .trials import key_in, unreached

if TYPE_CHECKING:
    from optuna.study import Study

__all__ = ["RULE", "Decision", "Halving", "first_rung"]

QUARTER = 4  # one in four settings continues to the next rung
LEAST = 8  # but so many settings do
EARLIEST = 3  # epochs of the first rung
PART = 12  # in long trainings the first rung is at 1/12 of the epochs
RULE = f"1 in {QUARTER}, at least {LEAST}"

Decision = Literal["continue", "wait", "stop"]


def first_rung(epochs: int) -> int:
    """The epoch of the first rung.

    >>> first_rung(25), first_rung(100)
    (3, 8)
    """
    return max(EARLIEST, round(epochs / PART))


@dataclass(frozen=True)
class Halving:
    """Decides at a rung whether a setting continues. The rungs are at 1, 4, 16, ... times the first.

    The settings of a grid wait at a rung until all of them have reached it, diverged or been stopped. Then the best
    quarter continues, and at least eight. So neither their order nor the number of workers matters. A search does not
    know its settings beforehand: each is compared with those that were there before.

    Settings are compared, not trials: after a kill a setting has two trials.

    Attributes:
        first: the epoch of the first rung.
        settings: the keys of the settings of a grid; of a search none.
    """

    first: int
    settings: Collection[str] = ()

    def decide(self, study: Study, key: str, epoch: int) -> Decision:
        """What a setting does that has reported its value at an epoch."""
        if not self._is_rung(epoch):
            return "continue"
        sign = 1 if study.direction.name == "MAXIMIZE" else -1
        values: dict[Any, float] = {}
        for trial in study.get_trials(deepcopy=False):
            if epoch in trial.intermediate_values:
                values[key_in(trial)] = sign * trial.intermediate_values[epoch]
                if key_in(trial) == key and max(trial.intermediate_values) > epoch:
                    return "continue"  # its worker died after it had passed this rung
        if unreached(study, self.settings, epoch):
            return "wait"
        own = values[key]
        if math.isnan(own):
            return "stop"
        # Of equal ones, some: networks that learn nothing all have the same accuracy.
        better = sum(value > own or (value == own and str(other) < str(key)) for other, value in values.items())
        return "stop" if better >= _continuing(len(values)) else "continue"

    def epochs(self, count: int, epochs: int) -> int:
        """How many epochs the settings are trained for, all together, if none diverges.

        >>> Halving(3).epochs(200, 25), Halving(3).epochs(32, 25)
        (1219, 272)
        """
        total, before, rung = 0, 0, self.first
        while rung < epochs:
            total += count * (rung - before)
            count, before, rung = min(count, _continuing(count)), rung, rung * QUARTER
        return total + count * (epochs - before)

    def _is_rung(self, epoch: int) -> bool:
        rung = self.first
        while rung < epoch:
            rung *= QUARTER
        return rung == epoch


def _continuing(count: int) -> int:
    """The number of settings that continue, of those that reached a rung."""
    return max(LEAST, -(-count // QUARTER))
