"""Workers of a sweep that are killed: once is an accident, again and again at one setting is its own fault."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Any

from inface.lab.errors import LabError
from inface.text import printable

from .plan import point_of
from .trials import counted, is_here, key_in

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial

__all__ = ["Deaths"]

DEATHS = 3  # on one setting, which gets no further meanwhile


class Deaths:
    """How often workers of this process were killed while a setting, or all of the study, got no further."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.times: dict[tuple[Any, int], int] = {}

    def note(self, pid: int, number: int) -> None:
        """A worker was killed: say so; an error if it is the same again and again."""
        trials = self.study.get_trials(deepcopy=False)
        last = next((trial for trial in reversed(trials) if _is_by(trial, pid)), None)
        if last is None or last.state.name not in ("RUNNING", "FAIL"):
            key, told = None, "before it took a setting"
            reached = sum(len(trial.intermediate_values) for trial in trials) + len(counted(self.study))
        else:
            key, told = key_in(last), f"at {_told(last)}"
            reached = max((epoch for t in trials if key_in(t) == key for epoch in t.intermediate_values), default=0)
        self.times[key, reached] = times = self.times.get((key, reached), 0) + 1
        if times >= DEATHS:
            raise LabError(
                f"a worker was killed by {_name(number)} {told}, as {times - 1} were before it, and it gets no further; "
                f"is there memory for it, and for so many --jobs?"
            )
        sys.stderr.write(f"inface: a worker was killed by {_name(number)} {told}; another takes its place\n")


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
