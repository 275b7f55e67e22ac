"""``inface evaluate``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .ui.options import AcceptChangedFile, DataFolder, ExperimentFile

__all__ = ["evaluate"]


def evaluate(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.", metavar="RUN", show_default=False)],
    *,
    data: DataFolder = None,
    experiment: ExperimentFile = None,
    accept_changed_file: AcceptChangedFile = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Measure the saved network of a run again, from its weights and the data.

    [bold]Examples[/bold]

    $ inface evaluate runs/digits

    $ inface evaluate runs/digits --json | jq .kept
    """
    from inface.lab.runs.evaluation import evaluate as measure_again
    from inface.lab.runs.run import Run

    from .ui.tables import print_measured

    measured = measure_again(Run(run), data=data, experiment=experiment, accept_changed_file=accept_changed_file)
    if as_json:
        typer.echo(json.dumps(measured, indent=1))
    else:
        print_measured(measured)
