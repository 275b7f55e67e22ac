"""The rows of the tables: a method, and how its settings are chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from inface.lab.runs.settings import Method
from inface.lab.sweeps import Grid, paper_grid, quick_grid

from .published import LINES

__all__ = ["GridName", "Row", "beyond_rows", "corner", "paper_rows"]

GridName = Literal["paper", "coarse", "quick"]


@dataclass(frozen=True)
class Row:
    """One row of a table; more than one if several ``thetas`` have different winners.

    Attributes:
        name: the name of the row, for ``--only``.
        told: its label in the table.
        method: the training method.
        grid: the settings to try.
        given: fixed settings of every run.
        thetas: for each of these percentages of edges, a winner is chosen by its accuracy.
        pruning: whether bad settings are stopped early.
        part: the part of the paper's grid that is tried.
        together: whether ``thetas`` are of all constrained layers together, not of each.
    """

    name: str
    told: str
    method: Method
    grid: Grid
    given: Mapping[str, Any] = field(default_factory=dict)
    thetas: tuple[int, ...] = (100,)
    pruning: bool = True
    part: GridName = "paper"
    together: bool = False

    @property
    def folder(self) -> str:
        return self.name if self.part == "paper" else f"{self.name}-{self.part}"


def paper_rows(grid: GridName) -> list[Row]:
    """Table 1: the paper's methods, with its grid or a part of it.

    SFW-IF is there twice: in Algorithm 1 the free layers move once per iteration, in the authors' code with every
    gradient. SFW has one gradient per iteration, so that both are the same.

    Small grids are trained without halving. SGD is trained with three seeds: with the largest steps short of divergence, a network may be the best or fail.

    >>> [(row.name, len(row.grid.points()), row.pruning) for row in paper_rows("paper")]
    [('sfw-if', 200, True), ('sfw-if-every', 200, True), ('sfw', 200, True), ('sgd', 24, False)]
    >>> [(row.folder, len(row.grid.points())) for row in paper_rows("coarse")]
    [('sfw-if-coarse', 32), ('sfw-if-every-coarse', 32), ('sfw-coarse', 32), ('sgd-coarse', 12)]
    """
    make = {"paper": paper_grid, "coarse": _coarse_grid, "quick": quick_grid}[grid]
    rows = []
    for name, method in LINES.items():
        tried = make(method, 2)
        many = len(tried.points()) >= 10
        if method == "sgd" and grid != "quick":
            tried = Grid({**tried.axes, "seed": [0, 1, 2]})
        given = {"every_gradient": True} if name == "sfw-if-every" else {}
        rows.append(Row(name, name, method, tried, given, pruning=many, part=grid))
    return rows


def _coarse_grid(method: Method, layers: int) -> Grid:
    """The part of the paper's grid around the best settings for mnist-mlp.

    These are ``L = 4`` with radii 1 and 10 for SFW-IF, ``L = 64`` with radii 1 and 50 for SFW, and ``L = 1`` for SGD.
    The part extends farther to smaller ``L``, since convolutions may want longer steps.
    """
    if method == "sgd":
        return Grid({"smoothness": [0.25, 1.0, 4.0, 16.0]})
    around, second = (
        ([0.25, 1.0, 4.0, 16.0], [1.0, 5.0, 10.0, 50.0])
        if method == "sfw-if"
        else ([4.0, 16.0, 64.0, 256.0], [5.0, 10.0, 50.0, 100.0])
    )
    return Grid(
        {"smoothness": around, "radius 1": [1.0, 5.0]} | {f"radius {layer}": second for layer in range(2, layers + 1)}
    )


@dataclass(frozen=True)
class _Choices:
    """The settings that the second table tries on one network.

    Attributes:
        ours: grids of sfw-if, by the percentages of edges that choose the winner.
        rates: learning rates of SGD and each baseline.
        decay: weight decays of SGD.
        shrinkage: penalties of proximal SGD.
        keep: percentages of edges to prune to; SGD and proximal SGD are also judged with them.
    """

    ours: Mapping[tuple[int, ...], Mapping[str, list[Any]]]
    rates: Mapping[Method, list[float]]
    decay: list[float]
    shrinkage: list[float]
    keep: tuple[int, ...]


CHOICES = {
    "mnist-mlp": _Choices(
        ours={
            (5, 2): {
                "radius": [[0.3, 20]],
                "free_momentum": [0.9],
                "lr": [0.6, 1.0],
                "momentum": [0.98, 0.99],
                "constrained_lr": [8.0],
                "seed": [0, 1, 2],
            },
        },
        rates={
            "sgd": [0.05, 0.1, 0.2],
            "prune": [0.02, 0.05, 0.1, 0.2],
            "gradual": [0.02, 0.05, 0.1, 0.2],
            "proximal": [0.05, 0.1, 0.2, 0.4],
        },
        decay=[0.0, 1e-4],
        shrinkage=[3e-5, 1e-4, 3e-4],
        keep=(5, 2),
    ),
    "mnist-conv": _Choices(
        ours={
            (5,): {
                "radius": [[2, 2], [5, 2]],
                "free_momentum": [0.9],
                "lr": [0.4],
                "momentum": [0.98],
                "constrained_lr": [8.0],
            },
        },
        rates={"sgd": [0.05, 0.1], "prune": [0.05, 0.1], "gradual": [0.05, 0.1], "proximal": [0.1]},
        decay=[0.0],
        shrinkage=[1e-4, 3e-4],
        keep=(5,),
    ),
    "cifar10": _Choices(
        ours={
            (5,): {
                "radius": [[0.5, 20], [0.7, 20]],
                "free_momentum": [0.9],
                "lr": [0.4],
                "momentum": [0.98],
                "constrained_lr": [8.0, [8.0, 2.0]],
                "seed": [0, 1, 2],
            },
            (100,): {
                "radius": [[1, 10]],
                "free_momentum": [0.9],
                "lr": [0.4, 0.8],
                "momentum": [0.95],
                "constrained_lr": [3.0, 8.0],
            },
        },
        rates={
            "sgd": [0.01, 0.02, 0.05],
            "prune": [0.01, 0.02, 0.05],
            "gradual": [0.02, 0.05, 0.1],
            "proximal": [0.02, 0.05],
        },
        decay=[0.0, 1e-3],
        shrinkage=[3e-5, 1e-4, 3e-4, 6e-4, 1e-3],
        keep=(5,),
    ),
}


def beyond_rows(experiment: str, *, quick: bool = False) -> list[Row]:
    """The second table: SFW-IF with momentum, cosine schedule and ``init="alive"``, beside SGD, baselines and sparse.

    >>> [row.name for row in beyond_rows("mnist-mlp")]
    ['sfw-if-5', 'sgd', 'prune-5', 'gradual-5', 'sparse-5', 'prune-2', 'gradual-2', 'sparse-2', 'proximal']
    """
    choices = CHOICES[experiment]
    ours = {"schedule": "cosine", "every_gradient": True, "init": "alive"}
    cosine: dict[str, Any] = {"momentum": 0.9, "schedule": "cosine"}
    rates: dict[Method, dict[str, list[Any]]] = {method: {"lr": lr} for method, lr in choices.rates.items()}
    rows = [
        Row(f"sfw-if-{thetas[0]}", "sfw-if", "sfw-if", Grid(grid), ours, thetas=thetas)
        for thetas, grid in choices.ours.items()
    ]
    decayed = Grid({**rates["sgd"], "weight_decay": choices.decay})
    rows.append(Row("sgd", "SGD; few edges: pruned at the end", "sgd", decayed, cosine, thetas=(100, *choices.keep)))
    for keep in choices.keep:
        late, early = f"pruned to {keep} %, last 5 epochs fine-tuned", f"gradually pruned to {keep} %"
        part = {**cosine, "keep": keep / 100}
        rows += [
            Row(f"prune-{keep}", late, "prune", Grid(rates["prune"]), part, thetas=(keep,)),
            Row(f"gradual-{keep}", early, "gradual", Grid(rates["gradual"]), part, thetas=(keep,)),
            Row(f"sparse-{keep}", f"inface at {keep} %", "sparse", quick_grid("sparse", 2), {"density": keep / 100}),
        ]
    shrunk, given = {**rates["proximal"], "shrinkage": choices.shrinkage}, {**cosine, "shrinkage": choices.shrinkage[0]}
    told = "proximal SGD (soft-thresholding)"
    rows.append(Row("proximal", told, "proximal", Grid(shrunk), given, thetas=(*choices.keep, 100)))
    # No halving: while steps are long and edges are not yet pruned, early accuracy says little. The best setting of
    # sfw-if on MNIST is among the worst after two epochs.
    return [replace(row, pruning=False, grid=corner(row.grid) if quick else row.grid) for row in rows]


def corner(grid: Grid) -> Grid:
    """Two points of a grid, which differ in the first setting with several values.

    >>> corner(Grid({"momentum": [0.9], "lr": [0.1, 0.2, 0.3], "seed": [0, 1]})).axes
    {'momentum': [0.9], 'lr': [0.1, 0.2], 'seed': [0]}
    """
    several = next((name for name, values in grid.axes.items() if len(values) > 1), "")
    return Grid({name: list(values)[: 2 if name == several else 1] for name, values in grid.axes.items()})
