"""The command line: ``inface ...``. Every command is one call into :mod:`inface.lab`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command, print at most one line about what went wrong, and exit with its code.

    0: done; 1: a file, a download or a run is not as it should be; 2: a wrong argument; 3: the loss is not finite any more;
    130: interrupted.
    """
    try:
        import typer  # noqa: F401
    except ModuleNotFoundError:
        sys.exit('inface: the command line needs the laboratory: pip install "inface[lab]"')
    from .app import run

    sys.exit(run(list(sys.argv[1:] if arguments is None else arguments)))
