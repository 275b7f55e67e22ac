"""What an optimizer did, counted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from .gap import ModifiedGap
from .state import implied
from .units import units

__all__ = ["Report", "smoothness"]


@dataclass(frozen=True)
class Report:
    """The kinds of step that blocks took, and the stochastic gap at the last first half.

    Attributes:
        gap: the modified gap with its parts.
        frank_wolfe: blocks that moved in a first half.
        clamped: of these, those whose step was cut to 1, all the way to the vertex: there the theorems do not apply
            (a smaller ``lr``, or a ``gradient_bound``, avoids it).
        in_face: blocks that moved in a second half.
        drop: of these, those that went as far as they could: in a face, which takes an edge, a group or a rank away, or
            from inside the set to its boundary.
        skipped: blocks left alone because their gradient was not finite.
        outside: blocks that were found outside of their set, where somebody else had put them, counted at every half.
        smoothness: of layers with relative steps (``lr="auto"``), the constant ``L`` of the paper that their last step implied.

    >>> import torch
    >>> from inface.gap import combine
    >>> print(Report(combine([], []), frank_wolfe=8, clamped=1, in_face=7, drop=2, skipped=0))
    gap nan | 8 Frank-Wolfe steps (1 clamped), 7 in-face steps (2 drops), 0 blocks skipped
    """

    gap: ModifiedGap
    frank_wolfe: int
    clamped: int
    in_face: int
    drop: int
    skipped: int
    outside: int = 0
    smoothness: dict[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The report as plain data: numbers, and mappings from names of parameters to numbers.

        ``gap`` is the modified gap, ``constrained`` and ``free`` are its two terms, ``sets`` has the Frank-Wolfe gap of each
        constrained parameter.

        >>> import json, torch, inface
        >>> from inface.sets import L1Ball
        >>> model = torch.nn.Linear(3, 2)
        >>> opt = inface.FrankWolfe(model, {"weight": L1Ball(1.0)}, lr=0.1, project=True)
        >>> model(torch.ones(1, 3)).sum().backward()
        >>> opt.step()
        >>> found = opt.report().as_dict()
        >>> list(found)
        ['gap', 'constrained', 'free', 'sets', 'frank_wolfe', 'clamped', 'in_face', 'drop', 'skipped', 'outside', 'smoothness']
        >>> found["frank_wolfe"], list(found["sets"]), json.loads(json.dumps(found)) == found
        (2, ['weight'], True)
        """
        return {
            "gap": float(self.gap.value),
            "constrained": float(self.gap.constrained),
            "free": float(self.gap.free),
            "sets": {name: float(gap) for name, gap in self.gap.sets.items()},
            "frank_wolfe": self.frank_wolfe,
            "clamped": self.clamped,
            "in_face": self.in_face,
            "drop": self.drop,
            "skipped": self.skipped,
            "outside": self.outside,
            "smoothness": dict(self.smoothness),
        }

    def __str__(self) -> str:
        found = f", {self.outside} blocks found outside" if self.outside else ""
        return (
            f"gap {float(self.gap):.6g} | {self.frank_wolfe} Frank-Wolfe steps ({self.clamped} clamped), "
            f"{self.in_face} in-face steps ({self.drop} drops), {self.skipped} blocks skipped{found}"
        )


def smoothness(groups: Sequence[dict[str, Any]], states: Mapping[Tensor, dict[str, Any]]) -> dict[str, float]:
    """The constant ``L = 1 / (2 lr)`` that the last step of each relative group implied."""
    found = {}
    for index, group in enumerate(groups):
        for unit in units(group, index) if group["relative"] is not None and group["set"] is not None else ():
            lr = implied(states.get(unit.params[0], {}))
            if lr is not None:
                found[unit.name] = 1 / (2 * float(lr)) if float(lr) > 0 else math.inf
    return found
