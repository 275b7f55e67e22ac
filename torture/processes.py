"""Processes of one case: forked from one that has imported torch, limited, and killed at a moment that is drawn."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Blow", "Ended", "ended"]

SECONDS = 180  # after which a case hangs
PRELOADED = [
    "torture.__main__",
    "inface.cli.app",
    "inface.lab.sweeps.worker",
    "optuna",
    "sklearn.datasets",
    "torch._dynamo",
]


@dataclass(frozen=True)
class Blow:
    """When a process kills itself.

    Attributes:
        folder: whose files count.
        write: before it opens, renames, removes or flushes a file for the n-th time, or sends the n-th statement to a database.
        gradient: after the n-th step of its optimizer.
        size: in the middle of a write, as soon as a file would have more bytes.
    """

    folder: str
    write: int = 0
    gradient: int = 0
    size: int = 0

    def prepare(self) -> None:
        """Have this process die when the moment comes."""
        from sqlalchemy import Engine, event  # noqa: PLC0415
        from torch.optim.optimizer import register_optimizer_step_post_hook  # noqa: PLC0415

        writes, steps = itertools.count(1), itertools.count(1)

        def strike(numbers: itertools.count[int], at: int) -> None:
            if next(numbers) == at:
                os.kill(os.getpid(), signal.SIGKILL)

        def heard(name: str, details: tuple[Any, ...]) -> None:
            if name in ("open", "os.rename", "os.remove") and str(details[0]).startswith(self.folder):
                strike(writes, self.write)

        def flushed(handle: Any) -> None:
            strike(writes, self.write)
            fsync(handle)

        fsync, os.fsync = os.fsync, flushed  # type: ignore[assignment]
        sys.addaudithook(heard)
        register_optimizer_step_post_hook(lambda *_: strike(steps, self.gradient))
        for moment in ("before_cursor_execute", "after_cursor_execute", "commit"):
            event.listen(Engine, moment, lambda *_: strike(writes, self.write))
        if self.size:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.size, resource.RLIM_INFINITY))


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit code, negative for a signal, and what it said."""

    code: int
    said: str

    @property
    def killed(self) -> bool:
        return self.code in (-signal.SIGKILL, -signal.SIGXFSZ)


def ended(work: Callable[..., int], *arguments: Any, blow: Blow | None = None, memory: int = 0) -> Ended:
    """Do something in a process of its own; one that hangs is an error.

    Args:
        work: returns the exit code.
        arguments: of it.
        blow: when it kills itself.
        memory: how many bytes more it may take than it has at its start.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        said = Path(folder, "said")
        process = context.Process(target=_life, args=(said, work, arguments, blow, memory))
        process.start()
        process.join(SECONDS)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise AssertionError(f"it hangs: not done after {SECONDS} seconds")
        return Ended(process.exitcode, said.read_text(encoding="utf-8", errors="replace") if said.exists() else "")


def _life(said: Path, work: Callable[..., int], arguments: tuple[Any, ...], blow: Blow | None, memory: int) -> None:
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)
    handle = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    if memory:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + memory, resource.RLIM_INFINITY))
    if blow is not None:
        blow.prepare()
    try:
        code = work(*arguments)
    except BaseException:  # noqa: BLE001 - whatever it is, it is what the case came to
        traceback.print_exc()
        code = 70
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
