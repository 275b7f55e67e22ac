"""Proximal SGD, and AdamW with the same soft-thresholding."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

__all__ = ["ProximalAdamW", "ProximalSGD"]


class _Proximal(torch.optim.Optimizer):
    """Soft-thresholding after every step of another optimizer, the next class in the order of inheritance."""

    def __init__(
        self, params: Iterable[nn.Parameter], layers: Iterable[nn.Parameter], *, shrinkage: float, **inner: Any
    ) -> None:
        super().__init__(list(params), foreach=True, **inner)  # type: ignore[call-arg]
        self.layers = list(layers)
        self.shrinkage = shrinkage

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take the other optimizer's step, then soft-threshold."""
        loss = super().step(closure)
        group = self.param_groups[0]
        for p in self.layers:
            p.copy_(nn.functional.softshrink(p, group["lr"] * self.shrinkage / (1 - group.get("momentum", 0.0))))
        return loss


class ProximalSGD(_Proximal, torch.optim.SGD):
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


class ProximalAdamW(_Proximal, torch.optim.AdamW):
    """AdamW with an l1 penalty on some layers that is decoupled, as its weight decay is.

    A step moves every edge towards zero by ``lr * shrinkage``, whatever its gradients are.
    """
