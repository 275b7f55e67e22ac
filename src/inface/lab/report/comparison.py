"""The comparison table: sparsity of each layer, and the metric with only the largest edges."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from inface.lab.runs.metrics import THETAS
from inface.lab.runs.run import Run

from .groups import Group, Measure, grouped, mapping, measure, method_name, number

__all__ = ["Column", "Comparison", "Spread", "best_first", "columns", "compare", "headline", "share"]


class Spread(NamedTuple):
    """Mean and standard deviation over the runs of a group; the deviation of a single run is 0.

    >>> Spread.of([1.0, 3.0, None])
    Spread(mean=2.0, deviation=1.4142135623730951)
    >>> Spread.of([None]) is None
    True
    """

    mean: float
    deviation: float

    @staticmethod
    def of(values: Iterable[object]) -> Spread | None:
        """The spread of the values that are numbers; None if there are none."""
        numbers = [value for value in map(number, values) if not math.isnan(value)]
        if not numbers:
            return None
        return Spread(statistics.fmean(numbers), statistics.stdev(numbers) if len(numbers) > 1 else 0.0)


@dataclass(frozen=True)
class Column:
    """A column of the table: its key, group heading, title, and which direction is better (``""``: neither)."""

    key: str
    heading: str
    title: str
    better: str


@dataclass(frozen=True)
class Comparison:
    """One row of the table: the finished runs of one group.

    Attributes:
        experiment: the name of the experiment.
        problem: the options of the experiment; rows with the same problem are compared.
        method: ``"sfw-if"``, ``"sfw"``, ``"sgd"`` or another.
        label: the method, and the settings that distinguish this row from others of the same method.
        settings: learning rates, radius, momentum, schedule.
        shared: the settings that all rows of the same method share.
        count: the number of runs; the numbers below are means and deviations over them.
        metric: the metric of the experiment.
        layers: the percentage of edges of at least 0.001, of each constrained layer.
        exact: the percentage of edges that are not exactly zero, of each constrained layer.
        network: the percentage of parameters of at least 0.001, of the whole network.
        kept: the metric after keeping the largest theta % of the edges of each constrained layer.
        gap: the exact modified Frank-Wolfe gap; None for SGD.
        seconds: the training time.
        best: the keys of the columns in which no row of the same problem is better.
        runs: the runs themselves.
    """

    experiment: str
    problem: str
    method: str
    label: str
    settings: str
    shared: str
    count: int
    metric: Measure
    layers: dict[str, Spread | None]
    exact: dict[str, Spread | None]
    network: Spread | None
    kept: dict[int, Spread | None]
    gap: Spread | None
    seconds: Spread | None
    best: frozenset[str] = frozenset()
    runs: tuple[Run, ...] = field(default=(), repr=False)

    @property
    def name(self) -> str:
        """The display name of the method."""
        return method_name(self.method)

    def value(self, key: str) -> Spread | None:
        """The value in a column of :func:`columns`."""
        kind, _, name = key.partition(":")
        match kind:
            case "layer":
                return self.layers.get(name)
            case "exact":
                return self.exact.get(name)
            case "kept":
                return self.kept.get(int(name))
            case _:
                return {"network": self.network, "gap": self.gap, "seconds": self.seconds}[kind]

    def text(self, key: str) -> str:
        """The printed value in a column: ``97.1``, or ``97.1 ± 0.3`` for several runs, or a hyphen."""
        value = self.value(key)
        if value is None:
            return "-"
        mean = self.digits(key, value.mean)
        if self.count == 1:
            return mean
        fixed = key.partition(":")[0] not in {"kept", "gap"} or (key != "gap" and self.metric.unit == "%")
        return f"{mean} ± {value.deviation:{'.1f' if fixed else '.2g'}}"

    def digits(self, key: str, value: float) -> str:
        """A number as it is printed in a column, without its deviation."""
        kind = key.partition(":")[0]
        if kind == "kept":
            return self.metric.digits(value)
        return f"{value:.3g}" if kind == "gap" else f"{value:.1f}"


def compare(runs: Iterable[Run]) -> list[Comparison]:
    """The rows of the table: one for each group of finished runs that differ only in seed or in the option ``trial``.

    Runs that are not finished are left out. Rows of one experiment, and in it of one problem, stand together; the
    dense method first.

    >>> compare([])
    []
    """
    rows = [_row(group) for group in grouped(runs) if group.finished]
    problems = dict.fromkeys((row.experiment, row.problem) for row in rows)
    marked = []
    for problem in problems:
        compared = [row for row in rows if (row.experiment, row.problem) == problem]
        best: list[set[str]] = [set() for _ in compared]
        for column in columns(compared):
            for index in _winners(compared, column):
                best[index].add(column.key)
        marked += [replace(row, best=frozenset(keys)) for row, keys in zip(compared, best, strict=True)]
    return marked


def columns(rows: Sequence[Comparison]) -> list[Column]:
    """The columns of a table with these rows, in order."""
    layers = list(dict.fromkeys(name for row in rows for name in row.layers))
    thetas = sorted({theta for row in rows for theta in row.kept}, reverse=True)
    metric = rows[0].metric if rows else Measure()
    found = [
        Column(f"{kind}:{name}", f"layer {index} edges, %: {name}", title, "lower")
        for index, name in enumerate(layers, 1)
        for kind, title in (("layer", "≥ 0.001"), ("exact", "exact"))
    ]
    found += [Column("network", "network, %", "≥ 0.001", "lower")]
    found += [Column(f"kept:{theta}", f"{metric.axis}, keeping", f"{theta} %", metric.better) for theta in thetas]
    if any(row.gap for row in rows):
        found.append(Column("gap", "gap", "exact", "lower"))
    return [*found, Column("seconds", "time", "s", "lower")]


def headline(rows: Sequence[Comparison]) -> str:
    """A summary of the table of one experiment, in a sentence or two.

    It names every method, with its best row for the share of edges in the headline.

    >>> headline([])
    'No run is finished.'
    """
    problems = list(dict.fromkeys(row.problem for row in rows))
    if not problems:
        return "No run is finished."
    theta = share(rows)
    if theta is None:
        return "Some runs have no results."
    if len(problems) == 1:
        return _story(rows, theta)
    winners = [_winner([row for row in rows if row.problem == problem], theta) for problem in problems]
    metric = rows[0].metric.name
    wins = {name: winners.count(name) for name in winners if name is not None}
    counts = sorted(wins.items(), key=lambda item: -item[1])
    counts += [("no method alone", winners.count(None))] if None in winners else []
    parts = [f"{name} has the best {metric} in {count} of {len(problems)} problems" for name, count in counts[:1]]
    parts += [f"{name} in {count}" for name, count in counts[1:]]
    return f"With {theta} % of the edges in each constrained layer, {', '.join(parts)}."


def share(rows: Sequence[Comparison]) -> int | None:
    """The percentage of edges in the headline: 5 %, or the nearest one for which every row has a value.

    >>> share([]) is None
    True
    """
    return next((t for t in (5, 10, 25, 2, 1, 50, 100) if rows and all(row.kept.get(t) for row in rows)), None)


def best_first(rows: Sequence[Comparison], theta: int) -> list[Comparison]:
    """The rows of one problem, sorted by their metric with theta % of the edges.

    >>> best_first([], theta=5)
    []
    """

    def place(row: Comparison) -> float:
        value = row.kept.get(theta)
        return math.inf if value is None else -value.mean if row.metric.better == "higher" else value.mean

    return sorted(rows, key=place)


def _row(group: Group) -> Comparison:
    runs = group.finished
    summaries = [run.summary for run in runs]
    names = list(dict.fromkeys(name for summary in summaries for name in mapping(summary.get("layers"))))

    def layers(key: str) -> dict[str, Spread | None]:
        return {
            name: Spread.of(mapping(mapping(s.get("layers")).get(name)).get(key) for s in summaries) for name in names
        }

    return Comparison(
        experiment=group.experiment,
        problem=group.problem,
        method=group.method,
        label=group.label,
        settings=group.settings,
        shared=group.shared,
        count=len(runs),
        metric=measure(runs),
        layers=layers("percent"),
        exact=layers("exact_percent"),
        network=Spread.of(mapping(s.get("network")).get("percent") for s in summaries),
        kept={theta: Spread.of(mapping(s.get("kept")).get(str(theta)) for s in summaries) for theta in THETAS},
        gap=Spread.of(mapping(s.get("gap")).get("exact") for s in summaries),
        seconds=Spread.of(s.get("seconds") for s in summaries),
        runs=runs,
    )


def _winners(rows: Sequence[Comparison], column: Column) -> list[int]:
    """The rows with the best printed value; empty if the column has no better direction or all are equal."""
    values = {index: value.mean for index, row in enumerate(rows) if (value := row.value(column.key)) is not None}
    if len(values) < 2 or (column.key == "gap" and not _same_set(rows)):
        return []
    target = (max if column.better == "higher" else min)(values.values())
    digits = {index: rows[index].digits(column.key, value) for index, value in values.items()}
    best = rows[0].digits(column.key, target)
    winners = [index for index, text in digits.items() if text == best]
    return winners if len(winners) < len(values) else []


def _same_set(rows: Sequence[Comparison]) -> bool:
    """Whether gaps can be compared: they depend on the learning rates and the radii."""
    keys = ("lr", "constrained_lr", "radius")
    return len({str([row.runs[0].config.get(key) for key in keys]) for row in rows if row.gap}) == 1


def _ranked(rows: Sequence[Comparison], theta: int) -> list[Comparison]:
    """The best row of each method with theta % of its edges, best method first."""
    ranked = best_first(rows, theta)
    return [row for index, row in enumerate(ranked) if row.method not in {better.method for better in ranked[:index]}]


def _winner(rows: Sequence[Comparison], theta: int) -> str | None:
    """The method whose printed value with theta % of the edges is better than that of any other."""
    ranked = _ranked(rows, theta)
    shown = [row.text(f"kept:{theta}").partition(" ")[0] for row in ranked]
    return None if shown[1:2] == shown[:1] else ranked[0].name


def _story(rows: Sequence[Comparison], theta: int) -> str:
    ranked, tail = _ranked(rows, theta), _tail(rows)
    chosen = ", each method's best setting with that share" if len(rows) > len(ranked) else ""
    sentences = ["; ".join(_part(row, theta, tail, first=row is ranked[0]) for row in ranked) + chosen]
    whole = _ranked(rows, 100)
    if theta != 100 and {id(row) for row in whole} != {id(row) for row in ranked}:
        told = "; ".join(f"{_dense(row)} {_value(row, 100)} ({_runs(row, tail)})" for row in whole)
        sentences.append(f"with all edges, the best of each method: {told}")
    sparse = [row for row in ranked if any(row.layers.values())]
    if sparse and theta != 100:
        found = "; ".join(f"{row.name} {_percentages(row)}" for row in sparse)
        sentences.append(f"edges of at least 0.001 in the constrained layers: {found}")
    return " ".join(f"{text[:1].upper()}{text[1:]}." for text in sentences)


def _part(row: Comparison, theta: int, tail: int, *, first: bool) -> str:
    """``SFW-IF (run if-5) keeps 97.1 % accuracy with 5 % of its edges (97.2 % with all)``."""
    left, whole = row.kept[theta], row.kept.get(100)
    who = f"{_dense(row)} ({_runs(row, tail)})"
    noun = f" {row.metric.name}" if first else ""
    edges = f" with {theta} % of its edges" if first and theta < 100 else ""
    if left is None or whole is None or theta == 100:
        return f"{who} has {_value(row, theta)}{noun}{edges}"
    close = 1.0 if row.metric.unit == "%" else 0.05 * abs(whole.mean)
    change = left.mean - whole.mean
    verb = "keeps" if abs(change) <= close else "falls to" if change < 0 else "rises to"
    return f"{who} {verb} {_value(row, theta)}{noun}{edges} ({_value(row, 100)} with all)"


def _dense(row: Comparison) -> str:
    return f"dense {row.name}" if row.method == "sgd" else row.name


def _value(row: Comparison, theta: int) -> str:
    """The metric with theta % of the edges: ``97.1 %``, of several runs ``97.1 ± 0.3 %``."""
    return f"{row.text(f'kept:{theta}')} {row.metric.unit}".rstrip()


def _tail(rows: Sequence[Comparison]) -> int:
    """How many names at the end of their paths distinguish all runs of these rows."""
    paths = [run.path.resolve().parts for row in rows for run in row.runs]
    longest = max(len(parts) for parts in paths)
    return next(n for n in range(1, longest + 1) if len({parts[-n:] for parts in paths}) == len(paths))


def _runs(row: Comparison, tail: int) -> str:
    """``run if-5``, or ``runs if-5-0 and 2 more``."""
    names = ["/".join(run.path.resolve().parts[-tail:]) for run in row.runs]
    told = names if len(names) < 3 else [names[0], f"{len(names) - 1} more"]
    return f"run{'s' if len(names) > 1 else ''} {_listed(told)}"


def _percentages(row: Comparison) -> str:
    return _listed([f"{value.mean:.1f} %" for value in row.layers.values() if value])


def _listed(parts: Sequence[str]) -> str:
    """
    >>> _listed(["a"]), _listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join([", ".join(parts[:-1]), *parts[-1:]] if len(parts) > 1 else parts)
