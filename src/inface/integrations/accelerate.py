"""Gap and report of an optimizer that Accelerate has wrapped, and what to give to ``accelerator.log``.

>>> import torch, inface
>>> from accelerate import Accelerator
>>> from inface.sets import L1Ball
>>> _ = torch.manual_seed(0)
>>> accelerator = Accelerator(cpu=True)
>>> model = torch.nn.Linear(20, 3)
>>> opt = inface.FrankWolfe(model, {"weight": L1Ball(1.0)}, lr=0.5, in_face="away", project=True)
>>> model, opt = accelerator.prepare(model, opt)
>>> inputs, target = torch.randn(64, 20), torch.randn(64, 3)
>>> for _ in range(100):
...     opt.zero_grad()
...     accelerator.backward(torch.nn.functional.mse_loss(model(inputs), target))
...     opt.step()
>>> bool(gap(opt) < 0.05), report(opt).frank_wolfe, sorted(measure(opt))
(True, 150, ['clamps', 'density', 'density/weight', 'drops', 'gap'])

Accelerate itself is not imported: what it wraps is found by looking.
"""

from __future__ import annotations

from torch import Tensor

from inface.optimizer import FrankWolfe
from inface.report import Report

from .watch import Watch, frank_wolfe

__all__ = ["gap", "measure", "report", "unwrapped"]


def unwrapped(optimizer: object) -> FrankWolfe:
    """The :class:`inface.FrankWolfe` that ``accelerator.prepare`` has wrapped.

    Raises:
        ValueError: it is another optimizer.

    >>> import torch
    >>> unwrapped(torch.optim.SGD([torch.zeros(1)]))
    Traceback (most recent call last):
    ValueError: accelerate: wanted an inface.FrankWolfe, wrapped or not, got SGD
    """
    found = frank_wolfe(optimizer)
    if found is None:
        kind = type(getattr(optimizer, "optimizer", optimizer)).__name__
        raise ValueError(f"accelerate: wanted an inface.FrankWolfe, wrapped or not, got {kind}")
    return found


def gap(optimizer: object) -> Tensor:
    """``optimizer.gap``, through the wrapper. Of sharded parameters all processes must read it."""
    return unwrapped(optimizer).gap


def report(optimizer: object) -> Report:
    """``optimizer.report()``, through the wrapper. Of sharded parameters all processes must ask."""
    return unwrapped(optimizer).report()


def measure(optimizer: object) -> dict[str, float]:
    """Gap, density per layer, drops and clamps by name: ``accelerator.log(measure(optimizer), step=step)``."""
    return Watch(unwrapped(optimizer)).measure()
