"""Checkpoints: nested plain data with tensors, in one safetensors file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from inface.lab.errors import LabError
from inface.lab.files import read_tensors, write_tensors

__all__ = ["load", "save"]


def save(path: Path, data: Any) -> None:
    """Write nested dicts, lists, numbers, strings, None and tensors, atomically.

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(Path(folder, "state"), {"step": 3, "state": {0: {"phase": 1, "buffer": torch.ones(2)}}})
    ...     load(Path(folder, "state"))
    {'step': 3, 'state': {0: {'phase': 1, 'buffer': tensor([1., 1.])}}}
    """
    tensors: dict[str, Tensor] = {}
    packed = json.dumps(_packed(data, tensors))
    write_tensors(path, tensors, {"data": packed})


def load(path: Path) -> Any:
    """Read a file written by :func:`save`; tuples come back as lists."""
    tensors, metadata = read_tensors(path)
    try:
        return _unpacked(json.loads(metadata["data"]), tensors)
    except (KeyError, ValueError, TypeError) as error:
        raise LabError(f"{path}: is not a checkpoint: {error!r}") from None


# In JSON: a tensor is ["tensor", name], a dict ["dict", [key, value], ...] (keys may be numbers), a list ["list", ...].


def _packed(data: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(data, Tensor):
        name = str(len(tensors))
        tensors[name] = data
        return ["tensor", name]
    if isinstance(data, dict):
        return ["dict", *([key, _packed(value, tensors)] for key, value in data.items())]
    if isinstance(data, list | tuple):
        return ["list", *(_packed(value, tensors) for value in data)]
    if data is None or isinstance(data, bool | int | float | str):
        return data
    raise TypeError(f"wanted plain data or a tensor, got {type(data).__name__}")


def _unpacked(data: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(data, list):
        return data
    kind, *items = data
    if kind == "tensor":
        return tensors[items[0]]
    if kind == "dict":
        return {key: _unpacked(value, tensors) for key, value in items}
    if kind == "list":
        return [_unpacked(value, tensors) for value in items]
    raise ValueError(f"unknown kind {kind!r}")
