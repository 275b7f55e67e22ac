"""The figure of a network of the benchmark: accuracy against density, and against training time."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from inface.lab.report.palette import look
from inface.lab.report.svg import MARKERS, Drawing, Key, Panel, dashes, save

from .benchmark_page import Line, lines_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_benchmark"]


class _Point(NamedTuple):
    """Means over the final runs of a cell."""

    density: float
    seconds: float
    accuracy: float
    spread: float


def draw_benchmark(rows: dict[str, Any], file: Path) -> None:
    """Draw the rows of a network; dense training is a horizontal line."""
    lines = [line for line in lines_of(rows) if _points(line)]
    sparse = [line for line in lines if line.method != "sgd"]
    dense = [line for line in lines if line.method == "sgd"]
    if not lines:
        return
    keys = [Key(line.label, look(line, dense).colour, "5 2") for line in dense]
    for line in sparse:
        own = look(line, sparse)
        keys.append(Key(line.label, own.colour, own.dash, own.marker))
    panels = [
        Panel(lambda axes: _against(axes, sparse, dense, "density"), "accuracy against density"),
        Panel(lambda axes: _against(axes, sparse, dense, "seconds"), "accuracy against training time"),
    ]
    save(Drawing(file.stem, "", "", panels, keys), file.parent, ("svg",))


def _against(axes: Axes, sparse: Sequence[Line], dense: Sequence[Line], what: str) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for line in sparse:
        own, points = look(line, sparse), _points(line)
        axes.errorbar(
            [getattr(point, what) for point in points],
            [point.accuracy for point in points],
            [point.spread for point in points],
            color=own.colour,
            linestyle=dashes(own.dash) if what == "density" else "",
            linewidth=1.4,
            marker=MARKERS[own.marker],
            markersize=5,
            elinewidth=0.8,
        )
    for line in dense:
        for point in _points(line):
            axes.axhline(point.accuracy, color=look(line, dense).colour, linestyle=dashes("5 2"), linewidth=1.4)
    axes.set_ylim(*_range([point.accuracy for line in (*sparse, *dense) for point in _points(line)]))
    axes.set_ylabel("accuracy, %")
    if what == "seconds":
        axes.set_xlim(left=0)
        axes.set_xlabel("training time of a run, seconds")
        return
    axes.set_xscale("log")
    axes.invert_xaxis()
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=12))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("density, %")


def _points(line: Line) -> list[_Point]:
    found = []
    for cell in line.cells.values():
        runs = cell["runs"]
        if runs:
            accuracies = [run["accuracy"] for run in runs]
            density, seconds = (statistics.fmean(run[name] for run in runs) for name in ("density", "seconds"))
            spread = statistics.stdev(accuracies) if len(runs) > 1 else 0.0
            found.append(_Point(density, seconds, statistics.fmean(accuracies), spread))
    return found


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Limits of the axis; methods that fail may lie below.

    >>> _range([98.0, 97.5, 97.0, 11.0])
    (94.0625, 98.1875)
    """
    highest, middle = max(values), statistics.median(values)
    low = max(min(values), middle - 4 * (highest - middle))
    margin = 0.05 * (highest - low) or 0.5
    return low - margin, highest + margin
