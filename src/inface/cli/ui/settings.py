"""Options of commands, made from the declarations of the settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from inface.lab.errors import ArgumentError
from inface.lab.experiments import EXPERIMENTS
from inface.lab.runs.kinds import Choice, Number, Numbers, Part
from inface.lab.runs.settings import Setting, declarations, declared

from .options import experiment_names, number, one_of, option, part, whole_number

__all__ = ["Given", "experiment_argument", "located", "named_values", "refuse_ignored", "takes_settings"]

# The settings given on the command line, by name.
Given = dict[str, Any]

SMOOTHNESS = Annotated[
    float | None, option(text="The paper's constant L instead of --lr: lr = 1 / (2 L).", parser=number, metavar="L")
]

experiment_argument = typer.Argument(
    help=f"{', '.join(EXPERIMENTS)}, or your own: path/to/file.py:name.",
    metavar="EXPERIMENT",
    show_default=False,
    autocompletion=experiment_names,
)


def takes_settings(wanted: Callable[[Setting], bool]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add an option to a command for every wanted setting; the command gets the values in its parameter ``given``.

    Args:
        wanted: whether a setting is wanted.

    >>> @takes_settings(lambda setting: setting.name in ("lr", "epochs"))
    ... def command(*, out: str, given: Given) -> None:
    ...     print(out, given)
    >>> list(inspect.signature(command).parameters)
    ['out', 'lr', 'smoothness', 'epochs']
    >>> command(out="run", lr=None, smoothness=4.0, epochs=3)
    run {'lr': 0.125, 'smoothness': 4.0, 'epochs': 3}
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        added = list(_parameters(wanted))
        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            parameters += added if parameter.name == "given" else [parameter]

        @wraps(command)
        def with_settings(**values: Any) -> None:
            given = {each.name: values.pop(each.name) for each in added}
            command(**values, given=_plain(given))

        with_settings.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        with_settings.__annotations__ = {each.name: each.annotation for each in parameters}
        return with_settings

    return decorate


def refuse_ignored(method: str, given: Given) -> None:
    """Raise an error if a given setting is ignored by the method.

    >>> refuse_ignored("sgd", {"radius": [1.0], "lr": 0.1})
    Traceback (most recent call last):
    inface.lab.errors.ArgumentError: --method sgd does not use --radius
    """
    for setting in declarations():
        if setting.name in given and not setting.is_read_by(method):
            raise ArgumentError(f"--method {method} does not use {setting.flag}")


def located(experiment: str) -> str:
    """The experiment with an absolute path to its file, so that the run can be measured again from any folder.

    >>> located("digits")
    'digits'
    """
    file, colon, name = experiment.rpartition(":")
    return f"{Path(file).resolve()}:{name}" if colon and file.endswith(".py") else experiment


def _parameters(wanted: Callable[[Setting], bool]) -> Iterator[inspect.Parameter]:
    """The options as parameters of a function; ``--option`` comes last."""
    chosen = [setting for setting in declarations() if setting.flag and wanted(setting)]
    for setting in sorted(chosen, key=lambda setting: setting.name == "options"):
        yield _parameter(setting.name, _annotation(setting))
        if setting.name == "lr":
            yield _parameter("smoothness", SMOOTHNESS)


def _parameter(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _annotation(setting: Setting) -> Any:
    """The type and the help of a setting's option, for Typer."""
    default = setting.default_text or ("" if setting.default is None else str(setting.default))
    kind, names = setting.kind, [setting.flag]
    more: dict[str, Any] = {}
    if setting.switch is not None:
        return Annotated[bool | None, option(*names, text=setting.help)]
    if setting.name == "options":
        return Annotated[list[str] | None, option(*names, "-o", text=setting.help, metavar=setting.metavar)]
    type_: Any = str
    if isinstance(kind, Choice):
        more = {"autocompletion": one_of(*kind.names)}
    elif isinstance(kind, Part):
        type_, more = float, {"parser": part, "metavar": "PART"}
    elif isinstance(kind, Number | Numbers):
        whole = isinstance(kind, Number) and kind.whole
        type_ = int if whole else list[float] if isinstance(kind, Numbers) else float
        metavar = "N" if whole else "NUMBER..." if isinstance(kind, Numbers) else "NUMBER"
        more = {"parser": whole_number if whole else number, "metavar": setting.metavar or metavar}
    return Annotated[type_ | None, option(*names, text=setting.help, default=default, **more)]


def _plain(values: dict[str, Any]) -> Given:
    """The given options as values of settings; ``smoothness`` is kept for error messages."""
    given = {name: value for name, value in values.items() if value not in (None, [])}
    if "smoothness" in given:
        if "lr" in given:
            raise ArgumentError("wanted --lr or --smoothness (lr = 1 / (2 L)), got both")
        if not given["smoothness"] > 0:
            raise ArgumentError(f"--smoothness: wanted a number > 0, got {given['smoothness']:g}")
        given = {"lr": 1 / (2 * given["smoothness"]), **given}
    if "options" in given:
        given["options"] = named_values(given["options"])
    for name in given.keys() - {"smoothness"}:
        if (switch := declared(name).switch) is not None:
            given[name] = switch if given[name] else declared(name).default
    return given


def named_values(texts: list[str]) -> dict[str, str]:
    """``NAME=VALUE`` texts as a mapping.

    >>> named_values(["edges=5", "snr=1"])
    {'edges': '5', 'snr': '1'}
    """
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ArgumentError(f"--option: wanted NAME=VALUE, got {text}")
        pairs[name] = value
    return pairs
