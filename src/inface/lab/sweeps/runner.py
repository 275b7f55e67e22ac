"""Run a sweep: tune, train the winner, and collect the results."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from inface.lab.errors import ArgumentError
from inface.lab.files import read_json, write_json
from inface.lab.runs.setup import load_data, parts
from inface.lab.workers import run_workers

from .halving import Halving
from .plan import Plan, point_of
from .retries import Retries
from .study import open_study
from .trials import Agenda, audit, counted, key_in, ranked, revive
from .worker import Winner, final_identity, finish, tune, winner

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial

__all__ = ["Progress", "Stage", "sweep"]

Stage = Literal["settings", "final runs"]


@dataclass(frozen=True)
class Progress:
    """The progress of a sweep, over all its workers.

    Attributes:
        stage: ``"settings"`` or ``"final runs"``.
        done: the number of finished settings, including those stopped early.
        total: the number of settings.
        pruned: the number of settings stopped early.
        running: the number of settings in training.
        best: the best validation value so far; None for final runs.
        seconds_left: an estimate from the time so far; None if there is none yet.
    """

    stage: Stage
    done: int
    total: int
    pruned: int
    running: int
    best: float | None
    seconds_left: float | None


def sweep(plan: Plan, *, jobs: int = 1, show: Callable[[Progress], None] | None = None) -> dict[str, Any]:
    """Choose settings on validation data, train the winner on all training data, measure it on the test data.

    The sweep and its workers can be killed at any moment; the same call continues. The result is also written to
    ``results.json`` in the folder of the plan.

    Args:
        plan: what to try.
        jobs: worker processes on this machine, one thread each.
        show: called about twice a second with the progress over all workers.
    """
    begun = time.time()
    _refuse_another(plan)
    _check_data(plan)
    with plan.tuning.reached():
        study = open_study(plan.tuning, plan.direction, plan.identity())
        write_json(Path(plan.out) / "sweep.json", {"format": 1, "study": plan.study})
        revive(study)
        audit(study, plan.tuning, plan.agenda)
        halving = (plan.halving, plan.base.epochs) if plan.halving and plan.grid else None
        _until_done(study, plan.agenda, "settings", jobs, tune, (plan,), show, halving)
        winners = [winner(plan, study, theta) for theta in (plan.theta, *plan.also)]
        ends = [_finished(plan, best, jobs, show) for best in winners]
        results = _results(plan, study, ends, time.time() - begun)
    write_json(Path(plan.out) / "results.json", results)
    return results


def _refuse_another(plan: Plan) -> None:
    """Raise an error if the folder belongs to another sweep: their runs would be mixed up."""
    file = Path(plan.out) / "sweep.json"
    found = read_json(file).get("study") if file.is_file() else plan.study
    if found != plan.study:
        raise ArgumentError(f"{plan.out}: is the folder of the sweep {found}; choose another --out for {plan.study}")


def _check_data(plan: Plan) -> None:
    """Load the data once, to find errors before workers start; a finished sweep needs no data."""
    if not (Path(plan.out) / "results.json").is_file():
        parts(replace(plan.base, measured_on="validation"), load_data(plan.experiment, plan.data))


def _until_done(
    study: Study,
    agenda: Agenda,
    stage: Stage,
    jobs: int,
    target: Callable[..., None],
    arguments: tuple[Any, ...],
    show: Callable[[Progress], None] | None,
    halving: tuple[Halving, int] | None = None,
) -> None:
    def look() -> None:
        if show is not None:
            show(_progress(study, agenda, stage, jobs, halving))

    if len(agenda.ended(study)) < agenda.total(study):
        run_workers(jobs, _reaching, (target, *arguments), look=look, killed=Retries(study).after_kill)
    else:
        look()


def _reaching(target: Callable[..., None], plan: Plan, *others: Any) -> None:
    """Run the target in a worker; an error of the storage becomes one line."""
    with plan.tuning.reached():
        target(plan, *others)


def _progress(
    study: Study, agenda: Agenda, stage: Stage, jobs: int, halving: tuple[Halving, int] | None = None
) -> Progress:
    """The progress of a study; ``halving`` and the epochs of a run, if the settings wait at rungs."""
    total, ended = agenda.total(study), agenda.ended(study)
    done = {key_in(trial) for trial in ended}
    running = {key_in(trial) for trial in study.get_trials(deepcopy=False) if trial.state.name == "RUNNING"} - done
    workers = max(1, len(running), jobs)
    took = [trial.duration.total_seconds() for trial in ended if trial.duration is not None]
    left = statistics.fmean(took) * max(0, total - len(ended)) / workers if took else None
    if halving is not None and done != set(agenda.settings):
        left = _left_with_rungs(study, *halving, total, workers)
    pruned = sum(trial.state.name == "PRUNED" for trial in ended)
    best = next((setting.value for setting in ranked(study)), None) if stage == "settings" else None
    return Progress(stage, len(ended), total, pruned, len(running), best, left)


def _left_with_rungs(study: Study, halving: Halving, epochs: int, total: int, workers: int) -> float | None:
    """The seconds left if settings wait at rungs, from the time of an epoch so far."""
    trials = study.get_trials(deepcopy=False)
    seconds = sum(map(_spent, trials))
    reached: dict[Any, int] = {}
    for trial in trials:
        if trial.duration is not None:
            last = epochs if trial.state.name == "COMPLETE" else max(trial.intermediate_values, default=0)
            reached[key_in(trial)] = max(last, reached.get(key_in(trial), 0))
    done = sum(reached.values())
    return seconds / done * max(0, halving.epochs(total, epochs) - done) / workers if done else None


def _finished(plan: Plan, best: Winner, jobs: int, show: Callable[[Progress], None] | None) -> dict[str, Any]:
    """The final runs of a winner, as plain data."""
    finals: list[FrozenTrial] = []
    if plan.seeds:
        study = open_study(plan.final(best.key), plan.direction, final_identity(plan, best))
        _until_done(study, plan.final_agenda, "final runs", jobs, finish, (plan, best), show)
        finals = sorted(plan.final_agenda.ended(study), key=lambda trial: trial.params["seed"])
    return {
        "theta": best.theta,
        "best": best.settings.to_dict(),
        "validation": best.value,
        "final": [
            {"seed": trial.params["seed"], **trial.user_attrs["summary"]}
            for trial in finals
            if "summary" in trial.user_attrs
        ],
        "diverged": [trial.params["seed"] for trial in finals if "summary" not in trial.user_attrs],
    }


def _results(plan: Plan, study: Study, ends: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """The results of a sweep, as plain data."""
    ended = plan.agenda.ended(study)
    seconds_of = _seconds(study)
    trials = [
        {
            "settings": point_of(trial.params),
            "state": trial.state.name.lower(),
            "epochs": trial.user_attrs.get("summary", {}).get("epochs") or max(trial.intermediate_values, default=0),
            "value": trial.value,
            "kept": trial.user_attrs.get("summary", {}).get("kept"),
            "kept_together": trial.user_attrs.get("summary", {}).get("kept_together"),
            "diverged": "diverged" in trial.user_attrs,
            "seconds": seconds_of[key_in(trial)],
        }
        for trial in ended
    ]
    return {
        "identity": plan.identity(),
        "direction": plan.direction,
        "trials": trials,
        "ranking": [{"settings": point_of(each.parameters), "value": each.value} for each in ranked(study)],
        **ends[0],
        "also": ends[1:],
        "trial_seconds": round(sum(seconds_of[key_in(trial)] for trial in ended), 1),
        "seconds": round(seconds, 1),
    }


def _seconds(study: Study) -> dict[Any, float]:
    """The training time of each setting, over all its trials: it may have waited at rungs."""
    took: dict[Any, float] = {}
    for trial in study.get_trials(deepcopy=False):
        took[key_in(trial)] = took.get(key_in(trial), 0.0) + _spent(trial)
    for trial in counted(study):
        if "summary" in trial.user_attrs:
            took[key_in(trial)] = trial.user_attrs["summary"]["seconds"]
    return {key: round(seconds, 1) for key, seconds in took.items()}


def _spent(trial: FrozenTrial) -> float:
    """The seconds of a trial; none if its worker died: it ends when another one finds out, which may be days later."""
    died = trial.state.name == "FAIL" and "waits at" not in trial.user_attrs
    return trial.duration.total_seconds() if trial.duration is not None and not died else 0.0
