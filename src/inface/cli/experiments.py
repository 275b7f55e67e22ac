"""``inface experiments``."""

from __future__ import annotations

import inspect

__all__ = ["experiments"]


def experiments() -> None:
    """List the built-in experiments with their options.

    [bold]Examples[/bold]

    $ inface experiments
    """
    from rich.console import Console
    from rich.table import Table

    from inface.lab.experiments.builtin import BUILT_IN, options_of

    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("experiment", "what it is", "options (-o NAME=VALUE)"):
        table.add_column(heading)
    for name, factory in BUILT_IN.items():
        what = (inspect.getdoc(factory) or "").splitlines()[0]
        table.add_row(name, what, "  ".join(f"{key}={value}" for key, value in options_of(name).items()))
    Console().print(table)
