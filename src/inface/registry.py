"""Which parameters an optimizer constrains: what ``sparsity`` counts when it is not told."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from .sets import Set

__all__ = ["constrain", "set_of"]

_sets: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def constrain(p: Tensor, set_: Set | None) -> None:
    """Remember that ``p`` lives in ``set_``, or that all of it is free; forgotten with the parameter itself.

    A deep copy of it lives there too, as in an averaged copy of a model (``torch.optim.swa_utils.AveragedModel``). What is
    pickled of it is what would be anyway, without the set.
    """
    if set_ is None or set_.all_free:
        _sets.pop(p, None)
        for name in _MARKS:
            p.__dict__.pop(name, None)
    else:
        _sets[p] = set_
        for name, mark in _MARKS.items():
            p.__dict__[name] = mark(p)


def set_of(p: Tensor) -> Set | None:
    """The set of a parameter, None if it is free.

    >>> import copy, torch
    >>> from inface.sets import L1Ball
    >>> p = torch.nn.Parameter(torch.zeros(2, 2))
    >>> constrain(p, L1Ball(1.0))
    >>> set_of(p)
    L1Ball(radius=1.0, per='output')
    >>> set_of(copy.deepcopy(p))
    L1Ball(radius=1.0, per='output')
    """
    found = _sets.get(p)
    return found if isinstance(found, Set) else None


class _Mark:
    """A method of one tensor alone, which it does not keep alive."""

    def __init__(self, p: Tensor) -> None:
        self.tensor: Callable[[], Any] = weakref.ref(p)  # whoever calls has it


class _Copy(_Mark):
    """``copy.deepcopy`` of a constrained tensor: torch copies nothing but the numbers of a parameter."""

    def __call__(self, memo: dict[int, Any]) -> Tensor:
        p = self.tensor()
        copied: Tensor = type(p).__deepcopy__(p, memo)
        constrain(copied, set_of(p))
        return copied


class _State(_Mark):
    """What is pickled beside the numbers of a constrained tensor: all but these marks."""

    def __call__(self) -> dict[str, Any] | None:
        return {name: value for name, value in self.tensor().__dict__.items() if name not in _MARKS} or None


# Python and torch look for both on the tensor itself first.
_MARKS: dict[str, type[_Copy | _State]] = {"__deepcopy__": _Copy, "__getstate__": _State}
