"""Long computations dealt out to worker processes: each is done once, whoever is killed, and goes on where it was."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from inface.lab.errors import LabError
from inface.lab.files import read_json, write_json
from inface.lab.workers import work

__all__ = ["Meter", "Progress", "Task", "carry_out", "measured"]

PATIENCE = 1.0  # seconds until a worker looks again at what others are doing
DEATHS = 3  # of workers in a row, without anything done meanwhile, and it is no accident


class Task(Protocol):
    """Something long, as plain data that can be given to a process."""

    @property
    def name(self) -> str:
        """What people call it."""

    @property
    def place(self) -> Path:
        """Its folder; nobody else's."""

    @property
    def total(self) -> float:
        """How much there is to do, in units of its own that all tasks share."""

    def finished(self) -> bool:
        """Whether it is done."""

    def carry_out(self, meter: Meter) -> None:
        """Do what is left of it."""


class Meter:
    """How far a task is, in a file for others to read.

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
        """So much was done already."""
        self.done += amount

    def did(self, amount: float, stage: str) -> None:
        """So much was done now, of this part of the task."""
        self.done += amount
        self.by_this += amount
        write_json(self.file, {"done": self.done, "by_this": self.by_this, "stage": stage})


@dataclass(frozen=True)
class Progress:
    """How far all tasks are.

    Attributes:
        done: tasks that are finished.
        total: of them.
        part: of all the work.
        stages: where the unfinished ones are, those that are begun.
        seconds_left: by how long it took so far; None while nobody knows.
    """

    done: int
    total: int
    part: float
    stages: tuple[str, ...]
    seconds_left: float | None


def carry_out(tasks: Sequence[Task], *, jobs: int = 1, show: Callable[[Progress], None] | None = None) -> None:
    """Carry out all tasks, in so many processes of one thread each; it can be killed at any moment, and called again.

    Several calls, on several machines that share a folder, may work on the same tasks.

    Args:
        tasks: in the order in which they are begun.
        jobs: worker processes.
        show: is called about twice a second.
    """
    watch = _Watch(tasks)
    show = show or (lambda _: None)
    if watch.left:
        work(
            min(jobs, len(watch.left)),
            _carry_out_here,
            (tasks,),
            look=lambda: show(watch.progress()),
            killed=_Deaths(watch.done).note,
        )
    show(watch.progress())


@contextmanager
def measured() -> Iterator[dict[str, float]]:
    """The seconds by the clock, and those of the processor, that something takes.

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
        """How much of the work this call has done."""
        return sum(found["by_this"] for task in self.tasks if (found := _read(task)))

    def progress(self) -> Progress:
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
        return Progress(len(self.tasks) - len(self.left), len(self.tasks), 1 - rest / total, tuple(stages), left)


def _meter_file(task: Task) -> Path:
    return task.place / "progress.json"


def _read(task: Task) -> dict[str, Any] | None:
    try:
        return read_json(_meter_file(task))
    except LabError:  # not begun
        return None


class _Deaths:
    """How often workers were killed without anything done meanwhile."""

    def __init__(self, done: Callable[[], float]) -> None:
        self.done = done
        self.times, self.reached = 0, 0.0

    def note(self, *_: int) -> None:
        """A worker was killed."""
        self.times, self.reached = (self.times + 1 if self.done() == self.reached else 1), self.done()
        if self.times == DEATHS:
            raise LabError(f"{self.times} workers were killed one after the other; is there memory for them?")


def _carry_out_here(tasks: Sequence[Task]) -> None:
    """Take tasks that nobody has until all are finished: whoever has one may die."""
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
