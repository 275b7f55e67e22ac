"""The trials of a study. No setting is lost or counted twice, even if workers are killed or suspended.

Each setting has a key, and one trial after another until one finishes. Trials wait in the study. A worker takes one by
changing its state, which only one worker can do, and sends heartbeats while it trains. If a worker dies, its trial is
failed and its setting waits again. A worker that was only suspended finds its trial failed when it wakes, and drops it:
Optuna does not allow changes to a finished trial (``UpdateFinishedTrialError``).
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .study import Place

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial, TrialState

__all__ = [
    "Agenda",
    "Judged",
    "audit",
    "counted",
    "hand_back",
    "held",
    "is_here",
    "key_in",
    "next_trial",
    "ranked",
    "revive",
    "take",
    "tell",
    "unreached",
    "wait_at",
]

ALIVE = 20.0  # seconds between two heartbeats of a worker
DEAD = 120.0  # seconds without a heartbeat after which a worker on another machine counts as dead
AGAIN = 60.0  # seconds before a setting that was handed back is tried again
PATIENCE = 1.0  # seconds between two looks for a free trial


@dataclass(frozen=True)
class Judged:
    """A setting and its value.

    Attributes:
        parameters: the parameters of its trials, except for the seed.
        value: the value of its trial; the mean, if it was tried with several seeds.
    """

    parameters: dict[str, Any]
    value: float


@dataclass(frozen=True)
class Agenda:
    """The settings to try: a known list, or a number of settings to sample.

    Attributes:
        settings: the parameters of a trial, by key.
        draws: the number of settings to sample, if there is no list.
    """

    settings: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    draws: int = 0

    def ended(self, study: Study) -> list[FrozenTrial]:
        """The trials that count, for the settings to try."""
        return [trial for trial in counted(study) if not self.settings or key_in(trial) in self.settings]

    def total(self, study: Study) -> int:
        """The number of settings to try."""
        return len(self.settings) or max(self.draws, len(_live(study)))

    def missing(self, study: Study) -> dict[str, dict[str, Any]]:
        """The settings that have no finished, running or waiting trial."""
        live = _live(study)
        if self.settings:
            return {key: parameters for key, parameters in self.settings.items() if key not in live}
        # Sampled settings whose worker died.
        first: dict[str, dict[str, Any]] = {}
        for trial in study.get_trials(deepcopy=False):
            if "key" in trial.user_attrs and key_in(trial) not in live:
                first.setdefault(key_in(trial), trial.params)
        return dict(list(first.items())[: max(0, self.draws - len(live))])


def next_trial(study: Study, place: Place, agenda: Agenda) -> Trial | None:
    """Wait for the next trial to work on; None when all settings have finished, on all machines."""
    while True:
        revive(study)
        audit(study, place, agenda)
        trial = take(study) or _draw(study, place, agenda.draws)
        if trial is not None:
            return trial
        if len(agenda.ended(study)) >= agenda.total(study):
            return None
        time.sleep(PATIENCE)


def audit(study: Study, place: Place, agenda: Agenda) -> None:
    """Enqueue every setting that is not finished, running, enqueued, just handed back, or waiting at a rung."""
    with place.alone():
        missing = agenda.missing(study)
        later = {key_in(trial) for trial in study.get_trials(deepcopy=False) if missing and _is_recent(trial)}
        later |= _at_rungs(study, agenda) if missing else set()
        for key, parameters in missing.items():
            if key not in later:
                study.enqueue_trial(parameters, user_attrs={"key": key})


def take(study: Study) -> Trial | None:
    """Take the next waiting trial; None if there is none."""
    import optuna

    waiting = optuna.trial.TrialState.WAITING
    while any(trial.state == waiting for trial in study.get_trials(deepcopy=False)):
        trial = study.ask()
        if "key" not in trial.user_attrs:  # another worker took the last one, and Optuna made an empty trial
            tell(study, trial, state=optuna.trial.TrialState.FAIL)
        elif _is_mine(study, trial):
            return trial
    return None


def revive(study: Study) -> int:
    """Fail the trials whose workers are dead; return their number. :func:`audit` enqueues their settings again."""
    import optuna

    given_up = 0
    for trial in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
        if _is_dead(trial):
            try:
                tell(study, trial.number, state=optuna.trial.TrialState.FAIL)
            except optuna.exceptions.UpdateFinishedTrialError:
                continue  # its worker has finished, or another process was first
            given_up += 1
    return given_up


def counted(study: Study) -> list[FrozenTrial]:
    """The trials that count: the first finished or pruned trial of each setting."""
    import optuna

    ended = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED)
    first: dict[str | int, FrozenTrial] = {}
    for trial in study.get_trials(deepcopy=False, states=ended):
        first.setdefault(key_in(trial), trial)
    return list(first.values())


def ranked(study: Study, value: Callable[[FrozenTrial], float | None] = lambda trial: trial.value) -> list[Judged]:
    """The settings from best to worst, by the values of their trials or by another function.

    Settings with a pruned or diverged trial are left out, and so are settings with fewer seeds than others.
    """
    tried: dict[tuple[Any, ...], list[FrozenTrial]] = {}
    for trial in counted(study):
        tried.setdefault(tuple(sorted(_but_seed(trial).items())), []).append(trial)
    most = max(map(len, tried.values()), default=0)
    found = []
    for trials in tried.values():
        values = [value(trial) for trial in trials if trial.state.name == "COMPLETE"]
        known = [number for number in values if number is not None]
        if len(known) == most:
            found.append(Judged(_but_seed(trials[0]), statistics.fmean(known)))
    sign = 1 if study.direction.name == "MAXIMIZE" else -1
    # Of equal ones the first in the order of their settings: not that of their trials, which depends on the workers.
    return sorted(
        found, key=lambda each: (-sign * each.value, json.dumps(each.parameters, sort_keys=True, default=str))
    )


def _but_seed(trial: FrozenTrial) -> dict[str, Any]:
    return {name: value for name, value in trial.params.items() if name != "seed"}


def key_in(trial: FrozenTrial) -> Any:
    """The key of a trial's setting; the trial's number while its setting is being sampled."""
    return trial.user_attrs.get("key", trial.number)


def is_here(worker: dict[str, Any]) -> bool:
    """Whether a worker is or was a process of this machine, since its last boot."""
    return all(worker.get(name) == value for name, value in _machine().items())


def tell(study: Study, trial: Trial | int, value: float | None = None, state: TrialState | None = None) -> None:
    """Finish a trial. If another process has finished it already, raise ``UpdateFinishedTrialError``."""
    import optuna

    wanted = state or optuna.trial.TrialState.COMPLETE
    before = _state(study, trial if isinstance(trial, int) else trial.number)
    if before.is_finished():
        raise optuna.exceptions.UpdateFinishedTrialError(f"the trial is {before.name} already, wanted {wanted.name}")
    told = study.tell(trial, value, state=wanted, skip_if_finished=True)
    if told.state != wanted:
        raise optuna.exceptions.UpdateFinishedTrialError(f"the trial is {told.state.name} already")


def hand_back(study: Study, trial: Trial) -> None:
    """Fail a trial whose run folder is locked: its earlier worker is alive after all. It is tried again later."""
    import optuna

    trial.set_user_attr("handed back", time.time())
    tell(study, trial, state=optuna.trial.TrialState.FAIL)


def wait_at(study: Study, trial: Trial, rung: int) -> None:
    """Fail a trial until all settings have reached the rung; :func:`audit` then enqueues its setting again."""
    import optuna

    trial.set_user_attr("waits at", rung)
    tell(study, trial, state=optuna.trial.TrialState.FAIL)


def unreached(study: Study, settings: Collection[str], epoch: int) -> set[str]:
    """The settings that have neither ended nor reported a value at an epoch."""
    reached = {key_in(trial) for trial in study.get_trials(deepcopy=False) if epoch in trial.intermediate_values}
    return set(settings) - reached - {key_in(trial) for trial in counted(study)}


@contextmanager
def held(trial: Trial) -> Iterator[Callable[[], None]]:
    """Send heartbeats while a worker trains; yield a function that raises once the trial belongs to another worker."""
    import optuna

    stop, lost = threading.Event(), threading.Event()

    def beat() -> None:
        while not stop.wait(ALIVE):
            try:
                trial.set_user_attr("worker", _myself())
            except optuna.exceptions.UpdateFinishedTrialError:
                lost.set()
                return
            except optuna.exceptions.StorageInternalError:
                continue  # the database is unreachable for a moment

    def check() -> None:
        if lost.is_set():
            raise optuna.exceptions.UpdateFinishedTrialError("the trial was given up")

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield check
    finally:
        stop.set()
        thread.join()


def _at_rungs(study: Study, agenda: Agenda) -> set[Any]:
    """The settings that wait at a rung that others have not reached."""
    trials = study.get_trials(deepcopy=False)
    at = {key_in(trial): trial.user_attrs["waits at"] for trial in trials if "waits at" in trial.user_attrs}
    open_ = {rung for rung in set(at.values()) if unreached(study, agenda.settings, rung)}
    return {key for key, rung in at.items() if rung in open_}


def _live(study: Study) -> set[Any]:
    """The keys of the settings with a trial that has not failed."""
    return {key_in(trial) for trial in study.get_trials(deepcopy=False) if trial.state.name != "FAIL"}


def _draw(study: Study, place: Place, draws: int) -> Trial | None:
    """A trial with a setting to be sampled; None if there are enough."""
    import optuna

    def drawn(before: float) -> int:
        trials = [trial for trial in study.get_trials(deepcopy=False) if trial.number < before]
        return len({key_in(trial) for trial in trials if "key" in trial.user_attrs or trial.state.name != "FAIL"})

    if not draws:
        return None
    with place.alone():
        if drawn(float("inf")) >= draws:
            return None
        trial = study.ask()
        # In a database other workers may have sampled at the same moment; the trial numbers say who was first.
        if "key" not in trial.user_attrs and drawn(trial.number) >= draws:
            tell(study, trial, state=optuna.trial.TrialState.FAIL)
            return None
    return trial if _is_mine(study, trial) else None


def _is_mine(study: Study, trial: Trial) -> bool:
    """Register this worker for a trial, unless the same setting has an earlier running or a finished trial."""
    import optuna

    try:
        if "key" in trial.user_attrs and _is_elsewhere(study, trial.number, trial.user_attrs["key"]):
            tell(study, trial, state=optuna.trial.TrialState.FAIL)
            return False
        trial.set_user_attr("worker", _myself())
    except optuna.exceptions.UpdateFinishedTrialError:  # the worker was taken for dead before it could register
        return False
    return True


def _is_elsewhere(study: Study, number: int, key: str) -> bool:
    ended = ("COMPLETE", "PRUNED")
    return any(
        trial.state.name in ended or (trial.state.name == "RUNNING" and trial.number < number)
        for trial in study.get_trials(deepcopy=False)
        if trial.user_attrs.get("key") == key and trial.number != number
    )


def _is_recent(trial: FrozenTrial) -> bool:
    return bool(time.time() - trial.user_attrs.get("handed back", 0.0) < AGAIN)


def _state(study: Study, number: int) -> TrialState:
    return study.get_trials(deepcopy=False)[number].state


def _is_dead(trial: FrozenTrial) -> bool:
    worker = trial.user_attrs.get("worker")
    if worker is None:  # its worker was killed before it could register, or is about to
        begun = trial.datetime_start  # in this machine's time zone, on whatever machine it was taken
        return begun is not None and time.time() - begun.timestamp() > DEAD / 10
    if is_here(worker):
        return bool(_started(worker["pid"]) != worker["started"])
    return bool(time.time() - worker["seen"] > DEAD)


def _myself() -> dict[str, Any]:
    """This process, with a heartbeat."""
    return {**_machine(), "pid": os.getpid(), "started": _started(os.getpid()), "seen": time.time()}


def _machine() -> dict[str, str | None]:
    """What identifies this machine: host name, boot and namespace. Clones and containers may share a host name."""
    boot = namespace = None
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = str(Path("/proc/self/ns/pid").readlink())
    return {"host": socket.gethostname(), "boot": boot, "namespace": namespace}


def _started(pid: int) -> str | None:
    """The start time of a process, as the operating system writes it; None if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except OSError:
        try:
            os.kill(pid, 0)
        except OSError:
            return None
        return "unknown"
