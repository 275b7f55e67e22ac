"""The figure of the metric against the number of edges: one point per run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from inface.lab.runs.metrics import THETAS
from inface.lab.runs.run import Run

from .groups import Group, Measure, mapping, method_name, number
from .palette import look
from .svg import MARKERS, Drawing, Key, Panel, logarithmic, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["edges_left"]


class _Point(NamedTuple):
    left: float  # of the edges of the constrained layers, in %
    value: float


class _Course(NamedTuple):
    """A run, and the same network pruned to fewer and fewer edges."""

    group: Group
    point: _Point
    cut: list[_Point]


def edges_left(groups: Sequence[Group], metric: Measure) -> Drawing | None:
    """The metric of every finished run against its number of edges; one panel per problem."""
    problems = dict.fromkeys(group.problem for group in groups)
    found = {problem: _courses([group for group in groups if group.problem == problem]) for problem in problems}
    panels = [
        _panel(courses, groups, metric, problem if len(problems) > 1 else "")
        for problem, courses in found.items()
        if courses
    ]
    if not panels:
        return None
    shown = [course.group for courses in found.values() for course in courses]
    looks = {group.method: look(group, groups) for group in shown}
    keys = [Key(method_name(method), own.colour, "", own.marker, "point") for method, own in looks.items()]
    name = metric.name[:1].upper() + metric.name[1:]
    caption = (
        f"Each point is a run: its {metric.name} against the edges of the constrained layers that are not exactly "
        "zero, in % of all. The thin line from it is the same network pruned to the largest 50, 25, 10, 5, 2 and 1 % "
        "of the edges of each constrained layer, without retraining; it may leave the figure. Further "
        f"{_better(metric)} and further to the right is better: as good with fewer edges."
    )
    return Drawing("edges", f"{name} against the edges that are left", caption, panels, keys)


def _courses(groups: Sequence[Group]) -> list[_Course]:
    found = [(group, _points(run)) for group in groups for run in group.finished]
    return [_Course(group, points[0], points) for group, points in found if points]


def _points(run: Run) -> list[_Point]:
    """The run with all its edges, then pruned further and further; empty if there is nothing to draw."""
    layers = [mapping(layer) for layer in mapping(run.summary.get("layers")).values()]
    sizes = [number(layer.get("inputs")) * number(layer.get("nodes")) for layer in layers]
    parts = [number(layer.get("exact_percent")) for layer in layers]
    kept = mapping(run.summary.get("kept"))
    points: list[_Point] = []
    for theta in THETAS:
        left = sum(size * min(theta, part) for size, part in zip(sizes, parts, strict=True)) / (sum(sizes) or math.nan)
        point = _Point(left, number(kept.get(str(theta))))
        if theta == THETAS[0] and not (left > 0 and math.isfinite(point.value)):
            return []
        if math.isfinite(point.value) and (not points or left < points[-1].left):
            points.append(point)
    return points


def _panel(courses: Sequence[_Course], groups: Sequence[Group], metric: Measure, problem: str) -> Panel:
    values = [course.point.value for course in courses]
    low, high = _range(values, metric)
    wide = metric.unit != "%" and min(values) > 0 and max(values) > 20 * min(values)

    def draw(axes: Axes) -> None:
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

        faint = max(0.25, 0.5 - 0.005 * len(courses))
        for course in courses:
            style = look(course.group, groups)
            x, y = [point.left for point in course.cut], [point.value for point in course.cut]
            axes.plot(x, y, color=style.colour, linewidth=0.8, alpha=faint, zorder=1.5)
            axes.plot(
                *course.point, color=style.colour, linestyle="", marker=MARKERS[style.marker], markersize=5.5,
                markeredgewidth=0, alpha=0.85, zorder=3,
            )  # fmt: skip
        axes.set_xscale("log")
        if wide:
            logarithmic(axes)
        else:
            axes.set_ylim(low, high)
        axes.invert_xaxis()
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=12))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("edges left in the constrained layers, %")
        axes.set_ylabel(plain(metric.axis, 32))
        if problem:
            axes.set_title(plain(problem, 46))

    return Panel(draw, _words(courses, metric, problem))


def _range(values: Sequence[float], metric: Measure) -> tuple[float, float]:
    """Limits of the axis: they show all points, and the beginnings of their lines.

    >>> _range([98.0, 97.0], Measure("accuracy", "%"))
    (95.85, 98.15)
    >>> _range([2.0], Measure("MSE", better="lower"))
    (1.97, 2.23)
    """
    best, worst = (max(values), min(values)) if metric.better == "higher" else (min(values), max(values))
    least = 1.0 if metric.unit == "%" else 0.1 * abs(best) or 1.0
    span = math.copysign(max(abs(best - worst), least), 1 if metric.better == "higher" else -1)
    low, high = sorted((worst - (1.15 if abs(best - worst) < 10 * least else 0.15) * span, best + 0.15 * span))
    return low, high


def _words(courses: Sequence[_Course], metric: Measure, problem: str) -> str:
    told = [
        f"{course.group.label} {metric.text(course.point.value)} with {course.point.left:.3g} %" for course in courses
    ]
    where = f" for {problem}" if problem else ""
    return f"{metric.axis} against the percentage of edges left{where}, a point for each run: {'; '.join(told)}"


def _better(metric: Measure) -> str:
    return "up" if metric.better == "higher" else "down"
