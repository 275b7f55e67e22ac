"""The laboratory: train, measure and compare the paper's experiments, or your own."""

from typing import TYPE_CHECKING

from inface.lazy import exports

if TYPE_CHECKING:
    from .errors import ArgumentError, Diverged, LabError
    from .experiments.builtin import find
    from .experiments.experiment import Data, Experiment, Metric, Split, accuracy, mean_squared_error
    from .report import compare, write_report
    from .runs.evaluation import evaluate, rebuild
    from .runs.run import Run
    from .runs.settings import Settings
    from .runs.setup import settings_for
    from .runs.training import train

__all__ = [
    "ArgumentError",
    "Data",
    "Diverged",
    "Experiment",
    "LabError",
    "Metric",
    "Run",
    "Settings",
    "Split",
    "accuracy",
    "compare",
    "evaluate",
    "find",
    "mean_squared_error",
    "rebuild",
    "settings_for",
    "train",
    "write_report",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "ArgumentError": "errors",
        "Data": "experiments.experiment",
        "Diverged": "errors",
        "Experiment": "experiments.experiment",
        "LabError": "errors",
        "Metric": "experiments.experiment",
        "Run": "runs.run",
        "Settings": "runs.settings",
        "Split": "experiments.experiment",
        "accuracy": "experiments.experiment",
        "compare": "report",
        "evaluate": "runs.evaluation",
        "find": "experiments.builtin",
        "mean_squared_error": "experiments.experiment",
        "rebuild": "runs.evaluation",
        "settings_for": "runs.setup",
        "train": "runs.training",
        "write_report": "report",
    },
)
