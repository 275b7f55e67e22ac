"""The tables as Markdown."""

from __future__ import annotations

import statistics
from typing import Any

from inface.lab.paper import METHODS, TABLE_1

__all__ = ["beyond_page", "paper_page"]

PAPER = (100, 50, 25, 10, 5)
BEYOND = (100, 25, 10, 5, 2)


def paper_page(table: dict[str, Any]) -> str:
    """Table 1, the paper's numbers in brackets."""
    lines = [
        "# Table 1, reproduced",
        "",
        "Settings were chosen on held-out training data, by the accuracy with all edges; the chosen ones were then trained on",
        "all training data and measured on the test data. Mean and standard deviation over seeds; the paper's numbers in",
        "brackets. Non-zeros: the average percentage of edges into a node that are at least 0.001, of the two constrained",
        "layers; *network*: of all parameters, convolutions, last layer and biases included.",
        "",
    ]
    for experiment, rows in table["experiments"].items():
        told = TABLE_1[experiment]
        lines += _heading(experiment, ["method", "L; radii"], PAPER, extra=["top 2 %"])
        for method in (method for method in METHODS if method in rows):
            row, paper = rows[method], told[method]
            cells = [_named(method, row), _chosen(row["best"])]
            cells += [f"{_layer(row, index)} [{paper.nonzeros[index]:g}]" for index in (0, 1)]
            cells += [_network(row)]
            cells += [f"{_kept(row, theta)} [{paper.kept[theta]:g}]" for theta in PAPER]
            lines.append(_line([*cells, _kept(row, 2)]))
        lines += _effort(rows)
    return "\n".join(lines)


def beyond_page(table: dict[str, Any]) -> str:
    """The second table."""
    lines = [
        "# Beyond the paper",
        "",
        "The same networks with the same number of gradients, 25 epochs: in-face Frank-Wolfe with averaged gradients",
        "(momentum) and steps that fall as half a cosine, beside what others do to get a sparse network. Of every line the",
        "settings were chosen on held-out training data, by the accuracy with the percentage of edges in its second column;",
        "the chosen ones were then trained on all training data and measured on the test data. Mean and standard deviation",
        "over seeds. *top 5 %*: the accuracy with the 5 % largest edges of each constrained layer; for SGD that is one-shot",
        "magnitude pruning. Non-zeros as in Table 1.",
        "",
    ]
    for experiment, rows in table["experiments"].items():
        lines += _heading(experiment, ["how", "chosen with", "settings"], BEYOND)
        for row in rows.values():
            cells = [_named(row["told"], row), f"{row['chosen_with']} %", _everything(row)]
            cells += [*(_layer(row, index) for index in (0, 1)), _network(row)]
            lines.append(_line([*cells, *(_kept(row, theta) for theta in BEYOND)]))
        lines += _effort(rows)
    return "\n".join(lines)


def _heading(experiment: str, first: list[str], thetas: tuple[int, ...], extra: list[str] | None = None) -> list[str]:
    counts = ["layer 1 %", "layer 2 %", "network %"]
    names = [*first, *counts, *("all edges" if theta == 100 else f"top {theta} %" for theta in thetas), *(extra or [])]
    return [f"## {experiment}", "", _line(names), "|" + "---|" * len(names)]


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _effort(rows: dict[str, Any]) -> list[str]:
    """What a table took, and how it was made."""
    settings = sum(len(row["trials"]) for row in rows.values())
    epochs = sum(trial["epochs"] for row in rows.values() for trial in row["trials"])
    tuning = sum(row["trial_seconds"] for row in rows.values())
    finals = [run for row in rows.values() for run in row["final"]]
    seconds = tuning + sum(run["seconds"] for run in finals)
    versions = {text: None for row in rows.values() for text in [_versions(row["versions"])]}
    commands = {row["command"]: None for row in rows.values()}
    return [
        "",
        f"{settings:,} settings were tried ({epochs:,} epochs, those of settings stopped early included) and {len(finals)} networks",
        f"trained in the end: {seconds / 60:,.0f} minutes of one thread. Made by {' and '.join(f'`{text}`' for text in commands)}",
        f"with {'; '.join(versions)}.",
        "",
    ]


def _named(name: str, row: dict[str, Any]) -> str:
    """What a row is called; and if its loss became infinite with some seeds, that it did."""
    diverged, finished = len(row["diverged"]), len(row["final"])
    return f"{name} ({diverged} of {diverged + finished} seeds diverged)" if diverged else name


def _versions(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in versions.items())


def _layer(row: dict[str, Any], index: int) -> str:
    return _spread([list(run["layers"].values())[index]["percent"] for run in row["final"]])


def _network(row: dict[str, Any]) -> str:
    return _spread([run["network"]["percent"] for run in row["final"]])


def _kept(row: dict[str, Any], theta: int) -> str:
    return _spread([run["kept"][str(theta)] for run in row["final"]])


def _spread(values: list[float]) -> str:
    if not values:
        return "diverged"
    mean = f"{statistics.fmean(values):.2f}"
    return f"{mean} ± {statistics.stdev(values):.2f}" if len(values) > 1 else mean


def _chosen(best: dict[str, Any]) -> str:
    radii = "" if best["radius"] is None else f"; {_numbers(best['radius'])}"
    return f"{1 / (2 * best['lr']):g}{radii}"


def _everything(row: dict[str, Any]) -> str:
    """The settings that were chosen among others."""
    best = row["best"]
    names = {"constrained_lr": "constrained lr", "free_momentum": "free momentum", "radius": "radii"}
    told = []
    for name in row["grid"]:
        value = best[name]
        told.append(f"{names.get(name, name)} {_numbers(value) if isinstance(value, list) else f'{value}'}")
    return ", ".join(told)


def _numbers(values: list[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
