"""The laboratory: the paper's experiments, and yours, trained, measured and drawn."""

from .errors import ArgumentError, Diverged, LabError
from .experiment import Data, Experiment, Metric, Split, accuracy, mean_squared_error
from .run import Run

__all__ = [
    "ArgumentError",
    "Data",
    "Diverged",
    "Experiment",
    "LabError",
    "Metric",
    "Run",
    "Split",
    "accuracy",
    "mean_squared_error",
]
