"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["replacing"]


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A file beside ``path``, with the same ending, that takes its place at the end, or vanishes if anything goes wrong.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder, "model.onnx")) as partial:
    ...         _ = partial.write_text("contents")
    ...     [file.name for file in Path(folder).iterdir()]
    ['model.onnx']
    """
    target = Path(path).resolve()  # what a link points to is replaced, not the link
    partial = target.with_name(f".{target.stem}.{os.getpid()}.partial{target.suffix}")
    try:
        partial.touch()
        mode = partial.stat().st_mode
        yield partial
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        partial.chmod(mode)  # some writers leave a file that nobody else may read
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
