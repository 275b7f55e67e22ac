"""A progress line: live in a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.text import Text

from inface.text import printable

if TYPE_CHECKING:
    from inface.lab.paper.tasks import TaskProgress

__all__ = ["one_line", "task_progress", "time_left"]

QUIET = 10.0  # seconds between two plain lines


@contextmanager
def one_line() -> Iterator[Callable[[str, bool], None]]:
    """Yield a function that shows a line; its second argument says whether it is the last, which is always shown."""
    console = Console()
    if console.is_terminal:
        with Live(console=console) as live:
            yield lambda text, _: live.update(Text(printable(text), no_wrap=True, overflow="ellipsis"))
        return
    last: tuple[str, float] = ("", -QUIET)

    def show(text: str, ended: bool) -> None:
        nonlocal last
        now = time.monotonic()
        if (now - last[1] >= QUIET or ended) and text != last[0]:
            console.print(printable(text), soft_wrap=True, highlight=False, markup=False)
            last = (text, now)

    yield show


@contextmanager
def task_progress(name: str) -> Iterator[Callable[[str, TaskProgress], None]]:
    """Yield a function that shows the progress of a stage."""
    with one_line() as show:
        yield lambda what, state: show(_line(name, what, state), state.done == state.total)


def time_left(seconds: float) -> str:
    """The estimated time left, in words.

    >>> time_left(3725.2)
    'about 1:02:05 left'
    """
    return f"about {timedelta(seconds=round(seconds))} left"


def _line(name: str, what: str, state: TaskProgress) -> str:
    """
    >>> from inface.lab.paper.tasks import TaskProgress
    >>> _line("figure1", "cells", TaskProgress(3, 27, 0.125, ("relu-5-1-sfw: rung 2 of 3",), 3725.2))
    'figure1  cells 3/27  12.5 %  about 1:02:05 left  relu-5-1-sfw: rung 2 of 3'
    """
    parts = [f"{name}  {what} {state.done}/{state.total}"]
    if state.done < state.total:
        parts.append(f"{100 * state.part:.1f} %")
        if state.seconds_left is not None:
            parts.append(time_left(state.seconds_left))
        parts += state.stages
    return "  ".join(parts)
