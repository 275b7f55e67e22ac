"""Sparse models out: smaller networks, faster layers, smaller files."""

from typing import TYPE_CHECKING

from inface.lazy import exports

if TYPE_CHECKING:
    pass

__all__: list[str] = []

__getattr__, __dir__ = exports(__name__, {})
