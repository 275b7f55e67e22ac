"""The colours of methods: safe for colour-blind readers, legible on white and on near-black."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .groups import method_name
from .svg import Marker

__all__ = ["NEGATIVE", "POSITIVE", "Labelled", "Look", "look"]

POSITIVE, NEGATIVE = "#e0591b", "#2b83d6"

_COLOURS = {
    "sfw-if": "#e0591b",
    "sfw": "#2b83d6",
    "sgd": "#83868c",
    "sparse": "#0f9d7a",
    "gradual": "#1aa0bd",
    "rigl": "#b5598f",
    "set": "#a8840c",
    "prune": "#7c6bd6",
    "proximal": "#9a6a4f",
}
_OTHERS = ("#1aa0bd", "#b5598f", "#a8840c", "#7c6bd6", "#9a6a4f")
_MARKERS: dict[str, Marker] = {
    "sfw-if": "circle",
    "sfw": "square",
    "sgd": "triangle",
    "sparse": "star",
    "gradual": "diamond",
    "rigl": "wedge",
    "set": "hexagon",
    "prune": "plus",
    "proximal": "pentagon",
}
_OTHER_MARKERS: tuple[Marker, ...] = ("diamond", "wedge", "hexagon", "plus", "pentagon")
_DASHES = ("", "5 2", "1.5 1.8", "6 2 1.5 2")
_LEGIBLE = 8  # lines of a legend; with more, only methods are distinguished, not their settings


@dataclass(frozen=True)
class Look:
    """The style of a group and its label in the legend."""

    label: str
    colour: str
    dash: str
    marker: Marker


class Labelled(Protocol):
    """What is drawn in one style: a method, and a label that tells its settings."""

    @property
    def method(self) -> str: ...

    @property
    def label(self) -> str: ...


def look(group: Labelled, groups: Sequence[Labelled]) -> Look:
    """The style of a group: the colour is that of the method, the dashes distinguish its settings."""
    labels = list(dict.fromkeys(other.label for other in groups if other.method == group.method))
    everything = {other.label for other in groups}
    label, dash = group.label, _DASHES[labels.index(group.label) % len(_DASHES)]
    if len(everything) > _LEGIBLE:
        label, dash = method_name(group.method), ""
    strange = list(dict.fromkeys(other.method for other in groups if other.method not in _COLOURS))
    if group.method in _COLOURS:
        return Look(label, _COLOURS[group.method], dash, _MARKERS[group.method])
    index = strange.index(group.method) % len(_OTHERS)
    return Look(label, _OTHERS[index], dash, _OTHER_MARKERS[index])
