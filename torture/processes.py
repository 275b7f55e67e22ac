"""The processes of one case: forked after torch is imported, with limits, and killed at a random moment."""

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

SECONDS = 180  # after which a case counts as hanging
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
    """The moment at which a process kills itself.

    Attributes:
        folder: only files in this folder count.
        write: before the n-th time that it opens, renames, removes or flushes a file, or queries a database.
        gradient: after the n-th step of its optimizer.
        size: during a write, when a file would exceed this number of bytes.
    """

    folder: str
    write: int = 0
    gradient: int = 0
    size: int = 0

    def prepare(self) -> None:
        """Make this process kill itself at the moment."""
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
    """The end of a process: its exit code, negative for a signal, and its output."""

    code: int
    said: str

    @property
    def killed(self) -> bool:
        return self.code in (-signal.SIGKILL, -signal.SIGXFSZ)


def ended(work: Callable[..., int], *arguments: Any, blow: Blow | None = None, memory: int = 0) -> Ended:
    """Run a function in a new process; a process that hangs is an error.

    Args:
        work: the function; it returns the exit code.
        arguments: its arguments.
        blow: when the process kills itself.
        memory: the bytes that it may take beyond those at its start.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        said = Path(folder, "said")
        process = context.Process(target=_run, args=(said, work, arguments, blow, memory))
        process.start()
        process.join(SECONDS)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise AssertionError(f"it hangs: not done after {SECONDS} seconds")
        return Ended(process.exitcode, said.read_text(encoding="utf-8", errors="replace") if said.exists() else "")


def _run(said: Path, work: Callable[..., int], arguments: tuple[Any, ...], blow: Blow | None, memory: int) -> None:
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
    except BaseException:  # noqa: BLE001 - any error is a result of the case
        traceback.print_exc()
        code = 70
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
