"""Worker processes: started, watched, and started again if they are killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

import torch

from .errors import LabError
from .memory import keep_freed_memory

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext
    from multiprocessing.process import BaseProcess

__all__ = ["work"]

PAUSE = 0.5  # seconds between two looks at the workers, at most
PRELOADED = ["inface.lab.sweeps.worker", "inface.lab.paper.tasks", "optuna", "sklearn.datasets", "torch._dynamo"]


def work(
    jobs: int,
    target: Callable[..., None],
    arguments: tuple[Any, ...],
    *,
    look: Callable[[], None],
    killed: Callable[[int, int], None],
) -> None:
    """Run so many workers of one thread each to their end; one that is killed is replaced.

    Args:
        jobs: how many.
        target: what they do; a LabError in one of them ends all.
        arguments: of the target.
        look: is called about twice a second.
        killed: is called with the number of a process that was killed and of the signal; it raises if that is enough.
    """
    context = _context()

    def start() -> BaseProcess:
        process = context.Process(target=_life, args=(dict(os.environ), target, *arguments))  # type: ignore[attr-defined]
        with _uninterrupted():  # which the process inherits: it is its parent that is interrupted
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
                    raise LabError("a worker failed; what it says is above")
        look()
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join()


def _context() -> BaseContext:
    """How workers are started: forked from a process that has imported torch once for all of them, where there is fork."""
    if sys.platform != "linux":  # elsewhere a fork after torch's threads have started is not safe
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


def _life(environment: dict[str, str], target: Callable[..., None], *arguments: Any) -> None:
    """The life of a worker: in the environment of its parent as it is now, and no longer than its parent's."""
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
