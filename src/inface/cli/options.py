"""Options that several commands share, and their completions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from inface.lab.names import EXPERIMENTS

__all__ = ["DataFolder", "experiment_names"]

DataFolder = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="The data folder. By default $INFACE_DATA, else the user's cache folder.",
        metavar="DIR",
        show_default=False,
    ),
]


def experiment_names(incomplete: str) -> list[str]:
    """The built-in experiments that begin so.

    >>> experiment_names("mn")
    ['mnist-mlp', 'mnist-conv']
    """
    return [name for name in EXPERIMENTS if name.startswith(incomplete)]
