"""Results as tables in a terminal."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from inface.text import printable

if TYPE_CHECKING:  # help does not wait for torch
    from inface.lab.report.comparison import Comparison
    from inface.lab.runs.run import Run

__all__ = ["print_comparison", "print_measured", "print_summary", "shown"]


def print_summary(run: Run) -> None:
    """Print the final metrics of a run, and its folder."""
    print_measured(run.summary)
    Console().print(
        f"\n{run.summary['steps']:,} gradients in {run.summary['seconds']:.1f} s, written to {printable(run.path)}",
        soft_wrap=True,
        highlight=False,
        markup=False,
    )


def print_comparison(runs: Sequence[Run]) -> None:
    """Print runs side by side: density, and the metric with all and with fewer edges; the best in bold."""
    from inface.lab.report import compare

    rows = compare(runs)
    thetas = [theta for theta in rows[0].kept if theta != 50]  # they fill a terminal of 80 columns
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("\nmethod")
    table.add_column("density\n%", justify="right")
    for number, _ in enumerate(rows[0].layers, 1):
        table.add_column(f"layer {number}\n%", justify="right")
    for theta in thetas:
        metric = rows[0].metric
        heading = f"{metric.name}\n{metric.unit}" if theta == 100 else f"top\n{theta} %"
        table.add_column(heading, justify="right")
    for row in rows:
        keys = [f"exact:{layer}" for layer in row.layers] + [f"kept:{theta}" for theta in thetas]
        means = [value and value.mean for value in map(row.value, keys)]
        cells = list(map(_shown, means))
        bold = [f"[bold]{cell}[/bold]" if key in row.best else cell for key, cell in zip(keys, cells, strict=True)]
        table.add_row(shown(row.name), _density(row), *bold)
    console = Console()
    console.print(table)
    seeds = max(row.count for row in rows)
    console.print(
        f"\nDensity: the edges that are not zero, of the constrained layers together and of each.\nTest "
        f"{rows[0].metric.name} with all of them, and with the largest 25 % to 1 % of each layer"
        + (f"; means over {seeds} seeds." if seeds > 1 else "."),
        highlight=False,
    )


def _density(row: Comparison) -> str:
    """The mean density of the constrained layers together, of the runs of a row."""
    if not row.layers:
        return "-"
    return _shown(statistics.fmean(_exact_percent(run.summary["layers"]) for run in row.runs))


def _exact_percent(layers: Mapping[str, Any]) -> float:
    """The percentage of the edges of some layers together that are not exactly zero."""
    sizes = [counted["inputs"] * counted["nodes"] for counted in layers.values()]
    left = [size * counted["exact_percent"] for size, counted in zip(sizes, layers.values(), strict=True)]
    return sum(left) / max(1, sum(sizes))


def print_measured(measured: Mapping[str, Any]) -> None:
    """Print the sparsity of the layers, and the metric with fewer and fewer edges."""
    metric = measured["metric"]
    layers = Table(box=None, padding=(0, 2, 0, 0))
    layers.add_column("layer")
    for heading in ("edges", "non-zero %", "per node", "exactly non-zero %"):
        layers.add_column(heading, justify="right")
    for name, counted in measured["layers"].items():
        layers.add_row(
            shown(name),
            f"{counted['inputs'] * counted['nodes']:,}",
            f"{counted['percent']:.2f}",
            f"{counted['edges']:.1f}",
            f"{counted['exact_percent']:.2f}",
        )
    if len(measured["layers"]) > 1:
        layers.add_row("together", "", "", "", f"{_exact_percent(measured['layers']):.2f}")
    network = measured["network"]
    layers.add_row("whole network", f"{network['total']:,}", f"{network['percent']:.2f}", "", "")
    kept = Table(box=None, padding=(0, 2, 0, 0))
    kept.add_column("edges kept, %")
    for theta in measured["kept"]:
        kept.add_column(shown(theta), justify="right")
    kept.add_row(
        shown(", ".join(filter(None, (metric["name"], metric["unit"])))), *map(_shown, measured["kept"].values())
    )
    if len(measured["layers"]) > 1 and "kept_together" in measured:  # older runs have none
        kept.add_row("of these layers together", *map(_shown, measured["kept_together"].values()))
    if "kept_balanced" in measured:
        kept.add_row("the same, balanced", *map(_shown, measured["kept_balanced"].values()))
    console = Console()
    console.print(layers)
    console.print()
    console.print(kept)
    gap = measured["gap"]
    tail = f"\nloss {_shown(measured['loss'])}"
    console.print(tail + (f", exact modified gap {_shown(gap['exact'])}" if gap else ""), highlight=False)


def shown(name: object) -> Text:
    """A name from a file, without control characters and without rich's markup."""
    return Text(printable(name))


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}" if abs(value) >= 1 else f"{value:.4g}"
