"""Reproduce the paper's Table 1 and Figures 1 to 4; beyond it, a second table and a benchmark."""

from __future__ import annotations

from .rows import Row, beyond_rows, paper_rows
from .table_pages import beyond_page, paper_page
from .tables import reproduce_beyond, reproduce_paper

__all__ = [
    "Row",
    "beyond_page",
    "beyond_rows",
    "paper_page",
    "paper_rows",
    "reproduce_beyond",
    "reproduce_paper",
]
