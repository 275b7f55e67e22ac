"""Warnings that point at the line of the user's own code, however many layers of torch lie between."""

from __future__ import annotations

import sys
import warnings
from types import FrameType
from typing import NamedTuple

__all__ = ["Place", "here", "warn", "warn_at"]


class Place(NamedTuple):
    """A line of somebody's code."""

    filename: str
    line: int
    module: str


def warn(message: str) -> None:
    """Warn at the line that called this library, or torch on the way to it."""
    level, _ = _caller()
    warnings.warn(message, stacklevel=level)


def here() -> Place:
    """The line that called this library, for a warning that comes later."""
    _, frame = _caller()
    return Place(frame.f_code.co_filename, frame.f_lineno, frame.f_globals.get("__name__") or "<unknown>")


def warn_at(place: Place, message: str) -> None:
    """Warn at a line that was kept: when an object goes, nobody's line is being run."""
    warnings.warn_explicit(message, UserWarning, place.filename, place.line, place.module)


def _caller() -> tuple[int, FrameType]:
    """The frame of the user's code, and its stacklevel for the function that asks."""
    level, frame = 2, sys._getframe(2)  # noqa: SLF001 - warnings of Python 3.11 cannot skip files
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("inface", "torch"):
        level, frame = level + 1, frame.f_back
    return level, frame
