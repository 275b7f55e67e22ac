"""The Optuna study that all workers of a sweep share: in a journal file by default, or in a database."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from inface.lab.errors import ArgumentError, LabError
from inface.lab.files import writing

if TYPE_CHECKING:
    from optuna.study import Study

Direction = Literal["maximize", "minimize"]

__all__ = ["Direction", "Place", "open_study"]


@dataclass(frozen=True)
class Place:
    """The place of a study: a folder or the URL of a database, and a name.

    >>> Place("runs/sweep", "mnist-mlp").is_url, Place("postgresql://host/studies", "mnist-mlp").is_url
    (False, True)
    """

    storage: str
    name: str

    @property
    def is_url(self) -> bool:
        return "://" in self.storage

    @property
    def shown(self) -> str:
        """The storage, with the password of a URL hidden."""
        if not self.is_url:
            return self.storage
        from sqlalchemy.engine import make_url

        return make_url(self.storage).render_as_string(hide_password=True)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the folder for this process. A database is not locked: duplicate trials are sorted out later."""
        from filelock import FileLock

        if self.is_url:
            yield
            return
        try:
            Path(self.storage).mkdir(parents=True, exist_ok=True)
            held = FileLock(Path(self.storage) / ".study.lock").acquire()
        except OSError as error:
            raise ArgumentError(f"{self.storage}: cannot be used as a study folder: {error.strerror}") from None
        with held:
            yield

    @contextmanager
    def reached(self) -> Iterator[None]:
        """Turn an error of the storage into one line, without the password."""
        import optuna
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except (optuna.exceptions.StorageInternalError, SQLAlchemyError) as error:
            reason = " ".join(str(error).split()).replace(self.storage, "it")
            raise LabError(f"the study {self.name} cannot be reached: {reason}") from None


def open_study(place: Place, direction: Direction, identity: dict[str, Any]) -> Study:
    """Open the study, or create it. An error if it has another identity.

    Args:
        place: the place of the study.
        direction: ``"maximize"`` or ``"minimize"``.
        identity: what the study is for, as plain data: settings, grid, version.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with place.reached(), place.alone():
        storage = _database(place.storage) if place.is_url else _journal(Path(place.storage) / "study.journal")
        study = optuna.create_study(storage=storage, study_name=place.name, direction=direction, load_if_exists=True)
        found = study.user_attrs.get("identity")
        if found is None:
            study.set_user_attr("identity", identity)
        elif told := _differences(found, identity):
            raise ArgumentError(
                f"{place.shown}: the study {place.name} belongs to another sweep ({told}); "
                f"choose another --out or --study"
            )
    return study


def _differences(found: Any, wanted: Any, name: str = "") -> str:
    """The differences between two identities, leaf by leaf; a None counts as missing."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        keys = sorted({*found, *wanted})
        told = (_differences(found.get(key), wanted.get(key), f"{name} {key}".strip()) for key in keys)
        return "; ".join(text for text in told if text)
    return "" if found == wanted else f"{name} {found!r}, wanted {wanted!r}"


def _database(url: str) -> Any:
    import optuna
    from optuna.storages import RDBStorage
    from sqlalchemy.exc import SQLAlchemyError

    try:
        try:
            storage = RDBStorage(url)
        except SQLAlchemyError:  # another process may be creating the same tables
            time.sleep(1.0)
            storage = RDBStorage(url)
        _add_missing_indexes(storage)
    except ImportError as error:
        driver = getattr(error.__cause__, "name", None) or error
        raise LabError(f"{url.partition('://')[0]}:// needs a Python package that is not installed: {driver}") from None
    except (optuna.exceptions.OptunaError, SQLAlchemyError, ValueError, OSError) as error:
        reason = " ".join(str(error).split()).replace(url, "it")
        raise LabError(f"the study cannot be opened: {reason}") from None
    return storage


def _add_missing_indexes(storage: Any) -> None:
    """Create the indexes that are missing because a process was killed after it created a table.

    Optuna creates missing tables, but not missing indexes. Without the unique index on names, a study is created twice.
    """
    from optuna.storages._rdb.models import BaseModel
    from sqlalchemy import inspect
    from sqlalchemy.exc import SQLAlchemyError

    for table in BaseModel.metadata.sorted_tables:
        there = {index["name"] for index in inspect(storage.engine).get_indexes(table.name)}
        for index in table.indexes:
            if index.name not in there:
                try:
                    index.create(storage.engine, checkfirst=True)
                except SQLAlchemyError:  # another process has just created it
                    if index.name not in {known["name"] for known in inspect(storage.engine).get_indexes(table.name)}:
                        raise


def _journal(file: Path) -> Any:
    """A journal whose errors name the file."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    class Backend(JournalFileBackend):
        def read_logs(self, log_number_from: int) -> Generator[dict[str, Any]]:
            read = log_number_from
            try:
                for log in super().read_logs(log_number_from):
                    read += 1
                    yield log
            except ValueError as error:
                raise LabError(f"{file}: line {read + 1} is not JSON: {error}") from None

        def append_logs(self, logs: list[dict[str, Any]]) -> None:
            with writing(file):
                super().append_logs(logs)

    try:
        return JournalStorage(Backend(str(file), lock_obj=_lock(file)))
    except OSError as error:
        raise LabError(f"{file}: cannot be opened: {error.strerror}") from None


def _lock(file: Path) -> Any:
    """The lock of a journal: a lock of the operating system, which frees it when a process is killed."""
    from filelock import FileLock
    from optuna.storages.journal import JournalFileOpenLock

    class Lock(JournalFileOpenLock):
        def __init__(self) -> None:
            super().__init__(str(file))
            self.lock = FileLock(f"{file}.lock")

        def acquire(self) -> bool:
            self.lock.acquire()
            try:
                _mend(file)
            except BaseException:
                self.lock.release()
                raise
            return True

        def release(self) -> None:
            self.lock.release()

    return Lock()


def _mend(file: Path) -> None:
    """Cut off an incomplete last line, left by a kill or a full disk: the next record would be appended to it."""
    with file.open("ab+") as journal:
        if journal.tell() == 0:
            return
        journal.seek(-1, os.SEEK_END)
        if journal.read(1) != b"\n":
            journal.truncate(file.read_bytes().rfind(b"\n") + 1)
