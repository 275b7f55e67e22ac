"""Convert options given as text to the arguments of a function."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from inface.lab.errors import ArgumentError, suggestion

__all__ = ["bind"]


def bind(name: str, function: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert options to arguments of a function, by its annotations or else by the types of its defaults.

    Args:
        name: the name of the experiment, for error messages.
        function: the function.
        options: the options, as values or as text.

    >>> def make(edges: int = 3, kind: Literal["relu", "sigmoid"] = "relu"): ...
    >>> bind("mine", make, {"edges": "5"})
    {'edges': 5}
    >>> bind("mine", make, {"kind": "sigmod"})
    Traceback (most recent call last):
    inface.lab.errors.ArgumentError: mine: option kind: wanted relu or sigmoid, got sigmod; did you mean sigmoid?
    """
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    every = inspect.signature(function, eval_str=True).parameters
    parameters = {key: parameter for key, parameter in every.items() if parameter.kind not in several}
    for key in options:
        if key not in parameters:
            known = f"; it has {', '.join(parameters) or 'none'}"
            raise ArgumentError(f"{name} has no option {key}{suggestion(key, parameters) or known}")
    for key, parameter in parameters.items():
        if parameter.default is parameter.empty and key not in options:
            raise ArgumentError(f"{name}: option {key} must be given: {key}=VALUE")
    bound = {}
    for key, value in options.items():
        try:
            bound[key] = _converted(value, _kind(parameters[key]))
        except ValueError as error:
            raise ArgumentError(f"{name}: option {key}: wanted {error}") from None
    return bound


def _kind(parameter: inspect.Parameter) -> Any:
    if parameter.annotation is not parameter.empty:
        return parameter.annotation
    return str if parameter.default in (parameter.empty, None) else type(parameter.default)


def _converted(value: Any, kind: Any) -> Any:
    """The value converted to a type; the ValueError says what was wanted."""
    if isinstance(kind, UnionType) or get_origin(kind) is Union:
        if value in (None, "none"):
            return None
        return _converted(value, next(part for part in get_args(kind) if part is not type(None)))
    if get_origin(kind) is Literal:
        choices = {str(choice): choice for choice in get_args(kind)}
        if str(value) not in choices:
            raise ValueError(f"{' or '.join(choices)}, got {value}{suggestion(str(value), choices)}")
        return choices[str(value)]
    if kind is bool:
        truth = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if str(value).lower() not in truth:
            raise ValueError(f"true or false, got {value}")
        return truth[str(value).lower()]
    if kind in (int, float):
        return _number(value, kind)
    if kind is not str:
        raise ValueError(f"an annotation int, float, bool, str or Literal, got {kind}")
    return str(value)


def _number(value: Any, kind: type[int | float]) -> float:
    wanted = "a whole number" if kind is int else "a number"
    try:
        number = float(value)
        exact = math.isfinite(number) and (kind is float or number == int(number))
    except (ValueError, OverflowError):
        exact = False
    if not exact:
        raise ValueError(f"{wanted}, got {value}")
    return kind(number)
