"""The report as one self-contained HTML page."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import groupby
from typing import Any

from inface.lab.runs.run import Run
from inface.lab.runs.settings import Setting, declarations
from inface.text import printable

from .comparison import Column, Comparison, columns, compare, headline
from .exported import Export, exports
from .figures import figures
from .groups import Group, grouped
from .svg import Drawing, inline

__all__ = ["Section", "command", "render", "sections"]

# Characters that HTML does not allow: control characters, halves of surrogate pairs.
_UNFIT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True)
class Section:
    """One experiment of the report."""

    name: str
    slug: str
    headline: str
    columns: list[Column]
    rows: list[Comparison]
    drawings: list[Drawing]
    runs: list[Run]

    @property
    def headings(self) -> list[tuple[str, int, bool]]:
        """The upper line of the table's head: a text, the number of columns it spans, whether it names a layer."""
        spans = [(text, len(list(run))) for text, run in groupby(column.heading for column in self.columns)]
        return [(text, span, "layer" in text) for text, span in spans]

    @property
    def problems(self) -> list[tuple[str, list[Comparison]]]:
        """The rows of each problem, which are compared with each other."""
        names = list(dict.fromkeys(row.problem for row in self.rows))
        return [(name, [row for row in self.rows if row.problem == name]) for name in names]

    @property
    def settings(self) -> list[tuple[str, str, bool]]:
        """The settings that all rows of a method share; and whether others differ by row."""
        shared = {row.name: row.shared for row in self.rows}
        several = {row.name for row in self.rows if row.label != row.name}
        return [(name, text, name in several) for name, text in shared.items() if text]

    @property
    def repeated(self) -> bool:
        """Whether a row has more than one run."""
        return any(row.count > 1 for row in self.rows)

    @property
    def exports(self) -> list[Export]:
        """The runs that were exported."""
        return exports(self.runs)

    @property
    def unfinished(self) -> list[Run]:
        """The unfinished runs, which are not in the table."""
        return [run for run in self.runs if not run.finished]


def sections(runs: Sequence[Run]) -> list[Section]:
    """One section per experiment, in order of appearance."""
    groups = grouped(runs)
    found: list[Section] = []
    for experiment, name in _names([group.experiment for group in groups]).items():
        members = [group for group in groups if group.experiment == experiment]
        rows = compare(_runs(members))
        slug = _slug(name, {section.slug for section in found})
        drawings = figures(members, rows, slug)
        found.append(Section(name, slug, headline(rows), columns(rows), rows, drawings, _runs(members)))
    return found


def render(found: Sequence[Section], title: str) -> str:
    """The page."""
    counter = _numbers()
    page = _template().render(
        title=title,
        sections=found,
        style=files(__package__).joinpath("style.css").read_text(encoding="utf-8"),
        inline=inline,
        number=lambda: next(counter),
        command=command,
        versions=_versions,
    )
    return _UNFIT.sub("\N{REPLACEMENT CHARACTER}", page)


def command(run: Run) -> str:
    """The command that repeats a run in another folder.

    >>> import json, tempfile
    >>> from pathlib import Path
    >>> config = {"format": 1, "experiment": "digits", "method": "sgd", "lr": 0.1, "options": {"trial": 3}, "seed": 0}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "config.json").write_text(json.dumps(config))
    ...     command(Run(folder)).replace(Path(folder).name, "NAME")
    'inface train digits --out NAME-again --option trial=3 --method sgd --lr 0.1 --seed 0'
    """
    config = run.config
    words = ["inface", "train", str(config.get("experiment")), "--out", f"{run.path.resolve().name}-again"]
    for setting in declarations():
        if setting.flag and setting.is_read_by(str(config.get("method"))):
            words += _words(setting, config.get(setting.name))
    return shlex.join(words)


def _words(setting: Setting, value: Any) -> list[str]:
    """A value of a setting on the command line."""
    if setting.switch is not None:
        return [setting.flag] if value == setting.switch else []
    if value is None:
        return []
    if isinstance(value, Mapping):
        return [word for key, each in value.items() for word in (setting.flag, f"{key}={each}")]
    return [setting.flag, *(_plain(entry) for entry in (value if isinstance(value, list) else [value]))]


def _plain(value: Any) -> str:
    return f"{value:.17g}" if isinstance(value, float) and value == int(value) else str(value)


def _versions(run: Run) -> str:
    versions = run.config.get("versions")
    return ", ".join(f"{key} {value}" for key, value in versions.items()) if isinstance(versions, dict) else ""


def _runs(groups: Sequence[Group]) -> list[Run]:
    return [run for group in groups for run in group.runs]


def _names(experiments: Iterable[str]) -> dict[str, str]:
    """Short names of experiments: without their file, or with as much of its path as makes them unique.

    >>> _names(["digits", "/home/me/nets.py:deep", "/home/me/nets.py:wide", "/home/you/nets.py:wide"]).values()
    dict_values(['digits', 'deep', 'me/nets.py:wide', 'you/nets.py:wide'])
    """
    forms = {experiment: _forms(experiment) for experiment in experiments}
    counts = Counter(form for own in forms.values() for form in own)
    return {experiment: next((form for form in own if counts[form] == 1), own[-1]) for experiment, own in forms.items()}


def _forms(experiment: str) -> list[str]:
    """The names of an experiment, short to long.

    >>> _forms("nets/mine.py:deep"), _forms("digits")
    (['deep', 'mine.py:deep', 'nets/mine.py:deep'], ['digits'])
    """
    file, _, name = experiment.rpartition(":")
    if not name or not file.endswith(".py"):
        return [experiment]
    parts = file.split("/")
    return [name, *("/".join(parts[start:]) + f":{name}" for start in reversed(range(len(parts))))]


def _slug(name: str, taken: set[str]) -> str:
    """A name for anchors and files.

    >>> _slug("my/nets.py:deep <one>", set()), _slug("digits", {"digits"}), _slug("?", set())
    ('my-nets-py-deep-one', 'digits-2', 'experiment')
    """
    base = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60] or "experiment"
    names = (base if index == 1 else f"{base}-{index}" for index in _numbers())
    return next(candidate for candidate in names if candidate not in taken)


def _numbers() -> Iterator[int]:
    number = 0
    while True:
        number += 1
        yield number


@cache
def _template() -> Any:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=lambda value: printable(value) if type(value) is str else value,  # Markup is a subclass of str
    )
    return environment.from_string(files(__package__).joinpath("page.html.jinja").read_text(encoding="utf-8"))
