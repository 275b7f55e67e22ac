"""``inface demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from inface.text import printable

__all__ = ["demo"]


def demo(
    out: Annotated[Path, typer.Option(help="The folder of the runs and the report.", metavar="DIR")] = Path(
        "inface-demo"
    ),
    trials: Annotated[int, typer.Option(help="Seeds of each method.", min=1)] = 3,
) -> None:
    """Train on the bundled digits: dense SGD, SFW-IF, and a network at 5 % of the edges. Print a table, write a report.

    [bold]Examples[/bold]

    $ inface demo

    $ inface demo --out somewhere --trials 1
    """
    from inface.lab.demo import demo as demonstrate

    from .ui.display import display
    from .ui.tables import print_comparison

    runs, page = demonstrate(out, display, trials=trials)
    typer.echo()
    print_comparison(runs)
    typer.echo(f"\nThe report, with images of the first layer: {printable(page.resolve())}")
