"""The commands of the command line, and how errors become exit codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from inface.lab.errors import LabError
from inface.text import printable
from inface.version import __version__

from . import data, evaluate, experiments, export, report, reproduce, sweep, train
from .demo import demo

__all__ = ["app", "run"]

app = typer.Typer(
    name="inface",
    epilog="Start with: inface demo. Then: inface train digits --out runs/digits, and inface report runs/digits.",
    no_args_is_help=True,
    invoke_without_command=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def inface(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    """Train sparse networks by construction, measure them, and compare the results."""
    if version:
        typer.echo(f"inface {__version__}")
        raise typer.Exit


app.command()(demo)
app.command()(train.train)
app.command()(sweep.sweep)
app.command()(evaluate.evaluate)
app.command()(report.report)
app.command()(export.export)
app.command()(experiments.experiments)
app.add_typer(reproduce.app, name="reproduce")
app.add_typer(data.app, name="data")


def run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code; an error is one line on standard error."""
    try:
        code = app(spread(arguments), prog_name="inface", standalone_mode=False)
    except LabError as error:
        typer.echo(f"inface: {error}", err=True)
        return error.exit_code
    except typer.TyperException as error:
        if message := " ".join(error.format_message().split()):  # a command without arguments has printed its help
            typer.echo(f"inface: {printable(message)}", err=True)
        return error.exit_code
    except typer.Abort:
        return 130
    return code if isinstance(code, int) else 0


def spread(arguments: Sequence[str]) -> list[str]:
    """Rewrite ``--radius 1 10`` as ``--radius 1 --radius 10``, and the same for ``--constrained-lr``.

    >>> spread(["train", "digits", "--radius", "1", "10", "--lr", "2"])
    ['train', 'digits', '--radius', '1', '--radius', '10', '--lr', '2']
    """
    result: list[str] = []
    option, values = "", 0  # the current option, and the number of its values so far
    for argument in arguments:
        if values > 1 and _is_number(argument):
            result.append(option)
        name, equals, _ = argument.partition("=")
        if name in ("--radius", "--constrained-lr"):
            option, values = name, 2 if equals else 1
        else:
            values = values + 1 if values and (values == 1 or _is_number(argument)) else 0
        result.append(argument)
    return result


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
