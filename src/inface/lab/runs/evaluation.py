"""The final measurements of a run, and the same again from its weights."""

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
from .setup import experiment_of, load_data, make_optimizer, parts, surroundings

__all__ = ["evaluate", "measure", "rebuild", "summarise"]


def evaluate(
    run: Run, *, data: str | Path | None = None, experiment: str | None = None, accept_changed_file: bool = False
) -> dict[str, Any]:
    """Measure the saved network of a run again: what ``summary.json`` says of it, from its weights.

    Args:
        run: a finished run.
        data: the data folder, if it is not the usual one.
        experiment: where the experiment is to be found, if its file has moved since.
        accept_changed_file: import the file that the run names although it has changed.
    """
    settings, found, model = rebuild(run, experiment, accept_changed_file=accept_changed_file)
    with surroundings(settings.threads):
        train_split, split = parts(settings, load_data(found, data))
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
    """The settings, the experiment and the trained network of a run; arguments as of :func:`evaluate`."""
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
    model: nn.Module, experiment: Experiment, train_split: Split, split: Split, optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    layers, network = sparsity(model, experiment)
    gap = exact_gap(model, experiment, train_split, optimizer)
    metric = experiment.metric
    each = kept(model, experiment, split)
    fewer = [theta for theta in THETAS if theta < 100]
    together = kept(model, experiment, split, fewer, scope="global") if len(layers) > 1 else {}
    return {
        "metric": {"name": metric.name, "unit": metric.unit, "better": metric.better},
        "kept": {theta: finite(value) for theta, value in each.items()},
        "kept_together": {theta: finite(value) for theta, value in {**each, **together}.items()},
        "layers": layers,
        "network": network,
        "loss": finite(score(model, experiment, split).loss),
        "train_loss": finite(score(model, experiment, train_split).loss),
        "gap": None if gap is None else {"exact": finite(gap)},
    }


def summarise(
    settings: Settings, measured: dict[str, Any], image: tuple[int, int, int] | None, steps: int, seconds: float
) -> dict[str, Any]:
    """What ``summary.json`` says of a run: its measurements, and what they are of."""
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
