"""The plan of a sweep, as plain data: the same for all workers on all machines."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from inface.lab.errors import ArgumentError
from inface.lab.experiments.experiment import Experiment
from inface.lab.experiments.sources import source_of
from inface.lab.runs.settings import Settings
from inface.lab.runs.setup import experiment_of
from inface.version import __version__

from .grids import MOST, Grid, applied, counted
from .halving import RULE, Halving, first_rung
from .study import Direction, Place
from .trials import Agenda

__all__ = ["Plan", "key_of", "parameters_of", "point_of"]


@dataclass(frozen=True)
class Plan:
    """A sweep: which settings to try, how to judge them, and how often to train the winner.

    Attributes:
        base: the settings of every run, except for those that are tried.
        out: the folder of the runs.
        storage: the place of the study: a folder, or the URL of a database.
        study: the name of the study.
        grid: the grid to try; None for a search.
        search: the number of settings that a search tries.
        pruning: whether bad settings are stopped early, by successive halving.
        first_rung: the epochs of the first rung of halving; None for 3, or 1/12 of the epochs if that is more.
        theta: settings are judged by the metric with this percentage of the edges.
        also: other percentages for which a winner is chosen from the same runs.
        together: whether these are the largest edges of all constrained layers together, not of each. The percentages
            may then change from one call to the next: they only judge what was trained.
        seeds: the number of final runs of the winner, on all training data.
        data: the data folder, if not the default.
    """

    base: Settings
    out: str
    storage: str
    study: str
    grid: Grid | None
    search: int = 0
    pruning: bool = True
    theta: int = 100
    seeds: int = 3
    data: str | None = None
    first_rung: int | None = None
    also: tuple[int, ...] = ()
    together: bool = False

    def __post_init__(self) -> None:
        for name, count in (("search", self.search), ("seeds", self.seeds)):
            if count > MOST:
                raise ArgumentError(f"{name}: wanted at most {MOST:,}, got {counted(count)}")
        if self.pruning and self.grid is not None and "seed" in self.grid.axes:
            raise ArgumentError(
                "seed: a grid with several seeds needs --no-pruning: a setting is judged by the mean over its seeds"
            )

        if self.pruning and self.together:
            raise ArgumentError("together: halving judges the edges of each layer; wanted pruning=False")

    @property
    def kept(self) -> Literal["kept", "kept_together"]:
        """The entry of a summary that settings are judged by."""
        return "kept_together" if self.together else "kept"

    @property
    def experiment(self) -> Experiment:
        return experiment_of(self.base)

    @property
    def direction(self) -> Direction:
        return "maximize" if self.experiment.metric.better == "higher" else "minimize"

    @property
    def layers(self) -> int:
        return len(self.experiment.sets)

    @property
    def tuning(self) -> Place:
        """The study that chooses the settings."""
        return Place(self.storage, self.study)

    def final(self, key: str) -> Place:
        """The study of the final runs of a winner."""
        return Place(self.storage, f"{self.study} final {key}")

    @property
    def halving(self) -> Halving | None:
        """Decides which settings are stopped early; None if none is."""
        if not self.pruning:
            return None
        return Halving(self.first_rung or first_rung(self.base.epochs), tuple(self.points()))

    @property
    def agenda(self) -> Agenda:
        """The settings to try.

        They are sorted by their keys, which is as good as random, so that the time left can be estimated.
        """
        if self.grid is None:
            return Agenda(draws=self.search)
        return Agenda({key: parameters_of(point) for key, point in sorted(self.points().items())})

    @property
    def final_agenda(self) -> Agenda:
        """The winner's final runs."""
        return Agenda({f"seed {seed}": {"seed": seed} for seed in range(self.seeds)})

    def identity(self) -> dict[str, Any]:
        """What must be the same for all processes that work on the study."""
        base = self.base.to_dict() | {"experiment": self.base.experiment.rpartition("/")[2]}
        identity = {
            "inface": __version__,
            "source": source_of(self.base.experiment, self.base.source),
            "base": {
                key: value for key, value in base.items() if key not in ("threads", "seed", "measured_on", "source")
            },
            "grid": None if self.grid is None else {key: list(values) for key, values in self.grid.axes.items()},
            "pruning": self.pruning,
            "theta": None if self.together else self.theta,
        }
        more: dict[str, Any] = {"halving": RULE if self.pruning else None}
        more |= {"first_rung": self.first_rung, "together": self.together or None}
        return {**identity, **{name: value for name, value in more.items() if value is not None}}

    def settings(self, point: dict[str, Any]) -> Settings:
        """The settings of one trial."""
        return replace(applied(self.base, point, self.layers), measured_on="validation", threads=1)

    def points(self) -> dict[str, dict[str, Any]]:
        """The points of the grid by their keys."""
        return {key_of(point): point for point in self.grid.points()} if self.grid else {}

    def folder(self, key: str) -> Path:
        """The folder of a trial's run. A retry has the same folder, so that it resumes."""
        return Path(self.out) / "trials" / key


def key_of(point: dict[str, Any]) -> str:
    """A short name of a point, the same on every machine.

    >>> key_of({"lr": 0.5, "radius": [1, 10]}) == key_of({"radius": [1, 10], "lr": 0.5})
    True
    """
    return hashlib.sha256(json.dumps(point, sort_keys=True).encode()).hexdigest()[:12]


def parameters_of(point: dict[str, Any]) -> dict[str, Any]:
    """A point as the parameters of a trial; lists become text, which Optuna's categories need.

    >>> parameters_of({"lr": 0.5, "radius": [1, 10]})
    {'lr': 0.5, 'radius': '[1, 10]'}
    """
    return {name: json.dumps(value) if isinstance(value, list | tuple) else value for name, value in point.items()}


def point_of(parameters: dict[str, Any]) -> dict[str, Any]:
    """The point of the grid or the search, from the parameters of a trial.

    >>> point_of({"lr": 0.5, "radius": "[1, 10]", "1 - momentum": 0.25})
    {'lr': 0.5, 'radius': [1, 10], 'momentum': 0.75}
    """
    lists = {name: json.loads(value) for name, value in parameters.items() if str(value).startswith("[")}
    point = {**parameters, **lists}
    if "1 - momentum" in point:
        point["momentum"] = 1 - point.pop("1 - momentum")
    return point
