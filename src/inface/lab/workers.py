"""Worker processes: start them, watch them, and replace those that are killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

import torch

from .errors import LabError
from .memory import keep_freed_memory

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext
    from multiprocessing.process import BaseProcess

__all__ = ["MOST_KILLS", "KillCounter", "run_workers"]

MOST_KILLS = 3  # kills without progress before we give up
PAUSE = 0.5  # seconds between two looks at the workers
PRELOADED = ["inface.lab.sweeps.worker", "inface.lab.paper.tasks", "optuna", "sklearn.datasets", "torch._dynamo"]


class KillCounter:
    """Counts workers that were killed at the same point, that is, without progress in between.

    >>> kills = KillCounter()
    >>> [kills.count(epoch) for epoch in (0, 0, 7)]
    [1, 2, 1]
    """

    def __init__(self) -> None:
        self.kills: dict[Hashable, int] = {}

    def count(self, reached: Hashable) -> int:
        """Count a kill; return how many there were at this point."""
        self.kills[reached] = self.kills.get(reached, 0) + 1
        return self.kills[reached]


def run_workers(
    jobs: int,
    target: Callable[..., None],
    arguments: tuple[Any, ...],
    *,
    look: Callable[[], None],
    killed: Callable[[int, int], None],
) -> None:
    """Run worker processes, one thread each, until all have finished. A killed worker is replaced.

    Args:
        jobs: the number of workers.
        target: the function that each worker calls; a LabError in one of them ends all.
        arguments: the arguments of the target.
        look: called about twice a second.
        killed: called with the process id and the signal of a killed worker; it may raise to give up.
    """
    context = _context()

    def start() -> BaseProcess:
        args = (dict(os.environ), target, *arguments)
        process = context.Process(target=_run_worker, args=args)  # type: ignore[attr-defined]
        with _uninterrupted():  # inherited by the worker: Ctrl-C is for its parent
            process.start()
        return process

    workers: list[BaseProcess] = []
    try:
        workers += [start() for _ in range(jobs)]
        while any(worker.exitcode != 0 for worker in workers):
            look()
            wait([worker.sentinel for worker in workers if worker.exitcode is None], PAUSE)
            for index, worker in enumerate(workers):
                if worker.exitcode is not None and worker.exitcode < 0:
                    killed(worker.pid or 0, -worker.exitcode)
                    workers[index] = start()
                elif worker.exitcode:
                    raise LabError("a worker failed; its error is above")
        look()
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join()


def _context() -> BaseContext:
    """How to start workers. On Linux they are forked from a server that has imported torch once for all of them."""
    if sys.platform != "linux":  # elsewhere it is not safe to fork after torch has started its threads
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


@contextmanager
def _uninterrupted() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _run_worker(environment: dict[str, str], target: Callable[..., None], *arguments: Any) -> None:
    """Run the target in the parent's current environment; exit when the parent does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.clear()
    os.environ.update(environment)

    def follow() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    keep_freed_memory()
    torch.set_num_threads(1)
    try:
        target(*arguments)
    except LabError as error:
        sys.stderr.write(f"inface: {error}\n")
        sys.exit(error.exit_code)
