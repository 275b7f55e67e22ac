"""Many small networks trained at once: one batched forward and backward, one optimizer, as many results as separate runs.

The networks differ in seed, learning rates, radii and options of their experiment, not in their shape. Layer by layer
their weights are rows of one parameter, so that a set with one radius per row, and with one ``gradient_bound`` per row
that stands for its learning rate, lets the optimizer train them all unchanged.

Gradients are those of a separate run, to rounding. Results may not be: a Frank-Wolfe step goes to the best vertex, and
where rounding decides which of two that is, the runs part, and may end as differently as runs of two seeds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from inface.lab.errors import ArgumentError
from inface.lab.experiments.experiment import Data, Split
from inface.sets import Set, blocks

from .batched import batched
from .evaluation import measure, summarise
from .metrics import batches, finite, score
from .settings import Settings
from .setup import (
    experiment_of,
    frank_wolfe,
    grouped,
    load_data,
    make_model,
    make_optimizer,
    parts,
    rate_factor,
    resolve,
    sample_order,
    surroundings,
)

__all__ = ["Stack", "train_together"]

MeasuredOn = Literal["test", "validation"]

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
        For each network what ``summary.json`` says of a run, its seconds being its share; None if its loss is not finite
        any more. A separate run takes the same steps until rounding decides between two vertices.

    >>> results = train_together([Settings("digits", epochs=1, seed=seed) for seed in (0, 1)])
    >>> [result["steps"] for result in results]
    [6, 6]
    """
    stack = Stack(settings, data=data)
    stack.train(watch)
    return [stack.summary(index) for index in range(len(settings))]


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

    def ratios(self) -> Tensor | None:
        """What a free parameter's gradient is multiplied with: steps and averages of it are linear in its learning rate."""
        if self.set is not None or bool((self.rates == self.rates.max()).all()):
            return None
        ratio = (self.rates / self.rates.max()).repeat_interleave(self.rows)
        return ratio.reshape(-1, *[1] * (self.weight.ndim - 1)).to(self.weight.dtype)


class Stack:
    """Networks that are trained at once, and then measured as far as somebody wants to know.

    Args:
        settings: of each network.
        data: the data folder, if it is not the usual one.
        samples: the data itself, if somebody has loaded it already; then all networks have the same.

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
        self.seconds = 0.0  # that training took
        with surroundings(1):
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
        """Train all of them to their end; ``watch`` as in :func:`train_together`."""
        begun = time.perf_counter()
        with surroundings(1):
            for epoch, losses in enumerate(self._epochs(), 1):
                if watch:
                    watch(epoch, losses)
        for layer in self.layers:
            for model, weight in zip(self.models, layer.weight.detach().split(layer.rows), strict=True):
                dict(model.named_parameters())[layer.name].data.copy_(weight)
        self.seconds += time.perf_counter() - begun

    def scores(self) -> list[float | None]:
        """The metric of each network on what it is measured on, and nothing else; None if its loss is not finite any more."""
        with surroundings(1):
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
        """What ``summary.json`` says of a separate run; None if the network's loss is not finite any more.

        Args:
            index: of the network.
            measured_on: something else than what the settings say. There is nothing to say, None, if a run with that
                would have been trained on other samples.
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
        with surroundings(1):
            measured = measure(model, experiment, train, split, make_optimizer(settings, experiment, model))
        seconds = self.seconds / len(self.models) + time.perf_counter() - begun
        return summarise(settings, measured, self.data[index].image, settings.epochs * self._steps, seconds)

    def _load(self, folder: str | Path | None, samples: Data | None) -> None:
        """What each network is trained and measured on; networks with the same options share it."""
        loaded: dict[str, tuple[Data, tuple[Split, Split]]] = {}
        for one, experiment in zip(self.settings, self.experiments, strict=True):
            if str(one.options) not in loaded:
                data = samples or load_data(experiment, folder)
                loaded[str(one.options)] = (data, parts(one, data))
        self.data = [loaded[str(one.options)][0] for one in self.settings]
        self.splits = [loaded[str(one.options)][1] for one in self.settings]
        first = self.settings[0]
        if len({len(train) for train, _ in self.splits}) > 1:
            raise ArgumentError(f"{first.experiment}: networks of a stack need equally many samples")
        self._steps = -(-len(self.splits[0][0]) // first.batch_size)  # of an epoch
        self.shared = len(loaded) == 1 and len({one.seed for one in self.settings}) == 1

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
                    raise ArgumentError(f'{name}: lives in {sets[0]!r}; wanted per="output" and one radius')
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
        """Train; yields the mean losses of every epoch."""
        first, count = self.settings[0], len(self.splits[0][0])
        total, step = first.epochs * self._steps, 0
        groups = self.optimizer.param_groups
        bounds = [group.get("gradient_bound") for group in groups]
        rates = [group["lr"] for group in groups]
        for epoch in range(first.epochs):
            orders = [sample_order(one, epoch, count) for one in self.settings]
            sums = torch.zeros(len(self.settings))
            for number in range(self._steps):
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
            yield (sums / self._steps).tolist()

    def _take(self, rows: list[Tensor]) -> Tensor:
        """One gradient of every network, one step; the losses."""
        inputs, targets = self._batch(rows)
        losses = self.batched.descend(self.weights, inputs, targets, shared=self.shared)
        for weight, ratio in self.scaled:
            weight.grad.mul_(ratio)  # type: ignore[union-attr]
        self.optimizer.step()
        return losses

    def _batch(self, rows: list[Tensor]) -> tuple[Tensor, Tensor]:
        """The samples of a step: the same for all networks, or of each its own."""
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
    if settings[0].method not in ("sfw-if", "sfw", "sgd"):
        raise ArgumentError(f"train_together: wanted the method sfw-if, sfw or sgd, got {settings[0].method}")
    if settings[0].weight_decay is not None:  # a network's learning rate is a factor of its gradients alone
        raise ArgumentError(f"train_together: wanted no weight_decay, got {settings[0].weight_decay}")
    first = settings[0].to_dict()
    for one in settings[1:]:
        for name, value in one.to_dict().items():
            if name not in OWN and value != first[name]:
                raise ArgumentError(f"train_together: {name} must be the same for all, got {first[name]} and {value}")
