"""Write files atomically, and read them with errors that name the file."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from inface import atomic

from .errors import LabError

__all__ = [
    "each_line",
    "read_json",
    "read_lines",
    "read_tensors",
    "replacing",
    "write_json",
    "write_tensors",
    "write_text",
    "writing",
]


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """:func:`inface.atomic.replacing`, which also creates the folders and raises a LabError.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder, "new", "numbers.txt")) as partial:
    ...         _ = partial.write_text("1 2 3")
    ...     Path(folder, "new", "numbers.txt").read_text()
    '1 2 3'
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic.replacing(path) as partial:
            yield partial


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError during writing, such as a full disk, into a LabError that names the file.

    >>> with writing(Path("log.txt")):
    ...     raise OSError(28, "No space left on device")
    Traceback (most recent call last):
    inface.lab.errors.LabError: log.txt: cannot be written: No space left on device
    """
    try:
        yield
    except OSError as error:
        raise LabError(f"{path}: cannot be written: {error.strerror or error}") from None


def write_text(path: Path, text: str) -> None:
    """Write a text file, atomically."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, data: Any) -> None:
    """Write plain data as JSON, atomically."""
    write_text(path, json.dumps(data, indent=1, allow_nan=False) + "\n")


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write tensors as safetensors, atomically."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    with replacing(path) as partial:
        try:
            save_file(_apart(tensors), partial, metadata)
        except SafetensorError as error:
            raise LabError(f"{path}: cannot be written: {error}") from None


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LabError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise LabError(f"{path}: is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise LabError(f"{path}: wanted a JSON object, got {type(data).__name__}")
    return data


def each_line(path: Path, size: int | None = None) -> Iterator[dict[str, Any]]:
    """The objects of a JSON Lines file, or of its first ``size`` bytes. An incomplete last line is skipped."""
    left = math.inf if size is None else size
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                left -= len(line)
                if left < 0 or not line.endswith(b"\n"):
                    break
                yield _record(path, number, line)
    except OSError as error:
        raise LabError(f"{path}: cannot be read: {error.strerror}") from None


def read_lines(path: Path, size: int | None = None) -> list[dict[str, Any]]:
    """The objects of :func:`each_line`, as a list."""
    return list(each_line(path, size))


def _record(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise LabError(f"{path}: line {number} is not UTF-8 text: {error}") from None
    except (ValueError, RecursionError) as error:
        raise LabError(f"{path}: line {number} is not JSON: {error}") from None
    if not isinstance(record, dict):
        raise LabError(f"{path}: line {number}: wanted a JSON object, got {type(record).__name__}")
    return record


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a safetensors file: its tensors, and its metadata."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            names = file.keys()
            return {name: file.get_tensor(name) for name in names}, file.metadata() or {}
    except OSError as error:
        raise LabError(f"{path}: cannot be read: {error.strerror or error}") from None
    except SafetensorError as error:
        raise LabError(f"{path}: is not a safetensors file: {error}") from None


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as safetensors wants them: contiguous, and no two in the same storage. Others are copied."""
    apart: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.detach().clone() if place in taken else tensor.detach()
        apart[name] = apart[name].contiguous()
        taken.add(place)
    return apart
