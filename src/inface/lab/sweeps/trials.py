"""The trials of a study: no setting is lost, none is counted twice, whoever is killed or suspended when.

A setting has a key, and trials until one of them comes to an end. They wait in the study; a worker takes one by changing
its state, which only one can, and gives signs of life while it trains. A trial whose worker is dead is given up and its
setting waits again. A worker that was only suspended finds its trial given up when it wakes, and drops it: Optuna lets
nobody change a trial that has ended (``UpdateFinishedTrialError``).
"""

from __future__ import annotations

import os
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
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
]

ALIVE = 20.0  # seconds between two signs of life of a worker
DEAD = 120.0  # without one, a worker on another machine is dead
AGAIN = 60.0  # seconds before a setting is tried again that was handed back
PATIENCE = 1.0  # seconds between two looks at what others are doing


@dataclass(frozen=True)
class Judged:
    """A setting and how it did.

    Attributes:
        parameters: of its trials, but for the seed.
        value: that of its trial; the mean, if it was tried with several seeds.
    """

    parameters: dict[str, Any]
    value: float


@dataclass(frozen=True)
class Agenda:
    """What is to be tried: settings that are known, or so many that are drawn.

    Attributes:
        settings: from a key to the parameters of a trial.
        draws: how many settings are drawn, if none are known.
    """

    settings: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    draws: int = 0

    def ended(self, study: Study) -> list[FrozenTrial]:
        """The trials that count, of the settings to be tried."""
        return [trial for trial in counted(study) if not self.settings or key_in(trial) in self.settings]

    def total(self, study: Study) -> int:
        """How many settings there are to try."""
        return len(self.settings) or max(self.draws, len(_live(study)))

    def missing(self, study: Study) -> dict[str, dict[str, Any]]:
        """The settings that nobody has tried, is trying, or is about to try."""
        live = _live(study)
        if self.settings:
            return {key: parameters for key, parameters in self.settings.items() if key not in live}
        # One that was drawn, and whose worker died.
        first: dict[str, dict[str, Any]] = {}
        for trial in study.get_trials(deepcopy=False):
            if "key" in trial.user_attrs and key_in(trial) not in live:
                first.setdefault(key_in(trial), trial.params)
        return dict(list(first.items())[: max(0, self.draws - len(live))])


def next_trial(study: Study, place: Place, agenda: Agenda) -> Trial | None:
    """A trial to work on, as soon as there is one; nothing when all settings have come to an end, here and elsewhere."""
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
    """See to it that every setting is done, running or waiting; but for those handed back a moment ago."""
    with place.alone():
        missing = agenda.missing(study)
        recent = {key_in(trial) for trial in study.get_trials(deepcopy=False) if missing and _is_recent(trial)}
        for key, parameters in missing.items():
            if key not in recent:
                study.enqueue_trial(parameters, user_attrs={"key": key})


def take(study: Study) -> Trial | None:
    """The next trial that waits, or nothing if none does."""
    import optuna

    waiting = optuna.trial.TrialState.WAITING
    while any(trial.state == waiting for trial in study.get_trials(deepcopy=False)):
        trial = study.ask()
        if "key" not in trial.user_attrs:  # another worker took the last one; this is a trial of nothing
            tell(study, trial, state=optuna.trial.TrialState.FAIL)
        elif _is_mine(study, trial):
            return trial
    return None


def revive(study: Study) -> int:
    """Give up the trials whose workers are dead; how many there were. :func:`audit` lets their settings wait again."""
    import optuna

    given_up = 0
    for trial in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
        if _is_dead(trial):
            try:
                tell(study, trial.number, state=optuna.trial.TrialState.FAIL)
            except optuna.exceptions.UpdateFinishedTrialError:
                continue  # its worker came to an end, or somebody else was first
            given_up += 1
    return given_up


def counted(study: Study) -> list[FrozenTrial]:
    """The trials that count: of each setting, the first that came to an end."""
    import optuna

    ended = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED)
    first: dict[str | int, FrozenTrial] = {}
    for trial in study.get_trials(deepcopy=False, states=ended):
        first.setdefault(key_in(trial), trial)
    return list(first.values())


def ranked(study: Study, value: Callable[[FrozenTrial], float | None] = lambda trial: trial.value) -> list[Judged]:
    """The settings from best to worst, by the values of their trials or by others.

    A setting with a trial that was stopped early or diverged is not among them, nor one that lacks a seed that others have.
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
    return sorted(found, key=lambda setting: -sign * setting.value)


def _but_seed(trial: FrozenTrial) -> dict[str, Any]:
    return {name: value for name, value in trial.params.items() if name != "seed"}


def key_in(trial: FrozenTrial) -> Any:
    """The key of a trial's setting; of one that is just being drawn, its number."""
    return trial.user_attrs.get("key", trial.number)


def is_here(worker: dict[str, Any]) -> bool:
    """Whether a worker is, or was, a process of this machine, since it was switched on."""
    return all(worker.get(name) == value for name, value in _machine().items())


def tell(study: Study, trial: Trial | int, value: float | None = None, state: TrialState | None = None) -> None:
    """End a trial, if it has not ended already: then it is somebody else's, and ``UpdateFinishedTrialError`` is raised."""
    import optuna

    wanted = state or optuna.trial.TrialState.COMPLETE
    before = _state(study, trial if isinstance(trial, int) else trial.number)
    if before.is_finished():
        raise optuna.exceptions.UpdateFinishedTrialError(f"the trial is {before.name} already, wanted {wanted.name}")
    told = study.tell(trial, value, state=wanted, skip_if_finished=True)
    if told.state != wanted:
        raise optuna.exceptions.UpdateFinishedTrialError(f"the trial is {told.state.name} already")


def hand_back(study: Study, trial: Trial) -> None:
    """Give up a trial whose folder another process is training in, which was taken for dead and is not; for a while."""
    import optuna

    trial.set_user_attr("handed back", time.time())
    tell(study, trial, state=optuna.trial.TrialState.FAIL)


@contextmanager
def held(trial: Trial) -> Iterator[Callable[[], None]]:
    """Signs of life while a worker trains; gives a function that raises when the trial is not this worker's any more."""
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
                continue  # a database that is away for a moment

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


def _live(study: Study) -> set[Any]:
    """The keys of the settings that have a trial which did not fail."""
    return {key_in(trial) for trial in study.get_trials(deepcopy=False) if trial.state.name != "FAIL"}


def _draw(study: Study, place: Place, draws: int) -> Trial | None:
    """A trial of a setting that is yet to be drawn, unless there are enough."""
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
        # In a database others may have drawn at the same moment; the numbers of trials say who was first.
        if "key" not in trial.user_attrs and drawn(trial.number) >= draws:
            tell(study, trial, state=optuna.trial.TrialState.FAIL)
            return None
    return trial if _is_mine(study, trial) else None


def _is_mine(study: Study, trial: Trial) -> bool:
    """Say who works on a trial just taken; unless an earlier one of the same setting is running, or one is done."""
    import optuna

    try:
        if "key" in trial.user_attrs and _is_elsewhere(study, trial.number, trial.user_attrs["key"]):
            tell(study, trial, state=optuna.trial.TrialState.FAIL)
            return False
        trial.set_user_attr("worker", _myself())
    except optuna.exceptions.UpdateFinishedTrialError:  # taken for dead before it could say who works on it
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
    if worker is None:  # taken, and killed before it could say by whom; or just now
        begun = trial.datetime_start  # in this machine's time zone, wherever it was taken
        return begun is not None and time.time() - begun.timestamp() > DEAD / 10
    if is_here(worker):
        return bool(_started(worker["pid"]) != worker["started"])
    return bool(time.time() - worker["seen"] > DEAD)


def _myself() -> dict[str, Any]:
    """This process, with a sign of life."""
    return {**_machine(), "pid": os.getpid(), "started": _started(os.getpid()), "seen": time.time()}


def _machine() -> dict[str, str | None]:
    """What tells this machine from others, as far as it says: copies of one share their name, and so may containers."""
    boot = namespace = None
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = str(Path("/proc/self/ns/pid").readlink())
    return {"host": socket.gethostname(), "boot": boot, "namespace": namespace}


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
