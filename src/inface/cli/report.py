"""``inface report``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, cast

import typer

from inface.text import printable

from .ui.options import one_of

__all__ = ["report"]


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Folders of runs, or folders that hold them.", metavar="RUN", show_default=False),
    ],
    *,
    out: Annotated[Path, typer.Option(help="The HTML file.", metavar="FILE")] = Path("report.html"),
    figures: Annotated[
        Path | None, typer.Option(help="Also write the figures to this folder.", metavar="DIR", show_default=False)
    ] = None,
    formats: Annotated[
        list[str] | None,
        typer.Option(
            "--format",
            help="The format of these files: svg or png; may be repeated. [dim]\\[default: svg][/dim]",
            autocompletion=one_of("svg", "png"),
            metavar="FORMAT",
            show_default=False,
        ),
    ] = None,
    title: Annotated[str | None, typer.Option(help="The title of the page.", show_default=False)] = None,
) -> None:
    """Compare runs in one self-contained HTML file, and in figures.

    [bold]Examples[/bold]

    $ inface report runs/sgd runs/sfw runs/sfw-if

    $ inface report runs/* --out comparison.html --figures figures --format png --format svg
    """
    from inface.lab.report import Format, write_report
    from inface.lab.runs.run import runs_in

    kinds = cast("Sequence[Format]", formats or ["svg"])  # checked by write_report
    page = write_report(
        [run for folder in runs for run in runs_in(folder)], out, figures=figures, formats=kinds, title=title
    )
    typer.echo(f"written: {printable(page)}")
    if figures:
        typer.echo(f"figures: {printable(figures)}")
