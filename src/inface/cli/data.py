"""``inface data``."""

from __future__ import annotations

from typing import Annotated

import typer

from inface.lab.errors import LabError
from inface.text import printable

from .ui.options import DataFolder, one_of
from .ui.tables import shown

__all__ = ["app"]

app = typer.Typer(help="Check and download the data sets.", no_args_is_help=True)


@app.command()
def status(data: DataFolder = None) -> None:
    """List the data sets, and check their files; the exit code is 1 if one is damaged.

    [bold]Examples[/bold]

    $ inface data status
    """
    from rich.console import Console
    from rich.table import Table

    from inface.lab.experiments.data import folder
    from inface.lab.experiments.data import status as look

    where = folder(data)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("data set", "state", "contents"):
        table.add_column(heading)
    sets = look(where)
    for found in sets:
        table.add_row(found.name, found.state, shown(found.detail))
    console = Console()
    console.print(table)
    console.print(f"\nfolder: {printable(where)}", soft_wrap=True, highlight=False, markup=False)
    if any(found.state == "damaged" for found in sets):
        raise typer.Exit(1)


@app.command()
def fetch(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="mnist or cifar10; by default both.",
            metavar="NAME",
            show_default=False,
            autocompletion=one_of("mnist", "cifar10"),
        ),
    ] = None,
    *,
    data: DataFolder = None,
) -> None:
    """Download data sets. Existing files are left alone, and interrupted downloads are resumed.

    [bold]Examples[/bold]

    $ inface data fetch mnist

    $ inface data fetch mnist cifar10 --data big-disk
    """
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

    from inface.lab.experiments.data import REMOTES, folder
    from inface.lab.experiments.data import fetch as download
    from inface.lab.experiments.data import status as look

    where, wanted = folder(data), names or list(REMOTES)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns) as progress:
        tasks: dict[str, TaskID] = {}

        def show(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = progress.add_task(file)
            progress.update(tasks[file], completed=done, total=total)

        for name in wanted:
            download(name, where, progress=show)
    for found in look(where):
        if found.name in wanted and found.state == "damaged":
            raise LabError(f"{found.detail}; delete it and fetch again")
    typer.echo(f"{', '.join(wanted)}: in {printable(where)}")
