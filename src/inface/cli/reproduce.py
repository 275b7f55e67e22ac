"""``inface reproduce``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from inface.lab.errors import ArgumentError, suggestion

from .options import DataFolder, one_of, whole_number

__all__ = ["app"]

app = typer.Typer(help="The paper's tables and figures, made again beside its own numbers.", no_args_is_help=True)

NETWORKS = ("mnist-mlp", "mnist-conv", "cifar10")


@app.command()
def table1(
    *,
    experiment: Annotated[
        list[str] | None,
        typer.Option(
            help="Of mnist-mlp, mnist-conv, cifar10; may be repeated. [dim]\\[default: all][/dim]",
            show_default=False,
            autocompletion=one_of(*NETWORKS),
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A version of minutes: few settings, three epochs, one seed.")
    ] = False,
    jobs: Annotated[int, typer.Option(help="Worker processes, one thread each.", parser=whole_number, metavar="N")] = 1,
    out: Annotated[Path, typer.Option(help="The folder of the sweeps.", metavar="DIR")] = Path("reproduction"),
    results: Annotated[Path, typer.Option(help="The folder of the table.", metavar="DIR")] = Path("results"),
    data: DataFolder = None,
) -> None:
    """Table 1: sparsity and accuracy of SFW-IF, SFW and SGD on three networks, settings chosen on held-out data.

    It can be killed at any moment: the same command goes on.

    [bold]Examples[/bold]

    $ inface reproduce table1 --quick --experiment mnist-mlp

    $ inface reproduce table1 --experiment mnist-mlp --experiment cifar10 --jobs 2
    """
    from inface.lab.reproduction import reproduce_table

    from .sweeping import continued, named_progress

    chosen = experiment or list(NETWORKS)
    for name in chosen:
        if name not in NETWORKS:
            raise ArgumentError(f"--experiment: wanted {', '.join(NETWORKS)}, got {name}{suggestion(name, NETWORKS)}")
    if jobs < 1:
        raise ArgumentError(f"--jobs: wanted a whole number >= 1, got {jobs}")
    with named_progress() as show, continued():
        page = reproduce_table(
            chosen,
            out=out,
            results=results,
            jobs=jobs,
            quick=quick,
            data=None if data is None else str(data),
            show=show,
        )
    typer.echo(f"written: {page}")
