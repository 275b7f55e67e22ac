"""Grids of settings: the paper's, a quick one, or from a file."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inface.lab.errors import ArgumentError, suggestion
from inface.lab.runs.kinds import Number, Part, part
from inface.lab.runs.settings import FRANK_WOLFE, Method, Settings, declarations, declared

__all__ = ["MOST", "Grid", "applied", "counted", "load_grid", "paper_grid", "quick_grid", "search_space", "setting_of"]

MOST = 10_000  # settings in a sweep
MOST_BYTES = 200_000  # size of a grid file
DEPTH = 3  # nesting of a grid file: names, lists of values, values that are lists


@dataclass(frozen=True)
class Grid:
    """Lists of values; a sweep tries every combination, at most 10,000.

    >>> len(Grid({"smoothness": [1, 4], "radius 1": [1, 5], "radius 2": [1, 5, 10]}).points())
    12
    >>> Grid({f"radius {layer}": [1, 5, 10, 50, 100] for layer in range(1, 11)})
    Traceback (most recent call last):
    inface.lab.errors.ArgumentError: a grid of 9,765,625 settings; wanted at most 10,000 (--search N tries N)
    """

    axes: Mapping[str, Sequence[Any]]

    def __post_init__(self) -> None:
        _check_size(map(len, self.axes.values()))

    def points(self) -> list[dict[str, Any]]:
        """Every combination, the last axis fastest."""
        return [dict(zip(self.axes, values, strict=True)) for values in itertools.product(*self.axes.values())]


def paper_grid(method: Method, layers: int) -> Grid:
    """``L = 4^i`` for i from -1 to 6, and for every constrained layer a radius of 1, 5, 10, 50 or 100.

    >>> len(paper_grid("sfw-if", 2).points()), len(paper_grid("sgd", 2).points())
    (200, 8)
    """
    axes: dict[str, list[float]] = {"smoothness": [4.0**i for i in range(-1, 7)]}
    if method in FRANK_WOLFE:
        axes |= {f"radius {layer}": [1.0, 5.0, 10.0, 50.0, 100.0] for layer in range(1, layers + 1)}
    return Grid(axes)


def quick_grid(method: Method, layers: int) -> Grid:
    """A corner of the paper's grid, for a first look.

    >>> len(quick_grid("sfw", 2).points())
    8
    """
    if method == "sparse":
        return Grid({"lr": [0.05, 0.1, 0.2]})
    axes: dict[str, list[float]] = {"smoothness": [1.0, 4.0]}
    if method in FRANK_WOLFE:
        axes |= {f"radius {layer}": [1.0, 10.0] for layer in range(1, layers + 1)}
    return Grid(axes)


def search_space(method: Method, layers: int) -> dict[str, tuple[float, float]]:
    """The search space: names and ranges, sampled log-uniformly.

    >>> sorted(search_space("sfw", 2)), sorted(search_space("sgd", 2))
    (['1 - momentum', 'constrained_lr', 'lr', 'radius 1', 'radius 2'], ['1 - momentum', 'lr'])
    """
    space = {"lr": (0.01, 2.0)}
    if method in FRANK_WOLFE:
        space["constrained_lr"] = (0.05, 50.0)
        space |= {f"radius {layer}": (0.1, 100.0) for layer in range(1, layers + 1)}
    return space | {"1 - momentum": (0.005, 1.0)}


def setting_of(axis: str) -> str:
    """The setting that an axis of a grid or a search changes.

    >>> setting_of("smoothness"), setting_of("radius 2"), setting_of("1 - momentum"), setting_of("epochs")
    ('lr', 'radius', 'momentum', 'epochs')
    """
    if axis.startswith("radius "):
        return "radius"
    return {"smoothness": "lr", "1 - momentum": "momentum"}.get(axis, axis)


def applied(base: Settings, point: Mapping[str, Any], layers: int) -> Settings:
    """Settings with the values of a point of a grid.

    >>> settings = applied(Settings("digits"), {"smoothness": 4, "radius 1": 1.0, "radius 2": 10.0}, 2)
    >>> settings.lr, settings.radius
    (0.125, (1.0, 10.0))
    """
    changes: dict[str, Any] = {}
    radii: dict[int, float] = {}
    known = _known(layers)
    for name, value in point.items():
        if name not in known:  # from an untrusted study
            raise ArgumentError(f"a sweep cannot try {name}; wanted one of {', '.join(known)}")
        if name == "smoothness":
            if not Number(above=0).accepts(value):
                raise ArgumentError(f"smoothness: wanted a number > 0, got {value}")
            changes["lr"] = 1 / (2 * value)
        elif name.startswith("radius "):
            radii[int(name.removeprefix("radius "))] = value
        elif name == "radius":
            changes["radius"] = list(value) if isinstance(value, list | tuple) else [value]
        else:
            changes[name] = value
    if radii:
        if sorted(radii) != list(range(1, layers + 1)):
            wanted = ", ".join(f"radius {layer}" for layer in range(1, layers + 1))
            raise ArgumentError(f"wanted {wanted}: one per constrained layer")
        changes["radius"] = [radii[layer] for layer in sorted(radii)]
    return Settings.from_dict({**base.to_dict(), **changes})


def load_grid(file: Path, base: Settings, layers: int) -> Grid:
    """A grid from a YAML (or JSON) file of lists.

    Unknown, unused or repeated settings and repeated values are errors; the message names the line.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "grid.yaml")
    ...     _ = path.write_text("smoothness: [1, 4]\\nradius: [[1, 10], [0.5, 10]]\\nmomentum: [0, 0.9]\\n")
    ...     len(load_grid(path, Settings("digits"), 2).points())
    8
    """
    import yaml  # type: ignore[import-untyped]

    lines = _lines(file)
    try:
        _check_size(len(node.value) for _, node in lines if isinstance(node, yaml.SequenceNode))
    except ArgumentError as error:
        raise ArgumentError(f"{file}: {error}") from None
    axes: dict[str, list[Any]] = {}
    for key, node in lines:
        if not isinstance(key, yaml.ScalarNode):
            raise _wrong(file, key, "wanted the name of a setting")
        if key.value in axes:
            raise _wrong(file, key, f"{key.value} is there twice")
        for other in axes:
            if setting_of(key.value) == setting_of(other) and not _are_parts(key.value, other):
                told = ", lr = 1 / (2 L)" if "lr" in (key.value, other) else ""
                raise _wrong(file, key, f"{other} and {key.value} set the same thing{told}; wanted one of them")
        axes[key.value] = _axis(file, key, node, base, layers)
    grid = Grid(axes)
    try:
        applied(base, grid.points()[0], layers)
    except ArgumentError as error:  # about radii; everything else was checked line by line
        first = next(key for key, _ in lines if key.value.startswith("radius "))
        raise _wrong(file, first, str(error)) from None
    return grid


def _lines(file: Path) -> list[tuple[Any, Any]]:
    """The names and values of a grid file as YAML nodes, which know their lines."""
    import yaml

    try:
        if (size := file.stat().st_size) > MOST_BYTES:
            raise ArgumentError(f"{file}: has {size:,} bytes; wanted a grid file of at most {MOST_BYTES:,}")
        text = file.read_text(encoding="utf-8")
        _refuse_unfolding(file, text)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except OSError as error:
        raise ArgumentError(f"{file}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{file}: is not YAML: {' '.join(str(error).split())}") from None
    wanted = "wanted lists of values, such as smoothness: [1, 4, 16]"
    if root is None or not root.value:
        raise ArgumentError(f"{file}: is empty; {wanted}")
    if not isinstance(root, yaml.MappingNode):
        found = "list" if isinstance(root, yaml.SequenceNode) else "value"
        raise _wrong(file, root, f"{wanted}; got a {found} without a name")
    return list(root.value)


def _refuse_unfolding(file: Path, text: str) -> None:
    """Raise an error if lists are nested too deep, also through aliases; aliases are not expanded."""
    import yaml

    anchors: dict[str, tuple[int, int]] = {}  # the depth and the number of values behind each anchor
    opened: list[tuple[Any, int, int]] = []  # open lists: their start, and their depth and values so far

    def closed(event: Any) -> tuple[Any, int, int]:
        if not isinstance(event, yaml.AliasEvent):
            return opened.pop() if isinstance(event, yaml.CollectionEndEvent) else (event, -1, 1)
        if event.anchor not in anchors:
            raise _wrong(file, event, f"*{event.anchor}: contains itself, or is not defined")
        depth, values = anchors[event.anchor]
        return event, depth - 1, values

    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            opened.append((event, 0, 0))
            if len(opened) > DEPTH:
                raise _wrong(file, event, f"lists in lists, {len(opened)} deep or more; wanted at most {DEPTH}")
        elif isinstance(event, yaml.NodeEvent | yaml.CollectionEndEvent):
            begin, inside, values = closed(event)
            anchors.setdefault(begin.anchor, (inside + 1, values))
            if len(opened) + inside + 1 > DEPTH:
                raise _wrong(file, begin, f"lists in lists, {counted(values)} values here; wanted lists of numbers")
            if opened:
                outer, deepest, total = opened[-1]
                opened[-1] = outer, max(deepest, inside + 1), total + values


def _check_size(lengths: Iterable[int]) -> None:
    """Raise an error if a grid has too many settings; they are only counted."""
    if (size := math.prod(lengths)) > MOST:
        raise ArgumentError(f"a grid of {counted(size)} settings; wanted at most {MOST:,} (--search N tries N)")


def counted(number: int) -> str:
    """A number with all its digits, if they fit in a line.

    >>> counted(2**40), counted(10**400)
    ('1,099,511,627,776', 'more than 10^100')
    """
    return f"{number:,}" if number <= 10**100 else "more than 10^100"


def _known(layers: int) -> list[str]:
    """The names that a grid may have: settings, the paper's L, and the radius of each constrained layer."""
    settings = [setting.name for setting in declarations() if setting.in_grid]
    return [*settings, "smoothness", *(f"radius {layer}" for layer in range(1, layers + 1))]


def _are_parts(one: str, other: str) -> bool:
    """Whether two axes are the radii of two layers."""
    return one.startswith("radius ") and other.startswith("radius ")


def _axis(file: Path, key: Any, node: Any, base: Settings, layers: int) -> list[Any]:
    """The values of one line of a grid file, each checked."""
    import yaml

    known = _known(layers)
    if key.value not in known:
        guess = suggestion(str(key.value), known) or f"; wanted one of {', '.join(known)}"
        raise _wrong(file, key, f"there is no setting {key.value}{guess}")
    if base.method not in declared(setting_of(key.value)).read_by:
        raise _wrong(file, key, f"--method {base.method} does not use {key.value}")
    if not isinstance(node, yaml.SequenceNode) or not node.value:
        raise _wrong(file, key, f"{key.value}: wanted a list of at least one value")
    values: dict[str, Any] = {}  # keyed by the resolved settings of a run, to find duplicates
    for item in node.value:
        try:
            value = yaml.SafeLoader("").construct_object(item, deep=True)
            str(value)
        except (yaml.YAMLError, ValueError):  # an impossible date, a number with too many digits
            raise _wrong(file, item, f"{key.value}: is not plain YAML") from None
        percent = isinstance(declared(setting_of(key.value)).kind, Part)
        value = _as_number(value, part if percent else float)  # 1e-3 or 5%, which YAML takes for words
        try:
            plain = json.dumps(_resolved(base, key.value, value, layers).to_dict(), sort_keys=True, default=str)
        except ArgumentError as error:
            raise _wrong(file, item, str(error)) from None
        settings = str(json.loads(plain, parse_int=float))  # 8 is 8.0
        if settings in values:
            same = values[settings]
            told = "there twice" if value == same else f"the same as {same}; wanted one of them"
            raise _wrong(file, item, f"{key.value}: {value} is {told}")
        values[settings] = value
    return list(values.values())


def _as_number(value: Any, parse: Callable[[str], float]) -> Any:
    if isinstance(value, list):
        return [_as_number(entry, parse) for entry in value]
    try:
        return parse(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _wrong(file: Path, node: Any, message: str) -> ArgumentError:
    return ArgumentError(f"{file}:{node.start_mark.line + 1}: {message}")


def _resolved(base: Settings, name: str, value: Any, layers: int) -> Settings:
    """The resolved settings of a run with this value; an error if no run can have it."""
    from inface.lab.runs.setup import resolve

    if name.startswith("radius "):
        name, value = "radius", [value] * layers
    return resolve(applied(base, {name: value}, layers))
