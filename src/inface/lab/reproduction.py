"""Table 1 of the paper on the real data, beside the paper's own numbers."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from .building import settings_for
from .files import read_json, write_json, write_text
from .paper import METHODS, TABLE_1
from .settings import Method
from .sweeps import Plan, Progress, paper_grid, quick_grid, sweep

__all__ = ["reproduce_table", "table_page"]


def reproduce_table(
    experiments: Sequence[str],
    *,
    out: Path,
    results: Path,
    jobs: int = 1,
    quick: bool = False,
    data: str | None = None,
    show: Callable[[str, Progress], None] | None = None,
) -> Path:
    """Tune, train and measure every method on every network, and write the table after each of them.

    It can be killed at any moment: the same call goes on, and what is finished is not done again.

    Args:
        experiments: of ``mnist-mlp``, ``mnist-conv`` and ``cifar10``.
        out: the folder of the sweeps.
        results: the folder of the table, as JSON and as Markdown.
        jobs: worker processes.
        quick: a corner of the grid, three epochs and one seed: to see it work, not to believe it.
        data: the data folder, if it is not the usual one.
        show: is called with what is going on and its progress.
    """
    name = "table1-quick" if quick else "table1"
    for experiment in experiments:
        for method in METHODS:
            base = settings_for(experiment, method=method, **({"epochs": 3} if quick else {}))
            grid = (quick_grid if quick else paper_grid)(method, 2)
            folder = out / name / experiment / method
            plan = Plan(
                base, str(folder), str(folder), f"{experiment} {method}", grid, seeds=1 if quick else 3, data=data
            )
            title = f"{experiment} {method}"
            found = sweep(plan, jobs=jobs, show=None if show is None else lambda state: show(title, state))  # noqa: B023 - called at once
            _add(results / f"{name}.json", experiment, method, found, quick)
            write_text(results / f"{name}.md", table_page(read_json(results / f"{name}.json")))
    return results / f"{name}.md"


def _add(file: Path, experiment: str, method: Method, found: dict[str, Any], quick: bool) -> None:
    """Put the results of one sweep into the file of the table."""
    table: dict[str, Any] = read_json(file) if file.is_file() else {"format": 1, "sweeps": {}}
    table["command"] = f"inface reproduce table1{' --quick' if quick else ''}"
    table["versions"] = {"inface": version("inface"), "torch": torch.__version__, "python": platform.python_version()}
    keep = ("settings", "state", "epochs", "value")
    table["sweeps"].setdefault(experiment, {})[method] = {
        "best": found["best"],
        "validation": found["validation"],
        "trials": [{key: trial[key] for key in keep} for trial in found["trials"]],
        "final": found["final"],
        "trial_seconds": found["trial_seconds"],
    }
    write_json(file, table)


def table_page(table: dict[str, Any]) -> str:
    """The table as Markdown, the paper's numbers in brackets."""
    thetas = (100, 50, 25, 10, 5)
    lines = [
        "# Table 1, reproduced",
        "",
        f"Written by `{table['command']}`; do not edit. Settings were chosen on held-out training data, by the accuracy with",
        "all edges; the chosen ones were then trained on all training data with several seeds. Mean and standard deviation over",
        "them; the paper's numbers in brackets. Non-zeros: the average percentage of edges into a node of at least 0.001; in",
        "the last column, of all parameters of the network.",
        "",
    ]
    for experiment, methods in table["sweeps"].items():
        lines += [
            f"## {experiment}",
            "",
            "| method | L, radii | layer 1 % | layer 2 % | "
            + " | ".join(f"top {t} %" for t in thetas)
            + " | top 2 % | network % |",
            "|" + "---|" * (6 + len(thetas)),
        ]
        for method in METHODS:
            if method in methods:
                lines.append(_line(experiment, method, methods[method], thetas))
        seconds = sum(each["trial_seconds"] for each in methods.values())
        epochs = sum(trial["epochs"] for each in methods.values() for trial in each["trials"])
        lines += ["", f"Settings tried: {epochs:,} epochs in {seconds / 60:.0f} minutes of one thread.", ""]
    return "\n".join(lines)


def _line(experiment: str, method: Method, found: dict[str, Any], thetas: tuple[int, ...]) -> str:
    best, final, paper = found["best"], found["final"], TABLE_1[experiment][method]
    radii = "" if best["radius"] is None else f"; {', '.join(f'{radius:g}' for radius in best['radius'])}"
    layers = [[list(run["layers"].values())[index]["percent"] for run in final] for index in (0, 1)]
    cells = [f"{1 / (2 * best['lr']):g}{radii}"]
    cells += [f"{_spread(values)} [{told:g}]" for values, told in zip(layers, paper.nonzeros, strict=True)]
    cells += [f"{_spread([run['kept'][str(theta)] for run in final])} [{paper.kept[theta]:g}]" for theta in thetas]
    cells += [_spread([run["kept"]["2"] for run in final]), _spread([run["network"]["percent"] for run in final])]
    return f"| {method} | " + " | ".join(cells) + " |"


def _spread(values: list[float]) -> str:
    mean = f"{statistics.fmean(values):.2f}"
    return f"{mean} ± {statistics.stdev(values):.2f}" if len(values) > 1 else mean
