"""``inface train``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from inface.lab.errors import ArgumentError
from inface.lab.names import EXPERIMENTS

from .options import AcceptChangedFile, DataFolder, number, setting, whole_number
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

__all__ = ["train"]


def train(
    experiment: Annotated[str | None, experiment_argument] = None,
    *,
    out: Annotated[Path, typer.Option(help="The folder of the run.", metavar="DIR", show_default=False)],
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
    seed: Annotated[
        int | None,
        setting(
            text="Seed of the initialisation and of the order of samples.",
            default="0",
            parser=whole_number,
            metavar="N",
        ),
    ] = None,
    option: Options = None,
    validate: Annotated[
        bool | None, setting("--validate", text="Measure on held-out training data, not on the test data.")
    ] = None,
    threads: Annotated[
        int | None, setting(text="Threads of torch.", default="torch's own", parser=whole_number, metavar="N")
    ] = None,
    data: DataFolder = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in DIR, if there is one.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Throw away the run in DIR, if there is one.")] = False,
    accept_changed_file: AcceptChangedFile = False,
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

    $ inface train cifar10 --out runs/best --radius 1 10 --lr 0.4 --constrained-lr 3 --momentum 0.95 --free-momentum 0.9 --schedule cosine --every-gradient --init alive

    $ inface train synthetic --out runs/sigmoid -o edges=5 -o snr=1 -o activation=sigmoid

    $ inface train my_file.py:my_experiment --out runs/mine

    $ inface train --out runs/paper --resume
    """
    if checkpoint_seconds < 0:
        raise ArgumentError(f"--checkpoint-seconds: wanted a number >= 0, got {checkpoint_seconds:g}")
    if out == Path():
        raise ArgumentError("--out: wanted the folder of the run, got nothing")
    if resume and overwrite:
        raise ArgumentError("--resume continues a run, --overwrite throws it away; wanted one of them")
    given = named(
        experiment=None if experiment is None else located(experiment),
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
        seed=seed,
        measured_on=None if validate is None else "validation" if validate else "test",
        threads=threads,
    )
    from inface.lab.building import settings_for
    from inface.lab.memory import keep_freed_memory
    from inface.lab.run import Run
    from inface.lab.training import train as train_run

    from .display import display
    from .tables import print_summary

    base: dict[str, Any] = {}
    if resume and (experiment is None or (out / "config.json").is_file()):
        named_by = f"inface train FILE:NAME --out {out} --resume"
        base = (
            Run(out)
            .trusted_settings(given["experiment"], accept_changed_file=accept_changed_file, named_by=named_by)
            .to_dict()
        )
        given["options"] = {**base["options"], **(given["options"] or {})}
    chosen = {**base, **{key: value for key, value in given.items() if value is not None}}
    if "experiment" not in chosen:
        raise ArgumentError(f"EXPERIMENT is missing: {', '.join(EXPERIMENTS)}, or file.py:name")
    settings = settings_for(**chosen)
    refuse_what_is_ignored(settings.method, given)
    keep_freed_memory()
    with display() as watch:
        run = train_run(
            settings,
            out,
            data=data,
            resume=resume,
            overwrite=overwrite,
            accept_changed_file=accept_changed_file,
            watch=watch,
            checkpoint_seconds=checkpoint_seconds,
        )
    print_summary(run)
