"""The sampler of a search. The same command draws the same settings on every machine."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

from optuna.samplers import BaseSampler, TPESampler

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.study import Study
    from optuna.trial import FrozenTrial

__all__ = ["SeededSampler"]


class SeededSampler(BaseSampler):
    """Optuna's TPE sampler, seeded for each trial with the study's name and the trial's number.

    Two workers never draw the same numbers, because trials have different numbers. A sweep with one worker is
    reproducible.

    Args:
        name: the name of the study.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.number = -1

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._of(trial).infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self._of(trial).sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._of(trial).sample_independent(study, trial, param_name, param_distribution)

    def _of(self, trial: FrozenTrial) -> TPESampler:
        if self.number != trial.number:
            self.number = trial.number
            seed = zlib.crc32(f"{self.name} {trial.number}".encode())
            self.tpe = TPESampler(multivariate=True, constant_liar=True, seed=seed)
        return self.tpe
