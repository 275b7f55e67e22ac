"""From settings to an experiment, a network and an optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import inface
from inface import FrankWolfe
from inface.sets import NuclearBall, SpectralBall

from .data import folder as data_folder
from .errors import ArgumentError
from .experiment import Data, Experiment
from .experiments import find, options_of
from .settings import Settings

__all__ = ["experiment_of", "load_data", "make_model", "make_optimizer", "resolve", "settings_of", "surroundings"]


def settings_of(given: Mapping[str, Any]) -> Settings:
    """Settings with the experiment's own defaults where nothing is given.

    >>> settings_of({"experiment": "digits", "seed": 3}).epochs, settings_of({"experiment": "digits", "epochs": 7}).epochs
    (100, 7)
    """
    defaults = find(given["experiment"], given.get("options")).defaults
    return Settings.from_dict({**defaults, **given})


def experiment_of(settings: Settings) -> Experiment:
    """The experiment that the settings name, with their radii.

    >>> experiment_of(Settings("digits", radius=(3.0,))).sets["fc2.weight"]
    L1Ball(radius=3.0, per='output')
    """
    experiment = find(settings.experiment, settings.options)
    return experiment if settings.radius is None else experiment.with_radii(settings.radius)


def resolve(settings: Settings) -> Settings:
    """The settings with everything said that they leave to the experiment: its options and its radii.

    >>> resolve(Settings("synthetic", options={"edges": "5"})).radius
    (5.0, 5.0)
    """
    radii = [set_.radius for set_ in experiment_of(settings).sets.values()]
    return replace(
        settings,
        options=options_of(settings.experiment, settings.options),
        radius=tuple(radius for radius in radii if isinstance(radius, float))
        if radii and all(isinstance(radius, float) for radius in radii)
        else None,
    )


def load_data(experiment: Experiment, folder: str | Path | None) -> Data:
    """The samples of an experiment: always the same ones, even if its function draws random numbers of no seed.

    >>> len(load_data(experiment_of(Settings("digits")), None).test)
    360
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return experiment.data(data_folder(folder))


def make_model(settings: Settings, experiment: Experiment) -> nn.Module:
    """A network to start from: PyTorch's initialisation, and the graph initialisation where a layer is constrained.

    Layers in nuclear or spectral balls, whose points are not made of edges, keep PyTorch's; so does all of SGD's network.

    >>> settings = Settings("digits")
    >>> make_model(settings, experiment_of(settings)).fc1.weight.abs().sum(1).unique().tolist()
    [1.0]
    """
    torch.manual_seed(settings.seed)
    model = experiment.model()
    try:
        groups = inface.param_groups(model, experiment.sets)
    except ValueError as error:
        raise ArgumentError(f"{settings.experiment}: {error}") from None
    if settings.method != "sgd":
        edges = [group for group in groups if not isinstance(group["set"], NuclearBall | SpectralBall)]
        inface.graph_init_(model, edges, generator=torch.Generator().manual_seed(settings.seed))
    return model


def make_optimizer(settings: Settings, experiment: Experiment, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of a run.

    >>> from inface.lab import experiments
    >>> experiment = experiments.digits()
    >>> type(make_optimizer(Settings("digits", method="sgd"), experiment, experiment.model())).__name__
    'SGD'
    """
    if settings.method == "sgd":
        return torch.optim.SGD(model.parameters(), lr=settings.lr, momentum=settings.momentum, foreach=True)
    groups = inface.param_groups(model, experiment.sets)
    for group in groups:
        if group["set"] is not None and settings.constrained_lr is not None:
            group["lr"] = settings.constrained_lr
    return FrankWolfe(
        groups,
        lr=settings.lr,
        in_face=settings.in_face if settings.method == "sfw-if" else None,
        momentum=settings.momentum,
        every_gradient=settings.every_gradient,
        project=True,
    )


@contextmanager
def surroundings(threads: int | None) -> Iterator[None]:
    """So many threads, and random numbers of its own; both as before at the end."""
    before = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        try:
            if threads is not None:
                torch.set_num_threads(threads)
            yield
        finally:
            torch.set_num_threads(before)
