"""Kinds of values that a setting may have. Each checks a value, and describes the allowed ones."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from inface.lab.errors import suggestion

__all__ = ["Choice", "Flag", "Kind", "Number", "Numbers", "Options", "Part", "Text", "described", "is_number", "part"]


class Kind(Protocol):
    """A kind of values."""

    @property
    def wanted(self) -> str:
        """The allowed values, in words."""

    def accepts(self, value: Any) -> bool:
        """Whether the value is allowed."""


@dataclass(frozen=True)
class Number:
    """A number between bounds; ``above`` and ``below`` exclude the bound, ``least`` and ``most`` include it.

    >>> Number(least=0, below=1).wanted, Number(above=0).wanted, Number(whole=True, least=1, most=1024).wanted
    ('a number in [0, 1)', 'a number > 0', 'a whole number in [1, 1024]')
    >>> Number(above=0).accepts(float("nan")), Number(whole=True).accepts(2.0)
    (False, False)
    """

    above: float | None = None
    least: float | None = None
    most: float | None = None
    below: float | None = None
    whole: bool = False

    @property
    def wanted(self) -> str:
        return f"{'a whole number' if self.whole else 'a number'}{self._range}"

    @property
    def _range(self) -> str:
        low = _first((">", self.above), (">=", self.least))
        high = _first(("<", self.below), ("<=", self.most))
        if low and high:
            opening, closing = "(" if low[0] == ">" else "[", ")" if high[0] == "<" else "]"
            return f" in {opening}{_bound(low[1])}, {_bound(high[1])}{closing}"
        return "".join(f" {sign} {_bound(bound)}" for sign, bound in filter(None, (low, high)))

    def accepts(self, value: Any) -> bool:
        return (
            is_number(value)
            and (isinstance(value, int) or not self.whole)
            and math.isfinite(value)
            and (self.above is None or value > self.above)
            and (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )


@dataclass(frozen=True)
class Numbers:
    """One number for all constrained layers, or a tuple with one per layer.

    Attributes:
        each: the kind of each number.
        alone: a single number is stored as a number, not as a tuple of one.

    >>> Numbers(Number(above=0)).wanted, Numbers(Number(above=0)).plain([1, 10])
    ('numbers > 0', (1.0, 10.0))
    >>> Numbers(Number(), alone=True).plain([8])
    8.0
    """

    each: Number
    alone: bool = False

    @property
    def wanted(self) -> str:
        return self.each.wanted.replace("a number", "numbers")

    def plain(self, value: Any) -> Any:
        """The value of a list of numbers from a file or the command line; anything else is returned unchanged."""
        if not isinstance(value, list | tuple) or not all(map(is_number, value)):
            return value
        return float(value[0]) if self.alone and len(value) == 1 else tuple(map(float, value))

    def accepts(self, value: Any) -> bool:
        if self.alone and not isinstance(value, tuple):
            return self.each.accepts(value)
        return isinstance(value, tuple) and bool(value) and all(map(self.each.accepts, value))


@dataclass(frozen=True)
class Part:
    """A part of a whole, above 0; written as a number or in percent.

    >>> Part().accepts(0.05), Part().accepts(1), Part().accepts(5)
    (True, True, False)
    """

    wanted: str = "a number in (0, 1], such as 0.05 or 5%"

    def accepts(self, value: Any) -> bool:
        return Number(above=0, most=1).accepts(value)


@dataclass(frozen=True)
class Choice:
    """One of a few names.

    >>> Choice(("constant", "cosine")).wanted
    'constant or cosine'
    """

    names: tuple[str, ...]

    @property
    def wanted(self) -> str:
        return " or ".join(self.names)

    def accepts(self, value: Any) -> bool:
        return isinstance(value, str) and value in self.names


@dataclass(frozen=True)
class Flag:
    """True or false."""

    wanted: str = "true or false"

    def accepts(self, value: Any) -> bool:
        return isinstance(value, bool)


@dataclass(frozen=True)
class Text:
    """A text."""

    wanted: str = "a text"

    def accepts(self, value: Any) -> bool:
        return isinstance(value, str)


@dataclass(frozen=True)
class Options:
    """Names and values."""

    wanted: str = "a mapping of names to values"

    def accepts(self, value: Any) -> bool:
        return isinstance(value, Mapping)


def described(kind: Kind, value: Any) -> str:
    """What was wanted and what was found, for an error message.

    >>> described(Choice(("constant", "cosine")), "cosin")
    'wanted constant or cosine, got cosin; did you mean cosine?'
    """
    found = " ".join(f"{one:g}" for one in value) if value and isinstance(value, tuple) else value
    guess = suggestion(str(value), kind.names) if isinstance(kind, Choice) else ""
    return f"wanted {kind.wanted}, got {found}{guess}"


def part(text: str) -> float:
    """The number that a text means, which may be in percent; a ValueError if it means none.

    >>> part("5%"), part("0.05")
    (0.05, 0.05)
    """
    percent = text.strip().endswith("%")
    return float(text.strip().removesuffix("%")) / (100 if percent else 1)


def is_number(value: object) -> bool:
    """Whether a value is a number; booleans are not, nor are integers beyond the range of floats.

    >>> is_number(1), is_number(0.5), is_number(True), is_number(10**400)
    (True, True, False, False)
    """
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return isinstance(value, float)


def _first(*bounds: tuple[str, float | None]) -> tuple[str, float] | None:
    """The bound that is set, with its sign."""
    return next(((sign, number) for sign, number in bounds if number is not None), None)


def _bound(number: float) -> str:
    return "2^31" if number == 2**31 else f"{number:g}"
