"""The study that all workers of a sweep share: no setting is lost, none is counted twice, whoever is killed when.

Optuna keeps it: in a journal file by default, which any number of processes may share, or in a database. The settings of
a grid are trials that wait in it; a worker takes one by changing its state, which only one can. A trial whose worker
died is given up and its setting waits again.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from inface.lab.errors import ArgumentError, LabError

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

Direction = Literal["maximize", "minimize"]

__all__ = ["ALIVE", "Direction", "Place", "audit", "counted", "myself", "open_study", "revive", "take"]

ALIVE = 20.0  # seconds between two signs of life of a worker
DEAD = 120.0  # without one, a worker on another machine is dead


@dataclass(frozen=True)
class Place:
    """Where a study is: a folder, or the URL of a database, and its name there.

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
        """The place without its password."""
        if not self.is_url:
            return self.storage
        from sqlalchemy.engine import make_url

        return make_url(self.storage).render_as_string(hide_password=True)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """For one process at a time of those that share the folder; with a database, :func:`take` settles what is doubled."""
        from filelock import FileLock

        if self.is_url:
            yield
            return
        with FileLock(Path(self.storage) / ".study.lock"):
            yield


def open_study(place: Place, direction: Direction, identity: dict[str, Any]) -> Study:
    """The study, made if it is not there; one that was made for something else is refused.

    Args:
        place: where it is.
        direction: ``"maximize"`` or ``"minimize"``.
        identity: what it must have been made for: plain data.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if not place.is_url:
        Path(place.storage).mkdir(parents=True, exist_ok=True)
    with place.alone():
        storage = _storage(place)
        study = optuna.create_study(storage=storage, study_name=place.name, direction=direction, load_if_exists=True)
        found = study.user_attrs.get("identity")
        if found is None:
            study.set_user_attr("identity", identity)
        elif told := _differences(found, identity):
            raise ArgumentError(
                f"{place.shown}: the study {place.name} was made for something else ({told}); another --out begins another"
            )
    return study


def audit(study: Study, place: Place, settings: dict[str, dict[str, Any]]) -> None:
    """See to it that every setting is done, running or waiting.

    Args:
        study: the study.
        place: where it is.
        settings: from a key to the parameters of a trial.
    """
    with place.alone():
        present = {trial.user_attrs.get("key") for trial in study.get_trials(deepcopy=False) if not _failed(trial)}
        for key, parameters in settings.items():
            if key not in present:
                study.enqueue_trial(parameters, user_attrs={"key": key})


def take(study: Study) -> Trial | None:
    """The next trial that waits, or nothing if none does."""
    import optuna

    while any(trial.state == optuna.trial.TrialState.WAITING for trial in study.get_trials(deepcopy=False)):
        trial = study.ask()
        key = trial.user_attrs.get("key")
        if key is None:  # another worker took the last one; this is a trial of nothing
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            return None
        if _elsewhere(study, trial.number, key):
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            continue
        trial.set_user_attr("worker", myself())
        return trial
    return None


def revive(study: Study) -> int:
    """Give up the trials whose workers are dead; how many there were. :func:`audit` lets their settings wait again."""
    import optuna

    given_up = 0
    for trial in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
        if _is_dead(trial):
            try:
                study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
            except (ValueError, optuna.exceptions.UpdateFinishedTrialError):
                continue  # somebody else was first
            given_up += 1
    return given_up


def counted(study: Study) -> list[FrozenTrial]:
    """The trials that count: of each setting, the first that came to an end."""
    import optuna

    ended = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED)
    first: dict[Any, FrozenTrial] = {}
    for trial in study.get_trials(deepcopy=False, states=ended):
        first.setdefault(trial.user_attrs.get("key", trial.number), trial)
    return list(first.values())


def myself() -> dict[str, Any]:
    """This process, with a sign of life."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "started": _started(os.getpid()), "seen": time.time()}


def _differences(found: Any, wanted: Any, name: str = "") -> str:
    """What differs between two identities, leaf by leaf; what is None is as if it were not there."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        keys = sorted({*found, *wanted})
        told = (_differences(found.get(key), wanted.get(key), f"{name} {key}".strip()) for key in keys)
        return "; ".join(text for text in told if text)
    return "" if found == wanted else f"{name} {found!r}, wanted {wanted!r}"


def _failed(trial: FrozenTrial) -> bool:
    import optuna

    return trial.state == optuna.trial.TrialState.FAIL


def _elsewhere(study: Study, number: int, key: str) -> bool:
    """Whether an earlier trial of the same setting is running or done."""
    import optuna

    busy = (optuna.trial.TrialState.RUNNING, optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED)
    return any(
        trial.number < number and trial.user_attrs.get("key") == key
        for trial in study.get_trials(deepcopy=False, states=busy)
    )


def _is_dead(trial: FrozenTrial) -> bool:
    worker = trial.user_attrs.get("worker")
    if worker is None:  # taken, and killed before it could say by whom; or just now
        begun = trial.datetime_start
        return begun is not None and time.time() - begun.timestamp() > DEAD / 10
    if worker["host"] == socket.gethostname():
        return bool(_started(worker["pid"]) != worker["started"])
    return bool(time.time() - worker["seen"] > DEAD)


def _started(pid: int) -> str | None:
    """When a process of this machine was started, in the words of the machine; nothing if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except OSError:
        try:
            os.kill(pid, 0)
        except OSError:
            return None
        return "unknown"


def _storage(place: Place) -> Any:
    import optuna
    from optuna.storages import JournalStorage, RDBStorage
    from optuna.storages.journal import JournalFileBackend
    from sqlalchemy.exc import SQLAlchemyError

    try:
        if place.is_url:
            return RDBStorage(place.storage)
        file = str(Path(place.storage) / "study.journal")
        return JournalStorage(JournalFileBackend(file, lock_obj=_lock(file)))
    except (optuna.exceptions.OptunaError, SQLAlchemyError, ImportError, ValueError, OSError) as error:
        reason = " ".join(str(error).split()).replace(place.storage, "it")
        raise LabError(f"the study cannot be opened: {reason}") from None


def _lock(file: str) -> Any:
    """The lock of a journal: one that the system takes from a process that is killed, so that nobody waits for it."""
    from filelock import FileLock
    from optuna.storages.journal import JournalFileOpenLock

    class Lock(JournalFileOpenLock):
        def __init__(self) -> None:
            super().__init__(file)
            self.lock = FileLock(f"{file}.lock")

        def acquire(self) -> bool:
            self.lock.acquire()
            return True

        def release(self) -> None:
            self.lock.release()

    return Lock()
