"""Files that are whole or not there, and readers that name what is damaged."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from .errors import LabError

__all__ = [
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
    """A temporary file beside ``path`` that takes its place at the end, or vanishes if anything goes wrong.

    Whoever reads ``path``, even after a crash or a kill, finds the old contents or all of the new.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "numbers.txt")
    ...     with replacing(path) as partial:
    ...         _ = partial.write_text("1 2 3")
    ...     path.read_text(), [file.name for file in Path(folder).iterdir()]
    ('1 2 3', ['numbers.txt'])
    """
    path = path.resolve()  # what a link points to is replaced, not the link
    if path.exists() and not path.is_file():
        raise LabError(f"{path}: cannot be written: it is not a regular file")
    partial: Path | None = None
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
            os.close(handle)
            partial = Path(name)
            yield partial
            with partial.open("rb+") as file:
                os.fsync(file.fileno())
            partial.chmod(0o666 & ~_umask())
            partial.replace(path)
    finally:
        if partial is not None:
            partial.unlink(missing_ok=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What goes wrong while a file is written, a full disk say, as an error that names it.

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
    """Write a text file, all at once."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, data: Any) -> None:
    """Write plain data as JSON, all at once."""
    write_text(path, json.dumps(data, indent=1, allow_nan=False) + "\n")


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write tensors as safetensors, all at once."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    copies = {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
    with replacing(path) as partial:
        try:
            save_file(copies, partial, metadata)
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


def read_lines(path: Path, size: int | None = None) -> list[dict[str, Any]]:
    """Read a file with one JSON object a line, or its first ``size`` bytes; a last line that was cut off does not count."""
    try:
        text = path.read_bytes()[:size].decode()
    except OSError as error:
        raise LabError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise LabError(f"{path}: is not UTF-8 text: {error}") from None
    records = []
    for number, line in enumerate(text[: text.rfind("\n") + 1].splitlines(), 1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise LabError(f"{path}: line {number} is not JSON: {error}") from None
        if not isinstance(record, dict):
            raise LabError(f"{path}: line {number}: wanted a JSON object, got {type(record).__name__}")
        records.append(record)
    return records


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a safetensors file: its tensors, and its metadata."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118 - no mapping
    except OSError as error:
        raise LabError(f"{path}: cannot be read: {error.strerror or error}") from None
    except SafetensorError as error:
        raise LabError(f"{path}: is not a safetensors file: {error}") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
