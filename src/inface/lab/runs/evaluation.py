"""The final measurements of a run, and how to repeat them from its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from inface.lab.errors import ArgumentError, LabError
from inface.lab.experiments.experiment import Experiment, Split

from .metrics import THETAS, exact_gap, finite, kept, score, sparsity
from .run import FORMAT, Run
from .settings import Settings
from .setup import experiment_of, isolated_torch, load_data, make_optimizer, parts

__all__ = ["evaluate", "measure", "rebuild", "summarise"]


def evaluate(
    run: Run, *, data: str | Path | None = None, experiment: str | None = None, accept_changed_file: bool = False
) -> dict[str, Any]:
    """Measure the saved network of a run again: the measurements of ``summary.json``, from its weights.

    Args:
        run: a finished run.
        data: the data folder, if not the default.
        experiment: ``path/to/file.py:name``, if the file of the experiment has moved.
        accept_changed_file: import the file of the experiment although it has changed.
    """
    settings, found, model = rebuild(run, experiment, accept_changed_file=accept_changed_file)
    with isolated_torch(settings.threads):
        train_split, split = parts(settings, load_data(found, data))
        if settings.method == "sparse":  # the radii that it ended with, which its gap depends on, are not in the folder
            return measure(model, found, train_split, split, None)
        try:
            optimizer = make_optimizer(settings, found, model)
        except ArgumentError:
            raise
        except ValueError as error:  # weights that are not finite
            raise LabError(f"{run.model_file}: {error}") from None
        return measure(model, found, train_split, split, optimizer)


def rebuild(
    run: Run, experiment: str | None = None, *, accept_changed_file: bool = False
) -> tuple[Settings, Experiment, nn.Module]:
    """The settings, the experiment and the trained network of a run; the arguments are those of :func:`evaluate`."""
    settings = run.trusted_settings(experiment, accept_changed_file=accept_changed_file)
    found = experiment_of(settings)
    with torch.random.fork_rng(devices=[]):
        model = found.model()
    try:
        model.load_state_dict(run.weights())
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise LabError(f"{run.model_file}: does not fit the network of {settings.experiment}: {reason}") from None
    return settings, found, model


def measure(
    model: nn.Module, experiment: Experiment, train_split: Split, split: Split, optimizer: torch.optim.Optimizer | None
) -> dict[str, Any]:
    layers, network = sparsity(model, experiment)
    gap = exact_gap(model, experiment, train_split, optimizer)
    metric = experiment.metric
    each = kept(model, experiment, split)
    fewer = [theta for theta in THETAS if theta < 100]
    together = kept(model, experiment, split, fewer, scope="global") if len(layers) > 1 else {}
    balanced = kept(model, experiment, split, fewer, scope="balanced") if layers else {}
    return {
        "metric": {"name": metric.name, "unit": metric.unit, "better": metric.better},
        "kept": {theta: finite(value) for theta, value in each.items()},
        "kept_together": {theta: finite(value) for theta, value in {**each, **together}.items()},
        "kept_balanced": {theta: finite(value) for theta, value in {**each, **balanced}.items()},
        "layers": layers,
        "network": network,
        "loss": finite(score(model, experiment, split).loss),
        "train_loss": finite(score(model, experiment, train_split).loss),
        "gap": None if gap is None else {"exact": finite(gap)},
    }


def summarise(
    settings: Settings, measured: dict[str, Any], image: tuple[int, int, int] | None, steps: int, seconds: float
) -> dict[str, Any]:
    """The contents of ``summary.json``: the measurements of a run, and which run they belong to."""
    return {
        "format": FORMAT,
        "experiment": settings.experiment,
        "options": dict(settings.options),
        "method": settings.method,
        **measured,
        "image": image,
        "steps": steps,
        "epochs": settings.epochs,
        "seconds": round(seconds, 3),
    }
