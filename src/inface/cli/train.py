"""``inface train``."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from inface.integrations.loggers import LOGGERS, check_installed, recording
from inface.lab.errors import ArgumentError
from inface.lab.experiments import EXPERIMENTS
from inface.lab.runs.settings import Settings

from .ui.display import display
from .ui.options import AcceptChangedFile, DataFolder, number, one_of
from .ui.settings import Given, experiment_argument, located, refuse_ignored, takes_settings

__all__ = ["train"]


@takes_settings(lambda _: True)
def train(
    experiment: Annotated[str | None, experiment_argument] = None,
    *,
    out: Annotated[Path, typer.Option(help="The folder of the run.", metavar="DIR", show_default=False)],
    given: Given,
    data: DataFolder = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in DIR, if there is one.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete the run in DIR, if there is one.")] = False,
    accept_changed_file: AcceptChangedFile = False,
    checkpoint_seconds: Annotated[
        float, typer.Option(help="Seconds between two checkpoints.", parser=number, metavar="SECONDS")
    ] = 10.0,
    device: Annotated[
        str,
        typer.Option(
            help="Where to compute: cpu, cuda, mps, or auto: a GPU if there is one.",
            metavar="DEVICE",
            autocompletion=one_of("cpu", "cuda", "mps", "auto"),
        ),
    ] = "cpu",
    log: Annotated[
        list[str] | None,
        typer.Option(
            help="Also write the metrics for tensorboard, wandb (offline) or mlflow, into DIR.",
            metavar="NAME",
            autocompletion=one_of(*LOGGERS),
            show_default=False,
        ),
    ] = None,
) -> None:
    """Train a network with constrained layers, or a dense one, and measure it.

    A run can be killed at any moment and continued with --resume; the final weights are the same. Several
    processes compute each batch together under torchrun --nproc-per-node N -m -- inface.cli train ...
    It writes config.json, metrics.jsonl, model.safetensors and summary.json to DIR.

    [bold]Examples[/bold]

    $ inface train digits --out runs/digits

    $ inface train mnist-mlp --out runs/paper --method sfw-if --smoothness 4 --radius 1 10

    $ inface train cifar10 --out runs/cifar --lr 0.4 --constrained-lr 3 --momentum 0.95 --schedule cosine --init alive

    $ inface train synthetic --out runs/sigmoid -o edges=5 -o snr=1 -o activation=sigmoid

    $ inface train digits --density 5% --out runs/sparse --log tensorboard

    $ inface train cifar10 --density 5% --out runs/gpu --device auto --precision bfloat16

    $ inface train my_file.py:my_experiment --out runs/mine

    $ inface train --out runs/paper --resume
    """
    if checkpoint_seconds < 0:
        raise ArgumentError(f"--checkpoint-seconds: wanted a number >= 0, got {checkpoint_seconds:g}")
    try:
        check_installed(log or [])
    except (ValueError, ImportError) as error:
        raise ArgumentError(f"--log: {error}") from None
    if out == Path():
        raise ArgumentError("--out: wanted the folder of the run, got nothing")
    if resume and overwrite:
        raise ArgumentError("--resume continues a run, --overwrite deletes it; wanted one of them")
    if experiment is not None:
        given["experiment"] = located(experiment)
    from inface.lab.memory import keep_freed_memory
    from inface.lab.runs.processes import joined
    from inface.lab.runs.training import train as train_run

    keep_freed_memory()
    with joined(device) as processes:
        plain = processes.first_does(lambda: _settings(experiment, given, out, resume, accept_changed_file).to_dict())
        settings = Settings.from_dict(plain)
        with ExitStack() as stack:
            send, finish = stack.enter_context(recording(log or [], out, plain))
            watch = stack.enter_context(display()) if processes.first else None

            def tell(record: dict[str, Any]) -> None:
                send(record)
                if watch is not None:
                    watch(record)

            run = train_run(
                settings,
                out,
                data=data,
                resume=resume,
                overwrite=overwrite,
                accept_changed_file=accept_changed_file,
                watch=tell,
                checkpoint_seconds=checkpoint_seconds,
                processes=processes,
            )
            if run is not None:
                finish(run.summary)
    if run is not None:
        from .ui.tables import print_summary

        print_summary(run)


def _settings(experiment: str | None, given: Given, out: Path, resume: bool, accept_changed_file: bool) -> Settings:
    """The settings of a run, from the command line and, if it is continued, from its folder."""
    from inface.lab.runs.run import Run
    from inface.lab.runs.setup import settings_for

    chosen = {name: value for name, value in given.items() if name != "smoothness"}
    if resume and (experiment is None or (out / "config.json").is_file()):
        named_by = f"inface train FILE:NAME --out {out} --resume"
        begun = Run(out).trusted_settings(
            chosen.get("experiment"), accept_changed_file=accept_changed_file, named_by=named_by
        )
        base = begun.to_dict()
        chosen = {**base, **chosen, "options": {**base["options"], **chosen.get("options", {})}}
    if "experiment" not in chosen:
        raise ArgumentError(f"EXPERIMENT is missing; wanted {', '.join(EXPERIMENTS)}, or file.py:name")
    settings = settings_for(**chosen)
    refuse_ignored(settings.method, given)
    return settings
