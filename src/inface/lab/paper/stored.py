"""Runs made of the numbers in a JSON file of results, so that figures can be drawn after the run folders are gone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from inface.lab.runs.run import FORMAT, Run

__all__ = ["StoredRun", "stored_courses", "stored_trials"]


class StoredRun(Run):
    """A finished run without a folder.

    Args:
        name: its name; it must be unique among the runs of a figure.
        settings: its settings.
        summary: what its figure needs of the summary.
        steps: the series over gradients.

    >>> StoredRun("sgd", {"method": "sgd"}, {"kept": {"100": 0.5}}).summary
    {'kept': {'100': 0.5}}
    """

    def __init__(
        self, name: str, settings: dict[str, Any], summary: dict[str, Any], steps: Sequence[dict[str, Any]] = ()
    ) -> None:
        self.path = Path(name)
        self.config = {"format": FORMAT, **settings}
        self.summary = summary
        self._steps = steps

    @property
    def finished(self) -> bool:
        return True

    def each_record(self) -> Iterator[dict[str, Any]]:
        return iter(self._steps)


def stored_trials(told: dict[str, Any]) -> list[StoredRun]:
    """The finished trials of Figure 1 or 2; ``told`` is what its JSON file says."""
    found = []
    for name, cell in told["cells"].items():
        for number, trial in enumerate(cell["trials"]):
            if trial is None:
                continue
            options = {**cell["best"]["options"], "trial": number}
            summary = {
                "metric": {"name": "MSE", "unit": "", "better": "lower"},
                "layers": {f"layer {layer}": {"edges": edges} for layer, edges in enumerate(trial["edges"], 1)},
                "kept": {"100": trial["mse"]},
            }
            settings = {**cell["best"], "options": options, "measured_on": "test"}
            found.append(StoredRun(f"{name}-{number}", settings, summary))
    return found


def stored_courses(told: dict[str, Any]) -> dict[str, StoredRun]:
    """The runs of Figures 3 and 4, by their names; ``told`` is what their JSON file says."""
    return {name: StoredRun(name, run["settings"], run["summary"], run["steps"]) for name, run in told["runs"].items()}
