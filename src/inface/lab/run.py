"""The folder of a training run."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from .errors import ArgumentError, LabError
from .files import read_json, read_lines, read_tensors
from .settings import Settings

__all__ = ["FORMAT", "Run"]

FORMAT = 1


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
        beside = ("format", "source", "versions")
        try:
            return Settings.from_dict({key: value for key, value in self.config.items() if key not in beside})
        except (ArgumentError, TypeError) as error:
            raise LabError(f"{self.config_file}: {error}") from None

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The final metrics."""
        if not self.finished:
            raise ArgumentError(
                f"{self.path}: the run is not finished; inface train --resume --out {self.path} continues it"
            )
        return _versioned(self.summary_file)

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
        return read_tensors(self.model_file)[0]


def _versioned(path: Path) -> dict[str, Any]:
    data = read_json(path)
    if data.get("format") != FORMAT:
        raise LabError(f"{path}: is of format {data.get('format')!r}, wanted {FORMAT}")
    return data
