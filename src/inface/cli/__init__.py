"""The command line: ``inface ...``. Every command is one call into :mod:`inface.lab`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. An error is printed as one line on standard error.

    Exit codes: 0 success; 1 a damaged or missing file, download or run; 2 a wrong argument; 3 the loss is no longer
    finite; 130 interrupted.
    """
    try:
        import typer  # noqa: F401
    except ModuleNotFoundError:
        sys.exit('inface: the command line needs the laboratory: pip install "inface[lab]"')
    from .app import run

    sys.exit(run(list(sys.argv[1:] if arguments is None else arguments)))
