"""From settings to an experiment, a network and an optimizer."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import inface
from inface import FrankWolfe
from inface.lab.errors import ArgumentError
from inface.lab.experiments.builtin import find, options_of
from inface.lab.experiments.data import folder as data_folder
from inface.lab.experiments.experiment import Data, Experiment, Split
from inface.lab.experiments.sources import source_of

from .baselines import (
    SET,
    ProximalAdamW,
    ProximalSGD,
    PrunedAdamW,
    PrunedSGD,
    RigL,
    RigLAdamW,
    SETAdamW,
    edge_counts,
    sparse_init_,
)
from .metrics import constrained
from .settings import PRUNED, REWIRED, Distribution, Method, Settings, declarations, declared

__all__ = [
    "augmenting",
    "experiment_of",
    "fingerprint",
    "frank_wolfe",
    "grouped",
    "isolated_torch",
    "load_data",
    "make_model",
    "make_optimizer",
    "parts",
    "rate_factor",
    "resolve",
    "sample_order",
    "settings_for",
]

PRUNED_AT = 0.8  # the method prune prunes after this part of the gradients; then it fine-tunes


def settings_for(experiment: str, **given: Any) -> Settings:
    """Settings of a run; what is not given comes from the experiment's defaults, then from the method's.

    A density without a method means the method sparse. So it is on the command line.

    >>> settings_for("digits").epochs, settings_for("digits", epochs=7).epochs
    (100, 7)
    >>> settings = settings_for("digits", density=0.05)
    >>> settings.method, settings.lr, settings.schedule
    ('sparse', 0.1, 'cosine')
    """
    source = source_of(experiment, given.get("source"))
    defaults = find(experiment, given.get("options"), source=source).defaults
    known = {**defaults, **given, "method": _method(given) or _method(defaults) or declared("method").default}
    usual = {
        each.name: each.default_of(known["method"], known.get("free")) for each in declarations() if each.default_with
    }
    return Settings.from_dict({**usual, **known, "experiment": experiment, "source": source})


def _method(given: Mapping[str, Any]) -> Any:
    """The method that settings ask for, by its name or with a density; None if they ask for none."""
    return given.get("method") or ("sparse" if given.get("density") is not None else None)


def experiment_of(settings: Settings) -> Experiment:
    """The experiment that the settings name, with their radii.

    >>> experiment_of(Settings("digits", radius=(3.0,))).sets["fc2.weight"]
    L1Ball(radius=3.0, per='output')
    """
    experiment = find(settings.experiment, settings.options, source=settings.source)
    experiment.each("constrained-lr", settings.constrained_rates)  # raises unless there is one for all or one for each
    return experiment if settings.radius is None else experiment.with_radii(settings.radius)


def resolve(settings: Settings) -> Settings:
    """The settings with defaults filled in and ignored settings cleared.

    >>> resolve(Settings("synthetic", options={"edges": "5"})).radius
    (5.0, 5.0)
    """
    source = source_of(settings.experiment, settings.source)
    options = options_of(settings.experiment, settings.options, source=source)
    distribution = None if settings.distribution == _distribution(settings.method) else settings.distribution
    decay = settings.weight_decay or None
    settings = replace(settings, source=source, options=options, weight_decay=decay, distribution=distribution).read()
    if not settings.frank_wolfe:
        unused = settings.free == "adamw" and settings.method != "sparse"
        return replace(settings, momentum=declared("momentum").default) if unused else settings
    radii = [set_.radius for set_ in experiment_of(settings).sets.values()]
    known = [radius for radius in radii if isinstance(radius, float)]
    if settings.constrained_lr is not None and len(set(settings.constrained_rates)) == 1:
        settings = replace(settings, constrained_lr=settings.constrained_rates[0])
    return replace(settings, radius=tuple(known) if known and len(known) == len(radii) else None)


def load_data(experiment: Experiment, folder: str | Path | None) -> Data:
    """The samples of an experiment: the same on every call, even if its function draws random numbers without a seed.

    >>> len(load_data(experiment_of(Settings("digits")), None).test)
    360
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return experiment.data(data_folder(folder))


def parts(settings: Settings, data: Data) -> tuple[Split, Split]:
    """The split to train on, and the split to measure on."""
    try:
        return data.parts(settings.measured_on)
    except ArgumentError as error:
        raise ArgumentError(f"{settings.experiment}: {error}") from None


def fingerprint(split: Split) -> int:
    """A checksum of a data set: of all targets, and of every 97th number of the inputs.

    >>> import torch
    >>> x = torch.arange(500.0).reshape(250, 2)
    >>> fingerprint(Split(x, x)) == fingerprint(Split(x.clone(), x))
    True
    >>> fingerprint(Split(x, x)) == fingerprint(Split(x + 1, x))
    False
    """
    sample = split.inputs.flatten()[::97].contiguous()
    found = zlib.crc32(split.targets.contiguous().numpy().tobytes())
    return zlib.crc32(sample.numpy().tobytes(), found)


def make_model(settings: Settings, experiment: Experiment, inputs: Tensor | None = None) -> nn.Module:
    """The network at the start: PyTorch's initialisation, and the graph initialisation for the constrained layers.

    Layers in sets without edges (``has_edges`` is False: nuclear and spectral balls) keep PyTorch's initialisation. So
    do all layers under SGD, the baselines and sparse; of those that are to be sparse under RigL and SET, random edges
    stay. ``init="alive"`` looks at the first 64 of the ``inputs``.

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
    if settings.frank_wolfe:
        edges = [group for group in groups if group["set"] is None or group["set"].has_edges]
        alive = settings.init == "alive"
        example = inputs[:64] if alive and inputs is not None else None
        generator = torch.Generator().manual_seed(settings.seed)
        many = settings.start_edges
        try:
            inface.graph_init_(model, edges, generator=generator, edges=many, alive=alive, example=example)
        except ValueError as error:
            raise ArgumentError(f"{settings.experiment}: {error}") from None
    elif settings.method in REWIRED and settings.keep is not None:
        layers = _layers(model, experiment)
        shapes, uniform = [p.shape for p in layers], settings.distribution == "uniform"
        sparse_init_(layers, edge_counts(shapes, settings.keep, "uniform" if uniform else "erk"))
    return model


def make_optimizer(
    settings: Settings, experiment: Experiment, model: nn.Module, total: int = 1
) -> torch.optim.Optimizer:
    """The optimizer of a run of ``total`` gradients.

    >>> from inface.lab import find
    >>> experiment = find("digits")
    >>> type(make_optimizer(Settings("digits", method="sgd"), experiment, experiment.model())).__name__
    'SGD'
    """
    if settings.frank_wolfe:
        return frank_wolfe(settings, grouped(settings, experiment, model))
    if settings.method == "sparse":
        return _sparse(settings, model, constrained(model, experiment), total)
    return _descent(settings, model, _layers(model, experiment), total)


def grouped(settings: Settings, experiment: Experiment, model: nn.Module) -> list[dict[str, Any]]:
    """The parameter groups of a network: one per set, with its learning rate, and one of the free parameters."""
    groups = inface.param_groups(model, experiment.sets)
    rates = experiment.each("constrained-lr", settings.constrained_rates)
    for group, rate in zip(groups[: len(rates)], rates, strict=True):  # the free ones come last, if there are any
        group["lr"] = rate
    return groups


def frank_wolfe(settings: Settings, groups: list[dict[str, Any]]) -> FrankWolfe:
    """The Frank-Wolfe optimizer of the settings, for groups that already have their sets and learning rates."""
    for group in groups:
        if group["set"] is None and settings.free_momentum is not None:
            group["momentum"] = settings.free_momentum
    return FrankWolfe(
        groups,
        lr=settings.lr,
        in_face=settings.in_face if settings.method == "sfw-if" else None,
        in_face_steps=settings.in_face_steps,
        momentum=settings.momentum,
        every_gradient=settings.every_gradient,
        project=True,
    )


def _sparse(settings: Settings, model: nn.Module, layers: list[str], total: int) -> FrankWolfe:
    """The optimizer that takes some layers to a density."""
    try:
        return inface.sparse_optimizer(
            model,
            density=settings.density or 1.0,  # the method needs one
            lr=settings.lr,
            steps=total,
            layers=layers or None,
            free=settings.free,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay or 0.0,
        )
    except ValueError as error:
        raise ArgumentError(f"{settings.experiment}: {error}") from None


def _descent(settings: Settings, model: nn.Module, layers: list[nn.Parameter], total: int) -> torch.optim.Optimizer:
    """SGD or AdamW, or one of the baselines with its steps."""
    adaptive = settings.free == "adamw"
    common: dict[str, Any] = {"lr": settings.lr, "weight_decay": settings.weight_decay or 0.0}
    if not adaptive:
        common["momentum"] = settings.momentum
    if settings.method in PRUNED and settings.keep is not None:
        begin, end = (PRUNED_AT, PRUNED_AT) if settings.method == "prune" else (0.1, 0.8)
        common |= {"keep": settings.keep, "begin": begin, "end": end, "total": total, "every": max(1, total // 200)}
        pruned = PrunedAdamW if adaptive else PrunedSGD
        return pruned(model.parameters(), layers, **common, together=settings.distribution == "global")
    if settings.method in REWIRED:
        # 100 as in the paper of RigL, fewer in short runs; not under 10, because RigL takes no step where edges change.
        every = min(100, max(10, total // 100))
        common |= {"total": total, "every": every}
        if settings.method == "rigl":
            return (RigLAdamW if adaptive else RigL)(model.parameters(), layers, **common)
        return (SETAdamW if adaptive else SET)(model.parameters(), layers, **common, seed=settings.seed)
    if settings.shrinkage is not None:
        proximal = ProximalAdamW if adaptive else ProximalSGD
        return proximal(model.parameters(), layers, **common, shrinkage=settings.shrinkage)
    return (torch.optim.AdamW if adaptive else torch.optim.SGD)(model.parameters(), foreach=True, **common)


def _layers(model: nn.Module, experiment: Experiment) -> list[nn.Parameter]:
    parameters = dict(model.named_parameters())
    return [parameters[name] for name in constrained(model, experiment)]


def _distribution(method: Method) -> Distribution | None:
    """The distribution of edges that a method takes if none is given."""
    return "uniform" if method in PRUNED else "erk" if method in REWIRED else None


def sample_order(settings: Settings, epoch: int, count: int) -> Tensor:
    """The order of the samples in an epoch; it depends on the seed and the epoch alone."""
    generator = torch.Generator().manual_seed(settings.seed * 1_000_003 + epoch)
    return torch.randperm(count, generator=generator)


def augmenting(settings: Settings, step: int) -> torch.Generator:
    """The random numbers that augment the batch of a step; they depend on the seed and the step alone.

    >>> first, second = (augmenting(Settings("digits"), step) for step in (0, 1))
    >>> bool((torch.rand(5, generator=first) == torch.rand(5, generator=second)).any())
    False
    """
    # A checksum: torch uses the last 32 bits of a seed, and the order of samples is drawn with small numbers.
    return torch.Generator().manual_seed(zlib.crc32(f"augment {settings.seed} {step}".encode()))


def rate_factor(settings: Settings, step: int, total: int) -> float:
    """The factor of the learning rates at a step.

    >>> rate_factor(Settings("digits"), 5, 10), rate_factor(Settings("digits", schedule="cosine"), 5, 10)
    (1.0, 0.5)
    """
    rising = settings.warmup * total / settings.epochs  # gradients
    warm = min(1.0, (step + 1) / rising) if rising else 1.0
    if settings.schedule == "constant":
        return warm
    done = step / total
    if settings.method == "prune":  # one cosine until pruning, another one for fine-tuning
        done = done / PRUNED_AT if done < PRUNED_AT else (done - PRUNED_AT) / (1 - PRUNED_AT)
    return warm * (1 + math.cos(math.pi * done)) / 2


@contextmanager
def isolated_torch(threads: int | None) -> Iterator[None]:
    """Set torch's number of threads; restore it and the state of its random numbers at the end."""
    before = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        try:
            if threads is not None:
                torch.set_num_threads(threads)
            yield
        finally:
            torch.set_num_threads(before)
