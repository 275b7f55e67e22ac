"""Sweeps: choose settings on held-out data, with several processes and machines."""

from .grids import Grid, load_grid, paper_grid, quick_grid
from .plan import Plan
from .runner import Progress, sweep

__all__ = ["Grid", "Plan", "Progress", "load_grid", "paper_grid", "quick_grid", "sweep"]
