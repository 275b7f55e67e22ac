"""The folder of a training run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import NoneType
from typing import Any

from torch import Tensor

from inface.lab.errors import ArgumentError, LabError
from inface.lab.experiments.sources import file_in, source_of
from inface.lab.files import each_line, read_json, read_tensors

from .settings import Settings

__all__ = ["FORMAT", "Run", "runs_in"]

FORMAT = 1

NUMBER = (int, float)
LAYER = {"percent": NUMBER, "exact_percent": NUMBER, "edges": NUMBER, "inputs": int, "nodes": int}

# The fields of a summary and their types; "*" stands for any name.
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
    """The run in a folder, or else the runs in its subfolders, sorted by name.

    >>> runs_in("no-such-folder")
    Traceback (most recent call last):
    inface.lab.errors.ArgumentError: no-such-folder: holds no run; wanted a folder written by inface train
    """
    inside = sorted(file.parent for file in Path(path).glob("*/config.json"))
    return [Run(path)] if (Path(path) / "config.json").is_file() or not inside else [Run(folder) for folder in inside]


class Run:
    """The files of a training run: settings, metrics, weights and summary.

    Files are read on first use. A missing or damaged file raises a :class:`LabError` that names it.

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
        """Whether the run has finished."""
        return self.summary_file.is_file()

    @cached_property
    def config(self) -> dict[str, Any]:
        """The contents of ``config.json``: everything needed to repeat the run."""
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
        """The settings, with an experiment whose file is safe to import. Importing it runs its code.

        A file that the caller names is trusted. A file that only ``config.json`` names must have the SHA-256 stored
        there. It must also lie below the working directory, and not in the run folder.

        Args:
            experiment: ``path/to/file.py:name``, instead of the one in ``config.json``.
            accept_changed_file: accept the file named in ``config.json`` with any SHA-256.
            named_by: the option that names a file, for error messages.
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
                f"{file}: is named by {self.path} and lies outside the working directory {here}; "
                f"if you trust its code, name it: {named_by}"
            )
        if place.is_relative_to(self.path.resolve()):
            raise ArgumentError(
                f"{file}: lies in the run folder {self.path} and may have come with it; "
                f"if you trust its code, name it: {named_by}"
            )
        found = source_of(settings.experiment)
        if found != settings.source and not accept_changed_file:
            wanted = settings.source or "the one stored in config.json, which has none"
            raise ArgumentError(
                f"{file}: has changed since {self.path} was started: its SHA-256 is {found}, wanted {wanted}; "
                f"to accept it: --accept-changed-file; to name another file: {named_by}"
            )
        return replace(settings, source=found)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The contents of ``summary.json``: the final metrics."""
        if not self.finished:
            raise ArgumentError(self._unfinished())
        summary = _versioned(self.summary_file)
        _check(self.summary_file, summary, SUMMARY)
        if summary["gap"] is not None:
            _check(self.summary_file, summary["gap"], GAP, "gap")
        for reading in ("kept_together", "kept_balanced"):  # older runs have none
            _check(self.summary_file, summary.get(reading, {}), SUMMARY["kept"], reading)
        return summary

    def each_record(self) -> Iterator[dict[str, Any]]:
        """The lines of ``metrics.jsonl``, in order, as a stream."""
        return each_line(self.metrics_file)

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """The lines of ``metrics.jsonl``, in order."""
        return list(self.each_record())

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
        raise LabError(f"{path}: has format {data.get('format')!r}, wanted {FORMAT}")
    return data


def _check(path: Path, found: Any, wanted: Any, name: str = "") -> None:
    """Raise an error unless the data has the wanted fields and types; the error names the file and the field."""
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
