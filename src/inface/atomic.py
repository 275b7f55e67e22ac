"""Files that are there whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["remove_partial", "replacing"]

_PARTIAL = re.compile(r"\.(?P<name>.+)\.[a-z0-9_]{8}\.part", re.DOTALL)


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A file to write, of the same name, that takes the place of ``path`` at the end, or vanishes if anything goes wrong.

    Whoever reads ``path``, even after a kill or a loss of power, finds the old contents or all of the new. Meanwhile the
    file is in a folder ``.NAME.XXXXXXXX.part`` beside it, with the temporary files of whoever writes it (safetensors has
    some). A kill leaves that folder; :func:`remove_partial` removes it.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "numbers.txt")
    ...     with replacing(path) as partial:
    ...         _ = partial.write_text("1 2 3")
    ...     path.read_text(), [file.name for file in Path(folder).iterdir()]
    ('1 2 3', ['numbers.txt'])
    """
    target = Path(path).resolve()  # what a link points to is replaced, not the link
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "it is not a regular file", str(target))
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent))
    try:
        partial = folder / target.name
        partial.touch()
        mode = partial.stat().st_mode
        yield partial
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        partial.chmod(mode)  # some writers leave a file that nobody else may read
        partial.replace(target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    _sync(target.parent)


def remove_partial(folder: Path, name: str) -> None:
    """Remove what killed writes of a file left beside it; nobody may be writing it.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Path(folder, ".model.onnx.0a1b2c3d.part").mkdir()
    ...     remove_partial(Path(folder), "model.onnx")
    ...     list(Path(folder).iterdir())
    []
    """
    for left in folder.iterdir():
        match = _PARTIAL.fullmatch(left.name)
        if match and match["name"] == name and not left.is_symlink():
            shutil.rmtree(left) if left.is_dir() else left.unlink()


def _sync(folder: Path) -> None:
    """Have the names in a folder on the disk; where folders cannot be opened, the system sees to it."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
