"""The benchmark as Markdown."""

from __future__ import annotations

import inspect
import math
import statistics
from collections.abc import Iterator
from typing import Any, NamedTuple

from inface.lab.experiments.builtin import BUILT_IN, find
from inface.lab.runs.settings import METHODS

from .benchmark_rows import NETWORKS
from .published import LENETS
from .table_pages import line, spread, versions_told

__all__ = ["Line", "benchmark_page", "lines_of"]

Cells = dict[float, dict[str, Any]]

# Trained once for all densities: their columns are such cuts already.
CUT_ANYWAY = ("sgd", "proximal", "sfw-if")


class Line(NamedTuple):
    """A line of a network's table: a method, and the cell of each density that is there."""

    method: str
    label: str
    cells: Cells


def benchmark_page(table: dict[str, Any], name: str = "benchmark") -> str:
    """The table of every network; ``name`` is that of the files."""
    text = [
        "# Benchmark",
        "",
        "Accuracy on test data, in percent, of networks with few edges. Each method was trained at three learning rates",
        "(proximal SGD also with three penalties) on a part of the training data and judged on the rest, with one seed.",
        "The best setting was then trained on all training data. Numbers are means and standard deviations over seeds. All",
        "methods of a network take equally many gradients, with a cosine schedule and, under SGD, momentum 0.9. SFW-IF is",
        "as in the paper: constant steps, no momentum, and its constant L in place of the learning rate.",
        "",
        "In each column the best method is bold, and so is every other whose mean is within its standard deviation.",
        "*uniform*: the same density in every layer. *global*: one threshold for all layers. *erk*: small layers are",
        "denser. *cut at the end*: trained once for all densities; only the largest edges of all layers together are kept,",
        "without retraining. *seconds* are of one run on one core of a machine that did other work too.",
        "",
    ]
    for network in (network for network in NETWORKS if network in table["experiments"]):
        text += _block(network, table["experiments"][network], f"{name}-{network}.svg")
    return "\n".join(text)


def lines_of(rows: dict[str, Any]) -> list[Line]:
    """The lines of a network's table. Rows made with other epochs or options than most have lines of their own."""
    epochs = [row["epochs"] for row in rows.values()]
    options = [row["options"] for row in rows.values()]
    found: dict[tuple[str, str], Cells] = {}
    for row in rows.values():
        told = [f"{row['epochs']} epochs"] if row["epochs"] != statistics.mode(epochs) else []
        if row["options"] != max(options, key=options.count):
            told += [_options(row["options"])]
        label = row["told"] + (f" ({', '.join(told)})" if told else "")
        found.setdefault((row["method"], label), {}).update(
            {float(percent): cell for percent, cell in row["cells"].items()}
        )
    lines = [Line(method, label, dict(sorted(cells.items(), reverse=True))) for (method, label), cells in found.items()]
    return sorted(lines, key=lambda line: list(METHODS).index(line.method))  # type: ignore[arg-type]


def _block(name: str, rows: dict[str, Any], picture: str) -> Iterator[str]:
    lines = lines_of(rows)
    columns = sorted({percent for one in lines for percent in one.cells}, reverse=True)
    bold = {percent: _best([one.cells.get(percent) for one in lines]) for percent in columns if percent < 100}
    given = [row["options"] for row in rows.values()]
    options = _options(max(given, key=given.count))
    epochs = statistics.mode(row["epochs"] for row in rows.values())
    yield from [f"## {name}", ""]
    yield f"{(inspect.getdoc(BUILT_IN[name]) or '').splitlines()[0]} {epochs} epochs{options and f', {options}'}."
    yield _counted(name)
    heads = ["method", *("dense" if percent == 100 else f"{percent:g} %" for percent in columns), "seconds"]
    yield from ["", line(heads), "|" + "---|" * len(heads)]
    for _, label, cells in lines:
        told = [_told(cells.get(percent), bold.get(percent, math.inf)) for percent in columns]
        seconds = [run["seconds"] for cell in cells.values() for run in cell["runs"]]
        yield line([label, *told, f"{statistics.fmean(seconds):.0f}" if seconds else ""])
    yield from ["", f"[{picture}]({picture}) shows accuracy against density and against training time.", ""]
    yield from [*_reached(lines), *_further(lines), *_published(name), *_made(rows)]


def _counted(name: str) -> str:
    sets = find(name).sets
    if sets:
        return f"Densities are of its constrained layers, {' and '.join(sets)}; everything else stays dense."
    return "Densities are of the weights of all its layers; biases and norms stay dense."


def _best(cells: list[dict[str, Any] | None]) -> float:
    """The lowest mean of a column that is bold."""
    found = [_accuracies(cell) for cell in cells if cell is not None and cell["runs"]]
    best = max(found, key=statistics.fmean, default=[0.0])
    return statistics.fmean(best) - (statistics.stdev(best) if len(best) > 1 else 0.0)


def _told(cell: dict[str, Any] | None, bold: float) -> str:
    if cell is None:
        return ""
    found = _accuracies(cell)
    told = spread(found) + (f" ({len(cell['diverged'])} diverged)" if cell["diverged"] and found else "")
    return f"**{told}**" if found and statistics.fmean(found) >= bold else told


def _accuracies(cell: dict[str, Any]) -> list[float]:
    return [run["accuracy"] for run in cell["runs"]]


def _reached(lines: list[Line]) -> Iterator[str]:
    """The densities that are not those of their columns by more than a hundredth."""
    other = []
    for _, label, cells in lines:
        for percent, cell in cells.items():
            found = [run["density"] for run in cell["runs"]]
            if found and abs(statistics.fmean(found) / percent - 1) > 0.01:
                other.append(f"{label} at {percent:g} %: {statistics.fmean(found):.2g} %")
    if other:
        yield from [f"Densities that differ from those of their columns: {'; '.join(other)}.", ""]


def _further(lines: list[Line]) -> Iterator[str]:
    """What is left of networks that are cut further."""
    shown = []
    for label, cells in [(label, cells) for method, label, cells in lines if method not in CUT_ANYWAY]:
        for percent, cell in cells.items():
            for kind, told in (("cut", ""), ("balanced", ", balanced")):
                runs = [run[kind] for run in cell["runs"] if run.get(kind)]
                if any(runs):
                    shown.append((f"{label}, trained to {percent:g} %{told}", runs))
    if not shown:
        return
    cuts = sorted({int(cut) for _, runs in shown for run in runs for cut in run}, reverse=True)
    yield from ["Cut further at the end, without retraining, to the largest edges of all layers together; *balanced*:"]
    yield from [
        'by LAMP scores, and what is left of a layer is enlarged (`hard_threshold(..., scope="balanced")`). Statistics of'
    ]
    yield from ["batch normalisation are those from before the cut.", ""]
    yield from [line(["", *(f"{cut} %" for cut in cuts)]), "|" + "---|" * (len(cuts) + 1)]
    for label, runs in shown:
        found = [[run[str(cut)] for run in runs if str(cut) in run] for cut in cuts]
        yield line([label, *(spread(values) if values else "" for values in found)])
    yield ""


def _published(name: str) -> Iterator[str]:
    if name in LENETS:
        each = [
            f"{100 - one.error:.2f} % at 1/{one.times} of the weights ({100 / one.times:.2g} %; {one.method})"
            for one in LENETS[name]
        ]
        yield from [f"Published, with longer training and other settings: {', '.join(each)}.", ""]


def _made(rows: dict[str, Any]) -> Iterator[str]:
    commands = dict.fromkeys(row["command"] for row in rows.values())
    versions = dict.fromkeys(versions_told(row["versions"]) for row in rows.values())
    yield from [f"Made by {' and '.join(f'`{text}`' for text in commands)}", f"with {'; '.join(versions)}.", ""]


def _options(options: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items() if value is not None)
