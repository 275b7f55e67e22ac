"""Long tasks for worker processes. Each is done once, and continues after a kill."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from inface.lab.errors import LabError
from inface.lab.files import read_json, write_json
from inface.lab.workers import MOST_KILLS, KillCounter, run_workers

__all__ = ["Meter", "Task", "TaskProgress", "carry_out", "measured"]

PATIENCE = 1.0  # seconds until a worker looks again for a free task


class Task(Protocol):
    """A long computation, as plain data that can be sent to a worker process."""

    @property
    def name(self) -> str:
        """Its name in progress lines."""

    @property
    def place(self) -> Path:
        """Its own folder."""

    @property
    def total(self) -> float:
        """The amount of work, in a unit that all tasks share."""

    def finished(self) -> bool:
        """Whether it is done."""

    def carry_out(self, meter: Meter) -> None:
        """Do the rest of the work."""


class Meter:
    """The progress of a task, in a file that other processes read.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     meter = Meter(Path(folder, "progress.json"))
    ...     meter.found(10.0)
    ...     meter.did(2.0, "trials")
    ...     read_json(Path(folder, "progress.json"))
    {'done': 12.0, 'by_this': 2.0, 'stage': 'trials'}
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.done = self.by_this = 0.0

    def found(self, amount: float) -> None:
        """Count work that was done by an earlier call."""
        self.done += amount

    def did(self, amount: float, stage: str) -> None:
        """Count work that was done now, in this stage of the task."""
        self.done += amount
        self.by_this += amount
        write_json(self.file, {"done": self.done, "by_this": self.by_this, "stage": stage})


@dataclass(frozen=True)
class TaskProgress:
    """The progress of all tasks.

    Attributes:
        done: the number of finished tasks.
        total: the number of tasks.
        part: the finished part of the work, from 0 to 1.
        stages: the stages of the running tasks.
        seconds_left: an estimate from the time so far; None if there is none yet.
    """

    done: int
    total: int
    part: float
    stages: tuple[str, ...]
    seconds_left: float | None


def carry_out(tasks: Sequence[Task], *, jobs: int = 1, show: Callable[[TaskProgress], None] | None = None) -> None:
    """Carry out all tasks in worker processes. It can be killed at any moment; the same call continues.

    Several calls, also on several machines that share a folder, may work on the same tasks.

    Args:
        tasks: the tasks, in the order in which they are started.
        jobs: the number of worker processes, one thread each.
        show: called about twice a second with the progress.
    """
    watch = _Watch(tasks)
    show = show or (lambda _: None)
    if watch.left:
        kills = KillCounter()

        def killed(_pid: int, _signal: int) -> None:
            if kills.count(watch.done()) >= MOST_KILLS:
                raise LabError(f"{MOST_KILLS} workers were killed one after the other; is there memory for them?")

        run_workers(
            min(jobs, len(watch.left)),
            _carry_out_here,
            (tasks,),
            look=lambda: show(watch.progress()),
            killed=killed,
        )
    show(watch.progress())


@contextmanager
def measured() -> Iterator[dict[str, float]]:
    """Measure the wall-clock and CPU seconds of a block.

    >>> with measured() as cost:
    ...     _ = sum(range(1000))
    >>> list(cost)
    ['seconds', 'cpu_seconds']
    """
    found: dict[str, float] = {}
    begun = time.perf_counter(), time.process_time()
    yield found
    found |= {"seconds": time.perf_counter() - begun[0], "cpu_seconds": time.process_time() - begun[1]}


class _Watch:
    """The progress of tasks, from their files."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.left = {task.name: task for task in tasks if not task.finished()}
        self.tasks = tasks
        self.begun = time.monotonic()
        for task in self.left.values():
            _meter_file(task).unlink(missing_ok=True)  # of an earlier call, which may have been killed

    def done(self) -> float:
        """The amount of work that this call has done."""
        return sum(found["by_this"] for task in self.tasks if (found := _read(task)))

    def progress(self) -> TaskProgress:
        for task in list(self.left.values()):
            if task.finished():
                del self.left[task.name]
        total, rest, stages = sum(task.total for task in self.tasks), 0.0, []
        for task in self.left.values():
            found = _read(task)
            rest += max(0.0, task.total - found["done"]) if found else task.total
            if found:
                stages.append(f"{task.name}: {found['stage']}")
        done = self.done()
        left = (time.monotonic() - self.begun) * rest / done if done else None
        return TaskProgress(len(self.tasks) - len(self.left), len(self.tasks), 1 - rest / total, tuple(stages), left)


def _meter_file(task: Task) -> Path:
    return task.place / "progress.json"


def _read(task: Task) -> dict[str, Any] | None:
    try:
        return read_json(_meter_file(task))
    except LabError:  # not begun
        return None


def _carry_out_here(tasks: Sequence[Task]) -> None:
    """Take unlocked tasks until all are finished; the lock of a killed worker is free again."""
    from filelock import FileLock, Timeout

    while left := [task for task in tasks if not task.finished()]:
        waiting = True
        for task in left:
            task.place.mkdir(parents=True, exist_ok=True)
            try:
                with FileLock(task.place / ".task", timeout=0):
                    if not task.finished():
                        task.carry_out(Meter(_meter_file(task)))
                    waiting = False
            except Timeout:
                continue
        if waiting:
            time.sleep(PATIENCE)
