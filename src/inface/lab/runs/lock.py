"""The lock of a run folder, and what to do with an earlier run in it: resume, overwrite or refuse."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from inface.atomic import remove_partial
from inface.lab.errors import ArgumentError, LabError, Occupied
from inface.lab.experiments.sources import file_in
from inface.lab.files import read_json, write_json
from inface.version import versions

from .run import FORMAT, Run
from .settings import Settings

__all__ = ["clear", "config", "locked", "previous_run", "remove_leftovers"]

FILES = ("summary.json", "model.safetensors", "checkpoint.safetensors", "metrics.jsonl", "config.json")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Create the folder and lock it for this process; remove a created folder again if it stays empty."""
    from filelock import FileLock, Timeout

    there = path.is_dir()
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path / ".lock", timeout=0)
        lock.acquire()
    except Timeout:
        raise Occupied(f"{path}: is locked: another process is training there") from None
    except OSError as error:
        raise ArgumentError(f"{path}: cannot be used as a run folder: {error.strerror}") from None
    try:
        yield
    finally:
        lock.release()
        if not there and all(file.name == ".lock" for file in path.iterdir()):
            (path / ".lock").unlink(missing_ok=True)
            path.rmdir()


def previous_run(
    path: Path, settings: Settings, *, resume: bool, overwrite: bool, accept_changed_file: bool = False
) -> tuple[Run | None, Settings]:
    """The run to resume and its settings; None and the given settings if a new run starts."""
    found = [name for name in FILES if (path / name).exists()]
    if not found:
        return None, settings
    ours = "config.json" in found and _is_ours(path / "config.json")
    if not ours:
        raise ArgumentError(f"{path}: not a run folder (found {', '.join(found)}); choose an empty one")
    if overwrite:
        return None, settings
    if not resume:
        raise ArgumentError(f"{path}: already holds a run; --resume continues it, --overwrite deletes it")
    previous = Run(path)
    settings = _same(settings, previous, accept_changed_file)
    remove_leftovers(path)
    before = previous.config.get("source")
    if settings.source != before and not previous.finished:
        earlier = previous.config.get("earlier_sources", [])
        if not isinstance(earlier, list):
            raise LabError(f"{previous.config_file}: earlier_sources: wanted a list, got {earlier!r}")
        write_json(previous.config_file, {**config(settings), "earlier_sources": [*earlier, before]})
    return Run(path), settings


def clear(path: Path) -> None:
    """Delete the files of an earlier run; ``config.json`` last, so that a kill leaves a folder that is still a run."""
    remove_leftovers(path)
    for name in FILES:
        (path / name).unlink(missing_ok=True)


def remove_leftovers(path: Path) -> None:
    """Remove the partial files of killed writes: ours, and those of safetensors from earlier versions."""
    for name in FILES:
        remove_partial(path, name)
    for file in path.glob(".tmp??????"):
        if _is_of_safetensors(file):
            file.unlink(missing_ok=True)


def _is_of_safetensors(file: Path) -> bool:
    """Whether a file is a partial file of safetensors, by its name and the first bytes of its header."""
    if not re.fullmatch(r"\.tmp[A-Za-z0-9]{6}", file.name) or file.is_symlink() or not file.is_file():
        return False
    with file.open("rb") as opened:
        beginning = opened.read(9)
    return beginning in (b"", b"\0" * 9) or (beginning[4:8] == b"\0" * 4 and beginning[8:] in (b"", b"{"))


def config(settings: Settings) -> dict[str, Any]:
    """The contents of ``config.json`` for resolved settings: everything needed to repeat the run."""
    return {
        "format": FORMAT,
        **settings.to_dict(),
        "source": settings.source,
        "versions": {**versions("inface", "torch", "python"), "platform": platform.platform()},
    }


def _is_ours(file: Path) -> bool:
    """Whether a ``config.json`` was written by a run; a damaged one counts as one."""
    try:
        data = read_json(file)
    except LabError:
        return True
    return {"format", "experiment", "method"} <= data.keys()


def _same(settings: Settings, previous: Run, accept_changed_file: bool) -> Settings:
    """The settings of the earlier run, which must equal the given ones; the file of its experiment may have moved."""
    begun = previous.settings
    if settings.source is not None and begun.experiment.rpartition(":")[2] == settings.experiment.rpartition(":")[2]:
        if begun.source != settings.source and not accept_changed_file:
            raise ArgumentError(
                f"{file_in(settings.experiment)}: has changed since {previous.path} was started; "
                f"--overwrite starts again, --accept-changed-file continues with the changed file"
            )
        begun = replace(begun, experiment=settings.experiment, source=settings.source)
    if settings.threads is None:
        settings = replace(settings, threads=begun.threads)
    for name, wanted in settings.to_dict().items():
        found = begun.to_dict()[name]
        if found != wanted:
            raise ArgumentError(
                f"{previous.path}: was started with {name} {found}, wanted {wanted}; --overwrite starts again"
            )
    return begun
