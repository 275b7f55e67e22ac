"""The lines of the tables: a method each, and how its settings are chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from inface.lab.paper import METHODS
from inface.lab.settings import Method
from inface.lab.sweeps import Grid, paper_grid, quick_grid

__all__ = ["GRIDS", "GridName", "Row", "beyond_rows", "paper_rows"]

GridName = Literal["paper", "coarse", "quick"]
GRIDS: tuple[GridName, ...] = ("paper", "coarse", "quick")


@dataclass(frozen=True)
class Row:
    """One line of a table.

    Attributes:
        name: of its folder.
        told: what the table calls it.
        method: how its networks are trained.
        grid: the settings that are tried.
        given: settings of every run.
        theta: settings are judged by the accuracy with this percentage of the edges.
        pruning: whether bad settings are stopped early.
        first_rung: the epochs of the first rung of successive halving, if they are not a sweep's own.
    """

    name: str
    told: str
    method: Method
    grid: Grid
    given: Mapping[str, Any] = field(default_factory=dict)
    theta: int = 100
    pruning: bool = True
    first_rung: int | None = None


def paper_rows(grid: GridName) -> list[Row]:
    """Table 1: the paper's methods, with its grid or a part of it.

    >>> [(row.name, len(row.grid.points())) for row in paper_rows("paper")]
    [('sfw-if', 200), ('sfw', 200), ('sgd', 8)]
    >>> [(row.name, len(row.grid.points())) for row in paper_rows("coarse")]
    [('sfw-if-coarse', 18), ('sfw-coarse', 18), ('sgd-coarse', 4)]
    """
    make = {"paper": paper_grid, "coarse": _coarse_grid, "quick": quick_grid}[grid]
    suffix = "-coarse" if grid == "coarse" else ""
    rung = 1 if grid == "coarse" else None
    return [Row(f"{method}{suffix}", method, method, make(method, 2), first_rung=rung) for method in METHODS]


def _coarse_grid(method: Method, layers: int) -> Grid:
    """The part of the paper's grid around what is best for MNIST's perceptron: ``L = 4`` and radii 1 and 10."""
    if method == "sgd":
        return Grid({"smoothness": [1.0, 4.0, 16.0, 64.0]})
    radii = {"radius 1": [1.0, 5.0], **{f"radius {layer}": [5.0, 10.0, 50.0] for layer in range(2, layers + 1)}}
    return Grid({"smoothness": [1.0, 4.0, 16.0], **radii})


@dataclass(frozen=True)
class _Choices:
    """What is tried on one network beyond the paper."""

    ours: Mapping[int, Mapping[str, list[Any]]]  # of sfw-if, by the percentage of the edges that it is judged with
    rates: list[float]  # of the rivals, from the smallest
    shrinkage: list[float]
    keep: tuple[int, ...]  # per cent of the edges to prune to


CHOICES = {
    "mnist-mlp": _Choices(
        ours={
            5: {
                "radius": [[0.3, 20], [0.5, 10]],
                "in_face": ["away", "pairwise"],
                "free_momentum": [0.0, 0.9],
                "lr": [0.2],
                "momentum": [0.99],
                "constrained_lr": [8.0],
            },
            2: {
                "radius": [[0.3, 20], [0.5, 10]],
                "free_momentum": [0.0],
                "lr": [0.2],
                "momentum": [0.99],
                "constrained_lr": [4.0, 8.0],
            },
        },
        rates=[0.05, 0.1, 0.2],
        shrinkage=[3e-5, 1e-4, 3e-4],
        keep=(5, 2),
    ),
    "mnist-conv": _Choices(
        ours={
            5: {
                "radius": [[0.5, 5], [1, 10]],
                "free_momentum": [0.9],
                "lr": [0.2],
                "momentum": [0.98],
                "constrained_lr": [4.0],
            },
        },
        rates=[0.05, 0.1],
        shrinkage=[1e-4, 3e-4],
        keep=(5,),
    ),
    "cifar10": _Choices(
        ours={
            5: {
                "radius": [[0.5, 10], [0.5, 20]],
                "free_momentum": [0.9],
                "lr": [0.4],
                "momentum": [0.98],
                "constrained_lr": [3.0, 8.0],
            },
            100: {
                "radius": [[1, 10]],
                "free_momentum": [0.9],
                "lr": [0.4, 0.8],
                "momentum": [0.95],
                "constrained_lr": [3.0, 8.0],
            },
        },
        rates=[0.02, 0.05],
        shrinkage=[1e-4, 3e-4],
        keep=(5,),
    ),
}


def beyond_rows(experiment: str, *, quick: bool = False) -> list[Row]:
    """The second table: averaged gradients, falling steps and a start alive, beside what others do with as many gradients.

    >>> [row.name for row in beyond_rows("mnist-mlp")]
    ['sfw-if-5', 'sfw-if-2', 'sgd', 'prune-5', 'gradual-5', 'prune-2', 'gradual-2', 'proximal']
    """
    choices = CHOICES[experiment]
    ours = {"schedule": "cosine", "every_gradient": True, "init": "alive"}
    momentum: dict[str, Any] = {"momentum": 0.9}
    cosine = {**momentum, "schedule": "cosine"}
    rows = [
        Row(f"sfw-if-{theta}", "sfw-if", "sfw-if", Grid(grid), ours, theta=theta)
        for theta, grid in choices.ours.items()
    ]
    rates: dict[str, list[Any]] = {"lr": choices.rates}
    rows.append(Row("sgd", "SGD; few edges: pruned at the end", "sgd", Grid(rates), cosine))
    both: dict[str, list[Any]] = {"lr": choices.rates[:2], "schedule": ["constant", "cosine"]}
    for keep in choices.keep:
        late, early = f"pruned to {keep} %, last 5 epochs fine-tuned", f"gradually pruned to {keep} %"
        part = {"keep": keep / 100}
        rows += [
            Row(f"prune-{keep}", late, "prune", Grid(both), momentum | part, theta=keep),
            Row(f"gradual-{keep}", early, "gradual", Grid(rates), cosine | part, theta=keep),
        ]
    shrunk = {"lr": choices.rates[:2], "shrinkage": choices.shrinkage}
    given = {**cosine, "shrinkage": choices.shrinkage[0]}
    rows.append(Row("proximal", "proximal SGD (soft-thresholding)", "proximal", Grid(shrunk), given, theta=5))
    # While steps are long and edges are not yet pruned, a network says little about what it will be: the best setting of
    # sfw-if on MNIST is among the last after two epochs. So every setting is trained to its end.
    return [replace(row, pruning=False, grid=_corner(row.grid) if quick else row.grid) for row in rows]


def _corner(grid: Grid) -> Grid:
    """Two points of a grid."""
    return Grid({name: list(values)[: 1 if number else 2] for number, (name, values) in enumerate(grid.axes.items())})
