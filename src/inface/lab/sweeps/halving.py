"""Successive halving: of the settings that reach a rung, the best third continues."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from optuna.pruners import BasePruner

from .trials import key_in

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial

__all__ = ["Halving"]

REDUCTION = 3  # one in three settings continues to the next rung


class Halving(BasePruner):
    """Stops a trial at a rung unless it is in the best third so far. The rungs are at 1, 3, 9, ... times the first.

    Optuna's own pruner compares trials. After a kill a setting has two trials, which would count twice. This pruner
    compares settings.

    Args:
        first: the epoch of the first rung.
    """

    def __init__(self, first: int) -> None:
        self.first = first

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        """Whether to stop a trial at the epoch that it has just reported."""
        epoch = trial.last_step
        if epoch is None or not self._is_rung(epoch):
            return False
        sign = 1 if study.direction.name == "MAXIMIZE" else -1
        reached: dict[Any, float] = {}
        for other in study.get_trials(deepcopy=False):
            if epoch in other.intermediate_values:
                reached[key_in(other)] = sign * other.intermediate_values[epoch]
        own = sign * trial.intermediate_values[epoch]
        reached[key_in(trial)] = own
        if math.isnan(own):
            return True
        better = sum(value > own for value in reached.values())
        return better >= max(1, len(reached) // REDUCTION)

    def _is_rung(self, epoch: int) -> bool:
        rung = self.first
        while rung < epoch:
            rung *= REDUCTION
        return rung == epoch
