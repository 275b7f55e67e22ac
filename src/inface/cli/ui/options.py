"""Options that several commands share, and their completions."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from inface.lab.experiments import EXPERIMENTS
from inface.lab.runs import kinds

__all__ = [
    "AcceptChangedFile",
    "DataFolder",
    "ExperimentFile",
    "experiment_names",
    "number",
    "one_of",
    "option",
    "part",
    "whole_number",
]

DataFolder = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="The data folder. [dim]\\[default: $INFACE_DATA, else inface in the cache folder][/dim]",
        metavar="DIR",
        show_default=False,
    ),
]
ExperimentFile = Annotated[
    str | None,
    typer.Option(
        help="Your own experiment, path/to/file.py:name, if its file has moved or changed. Its code runs.",
        show_default=False,
    ),
]
AcceptChangedFile = Annotated[
    bool,
    typer.Option(
        "--accept-changed-file",
        help="Import the file of the experiment although its SHA-256 has changed.",
    ),
]


def option(*names: str, text: str, default: str = "", panel: str = "Training", **options: Any) -> Any:
    """An option that is None by default; its help shows the default in words."""
    told = f"{text} [dim]\\[default: {default}][/dim]" if default else text
    return typer.Option(*names, help=told, show_default=False, rich_help_panel=panel, **options)


def number(text: str) -> float:
    """Parse a number.

    >>> number("0.5")
    0.5
    """
    return _finite(text, float, "a number")


def part(text: str) -> float:
    """Parse a part of a whole.

    >>> part("5%"), part("0.05")
    (0.05, 0.05)
    """
    return _finite(text, kinds.part, "a number, such as 0.05 or 5%")


def _finite(text: str, parse: Callable[[str], float], wanted: str) -> float:
    try:
        value = parse(text)
    except ValueError:
        raise typer.BadParameter(f"wanted {wanted}, got {text}") from None
    if not math.isfinite(value):
        raise typer.BadParameter(f"wanted a finite number, got {text}")
    return value


def whole_number(text: str) -> int:
    """Parse a whole number.

    >>> whole_number("5")
    5
    """
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"wanted a whole number, got {text}") from None


def one_of(*names: str) -> Callable[[str], list[str]]:
    """A completion from a list.

    >>> one_of("sfw", "sgd")("sg")
    ['sgd']
    """

    def matching(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return matching


experiment_names = one_of(*EXPERIMENTS)
