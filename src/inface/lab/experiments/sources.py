"""Python files of your own experiments: the SHA-256 is checked before a file is imported."""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import CodeType, ModuleType

from inface.lab.errors import ArgumentError

__all__ = ["file_in", "load", "source_of"]


def file_in(experiment: str) -> Path | None:
    """The file of ``path/to/file.py:name``; None for a built-in name.

    >>> file_in("nets/mine.py:deep").as_posix(), file_in("digits")
    ('nets/mine.py', None)
    """
    file = experiment if experiment.endswith(".py") else experiment.rpartition(":")[0]
    return Path(file) if file.endswith(".py") else None


def source_of(experiment: str, wanted: str | None = None) -> str | None:
    """The SHA-256 of the file of an experiment; None for a built-in one. An error if another one is ``wanted``.

    >>> source_of("digits")
    >>> source_of("no-such-file.py:mine")
    Traceback (most recent call last):
    inface.lab.errors.ArgumentError: no-such-file.py: there is no such file
    """
    file = file_in(experiment)
    return None if file is None else hashlib.sha256(_contents(file, wanted)).hexdigest()


def load(file: Path, wanted: str | None = None) -> ModuleType:
    """Import the file. The bytes that were checked are executed, never Python's cached bytecode."""
    contents = _contents(file, wanted)
    path = file.resolve()
    digest = hashlib.sha256(bytes(path) + contents).hexdigest()
    key = f"inface_experiment_{path.stem}_{digest[:16]}"  # a file that was edited is another module
    if key in sys.modules:
        return sys.modules[key]
    spec = importlib.util.spec_from_file_location(key, path, loader=_Loader(key, str(path), contents))
    assert spec is not None and spec.loader is not None  # noqa: S101, PT018 - for the type checker
    module = importlib.util.module_from_spec(spec)
    sys.modules[key] = module
    paths = list(sys.path)
    if str(path.parent) not in paths:
        sys.path.insert(0, str(path.parent))  # so that the file can import its neighbours, as when Python runs it
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[key]
        sys.path[:] = paths
        raise
    return module


class _Loader(importlib.machinery.SourceFileLoader):
    """A loader that executes contents that are already read."""

    def __init__(self, name: str, path: str, contents: bytes) -> None:
        super().__init__(name, path)
        self.contents = contents

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = self.source_to_code(self.contents, self.get_filename(fullname))
        return code


def _contents(file: Path, wanted: str | None) -> bytes:
    try:
        if not file.is_file():
            raise ArgumentError(f"{file}: there is no such file")
        contents = file.read_bytes()
    except OSError as error:
        raise ArgumentError(f"{file}: cannot be read: {error.strerror}") from None
    found = hashlib.sha256(contents).hexdigest()
    if wanted is not None and found != wanted:
        raise ArgumentError(f"{file}: has changed: its SHA-256 is {found}, wanted {wanted}")
    return contents
