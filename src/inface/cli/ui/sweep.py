"""The progress and the results of a sweep in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from inface.text import printable

from .progress import one_line, time_left
from .tables import print_measured, shown

if TYPE_CHECKING:
    from inface.lab.sweeps import Progress

__all__ = ["continued", "named_progress", "print_results", "progress"]


@contextmanager
def progress() -> Iterator[Callable[[Progress], None]]:
    """Yield a function for ``sweep(show=...)``: a live line in a terminal, plain lines elsewhere."""
    with named_progress() as show:
        yield lambda state: show("", state)


@contextmanager
def named_progress() -> Iterator[Callable[[str, Progress], None]]:
    """The same for several sweeps; the function also takes the name of the sweep."""
    with one_line() as show:
        yield lambda name, state: show(line(name, state), state.done == state.total)


def line(name: str, state: Progress) -> str:
    """The progress of a sweep in one line."""
    parts = [f"{name}  {state.stage} {state.done}/{state.total}".strip()]
    if state.pruned:
        parts.append(f"{state.pruned} stopped early")
    parts.append(f"{state.running} running")
    if state.best is not None:
        parts.append(f"best {state.best:.4g}")
    if state.seconds_left is not None and state.done < state.total:
        parts.append(time_left(state.seconds_left))
    return "  ".join(parts)


@contextmanager
def continued() -> Iterator[None]:
    """After Ctrl-C, print how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        Console(stderr=True).print("stopped; the same command continues", highlight=False)
        raise


def print_results(results: dict[str, Any], out: Path) -> None:
    """Print the best settings and the results of the final runs."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("validation", "settings"):
        table.add_column(heading)
    for setting in results["ranking"][:5]:
        told = "  ".join(f"{name} {_shown(value)}" for name, value in setting["settings"].items())
        table.add_row(f"{setting['value']:.4g}", shown(told))
    console = Console()
    console.print(table)
    finals = {final["seed"]: final for final in results["final"]}
    for seed in sorted([*finals, *results["diverged"]]):
        if seed in finals:
            console.print(f"\nfinal run of seed {seed}, on the test data", highlight=False)
            print_measured(finals[seed])
        else:
            console.print(f"\nfinal run of seed {seed} diverged", highlight=False)
    console.print(f"\nwritten to {printable(out / 'results.json')}", soft_wrap=True, highlight=False, markup=False)


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
