"""The settings of runs as options, declared once for the commands that share them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from inface.lab.errors import ArgumentError
from inface.lab.names import METHODS, READ_BY

from .options import experiment_names, number, one_of, setting, whole_number

__all__ = [
    "BatchSize",
    "ConstrainedLr",
    "Epochs",
    "EveryGradient",
    "FreeMomentum",
    "InFace",
    "Init",
    "Keep",
    "Lr",
    "Method",
    "Momentum",
    "Options",
    "Radius",
    "Schedule",
    "Shrinkage",
    "Smoothness",
    "WeightDecay",
    "experiment_argument",
    "located",
    "named",
    "refuse_what_is_ignored",
]

experiment_argument = typer.Argument(
    help="mnist-mlp, mnist-conv, cifar10, synthetic, digits, or your own: path/to/file.py:name.",
    metavar="EXPERIMENT",
    show_default=False,
    autocompletion=experiment_names,
)

Method = Annotated[
    str | None,
    setting(
        text="sfw-if: Frank-Wolfe and in-face steps. sfw: Frank-Wolfe alone. sgd: dense. Rivals: prune, gradual, proximal.",
        default="sfw-if",
        autocompletion=one_of(*METHODS),
    ),
]
Lr = Annotated[float | None, setting(text="Learning rate.", default="0.125", parser=number, metavar="NUMBER")]
Smoothness = Annotated[
    float | None, setting(text="The paper's constant L instead: lr = 1 / (2 L).", parser=number, metavar="L")
]
ConstrainedLr = Annotated[
    list[float] | None,
    setting(
        text="Learning rates of the constrained layers, one for all or one each: --constrained-lr 8 2.",
        default="--lr",
        parser=number,
        metavar="NUMBER...",
    ),
]
Radius = Annotated[
    list[float] | None,
    setting(
        text="Radii of the constrained layers, one for all or one each: --radius 1 10.",
        default="the experiment's",
        parser=number,
        metavar="R...",
    ),
]
Momentum = Annotated[
    float | None,
    setting(text="How much of the earlier gradients a step keeps.", default="0", parser=number, metavar="NUMBER"),
]
FreeMomentum = Annotated[
    float | None,
    setting(text="The same of the free parameters.", default="--momentum", parser=number, metavar="NUMBER"),
]
Schedule = Annotated[
    str | None,
    setting(
        text="The schedule of the learning rates, constant or cosine.",
        default="constant",
        autocompletion=one_of("constant", "cosine"),
    ),
]
InFace = Annotated[
    str | None,
    setting(
        text="The in-face step of sfw-if: away, pairwise or frank-wolfe.",
        default="away",
        autocompletion=one_of("away", "pairwise", "frank-wolfe"),
    ),
]
Init = Annotated[
    str | None,
    setting(
        text="alive: start with positive edges behind activations, and smaller ones.",
        default="the paper's way",
        autocompletion=one_of("alive"),
    ),
]
Keep = Annotated[
    float | None,
    setting(text="The part of the edges that prune and gradual keep, such as 0.05.", parser=number, metavar="NUMBER"),
]
WeightDecay = Annotated[
    float | None,
    setting(text="Weight decay of sgd and the rivals.", default="0", parser=number, metavar="NUMBER"),
]
Shrinkage = Annotated[
    float | None, setting(text="The weight of the l1 penalty of proximal.", parser=number, metavar="NUMBER")
]
EveryGradient = Annotated[
    bool | None,
    setting(
        "--every-gradient",
        text="With sfw-if, free parameters move on both halves of an iteration, not on the first alone.",
    ),
]
Epochs = Annotated[
    int | None, setting(text="Passes over the data.", default="25; digits 100", parser=whole_number, metavar="N")
]
BatchSize = Annotated[
    int | None, setting(text="Samples of a gradient.", default="250; digits 50", parser=whole_number, metavar="N")
]
Options = Annotated[
    list[str] | None,
    setting(
        "--option",
        "-o",
        text="An option of the experiment, such as edges=5; inface experiments lists them.",
        metavar="NAME=VALUE",
    ),
]


def named(
    *,
    lr: float | None,
    smoothness: float | None,
    constrained_lr: list[float] | None,
    radius: list[float] | None,
    option: list[str] | None,
    **others: Any,
) -> dict[str, Any]:
    """What was given on the command line, by the names of settings; None where nothing was.

    >>> named(lr=None, smoothness=4.0, constrained_lr=[8.0, 2.0], radius=[], option=["edges=5"], epochs=3)
    {'lr': 0.125, 'constrained_lr': [8.0, 2.0], 'radius': None, 'options': {'edges': '5'}, 'epochs': 3}
    """
    if lr is not None and smoothness is not None:
        raise ArgumentError("--lr and --smoothness say the same thing, lr = 1 / (2 L); wanted one of them")
    if smoothness is not None and not smoothness > 0:
        raise ArgumentError(f"--smoothness: wanted a number > 0, got {smoothness:g}")
    return {
        "lr": lr if smoothness is None else 1 / (2 * smoothness),
        "constrained_lr": constrained_lr or None,
        "radius": radius or None,
        "options": _options(option) if option else None,
        **others,
    }


def refuse_what_is_ignored(method: str, chosen: dict[str, Any]) -> None:
    """Refuse what was given and the method does not look at.

    >>> refuse_what_is_ignored("sgd", {"radius": [1.0], "lr": 0.1})
    Traceback (most recent call last):
    inface.lab.errors.ArgumentError: --radius means nothing to --method sgd
    """
    for name, methods in READ_BY.items():
        if chosen.get(name) is not None and method not in methods:
            raise ArgumentError(f"--{name.replace('_', '-')} means nothing to --method {method}")


def located(experiment: str) -> str:
    """An experiment of one's own by its absolute path, so that the run can be measured again from anywhere.

    >>> located("digits")
    'digits'
    """
    file, colon, name = experiment.rpartition(":")
    return f"{Path(file).resolve()}:{name}" if colon and file.endswith(".py") else experiment


def _options(texts: list[str]) -> dict[str, str]:
    """``NAME=VALUE`` texts as a mapping.

    >>> _options(["edges=5", "snr=1"])
    {'edges': '5', 'snr': '1'}
    """
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ArgumentError(f"--option: wanted NAME=VALUE, got {text}")
        pairs[name] = value
    return pairs
