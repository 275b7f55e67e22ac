"""``inface sweep``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from inface.lab.errors import ArgumentError

from .options import DataFolder, experiment_names, number, one_of, setting, whole_number

__all__ = ["sweep"]

SEARCH = "How it is searched"


def sweep(
    experiment: Annotated[
        str,
        typer.Argument(
            help="mnist-mlp, mnist-conv, cifar10, synthetic, digits, or your own: path/to/file.py:name.",
            metavar="EXPERIMENT",
            show_default=False,
            autocompletion=experiment_names,
        ),
    ],
    *,
    out: Annotated[Path, typer.Option(help="The folder of the sweep.", metavar="DIR", show_default=False)],
    grid: Annotated[
        str | None,
        setting(
            text="What is tried: paper (200 settings), quick (8), or a YAML file of lists.",
            default="paper",
            panel=SEARCH,
            autocompletion=one_of("paper", "quick"),
            metavar="GRID",
        ),
    ] = None,
    search: Annotated[
        int | None,
        setting(
            text="Instead of a grid, search N settings: log-uniform learning rates, radii and momentum.",
            panel=SEARCH,
            parser=whole_number,
            metavar="N",
        ),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(
            help="Worker processes, one thread each.", parser=whole_number, metavar="N", rich_help_panel=SEARCH
        ),
    ] = 1,
    storage: Annotated[
        str | None,
        setting(
            text="Where the study is: a folder that machines share, or the URL of a database.",
            default="DIR",
            panel=SEARCH,
            metavar="PLACE",
        ),
    ] = None,
    no_pruning: Annotated[
        bool, typer.Option("--no-pruning", help="Train every setting to its end.", rich_help_panel=SEARCH)
    ] = False,
    theta: Annotated[
        int,
        typer.Option(
            help="Judge settings with the top THETA % of the edges of each constrained layer.",
            parser=whole_number,
            metavar="THETA",
            rich_help_panel=SEARCH,
        ),
    ] = 100,
    seeds: Annotated[
        int,
        typer.Option(
            help="Final runs of the winner on all training data.",
            parser=whole_number,
            metavar="N",
            rich_help_panel=SEARCH,
        ),
    ] = 3,
    method: Annotated[
        str | None,
        setting(text="sfw-if, sfw or sgd.", default="sfw-if", autocompletion=one_of("sfw-if", "sfw", "sgd")),
    ] = None,
    momentum: Annotated[
        float | None, setting(text="Momentum of every run.", default="0", parser=number, metavar="NUMBER")
    ] = None,
    constrained_lr: Annotated[
        float | None,
        setting(text="Learning rate of the constrained layers.", default="--lr", parser=number, metavar="NUMBER"),
    ] = None,
    schedule: Annotated[
        str | None,
        setting(text="constant or cosine.", default="constant", autocompletion=one_of("constant", "cosine")),
    ] = None,
    every_gradient: Annotated[
        bool | None, setting("--every-gradient", text="With sfw-if, free parameters move on both halves.")
    ] = None,
    epochs: Annotated[
        int | None, setting(text="Passes over the data.", default="25; digits 100", parser=whole_number, metavar="N")
    ] = None,
    batch_size: Annotated[
        int | None, setting(text="Samples of a gradient.", default="250; digits 50", parser=whole_number, metavar="N")
    ] = None,
    option: Annotated[
        list[str] | None, setting("--option", "-o", text="An option of the experiment.", metavar="NAME=VALUE")
    ] = None,
    data: DataFolder = None,
) -> None:
    """Choose settings on held-out data, then train the winner on all training data and measure it on the test data.

    It can be killed at any moment, as can any of its workers: the same command goes on.
    With --storage, any number of machines work on it by running the same command.

    [bold]Examples[/bold]

    $ inface sweep digits --out sweeps/digits --grid quick --jobs 2

    $ inface sweep mnist-mlp --out sweeps/mlp --method sfw-if --grid paper --jobs 2

    $ inface sweep mnist-mlp --out sweeps/search --search 50 --schedule cosine --every-gradient --theta 5

    $ inface sweep cifar10 --out sweeps/cifar --grid my_grid.yaml --storage postgresql://host/studies
    """
    from inface.lab.building import settings_for
    from inface.lab.measuring import THETAS
    from inface.lab.sweeps import Plan, load_grid, paper_grid, quick_grid
    from inface.lab.sweeps import sweep as run_sweep

    from .train import located, options

    if grid is not None and search is not None:
        raise ArgumentError("--grid and --search are two ways to choose settings; wanted one of them")
    for name, value, least in (("jobs", jobs, 1), ("seeds", seeds, 0), ("search", search, 1)):
        if value is not None and value < least:
            raise ArgumentError(f"--{name}: wanted a whole number >= {least}, got {value}")
    if theta not in THETAS:
        raise ArgumentError(f"--theta: wanted one of {', '.join(map(str, THETAS))}, got {theta}")
    given: dict[str, Any] = {
        "method": method,
        "momentum": momentum,
        "constrained_lr": constrained_lr,
        "schedule": schedule,
        "every_gradient": every_gradient,
        "epochs": epochs,
        "batch_size": batch_size,
        "options": options(option) if option else None,
    }
    name = located(experiment)
    base = settings_for(name, **{key: value for key, value in given.items() if value is not None})
    plan = Plan(
        base=base,
        out=str(out),
        storage=storage or str(out),
        study=f"{name.rpartition('/')[2]} {base.method}",
        grid=None,
        search=search or 0,
        pruning=not no_pruning,
        theta=theta,
        seeds=seeds,
        data=None if data is None else str(data),
    )
    if search is None:
        made = {"paper": paper_grid, "quick": quick_grid}.get(grid or "paper")
        chosen = made(base.method, plan.layers) if made else load_grid(Path(grid or ""), base, plan.layers)
        plan = replace(plan, grid=chosen)
    from .sweeping import continued, print_results, progress

    with progress() as show, continued():
        results = run_sweep(plan, jobs=jobs, show=show)
    print_results(results, out)
