"""``inface export``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from inface.text import printable
from inface.types import Format

from .ui.options import AcceptChangedFile, DataFolder, ExperimentFile, one_of, part

__all__ = ["export"]


def export(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.", metavar="RUN", show_default=False)],
    *,
    formats: Annotated[
        list[str] | None,
        typer.Option(
            "--format",
            help="compact, sparse, onnx or torch (torch.export); may be repeated. [dim]\\[default: sparse][/dim]",
            show_default=False,
            autocompletion=one_of(*get_args(Format)),
        ),
    ] = None,
    keep: Annotated[
        float | None,
        typer.Option(
            help="Keep this part of the edges of each constrained layer: 5% or 0.05. [dim]\\[default: all][/dim]",
            parser=part,
            metavar="PART",
            show_default=False,
        ),
    ] = None,
    half: Annotated[bool, typer.Option("--half", help="Round the values of the sparse file to float16.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The folder of the files. [dim]\\[default: RUN/export][/dim]", metavar="DIR", show_default=False
        ),
    ] = None,
    data: DataFolder = None,
    experiment: ExperimentFile = None,
    accept_changed_file: AcceptChangedFile = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Export the network of a run, smaller and faster, and report its cost: bytes, operations, time, accuracy.

    [bold]Examples[/bold]

    $ inface export runs/digits --format sparse --keep 5%

    $ inface export runs/digits --format compact --format onnx
    """
    from inface.lab.runs.export import export_run
    from inface.lab.runs.run import Run

    chosen = cast("list[Format]", formats or ["sparse"])
    exported = export_run(
        Run(run),
        out,
        formats=chosen,
        keep=keep,
        half=half,
        data=data,
        experiment=experiment,
        accept_changed_file=accept_changed_file,
    )
    if as_json:
        typer.echo(json.dumps(exported.told, indent=1))
        return
    typer.echo("\n".join(map(printable, f"{exported.costs}\n".split("\n"))))
    metric = exported.told["metric"]
    values = {key: value for key, value in metric.items() if key not in ("name", "unit", "better")}
    shown = ", ".join(f"{name} {'-' if value is None else f'{value:.4g}'}" for name, value in values.items())
    told = f"{metric['name']} ({metric['unit']}): {shown}" if metric["unit"] else f"{metric['name']}: {shown}"
    typer.echo(printable(told))
    for file in exported.files.values():
        typer.echo(f"written: {printable(file)} ({file.stat().st_size:,} bytes)")
