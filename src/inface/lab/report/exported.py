"""The exports of runs, for the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inface.export import CostReport
from inface.lab.errors import LabError
from inface.lab.files import read_json
from inface.lab.runs.export import FORMAT
from inface.lab.runs.run import Run

__all__ = ["Export", "exports"]


@dataclass(frozen=True)
class Export:
    """One exported run.

    Attributes:
        name: the name of the run.
        keep: which edges were kept, in words.
        costs: the cost of the network.
        files: the files, each with its size and the metric of the network loaded from it.
        metric: the metric before and after pruning, in words.
    """

    name: str
    keep: str
    costs: CostReport
    files: list[tuple[str, str, str]]
    metric: str


def exports(runs: Sequence[Run]) -> list[Export]:
    """The exports of the runs that have an ``export`` folder."""
    return [_export(run) for run in runs if (run.path / "export" / "export.json").is_file()]


def _export(run: Run) -> Export:
    file = run.path / "export" / "export.json"
    told = read_json(file)
    if told.get("format") != FORMAT:
        raise LabError(f"{file}: wanted format {FORMAT}, got {told.get('format')!r}; export the run again")
    try:
        metric, keep = told["metric"], told["keep"]
        unit = f" {metric['unit']}" if metric["unit"] else ""

        def shown(name: str) -> str:
            return "-" if metric.get(name) is None else f"{metric[name]:.4g}{unit}"

        return Export(
            run.path.name,
            "all edges that are not zero"
            if keep is None
            else f"{100 * keep:g} % of the edges of each constrained layer",
            CostReport.from_dict(told["costs"]),
            [(each["file"], f"{each['bytes']:,}", shown(name)) for name, each in told["files"].items()],
            f"{metric['name']} {shown('before')} before, {shown('kept')} with the edges that were kept",
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise LabError(f"{file}: is damaged: {error}") from None
