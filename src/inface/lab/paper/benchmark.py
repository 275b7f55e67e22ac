"""One table of many methods at several densities, on networks that the field knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from inface.lab.errors import ArgumentError, suggestion
from inface.lab.runs.metrics import THETAS

from .benchmark_figure import draw_benchmark
from .benchmark_page import benchmark_page
from .benchmark_rows import DENSITIES, ORDER, benchmark_rows
from .rows import corner
from .tables import Show, Table

__all__ = ["reproduce_benchmark"]


def reproduce_benchmark(
    experiments: Sequence[str],
    *,
    only: Sequence[str] | None = None,
    densities: Sequence[float] = DENSITIES,
    seeds: int = 3,
    epochs: int | None = None,
    options: Mapping[str, Any] | None = None,
    quick: bool = False,
    out: Path,
    results: Path,
    jobs: int = 1,
    data: str | None = None,
    show: Show | None = None,
) -> Path:
    """Train every method to every density on every network. The table is written after each row.

    Of each row, all settings are trained once and judged on held-out training data; the best are trained with several
    seeds on all training data and measured on the test data. It can be killed at any moment. The same call continues;
    finished work is not repeated.

    Args:
        experiments: the networks.
        only: the methods; by default all.
        densities: percentages of the edges. Methods that train once for all densities are cut to those that every run
            measures.
        seeds: the number of final runs.
        epochs: the epochs of every run; by default the experiment's.
        options: options of the experiments.
        quick: two settings per row.
        out: the folder of the sweeps.
        results: the folder of the table, as JSON and as Markdown.
        jobs: worker processes.
        data: the data folder, if not the default.
        show: called with the name of the sweep and its progress.
    """
    for method in only or ():
        if method not in ORDER:
            raise ArgumentError(f"--only: wanted {', '.join(ORDER)}, got {method}{suggestion(method, ORDER)}")
    for density in densities:
        if not 0 < density < 100:
            raise ArgumentError(f"--density: wanted more than 0% and less than 100%, got {density:g}%")
    given = {"options": dict(options or {}), **({} if epochs is None else {"epochs": epochs})}
    rows = {name: benchmark_rows(name, densities, given) for name in experiments}
    wanted = [row for some in rows.values() for row in some if not only or row.method in only]
    if not wanted and not set(densities) & set(THETAS):
        cut, got = (", ".join(f"{each:g}%" for each in some) for some in (THETAS[1:], densities))
        raise ArgumentError(f"--density: {', '.join(only or ())} is cut at the end; wanted some of {cut}, got {got}")
    if not wanted:
        raise ArgumentError(f"--only: {', '.join(only or ())} needs an experiment with sets, got {', '.join(rows)}")
    if quick:
        rows = {name: [replace(row, grid=corner(row.grid)) for row in some] for name, some in rows.items()}
    name = "benchmark-quick" if quick else "benchmark"
    table = Table(
        name,
        partial(benchmark_page, name=name),
        out,
        results,
        jobs,
        data,
        show,
        seeds=seeds,
        record=_recorded,
        place=_placed,
        draw=lambda made, network: draw_benchmark(made["experiments"][network], results / f"{name}-{network}.svg"),
    )
    words = ["benchmark", *["--quick"] * quick]
    words += [f"--option {key}={value}" for key, value in (options or {}).items()]
    words += [] if epochs is None else [f"--epochs {epochs}"]
    table.fill(rows, [row.name for row in wanted], " ".join([*words, f"--seeds {seeds}"]))
    return table.page


def _recorded(found: dict[str, Any]) -> dict[str, Any]:
    """What the table keeps of a sweep: of every density the chosen settings and the final runs, and all scores."""
    ends = (found, *found["also"])
    best = ends[0]["best"]
    return {
        "epochs": best["epochs"],
        "options": best["options"],
        "cells": {f"{_percent(end):g}": _cell(end, found["identity"]["grid"]) for end in ends},
        "trials": [
            {"settings": trial["settings"], "seconds": trial["seconds"], "scores": trial["kept_together"]}
            for trial in found["trials"]
        ],
    }


def _placed(rows: dict[str, Any], name: str, new: dict[str, Any]) -> None:
    """Put a row among those of its network, beside one made with other epochs or options.

    One made in the same way keeps its cells at other densities.
    """
    if any(rows.get(name, new)[key] != new[key] for key in ("epochs", "options")):
        name = ", ".join(
            [name, f"{new['epochs']} epochs", *(f"{key}={value}" for key, value in new["options"].items())]
        )
    old = rows.get(name)
    same = old is not None and old["grid"] == new["grid"]
    rows[name] = {**new, "cells": {**old["cells"], **new["cells"]}} if old is not None and same else new


def _percent(end: dict[str, Any]) -> float:
    """The density that a winner was trained for, or is cut to."""
    trained = {"sparse": "density", "sgd": "", "proximal": "", "sfw-if": ""}.get(end["best"]["method"], "keep")
    return round(100 * end["best"][trained], 4) if trained else float(end["theta"])


def _cell(end: dict[str, Any], grid: Mapping[str, Any]) -> dict[str, Any]:
    names = ["lr", *(name for name in grid if name in end["best"] and name != "lr")]
    return {
        "settings": {name: end["best"][name] for name in names},
        "validation": end["validation"],
        "runs": [_run(final, end["theta"], _percent(end)) for final in end["final"]],
        "diverged": end["diverged"],
    }


def _run(final: dict[str, Any], theta: int, percent: float) -> dict[str, Any]:
    """The numbers of a final run, with the largest ``theta`` percent of the edges of its layers."""
    sizes = {name: layer["inputs"] * layer["nodes"] for name, layer in final["layers"].items()}
    edges = sum(layer["exact_percent"] / 100 * sizes[name] for name, layer in final["layers"].items())
    total, left = sum(sizes.values()), final["network"]["exact_count"]
    kept = min(edges, theta / 100 * total)
    return {
        "seed": final["seed"],
        "accuracy": final["kept_together"][str(theta)],
        "density": round(100 * kept / total, 4),
        "network_density": round(100 * (left - edges + kept) / final["network"]["total"], 4),
        "seconds": final["seconds"],
        **{
            told: {str(each): final[reading][str(each)] for each in THETAS if each < percent}
            for told, reading in (("cut", "kept_together"), ("balanced", "kept_balanced"))
            if reading in final  # older runs have no balanced cuts
        },
    }
