"""An experiment: data, a network, the sets that constrain its layers, a loss, a metric."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn

from inface.lab.errors import ArgumentError
from inface.sets import Set

from . import HeldOut, MeasuredOn

__all__ = ["Data", "Experiment", "Metric", "Split", "accuracy", "mean_squared_error"]


@dataclass(frozen=True)
class Split:
    """Inputs and targets in memory, one row of each per sample.

    >>> import torch
    >>> split = Split(torch.zeros(5, 3), torch.zeros(5, dtype=torch.long))
    >>> len(split), len(split[:2])
    (5, 2)
    """

    inputs: Tensor
    targets: Tensor

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.targets) or not len(self.inputs):
            raise ArgumentError(
                f"Split: wanted equally many inputs and targets, at least one, "
                f"got {len(self.inputs)} and {len(self.targets)}"
            )

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, rows: slice | Tensor) -> Split:
        return Split(self.inputs[rows], self.targets[rows])


@dataclass(frozen=True)
class Data:
    """The samples of an experiment.

    Attributes:
        train: the training samples.
        test: the test samples, for final results.
        validation: the validation samples, for choosing settings; None to hold out training samples instead.
        held_out: without ``validation``, the number of training samples that are held out.
        held: which ones: the last, the first, or random ones (always the same).
        image: channels, height and width of an input; reports then draw the first layer as images.

    >>> import torch
    >>> train, test = Split(torch.zeros(5, 3), torch.zeros(5)), Split(torch.zeros(2, 3), torch.zeros(2))
    >>> data = Data(train, test, held_out=1)
    >>> train, validation = data.parts("validation")
    >>> len(train), len(validation), len(data.parts("test")[0])
    (4, 1, 5)
    """

    train: Split
    test: Split
    validation: Split | None = None
    held_out: int = 0
    image: tuple[int, int, int] | None = None
    held: HeldOut = "last"

    def __post_init__(self) -> None:
        if not 0 <= self.held_out < len(self.train):
            raise ArgumentError(f"Data: held_out must be in [0, {len(self.train)}), got {self.held_out}")

    def parts(self, measured_on: MeasuredOn) -> tuple[Split, Split]:
        """The split to train on, and the split to measure on."""
        if measured_on == "test":
            return self.train, self.test
        if self.validation is not None:
            return self.train, self.validation
        if not self.held_out:
            raise ArgumentError("has no validation data for --validate; give its Data validation= or held_out=")
        if self.held == "first":
            return self.train[self.held_out :], self.train[: self.held_out]
        if self.held == "random":
            order = torch.randperm(len(self.train), generator=Generator().manual_seed(0))
            return self.train[order[self.held_out :]], self.train[order[: self.held_out]]
        return self.train[: -self.held_out], self.train[-self.held_out :]

    def first(self, samples: int | None) -> Data:
        """The data with the first training samples alone, and as large a part of them held out; None for all.

        >>> import torch
        >>> split = Split(torch.zeros(50, 3), torch.zeros(50))
        >>> data = Data(split, split, held_out=10).first(20)
        >>> len(data.train), data.held_out, len(data.test)
        (20, 4, 50)
        """
        if samples is None:
            return self
        if not 2 <= samples <= len(self.train):
            raise ArgumentError(f"samples: wanted a whole number from 2 to {len(self.train)}, got {samples}")
        held_out = max(min(1, self.held_out), self.held_out * samples // len(self.train))
        return replace(self, train=self.train[:samples], held_out=held_out)


@dataclass(frozen=True)
class Metric:
    """A measure of the quality of a network, such as accuracy.

    Attributes:
        name: its name in tables and on axes.
        total: a function of outputs and targets that returns the sum over the samples; the metric is the mean.
        unit: the unit after its numbers.
        better: whether higher or lower values are better.
        scale: a factor of the mean.
    """

    name: str
    total: Callable[[Tensor, Tensor], Tensor]
    unit: str = ""
    better: Literal["higher", "lower"] = "higher"
    scale: float = 1.0


def _correct(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(1) == targets).sum()


def _squares(outputs: Tensor, targets: Tensor) -> Tensor:
    if outputs.shape != targets.shape:
        raise ArgumentError(
            f"MSE: wanted outputs in the shape of the targets, {tuple(targets.shape)}, got {tuple(outputs.shape)}"
        )
    return (outputs - targets).square().reshape(len(targets), -1).mean(1).sum()


accuracy = Metric("accuracy", _correct, unit="%", scale=100.0)
mean_squared_error = Metric("MSE", _squares, better="lower")


@dataclass(frozen=True)
class Experiment:
    """One network on one data set.

    Attributes:
        data: a function that loads the samples. Its argument is the data folder.
        model: a function that makes the network, with PyTorch's own initialisation.
        sets: the constraints: parameter names (or globs) and their sets. All other parameters are free. The order is
            that of layer 1, layer 2, ... in tables, and of the values of ``--radius`` and ``--constrained-lr``. Without
            sets, the layers that ``--density`` makes sparse are those of :func:`inface.sparse_optimizer`.
        loss: a function of outputs and targets, the mean over the samples.
        metric: how the network is judged.
        defaults: defaults of its settings, such as ``{"epochs": 100}``; the command line overrides them.
        augment: a function of the inputs of a training batch and a random generator that returns other inputs, such as
            shifted images. The generator depends on the seed and the step alone, so that a resumed run draws the same.

    >>> import torch
    >>> from inface.sets import L1Ball
    >>> def data(folder):
    ...     x = torch.randn(100, 20)
    ...     return Data(train=Split(x, x[:, :1]), test=Split(x, x[:, :1]))
    >>> experiment = Experiment(data=data, model=lambda: torch.nn.Linear(20, 1), sets={"weight": L1Ball(1.0)},
    ...                         loss=torch.nn.functional.mse_loss, metric=mean_squared_error)
    >>> experiment.with_radii([2.0]).sets
    {'weight': L1Ball(radius=2.0, per='output')}
    """

    data: Callable[[Path], Data]
    model: Callable[[], nn.Module]
    sets: Mapping[str, Set] = field(default_factory=dict)
    loss: Callable[[Tensor, Tensor], Tensor] = nn.functional.cross_entropy
    metric: Metric = accuracy
    defaults: Mapping[str, Any] = field(default_factory=dict)
    augment: Callable[[Tensor, Generator], Tensor] | None = None

    def __post_init__(self) -> None:
        for name, set_ in self.sets.items():
            if not isinstance(set_, Set):
                raise ArgumentError(f'Experiment: sets["{name}"] must be a set, such as L1Ball(1.0), got {set_!r}')

    def with_radii(self, radii: Sequence[float]) -> Experiment:
        """The same experiment with other radii: one for all constrained layers, or one per layer."""
        each = self.each("radius", radii)
        if not all(0 < radius < math.inf for radius in radii):
            raise ArgumentError(f"radius: wanted numbers > 0, got {' '.join(f'{radius:g}' for radius in radii)}")
        sets = {name: set_.with_radius(r) for (name, set_), r in zip(self.sets.items(), each, strict=True)}
        return replace(self, sets=sets)

    def each(self, name: str, numbers: Sequence[float]) -> list[float]:
        """One number per constrained layer, from a setting that has one for all or one per layer."""
        layers = len(self.sets)
        if len(numbers) not in (1, layers):
            wanted = "1" if layers < 2 else f"1 or {layers}"
            told = ", ".join(self.sets) or "no constrained layer"
            raise ArgumentError(f"{name}: wanted {wanted} numbers (for {told}), got {len(numbers)}")
        return list(numbers) * layers if len(numbers) == 1 else list(numbers)
