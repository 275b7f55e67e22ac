"""Retries after a worker of a sweep was killed; an error if it happens again and again at one setting."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

from inface.lab.errors import LabError
from inface.lab.workers import MOST_KILLS, KillCounter
from inface.text import printable

from .plan import point_of
from .trials import counted, is_here, key_in

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial

__all__ = ["Retries"]


class Retries:
    """Counts how often workers were killed at the same setting and epoch, or with no progress of the study."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.kills = KillCounter()

    def after_kill(self, pid: int, number: int) -> None:
        """Print that a worker was killed by a signal; raise an error at the third kill without progress."""
        trials = self.study.get_trials(deepcopy=False)
        last = next((trial for trial in reversed(trials) if _is_by(trial, pid)), None)
        if last is None or last.state.name not in ("RUNNING", "FAIL"):
            key, told = None, "before it took a setting"
            reached = sum(len(trial.intermediate_values) for trial in trials) + len(counted(self.study))
        else:
            key, told = key_in(last), f"at {_told(last)}"
            reached = max((epoch for t in trials if key_in(t) == key for epoch in t.intermediate_values), default=0)
        times = self.kills.count((key, reached))
        if times >= MOST_KILLS:
            raise LabError(
                f"a worker was killed by {_name(number)} {told}, {times} times without progress; "
                f"is there enough memory for this setting and this number of --jobs?"
            )
        sys.stderr.write(f"inface: a worker was killed by {_name(number)} {told}; another one continues\n")


def _is_by(trial: FrozenTrial, pid: int) -> bool:
    worker = trial.user_attrs.get("worker", {})
    return bool(worker.get("pid") == pid and is_here(worker))


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _told(trial: FrozenTrial) -> str:
    point = point_of(trial.params)
    shown = ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in point.items()
    )
    return printable(shown or f"the setting {key_in(trial)}")
