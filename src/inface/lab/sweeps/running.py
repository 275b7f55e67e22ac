"""A sweep from its first setting to its table: workers are started, watched, and started again if they are killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from inface.lab.errors import LabError
from inface.lab.files import write_json
from inface.lab.memory import keep_freed_memory
from inface.lab.settings import Settings

from .plan import Plan
from .study import audit, counted, open_study, revive
from .worker import final_identity, finish, point_of, queue, tune, winner

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from optuna.study import Study

__all__ = ["Progress", "sweep"]

PAUSE = 0.5  # seconds between two looks at the study


@dataclass(frozen=True)
class Progress:
    """How far a sweep is, over all its workers.

    Attributes:
        stage: ``"settings"`` or ``"final runs"``.
        done: settings that came to an end, those stopped early included.
        total: of them.
        pruned: settings that were stopped early.
        running: at this moment.
        best: the best value so far.
        seconds_left: by how long it took so far; None while nobody knows.
    """

    stage: Literal["settings", "final runs"]
    done: int
    total: int
    pruned: int
    running: int
    best: float | None
    seconds_left: float | None


def sweep(plan: Plan, *, jobs: int = 1, show: Callable[[Progress], None] | None = None) -> dict[str, Any]:
    """Choose settings on validation data, train the winner on all training data, measure it on the test data.

    It can be killed at any moment, as can any of its workers: the same call goes on. What it returns is also written to
    ``results.json`` in the folder of the plan.

    Args:
        plan: what to try.
        jobs: worker processes on this machine, one thread each.
        show: is called about twice a second with the progress over all workers.
    """
    begun = time.time()
    show = show or (lambda _: None)
    study = open_study(plan.tuning, plan.direction, plan.identity())
    revive(study)
    if plan.grid is not None:
        audit(study, plan.tuning, queue(plan))
    total = len(plan.points()) or plan.search
    while True:
        _work(jobs, tune, (plan,), lambda: show(_progress(study, "settings", total, jobs)))
        if len(counted(study)) >= total:
            break
    if not any(trial.state.name == "COMPLETE" for trial in counted(study)):
        raise LabError(
            f"{plan.out}: no setting came to its end: the loss became infinite or not a number in all of them"
        )
    best = winner(plan, study)
    last = None
    if plan.seeds:
        last = open_study(plan.final, plan.direction, final_identity(plan, best))
        _work(jobs, finish, (plan, best), lambda: show(_progress(last, "final runs", plan.seeds, jobs)))
    results = _results(plan, study, best, last, time.time() - begun)
    write_json(Path(plan.out) / "results.json", results)
    return results


def _work(jobs: int, target: Callable[..., None], arguments: tuple[Any, ...], look: Callable[[], None]) -> None:
    """Run so many workers to their end; one that is killed is replaced."""
    context = multiprocessing.get_context("spawn")

    def start() -> BaseProcess:
        process = context.Process(target=_worker, args=(os.getpid(), target, *arguments))
        with _uninterrupted():  # which the process inherits: it is its parent that is interrupted
            process.start()
        return process

    workers: list[BaseProcess] = []
    try:
        workers += [start() for _ in range(jobs)]
        while any(worker.is_alive() for worker in workers):
            look()
            time.sleep(PAUSE)
            for index, worker in enumerate(workers):
                if worker.exitcode is not None and worker.exitcode < 0:
                    workers[index] = start()
                elif worker.exitcode:
                    raise LabError("a worker of the sweep failed; what it says is above")
        look()
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _worker(parent: int, target: Callable[..., None], *arguments: Any) -> None:
    """The life of a worker: no longer than its parent's."""

    def follow() -> None:
        while os.getppid() == parent:
            time.sleep(PAUSE)
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    keep_freed_memory()
    try:
        target(*arguments)
    except LabError as error:
        sys.stderr.write(f"inface: {error}\n")
        sys.exit(error.exit_code)


def _progress(study: Study, stage: Literal["settings", "final runs"], total: int, jobs: int) -> Progress:
    trials = study.get_trials(deepcopy=False)
    ended = counted(study)
    running = [trial for trial in trials if trial.state.name == "RUNNING"]
    took = [trial.duration.total_seconds() for trial in ended if trial.duration is not None]
    values = [trial.value for trial in ended if trial.value is not None and trial.state.name == "COMPLETE"]
    best = None if not values else max(values) if study.direction.name == "MAXIMIZE" else min(values)
    left = statistics.fmean(took) * max(0, total - len(ended)) / max(1, len(running), jobs) if took else None
    pruned = sum(trial.state.name == "PRUNED" for trial in ended)
    return Progress(stage, len(ended), total, pruned, len(running), best, left)


def _results(plan: Plan, study: Study, best: Settings, last: Study | None, seconds: float) -> dict[str, Any]:
    """Everything that a sweep found, as plain data."""
    trials = [
        {
            "settings": point_of(trial.params),
            "state": trial.state.name.lower(),
            "epochs": max(trial.intermediate_values, default=0),
            "value": trial.value,
            "diverged": "diverged" in trial.user_attrs,
            "seconds": None if trial.duration is None else round(trial.duration.total_seconds(), 1),
        }
        for trial in counted(study)
    ]
    finals = sorted(counted(last), key=lambda trial: trial.params["seed"]) if last is not None else []
    return {
        "identity": plan.identity(),
        "direction": plan.direction,
        "best": best.to_dict(),
        "validation": study.best_value,
        "trials": trials,
        "final": [trial.user_attrs["summary"] for trial in finals if "summary" in trial.user_attrs],
        "trial_seconds": round(sum(trial.duration.total_seconds() for trial in counted(study) if trial.duration), 1),
        "seconds": round(seconds, 1),
    }
