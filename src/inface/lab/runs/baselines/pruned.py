"""Magnitude pruning: at once, or little by little."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

__all__ = ["PrunedAdamW", "PrunedSGD"]


class _Pruned(torch.optim.Optimizer):
    """Magnitude pruning after the steps of another optimizer, the next class in the order of inheritance."""

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        layers: Iterable[nn.Parameter],
        *,
        keep: float,
        total: int,
        begin: float,
        end: float,
        every: int = 1,
        together: bool = False,
        **inner: Any,
    ) -> None:
        super().__init__(list(params), foreach=True, **inner)  # type: ignore[call-arg]
        self.layers = list(layers)
        self.keep, self.total, self.begin, self.end, self.every = keep, total, begin, end, every
        self.together = together
        self.param_groups[0]["taken"] = 0  # gradients so far; here, so that checkpoints hold it

    def density(self, taken: int) -> float:
        """The part of the edges that is kept after ``taken`` gradients."""
        done = taken / self.total
        if done < self.begin:
            return 1.0
        if done >= self.end:
            return self.keep
        progress = (done - self.begin) / (self.end - self.begin)
        return self.keep + (1 - self.keep) * (1 - progress) ** 3

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take the other optimizer's step, then set the pruned edges to zero."""
        loss = super().step(closure)
        group = self.param_groups[0]
        group["taken"] += 1
        density = self.density(group["taken"])
        if density < 1:
            last = group["taken"] >= self.end * self.total and self.density(group["taken"] - 1) > self.keep
            for layers in [self.layers] if self.together else [[p] for p in self.layers]:
                self._prune(layers, density, anew=last or group["taken"] % self.every == 0)
        return loss

    def _prune(self, layers: list[nn.Parameter], density: float, *, anew: bool) -> None:
        """Prune layers with one threshold."""
        from torch.nn.utils.prune import L1Unstructured

        masks = [self.state[p].setdefault("mask", torch.ones_like(p)) for p in layers]
        for p, mask in zip(layers, masks, strict=True):
            p.mul_(mask)  # the step has moved the pruned edges
        if anew or all(bool(mask.all()) for mask in masks):
            x, mask = (torch.cat([tensor.flatten() for tensor in tensors]) for tensors in (layers, masks))
            amount = len(x) - max(1, round(density * len(x)))
            found = L1Unstructured(amount).compute_mask(x, mask).split([p.numel() for p in layers])
            for p, new in zip(layers, found, strict=True):
                self.state[p]["mask"] = new.reshape(p.shape).clone()
                p.mul_(self.state[p]["mask"])


class PrunedSGD(_Pruned, torch.optim.SGD):
    """SGD with magnitude pruning of some layers during training.

    Between the fractions ``begin`` and ``end`` of the gradients, the density falls from 1 to ``keep``, as
    ``keep + (1 - keep) (1 - progress)^3`` (M. Zhu, S. Gupta, 2017); with ``begin == end`` it falls at once.
    Every ``every`` gradients the smallest edges are set to zero: of each layer, or of all layers ``together``. They stay
    zero.

    Args:
        params: the parameters of the network.
        layers: those to prune.
        lr: the learning rate.
        momentum: as in ``torch.optim.SGD``.
        weight_decay: as in ``torch.optim.SGD``.
        keep: the density at the end: the part of the edges that is kept.
        total: the number of gradients of the run.
        begin: the fraction of the gradients after which pruning begins.
        end: the fraction of the gradients after which pruning ends.
        every: gradients between two prunings.
        together: one threshold for all layers, whose densities then differ; otherwise each has its own.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.tensor([[4.0, -3.0, 2.0, 1.0]]))
    >>> opt = PrunedSGD([weight], [weight], lr=0.0, momentum=0.0, keep=0.5, total=4, begin=0.5, end=0.5)
    >>> for _ in range(4):
    ...     weight.grad = torch.ones_like(weight)
    ...     opt.step()
    >>> weight.data
    tensor([[ 4., -3.,  0.,  0.]])
    """


class PrunedAdamW(_Pruned, torch.optim.AdamW):
    """AdamW with the magnitude pruning of :class:`PrunedSGD`."""
