"""The tables as Markdown."""

from __future__ import annotations

import statistics
from typing import Any

from .published import EPOCHS, LINES, TABLE_1, Reported
from .rows import beyond_rows

__all__ = ["beyond_page", "line", "paper_page", "spread", "versions_told"]

PAPER = (100, 50, 25, 10, 5)
BEYOND = (100, 25, 10, 5, 2)


def paper_page(table: dict[str, Any]) -> str:
    """Table 1, the paper's numbers in brackets."""
    lines = [
        f"# Table 1, reproduced{_haste(table)}",
        "",
        "Settings were chosen on held-out training data, by the accuracy with all edges (the mean over seeds, if",
        "there are several). The column *tried* has their number. The chosen settings were then trained on all",
        "training data and measured on the test data. Numbers are means and standard deviations over seeds; the",
        "paper's numbers are in brackets.",
        "",
        "* *layer 1* and *layer 2*: the average percentage of edges into a node that are at least 0.001, in the two",
        "  constrained layers (the paper's count).",
        "* *network*: the percentage of all parameters that are not exactly zero, including convolutions, the last",
        "  layer and biases.",
        "* *top 5 %*: the accuracy with the largest 5 % of the edges of each constrained layer; in the lines",
        '  *together*, with the largest 5 % of both layers together. The paper keeps the largest "edges in the',
        '  Frank-Wolfe layers", which can be read both ways.',
        "* *sfw-if-every*: the free layers move with every gradient, as in the authors' published code. In *sfw-if* they",
        "  move once per iteration, with the first of its two gradients, as in Algorithm 1. SFW has one gradient per",
        "  iteration, so that both are the same.",
        "",
    ]
    for experiment, rows in _in_order(table):
        told = TABLE_1[experiment]
        lines += _heading(experiment, ["method", "tried", "L; radii"], PAPER, extra=["top 2 %"])
        for name in (name for name in LINES if name in rows):
            row, paper = rows[name], told[LINES[name]]
            for end in row["winners"]:
                cells = [_named(name, end), _tried(row), _chosen(end["best"])]
                cells += [f"{_layer(end, index)} [{paper.nonzeros[index]:g}]" for index in (0, 1)]
                cells += [_network(end)]
                lines.append(line([*cells, *_beside(end, paper, "kept")]))
                if _has_together(end):
                    lines.append(line([*_told_above(name, cells), *_beside(end, paper, "kept_together")]))
        lines += _effort(rows)
    return "\n".join(lines)


def beyond_page(table: dict[str, Any]) -> str:
    """The second table."""
    lines = [
        f"# Beyond the paper{_haste(table)}",
        "",
        "The same networks with the same number of gradients: SFW-IF with momentum and a cosine schedule, against",
        "dense SGD and the baselines. The settings of every line were chosen on held-out training data, by the",
        "accuracy with the percentages of edges in its second column (the mean over seeds, if there are several).",
        "The chosen settings were then trained on all training data and measured on the test data. Numbers are means",
        "and standard deviations over seeds. Non-zeros are counted as in Table 1.",
        "",
        "*top 5 %* is the accuracy with the largest 5 % of the edges of each constrained layer; in the lines",
        "*together* (where it was measured), with the largest 5 % of both layers together. For SGD this is one-shot",
        "magnitude pruning. For networks that were pruned to 5 %, the columns with fewer edges are a second pruning",
        "without fine-tuning.",
        "",
    ]
    for experiment, rows in _in_order(table):
        lines += _heading(experiment, ["how", "chosen with", "tried", "settings"], BEYOND)
        order = [row.name for row in beyond_rows(experiment)]
        for name in sorted(rows, key=lambda name: order.index(name) if name in order else len(order)):
            row = rows[name]
            for end in row["winners"]:
                thetas = " and ".join(f"{theta} %" for theta in end["chosen_with"])
                cells = [_named(row["told"], end), thetas, _tried(row), _everything(row["grid"], end["best"])]
                cells += [*(_layer(end, index) for index in (0, 1)), _network(end)]
                lines.append(line([*cells, *(_kept(end, theta) for theta in BEYOND)]))
                if _has_together(end):
                    kept = [_kept(end, theta, "kept_together") for theta in BEYOND]
                    lines.append(line([*_told_above(row["told"], cells), *kept]))
        lines += _effort(rows)
    return "\n".join(lines)


def _has_together(end: dict[str, Any]) -> bool:
    """Whether the runs hold the accuracy with the largest edges of all layers together; older runs do not."""
    return all("kept_together" in run for run in end["final"])


def _told_above(name: str, cells: list[str]) -> list[str]:
    """The first cells of a line that continues the one above."""
    return [f"{name}, together", *[""] * (len(cells) - 1)]


def _in_order(table: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(name, table["experiments"][name]) for name in TABLE_1 if name in table["experiments"]]


def _haste(table: dict[str, Any]) -> str:
    """A note in the title if the table was made with fewer epochs than the paper's."""
    ends = [end for rows in table["experiments"].values() for row in rows.values() for end in row["winners"]]
    epochs = {end["best"]["epochs"] for end in ends}
    return "" if epochs <= {EPOCHS} else f" (quick: {max(epochs)} epochs, to see it work)"


def _tried(row: dict[str, Any]) -> str:
    """How many settings were tried, and with how many seeds if not one."""
    seeds = _seeds(row)
    times = f", {seeds} seeds each" if seeds > 1 else ""
    return f"{_settings(row)}{times}{' (coarse)' if row['part'] == 'coarse' else ''}"


def _settings(row: dict[str, Any]) -> int:
    return len(row["trials"]) // _seeds(row)


def _seeds(row: dict[str, Any]) -> int:
    return len(row["grid"].get("seed", [0]))


def _heading(experiment: str, first: list[str], thetas: tuple[int, ...], extra: list[str] | None = None) -> list[str]:
    counts = ["layer 1 %", "layer 2 %", "network %"]
    names = [*first, *counts, *("all edges" if theta == 100 else f"top {theta} %" for theta in thetas), *(extra or [])]
    return [f"## {experiment}", "", line(names), "|" + "---|" * len(names)]


def line(cells: list[str]) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def _effort(rows: dict[str, Any]) -> list[str]:
    """The cost of a table, and the commands that made it."""
    settings = sum(_settings(row) for row in rows.values())
    epochs = sum(trial["epochs"] for row in rows.values() for trial in row["trials"])
    tuning = sum(row["trial_seconds"] for row in rows.values())
    finals = [run for row in rows.values() for end in row["winners"] for run in end["final"]]
    seconds = tuning + sum(run["seconds"] for run in finals)
    jobs = " or ".join(str(number) for number in sorted({row["jobs"] for row in rows.values()}))
    versions = {text: None for row in rows.values() for text in [versions_told(row["versions"])]}
    commands = {row["command"]: None for row in rows.values()}
    return [
        "",
        f"{settings:,} settings were tried ({epochs:,} epochs, including those of settings stopped early), and",
        f"{len(finals)} final networks were trained, {jobs} at once. This took {seconds / 60:,.0f} minutes of",
        "wall-clock time, added up over runs.",
        f"Made by {' and '.join(f'`{text}`' for text in commands)}",
        f"with {'; '.join(versions)}.",
        "",
    ]


def _named(name: str, end: dict[str, Any]) -> str:
    """The label of a line, with the number of seeds that diverged."""
    diverged, finished = len(end["diverged"]), len(end["final"])
    return f"{name} ({diverged} of {diverged + finished} seeds diverged)" if diverged else name


def versions_told(versions: dict[str, str]) -> str:
    """Versions in words."""
    return ", ".join(f"{name} {number}" for name, number in versions.items())


def _layer(end: dict[str, Any], index: int) -> str:
    return spread([list(run["layers"].values())[index]["percent"] for run in end["final"]])


def _network(end: dict[str, Any]) -> str:
    return spread([run["network"]["exact_percent"] for run in end["final"]])


def _beside(end: dict[str, Any], paper: Reported, kept: str) -> list[str]:
    """The accuracies with fewer and fewer edges, the paper's in brackets."""
    return [*(f"{_kept(end, theta, kept)} [{paper.kept[theta]:g}]" for theta in PAPER), _kept(end, 2, kept)]


def _kept(end: dict[str, Any], theta: int, kept: str = "kept") -> str:
    return spread([run[kept][str(theta)] for run in end["final"]])


def spread(values: list[float]) -> str:
    """Mean and standard deviation."""
    if not values:
        return "diverged"
    mean = f"{statistics.fmean(values):.2f}"
    return f"{mean} ± {statistics.stdev(values):.2f}" if len(values) > 1 else mean


def _chosen(best: dict[str, Any]) -> str:
    radii = "" if best["radius"] is None else f"; {_numbers(best['radius'])}"
    return f"{1 / (2 * best['lr']):g}{radii}"


def _everything(grid: dict[str, list[Any]], best: dict[str, Any]) -> str:
    """The chosen values of the settings in the grid."""
    names = {"radius": "radii"}
    chosen = [name for name in grid if name != "seed"]
    return ", ".join(f"{names.get(name, name.replace('_', ' '))} {_value(best[name])}" for name in chosen)


def _value(value: Any) -> str:
    if isinstance(value, list):
        return " and ".join(f"{each:g}" for each in value)
    return value if isinstance(value, str) else f"{value or 0:g}"


def _numbers(values: list[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
