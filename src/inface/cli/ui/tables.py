"""Results as tables in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from inface.text import printable

if TYPE_CHECKING:  # help does not wait for torch
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
    """Print runs side by side: sparsity, and the metric with fewer and fewer edges; the best in bold."""
    from inface.lab.report import compare

    rows = compare(runs)
    thetas = list(rows[0].kept)
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("\nmethod")
    for number, _ in enumerate(rows[0].layers, 1):
        table.add_column(f"layer {number}\nnon-zero", justify="right")
    for theta in thetas:
        table.add_column(f"top\n{theta} %", justify="right")
    for row in rows:
        keys = [f"layer:{layer}" for layer in row.layers] + [f"kept:{theta}" for theta in thetas]
        means = [value and value.mean for value in map(row.value, keys)]
        cells = [
            _shown(mean) + (" %" if key.startswith("layer:") else "") for key, mean in zip(keys, means, strict=True)
        ]
        bold = [f"[bold]{cell}[/bold]" if key in row.best else cell for key, cell in zip(keys, cells, strict=True)]
        table.add_row(shown(row.name), *bold)
    console = Console()
    console.print(table)
    seeds = max(row.count for row in rows)
    console.print(
        f"\nTest {rows[0].metric.axis} with the largest 100 % to 1 % of the edges of each constrained layer"
        + (f", means over {seeds} seeds." if seeds > 1 else "."),
        highlight=False,
    )


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
