"""The supplement's experiments on synthetic data: Figures 1 to 4 of the paper."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inface.lab.errors import LabError
from inface.lab.experiments import Activation
from inface.lab.files import read_json, write_json, write_text
from inface.lab.runs.lock import config
from inface.lab.runs.run import Run
from inface.lab.runs.settings import Method, Settings
from inface.lab.runs.setup import resolve
from inface.lab.runs.training import Record, train
from inface.version import versions

from .cells import QUICK, Cell, CellTask, Effort, cells, study_cell
from .figure_pages import SAME, boxes_page, course_page
from .stored import stored_courses, stored_trials
from .tasks import Meter, TaskProgress, carry_out

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from inface.lab.report.svg import Panel

__all__ = ["QUICK", "Cell", "Effort", "boxes", "cells", "evolution", "redraw", "study_cell"]

LABELS = {"sfw": "SFW", "sfw-if": "SFW-IF", SAME: "SFW with the settings of SFW-IF"}

Show = Callable[[str, TaskProgress], None]


def boxes(
    activation: Activation,
    *,
    out: Path,
    results: Path,
    name: str,
    command: str,
    kinds: Sequence[Cell] | None = None,
    effort: Effort | None = None,
    jobs: int = 1,
    show: Show | None = None,
) -> Path:
    """Figure 1 (sigmoid) or 2 (ReLU): box plots over trials of non-zeros and test error, for every kind of data.

    It can be killed at any moment. The same call continues; finished work is not repeated.

    Args:
        activation: the activation of the true and of the trained networks.
        out: the folder of the runs.
        results: the folder of the figure, its numbers as JSON and a page.
        name: the name of the files.
        command: the command that the page names.
        kinds: the cells; by default all.
        effort: how many settings, samples, epochs and trials.
        jobs: worker processes.
        show: called with the stage and its progress.
    """
    wanted = cells(activation) if kinds is None else list(kinds)
    found = _studied(wanted, effort or Effort(), out / name, jobs, None if show is None else lambda p: show("cells", p))
    told = {
        "format": 1,
        "command": command,
        "versions": versions("inface", "torch", "numpy", "python"),
        **_cost(found.values()),
        "cells": {cell: _short(result) for cell, result in found.items()},
    }
    write_json(results / f"{name}.json", told)
    return redraw(results / f"{name}.json")


def evolution(
    *,
    out: Path,
    results: Path,
    command: str,
    suffix: str = "",
    effort: Effort | None = None,
    jobs: int = 1,
    show: Show | None = None,
) -> Path:
    """Figures 3 and 4: the gap and the non-zeros of one instance (sigmoid, m = 10, SNR = 10) during training.

    The settings are chosen as in Figure 1, or taken from there. SFW is also drawn with the settings of SFW-IF.

    Args:
        out: the folder of the runs.
        results: the folder of the figures, their numbers as JSON and a page.
        command: the command that the page names.
        suffix: a suffix of the file names.
        effort: how many settings, samples and epochs.
        jobs: worker processes.
        show: called with the stage and its progress.
    """
    methods: tuple[Method, ...] = ("sfw", "sfw-if")
    wanted = [Cell("sigmoid", 10, 10.0, method) for method in methods]
    folder, name = out / f"figure1{suffix}", f"figure3{suffix}"
    effort = replace(effort or Effort(), trials=0)
    found = _studied(wanted, effort, folder, jobs, None if show is None else lambda p: show("settings", p))
    chosen: dict[str, Settings] = {}
    for method, cell in zip(methods, wanted, strict=True):
        if found[cell.name]["best"] is None:
            raise LabError(f"{cell.name}: the loss became infinite or not a number with all settings")
        best = Settings.from_dict(found[cell.name]["best"])
        if best.experiment != "synthetic":  # an untrusted file could name code to import
            raise LabError(f"{cell.name}: wanted settings of the experiment synthetic, got {best.experiment}")
        chosen[method] = replace(best, measured_on="test")
    # Gaps can be compared only for equal learning rates and radii.
    chosen[SAME] = replace(chosen["sfw-if"], method="sfw")
    courses = [CourseTask(who, resolve(settings), out / name / who) for who, settings in chosen.items()]
    carry_out(courses, jobs=jobs, show=None if show is None else lambda p: show("runs", p))
    runs = {task.name: Run(task.place) for task in courses}
    spent = [*found.values(), *(task.cost() for task in courses)]
    told = {
        "format": 1,
        "command": command,
        "versions": versions("inface", "torch", "numpy", "python"),
        **_cost(spent),
        "runs": {
            who: {"settings": run.settings.to_dict(), "summary": run.summary, "steps": _thinned(run.steps)}
            for who, run in runs.items()
        },
    }
    write_json(results / f"{name}.json", told)
    return redraw(results / f"{name}.json")


def redraw(file: Path) -> Path:
    """Draw a figure and write its page, from its JSON file alone; return the page.

    Args:
        file: ``figure1.json``, ``figure2.json`` or ``figure3.json``, as the commands write them.

    >>> redraw(Path("no-such-folder/figure1.json"))
    Traceback (most recent call last):
    inface.lab.errors.LabError: no-such-folder/figure1.json: cannot be read: No such file or directory
    """
    told = read_json(file)
    page = file.with_suffix(".md")
    if "cells" in told:
        drawn = _draw_boxes(stored_trials(told), file.with_suffix(".svg"))
        wanted = [Cell.named(name) for name in told["cells"]]
        text = boxes_page(file.stem, told, wanted, f"{file.stem}.svg" if drawn else None)
    else:
        runs = stored_courses(told)
        text = course_page(file.stem, told, runs, _draw_courses(runs, file))
    write_text(page, text)
    return page


@dataclass(frozen=True)
class CourseTask:
    """The task of training a run whose course is drawn; its units are epochs."""

    name: str
    settings: Settings
    place: Path

    @property
    def total(self) -> float:
        return self.settings.epochs

    def finished(self) -> bool:
        return self._is_mine() and Run(self.place).finished

    def carry_out(self, meter: Meter) -> None:
        mine = self._is_mine()
        before = self.cost()["cpu_seconds"] if mine else 0.0
        begun = time.process_time()

        def watch(record: Record) -> None:
            if record["kind"] == "start":
                meter.found(self.total * record["step"] / record["steps"])
            elif record["kind"] == "epoch":
                write_json(self.place / "cost.json", {"cpu_seconds": before + time.process_time() - begun})
                meter.did(1, f"epoch {record['epoch']} of {self.total}")

        train(self.settings, self.place, watch=watch, resume=mine, overwrite=not mine)

    def cost(self) -> dict[str, float]:
        """The seconds that the run has taken so far."""
        file = self.place / "cost.json"
        run = Run(self.place)
        spent = read_json(file)["cpu_seconds"] if file.is_file() else 0.0
        return {"cpu_seconds": spent, "seconds": run.summary["seconds"] if run.finished else 0.0}

    def _is_mine(self) -> bool:
        """Whether the folder holds a run with the same settings and versions."""
        file = self.place / "config.json"
        return file.is_file() and read_json(file) == config(self.settings)


def _studied(
    wanted: Sequence[Cell], effort: Effort, folder: Path, jobs: int, show: Callable[[TaskProgress], None] | None
) -> dict[str, dict[str, Any]]:
    """The results of cells, by their names."""
    tasks = [CellTask(cell, effort, folder) for cell in wanted]
    carry_out(tasks, jobs=jobs, show=show)
    return {task.name: read_json(task.file) for task in tasks}


def _draw_boxes(runs: Sequence[Run], file: Path) -> bool:
    """Draw box plots of the methods, with whatever settings were chosen; return whether there are enough trials."""
    from inface.lab.report.boxes import boxes as drawings
    from inface.lab.report.groups import grouped, measure, method_name
    from inface.lab.report.svg import save

    groups = [replace(group, label=method_name(group.method)) for group in grouped(runs)]
    found = drawings(groups, measure(runs))
    file.unlink(missing_ok=True)
    for drawing in found:
        panels = [_in_decades(panel) if panel.words.startswith("MSE") else panel for panel in drawing.panels]
        save(replace(drawing, name=file.stem, panels=panels), file.parent, ("svg",))
    return bool(found)


def _in_decades(panel: Panel) -> Panel:
    """The panel with a logarithmic axis if its values span a factor of more than 20."""

    def draw(axes: Axes) -> None:
        panel.draw(axes)
        lowest, highest = axes.dataLim.intervaly
        if lowest > 0 and highest > 20 * lowest:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")

    return replace(panel, draw=draw)


def _draw_courses(runs: Mapping[str, Run], file: Path) -> list[str]:
    """Draw the gap (Figure 3) and the non-zeros (Figure 4) beside their JSON file; return the names of the pictures."""
    from inface.lab.report.figures import gap_figure, nonzeros_figure
    from inface.lab.report.groups import grouped
    from inface.lab.report.series import course
    from inface.lab.report.svg import save

    groups = [replace(group, label=LABELS[who]) for who, run in runs.items() for group in grouped([run])]
    courses = {id(run): course(run) for run in runs.values()}
    pictures = {
        file.stem: gap_figure(groups, courses),
        file.stem.replace("figure3", "figure4"): nonzeros_figure(groups, courses),
    }
    found = []
    for name, drawing in pictures.items():
        if drawing is not None:
            save(replace(drawing, name=name), file.parent, ("svg",))
            found.append(f"{name}.svg")
    return found


def _short(result: dict[str, Any]) -> dict[str, Any]:
    """The result, without the settings that were stopped early."""
    last = max((tried["epochs"] for tried in result["tried"]), default=0)
    return {**result, "tried": [tried for tried in result["tried"] if tried["epochs"] == last]}


def _thinned(records: list[Record], most: int = 500) -> list[Record]:
    """At most ``most`` records of a series, evenly spaced."""
    return records[:: -(-len(records) // most) or 1]


def _cost(spent: Any) -> dict[str, float]:
    return {kind: round(sum(each.get(kind, 0.0) for each in spent), 1) for kind in ("seconds", "cpu_seconds")}
