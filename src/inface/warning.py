"""Warnings that point at the line of the user's own code, however many layers of torch lie between."""

from __future__ import annotations

import sys
import warnings

__all__ = ["warn"]


def warn(message: str) -> None:
    """Warn at the line that called this library, or torch on the way to it."""
    level, frame = 2, sys._getframe(1)  # noqa: SLF001 - warnings of Python 3.11 cannot skip files
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("inface", "torch"):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)
