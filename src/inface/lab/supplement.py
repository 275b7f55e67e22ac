"""The supplement's experiments on synthetic data: Figures 1 to 4 of the paper."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from .building import resolve, settings_for
from .claiming import config
from .errors import LabError
from .files import read_json, write_json, write_text
from .names import Activation
from .paper import METHODS
from .run import Run
from .settings import Method, Settings
from .stacking import train_together
from .sweeps import paper_grid, quick_grid
from .sweeps.grids import applied
from .training import train

__all__ = ["Cell", "Effort", "boxes", "cells", "evolution", "study_cell"]


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

    def settings(self, samples: int) -> Settings:
        """How its networks are trained while settings are chosen."""
        options = {"edges": self.edges, "snr": self.snr, "activation": self.activation, "trial": 0, "samples": samples}
        return settings_for("synthetic", method=self.method, options=options, threads=1, measured_on="validation")


@dataclass(frozen=True)
class Effort:
    """How much is done.

    Attributes:
        rungs: epochs after which a third of the settings goes on; the last are those of a run.
        trials: true networks and data sets.
        samples: to train on.
        together: networks that are trained at once.
        quick: a corner of the grid.
    """

    rungs: tuple[int, ...] = (2, 6, 25)
    trials: int = 5
    samples: int = 100_000
    together: int = 32
    quick: bool = False


QUICK = Effort(rungs=(2, 5), trials=3, samples=10_000, quick=True)


def cells(activation: Activation) -> list[Cell]:
    """The nine kinds of data of a figure, with the three methods.

    >>> len(cells("sigmoid"))
    27
    """
    kinds = itertools.product((5, 10, 15), (1.0, 5.0, 10.0), METHODS)
    return [Cell(activation, edges, snr, method) for edges, snr, method in kinds]


def study_cell(cell: Cell, effort: Effort, folder: Path) -> dict[str, Any]:
    """Choose settings on the first trial's validation data, then train and measure every trial with them.

    What is done is in files: a call that was killed goes on where it was.
    """
    file = folder / cell.name / "result.json"
    made = {**asdict(effort), "rungs": list(effort.rungs), "inface": version("inface")}
    if file.is_file():
        found = read_json(file)
        if found.get("effort") == made:
            return found
    best, tried = _tuned(cell, effort, folder / cell.name)
    runs = [replace(best, options={**best.options, "trial": t}, measured_on="test") for t in range(effort.trials)]
    summaries = train_together(runs)
    for number, (settings, summary) in enumerate(zip(runs, summaries, strict=True)):
        if summary is not None:
            _write_run(folder / cell.name / f"trial-{number}", settings, summary)
    result = {
        "effort": made,
        "best": best.to_dict(),
        "tried": tried,
        "trials": [_short(summary) for summary in summaries],
    }
    write_json(file, result)
    return result


def boxes(
    activation: Activation,
    *,
    out: Path,
    results: Path,
    name: str,
    kinds: Sequence[Cell] | None = None,
    effort: Effort | None = None,
    jobs: int = 1,
    show: Callable[[int, int], None] | None = None,
) -> Path:
    """Figure 1 (sigmoid) or 2 (ReLU): box plots over trials of non-zeros and test error, for every kind of data.

    Args:
        activation: of the true network and of those that learn it.
        out: the folder of the runs.
        results: the folder of the figure, its numbers as JSON and a table.
        name: what their files are called.
        kinds: the cells, if not all of them.
        effort: how much is done.
        jobs: worker processes.
        show: is called with how many cells are done, and how many there are.
    """
    effort = effort or Effort()
    folder = out / name
    wanted = cells(activation) if kinds is None else list(kinds)
    found: dict[str, dict[str, Any]] = {}
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        futures = {pool.submit(study_cell, cell, effort, folder): cell for cell in wanted}
        try:
            for future in as_completed(futures):
                found[futures[future].name] = future.result()
                if show:
                    show(len(found), len(wanted))
        except BrokenProcessPool:
            raise LabError(f"{folder}: a worker was killed; the same command goes on where it was") from None
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    ordered = {cell.name: found[cell.name] for cell in wanted}
    told = {
        "format": 1,
        "command": f"inface reproduce {name.replace('-', ' --')} --trials {effort.trials}",
        "cells": ordered,
    }
    write_json(results / f"{name}.json", told)
    write_text(results / f"{name}.md", _page(name, told, wanted))
    runs = [
        Run(folder / cell.name / f"trial-{number}")
        for cell in wanted
        for number, trial in enumerate(found[cell.name]["trials"])
        if trial is not None
    ]
    _draw(runs, folder, results, {"trials": name})
    return results / f"{name}.md"


def evolution(*, out: Path, results: Path, suffix: str = "", effort: Effort | None = None) -> list[Path]:
    """Figures 3 and 4: the gap and the non-zeros of one instance (sigmoid, m = 10, SNR = 10) during training.

    Args:
        out: the folder of the runs.
        results: the folder of the figures.
        suffix: of their names.
        effort: how much is done to choose the settings.
    """
    effort = effort or Effort()
    runs = []
    for method in ("sfw", "sfw-if"):
        best = Settings.from_dict(study_cell(Cell("sigmoid", 10, 10.0, method), effort, out / "figure1")["best"])
        runs.append(train(replace(best, measured_on="test"), out / "figure3" / method, resume=True))
    return _draw(runs, out / "figure3", results, {"gap": f"figure3{suffix}", "nonzeros": f"figure4{suffix}"})


def _tuned(cell: Cell, effort: Effort, folder: Path) -> tuple[Settings, list[dict[str, Any]]]:
    """The best settings, and how all of them did: of each rung, a third goes on to the next."""
    grid = (quick_grid if effort.quick else paper_grid)(cell.method, 2)
    left = [applied(cell.settings(effort.samples), point, 2) for point in grid.points()]
    tried: list[dict[str, Any]] = []
    for rung, epochs in enumerate(effort.rungs):
        scores: list[tuple[float, Settings]] = []
        for number, start in enumerate(range(0, len(left), effort.together)):
            chosen = [replace(one, epochs=epochs) for one in left[start : start + effort.together]]
            scores += zip(_scored(chosen, folder / f"rung-{rung}-{number}.json"), chosen, strict=True)
        scores.sort(key=lambda pair: pair[0])
        tried += [{"epochs": epochs, "lr": s.lr, "radius": s.radius, "mse": _number(value)} for value, s in scores]
        left = [settings for _, settings in scores[: max(1, len(scores) // 3)]]
    if tried[-len(scores)]["mse"] is None:
        raise LabError(f"{cell.name}: the loss became infinite or not a number with all settings")
    return left[0], tried


def _scored(settings: Sequence[Settings], file: Path) -> list[float]:
    """The validation errors of settings that are trained together, from a file if they were."""
    made = {"inface": version("inface"), "settings": [resolve(one).to_dict() for one in settings]}
    found = read_json(file) if file.is_file() else {}
    if found.get("made") != made:
        summaries = train_together(settings)
        found = {"made": made, "mse": [None if summary is None else summary["kept"]["100"] for summary in summaries]}
        write_json(file, found)
    return [float("inf") if value is None else value for value in found["mse"]]


def _number(value: float) -> float | None:
    return value if value < float("inf") else None


def _write_run(path: Path, settings: Settings, summary: dict[str, Any]) -> None:
    """The folder of a run, for reports; its weights and its course are not kept."""
    write_json(path / "config.json", config(resolve(settings)))
    write_text(path / "metrics.jsonl", "")
    write_json(path / "summary.json", summary)


def _short(summary: dict[str, Any] | None) -> dict[str, Any] | None:
    if summary is None:
        return None
    edges = [layer["edges"] for layer in summary["layers"].values()]
    return {"edges": edges, "mse": summary["kept"]["100"], "kept": summary["kept"], "gap": summary["gap"]}


def _draw(runs: list[Run], folder: Path, results: Path, names: dict[str, str]) -> list[Path]:
    """The report of the runs, and of its pictures those asked for, under their names."""
    from .report import write_report

    write_report(runs, folder / "report.html", figures=folder / "figures", formats=("svg",))
    written = []
    for picture, name in names.items():
        source = folder / "figures" / f"synthetic-{picture}.svg"
        write_text(results / f"{name}.svg", source.read_text(encoding="utf-8"))
        written.append(results / f"{name}.svg")
    return written


def _page(name: str, told: dict[str, Any], wanted: list[Cell]) -> str:
    lines = [
        f"# {name.replace('figure', 'Figure ')}, reproduced: {wanted[0].activation}",
        "",
        f"Written by `{told['command']}`; do not edit. Medians over trials of the non-zero edges into a node (of 50) and of the",
        f"test error; box plots in [{name}.svg]({name}.svg). Settings were chosen on the first trial's validation data.",
        "",
        "| m | SNR | method | L, radii | trials | layer 1 | layer 2 | test MSE |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for cell in wanted:
        found = told["cells"][cell.name]
        trials = [trial for trial in found["trials"] if trial is not None]
        best = found["best"]
        radii = "" if best["radius"] is None else f"; {', '.join(f'{radius:g}' for radius in best['radius'])}"
        first, second = (f"{statistics.median(trial['edges'][layer] for trial in trials):.1f}" for layer in (0, 1))
        error = statistics.median(trial["mse"] for trial in trials)
        lines.append(
            f"| {cell.edges} | {cell.snr:g} | {cell.method} | {1 / (2 * best['lr']):g}{radii} | {len(trials)} | {first} | {second} | {error:.3g} |"
        )
    return "\n".join(lines) + "\n"
