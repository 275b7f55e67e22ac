"""The rows of the benchmark: which settings of which methods are tried on a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from inface.lab.experiments.builtin import find
from inface.lab.runs.metrics import THETAS
from inface.lab.runs.settings import Method
from inface.lab.sweeps import Grid

from .rows import Row

__all__ = ["DENSITIES", "NETWORKS", "ORDER", "benchmark_rows"]

NETWORKS = ("lenet-300-100", "lenet-5", "cifar10", "vit", "mnist-mlp", "mnist-conv", "resnet")
DENSITIES = (10, 5, 2, 1)
# What matters most comes first: the command may be stopped at any moment.
ORDER: tuple[Method, ...] = ("sgd", "sparse", "gradual", "rigl", "set", "prune", "proximal", "sfw-if")

RATES = {"sgd": [0.05, 0.1, 0.2], "adamw": [0.001, 0.003, 0.01]}
SHRINKAGE = {"sgd": [3e-5, 1e-4, 3e-4], "adamw": [0.01, 0.03, 0.1]}
SMOOTHNESS = [1.0, 4.0, 16.0]  # around the paper's best for mnist-mlp
DISTRIBUTIONS: dict[Method, tuple[str, ...]] = {
    "gradual": ("global", "uniform"),
    "prune": ("global",),
    "rigl": ("erk",),
    "set": ("erk",),
}
LABELS: dict[Method, str] = {
    "gradual": "gradual pruning, {}",
    "prune": "pruning and fine-tuning, {}",
    "rigl": "RigL, {}",
    "set": "SET, {}",
}


def benchmark_rows(experiment: str, densities: Sequence[float], given: Mapping[str, Any]) -> list[Row]:
    """The rows of one network. Proximal SGD and SFW-IF are trained once, and cut at the end to those that every run measures.

    >>> [row.name for row in benchmark_rows("mnist-mlp", (5,), {})]
    ['sgd', 'sparse-5', 'gradual-global-5', 'gradual-uniform-5', 'rigl-erk-5', 'set-erk-5', 'prune-global-5', 'proximal', 'sfw-if']
    >>> [row.name for row in benchmark_rows("mnist-mlp", (1.5,), {})][:2]
    ['sgd', 'sparse-1.5']
    """
    found = find(experiment, given.get("options"))
    free = found.defaults.get("free", "sgd")
    steps = "AdamW" if free == "adamw" else "SGD"
    tried = Grid({"lr": RATES[free]})
    thetas = tuple(theta for theta in THETAS if theta in densities)
    usual: dict[str, Any] = {"schedule": "cosine", **({} if free == "adamw" else {"momentum": 0.9}), **given}
    make = partial(Row, grid=tried, pruning=False)
    rows = [make("sgd", f"{steps}, dense", "sgd", given=usual)]
    for method in ORDER:
        for how in DISTRIBUTIONS.get(method, ()):
            told = LABELS[method].format(how)
            rows += [
                make(
                    f"{method}-{how}-{density:g}",
                    told,
                    method,
                    given={**usual, "keep": density / 100, "distribution": how},
                )
                for density in densities
            ]
        if method == "sparse":
            rows += [
                make(f"sparse-{density:g}", "inface", "sparse", given={**given, "density": density / 100})
                for density in densities
            ]
    if not thetas:
        return rows
    cut: dict[str, Any] = {"pruning": False, "thetas": thetas, "together": True}
    penalties = Grid({"lr": RATES[free], "shrinkage": SHRINKAGE[free]})
    shrunk = {**usual, "shrinkage": SHRINKAGE[free][0]}
    rows.append(Row("proximal", f"proximal {steps}, cut at the end", "proximal", penalties, shrunk, **cut))
    if found.sets:
        rows.append(
            Row(
                "sfw-if",
                "SFW-IF as in the paper, cut at the end",
                "sfw-if",
                Grid({"smoothness": SMOOTHNESS}),
                given,
                **cut,
            )
        )
    return rows
