"""The laboratory: the paper's experiments, and yours, trained, measured and drawn."""

from typing import TYPE_CHECKING

from inface.lazy import exports

if TYPE_CHECKING:
    from .building import settings_for
    from .errors import ArgumentError, Diverged, LabError
    from .evaluation import evaluate, rebuild
    from .experiment import Data, Experiment, Metric, Split, accuracy, mean_squared_error
    from .experiments import find
    from .report import compare, write_report
    from .run import Run
    from .settings import Settings
    from .training import train

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
        "Data": "experiment",
        "Diverged": "errors",
        "Experiment": "experiment",
        "LabError": "errors",
        "Metric": "experiment",
        "Run": "run",
        "Settings": "settings",
        "Split": "experiment",
        "accuracy": "experiment",
        "compare": "report",
        "evaluate": "evaluation",
        "find": "experiments",
        "mean_squared_error": "experiment",
        "rebuild": "evaluation",
        "settings_for": "building",
        "train": "training",
        "write_report": "report",
    },
)
