"""One process of a sweep: it takes settings that wait, trains them, and tells how they did."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from inface.lab.building import load_data
from inface.lab.errors import Diverged
from inface.lab.experiment import Data
from inface.lab.files import read_lines
from inface.lab.run import Run
from inface.lab.settings import Settings
from inface.lab.training import Record, train

from .plan import Plan, key_of
from .study import ALIVE, audit, myself, open_study, revive, take

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import Trial

__all__ = ["final_identity", "finish", "point_of", "queue", "tune", "winner"]

REDUCTION = 3  # of the settings, one in so many goes on to the next rung of successive halving
FIRST_RUNG = 12  # the first rung is at one in so many epochs
PATIENCE = 1.0  # seconds between two looks at what others are doing


def tune(plan: Plan) -> None:
    """Try settings until none is left to try."""
    import optuna

    torch.set_num_threads(1)
    rung = plan.first_rung or max(1, round(plan.base.epochs / FIRST_RUNG))
    study = open_study(plan.tuning, plan.direction, plan.identity())
    study.pruner = (
        optuna.pruners.SuccessiveHalvingPruner(min_resource=rung, reduction_factor=REDUCTION)
        if plan.pruning
        else optuna.pruners.NopPruner()
    )
    study.sampler = optuna.samplers.TPESampler(multivariate=True, constant_liar=True)
    data = load_data(plan.experiment, plan.data)
    while (trial := _next(plan, study)) is not None:
        _try(plan, study, trial, data)


def finish(plan: Plan, best: Settings) -> None:
    """Train the winner on all training data, once for each seed, and measure it on the test data."""
    import optuna

    torch.set_num_threads(1)
    study = open_study(plan.final, plan.direction, final_identity(plan, best))
    seeds = {f"seed {seed}": {"seed": seed} for seed in range(plan.seeds)}
    audit(study, plan.final, seeds)
    data = load_data(plan.experiment, plan.data)
    while (trial := _waiting(study, lambda: audit(study, plan.final, seeds))) is not None:
        seed = trial.suggest_int("seed", 0, 2**31 - 1)
        settings = replace(best, seed=seed, measured_on="test")
        try:
            with _alive(trial):
                run = train(settings, Path(plan.out) / "final" / str(seed), samples=data, resume=True)
        except Diverged as error:
            trial.set_user_attr("diverged", str(error))
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        else:
            _tell(study, trial, run, plan.theta)


def final_identity(plan: Plan, best: Settings) -> dict[str, Any]:
    """What the study of the final runs must have been made for."""
    return {**plan.identity(), "winner": best.to_dict()}


def winner(plan: Plan, study: Study) -> Settings:
    """The settings that did best on the validation data."""
    return plan.settings(point_of(study.best_trial.params))


def point_of(parameters: dict[str, Any]) -> dict[str, Any]:
    """The point of a grid, or of a search, that a trial's parameters stand for."""
    lists = {name: json.loads(value) for name, value in parameters.items() if str(value).startswith("[")}
    point = {**parameters, **lists}
    if "1 - momentum" in point:
        point["momentum"] = 1 - point.pop("1 - momentum")
    return point


def queue(plan: Plan) -> dict[str, dict[str, Any]]:
    """The points of the grid as the parameters of trials, by their keys.

    In the order of the keys, which is as good as random: successive halving compares with what came before, and a grid
    that begins in a bad corner would have its worst settings trained to their end.
    """
    points = sorted(plan.points().items())
    return {key: {name: _categorical(value) for name, value in point.items()} for key, point in points}


def _next(plan: Plan, study: Study) -> Trial | None:
    """The next trial of a sweep, or nothing when all of them have come to an end, here and elsewhere."""
    if plan.grid is not None:
        return _waiting(study, lambda: audit(study, plan.tuning, queue(plan)))
    while True:
        with plan.tuning.alone():
            revive(study)
            states = [trial.state.name for trial in study.get_trials(deepcopy=False)]
            ended, running = sum(state in ("COMPLETE", "PRUNED") for state in states), states.count("RUNNING")
            if ended + running < plan.search:
                trial = study.ask()
                trial.set_user_attr("worker", myself())
                return trial
        if ended >= plan.search:
            return None
        time.sleep(PATIENCE)


def _waiting(study: Study, refill: Callable[[], None]) -> Trial | None:
    """A trial that waits; while others are running, one of them may yet have to be tried again."""
    while (trial := take(study)) is None:
        if revive(study):
            refill()
        elif any(other.state.name == "RUNNING" for other in study.get_trials(deepcopy=False)):
            time.sleep(PATIENCE)
        else:
            refill()  # somebody may have died after giving up a trial and before letting its setting wait
            return take(study)
    return trial


def _try(plan: Plan, study: Study, trial: Trial, data: Data) -> None:
    """Train the network of one trial, unless it falls behind."""
    import optuna

    point = _suggested(plan, trial)
    key = trial.user_attrs.get("key") or key_of(point)
    trial.set_user_attr("key", key)

    folder = plan.folder(key)
    watch = _reporting(trial, plan.base.epochs, folder)
    pruned = optuna.trial.TrialState.PRUNED
    try:
        with _alive(trial):
            run = train(plan.settings(point), folder, samples=data, resume=True, watch=watch, theta=plan.theta)
    except optuna.TrialPruned:
        study.tell(trial, state=pruned, skip_if_finished=True)
        (folder / "checkpoint.safetensors").unlink(missing_ok=True)
    except Diverged as error:
        trial.set_user_attr("diverged", str(error))
        study.tell(trial, state=pruned, skip_if_finished=True)
    else:
        _tell(study, trial, run, plan.theta)


def _reporting(trial: Trial, epochs: int, folder: Path) -> Callable[[Record], None]:
    """What tells Optuna of every epoch, and ends the run when it says so; not after the last epoch, which has cost its time."""
    import optuna

    reported: set[int] = set()

    def report(record: Record) -> None:
        value = record.get("judged", record["metric"])
        if value is not None and record["epoch"] not in reported:
            reported.add(record["epoch"])
            trial.report(value, record["epoch"])

    def watch(record: Record) -> None:
        if record["kind"] == "epoch" and record["epoch"] < epochs:
            report(record)
            if trial.should_prune():
                raise optuna.TrialPruned

    if (folder / "metrics.jsonl").is_file():  # of a worker that died: the rungs that it reached are this trial's too
        for record in read_lines(folder / "metrics.jsonl"):
            if record.get("kind") == "epoch":
                report(record)
    return watch


def _tell(study: Study, trial: Trial, run: Run, theta: int) -> None:
    trial.set_user_attr("summary", run.summary)
    study.tell(trial, run.summary["kept"][str(theta)], skip_if_finished=True)


def _suggested(plan: Plan, trial: Trial) -> dict[str, Any]:
    if plan.grid is not None:
        parameters = {
            name: trial.suggest_categorical(name, [_categorical(value) for value in values])
            for name, values in plan.grid.axes.items()
        }
        return point_of(parameters)
    parameters = {"lr": trial.suggest_float("lr", 0.01, 2.0, log=True)}
    if plan.base.frank_wolfe:
        parameters["constrained_lr"] = trial.suggest_float("constrained_lr", 0.05, 50.0, log=True)
        for layer in range(1, plan.layers + 1):
            parameters[f"radius {layer}"] = trial.suggest_float(f"radius {layer}", 0.1, 100.0, log=True)
    parameters["1 - momentum"] = trial.suggest_float("1 - momentum", 0.005, 1.0, log=True)
    return point_of(parameters)


def _categorical(value: Any) -> Any:
    """A value that Optuna's categories can hold: lists as text."""
    return json.dumps(value) if isinstance(value, list | tuple) else value


@contextmanager
def _alive(trial: Trial) -> Iterator[None]:
    """Signs of life of this worker while it trains, for workers on other machines."""
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(ALIVE):
            trial.set_user_attr("worker", myself())

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
