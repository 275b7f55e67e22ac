"""One cell of Figures 1 and 2: settings chosen by successive halving, then trials with the chosen settings."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from inface.lab.experiments import Activation
from inface.lab.experiments.experiment import Data
from inface.lab.files import read_json, write_json, write_text
from inface.lab.runs.lock import config
from inface.lab.runs.settings import Method, Settings
from inface.lab.runs.setup import experiment_of, load_data, resolve, settings_for
from inface.lab.runs.stacking import Stack
from inface.lab.sweeps import paper_grid, quick_grid
from inface.lab.sweeps.grids import applied
from inface.version import __version__

from .published import METHODS
from .tasks import Meter, measured

__all__ = ["QUICK", "Cell", "CellTask", "Effort", "cells", "study_cell"]


@dataclass(frozen=True)
class Cell:
    """One kind of true network and noise, with one method.

    >>> Cell("relu", 5, 10.0, "sfw").name
    'relu-5-10-sfw'
    """

    activation: Activation
    edges: int
    snr: float
    method: Method

    @property
    def name(self) -> str:
        return f"{self.activation}-{self.edges}-{self.snr:g}-{self.method}"

    @classmethod
    def named(cls, name: str) -> Cell:
        """The cell with a name.

        >>> Cell.named("relu-5-10-sfw-if")
        Cell(activation='relu', edges=5, snr=10.0, method='sfw-if')
        """
        activation, edges, snr, method = name.split("-", 3)
        return cls(cast("Activation", activation), int(edges), float(snr), cast("Method", method))

    def settings(self, samples: int) -> Settings:
        """The settings of its networks before any are tuned."""
        options = {"edges": self.edges, "snr": self.snr, "activation": self.activation, "trial": 0, "samples": samples}
        return settings_for("synthetic", method=self.method, options=options, threads=1, measured_on="validation")


@dataclass(frozen=True)
class Effort:
    """How many settings, epochs, trials and samples.

    Attributes:
        rungs: the epochs of the rungs of successive halving; the last is the length of a run.
        one_in: one in this many settings goes on to the next rung.
        trials: the number of true networks, each with its data.
        samples: the number of training samples.
        together: the number of networks trained at once.
        quick: use the quick grid instead of the paper's.

    >>> Effort().ladder("sfw-if"), Effort().ladder("sgd")
    ([(1, 200), (4, 50), (25, 12)], [(25, 8)])
    """

    rungs: tuple[int, ...] = (1, 4, 25)
    one_in: int = 4
    trials: int = 5
    samples: int = 100_000
    together: int = 32
    quick: bool = False

    def points(self, method: Method, layers: int = 2) -> list[dict[str, Any]]:
        """The settings to try."""
        return (quick_grid if self.quick else paper_grid)(method, layers).points()

    def ladder(self, method: Method) -> list[tuple[int, int]]:
        """The epochs and the number of settings of each rung; a single rung if all settings are trained at once."""
        size = len(self.points(method))
        if size <= self.together:
            return [(self.rungs[-1], size)]
        return [(epochs, max(1, size // self.one_in**rung)) for rung, epochs in enumerate(self.rungs)]


QUICK = Effort(rungs=(2, 5), trials=3, samples=10_000, quick=True)


def cells(activation: Activation) -> list[Cell]:
    """The nine kinds of data of a figure, with the three methods.

    >>> len(cells("sigmoid"))
    27
    """
    kinds = itertools.product((5, 10, 15), (1.0, 5.0, 10.0), METHODS)
    return [Cell(activation, edges, snr, method) for edges, snr, method in kinds]


@dataclass(frozen=True)
class CellTask:
    """The task of studying a cell; its units are epochs of one network. With no trials it only chooses settings."""

    cell: Cell
    effort: Effort
    folder: Path

    @property
    def name(self) -> str:
        return self.cell.name

    @property
    def place(self) -> Path:
        return self.folder / self.cell.name

    @property
    def total(self) -> float:
        tried = sum(size * epochs for epochs, size in self.effort.ladder(self.cell.method))
        return tried + self.effort.trials * self.effort.rungs[-1]

    @property
    def file(self) -> Path:
        """The file of the result."""
        return self.place / ("result.json" if self.effort.trials else "settings.json")

    def finished(self) -> bool:
        return self.result() is not None

    def result(self) -> dict[str, Any] | None:
        """The result, if the cell is finished."""
        found = read_json(self.file) if self.file.is_file() else {}
        return found if found.get("effort") == _made(self.effort) else None

    def carry_out(self, meter: Meter) -> None:
        study_cell(self.cell, self.effort, self.folder, meter)


def study_cell(cell: Cell, effort: Effort, folder: Path, meter: Meter | None = None) -> dict[str, Any]:
    """Choose settings on the first trial's validation data; then train all trials with them and measure on test data.

    Progress is kept in files: after a kill, the same call continues.
    """
    task = CellTask(cell, effort, folder)
    found = task.result()
    if found is None:
        found = _Study(task, meter or Meter(task.place / "progress.json")).carry_out()
        write_json(task.file, found)
    return found


class _Study:
    """The study of a cell in progress."""

    def __init__(self, task: CellTask, meter: Meter) -> None:
        self.cell, self.effort, self.place, self.meter = task.cell, task.effort, task.place, meter
        self.cost = {"seconds": 0.0, "cpu_seconds": 0.0}
        self._samples: Data | None = None

    def carry_out(self) -> dict[str, Any]:
        best, tried = self._tuned()
        trials = [] if best is None else self._trials(best)
        return {
            "effort": _made(self.effort),
            "best": None if best is None else best.to_dict(),
            "tried": tried,
            "trials": trials,
            **{kind: round(seconds, 3) for kind, seconds in self.cost.items()},
        }

    # ------------------------------------------------------------------ choosing settings

    def _tuned(self) -> tuple[Settings | None, list[dict[str, Any]]]:
        """The best settings, or None if all networks diverged; and the scores of all settings."""
        base, ladder = self.cell.settings(self.effort.samples), self.effort.ladder(self.cell.method)
        layers = len(experiment_of(base).sets)
        left = [applied(base, point, layers) for point in self.effort.points(self.cell.method, layers)]
        tried: list[dict[str, Any]] = []
        for rung, (epochs, _) in enumerate(ladder):
            chosen = [replace(one, epochs=epochs) for one in left]
            scores: list[float | None] = []
            for number, part in enumerate(_groups(len(chosen), self.effort.together)):
                file, told = self.place / f"rung-{rung}-{number}.json", f"rung {rung + 1} of {len(ladder)}"
                scores += self._scored(chosen[part], file, told, last=rung == len(ladder) - 1)
            ranked = sorted(zip(scores, chosen, strict=True), key=lambda pair: _rank(pair[0]))
            tried += [{"epochs": epochs, **_point(settings), "mse": value} for value, settings in ranked]
            size = ladder[rung + 1][1] if rung + 1 < len(ladder) else 1
            left = [settings for value, settings in ranked[:size] if value is not None]
        return (left[0] if left else None), tried

    def _scored(self, settings: list[Settings], file: Path, told: str, *, last: bool) -> list[float | None]:
        """The validation errors of settings that are trained together; read from a file if it is there."""
        made = {"inface": __version__, "settings": [resolve(one).to_dict() for one in settings]}
        found = read_json(file) if file.is_file() else {}
        epochs = len(settings) * settings[0].epochs
        if found.get("made") == made:
            self.meter.found(epochs)
        else:
            with measured() as cost:
                stack = Stack(settings, samples=self._data(settings[0]))
                stack.train(self._watch(len(settings), told))
                scores = stack.scores()
                if last:
                    self._keep_best(stack, scores)
            found = {"made": made, "mse": scores, **cost}
            write_json(file, found)
        self._count(found)
        return list(found["mse"])

    def _keep_best(self, stack: Stack, scores: list[float | None]) -> None:
        """Store the best network of the last rung as trial 0, which has the same samples in the same order."""
        best = min(range(len(scores)), key=lambda index: _rank(scores[index]))
        summary = stack.summary(best, "test")
        if summary is not None:
            self._write(0, replace(stack.settings[best], measured_on="test"), summary, {})

    # ------------------------------------------------------------------ trials

    def _trials(self, best: Settings) -> list[dict[str, Any] | None]:
        """The test error and non-zero edges of every trial, None if it diverged; finished trials are not repeated."""
        options = dict(best.options)
        runs = {
            trial: resolve(replace(best, options={**options, "trial": trial}, measured_on="test"))
            for trial in range(self.effort.trials)
        }
        missing = [trial for trial, settings in runs.items() if not self._is_there(trial, settings)]
        self.meter.found((len(runs) - len(missing)) * best.epochs)
        for part in _groups(len(missing), self.effort.together):
            group = missing[part]
            with measured() as cost:
                stack = Stack([runs[trial] for trial in group])
                stack.train(self._watch(len(group), "trials"))
                summaries = [stack.summary(index) for index in range(len(group))]
            share = {kind: seconds / len(group) for kind, seconds in cost.items()}
            for trial, summary in zip(group, summaries, strict=True):
                self._write(trial, runs[trial], summary, share)
                if not self._is_there(trial, runs[trial]):
                    self._count(share)
        return [self._told(trial) for trial in runs]

    def _is_there(self, trial: int, settings: Settings) -> bool:
        files = [self.place / f"trial-{trial}" / name for name in ("config.json", "summary.json")]
        return all(file.is_file() for file in files) and read_json(files[0]) == config(settings)

    def _write(self, trial: int, settings: Settings, summary: dict[str, Any] | None, cost: dict[str, float]) -> None:
        """Write the folder of a run, for reports: settings and summary, no weights. A diverged run has no summary."""
        path = self.place / f"trial-{trial}"
        (path / "summary.json").unlink(missing_ok=True)
        write_json(path / "config.json", config(settings))
        write_text(path / "metrics.jsonl", "")
        if summary is not None and summary["kept"]["100"] is not None:
            write_json(path / "summary.json", {**summary, "cost": cost})

    def _told(self, trial: int) -> dict[str, Any] | None:
        file = self.place / f"trial-{trial}" / "summary.json"
        if not file.is_file():
            return None
        summary = read_json(file)
        self._count(summary["cost"])
        edges = [layer["edges"] for layer in summary["layers"].values()]
        return {"edges": edges, "mse": summary["kept"]["100"], "kept": summary["kept"], "gap": summary["gap"]}

    # ------------------------------------------------------------------ helpers

    def _data(self, settings: Settings) -> Data:
        if self._samples is None:
            self._samples = load_data(experiment_of(settings), None)
        return self._samples

    def _watch(self, networks: int, stage: str) -> Callable[[int, list[float]], None]:
        return lambda _epoch, _losses: self.meter.did(networks, stage)

    def _count(self, cost: dict[str, Any]) -> None:
        for kind in self.cost:
            self.cost[kind] += cost.get(kind, 0.0)


def _made(effort: Effort) -> dict[str, Any]:
    return {**asdict(effort), "rungs": list(effort.rungs), "inface": __version__}


def _point(settings: Settings) -> dict[str, Any]:
    return {name: settings.to_dict()[name] for name in ("lr", "radius")}


def _rank(value: float | None) -> float:
    return float("inf") if value is None else value


def _groups(count: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]
