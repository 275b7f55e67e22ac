"""``inface train``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from inface.lab.errors import ArgumentError
from inface.lab.names import EXPERIMENTS

from .options import DataFolder, experiment_names, number, one_of, setting, whole_number

__all__ = ["train"]


def train(
    experiment: Annotated[
        str | None,
        typer.Argument(
            help="mnist-mlp, mnist-conv, cifar10, synthetic, digits, or your own: path/to/file.py:name.",
            metavar="EXPERIMENT",
            show_default=False,
            autocompletion=experiment_names,
        ),
    ] = None,
    *,
    out: Annotated[Path, typer.Option(help="The folder of the run.", metavar="DIR", show_default=False)],
    method: Annotated[
        str | None,
        setting(
            text="sfw-if: Frank-Wolfe and in-face steps. sfw: Frank-Wolfe alone. sgd: dense. Rivals: prune, gradual, proximal.",
            default="sfw-if",
            autocompletion=one_of("sfw-if", "sfw", "sgd", "prune", "gradual", "proximal"),
        ),
    ] = None,
    lr: Annotated[
        float | None, setting(text="Learning rate.", default="0.125", parser=number, metavar="NUMBER")
    ] = None,
    smoothness: Annotated[
        float | None,
        setting(text="The paper's constant L instead: lr = 1 / (2 L).", parser=number, metavar="L"),
    ] = None,
    constrained_lr: Annotated[
        float | None,
        setting(text="Learning rate of the constrained layers.", default="--lr", parser=number, metavar="NUMBER"),
    ] = None,
    radius: Annotated[
        list[float] | None,
        setting(
            text="Radii of the constrained layers, one for all or one each: --radius 1 10.",
            default="the experiment's",
            parser=number,
            metavar="R...",
        ),
    ] = None,
    momentum: Annotated[
        float | None,
        setting(text="How much of the earlier gradients a step keeps.", default="0", parser=number, metavar="NUMBER"),
    ] = None,
    schedule: Annotated[
        str | None,
        setting(
            text="The schedule of the learning rates, constant or cosine.",
            default="constant",
            autocompletion=one_of("constant", "cosine"),
        ),
    ] = None,
    in_face: Annotated[
        str | None,
        setting(
            text="The in-face step of sfw-if: away, pairwise or frank-wolfe.",
            default="away",
            autocompletion=one_of("away", "pairwise", "frank-wolfe"),
        ),
    ] = None,
    keep: Annotated[
        float | None,
        setting(
            text="The part of the edges that prune and gradual keep, such as 0.05.", parser=number, metavar="NUMBER"
        ),
    ] = None,
    shrinkage: Annotated[
        float | None, setting(text="The weight of the l1 penalty of proximal.", parser=number, metavar="NUMBER")
    ] = None,
    every_gradient: Annotated[
        bool | None,
        setting(
            "--every-gradient",
            text="With sfw-if, free parameters move on both halves of an iteration, not on the first alone.",
        ),
    ] = None,
    epochs: Annotated[
        int | None, setting(text="Passes over the data.", default="25; digits 100", parser=whole_number, metavar="N")
    ] = None,
    batch_size: Annotated[
        int | None, setting(text="Samples of a gradient.", default="250; digits 50", parser=whole_number, metavar="N")
    ] = None,
    seed: Annotated[
        int | None,
        setting(
            text="Seed of the initialisation and of the order of samples.",
            default="0",
            parser=whole_number,
            metavar="N",
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        setting(
            "--option",
            "-o",
            text="An option of the experiment, such as edges=5; inface experiments lists them.",
            metavar="NAME=VALUE",
        ),
    ] = None,
    validate: Annotated[
        bool | None, setting("--validate", text="Measure on held-out training data, not on the test data.")
    ] = None,
    threads: Annotated[
        int | None, setting(text="Threads of torch.", default="torch's own", parser=whole_number, metavar="N")
    ] = None,
    data: DataFolder = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in DIR, if there is one.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Throw away the run in DIR, if there is one.")] = False,
    checkpoint_seconds: Annotated[
        float, typer.Option(help="How much work a kill may cost.", parser=number, metavar="SECONDS")
    ] = 10.0,
) -> None:
    """Train a network inside its sets, or dense, and measure it.

    A run can be killed at any moment and continued with --resume: it ends with the same weights.
    DIR gets config.json, metrics.jsonl, model.safetensors and summary.json.

    [bold]Examples[/bold]

    $ inface train digits --out runs/digits

    $ inface train mnist-mlp --out runs/paper --method sfw-if --smoothness 4 --radius 1 10

    $ inface train mnist-mlp --out runs/best --lr 0.2 --constrained-lr 4 --radius 0.3 20 --momentum 0.99 --schedule cosine --every-gradient

    $ inface train synthetic --out runs/sigmoid -o edges=5 -o snr=1 -o activation=sigmoid

    $ inface train my_file.py:my_experiment --out runs/mine

    $ inface train --out runs/paper --resume
    """
    if lr is not None and smoothness is not None:
        raise ArgumentError("--lr and --smoothness say the same thing, lr = 1 / (2 L); wanted one of them")
    if smoothness is not None and not smoothness > 0:
        raise ArgumentError(f"--smoothness: wanted a number > 0, got {smoothness:g}")
    if checkpoint_seconds < 0:
        raise ArgumentError(f"--checkpoint-seconds: wanted a number >= 0, got {checkpoint_seconds:g}")
    if out == Path():
        raise ArgumentError("--out: wanted the folder of the run, got nothing")
    if resume and overwrite:
        raise ArgumentError("--resume continues a run, --overwrite throws it away; wanted one of them")
    given: dict[str, Any] = {
        "experiment": None if experiment is None else located(experiment),
        "options": options(option) if option else None,
        "method": method,
        "lr": lr if smoothness is None else 1 / (2 * smoothness),
        "constrained_lr": constrained_lr,
        "radius": radius or None,
        "momentum": momentum,
        "schedule": schedule,
        "in_face": in_face,
        "keep": keep,
        "shrinkage": shrinkage,
        "every_gradient": every_gradient,
        "epochs": epochs,
        "batch_size": batch_size,
        "seed": seed,
        "measured_on": None if validate is None else "validation" if validate else "test",
        "threads": threads,
    }
    from inface.lab.building import settings_for
    from inface.lab.memory import keep_freed_memory
    from inface.lab.run import Run
    from inface.lab.training import train as train_run

    from .display import display
    from .tables import print_summary

    base: dict[str, Any] = {}
    if resume and (experiment is None or (out / "config.json").is_file()):
        base = Run(out).settings.to_dict()
        given["options"] = {**base["options"], **(given["options"] or {})}
    chosen = {**base, **{key: value for key, value in given.items() if value is not None}}
    if "experiment" not in chosen:
        raise ArgumentError(f"EXPERIMENT is missing: {', '.join(EXPERIMENTS)}, or file.py:name")
    settings = settings_for(**chosen)
    _refuse_what_it_ignores(settings.method, given)
    keep_freed_memory()
    with display() as watch:
        run = train_run(
            settings,
            out,
            data=data,
            resume=resume,
            overwrite=overwrite,
            watch=watch,
            checkpoint_seconds=checkpoint_seconds,
        )
    print_summary(run)


def _refuse_what_it_ignores(method: str, given: dict[str, Any]) -> None:
    sets = {"constrained_lr", "radius"}
    read = {
        "sfw-if": {*sets, "in_face", "every_gradient"},
        "sfw": sets,
        "prune": {"keep"},
        "gradual": {"keep"},
        "proximal": {"shrinkage"},
    }
    for name in ("constrained_lr", "radius", "in_face", "every_gradient", "keep", "shrinkage"):
        if given[name] is not None and name not in read.get(method, ()):
            raise ArgumentError(f"--{name.replace('_', '-')} means nothing to --method {method}")


def located(experiment: str) -> str:
    """An experiment of one's own by its absolute path, so that the run can be measured again from anywhere.

    >>> located("digits")
    'digits'
    """
    file, colon, name = experiment.rpartition(":")
    return f"{Path(file).resolve()}:{name}" if colon and file.endswith(".py") else experiment


def options(texts: list[str]) -> dict[str, str]:
    """``NAME=VALUE`` texts as a mapping.

    >>> options(["edges=5", "snr=1"])
    {'edges': '5', 'snr': '1'}
    """
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ArgumentError(f"--option: wanted NAME=VALUE, got {text}")
        pairs[name] = value
    return pairs
