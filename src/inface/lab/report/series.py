"""The series of a run: read as a stream, and thinned to what a figure can show."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from inface.lab.runs.run import Run

from .groups import mapping, number

__all__ = ["MOST", "Course", "Series", "Thinned", "course"]

MOST = 2000  # points of a series; the widest figure has fewer pixels

Series = tuple[Sequence[float], Sequence[float]]  # places and heights
T = TypeVar("T")


class Thinned(Generic[T]):
    """Evenly spaced items of a stream: all up to ``most``, then at least half as many; always the first and the last.

    >>> few = Thinned(most=4)
    >>> for item in range(11):
    ...     few.add(item)
    >>> few.items, few.stride
    ([0, 4, 8, 10], 4)
    """

    def __init__(self, most: int = MOST) -> None:
        self.most, self.stride, self._count = most, 1, 0
        self._kept: list[T] = []
        self._last: list[T] = []

    def add(self, item: T) -> None:
        """Add the next item of the stream."""
        if self._count % self.stride == 0:
            self._kept.append(item)
            self._last = []
            if len(self._kept) > self.most:
                self._last = self._kept[-1:] if len(self._kept) % 2 == 0 else []
                del self._kept[1::2]
                self.stride *= 2
        else:
            self._last = [item]
        self._count += 1

    @property
    def items(self) -> list[T]:
        """The kept items, in order."""
        return self._kept + self._last


@dataclass(frozen=True)
class Course:
    """The series of a run.

    Attributes:
        gap: the gap against gradients.
        nonzeros: the non-zeros of each constrained layer against gradients.
        train_loss: the training loss against epochs.
        metric: the metric against epochs.
        thinned: whether points were left out.
    """

    gap: Series = ((), ())
    nonzeros: dict[str, Series] = field(default_factory=dict)
    train_loss: Series = ((), ())
    metric: Series = ((), ())
    thinned: bool = False


def course(run: Run) -> Course:
    """Read the series of a run, with bounded memory. They are empty if the run has just started.

    An incomplete last line is skipped. Any other damaged line is an error that names it, and so is a missing file of a
    finished run.
    """
    if not run.finished and not run.metrics_file.is_file():
        return Course()
    steps: Thinned[dict[str, Any]] = Thinned()
    epochs: Thinned[dict[str, Any]] = Thinned()
    kinds = {"step": steps, "epoch": epochs}
    for record in run.each_record():
        kind = record.get("kind")
        if isinstance(kind, str) and kind in kinds:
            kinds[kind].add(record)
    names = dict.fromkeys(name for record in steps.items for name in mapping(record.get("nonzeros")))
    return Course(
        _series(steps.items, "step", lambda record: record.get("gap")),
        {name: _series(steps.items, "step", _nonzeros_of(name)) for name in names},
        _series(epochs.items, "epoch", lambda record: record.get("train_loss")),
        _series(epochs.items, "epoch", lambda record: record.get("metric")),
        steps.stride > 1 or epochs.stride > 1,
    )


def _nonzeros_of(name: str) -> Callable[[dict[str, Any]], object]:
    return lambda record: mapping(record.get("nonzeros")).get(name)


def _series(records: Sequence[dict[str, Any]], place: str, height: Callable[[dict[str, Any]], object]) -> Series:
    """The points of a series; a missing height becomes NaN, and records without a place are skipped."""
    points = [(number(record.get(place)), number(height(record))) for record in records]
    known = [(x, y) for x, y in points if x == x]  # noqa: PLR0124 - not-a-number is not itself
    return array("d", [x for x, _ in known]), array("d", [y for _, y in known])
