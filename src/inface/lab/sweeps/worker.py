"""One worker process of a sweep: it takes waiting settings, trains them, and reports the results."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from inface.lab.errors import Broken, Diverged, LabError, Occupied, Paused
from inface.lab.experiments.experiment import Data
from inface.lab.files import read_lines
from inface.lab.runs.run import Run
from inface.lab.runs.settings import Settings
from inface.lab.runs.setup import load_data
from inface.lab.runs.training import Record, train

from .grids import search_space
from .halving import Halving
from .plan import Plan, key_of, parameters_of, point_of
from .study import open_study
from .trials import hand_back, held, next_trial, ranked, tell, wait_at

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

__all__ = ["Winner", "final_identity", "finish", "tune", "winner"]


@dataclass(frozen=True)
class Winner:
    """The best setting.

    Attributes:
        theta: the percentage of edges for which it is the best.
        key: its key in the study.
        settings: the settings of its runs on the validation data, except for the seed.
        value: its validation value; the mean, if it was tried with several seeds.
    """

    theta: int
    key: str
    settings: Settings
    value: float


def tune(plan: Plan) -> None:
    """Try settings until none is left."""
    import optuna

    from .sampler import SeededSampler

    torch.set_num_threads(1)
    study = open_study(plan.tuning, plan.direction, plan.identity())
    study.sampler = SeededSampler(plan.study)
    data, agenda = load_data(plan.experiment, plan.data), plan.agenda
    while (trial := next_trial(study, plan.tuning, agenda)) is not None:
        with suppress(optuna.exceptions.UpdateFinishedTrialError):  # this worker was taken for dead, and replaced
            point = _suggested(plan, trial)
            key = trial.user_attrs.get("key") or key_of(point)
            trial.set_user_attr("key", key)
            _attempt(study, trial, plan, plan.settings(point), plan.folder(key), data, plan.halving)


def finish(plan: Plan, best: Winner) -> None:
    """Train a winner on all training data, once per seed, and measure it on the test data."""
    import optuna

    torch.set_num_threads(1)
    study = open_study(plan.final(best.key), plan.direction, final_identity(plan, best))
    data, agenda = load_data(plan.experiment, plan.data), plan.final_agenda
    while (trial := next_trial(study, plan.final(best.key), agenda)) is not None:
        with suppress(optuna.exceptions.UpdateFinishedTrialError):
            seed = trial.suggest_int("seed", 0, 2**31 - 1)
            settings = replace(best.settings, seed=seed, measured_on="test")
            _attempt(study, trial, plan, settings, Path(plan.out) / "final" / best.key / str(seed), data)


def final_identity(plan: Plan, best: Winner) -> dict[str, Any]:
    """The identity of the study of the final runs."""
    return {**plan.identity(), "winner": best.settings.to_dict()}


def winner(plan: Plan, study: Study, theta: int | None = None) -> Winner:
    """The best settings on the validation data, with ``theta`` percent of the edges; by default those of the plan."""
    judged = theta or plan.theta

    def value(trial: FrozenTrial) -> Any:
        own = judged == plan.theta and not plan.together
        return trial.value if own else trial.user_attrs["summary"][plan.kept][str(judged)]

    settings = ranked(study, value)
    if not settings:
        raise LabError(f"{plan.out}: no setting finished: the loss became infinite or not a number in all of them")
    point = point_of(settings[0].parameters)
    return Winner(judged, key_of(point), plan.settings(point), settings[0].value)


def _suggested(plan: Plan, trial: Trial) -> dict[str, Any]:
    """The point of the grid or the search that a trial tries."""
    if plan.grid is not None:
        axes = {name: [parameters_of({name: value})[name] for value in axis] for name, axis in plan.grid.axes.items()}
        return point_of({name: trial.suggest_categorical(name, values) for name, values in axes.items()})
    space = search_space(plan.base.method, plan.layers)
    return point_of({name: trial.suggest_float(name, low, high, log=True) for name, (low, high) in space.items()})


def _attempt(
    study: Study,
    trial: Trial,
    plan: Plan,
    settings: Settings,
    folder: Path,
    data: Data,
    halving: Halving | None = None,
) -> None:
    """Train the network of one trial and report its value, unless halving stops it or makes it wait."""
    import optuna

    pruned = optuna.trial.TrialState.PRUNED
    reporting = _Reporting(study, trial, settings.epochs, halving)
    try:
        with held(trial) as check:
            reporting.replay(folder)

            def watch(record: Record) -> None:
                check()
                reporting(record)

            judged = plan.theta if settings.measured_on == "validation" and not plan.together else 100
            try:
                run = train(settings, folder, samples=data, resume=True, watch=watch, theta=judged)
            except Broken:  # after a power loss
                run = train(settings, folder, samples=data, overwrite=True, watch=watch, theta=judged)
        value = _value(run, plan)
        trial.set_user_attr("summary", run.summary)
        tell(study, trial, value)
    except Occupied:  # a worker that was taken for dead is still training there
        hand_back(study, trial)
    except Paused:
        wait_at(study, trial, reporting.epoch)
    except Diverged as error:
        trial.set_user_attr("diverged", str(error))
        tell(study, trial, state=pruned)
    except optuna.TrialPruned:
        tell(study, trial, state=pruned)
        (folder / "checkpoint.safetensors").unlink(missing_ok=True)


def _value(run: Run, plan: Plan) -> float:
    """The value that a setting is judged by."""
    value: float | None = run.summary[plan.kept][str(plan.theta)]
    if value is None:
        raise Diverged(f"{run.path}: the metric is not a number")
    return value


class _Reporting:
    """Reports every epoch of a trial to Optuna, except for the last; raises if halving stops the trial or makes it wait.

    Attributes:
        epoch: the last epoch that was reported.
    """

    def __init__(self, study: Study, trial: Trial, epochs: int, halving: Halving | None) -> None:
        self.study, self.trial, self.epochs, self.halving = study, trial, epochs, halving
        self.reported: set[int] = set()
        self.epoch = 0

    def __call__(self, record: Record) -> None:
        import optuna

        if record.get("kind") != "epoch" or record["epoch"] >= self.epochs:
            return
        self.epoch = record["epoch"]
        if self.epoch not in self.reported:
            self.reported.add(self.epoch)
            value = record.get("judged", record["metric"])
            self.trial.report(math.nan if value is None else value, self.epoch)
        if self.halving is None:
            return
        decision = self.halving.decide(self.study, self.trial.user_attrs["key"], self.epoch)
        if decision == "stop":
            raise optuna.TrialPruned
        if decision == "wait":
            raise Paused(f"the setting waits for others after epoch {self.epoch}")

    def replay(self, folder: Path) -> None:
        """Report the epochs of an earlier trial of the setting, which waited at a rung or whose worker died."""
        try:
            records = read_lines(folder / "metrics.jsonl")
        except LabError:  # no file yet; training reports a damaged one
            return
        for record in records:
            self(record)
