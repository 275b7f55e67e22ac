"""Settings chosen on held-out data, by as many processes and machines as there are."""

from .grids import Grid, load_grid, paper_grid, quick_grid
from .plan import Plan
from .runner import Progress, sweep

__all__ = ["Grid", "Plan", "Progress", "load_grid", "paper_grid", "quick_grid", "sweep"]
