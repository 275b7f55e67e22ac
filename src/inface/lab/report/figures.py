"""The figures of an experiment: training curves and final results."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from inface.lab.runs.metrics import THETAS
from inface.lab.runs.run import Run

from .boxes import boxes
from .comparison import Comparison
from .edges import edges_left
from .groups import Group, Measure, mapping, measure, method_name, number, positive
from .palette import Look, look
from .series import MOST, Course, Series, course
from .svg import MARKERS, Drawing, Key, Panel, dashes, logarithmic, plain
from .weights import first_layer

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["figures", "gap_figure", "nonzeros_figure", "settled"]

WINDOW = 21  # points of a running median


def figures(groups: Sequence[Group], rows: Sequence[Comparison], prefix: str) -> list[Drawing]:
    """All figures of the runs of one experiment; ``rows`` is its table.

    ``prefix`` makes the names of the figures unique.
    """
    runs = [run for group in groups for run in group.runs]
    metric = measure(runs)
    courses = {id(run): course(run) for run in runs}
    trials = boxes(groups, metric)
    shares = [edges_left(groups, metric), _kept(groups, metric)]
    several = len({group.problem for group in groups}) > 1  # then box plots show all of them at once
    found = [
        *([first_layer(rows), *trials, *shares] if several else [*shares, first_layer(rows)]),
        gap_figure(groups, courses),
        nonzeros_figure(groups, courses),
        _progress(groups, metric, courses),
        *([] if several else trials),
    ]
    return [replace(drawing, name=f"{prefix}-{drawing.name}") for drawing in found if drawing is not None]


def _kept(groups: Sequence[Group], metric: Measure) -> Drawing | None:
    def series(run: Run) -> Series:
        found = mapping(run.summary.get("kept")) if run.finished else {}
        return [float(theta) for theta in THETAS], [number(found.get(str(theta))) for theta in THETAS]

    def finish(axes: Axes) -> None:
        axes.set_xscale("log")
        axes.set_xticks(THETAS, [str(theta) for theta in THETAS])
        axes.set_xticks([], minor=True)
        axes.set_xlabel("edges kept in each constrained layer (θ), %")
        axes.set_ylabel(plain(metric.axis, 32))
        axes.invert_xaxis()

    def words(names: str, problem: str) -> str:
        return f"{metric.axis} against the percentage of edges kept{problem}, {names}"

    panels = _panels(groups, series, finish, words, markers=True)
    if not panels:
        return None
    return Drawing(
        "kept",
        f"{_capital(metric.name)} when only the largest edges stay",
        f"{_capital(metric.name)} of the trained network after keeping the largest θ % of the edges in each "
        f"constrained layer and setting the rest to zero, without retraining.{_trials(groups)}",
        panels,
        _keys(groups, markers=True),
    )


def nonzeros_figure(groups: Sequence[Group], courses: Mapping[int, Course]) -> Drawing | None:
    """The non-zeros of each layer during training; ``courses`` has the series of each run, by its id."""
    names = dict.fromkeys(name for found in courses.values() for name in found.nonzeros)
    panels: list[list[Panel]] = []
    for index, name in enumerate(_in_order(list(names), groups), 1):

        def series(run: Run, name: str = name) -> Series:
            return courses[id(run)].nonzeros.get(name, ((), ()))

        ends = [y[-1] for group in groups for run in group.runs if (y := series(run)[1]) and y[-1] > 0]
        wide = bool(ends) and max(ends) > 12 * min(ends)  # a dense network would squeeze the sparse ones

        def finish(axes: Axes, wide: bool = wide) -> None:
            axes.set_xlabel("gradients")
            axes.set_ylabel("non-zero edges per node")
            if wide:
                logarithmic(axes)
            else:
                axes.set_ylim(bottom=0)

        def words(who: str, problem: str, index: int = index) -> str:
            return f"average number of non-zero edges into a node of layer {index} against gradients{problem}, {who}"

        panels.append(_panels(groups, series, finish, words, title=f"Layer {index}: {name}"))
    return _grid(
        "nonzeros",
        "Non-zero edges during training",
        "Average number of edges with |w| ≥ 0.001 into a node of each constrained layer, counted during training; "
        f"all methods on one axis of mini-batch gradients.{_trials(groups)}{_thinned(courses)}",
        panels,
        _keys(groups),
    )


def gap_figure(groups: Sequence[Group], courses: Mapping[int, Course]) -> Drawing | None:
    """The gap during training, smoothed and raw; ``courses`` has the series of each run, by its id."""

    def series(run: Run) -> Series:
        x, y = courses[id(run)].gap
        return x, positive(y)

    def finish(axes: Axes) -> None:
        _zoom(axes)
        logarithmic(axes)
        axes.set_xlabel("gradients")
        axes.set_ylabel("modified Frank-Wolfe gap")

    def words(who: str, problem: str) -> str:
        return f"modified Frank-Wolfe gap against gradients{problem}, {who}"

    having = [group for group in groups if any(_finite(series(run)) for run in group.runs)]
    smoothed = _panels(
        having,
        lambda run: _calm(series(run)),
        finish,
        lambda who, problem: f"running median of the {words(who, problem)}",
        title=f"Running median over {WINDOW} points",
    )
    raw = _panels(having, series, finish, words, title="Each mini-batch gradient", raw=True)
    methods = {group.method for group in having}
    without = list(dict.fromkeys(method_name(group.method) for group in groups if group.method not in methods))
    none = f" {' and '.join(without)} {'has' if len(without) == 1 else 'have'} no gap." if without else ""
    return _grid(
        "gap",
        "Modified Frank-Wolfe gap during training",
        "How far the network is from a stationary point: the running median of the gap over "
        f"{WINDOW} points{'' if _thinned(courses) else ', about one epoch'}, and the gap of each mini-batch gradient. "
        "An axis shows the range after the first twentieth of the training, without the outermost percent of the "
        f"values; an arrow names the highest one beyond it.{_means(having)}{_thinned(courses)} The gap is zero exactly "
        f"at stationary points.{none}",
        [smoothed, raw],
        _keys(having),
    )


def _progress(groups: Sequence[Group], metric: Measure, courses: Mapping[int, Course]) -> Drawing | None:
    panels: list[list[Panel]] = []
    losses = [loss for found in courses.values() for loss in found.train_loss[1]]
    positive_losses = any(loss > 0 for loss in losses) and not any(loss <= 0 for loss in losses)
    for key, label, log in (
        ("train_loss", "training loss", positive_losses),
        ("metric", _measured(groups, metric), False),
    ):

        def series(run: Run, key: str = key) -> Series:
            found = courses[id(run)]
            return found.train_loss if key == "train_loss" else found.metric

        def finish(axes: Axes, label: str = label, log: bool = log) -> None:
            from matplotlib.ticker import MaxNLocator

            if log:
                logarithmic(axes)
            axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
            axes.set_xlabel("epochs")
            axes.set_ylabel(plain(label, 32))

        def words(who: str, problem: str, label: str = label) -> str:
            return f"{label} against epochs{problem}, {who}"

        panels.append(_panels(groups, series, finish, words, title=_capital(label.removesuffix(f", {metric.unit}"))))
    return _grid(
        "progress",
        "Training",
        f"Mean loss over the training samples of an epoch, and {metric.name} on the data it is measured on at the end "
        f"of the epoch.{_trials(groups)}{_thinned(courses)}",
        panels,
        _keys(groups),
    )


def _panels(
    groups: Sequence[Group],
    series: Callable[[Run], Series],
    finish: Callable[[Axes], None],
    words: Callable[[str, str], str],
    *,
    title: str = "",
    raw: bool = False,
    markers: bool = False,
) -> list[Panel]:
    """One panel per problem, with one line per run and, unless ``raw``, a thick line for the mean of each group."""
    problems = list(dict.fromkeys(group.problem for group in groups))
    panels = []
    for problem in problems:
        members = [group for group in groups if group.problem == problem]
        lines = [(group, [series(run) for run in group.runs]) for group in members]
        if not any(_finite(line) for _, found in lines for line in found):
            continue

        def draw(axes: Axes, members: list[Group] = members, problem: str = problem) -> None:
            for group in members:
                _lines(axes, group, look(group, groups), series, raw=raw, markers=markers)
            finish(axes)
            heading = ", ".join(part for part in (title, problem if len(problems) > 1 else "") if part)
            if heading:
                axes.set_title(plain(heading, 46))

        where = f" for {problem}" if len(problems) > 1 else ""
        panels.append(Panel(draw, words(", ".join(dict.fromkeys(group.label for group in members)), where)))
    return panels


def _lines(axes: Axes, group: Group, style: Look, series: Callable[[Run], Series], *, raw: bool, markers: bool) -> None:
    limit = max(60, 3000 // len(group.runs))
    if raw or len(group.runs) > 1:
        for run in group.runs:
            x, y = _decimated(series(run), limit)
            line = dashes(style.dash) if raw else "-"
            axes.plot(x, y, color=style.colour, linewidth=0.7, linestyle=line, alpha=0.5, zorder=1.5)
    if raw:
        return
    x, y = _decimated(_mean([series(run) for run in group.finished or group.runs]), 600)
    axes.plot(
        x,
        y,
        color=style.colour,
        linewidth=1.9,
        linestyle=dashes(style.dash),
        marker=MARKERS[style.marker] if markers else "",
        markersize=4.5,
        zorder=3,
    )


def _zoom(axes: Axes) -> None:
    """Fit the vertical axis to what is drawn once training has settled, and name the highest value beyond it."""
    import numpy as np

    lines = [np.asarray(line.get_xydata(), dtype=float) for line in axes.get_lines()]
    limits = settled([line[:, 1].tolist() for line in lines])
    if limits is None:
        return
    axes.set_ylim(*limits)
    highest, place = max((float(y), float(x)) for line in lines for x, y in line if y > 0)
    if highest > limits[1]:
        axes.text(place, 0.99, f"  ↑ {highest:.4g}", transform=axes.get_xaxis_transform(), va="top", fontsize=8)


def settled(lines: Sequence[Sequence[float]]) -> tuple[float, float] | None:
    """The limits of a logarithmic axis: without the first twentieth of each line and the outermost percent of the rest.

    The first gaps are a thousand times the last. They would squeeze everything else.

    >>> low, high = settled([[900.0, 800.0, *[1.0, 2.0] * 19]])
    >>> 0.9 < low < 1 and 2 < high < 2.2
    True
    """
    late = sorted(value for line in lines for value in line[len(line) // 20 :] if math.isfinite(value) and value > 0)
    if not late:
        return None
    cut = len(late) // 100
    low, high = late[cut], late[-1 - cut]
    margin = max(1.05, (high / low) ** 0.05)
    return low / margin, high * margin


def _calm(line: Series) -> Series:
    """A running median. The first gaps are a thousand times the last; a mean would follow them for many epochs.

    >>> _calm(([1, 2, 3], [900.0, 1.0, 2.0]))
    ([1, 2, 3], [2.0, 2.0, 2.0])
    """
    x, y = line
    half = WINDOW // 2
    near = ([value for value in y[max(0, at - half) : at + half + 1] if math.isfinite(value)] for at in range(len(y)))
    return x, [statistics.median(values) if values else math.nan for values in near]


def _mean(lines: Sequence[Series]) -> Series:
    import numpy as np

    lines = [line for line in lines if line[0]]
    if len(lines) < 2:
        return lines[0] if lines else ([], [])
    grid = np.unique(np.concatenate([np.asarray(x) for x, _ in lines]))
    grid = np.append(grid[: -1 : math.ceil(len(grid) / MOST)], grid[-1:])
    rising = [(np.asarray(x)[np.argsort(x)], np.asarray(y)[np.argsort(x)]) for x, y in lines]
    values = np.stack([np.interp(grid, x, y, left=np.nan, right=np.nan) for x, y in rising])
    known = np.isfinite(values)
    total = np.where(known, values, 0).sum(axis=0)
    mean = np.where(known.any(axis=0), total / np.maximum(known.sum(axis=0), 1), np.nan)
    return grid.tolist(), mean.tolist()


def _decimated(line: Series, most: int) -> Series:
    x, y = line
    stride = max(1, math.ceil(len(x) / most))
    return (x, y) if stride == 1 else ([*x[::stride], x[-1]], [*y[::stride], y[-1]])


def _grid(name: str, title: str, caption: str, rows: list[list[Panel]], keys: list[Key]) -> Drawing | None:
    """Panels of several quantities, one row per problem."""
    full = [row for row in rows if row]
    panels = [panel for row in zip_longest(*full) for panel in row if panel]
    return Drawing(name, title, caption, panels, keys, min(len(full), 3) if len(full) > 1 else 2) if panels else None


def _keys(groups: Sequence[Group], *, markers: bool = False) -> list[Key]:
    found: dict[str, Key] = {}
    for group in groups:
        style = look(group, groups)
        found.setdefault(style.label, Key(style.label, style.colour, style.dash, style.marker if markers else ""))
    return list(found.values())


def _in_order(names: list[str], groups: Sequence[Group]) -> list[str]:
    """The layers in the order of the experiment."""
    known = [name for g in groups for run in g.finished for name in mapping(run.summary.get("layers")) if name in names]
    return list(dict.fromkeys([*known, *names]))


def _finite(line: Series) -> bool:
    return any(math.isfinite(y) for y in line[1])


def _measured(groups: Sequence[Group], metric: Measure) -> str:
    """The metric, and the data it is measured on if that is the same for all runs."""
    data = {str(run.config.get("measured_on") or "test") for group in groups for run in group.runs}
    return f"{data.pop()} {metric.axis}" if len(data) == 1 else metric.axis


def _means(groups: Sequence[Group]) -> str:
    return " Of several runs, the thick line is the mean." if any(len(group.runs) > 1 for group in groups) else ""


def _trials(groups: Sequence[Group]) -> str:
    return " Thin: each run; thick: their mean." if any(len(group.runs) > 1 for group in groups) else ""


def _thinned(courses: Mapping[int, Course]) -> str:
    """A note if a figure does not show every point."""
    return f" Of series of more than {MOST:,} points, evenly spaced ones." * any(c.thinned for c in courses.values())


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
