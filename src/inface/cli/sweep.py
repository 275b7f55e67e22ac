"""``inface sweep``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inface.lab.errors import ArgumentError, suggestion
from inface.lab.names import READ_BY

from .options import DataFolder, one_of, setting, whole_number
from .settings import (
    BatchSize,
    ConstrainedLr,
    Epochs,
    EveryGradient,
    FreeMomentum,
    InFace,
    Init,
    Keep,
    Lr,
    Method,
    Momentum,
    Options,
    Radius,
    Schedule,
    Shrinkage,
    Smoothness,
    WeightDecay,
    experiment_argument,
    located,
    named,
    refuse_what_is_ignored,
)

if TYPE_CHECKING:
    from inface.lab.settings import Settings
    from inface.lab.sweeps import Grid

__all__ = ["sweep"]

SEARCH = "How it is searched"


def sweep(
    experiment: Annotated[str, experiment_argument],
    *,
    out: Annotated[Path, typer.Option(help="The folder of the sweep.", metavar="DIR", show_default=False)],
    grid: Annotated[
        str | None,
        setting(
            text="What is tried: paper (200 settings; 8 of a method without radii), quick (8; 2), or a YAML file of lists.",
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
    study: Annotated[
        str | None,
        setting(
            text="The name of the study, where several share a place.",
            default="EXPERIMENT METHOD",
            panel=SEARCH,
            metavar="NAME",
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
    method: Method = None,
    lr: Lr = None,
    smoothness: Smoothness = None,
    constrained_lr: ConstrainedLr = None,
    radius: Radius = None,
    momentum: Momentum = None,
    free_momentum: FreeMomentum = None,
    schedule: Schedule = None,
    in_face: InFace = None,
    keep: Keep = None,
    weight_decay: WeightDecay = None,
    shrinkage: Shrinkage = None,
    every_gradient: EveryGradient = None,
    init: Init = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    option: Options = None,
    data: DataFolder = None,
) -> None:
    """Choose settings on held-out data, then train the winner on all training data and measure it on the test data.

    It can be killed at any moment, as can any of its workers: the same command goes on.
    With --storage, any number of machines work on it by running the same command.
    Settings that are given here are those of every run; what the grid tries, or the search, cannot be given.

    [bold]Examples[/bold]

    $ inface sweep digits --out sweeps/digits --grid quick --jobs 2

    $ inface sweep mnist-mlp --out sweeps/mlp --method sfw-if --grid paper --jobs 2

    $ inface sweep mnist-mlp --out sweeps/search --search 50 --schedule cosine --every-gradient --theta 5

    $ inface sweep mnist-mlp --out sweeps/pruned --method gradual --keep 0.05 --momentum 0.9 --no-pruning

    $ inface sweep cifar10 --out sweeps/cifar --grid my_grid.yaml --storage postgresql://host/studies
    """
    if grid is not None and search is not None:
        raise ArgumentError("--grid and --search are two ways to choose settings; wanted one of them")
    if out == Path():
        raise ArgumentError("--out: wanted the folder of the sweep, got nothing")
    for name, value, least in (("jobs", jobs, 1), ("seeds", seeds, 0), ("search", search, 1)):
        if value is not None and value < least:
            raise ArgumentError(f"--{name}: wanted a whole number >= {least}, got {value}")
    given = named(
        option=option,
        method=method,
        lr=lr,
        smoothness=smoothness,
        constrained_lr=constrained_lr,
        radius=radius,
        momentum=momentum,
        free_momentum=free_momentum,
        schedule=schedule,
        in_face=in_face,
        keep=keep,
        weight_decay=weight_decay,
        shrinkage=shrinkage,
        every_gradient=every_gradient,
        init=init,
        epochs=epochs,
        batch_size=batch_size,
    )
    from inface.lab.building import experiment_of
    from inface.lab.measuring import THETAS
    from inface.lab.sweeps import Plan
    from inface.lab.sweeps import sweep as run_sweep
    from inface.lab.sweeps.grids import search_space

    from .sweeping import continued, print_results, progress

    if theta not in THETAS:
        raise ArgumentError(f"--theta: wanted one of {', '.join(map(str, THETAS))}, got {theta}")
    chosen = {key: value for key, value in given.items() if value is not None}
    place = located(experiment)
    base, tried = _tried(place, chosen, None if search else grid or "paper")
    refuse_what_is_ignored(base.method, given)
    if tried is None:
        axes, by = list(search_space(base.method, len(experiment_of(base).sets))), "--search"
    else:
        axes, by = list(tried.axes), f"--grid {grid or 'paper'}"
    _refuse_what_is_tried({*chosen} | ({"smoothness"} if smoothness is not None else set()), axes, by)
    plan = Plan(
        base=base,
        out=str(out),
        storage=storage or str(out),
        study=study or f"{place.rpartition('/')[2]} {base.method}",
        grid=tried,
        search=search or 0,
        pruning=not no_pruning,
        theta=theta,
        seeds=seeds,
        data=None if data is None else str(data),
    )
    with progress() as show, continued():
        results = run_sweep(plan, jobs=jobs, show=show)
    print_results(results, out)


def _tried(experiment: str, chosen: dict[str, Any], grid: str | None) -> tuple[Settings, Grid | None]:
    """The settings of every run, and the grid of what is tried, if it is one."""
    from inface.lab.building import experiment_of, settings_for
    from inface.lab.sweeps import load_grid, paper_grid, quick_grid

    grids = {"paper": paper_grid, "quick": quick_grid}
    made = grids.get(grid or "")
    if grid is None or made is not None:
        base = settings_for(experiment, **chosen)
        return base, made and made(base.method, len(experiment_of(base).sets))
    if not Path(grid).exists():
        hint = suggestion(grid, grids) or "; wanted paper, quick, or a YAML file of lists"
        raise ArgumentError(f"--grid: there is no file {grid}{hint}")
    # What the method needs, the file may list: until that is known, any value will do.
    method = chosen.get("method")
    needed = {name for name in ("keep", "shrinkage") if method in READ_BY[name] and name not in chosen}
    base = settings_for(experiment, **dict.fromkeys(needed, 1.0), **chosen)
    listed = load_grid(Path(grid), base, len(experiment_of(base).sets))
    return settings_for(
        experiment, **{name: listed.axes[name][0] for name in needed & {*listed.axes}}, **chosen
    ), listed


def _refuse_what_is_tried(chosen: set[str], axes: list[str], by: str) -> None:
    """Refuse what was given and would make no difference: the grid, or the search, has other values for it."""
    from inface.lab.sweeps.grids import setting_of

    for axis in axes:
        name = setting_of(axis)
        if name in chosen:
            option = "smoothness" if name == "lr" and "smoothness" in chosen else name
            told = "momentum" if axis == "1 - momentum" else axis
            raise ArgumentError(f"--{option.replace('_', '-')} and {by}, which tries {told}: wanted one of them")
