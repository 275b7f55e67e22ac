"""What callbacks measure during training, and how they take a density path along. It needs no framework.

The measurements are numbers by name: ``gap``, ``density`` of all constrained layers together, ``density/NAME`` of each,
``drops`` and ``clamps`` since the training began, and ``path``, the density that a path has reached.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from inface.density import DensityScheduler, advance, announce
from inface.dtensors import is_sharded
from inface.optimizer import FrankWolfe
from inface.units import names_of

__all__ = ["Watch", "densities", "drive", "frank_wolfe", "needs_steps"]

COUNTED = {"drops": "drop", "clamps": "clamped"}


def frank_wolfe(optimizer: object) -> FrankWolfe | None:
    """The :class:`inface.FrankWolfe` in an optimizer that a framework has wrapped; None if it is another one.

    >>> import torch, inface
    >>> opt = inface.FrankWolfe(torch.nn.Linear(3, 2).parameters(), lr=0.1)
    >>> class Wrapper:
    ...     optimizer = opt
    >>> frank_wolfe(Wrapper()) is opt, frank_wolfe(torch.optim.SGD([torch.zeros(1)]))
    (True, None)
    """
    seen: list[object] = []
    while optimizer is not None and optimizer not in seen:
        if isinstance(optimizer, FrankWolfe):
            return optimizer
        seen.append(optimizer)
        optimizer = getattr(optimizer, "optimizer", None)
    return None


def densities(optimizer: Optimizer) -> dict[str, tuple[int, int]]:
    """The non-zeros and the entries of each constrained parameter, by name.

    Of sharded parameters all processes must ask.

    >>> import torch, inface
    >>> from inface.sets import L1Ball
    >>> model = torch.nn.Linear(3, 2)
    >>> _ = model.weight.data.copy_(torch.eye(2, 3))
    >>> densities(inface.FrankWolfe(model, {"weight": L1Ball(1.0)}, lr=0.1))
    {'weight': (2, 6)}
    """
    found = {}
    for index, group in enumerate(optimizer.param_groups):
        if group.get("set") is not None:
            for name, p in zip(names_of(group, index), group["params"], strict=True):
                if p.numel():
                    found[name] = (int(_nonzeros(p)), p.numel())
    return found


@torch.no_grad()
def _nonzeros(p: Tensor) -> Tensor:
    count: Any = p.detach().ne(0).sum()
    return count.full_tensor() if is_sharded(count) else count


class Watch:
    """Measures an optimizer, and counts on where a training that was stopped had counted to.

    Args:
        optimizer: a :class:`inface.FrankWolfe`, wrapped or not.

    >>> import torch, inface
    >>> from inface.sets import L1Ball
    >>> model = torch.nn.Linear(3, 2)
    >>> _ = model.weight.data.copy_(torch.eye(2, 3))
    >>> watch = Watch(inface.FrankWolfe(model, {"weight": L1Ball(1.0)}, lr=0.1))
    >>> round(watch.measure()["density/weight"], 2)
    0.33
    >>> watch.load_state_dict({"drops": 5, "clamps": 1})
    >>> watch.measure()["drops"], watch.state_dict()
    (5, {'drops': 5, 'clamps': 1})
    """

    def __init__(self, optimizer: object) -> None:
        found = frank_wolfe(optimizer)
        if found is None:
            raise ValueError(f"Watch: wanted an inface.FrankWolfe, wrapped or not, got {type(optimizer).__name__}")
        self.optimizer = found
        self.earlier = dict.fromkeys(COUNTED, 0)

    def measure(self) -> dict[str, float]:
        """The measurements now; what is not known yet is left out."""
        report = self.optimizer.report()
        found = {"gap": float(report.gap)}
        counted = densities(self.optimizer)
        total = sum(entries for _, entries in counted.values())
        if total:
            found["density"] = sum(nonzeros for nonzeros, _ in counted.values()) / total
        found |= {f"density/{name}": nonzeros / entries for name, (nonzeros, entries) in counted.items()}
        paths = [group["path"] for group in self.optimizer.param_groups if group["path"] is not None]
        if paths:
            found["path"] = paths[0]["density"]
        found |= {name: self.earlier[name] + getattr(report, count) for name, count in COUNTED.items()}
        return {name: value for name, value in found.items() if math.isfinite(value)}

    def state_dict(self) -> dict[str, int]:
        """What was counted, as plain data. The place on a path is in the optimizer's own state."""
        report = self.optimizer.report()
        return {name: self.earlier[name] + getattr(report, count) for name, count in COUNTED.items()}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Count on from what another watch had counted."""
        self.earlier = {name: int(state.get(name, 0)) for name in COUNTED}


def needs_steps(optimizer: FrankWolfe) -> bool:
    """Whether somebody has to say how many gradients a training has: for a path of unknown length, or one to be made.

    >>> import torch, inface
    >>> needs_steps(inface.sparse_optimizer(torch.nn.Linear(100, 3), density=0.1, lr=0.1, steps="auto"))
    True
    """
    return any(_unknown(group) or _pathless(group) for group in optimizer.param_groups)


def drive(optimizer: FrankWolfe, steps: int | None) -> Callable[[], None]:
    """Take the density paths of an optimizer to their ends, whoever made them.

    A path of :func:`inface.sparse_optimizer` goes by itself; it only has to know its steps. Where sets have a density and
    no path, one is made, as :class:`inface.DensityScheduler` makes it, and then goes one further with every step of the
    optimizer. A path that was loaded goes on.

    Args:
        optimizer: the optimizer, after its state was loaded, if there is one.
        steps: gradients in all; None if every path knows them.

    Returns:
        a function that ends this.

    >>> import torch, inface
    >>> from inface.sets import L1Ball
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Linear(100, 3)
    >>> opt = inface.FrankWolfe(model, {"weight": L1Ball(density=0.1)}, lr=0.1, in_face="projected")
    >>> stop = drive(opt, steps=50)
    >>> for _ in range(50):
    ...     opt.zero_grad()
    ...     model(torch.ones(1, 100)).square().sum().backward()
    ...     opt.step()
    >>> int(model.weight.count_nonzero()) <= 30
    True
    >>> stop()
    """
    if steps is not None and any(_unknown(group) for group in optimizer.param_groups):
        announce(optimizer, steps)
    if steps is not None and any(_pathless(group) for group in optimizer.param_groups):
        DensityScheduler(optimizer, steps)
    if not any(group["path"] is not None and not group["path"]["by_itself"] for group in optimizer.param_groups):
        return lambda: None
    handle = optimizer.register_step_post_hook(lambda opt, *_: advance(opt, by_itself=False))
    return handle.remove


def _unknown(group: Mapping[str, Any]) -> bool:
    return group["path"] is not None and not group["path"]["steps"]


def _pathless(group: Mapping[str, Any]) -> bool:
    return group["path"] is None and group["set"] is not None and bool(group["set"].density)
