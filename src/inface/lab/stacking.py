"""Many small networks trained at once: one batched forward and backward, one optimizer, as many results as separate runs.

The networks differ in seed, learning rates, radii and options of their experiment, not in their shape. Layer by layer
their weights are rows of one parameter, so that a set with one radius per row, and with one ``gradient_bound`` per row
that stands for its learning rate, lets the optimizer train them all unchanged.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

import inface
from inface.sets import Set, blocks

from .building import (
    experiment_of,
    frank_wolfe,
    load_data,
    make_model,
    make_optimizer,
    parts,
    rate_factor,
    resolve,
    sample_order,
    surroundings,
)
from .errors import ArgumentError
from .evaluation import measure, summarise
from .experiment import Experiment, Split
from .settings import Settings

__all__ = ["train_together"]

# What the networks of a stack may differ in.
OWN = ("options", "lr", "constrained_lr", "radius", "seed", "threads")


def train_together(
    settings: Sequence[Settings],
    *,
    data: str | Path | None = None,
    watch: Callable[[int, list[float]], None] | None = None,
) -> list[dict[str, Any] | None]:
    """Train networks that differ in seed, learning rates, radii and options of their experiment, all at once.

    Args:
        settings: of each network; everything else must be the same.
        data: the data folder, if it is not the usual one.
        watch: is called after every epoch with its number and each network's mean training loss.

    Returns:
        For each network what ``summary.json`` says of a separate run, its seconds being its share; None if its loss is
        not finite any more.

    >>> results = train_together([Settings("digits", epochs=1, seed=seed) for seed in (0, 1)])
    >>> [result["steps"] for result in results]
    [6, 6]
    """
    chosen = [resolve(one) for one in settings]
    _check(chosen)
    with surroundings(1):
        begun = time.perf_counter()
        stack = _Stack(chosen, data)
        for epoch, losses in enumerate(stack.train(), 1):
            if watch:
                watch(epoch, losses)
        return stack.results((time.perf_counter() - begun) / len(chosen))


@dataclass
class _Layer:
    """One parameter of all the networks: their rows below each other."""

    name: str
    weight: nn.Parameter
    shape: torch.Size  # of one network's
    rates: Tensor  # one learning rate for each network
    set: Set | None

    @property
    def rows(self) -> int:
        return self.shape[0]

    def group(self, options: dict[str, Any]) -> dict[str, Any]:
        """The group of an optimizer, which has one learning rate: the largest."""
        group = {**options, "params": [self.weight], "lr": float(self.rates.max())}
        if self.set is not None:
            group["set"] = self.set
        return group

    def own_rates(self) -> Tensor:
        """Each block's ``diam / lr``: as a bound on its gradient it gives its step its own learning rate."""
        assert self.set is not None  # noqa: S101 - for the type checker
        diameter = torch.as_tensor(self.set.diameter(blocks.shape(self.weight.shape, self.set.per)))
        return diameter / self.rates.double().repeat_interleave(self.rows)

    def scale_gradients(self) -> None:
        """A free parameter's gradient is scaled as its learning rate is; steps and averages of it are linear in it."""
        ratio = (self.rates / self.rates.max()).repeat_interleave(self.rows)
        ratio = ratio.reshape(-1, *[1] * (self.weight.ndim - 1)).to(self.weight.dtype)
        if not bool((ratio == 1).all()):
            self.weight.register_hook(lambda gradient: gradient * ratio)


class _Stack:
    """The networks in training."""

    def __init__(self, settings: list[Settings], folder: str | Path | None) -> None:
        self.settings = settings
        self.experiments = [experiment_of(one) for one in settings]
        self.splits = self._load(folder)
        self.models = [make_model(one, experiment) for one, experiment in zip(settings, self.experiments, strict=True)]
        self._check()
        self.layers = list(self._layers())
        self.optimizer = self._optimizer()
        self.losses = torch.zeros(len(settings))

    def _load(self, folder: str | Path | None) -> list[tuple[Split, Split]]:
        """What each network is trained and measured on; networks with the same options share it."""
        loaded: dict[str, tuple[Split, Split]] = {}
        for one, experiment in zip(self.settings, self.experiments, strict=True):
            if str(one.options) not in loaded:
                loaded[str(one.options)] = parts(one, load_data(experiment, folder))
        if len({len(train) for train, _ in loaded.values()}) > 1:
            raise ArgumentError(f"{self.settings[0].experiment}: networks of a stack need equally many samples")
        return [loaded[str(one.options)] for one in self.settings]

    def _check(self) -> None:
        """Refuse networks that one function cannot stand for."""
        name, first = self.settings[0].experiment, self.models[0]
        if any(str(model) != str(first) for model in self.models):
            raise ArgumentError(f"{name}: networks of a stack must be of the same kind, got {self.models}")
        if any(experiment.loss is not self.experiments[0].loss for experiment in self.experiments):
            raise ArgumentError(f"{name}: networks of a stack must have the same loss")
        if list(first.buffers()) or not all(p.requires_grad for p in first.parameters()):
            raise ArgumentError(f"{name}: a network with buffers or frozen parameters cannot be stacked")
        if any("Dropout" in type(module).__name__ for module in first.modules()):
            raise ArgumentError(f"{name}: a network with dropout cannot be stacked")

    def _layers(self) -> Iterator[_Layer]:
        own = [dict(model.named_parameters()) for model in self.models]
        sets = [_sets(model, experiment) for model, experiment in zip(self.models, self.experiments, strict=True)]
        for name, like in own[0].items():
            weight = nn.Parameter(torch.cat([each[name].detach() for each in own]))
            constrained = self.settings[0].frank_wolfe and name in sets[0]
            rates = [one.constrained_lr or one.lr if constrained else one.lr for one in self.settings]
            set_ = None
            if constrained:
                if sets[0][name].per != "output" or not all(isinstance(each[name].radius, float) for each in sets):
                    raise ArgumentError(f'{name}: lives in {sets[0][name]!r}; wanted per="output" and one radius')
                radii = torch.tensor([each[name].radius for each in sets]).repeat_interleave(like.shape[0])
                set_ = sets[0][name].with_radius(radii)
            yield _Layer(name, weight, like.shape, torch.tensor(rates), set_)

    def _optimizer(self) -> torch.optim.Optimizer:
        first = self.settings[0]
        for layer in self.layers:
            if layer.set is None:
                layer.scale_gradients()
        if first.method == "sgd":
            groups = [layer.group({}) for layer in self.layers]
            return torch.optim.SGD(groups, momentum=first.momentum, foreach=True)
        groups = [
            layer.group({"gradient_bound": layer.own_rates()} if layer.set is not None else {"set": None})
            for layer in self.layers
        ]
        return frank_wolfe(first, groups)

    def train(self) -> Iterator[list[float]]:
        """Train; yields the mean losses of every epoch."""
        first, count = self.settings[0], len(self.splits[0][0])
        epoch_steps = -(-count // first.batch_size)
        total, step = first.epochs * epoch_steps, 0
        groups = self.optimizer.param_groups
        bounds = [group.get("gradient_bound") for group in groups]
        rates = [group["lr"] for group in groups]
        for epoch in range(first.epochs):
            orders = [sample_order(one, epoch, count) for one in self.settings]
            sums = torch.zeros(len(self.settings))
            for number in range(epoch_steps):
                if first.schedule == "cosine":
                    factor = rate_factor(first, step, total)
                    for group, rate, bound in zip(groups, rates, bounds, strict=True):
                        group["lr"] = rate * factor
                        if bound is not None:
                            group["gradient_bound"] = bound / factor
                rows = slice(number * first.batch_size, (number + 1) * first.batch_size)
                sums += self._take([order[rows] for order in orders])
                step += 1
            self.losses = sums
            yield (sums / epoch_steps).tolist()

    def _take(self, rows: list[Tensor]) -> Tensor:
        """One gradient of every network, one step; the losses."""
        inputs, targets, dims = self._batch(rows)
        weights = {layer.name: layer.weight.view(len(rows), *layer.shape) for layer in self.layers}
        self.optimizer.zero_grad()
        losses = vmap(self._loss, in_dims=(0, dims, dims))(weights, inputs, targets)
        losses.sum().backward()
        self.optimizer.step()
        return losses.detach()

    def _batch(self, rows: list[Tensor]) -> tuple[Tensor, Tensor, int | None]:
        """The samples of a step: the same for all networks, or of each its own."""
        train = [split for split, _ in self.splits]
        if all(split is train[0] for split in train) and len({one.seed for one in self.settings}) == 1:
            return train[0].inputs.index_select(0, rows[0]), train[0].targets.index_select(0, rows[0]), None
        pairs = list(zip(train, rows, strict=True))
        inputs = torch.stack([split.inputs.index_select(0, chosen) for split, chosen in pairs])
        return inputs, torch.stack([split.targets.index_select(0, chosen) for split, chosen in pairs]), 0

    def _loss(self, weights: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        return self.experiments[0].loss(functional_call(self.models[0], weights, (inputs,)), targets)

    def results(self, seconds: float) -> list[dict[str, Any] | None]:
        """The measurements of each network by itself, each of which took so many seconds."""
        for layer in self.layers:
            for model, weight in zip(self.models, layer.weight.detach().split(layer.rows), strict=True):
                dict(model.named_parameters())[layer.name].data.copy_(weight)
        return [self._measured(index, seconds) for index in range(len(self.models))]

    def _measured(self, index: int, seconds: float) -> dict[str, Any] | None:
        if not math.isfinite(float(self.losses[index])):
            return None
        model, experiment, settings = self.models[index], self.experiments[index], self.settings[index]
        train, split = self.splits[index]
        measured = measure(model, experiment, train, split, make_optimizer(settings, experiment, model))
        return summarise(settings, measured, None, settings.epochs * -(-len(train) // settings.batch_size), seconds)


def _sets(model: nn.Module, experiment: Experiment) -> dict[str, Set]:
    groups = inface.param_groups(model, experiment.sets)
    return {name: group["set"] for group in groups if group["set"] is not None for name, _ in group["params"]}


def _check(settings: list[Settings]) -> None:
    if not settings:
        raise ArgumentError("train_together: wanted at least one network, got none")
    if settings[0].method not in ("sfw-if", "sfw", "sgd"):
        raise ArgumentError(f"train_together: wanted the method sfw-if, sfw or sgd, got {settings[0].method}")
    first = settings[0].to_dict()
    for one in settings[1:]:
        for name, value in one.to_dict().items():
            if name not in OWN and value != first[name]:
                raise ArgumentError(f"train_together: {name} must be the same for all, got {first[name]} and {value}")
