"""``inface sweep``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inface.lab.errors import ArgumentError, suggestion
from inface.lab.runs.settings import declarations

from .ui.options import DataFolder, one_of, option, whole_number
from .ui.settings import Given, experiment_argument, located, refuse_ignored, takes_settings

if TYPE_CHECKING:
    from inface.lab.runs.settings import Settings
    from inface.lab.sweeps import Grid

__all__ = ["sweep"]

SEARCH = "Search"


@takes_settings(lambda setting: setting.in_sweep)
def sweep(
    experiment: Annotated[str, experiment_argument],
    *,
    out: Annotated[Path, typer.Option(help="The folder of the sweep.", metavar="DIR", show_default=False)],
    grid: Annotated[
        str | None,
        option(
            text="The grid: paper (200 settings; 8 without radii), quick (8; 2 or 3 without), or a YAML file of lists.",
            default="paper",
            panel=SEARCH,
            autocompletion=one_of("paper", "quick"),
            metavar="GRID",
        ),
    ] = None,
    search: Annotated[
        int | None,
        option(
            text="Instead of a grid, sample N settings: log-uniform learning rates, radii and momentum.",
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
        option(
            text="The place of the study: a folder that machines share, or the URL of a database.",
            default="DIR",
            panel=SEARCH,
            metavar="PLACE",
        ),
    ] = None,
    study: Annotated[
        str | None,
        option(
            text="The name of the study, if several share a place.",
            default="EXPERIMENT METHOD",
            panel=SEARCH,
            metavar="NAME",
        ),
    ] = None,
    no_pruning: Annotated[
        bool, typer.Option("--no-pruning", help="Train all settings to the end.", rich_help_panel=SEARCH)
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
    given: Given,
    data: DataFolder = None,
) -> None:
    """Choose settings on held-out data, then train the winner on all training data and measure it on the test data.

    The sweep and its workers can be killed at any moment; the same command continues.
    With --storage, several machines can run the same command and share the work.
    Settings given here are used in every run; those that the grid or the search tries cannot be given.

    [bold]Examples[/bold]

    $ inface sweep digits --out sweeps/digits --grid quick --jobs 2

    $ inface sweep mnist-mlp --out sweeps/mlp --method sfw-if --grid paper --jobs 2

    $ inface sweep mnist-mlp --out sweeps/search --search 50 --schedule cosine --every-gradient --theta 5

    $ inface sweep mnist-mlp --out sweeps/pruned --method gradual --keep 5% --momentum 0.9 --no-pruning

    $ inface sweep cifar10 --out sweeps/cifar --grid my_grid.yaml --storage postgresql://host/studies
    """
    if grid is not None and search is not None:
        raise ArgumentError("wanted --grid or --search, got both")
    if out == Path():
        raise ArgumentError("--out: wanted the folder of the sweep, got nothing")
    for name, value, least in (("jobs", jobs, 1), ("seeds", seeds, 0), ("search", search, 1)):
        if value is not None and value < least:
            raise ArgumentError(f"--{name}: wanted a whole number >= {least}, got {value}")
    from inface.lab.runs.metrics import THETAS
    from inface.lab.runs.setup import experiment_of
    from inface.lab.sweeps import Plan
    from inface.lab.sweeps import sweep as run_sweep
    from inface.lab.sweeps.grids import search_space

    from .ui.sweep import continued, print_results, progress

    if theta not in THETAS:
        raise ArgumentError(f"--theta: wanted one of {', '.join(map(str, THETAS))}, got {theta}")
    chosen = {name: value for name, value in given.items() if name != "smoothness"}
    place = located(experiment)
    base, tried = _tried(place, chosen, None if search else grid or "paper")
    refuse_ignored(base.method, given)
    if tried is None:
        axes, by = list(search_space(base.method, len(experiment_of(base).sets))), "--search"
    else:
        axes, by = list(tried.axes), f"--grid {grid or 'paper'}"
    _refuse_what_is_tried({*given}, axes, by)
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
    """The settings of every run, and the grid, if there is one."""
    from inface.lab.runs.setup import experiment_of, settings_for
    from inface.lab.sweeps import load_grid, paper_grid, quick_grid

    grids = {"paper": paper_grid, "quick": quick_grid}
    made = grids.get(grid or "")
    if grid is None or made is not None:
        base = settings_for(experiment, **chosen)
        return base, made and made(base.method, len(experiment_of(base).sets))
    if not Path(grid).exists():
        hint = suggestion(grid, grids) or "; wanted paper, quick, or a YAML file of lists"
        raise ArgumentError(f"--grid: there is no file {grid}{hint}")
    # The file may list settings that the method needs; until it is read, they get a placeholder.
    method = chosen.get("method")
    needed = {setting.name for setting in declarations() if method in setting.needed_by} - {*chosen}
    base = settings_for(experiment, **dict.fromkeys(needed, 1.0), **chosen)
    listed = load_grid(Path(grid), base, len(experiment_of(base).sets))
    return settings_for(
        experiment, **{name: listed.axes[name][0] for name in needed & {*listed.axes}}, **chosen
    ), listed


def _refuse_what_is_tried(chosen: set[str], axes: list[str], by: str) -> None:
    """Raise an error if a given setting is also tried by the grid or the search, which would override it."""
    from inface.lab.sweeps.grids import setting_of

    for axis in axes:
        name = setting_of(axis)
        if name in chosen:
            option = "smoothness" if name == "lr" and "smoothness" in chosen else name
            told = "momentum" if axis == "1 - momentum" else axis
            raise ArgumentError(f"wanted --{option.replace('_', '-')} or {by}, which tries {told}; got both")
