"""Who may train in a folder, and what an earlier run in it means: the protocol between runs and their folders."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from inface.atomic import remove_partial
from inface.lab.errors import ArgumentError, LabError, Occupied
from inface.lab.experiments.sources import file_in
from inface.lab.files import read_json, write_json

from .run import FORMAT, Run
from .settings import Settings

__all__ = ["claimed", "clear", "config", "remove_leftovers", "settled"]

FILES = ("summary.json", "model.safetensors", "checkpoint.safetensors", "metrics.jsonl", "config.json")


@contextmanager
def claimed(path: Path) -> Iterator[None]:
    """The folder, made if it is not there, for this process alone; a folder that nothing was written into vanishes."""
    from filelock import FileLock, Timeout

    there = path.is_dir()
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path / ".lock", timeout=0)
        lock.acquire()
    except Timeout:
        raise Occupied(f"{path}: another process is training there") from None
    except OSError as error:
        raise ArgumentError(f"{path}: cannot be the folder of a run: {error.strerror}") from None
    try:
        yield
    finally:
        lock.release()
        if not there and all(file.name == ".lock" for file in path.iterdir()):
            (path / ".lock").unlink(missing_ok=True)
            path.rmdir()


def settled(
    path: Path, settings: Settings, *, resume: bool, overwrite: bool, accept_changed_file: bool = False
) -> tuple[Run | None, Settings]:
    """The run to continue, if there is one, with its settings; else none, with those given."""
    found = [name for name in FILES if (path / name).exists()]
    if not found:
        return None, settings
    ours = "config.json" in found and _is_ours(path / "config.json")
    if not ours:
        raise ArgumentError(f"{path}: holds {', '.join(found)} of something else; wanted a folder of its own for a run")
    if overwrite:
        return None, settings
    if not resume:
        raise ArgumentError(f"{path}: already holds a run; --resume continues it, --overwrite throws it away")
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
    """Throw away what an earlier run left; its settings last, so that a kill meanwhile leaves a run and not its ruins."""
    remove_leftovers(path)
    for name in FILES:
        (path / name).unlink(missing_ok=True)


def remove_leftovers(path: Path) -> None:
    """Remove what killed writes left in the folder of a run: our partial files, and safetensors' own of earlier versions."""
    for name in FILES:
        remove_partial(path, name)
    for file in path.glob(".tmp??????"):
        if _is_of_safetensors(file):
            file.unlink(missing_ok=True)


def _is_of_safetensors(file: Path) -> bool:
    """Whether a file is one that safetensors was writing: its name, and the beginning of a header or nothing yet."""
    if not re.fullmatch(r"\.tmp[A-Za-z0-9]{6}", file.name) or file.is_symlink() or not file.is_file():
        return False
    with file.open("rb") as opened:
        beginning = opened.read(9)
    return beginning in (b"", b"\0" * 9) or (beginning[4:8] == b"\0" * 4 and beginning[8:] in (b"", b"{"))


def config(settings: Settings) -> dict[str, Any]:
    """What ``config.json`` says of settings that are resolved: everything needed to run it again."""
    return {
        "format": FORMAT,
        **settings.to_dict(),
        "source": settings.source,
        "versions": {
            "inface": version("inface"),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
        },
    }


def _is_ours(file: Path) -> bool:
    """Whether a ``config.json`` was written by a run; a damaged one was, as far as anybody knows."""
    try:
        data = read_json(file)
    except LabError:
        return True
    return {"format", "experiment", "method"} <= data.keys()


def _same(settings: Settings, previous: Run, accept_changed_file: bool) -> Settings:
    """The settings of the run that is there, if they are those asked for; the file of an experiment may have moved."""
    begun = previous.settings
    if settings.source is not None and begun.experiment.rpartition(":")[2] == settings.experiment.rpartition(":")[2]:
        if begun.source != settings.source and not accept_changed_file:
            raise ArgumentError(
                f"{file_in(settings.experiment)}: has changed since {previous.path} was begun; "
                f"--overwrite starts it again, --accept-changed-file continues it with the file as it is"
            )
        begun = replace(begun, experiment=settings.experiment, source=settings.source)
    if settings.threads is None:
        settings = replace(settings, threads=begun.threads)
    for name, wanted in settings.to_dict().items():
        found = begun.to_dict()[name]
        if found != wanted:
            raise ArgumentError(
                f"{previous.path}: was begun with {name} {found}, wanted {wanted}; --overwrite starts it again"
            )
    return begun
