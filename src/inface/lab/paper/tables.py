"""Make the tables: one sweep per row; the page is written again after each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from inface.lab.errors import ArgumentError, LabError, suggestion
from inface.lab.files import read_json, write_json, write_text
from inface.lab.runs.setup import settings_for
from inface.lab.sweeps import Plan, Progress, sweep
from inface.lab.sweeps.plan import key_of
from inface.version import versions

from .rows import GridName, Row, beyond_rows, paper_rows
from .table_pages import beyond_page, paper_page

__all__ = ["Page", "Show", "Table", "reproduce_beyond", "reproduce_paper"]

FORMAT = 4
TRIED = ("settings", "state", "epochs", "value", "kept", "diverged")
QUICK: dict[str, Any] = {"epochs": 3, "seeds": 1}
AGAIN = "; delete it, and the same command rebuilds it from the finished runs"

Show = Callable[[str, Progress], None]
Page = Callable[[dict[str, Any]], str]
Record = Callable[[dict[str, Any]], dict[str, Any]]
Place = Callable[[dict[str, Any], str, dict[str, Any]], None]


def reproduce_paper(
    experiments: Sequence[str],
    *,
    grid: GridName = "paper",
    only: Sequence[str] | None = None,
    out: Path,
    results: Path,
    jobs: int = 1,
    data: str | None = None,
    show: Show | None = None,
) -> Path:
    """Table 1: tune, train and measure every method on every network. The table is written after each row.

    It can be killed at any moment. The same call continues; finished work is not repeated.

    Args:
        experiments: some of ``mnist-mlp``, ``mnist-conv`` and ``cifar10``.
        grid: the settings to try; ``"quick"`` is a corner of the paper's grid with three epochs and one seed, for a
            first look.
        only: the names of the rows to make; by default all.
        out: the folder of the sweeps.
        results: the folder of the table, as JSON and as Markdown.
        jobs: worker processes.
        data: the data folder, if not the default.
        show: called with the name of the sweep and its progress.
    """
    quick = grid == "quick"
    name, effort = ("table1-quick", QUICK) if quick else ("table1", {})
    table = Table(name, paper_page, out, results, jobs, data, show, **effort)
    chosen = {"paper": "", "quick": " --quick", "coarse": " --grid coarse"}[grid]
    table.fill({experiment: paper_rows(grid) for experiment in experiments}, only, f"table1{chosen}")
    return table.page


def reproduce_beyond(
    experiments: Sequence[str],
    *,
    only: Sequence[str] | None = None,
    out: Path,
    results: Path,
    jobs: int = 1,
    quick: bool = False,
    data: str | None = None,
    show: Show | None = None,
) -> Path:
    """The second table, "beyond the paper".

    The arguments are those of :func:`reproduce_paper`, and one more:

    Args:
        experiments: the networks.
        only: the names of the rows to make.
        out: the folder of the sweeps.
        results: the folder of the table.
        jobs: worker processes.
        quick: two settings per method, three epochs and one seed.
        data: the data folder.
        show: called with the name of the sweep and its progress.
    """
    name, effort = ("table2-quick", QUICK) if quick else ("table2", {})
    table = Table(name, beyond_page, out, results, jobs, data, show, **effort)
    rows = {experiment: beyond_rows(experiment, quick=quick) for experiment in experiments}
    table.fill(rows, only, "table2 --quick" if quick else "table2")
    return table.page


class Table:
    """A table that is filled sweep by sweep.

    Args:
        name: the name of its files.
        write: makes the page from the table.
        out: the folder of the sweeps.
        results: the folder of the table.
        jobs: worker processes.
        data: the data folder, if not the default.
        show: called with the name of a sweep and its progress.
        epochs: the epochs of every run, if not those of its row.
        seeds: the number of final runs.
        record: what the table keeps of the results of a sweep.
        place: puts a row, with its name, among those of its network, where one of that name may have been made with other
            settings; without it, another grid is an error.
        draw: called with the table and the name of the experiment after each row.
    """

    def __init__(
        self,
        name: str,
        write: Page,
        out: Path,
        results: Path,
        jobs: int,
        data: str | None,
        show: Show | None,
        *,
        epochs: int | None = None,
        seeds: int = 3,
        record: Record | None = None,
        place: Place | None = None,
        draw: Callable[[dict[str, Any], str], None] | None = None,
    ) -> None:
        self.write, self.out, self.jobs, self.data, self.show = write, out / name, jobs, data, show
        self.epochs, self.seeds, self.record, self.place, self.draw = epochs, seeds, record, place, draw
        self.file, self.page = results / f"{name}.json", results / f"{name}.md"

    def fill(self, rows: Mapping[str, list[Row]], only: Sequence[str] | None, command: str) -> None:
        """Run the sweeps of all rows, or of some; finished ones are not repeated."""
        known = list(dict.fromkeys(row.name for some in rows.values() for row in some))
        for name in only or ():
            if name not in known:
                raise ArgumentError(f"--only: wanted {', '.join(known)}, got {name}{suggestion(name, known)}")
        todo = [(experiment, row) for experiment, some in rows.items() for row in some if not only or row.name in only]
        for experiment, row in todo:  # find conflicts before hours of training
            self._room(self._read(), experiment, row)
        for experiment, row in todo:
            self._add(experiment, row, f"inface reproduce {command} --experiment {experiment} --jobs {self.jobs}")

    def _add(self, experiment: str, row: Row, command: str) -> None:
        """Run the sweep of a row, unless it is finished, and write the table."""
        found = self._swept(self._plan(experiment, row), f"{experiment} {row.name}")
        told = {
            "told": row.told,
            "method": row.method,
            "command": command,
            "versions": versions("python", "inface", "torch", "numpy", "numba", "optuna"),
            "jobs": self.jobs,
            "grid": _axes(row),
            "part": row.part,
            **(self.record or _everything)(found),
        }
        with FileLock(self.out / ".lock"):  # another command may fill other rows at the same time
            table = self._read()
            rows = self._room(table, experiment, row)
            (self.place or dict.__setitem__)(rows, row.name, told)
            page = self._page(table)
            write_json(self.file, table)
            write_text(self.page, page)
            if self.draw is not None:
                self.draw(table, experiment)

    def _room(self, table: dict[str, Any], experiment: str, row: Row) -> dict[str, Any]:
        """The rows of an experiment; an error if the row is there with another grid."""
        rows: dict[str, Any] = table["experiments"].setdefault(experiment, {})
        if self.place is None and row.name in rows and rows[row.name]["grid"] != _axes(row):
            raise ArgumentError(
                f"{self.file}: already has {row.name} of {experiment}, with another grid; choose another --results"
            )
        return rows

    def _read(self) -> dict[str, Any]:
        """The table so far; an error unless a page can be made from it."""
        if not self.file.is_file():
            return {"format": FORMAT, "experiments": {}}
        table = read_json(self.file)
        if table.get("format") != FORMAT:
            raise LabError(f"{self.file}: has format {table.get('format')!r}, wanted {FORMAT}{AGAIN}")
        self._page(table)
        return table

    def _page(self, table: dict[str, Any]) -> str:
        try:
            return self.write(table)
        except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
            raise LabError(f"{self.file}: is damaged: {error!r}{AGAIN}") from None

    def _swept(self, plan: Plan, title: str) -> dict[str, Any]:
        """The results of a sweep; a final run that diverged is replaced by one with another seed."""
        show = self.show
        wanted, seeds = plan.seeds, plan.seeds
        while True:
            found = sweep(
                replace(plan, seeds=seeds),
                jobs=self.jobs,
                show=None if show is None else lambda state: show(title, state),
            )
            lost = wanted - min(len(end["final"]) for end in (found, *found["also"]))
            if not lost or seeds >= 2 * wanted:
                return found
            seeds += lost

    def _plan(self, experiment: str, row: Row) -> Plan:
        folder = str(self.out / experiment / row.folder)
        given = row.given if self.epochs is None else {**row.given, "epochs": self.epochs}
        plan = Plan(
            settings_for(experiment, method=row.method, **given),
            folder,
            folder,
            f"{experiment} {row.method}",
            row.grid,
            pruning=row.pruning,
            theta=row.thetas[0],
            also=row.thetas[1:],
            seeds=self.seeds,
            data=self.data,
            together=row.together,
        )
        if self.place is None:
            return plan
        folder = f"{folder}-{key_of(plan.identity())}"  # with other settings, other runs
        return replace(plan, out=folder, storage=folder)


def _axes(row: Row) -> dict[str, Any]:
    return {name: list(values) for name, values in row.grid.axes.items()}


def _everything(found: dict[str, Any]) -> dict[str, Any]:
    """The winners with their final runs, and all settings that were tried."""
    return {
        "winners": _winners(found),
        "trial_seconds": found["trial_seconds"],
        "trials": [{key: trial[key] for key in TRIED} for trial in found["trials"]],
    }


def _winners(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The winning settings, each with the percentages of edges for which it won."""
    winners: list[dict[str, Any]] = []
    for end in (found, *found["also"]):
        same = next((winner for winner in winners if winner["best"] == end["best"]), None)
        if same is None:
            same = {"chosen_with": [], "validation": [], **{key: end[key] for key in ("best", "final", "diverged")}}
            winners.append(same)
        same["chosen_with"].append(end["theta"])
        same["validation"].append(end["validation"])
    return winners
