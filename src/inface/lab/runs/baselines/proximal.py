"""Proximal SGD."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

__all__ = ["ProximalSGD"]


class ProximalSGD(torch.optim.SGD):
    """SGD with an l1 penalty on some layers: soft-thresholding after every step, which gives exact zeros.

    Args:
        params: the parameters of the network.
        layers: those to shrink.
        lr: the learning rate.
        momentum: as in ``torch.optim.SGD``.
        weight_decay: as in ``torch.optim.SGD``.
        shrinkage: the weight of the penalty. A step moves every edge towards zero by
            ``lr * shrinkage / (1 - momentum)``, as far as a constant gradient of size ``shrinkage`` would.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.tensor([[0.5, -0.05]]))
    >>> opt = ProximalSGD([weight], [weight], lr=0.1, momentum=0.0, shrinkage=1.0)
    >>> weight.grad = torch.zeros_like(weight)
    >>> _ = opt.step()
    >>> weight.data
    tensor([[0.4000, -0.0000]])
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        layers: Iterable[nn.Parameter],
        *,
        lr: float,
        momentum: float,
        weight_decay: float = 0.0,
        shrinkage: float,
    ) -> None:
        super().__init__(list(params), lr=lr, momentum=momentum, weight_decay=weight_decay, foreach=True)
        self.layers = list(layers)
        self.shrinkage = shrinkage

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take SGD's step, then soft-threshold."""
        loss = super().step(closure)
        group = self.param_groups[0]
        for p in self.layers:
            p.copy_(nn.functional.softshrink(p, group["lr"] * self.shrinkage / (1 - group["momentum"])))
        return loss
