"""Many small networks trained at once, with one batched forward and backward pass and one optimizer.

The networks may differ in seed, learning rates, radii and options of their experiment, but not in shape. In each layer
their weights are rows of one parameter. The set has one radius per row. One ``gradient_bound`` per row stands for the
learning rate. So the optimizer trains all networks without knowing it.

Gradients equal those of separate runs up to rounding. Results may differ: a Frank-Wolfe step goes to the best vertex,
and rounding may decide between two. From there on the runs differ as much as two seeds do.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from inface.lab.errors import ArgumentError
from inface.lab.experiments import MeasuredOn
from inface.lab.experiments.experiment import Data, Split
from inface.sets import Set, blocks

from .batched import batched
from .evaluation import measure, summarise
from .metrics import batches, finite, score
from .settings import FRANK_WOLFE, Settings
from .setup import (
    experiment_of,
    frank_wolfe,
    grouped,
    isolated_torch,
    load_data,
    make_model,
    make_optimizer,
    parts,
    rate_factor,
    resolve,
    sample_order,
)

__all__ = ["Stack", "train_together"]

# The settings in which the networks of a stack may differ.
OWN = ("options", "lr", "constrained_lr", "radius", "seed", "threads")


def train_together(
    settings: Sequence[Settings],
    *,
    data: str | Path | None = None,
    watch: Callable[[int, list[float]], None] | None = None,
) -> list[dict[str, Any] | None]:
    """Train networks that differ in seed, learning rates, radii and options of their experiment, all at once.

    Args:
        settings: the settings of each network; all other settings must be equal.
        data: the data folder, if not the default.
        watch: called after every epoch with its number and each network's mean training loss.

    Returns:
        For each network the contents of ``summary.json``, its seconds being its share; None if its loss is no longer
        finite.

    >>> results = train_together([Settings("digits", epochs=1, seed=seed) for seed in (0, 1)])
    >>> [result["steps"] for result in results]
    [6, 6]
    """
    stack = Stack(settings, data=data)
    stack.train(watch)
    return [stack.summary(index) for index in range(len(settings))]


@dataclass
class _Layer:
    """One parameter of all networks, concatenated along the rows."""

    name: str
    weight: nn.Parameter
    shape: torch.Size  # of the parameter in one network
    rates: Tensor  # one learning rate per network
    set: Set | None

    @property
    def rows(self) -> int:
        return self.shape[0]

    def group(self, options: dict[str, Any]) -> dict[str, Any]:
        """The parameter group; its learning rate is the largest of all networks."""
        group = {**options, "params": [self.weight], "lr": float(self.rates.max())}
        if self.set is not None:
            group["set"] = self.set
        return group

    def own_rates(self) -> Tensor:
        """``diam / lr`` of each block: as ``gradient_bound`` it gives the block its own learning rate."""
        assert self.set is not None  # noqa: S101 - for the type checker
        diameter = torch.as_tensor(self.set.diameter(blocks.shape(self.weight.shape, self.set.per)))
        return diameter / self.rates.double().repeat_interleave(self.rows)

    def ratios(self) -> Tensor | None:
        """Factors of a free parameter's gradient: its steps and averages are linear in the learning rate."""
        if self.set is not None or bool((self.rates == self.rates.max()).all()):
            return None
        ratio = (self.rates / self.rates.max()).repeat_interleave(self.rows)
        return ratio.reshape(-1, *[1] * (self.weight.ndim - 1)).to(self.weight.dtype)


class Stack:
    """Networks that are trained at once and measured one by one, on demand.

    Args:
        settings: the settings of each network.
        data: the data folder, if not the default.
        samples: the data, if it is already loaded; it is shared by all networks.

    >>> stack = Stack([Settings("digits", epochs=1, lr=lr, measured_on="validation") for lr in (0.1, 0.2)])
    >>> stack.train()
    >>> len(stack.scores()), stack.summary(0)["experiment"]
    (2, 'digits')
    """

    def __init__(
        self, settings: Sequence[Settings], *, data: str | Path | None = None, samples: Data | None = None
    ) -> None:
        self.settings = [resolve(one) for one in settings]
        _check(self.settings)
        self.seconds = 0.0  # of training
        with isolated_torch(1):
            self.experiments = [experiment_of(one) for one in self.settings]
            self._load(data, samples)
            each = zip(self.settings, self.experiments, self.splits, strict=True)
            self.models = [make_model(settings, made, train.inputs) for settings, made, (train, _) in each]
            self._check()
            self.layers = list(self._layers())
            self.weights = {layer.name: layer.weight for layer in self.layers}
            self.scaled = [(layer.weight, ratio) for layer in self.layers if (ratio := layer.ratios()) is not None]
            self.optimizer = self._optimizer()
        self.batched = batched(self.models[0], self.experiments[0].loss, len(self.models), self.splits[0][0].inputs)
        self.losses = torch.zeros(len(self.models))

    def train(self, watch: Callable[[int, list[float]], None] | None = None) -> None:
        """Train all networks; ``watch`` is that of :func:`train_together`."""
        begun = time.perf_counter()
        with isolated_torch(1):
            for epoch, losses in enumerate(self._epochs(), 1):
                if watch:
                    watch(epoch, losses)
        for layer in self.layers:
            for model, weight in zip(self.models, layer.weight.detach().split(layer.rows), strict=True):
                dict(model.named_parameters())[layer.name].data.copy_(weight)
        self.seconds += time.perf_counter() - begun

    def scores(self) -> list[float | None]:
        """The metric of each network on the split to measure on; None if its loss is no longer finite."""
        with isolated_torch(1):
            split = self.splits[0][1]
            if not all(other is split for _, other in self.splits):
                pairs = zip(self.models, self.experiments, self.splits, strict=True)
                found = [score(model, experiment, own).metric for model, experiment, (_, own) in pairs]
            else:
                totals = torch.zeros(len(self.models), dtype=torch.double)
                for inputs, targets in batches(split):
                    outputs = self.batched.outputs(self.weights, inputs, shared=True)
                    totals += torch.stack([self.experiments[0].metric.total(own, targets) for own in outputs])
                found = (self.experiments[0].metric.scale * totals / len(split)).tolist()
        return [finite(value) if self._is_finite(index) else None for index, value in enumerate(found)]

    def summary(self, index: int, measured_on: MeasuredOn | None = None) -> dict[str, Any] | None:
        """The contents of ``summary.json`` for one network; None if its loss is no longer finite.

        Args:
            index: the index of the network.
            measured_on: the data to measure on, if not that of the settings. The result is None if a run with this
                setting would be trained on other samples.
        """
        settings, model, experiment = self.settings[index], self.models[index], self.experiments[index]
        train, split = self.splits[index]
        if measured_on is not None:
            settings = replace(settings, measured_on=measured_on)
            other, split = parts(settings, self.data[index])
            if other is not train:
                return None
        if not self._is_finite(index):
            return None
        begun = time.perf_counter()
        with isolated_torch(1):
            measured = measure(model, experiment, train, split, make_optimizer(settings, experiment, model))
        seconds = self.seconds / len(self.models) + time.perf_counter() - begun
        return summarise(settings, measured, self.data[index].image, settings.epochs * self._steps, seconds)

    def _load(self, folder: str | Path | None, samples: Data | None) -> None:
        """Load the data of each network; networks with the same options share it."""
        loaded: dict[str, tuple[Data, tuple[Split, Split]]] = {}
        for one, experiment in zip(self.settings, self.experiments, strict=True):
            if str(one.options) not in loaded:
                data = samples or load_data(experiment, folder)
                loaded[str(one.options)] = (data, parts(one, data))
        self.data = [loaded[str(one.options)][0] for one in self.settings]
        self.splits = [loaded[str(one.options)][1] for one in self.settings]
        first = self.settings[0]
        if len({len(train) for train, _ in self.splits}) > 1:
            raise ArgumentError(f"{first.experiment}: networks of a stack need the same number of samples")
        self._steps = -(-len(self.splits[0][0]) // first.batch_size)  # per epoch
        self.shared = len(loaded) == 1 and len({one.seed for one in self.settings}) == 1

    def _check(self) -> None:
        """Raise an error unless one function can compute all networks."""
        name, first = self.settings[0].experiment, self.models[0]
        if any(str(model) != str(first) for model in self.models):
            raise ArgumentError(f"{name}: networks of a stack must be of the same kind, got {self.models}")
        if any(experiment.loss is not self.experiments[0].loss for experiment in self.experiments):
            raise ArgumentError(f"{name}: networks of a stack must have the same loss")
        if list(first.buffers()) or not all(p.requires_grad for p in first.parameters()):
            raise ArgumentError(f"{name}: a network with buffers or frozen parameters cannot be stacked")
        if any(experiment.augment is not None for experiment in self.experiments):
            raise ArgumentError(f"{name}: an experiment with augmented data cannot be stacked")
        if any("Dropout" in type(module).__name__ for module in first.modules()):
            raise ArgumentError(f"{name}: a network with dropout cannot be stacked")

    def _layers(self) -> Iterator[_Layer]:
        own = [dict(model.named_parameters()) for model in self.models]
        parts = zip(self.settings, self.experiments, self.models, strict=True)
        groups = [_by_name(grouped(*part)) for part in parts]
        for name, like in own[0].items():
            weight = nn.Parameter(torch.cat([each[name].detach() for each in own]))
            rates = [one.lr for one in self.settings]
            sets = [each[name]["set"] for each in groups]
            set_ = None
            if self.settings[0].frank_wolfe and sets[0] is not None:
                rates = [each[name]["lr"] for each in groups]
                if sets[0].per != "output" or not all(isinstance(each.radius, float) for each in sets):
                    raise ArgumentError(f'{name}: wanted a set with per="output" and one radius, got {sets[0]!r}')
                radii = torch.tensor([each.radius for each in sets]).repeat_interleave(like.shape[0])
                set_ = sets[0].with_radius(radii)
            yield _Layer(name, weight, like.shape, torch.tensor(rates), set_)

    def _optimizer(self) -> torch.optim.Optimizer:
        first = self.settings[0]
        if first.method == "sgd":
            groups = [layer.group({}) for layer in self.layers]
            return torch.optim.SGD(groups, momentum=first.momentum, foreach=True)
        groups = [
            layer.group({"gradient_bound": layer.own_rates()} if layer.set is not None else {"set": None})
            for layer in self.layers
        ]
        return frank_wolfe(first, groups)

    def _epochs(self) -> Iterator[list[float]]:
        """Train, and yield the mean losses of each epoch."""
        first, count = self.settings[0], len(self.splits[0][0])
        total, step = first.epochs * self._steps, 0
        groups = self.optimizer.param_groups
        bounds = [group.get("gradient_bound") for group in groups]
        rates = [group["lr"] for group in groups]
        for epoch in range(first.epochs):
            orders = [sample_order(one, epoch, count) for one in self.settings]
            sums = torch.zeros(len(self.settings))
            for number in range(self._steps):
                factor = rate_factor(first, step, total)
                for group, rate, bound in zip(groups, rates, bounds, strict=True):
                    group["lr"] = rate * factor
                    if bound is not None:
                        group["gradient_bound"] = bound / factor
                rows = slice(number * first.batch_size, (number + 1) * first.batch_size)
                sums += self._take([order[rows] for order in orders])
                step += 1
            self.losses = sums
            yield (sums / self._steps).tolist()

    def _take(self, rows: list[Tensor]) -> Tensor:
        """Take one step of every network; return the losses."""
        inputs, targets = self._batch(rows)
        losses = self.batched.descend(self.weights, inputs, targets, shared=self.shared)
        for weight, ratio in self.scaled:
            weight.grad.mul_(ratio)  # type: ignore[union-attr]
        self.optimizer.step()
        return losses

    def _batch(self, rows: list[Tensor]) -> tuple[Tensor, Tensor]:
        """The samples of a step: shared by all networks, or one batch per network."""
        train = self.splits[0][0]
        if self.shared:
            return train.inputs.index_select(0, rows[0]), train.targets.index_select(0, rows[0])
        shape = (len(rows), len(rows[0]))
        inputs = train.inputs.new_empty(*shape, *train.inputs.shape[1:])
        targets = train.targets.new_empty(*shape, *train.targets.shape[1:])
        for index, ((own, _), chosen) in enumerate(zip(self.splits, rows, strict=True)):
            torch.index_select(own.inputs, 0, chosen, out=inputs[index])
            torch.index_select(own.targets, 0, chosen, out=targets[index])
        return inputs, targets

    def _is_finite(self, index: int) -> bool:
        return math.isfinite(float(self.losses[index]))


def _by_name(groups: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: group for group in groups for name, _ in group["params"]}


def _check(settings: list[Settings]) -> None:
    if not settings:
        raise ArgumentError("train_together: wanted at least one network, got none")
    if settings[0].method not in (*FRANK_WOLFE, "sgd"):
        raise ArgumentError(f"train_together: wanted the method sfw-if, sfw or sgd, got {settings[0].method}")
    if settings[0].free != "sgd":
        raise ArgumentError(f"train_together: wanted free sgd, got {settings[0].free}")
    if settings[0].weight_decay is not None:  # a network's learning rate is a factor of its gradients alone
        raise ArgumentError(f"train_together: wanted no weight_decay, got {settings[0].weight_decay}")
    first = settings[0].to_dict()
    for one in settings[1:]:
        for name, value in one.to_dict().items():
            if name not in OWN and value != first[name]:
                raise ArgumentError(f"train_together: {name} must be the same for all, got {first[name]} and {value}")
