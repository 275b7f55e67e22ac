"""``inface reproduce``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inface.lab.errors import ArgumentError, suggestion
from inface.lab.experiments import Activation
from inface.text import printable

from .ui.options import DataFolder, one_of, part, whole_number
from .ui.settings import named_values

if TYPE_CHECKING:
    from inface.lab.paper.rows import GridName

__all__ = ["app"]

app = typer.Typer(help="Reproduce the paper's tables and figures, and the benchmark.", no_args_is_help=True)

NETWORKS = ("mnist-mlp", "mnist-conv", "cifar10")
ABLATIONS = ("mnist-mlp", "cifar10", "mnist-conv", "synthetic")
BENCHMARK = ("lenet-300-100", "lenet-5", "cifar10", "vit", *NETWORKS[:2], "resnet")


Networks = Annotated[
    list[str] | None,
    typer.Option(
        "--experiment",
        help="mnist-mlp, mnist-conv or cifar10; may be repeated. [dim]\\[default: all; --quick: mnist-mlp][/dim]",
        show_default=False,
        autocompletion=one_of(*NETWORKS),
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        help="Make only this line of the table, such as sfw-if; may be repeated. [dim]\\[default: all][/dim]",
        metavar="LINE",
        show_default=False,
    ),
]
Jobs = Annotated[int, typer.Option(help="Worker processes, one thread each.", parser=whole_number, metavar="N")]
Sweeps = Annotated[Path, typer.Option("--out", help="The folder of the sweeps.", metavar="DIR")]
TableFolder = Annotated[Path, typer.Option("--results", help="The folder of the table.", metavar="DIR")]


@app.command()
def table1(
    *,
    experiment: Networks = None,
    only: Only = None,
    grid: Annotated[
        str,
        typer.Option(
            help="paper (200 settings per method), or coarse (32 of them, around the best ones for mnist-mlp).",
            autocompletion=one_of("paper", "coarse"),
        ),
    ] = "paper",
    quick: Annotated[
        bool, typer.Option("--quick", help="A version that takes minutes: few settings, three epochs, one seed.")
    ] = False,
    jobs: Jobs = 1,
    out: Sweeps = Path("reproduction"),
    results: TableFolder = Path("results"),
    data: DataFolder = None,
) -> None:
    """Table 1: sparsity and accuracy of SFW-IF, SFW and SGD on three networks; settings are chosen on held-out data.

    It can be killed at any moment; the same command continues.

    [bold]Examples[/bold]

    $ inface reproduce table1 --quick --experiment mnist-mlp

    $ inface reproduce table1 --experiment mnist-mlp --experiment cifar10 --jobs 2
    """
    from inface.lab.paper import reproduce_paper

    if grid not in ("paper", "coarse"):
        raise ArgumentError(f"--grid: wanted paper or coarse, got {grid}{suggestion(grid, ('paper', 'coarse'))}")
    if quick and grid != "paper":
        raise ArgumentError("--quick has its own grid; wanted --quick or --grid, got both")
    chosen: GridName = "quick" if quick else "coarse" if grid == "coarse" else "paper"
    _table(partial(reproduce_paper, grid=chosen, only=only), experiment, jobs, out, results, data, quick=quick)


@app.command()
def table2(
    *,
    experiment: Networks = None,
    only: Only = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A version that takes minutes: two settings, three epochs, one seed.")
    ] = False,
    jobs: Jobs = 1,
    out: Sweeps = Path("reproduction"),
    results: TableFolder = Path("results"),
    data: DataFolder = None,
) -> None:
    """A second table, beyond the paper: SFW-IF with momentum and a cosine schedule, against pruning and proximal SGD.

    It can be killed at any moment; the same command continues.

    [bold]Examples[/bold]

    $ inface reproduce table2 --quick --experiment mnist-mlp

    $ inface reproduce table2 --experiment cifar10 --jobs 2
    """
    from inface.lab.paper import reproduce_beyond

    _table(partial(reproduce_beyond, quick=quick, only=only), experiment, jobs, out, results, data, quick=quick)


@app.command()
def benchmark(
    *,
    experiment: Annotated[
        list[str] | None,
        typer.Option(
            "--experiment",
            help="A network; may be repeated. [dim]\\[default: all; --quick: lenet-300-100][/dim]",
            show_default=False,
            autocompletion=one_of(*BENCHMARK),
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            help="Train only this method, such as sparse; may be repeated. [dim]\\[default: all][/dim]",
            metavar="METHOD",
            show_default=False,
        ),
    ] = None,
    density: Annotated[
        list[float] | None,
        typer.Option(
            "--density",
            help="A density, such as 5%; may be repeated. [dim]\\[default: 10%, 5%, 2%, 1%; --quick: 5%][/dim]",
            parser=part,
            metavar="PART",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            help="Final runs per cell. [dim]\\[default: 3; --quick: 1][/dim]",
            parser=whole_number,
            metavar="N",
            show_default=False,
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            help="Epochs of every run. [dim]\\[default: the experiment's; --quick: 2][/dim]",
            parser=whole_number,
            metavar="N",
            show_default=False,
        ),
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            "-o",
            help="An option of the experiment, such as depth=8.",
            metavar="NAME=VALUE",
            show_default=False,
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A version that takes minutes: two settings, two epochs, one seed.")
    ] = False,
    jobs: Jobs = 1,
    out: Sweeps = Path("reproduction"),
    results: TableFolder = Path("results"),
    data: DataFolder = None,
) -> None:
    """A table beyond the paper: many methods at several densities, on LeNets, a ResNet, a ViT and the paper's networks.

    It can be killed at any moment; the same command continues. The table is written after each row. A row that was made
    with other epochs or options stays, beside the new one.

    [bold]Examples[/bold]

    $ inface reproduce benchmark --quick

    $ inface reproduce benchmark --experiment resnet --only sparse --only gradual --density 5% -o samples=10000
    """
    from inface.lab.paper.benchmark import reproduce_benchmark
    from inface.lab.paper.benchmark_rows import DENSITIES

    _check_counts(seeds=seeds, epochs=epochs)
    make = partial(
        reproduce_benchmark,
        only=only,
        densities=[round(100 * each, 4) for each in density] if density else [5] if quick else list(DENSITIES),
        seeds=seeds or (1 if quick else 3),
        epochs=epochs or (2 if quick else None),
        options=named_values(options or []),
        quick=quick,
    )
    _table(make, experiment, jobs, out, results, data, quick=quick, networks=BENCHMARK)


@app.command()
def ablations(
    *,
    experiment: Annotated[
        list[str] | None,
        typer.Option(
            "--experiment",
            help="A network; may be repeated. [dim]\\[default: all; --quick: mnist-mlp][/dim]",
            show_default=False,
            autocompletion=one_of(*ABLATIONS),
        ),
    ] = None,
    only: Only = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            help="Final runs per line. [dim]\\[default: 3; --quick: 1][/dim]",
            parser=whole_number,
            metavar="N",
            show_default=False,
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            help="Epochs of every run. [dim]\\[default: 25; --quick: 2][/dim]",
            parser=whole_number,
            metavar="N",
            show_default=False,
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A version that takes minutes: two epochs, one seed.")] = False,
    jobs: Jobs = 1,
    out: Sweeps = Path("reproduction"),
    results: TableFolder = Path("results"),
    data: DataFolder = None,
) -> None:
    """Ablations: what the authors may have done otherwise, each change alone, beside the best setting of Table 1.

    It can be killed at any moment; the same command continues. The table is written after each line.

    [bold]Examples[/bold]

    $ inface reproduce ablations --quick

    $ inface reproduce ablations --experiment cifar10 --only baseline --only edges-2 --jobs 2
    """
    from inface.lab.paper.ablations import reproduce_ablations

    _check_counts(seeds=seeds, epochs=epochs)
    make = partial(
        reproduce_ablations,
        only=only,
        seeds=seeds or (1 if quick else 3),
        epochs=epochs or (2 if quick else None),
        quick=quick,
    )
    _table(make, experiment, jobs, out, results, data, quick=quick, networks=ABLATIONS)


def _table(
    make: Callable[..., Path],
    experiment: list[str] | None,
    jobs: int,
    out: Path,
    results: Path,
    data: Path | None,
    *,
    quick: bool,
    networks: tuple[str, ...] = NETWORKS,
) -> None:
    from .ui.sweep import continued, named_progress

    chosen = experiment or list(networks[:1] if quick else networks)
    for name in chosen:
        if name not in networks:
            raise ArgumentError(f"--experiment: wanted {', '.join(networks)}, got {name}{suggestion(name, networks)}")
    if jobs < 1:
        raise ArgumentError(f"--jobs: wanted a whole number >= 1, got {jobs}")
    with named_progress() as show, continued():
        folder = None if data is None else str(data)
        page = make(chosen, out=out, results=results, jobs=jobs, data=folder, show=show)
    typer.echo(f"written: {printable(page)}")


Trials = Annotated[
    int | None,
    typer.Option(
        help="Trials per cell. [dim]\\[default: 5][/dim]", parser=whole_number, metavar="N", show_default=False
    ),
]
Quick = Annotated[
    bool, typer.Option("--quick", help="A version that takes minutes: few settings, samples, epochs and trials.")
]
Out = Annotated[Path, typer.Option(help="The folder of the runs.", metavar="DIR")]
Results = Annotated[Path, typer.Option(help="The folder of the figure.", metavar="DIR")]


@app.command()
def figure1(
    *,
    trials: Trials = None,
    quick: Quick = False,
    jobs: Jobs = 1,
    out: Out = Path("reproduction"),
    results: Results = Path("results"),
) -> None:
    """Figure 1: box plots on synthetic data of sigmoid networks, for m in 5, 10, 15 and SNR in 1, 5, 10.

    [bold]Examples[/bold]

    $ inface reproduce figure1 --quick

    $ inface reproduce figure1 --trials 30 --jobs 2
    """
    _boxes("figure1", "sigmoid", trials, quick, jobs, out, results)


@app.command()
def figure2(
    *,
    trials: Trials = None,
    quick: Quick = False,
    jobs: Jobs = 1,
    out: Out = Path("reproduction"),
    results: Results = Path("results"),
) -> None:
    """Figure 2: the same as Figure 1 with ReLU networks.

    [bold]Examples[/bold]

    $ inface reproduce figure2 --quick --jobs 2
    """
    _boxes("figure2", "relu", trials, quick, jobs, out, results)


@app.command()
def figure3(
    *,
    quick: Quick = False,
    jobs: Jobs = 1,
    out: Out = Path("reproduction"),
    results: Results = Path("results"),
) -> None:
    """Figures 3 and 4: the gap and the non-zeros of one synthetic instance during training.

    [bold]Examples[/bold]

    $ inface reproduce figure3 --quick
    """
    from inface.lab.paper.figures import QUICK, Effort, evolution

    from .ui.progress import task_progress
    from .ui.sweep import continued

    _check_counts(jobs=jobs)
    with task_progress("figure3") as show, continued():
        page = evolution(
            out=_place(out, quick),
            results=results,
            command=_command("figure3", quick, jobs=jobs),
            suffix="-quick" if quick else "",
            effort=QUICK if quick else Effort(),
            jobs=jobs,
            show=show,
        )
    typer.echo(f"written: {printable(page)}")


@app.command()
def figure4(
    *,
    quick: Quick = False,
    jobs: Jobs = 1,
    out: Out = Path("reproduction"),
    results: Results = Path("results"),
) -> None:
    """Figure 4; it is made together with Figure 3.

    [bold]Examples[/bold]

    $ inface reproduce figure4 --quick
    """
    figure3(quick=quick, jobs=jobs, out=out, results=results)


def _boxes(
    name: str, activation: Activation, trials: int | None, quick: bool, jobs: int, out: Path, results: Path
) -> None:
    from dataclasses import replace

    from inface.lab.paper.figures import QUICK, Effort, boxes

    from .ui.progress import task_progress
    from .ui.sweep import continued

    _check_counts(jobs=jobs, trials=trials)
    effort = QUICK if quick else Effort()
    effort = replace(effort, trials=trials or effort.trials)
    with task_progress(name) as show, continued():
        page = boxes(
            activation,
            out=_place(out, quick),
            results=results,
            name=f"{name}-quick" if quick else name,
            command=_command(name, quick, trials=effort.trials, jobs=jobs),
            effort=effort,
            jobs=jobs,
            show=show,
        )
    typer.echo(f"written: {printable(page)}")


def _check_counts(**counts: int | None) -> None:
    for name, value in counts.items():
        if value is not None and value < 1:
            raise ArgumentError(f"--{name}: wanted a whole number >= 1, got {value}")


def _command(name: str, quick: bool, **counts: int) -> str:
    """The command that makes the figure, without its folders."""
    return " ".join([f"inface reproduce {name}", *["--quick"] * quick, *(f"--{k} {v}" for k, v in counts.items())])


def _place(out: Path, quick: bool) -> Path:
    return out / "quick" if quick else out
