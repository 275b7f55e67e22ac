"""How a run is trained: everything that its result depends on."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

from inface.sets import InFace

from .errors import ArgumentError, suggestion

__all__ = ["Init", "Method", "Schedule", "Settings", "is_number"]

Method = Literal["sfw-if", "sfw", "sgd", "prune", "gradual", "proximal"]
Schedule = Literal["constant", "cosine"]
Init = Literal["alive"]

PRUNED = ("prune", "gradual")


@dataclass(frozen=True)
class Settings:
    """What ``config.json`` holds; two runs with equal settings on one machine give equal weights.

    Attributes:
        experiment: a built-in name, or ``path/to/file.py:name``.
        options: arguments of the experiment.
        method: ``"sfw-if"`` (Frank-Wolfe and in-face steps), ``"sfw"`` (Frank-Wolfe alone), ``"sgd"`` (dense), or a
            rival: ``"prune"`` (dense, then magnitude pruning and the last fifth as fine-tuning), ``"gradual"`` (magnitude
            pruning during training), ``"proximal"`` (soft-thresholding). All of them take one gradient a step, so that
            equal epochs are equal numbers of gradients.
        lr: the learning rate; ``1 / (2 L)`` with the smoothness constant ``L``.
        constrained_lr: of the constrained layers, if it is to be another: one for all, or one for each in order.
        radius: of the constrained layers in order, or one for all; by default the experiment's own.
        in_face: the kind of in-face step of ``"sfw-if"``.
        init: how the constrained layers start: by default the paper's way, edges of random sign, as large as the radius
            allows; ``"alive"``: positive edges behind activations, and 0.3 of the radius, so that fewer nodes start dead or
            die of the first losses.
        momentum: of gradients; averaged for the Frank-Wolfe methods, torch's own for SGD.
        free_momentum: of the free parameters, if it is to be another: long averages steady the constrained layers, but
            make the free ones swing.
        schedule: of the learning rates: constant, or falling to 0 as half a cosine; of ``"prune"`` twice, once until it prunes
            and once from the start again, to fine-tune.
        weight_decay: torch's, of all parameters, for ``"sgd"`` and what is made of it.
        epochs: passes over the training data.
        batch_size: samples of one gradient.
        keep: the part of the edges that ``"prune"`` and ``"gradual"`` keep in the constrained layers.
        shrinkage: the weight of the l1 penalty of ``"proximal"``, beside the loss.
        seed: of the initialisation and the order of the samples.
        every_gradient: free parameters move on both halves of an iteration with in-face steps, not on the first alone.
        measured_on: the test data; or the validation data, which is then left out of training.
        threads: of torch; by default as many as torch has at the start of the run.
        source: the SHA-256 of the file of an experiment of one's own; another file is not imported. By default any.

    >>> Settings("digits", lr=-1.0)
    Traceback (most recent call last):
    inface.lab.errors.ArgumentError: lr: wanted a number > 0, got -1.0
    """

    experiment: str
    options: Mapping[str, Any] = field(default_factory=dict)
    method: Method = "sfw-if"
    lr: float = 0.125
    constrained_lr: float | tuple[float, ...] | None = None
    radius: tuple[float, ...] | None = None
    in_face: InFace = "away"
    init: Init | None = None
    momentum: float = 0.0
    free_momentum: float | None = None
    schedule: Schedule = "constant"
    weight_decay: float | None = None
    epochs: int = 25
    batch_size: int = 250
    keep: float | None = None
    shrinkage: float | None = None
    seed: int = 0
    every_gradient: bool = False
    measured_on: Literal["test", "validation"] = "test"
    threads: int | None = None
    source: str | None = None

    def __post_init__(self) -> None:
        choices: tuple[tuple[str, object, tuple[str, ...]], ...] = (
            ("method", self.method, get_args(Method)),
            ("in-face", self.in_face, get_args(InFace)),
            ("schedule", self.schedule, get_args(Schedule)),
            ("measured-on", self.measured_on, ("test", "validation")),
        )
        if self.init is not None:
            choices += (("init", self.init, get_args(Init)),)
        for name, value, known in choices:
            if value not in known:
                raise ArgumentError(f"{name}: wanted {' or '.join(known)}, got {value}{suggestion(str(value), known)}")
        threads, free = (
            1 if self.threads is None else self.threads,
            self.momentum if self.free_momentum is None else self.free_momentum,
        )
        facts: tuple[tuple[str, object, bool, str], ...] = (
            ("experiment", self.experiment, isinstance(self.experiment, str), "a name"),
            ("options", self.options, isinstance(self.options, Mapping), "a mapping of names to values"),
            ("lr", self.lr, _is_rate(self.lr), "a number > 0"),
            ("constrained-lr", self.constrained_lr, self.constrained_rates != (), "at least one number"),
            ("momentum", self.momentum, is_number(self.momentum) and 0 <= self.momentum < 1, "a number in [0, 1)"),
            ("free-momentum", free, is_number(free) and 0 <= free < 1, "a number in [0, 1)"),
            ("epochs", self.epochs, _is_count(self.epochs) and self.epochs >= 1, "a whole number >= 1"),
            ("batch-size", self.batch_size, _is_count(self.batch_size) and self.batch_size >= 1, "a whole number >= 1"),
            ("seed", self.seed, _is_count(self.seed) and 0 <= self.seed < 2**31, "a whole number in [0, 2^31)"),
            ("every-gradient", self.every_gradient, isinstance(self.every_gradient, bool), "true or false"),
            ("source", self.source, isinstance(self.source, str | None), "a SHA-256"),
            ("threads", self.threads, _is_count(threads) and 1 <= threads <= 1024, "a whole number from 1 to 1024"),
        )
        facts += tuple(("constrained-lr", rate, _is_rate(rate), "a number > 0") for rate in self.constrained_rates)
        decay = 0.0 if self.weight_decay is None else self.weight_decay
        pruned, shrunk = self.method in PRUNED, self.method == "proximal"
        facts += (
            ("weight-decay", decay, is_number(decay) and 0 <= decay < math.inf, "a number >= 0"),
            ("keep", self.keep, _is_given(self.keep, pruned, most=1.0), _needed(pruned, "a number in (0, 1]")),
            ("shrinkage", self.shrinkage, _is_given(self.shrinkage, shrunk), _needed(shrunk, "a number > 0")),
        )
        for name, value, holds, wanted in facts:
            if not holds:
                raise ArgumentError(f"{name}: wanted {wanted}, got {value}")

    @property
    def frank_wolfe(self) -> bool:
        """Whether layers live in sets; the other methods are SGD, with or without something added."""
        return self.method in ("sfw-if", "sfw")

    @property
    def constrained_rates(self) -> tuple[float, ...]:
        """The learning rates of the constrained layers: one for all, or one for each.

        >>> Settings("digits", lr=0.1).constrained_rates, Settings("digits", constrained_lr=(8.0, 2.0)).constrained_rates
        ((0.1,), (8.0, 2.0))
        """
        given = self.lr if self.constrained_lr is None else self.constrained_lr
        return given if isinstance(given, tuple) else (given,)

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain data; without a source, if there is none.

        >>> Settings("digits", radius=(1.0, 2.0)).to_dict()["radius"]
        [1.0, 2.0]
        """
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        if self.source is None:
            del plain["source"]
        return {**plain, "options": dict(self.options)}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Settings:
        """Settings from plain data; what is not one of them is an error.

        >>> Settings.from_dict({"experiment": "digits", "epoch": 3})
        Traceback (most recent call last):
        inface.lab.errors.ArgumentError: there is no setting epoch; did you mean epochs?
        """
        known = [item.name for item in fields(Settings)]
        for name in data:
            if name not in known:
                raise ArgumentError(f"there is no setting {name}{suggestion(name, known)}")
        if "experiment" not in data:
            raise ArgumentError("experiment: is missing")
        radius, rate = data.get("radius"), data.get("constrained_lr")
        radii = None if radius is None else _numbers("radius", radius)
        if isinstance(rate, list | tuple):
            rates = _numbers("constrained-lr", rate)
            rate = rates[0] if len(rates) == 1 else rates
        return Settings(**{**data, "radius": radii, "constrained_lr": rate})


def is_number(value: object) -> bool:
    """Whether something is a number; true and false, which Python counts with, are none, nor are integers beyond floats.

    >>> is_number(1), is_number(0.5), is_number(True), is_number(10**400)
    (True, True, False, False)
    """
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return isinstance(value, float)


def _is_rate(value: object) -> bool:
    return is_number(value) and 0 < value < math.inf  # type: ignore[operator]


def _numbers(name: str, values: object) -> tuple[float, ...]:
    if not (isinstance(values, list | tuple) and values and all(map(is_number, values))):
        raise ArgumentError(f"{name}: wanted numbers, got {values!r}")
    return tuple(float(value) for value in values)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and is_number(value)


def _is_given(value: object, wanted: bool, most: float = math.inf) -> bool:
    """Whether a number is there and in (0, most], or is left out where no method reads it."""
    if value is None:
        return not wanted
    return is_number(value) and 0 < value <= most and value < math.inf  # type: ignore[operator]


def _needed(needed: bool, kind: str) -> str:
    return f"{kind}, which the method needs" if needed else kind
