"""The folder of a training run."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import NoneType
from typing import Any

from torch import Tensor

from inface.lab.errors import ArgumentError, LabError
from inface.lab.experiments.sources import file_in, source_of
from inface.lab.files import read_json, read_lines, read_tensors

from .settings import Settings

__all__ = ["FORMAT", "Run", "runs_in"]

FORMAT = 1

NUMBER = (int, float)
LAYER = {"percent": NUMBER, "exact_percent": NUMBER, "edges": NUMBER, "inputs": int, "nodes": int}

# What a summary must hold: kinds, mappings of the same for known names, and "*" for all other names.
SUMMARY: dict[str, Any] = {
    "experiment": str,
    "method": str,
    "metric": {"name": str, "unit": str, "better": str},
    "kept": {"*": (*NUMBER, NoneType)},
    "layers": {"*": LAYER},
    "network": {"percent": NUMBER, "count": int, "total": int},
    "gap": (dict, NoneType),
    "loss": (*NUMBER, NoneType),
    "steps": int,
    "epochs": int,
    "seconds": NUMBER,
}

GAP = {"exact": (*NUMBER, NoneType)}


def runs_in(path: str | Path) -> list[Run]:
    """The run of a folder, or the runs of the folders in it, by name.

    >>> runs_in("no-such-folder")
    Traceback (most recent call last):
    inface.lab.errors.ArgumentError: no-such-folder: holds no run; wanted a folder written by inface train
    """
    inside = sorted(file.parent for file in Path(path).glob("*/config.json"))
    return [Run(path)] if (Path(path) / "config.json").is_file() or not inside else [Run(folder) for folder in inside]


class Run:
    """What a training run wrote: how it was made, how it went, what came out.

    Everything is read when it is asked for; a file that is missing or damaged is a :class:`LabError` that names it.

    Args:
        path: the folder given to ``inface train --out``.

    >>> Run("no-such-folder")
    Traceback (most recent call last):
    inface.lab.errors.ArgumentError: no-such-folder: holds no run; wanted a folder written by inface train
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.config_file.is_file():
            raise ArgumentError(f"{self.path}: holds no run; wanted a folder written by inface train")

    @property
    def config_file(self) -> Path:
        return self.path / "config.json"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def model_file(self) -> Path:
        return self.path / "model.safetensors"

    @property
    def summary_file(self) -> Path:
        return self.path / "summary.json"

    @property
    def checkpoint_file(self) -> Path:
        return self.path / "checkpoint.safetensors"

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.summary_file.is_file()

    @cached_property
    def config(self) -> dict[str, Any]:
        """How the run was made: everything needed to run it again."""
        return _versioned(self.config_file)

    @property
    def settings(self) -> Settings:
        """The settings of the run."""
        beside = ("format", "earlier_sources", "versions")
        try:
            return Settings.from_dict({key: value for key, value in self.config.items() if key not in beside})
        except ArgumentError as error:
            raise LabError(f"{self.config_file}: {error}") from None

    def trusted_settings(
        self,
        experiment: str | None = None,
        *,
        accept_changed_file: bool = False,
        named_by: str = "--experiment FILE:NAME",
    ) -> Settings:
        """The settings with an experiment whose file may be imported, which runs its code.

        What the caller names as ``experiment`` is the caller's choice. A file that nobody but the folder names must have the
        SHA-256 that the folder keeps, and lie below the present folder, not in the run's own.

        Args:
            experiment: ``path/to/file.py:name``, if the folder is not to say which.
            accept_changed_file: take the file that the folder names as it is, whatever its SHA-256.
            named_by: how the caller's user names a file, for messages.
        """
        settings = self.settings
        if experiment is not None:
            return replace(settings, experiment=experiment, source=None)
        file = file_in(settings.experiment)
        if file is None:
            return settings
        here, place = Path.cwd().resolve(), _resolved(file)
        if not place.is_relative_to(here):
            raise ArgumentError(
                f"{file}: {self.path} names it, and it is outside of the present folder {here}; "
                f"if its code may run, name it: {named_by}"
            )
        if place.is_relative_to(self.path.resolve()):
            raise ArgumentError(
                f"{file}: may have come with the folder {self.path}; if its code may run, name it: {named_by}"
            )
        found = source_of(settings.experiment)
        if found != settings.source and not accept_changed_file:
            told = f"its SHA-256 is {found}, wanted {settings.source or 'one that the run keeps, and it keeps none'}"
            raise ArgumentError(
                f"{file}: has changed since {self.path} was begun: {told}; "
                f"to use it as it is: --accept-changed-file; to name another file: {named_by}"
            )
        return replace(settings, source=found)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The final metrics."""
        if not self.finished:
            raise ArgumentError(self._unfinished())
        summary = _versioned(self.summary_file)
        _check(self.summary_file, summary, SUMMARY)
        if summary["gap"] is not None:
            _check(self.summary_file, summary["gap"], GAP, "gap")
        together = summary.get("kept_together", {})  # older runs have none
        _check(self.summary_file, together, SUMMARY["kept"], "kept_together")
        return summary

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """The lines of ``metrics.jsonl``, in order."""
        return read_lines(self.metrics_file)

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The series over gradients."""
        return [record for record in self.records if record.get("kind") == "step"]

    @property
    def epochs(self) -> list[dict[str, Any]]:
        """The series over epochs."""
        return [record for record in self.records if record.get("kind") == "epoch"]

    def weights(self) -> dict[str, Tensor]:
        """The trained network's parameters and buffers, by name."""
        if not self.model_file.is_file() and not self.finished:
            raise ArgumentError(self._unfinished())
        return read_tensors(self.model_file)[0]

    def _unfinished(self) -> str:
        return f"{self.path}: the run is not finished; inface train --resume --out {self.path} continues it"


def _resolved(file: Path) -> Path:
    """Where a file is, with links and ``..`` followed."""
    try:
        return file.resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise ArgumentError(f"{file}: cannot be found: {error}") from None


def _versioned(path: Path) -> dict[str, Any]:
    data = read_json(path)
    if data.get("format") != FORMAT:
        raise LabError(f"{path}: is of format {data.get('format')!r}, wanted {FORMAT}")
    return data


def _check(path: Path, found: Any, wanted: Any, name: str = "") -> None:
    """Refuse data that is not made as it should be, naming the file and the place in it."""
    if isinstance(wanted, dict):
        if not isinstance(found, dict):
            raise LabError(f"{path}: {name}: wanted a mapping, got {found!r}")
        for key, kind in wanted.items():
            if key == "*":
                for other, value in found.items():
                    _check(path, value, kind, f"{name}.{other}")
            elif key not in found:
                raise LabError(f"{path}: {f'{name}.{key}'.lstrip('.')}: is missing")
            else:
                _check(path, found[key], kind, f"{name}.{key}".lstrip("."))
    elif not isinstance(found, wanted) or isinstance(found, bool):
        kinds = wanted if isinstance(wanted, tuple) else (wanted,)
        names = " or ".join(kind.__name__ for kind in kinds)
        raise LabError(f"{path}: {name}: wanted {names}, got {found!r}")
