"""The final measurements of a run, and the same again from its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from .building import experiment_of, load_data, make_optimizer, surroundings
from .errors import LabError
from .experiment import Experiment, Split
from .measuring import exact_gap, finite, kept, score, sparsity
from .run import Run
from .settings import Settings

__all__ = ["evaluate", "measure", "rebuild"]


def evaluate(run: Run, *, data: str | Path | None = None) -> dict[str, Any]:
    """Measure the saved network of a run again: what ``summary.json`` says of it, from its weights."""
    settings, experiment, model = rebuild(run)
    with surroundings(settings.threads):
        loaded = load_data(experiment, data)
        train_split, split = loaded.parts(settings.measured_on)
        optimizer = make_optimizer(settings, experiment, model)
        return measure(model, experiment, train_split, split, optimizer)


def rebuild(run: Run) -> tuple[Settings, Experiment, nn.Module]:
    """The settings, the experiment and the trained network of a run."""
    settings = run.settings
    experiment = experiment_of(settings)
    with torch.random.fork_rng(devices=[]):
        model = experiment.model()
    try:
        model.load_state_dict(run.weights())
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise LabError(f"{run.model_file}: does not fit the network of {settings.experiment}: {reason}") from None
    return settings, experiment, model


def measure(
    model: nn.Module, experiment: Experiment, train_split: Split, split: Split, optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    layers, network = sparsity(model, experiment)
    gap = exact_gap(model, experiment, train_split, optimizer)
    metric = experiment.metric
    return {
        "metric": {"name": metric.name, "unit": metric.unit, "better": metric.better},
        "kept": {theta: finite(value) for theta, value in kept(model, experiment, split).items()},
        "layers": layers,
        "network": network,
        "loss": finite(score(model, experiment, split).loss),
        "train_loss": finite(score(model, experiment, train_split).loss),
        "gap": None if gap is None else {"exact": finite(gap)},
    }
