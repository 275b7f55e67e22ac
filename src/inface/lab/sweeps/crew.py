"""Worker processes: started, watched, and started again if they are killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from inface.lab.errors import LabError
from inface.lab.memory import keep_freed_memory

from .plan import point_of
from .trials import counted, key_in

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from optuna.study import Study
    from optuna.trial import FrozenTrial

__all__ = ["work"]

PAUSE = 0.5  # seconds between two looks at the workers
DEATHS = 3  # on one setting, which gets no further meanwhile, and it is its own fault


def work(
    jobs: int, target: Callable[..., None], arguments: tuple[Any, ...], study: Study, look: Callable[[], None]
) -> None:
    """Run so many workers to their end; one that is killed is replaced, unless it is always by the same setting.

    Args:
        jobs: how many.
        target: what they do.
        arguments: of the target; first the plan.
        study: what they work on.
        look: is called about twice a second.
    """
    context = multiprocessing.get_context("spawn")

    def start() -> BaseProcess:
        process = context.Process(target=_life, args=(os.getpid(), target, *arguments))
        with _uninterrupted():  # which the process inherits: it is its parent that is interrupted
            process.start()
        return process

    deaths = _Deaths(study)
    workers: list[BaseProcess] = []
    try:
        workers += [start() for _ in range(jobs)]
        while any(worker.exitcode != 0 for worker in workers):
            look()
            time.sleep(PAUSE)
            for index, worker in enumerate(workers):
                if worker.exitcode is not None and worker.exitcode < 0:
                    sys.stderr.write(f"inface: {deaths.note(worker.pid or 0, -worker.exitcode)}\n")
                    workers[index] = start()
                elif worker.exitcode:
                    raise LabError("a worker of the sweep failed; what it says is above")
        look()
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join()


class _Deaths:
    """How often workers of this process were killed while a setting, or all of the study, got no further."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.times: dict[tuple[Any, int], int] = {}

    def note(self, pid: int, number: int) -> str:
        """A worker was killed: what to say about it; an error if it is the same again and again."""
        trials = self.study.get_trials(deepcopy=False)
        last = next((trial for trial in reversed(trials) if _is_by(trial, pid)), None)
        if last is None or last.state.name not in ("RUNNING", "FAIL"):
            key, told = None, "before it took a setting"
            reached = sum(len(trial.intermediate_values) for trial in trials) + len(counted(self.study))
        else:
            key, told = key_in(last), f"at {_told(last)}"
            reached = max((epoch for t in trials if key_in(t) == key for epoch in t.intermediate_values), default=0)
        self.times[key, reached] = times = self.times.get((key, reached), 0) + 1
        if times >= DEATHS:
            raise LabError(
                f"a worker was killed by {_name(number)} {told}, as {times - 1} were before it, and it gets no further; "
                f"is there memory for it, and for so many --jobs?"
            )
        return f"a worker was killed by {_name(number)} {told}; another takes its place"


def _is_by(trial: FrozenTrial, pid: int) -> bool:
    worker = trial.user_attrs.get("worker", {})
    return bool(worker.get("host") == socket.gethostname() and worker.get("pid") == pid)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _told(trial: FrozenTrial) -> str:
    point = point_of(trial.params)
    shown = ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in point.items()
    )
    return shown or f"the setting {key_in(trial)}"


@contextmanager
def _uninterrupted() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _life(parent: int, target: Callable[..., None], *arguments: Any) -> None:
    """The life of a worker: no longer than its parent's."""

    def follow() -> None:
        while os.getppid() == parent:
            time.sleep(PAUSE)
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    keep_freed_memory()
    try:
        with arguments[0].tuning.reached():
            target(*arguments)
    except LabError as error:
        sys.stderr.write(f"inface: {error}\n")
        sys.exit(error.exit_code)
