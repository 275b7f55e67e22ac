"""Box plots over trials: the paper's Figures 1 and 2."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from inface.lab.runs.run import Run

from .groups import Group, Measure, mapping, number, shown, sortable
from .palette import look
from .svg import Drawing, Key, Panel, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["boxes", "magnitudes"]

Quantity = tuple[str, str, Callable[[Run], float]]


def boxes(groups: Sequence[Group], metric: Measure) -> list[Drawing]:
    """Box plots of the non-zero edges per layer and of the metric, for groups with at least two finished runs."""
    groups = [group for group in groups if len(group.finished) >= 2]
    if not groups:
        return []
    quantities = _quantities(groups, metric)
    if all({"edges", "snr"} <= set(group.options) for group in groups):
        return _synthetic(groups, quantities)
    panels = [_by_group(groups, *quantity) for quantity in quantities]
    columns = 2 if len(panels) == 4 else 3
    return [Drawing("trials", "Over trials", _caption(groups), panels, _keys(groups), columns)]


def _synthetic(groups: Sequence[Group], quantities: list[Quantity]) -> list[Drawing]:
    """One figure per value of the other options (the activation): SNR along the axis, one column per m."""
    found = []
    for index, rest in enumerate(dict.fromkeys(_rest(group) for group in groups)):
        members = [group for group in groups if _rest(group) == rest]
        edges = sorted({group.options["edges"] for group in members}, key=sortable)
        labels = list(dict.fromkeys(group.label for group in members))
        panels = [
            _by_snr([group for group in members if group.options["edges"] == m], labels, m, band, *quantity)
            for quantity in quantities
            for band in _bands(members, quantity)
            for m in edges
        ]
        title = "Over trials" + (f": {rest}" if rest else "")
        caption = f"{_caption(members)} m is the number of true edges into a node, SNR the signal-to-noise ratio."
        name = f"trials-{index + 1}" if index else "trials"
        found.append(Drawing(name, title, caption, panels, _keys(members), len(edges)))
    return found


def magnitudes(typical: Mapping[Any, float], factor: float = 2.0) -> list[list[Any]]:
    """Split keys wherever neighbours have values that differ by more than a factor.

    >>> magnitudes({1: 0.9, 5: 0.26, 10: 0.19})
    [[1], [5, 10]]
    """
    bands: list[list[Any]] = []
    for key, value in typical.items():
        other = typical[bands[-1][-1]] if bands else math.nan
        apart = min(value, other) > 0 and max(value, other) > factor * min(value, other)
        if apart or not bands:
            bands.append([key])
        else:
            bands[-1].append(key)
    return bands


def _bands(groups: Sequence[Group], quantity: Quantity) -> list[list[Any]]:
    """The SNRs that can share an axis: noise adds to the error, so an SNR of 1 would squeeze the others."""
    _, axis, value = quantity
    ratios = sorted({group.options["snr"] for group in groups}, key=sortable)
    if "edges" in axis:
        return [ratios]
    typical = {}
    for ratio in ratios:
        found = [value(run) for group in groups if group.options["snr"] == ratio for run in group.finished]
        typical[ratio] = statistics.median([each for each in found if math.isfinite(each)] or [math.nan])
    return magnitudes(typical)


def _quantities(groups: Sequence[Group], metric: Measure) -> list[Quantity]:
    def edges(name: str) -> Callable[[Run], float]:
        def of(run: Run) -> float:
            return number(mapping(mapping(run.summary.get("layers")).get(name)).get("edges"))

        return of

    def whole(run: Run) -> float:
        return number(mapping(run.summary.get("kept")).get("100"))

    names = list(
        dict.fromkeys(name for g in groups for run in g.finished for name in mapping(run.summary.get("layers")))
    )
    layers = [
        (f"Layer {index}", f"non-zero edges per node, layer {index}", edges(name))
        for index, name in enumerate(names, 1)
    ]
    return [*layers, (metric.name[:1].upper() + metric.name[1:], metric.axis, whole)]


def _by_group(groups: Sequence[Group], title: str, axis: str, value: Callable[[Run], float]) -> Panel:
    named = len({group.problem for group in groups}) > 1

    def draw(axes: Axes) -> None:
        for place, group in enumerate(groups):
            _box(axes, [value(run) for run in group.finished], place, look(group, groups).colour, 0.5, across=True)
        labels = [", ".join(filter(None, (group.label, group.problem if named else ""))) for group in groups]
        axes.set_yticks(range(len(groups)), [plain(label, 26) for label in labels])
        axes.set_ylim(len(groups) - 0.4, -0.6)
        axes.set_xlabel(plain(axis, 34))
        axes.set_title(plain(title, 26))
        axes.grid(visible=False, axis="y")

    height = 1.2 + 0.3 * len(groups)
    return Panel(draw, f"{axis}: box plots over trials of {', '.join(g.label for g in groups)}", (3.3, height))


def _by_snr(
    groups: Sequence[Group],
    labels: Sequence[str],
    m: Any,
    ratios: Sequence[Any],
    title: str,
    axis: str,
    value: Callable[[Run], float],
) -> Panel:
    """The box plots of some SNRs; the title names them unless they are all."""
    everything = {group.options["snr"] for group in groups} <= set(ratios)
    which = "" if everything else f", SNR {' and '.join(shown(ratio) for ratio in ratios)}"

    def draw(axes: Axes) -> None:
        width = 0.8 / len(labels)
        for group in groups:
            if group.options["snr"] not in ratios:
                continue
            shift = (labels.index(group.label) - (len(labels) - 1) / 2) * width
            place = ratios.index(group.options["snr"]) + shift
            _box(axes, [value(run) for run in group.finished], place, look(group, groups).colour, 0.8 * width)
        axes.set_xticks(range(len(ratios)), [plain(shown(ratio), 12) for ratio in ratios])
        room = 0.5 if len(ratios) > 1 else 1.0
        axes.set_xlim(-room, len(ratios) - 1 + room)
        axes.set_xlabel("signal-to-noise ratio (SNR)")
        axes.set_ylabel(plain(axis.partition(", layer")[0], 28))
        axes.set_title(plain(f"{title}, m = {shown(m)}{which}", 34))
        axes.grid(visible=False, axis="x")
        if "edges" in axis:
            axes.set_ylim(bottom=0)

    words = f"{axis}: box plots over trials against SNR for m = {shown(m)}{which}, {', '.join(labels)}"
    return Panel(draw, words, (3.4, 2.8))


def _box(axes: Axes, values: list[float], place: float, colour: str, width: float, *, across: bool = False) -> None:
    values = [value for value in values if math.isfinite(value)]
    if not values:
        return
    line = {"color": colour, "linewidth": 1.1}
    axes.boxplot(
        [values],
        positions=[place],
        widths=width,
        orientation="horizontal" if across else "vertical",
        manage_ticks=False,
        patch_artist=True,
        boxprops={"facecolor": (colour, 0.25), "edgecolor": colour, "linewidth": 1.1},
        medianprops={"color": colour, "linewidth": 2.2, "solid_capstyle": "butt"},
        whiskerprops=line,
        capprops=line,
        flierprops={"marker": "o", "markersize": 3, "markerfacecolor": colour, "markeredgecolor": "none"},
    )
    if len(values) < 6:  # few enough to show each
        places = [place] * len(values)
        points = (values, places) if across else (places, values)
        axes.plot(*points, linestyle="", marker="o", markersize=2.6, color=colour, zorder=4)


def _rest(group: Group) -> str:
    others = [f"{key} {shown(value)}" for key, value in group.options.items() if key not in {"edges", "snr"}]
    _, _, measured = group.problem.partition("measured on ")
    return ", ".join([*others, *([f"measured on {measured}"] if measured else [])])


def _caption(groups: Sequence[Group]) -> str:
    counts = [len(group.finished) for group in groups]
    trials = f"{counts[0]}" if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}"
    return (
        f"Results of {trials} trials of each setting: the middle line is the median, the box the middle half, the "
        "whiskers reach 1.5 box lengths, dots lie beyond (with fewer than six trials, each one is a dot). "
        "Edges with |w| ≥ 0.001 count."
    )


def _keys(groups: Sequence[Group]) -> list[Key]:
    looks = {look(group, groups).label: look(group, groups) for group in groups}
    return [Key(label, style.colour, kind="box") for label, style in looks.items()]
