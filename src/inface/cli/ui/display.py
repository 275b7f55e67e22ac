"""The progress of a run: a live line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from inface.text import printable

__all__ = ["display"]

Record = dict[str, Any]

QUIET = 2.0  # seconds between two plain lines, at least


@contextmanager
def display(label: str = "", console: Console | None = None) -> Iterator[Callable[[Record], None]]:
    """Yield a function for ``train(watch=...)``.

    Args:
        label: the beginning of each line.
        console: where to write; by default standard output.
    """
    console = console or Console()
    if console.is_terminal:
        progress = Progress(TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), console=console)
        with Live(console=console) as live:
            yield _Live(live, progress, label)
    else:
        yield _Lines(console, label)


class _Watcher:
    """The state of a run, shared by both displays."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.start: Record = {}
        self.epoch: Record = {}

    def __call__(self, record: Record) -> None:
        if record["kind"] == "start":
            self.start = record
            self.begin()
        elif record["kind"] == "epoch":
            self.epoch = record
            self.end_of_epoch(record)
        else:
            self.step(record)

    def begin(self) -> None: ...

    def step(self, record: Record) -> None: ...

    def end_of_epoch(self, record: Record) -> None: ...

    def state(self, record: Record) -> str:
        """Loss, metric, gap and non-zeros, from the last step and the last epoch."""
        metric = self.start["metric"]
        measured = self.epoch.get("metric")
        parts = [f"loss {_number(record.get('loss') if record['kind'] == 'step' else record['train_loss'])}"]
        if measured is not None:
            parts.append(
                f"{printable(metric.name)} {_number(measured)}{f' {printable(metric.unit)}' if metric.unit else ''}"
            )
        if record.get("smoothed_gap") is not None:
            parts.append(f"gap {_number(record['smoothed_gap'])}")
        percents = [f"{count['percent']:.1f}" for count in self.epoch.get("nonzeros", {}).values()]
        if percents:
            parts.append(f"non-zeros {' / '.join(percents)} %")
        return "  ".join(parts)


class _Live(_Watcher):
    """A progress bar with the time left, and a line with the metrics below it."""

    def __init__(self, live: Live, progress: Progress, label: str) -> None:
        super().__init__(label)
        self.live, self.progress = live, progress

    def begin(self) -> None:
        self.task = self.progress.add_task(self._name(0), total=self.start["steps"], completed=self.start["step"])
        self.live.update(self.progress)

    def step(self, record: Record) -> None:
        self._show(record, record["step"] * self.start["epochs"] // self.start["steps"])

    def end_of_epoch(self, record: Record) -> None:
        self._show(record, record["epoch"])

    def _show(self, record: Record, epoch: int) -> None:
        self.progress.update(self.task, completed=record["step"], description=self._name(epoch))
        self.live.update(Group(self.progress, Text(self.state(record), overflow="ellipsis", no_wrap=True)))

    def _name(self, epoch: int) -> str:
        return f"{self.label} epoch {epoch}/{self.start['epochs']}".strip()


class _Lines(_Watcher):
    """A plain line after an epoch, at most every two seconds, and after the last one."""

    def __init__(self, console: Console, label: str) -> None:
        super().__init__(label)
        self.console = console

    def begin(self) -> None:
        self.begun = time.perf_counter()
        self.printed = 0.0
        self.since: tuple[float, int] | None = None
        if self.start["step"]:
            self._print(f"continued after gradient {self.start['step']} of {self.start['steps']}")

    def end_of_epoch(self, record: Record) -> None:
        now, last = time.perf_counter(), record["epoch"] == self.start["epochs"]
        if now - self.printed < QUIET and not last:
            return
        self.printed = now
        if self.since is None:  # the first epoch also loads code, so its time is not representative
            self.since, left = (now, record["step"]), ""
        else:
            rate = (now - self.since[0]) / (record["step"] - self.since[1])
            left = f", {rate * (self.start['steps'] - record['step']):.0f} s left"
        width = len(str(self.start["epochs"]))
        done = f"epoch {record['epoch']:>{width}}/{self.start['epochs']}"
        self._print(f"{done}  {self.state(record)}  {record['seconds']:.1f} s{left}")

    def _print(self, text: str) -> None:
        line = f"{self.label}  {text}" if self.label else text
        try:
            self.console.print(line, soft_wrap=True, highlight=False, markup=False)
        except SystemExit:  # rich raises it when the pipe is closed; the run continues
            self.console = Console(quiet=True)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
