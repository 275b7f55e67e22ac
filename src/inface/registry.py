"""Which parameters an optimizer constrains: what ``sparsity`` counts when it is not told."""

from __future__ import annotations

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from .sets import Set

__all__ = ["constrain", "set_of"]

_sets: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def constrain(p: Tensor, set_: Set | None) -> None:
    """Remember that ``p`` lives in ``set_``, or that it is free; forgotten with the parameter itself."""
    if set_ is None:
        _sets.pop(p, None)
    else:
        _sets[p] = set_


def set_of(p: Tensor) -> Set | None:
    """The set of a parameter, None if it is free.

    >>> import torch
    >>> from inface.sets import L1Ball
    >>> p = torch.zeros(2, 2)
    >>> constrain(p, L1Ball(1.0))
    >>> set_of(p)
    L1Ball(radius=1.0, per='output')
    """
    found = _sets.get(p)
    return found if isinstance(found, Set) else None
