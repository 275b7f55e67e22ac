"""Compare runs in one HTML page and in figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from inface.lab.errors import ArgumentError, suggestion
from inface.lab.files import write_text
from inface.lab.runs.run import Run

from .comparison import Column, Comparison, Spread, columns, compare, headline

__all__ = ["Column", "Comparison", "Format", "Spread", "columns", "compare", "headline", "write_report"]

Format = Literal["svg", "png"]


def write_report(
    runs: Sequence[Run],
    out: Path,
    *,
    figures: Path | None = None,
    formats: Sequence[Format] = ("svg",),
    title: str | None = None,
) -> Path:
    """Write one HTML file that compares runs. It is self-contained and opens offline.

    Args:
        runs: runs of one or several experiments. Unfinished runs are drawn, but not in the table.
        out: the file; it is written atomically.
        figures: a folder for the same figures as separate files.
        formats: the formats of these files.
        title: the title of the page.

    Returns:
        The path of the file.

    >>> write_report([], Path("report.html"))
    Traceback (most recent call last):
    inface.lab.errors.ArgumentError: report: wanted at least one run, got none
    """
    from .page import render, sections
    from .svg import save

    if not runs:
        raise ArgumentError("report: wanted at least one run, got none")
    for kind in formats:
        if kind not in get_args(Format):
            raise ArgumentError(f"format: wanted svg or png, got {kind}{suggestion(kind, get_args(Format))}")
    if out.is_dir():
        raise ArgumentError(f"{out}: is a folder; wanted the name of an HTML file")
    found = sections(runs)
    page = render(found, title or f"Sparse training: {', '.join(section.name for section in found)}")
    if figures is not None:
        for section in found:
            for drawing in section.drawings:
                save(drawing, figures, formats)
    write_text(out, page)
    return out
