"""Group runs by experiment, problem and settings; a group holds trials of the same settings."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inface.lab.errors import LabError
from inface.lab.runs.run import Run
from inface.lab.runs.settings import METHODS, declarations

__all__ = [
    "Group",
    "Measure",
    "grouped",
    "mapping",
    "measure",
    "method_name",
    "number",
    "positive",
    "shown",
    "sortable",
]

# Fields of config.json that are not settings.
_NO_SETTINGS = {"format", "versions", "earlier_sources"}
_SETTINGS = {setting.name: setting for setting in declarations()}


@dataclass(frozen=True)
class Measure:
    """The metric of runs: its name, its unit, and which direction is better."""

    name: str = "metric"
    unit: str = ""
    better: str = "higher"

    @property
    def axis(self) -> str:
        """The label of an axis.

        >>> Measure("accuracy", "%").axis, Measure("MSE").axis
        ('accuracy, %', 'MSE')
        """
        return f"{self.name}, {self.unit}" if self.unit else self.name

    def text(self, value: float) -> str:
        """A value with its unit.

        >>> Measure("accuracy", "%").text(97.123), Measure("MSE").text(0.012345)
        ('97.1 %', '0.0123')
        """
        return f"{self.digits(value)} {self.unit}".rstrip()

    def digits(self, value: float) -> str:
        """A value without its unit: one digit of a percentage, three significant ones of anything else."""
        return f"{value:.1f}" if self.unit == "%" else f"{value:.3g}"


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed or in the option ``trial``.

    Attributes:
        experiment: its name.
        problem: the experiment's options, and what it is measured on if that is not the test data; groups with the
            same problem can be compared.
        options: those options, as values.
        method: ``"sfw-if"``, ``"sfw"``, ``"sgd"`` or another.
        settings: what was chosen, as text.
        shared: that part of it in which all groups of the method agree, as text.
        label: the method, and what tells this group from others of the same method.
        runs: in the order in which they were given.
    """

    experiment: str
    problem: str
    options: Mapping[str, Any]
    method: str
    settings: str
    shared: str
    label: str
    runs: tuple[Run, ...]

    @property
    def finished(self) -> tuple[Run, ...]:
        """The finished runs."""
        return tuple(run for run in self.runs if run.finished)


def grouped(runs: Iterable[Run]) -> list[Group]:
    """Sort runs into groups: by experiment and problem as they come, then by method, the dense one first."""
    members: dict[str, list[Run]] = {}
    for run in {run.path.resolve(): run for run in runs}.values():
        key = json.dumps(
            [_text(run, "experiment"), _problem(run), _text(run, "method"), _settings(run)], sort_keys=True
        )
        members.setdefault(key, []).append(run)
    found = list(members.values())
    places = list(dict.fromkeys((_text(group[0], "experiment"), _problem(group[0])) for group in found))
    experiments = list(dict.fromkeys(experiment for experiment, _ in places))

    def place(group: list[Run]) -> tuple[int, tuple[Any, ...], int]:
        experiment, method = _text(group[0], "experiment"), _text(group[0], "method")
        values = tuple(sortable(value) for _, value in sorted(_options(group[0]).items()))
        return experiments.index(experiment), (*values, _problem(group[0])), _order(method)

    return [_group(group, found) for group in sorted(found, key=place)]


def measure(runs: Iterable[Run]) -> Measure:
    """The metric of the first finished run."""
    for run in runs:
        found = mapping(run.summary.get("metric")) if run.finished else {}
        if found:
            default = Measure()
            return Measure(
                str(found.get("name") or default.name),
                str(found.get("unit") or ""),
                str(found.get("better") or "higher"),
            )
    return Measure()


def method_name(method: str) -> str:
    """The display name of a method.

    >>> method_name("sfw-if"), method_name("adam")
    ('SFW-IF', 'adam')
    """
    return next((name for known, name in METHODS.items() if known == method), method)


def number(value: object) -> float:
    """The value as a float; NaN if it is not a number.

    >>> number(3), number(None), number("many")
    (3.0, nan, nan)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return math.nan
    return float(value)


def positive(values: Sequence[float]) -> list[float]:
    """The values that a logarithmic axis can show; the others become NaN."""
    return [value if value > 0 else math.nan for value in values]


def mapping(value: object) -> dict[str, Any]:
    """The value if it is a JSON object, else an empty one.

    >>> mapping({"a": 1}), mapping(None)
    ({'a': 1}, {})
    """
    return value if isinstance(value, dict) else {}


def shown(value: Any) -> str:
    """A setting as a text.

    >>> shown([1.0, 10.0]), shown(0.125), shown(True), shown(None)
    ('1 10', '0.125', 'yes', 'none')
    """
    if isinstance(value, (list, tuple)):
        return " ".join(shown(entry) for entry in value)
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    return f"{value:.6g}" if isinstance(value, (int, float)) else str(value)


def sortable(value: Any) -> tuple[int, float, str]:
    """A sort key for values of any type: numbers first, by size."""
    return (1, 0.0, str(value)) if math.isnan(number(value)) else (0, number(value), "")


def _group(runs: list[Run], everything: list[list[Run]]) -> Group:
    first = runs[0]
    experiment, method, options = _text(first, "experiment"), _text(first, "method"), _options(first)
    others = [
        _settings(group[0])
        for group in everything
        if (_text(group[0], "experiment"), _text(group[0], "method")) == (experiment, method)
    ]
    settings = _settings(first)
    different = [key for key in settings if any(other.get(key) != settings[key] for other in others)]
    parts = {
        key: _setting(key, value) for key, value in settings.items() if key in different or _matters(key, value, method)
    }
    return Group(
        experiment=experiment,
        problem=_problem(first),
        options=options,
        method=method,
        settings=", ".join(parts.values()),
        shared=", ".join(text for key, text in parts.items() if key not in different),
        label=", ".join([method_name(method), *(parts[key] for key in different)]),
        runs=tuple(runs),
    )


def _text(run: Run, key: str) -> str:
    value = run.config.get(key)
    if not isinstance(value, str) or not value:
        raise LabError(f'{run.config_file}: wanted a text as "{key}", got {value!r}')
    return value


def _options(run: Run) -> dict[str, Any]:
    from inface.lab.experiments.builtin import BUILT_IN, options_of

    name = run.config.get("experiment")
    options = {**(options_of(name) if name in BUILT_IN else {}), **mapping(run.config.get("options"))}
    return {key: value for key, value in options.items() if key != "trial"}


def _problem(run: Run) -> str:
    parts = [f"{key} {shown(value)}" for key, value in _options(run).items()]
    measured = run.config.get("measured_on") or "test"
    return ", ".join([*parts, *([] if measured == "test" else [f"measured on {measured} data"])])


def _settings(run: Run) -> dict[str, Any]:
    """What tells runs of one problem and method apart: no seed, no machine, nothing that the method ignores.

    A setting that is younger than the run has its default.
    """
    method = _text(run, "method")
    left_out = _NO_SETTINGS | {
        name for name, each in _SETTINGS.items() if not (each.compared and each.is_read_by(method))
    }
    config = {**{name: each.default for name, each in _SETTINGS.items()}, **run.config}
    return {key: value for key, value in config.items() if key not in left_out}


def _matters(key: str, value: Any, method: str) -> bool:
    """Whether to mention a setting that all runs share."""
    setting = _SETTINGS.get(key)
    return key == "lr" or (setting is not None and setting.mentioned and value != setting.default_of(method))


def _setting(key: str, value: Any) -> str:
    words = _SETTINGS[key].words if key in _SETTINGS else key
    if key == "schedule":
        return f"{value} schedule"
    if value is True:
        return words
    return f"{words} {'default' if value is None else shown(value)}"


def _order(method: str) -> int:
    return [*METHODS, method].index(method)  # unknown methods come last
