"""Sparse training with edges that move: RigL (U. Evci et al., 2020) and SET (D. C. Mocanu et al., 2018)."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["SET", "RigL", "RigLAdamW", "SETAdamW"]


AVERAGES = ("momentum_buffer", "exp_avg", "exp_avg_sq")  # of SGD, and of AdamW


class _Rewired(torch.optim.Optimizer):
    """Another optimizer on the edges that layers have. From time to time some are dropped, and as many others grow.

    What RigL and SET share: when edges change, and how many. They differ in which ones. The other optimizer is the next
    class in the order of inheritance.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        layers: Iterable[nn.Parameter],
        *,
        total: int,
        alpha: float = 0.3,
        every: int = 100,
        end: float = 0.75,
        **inner: Any,
    ) -> None:
        super().__init__(list(params), foreach=True, **inner)  # type: ignore[call-arg]
        self.layers = list(layers)
        self.total, self.alpha, self.every, self.end = total, alpha, every, end
        self.param_groups[0]["taken"] = 0  # gradients so far; here, so that checkpoints hold it
        for p in self.layers:
            if isinstance(self, torch.optim.AdamW):  # it makes a state only where there is none
                self.state[p] = {"step": torch.tensor(0.0), **{name: torch.zeros_like(p) for name in AVERAGES[1:]}}
            self.state[p]["mask"] = (p.detach() != 0).to(p.dtype)

    def dropped(self, taken: int) -> float:
        """The part of a layer's edges that is dropped after ``taken`` gradients; 0 where nothing changes."""
        last = self.end * self.total
        if taken % self.every or taken >= last:
            return 0.0
        return self.alpha / 2 * (1 + math.cos(math.pi * taken / last))

    def _count(self) -> float:
        """Count a gradient; return the part of the edges that is to be dropped with it."""
        self.param_groups[0]["taken"] += 1
        return self.dropped(self.param_groups[0]["taken"])

    def _descend(self) -> None:
        """The other optimizer's step on the edges."""
        super().step()
        for p in self.layers:
            p.mul_(self.state[p]["mask"])

    def _rewire(self, fraction: float) -> None:
        """Drop and grow edges of all layers."""
        for p in self.layers:
            state = self.state[p]
            active = state["mask"].flatten() > 0
            if p.grad is None or bool(active.all()):
                continue
            kept = self._kept(p.flatten(), active, fraction)
            mask = kept.clone()
            mask[self._grown(p.grad.flatten(), kept, int(active.sum() - kept.sum()))] = True
            state["mask"] = mask.reshape(p.shape).to(p.dtype)
            p.mul_(kept.reshape(p.shape))
            for name in AVERAGES:
                if state.get(name) is not None:
                    state[name].mul_(kept.reshape(p.shape))

    @abstractmethod
    def _kept(self, x: Tensor, active: Tensor, fraction: float) -> Tensor:
        """Which of the active edges stay."""

    @abstractmethod
    def _grown(self, g: Tensor, kept: Tensor, count: int) -> Tensor:
        """The places of the edges that grow, among those that are not kept."""


class _RigL(_Rewired):
    """Which edges RigL drops and grows."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Drop and grow edges, or take the other optimizer's step."""
        loss = _evaluated(closure)
        fraction = self._count()
        if fraction:
            self._rewire(fraction)
        else:
            self._descend()
        return loss

    def _kept(self, x: Tensor, active: Tensor, fraction: float) -> Tensor:
        return _without_nearest_to_zero(x, active, fraction)

    def _grown(self, g: Tensor, kept: Tensor, count: int) -> Tensor:
        return g.abs().masked_fill(kept, -1.0).topk(count).indices


class RigL(_RigL, torch.optim.SGD):
    """RigL: the smallest edges make way for those with the largest gradient.

    Every ``every`` gradients, until the fraction ``end`` of them, a layer drops the part
    ``alpha / 2 (1 + cos(pi t / T))`` of its edges, ``T = end * total``: those of the smallest magnitude. As many grow, where
    the gradient of this batch is largest among all that the layer has not kept; they start at zero, with no momentum. Such a
    gradient makes no step, as in Algorithm 1 of the paper (U. Evci et al., Rigging the Lottery, 2020). The edges are
    the weights that are not zero when the optimizer is made; see :func:`sparse_init_`. A layer that has all keeps them.

    Args:
        params: the parameters of the network.
        layers: those that are sparse.
        lr: the learning rate.
        momentum: as in ``torch.optim.SGD``.
        weight_decay: as in ``torch.optim.SGD``.
        total: the number of gradients of the run.
        alpha: the part of the edges that the first change drops.
        every: gradients between two changes.
        end: the fraction of the gradients after which edges stay where they are.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.tensor([[4.0, 1.0, 0.0, 0.0]]))
    >>> opt = RigL([weight], [weight], lr=0.1, momentum=0.0, total=8, alpha=0.9, every=1)
    >>> weight.grad = torch.tensor([[0.0, 0.0, 1.0, 3.0]])
    >>> opt.step()
    >>> weight.data, opt.state[weight]["mask"]
    (tensor([[4., 0., 0., 0.]]), tensor([[1., 0., 0., 1.]]))
    """


class RigLAdamW(_RigL, torch.optim.AdamW):
    """RigL with the steps of AdamW; edges that grow start with no moments."""


class _SET(_Rewired):
    """Which edges SET drops and grows."""

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        layers: Iterable[nn.Parameter],
        *,
        seed: int,
        **options: Any,
    ) -> None:
        super().__init__(params, layers, **options)
        self.seed = seed
        self._generator = torch.Generator()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take the other optimizer's step, then drop and grow edges where it is time."""
        loss = _evaluated(closure)
        fraction = self._count()
        self._descend()
        if fraction:
            # Negative, because the order of samples is drawn with positive ones.
            self._generator.manual_seed(-1 - self.seed * 1_000_003 - self.param_groups[0]["taken"])
            self._rewire(fraction)
        return loss

    def _kept(self, x: Tensor, active: Tensor, fraction: float) -> Tensor:
        positive = _without_nearest_to_zero(x, active & (x >= 0), fraction)
        return positive | _without_nearest_to_zero(x, active & (x < 0), fraction)

    def _grown(self, g: Tensor, kept: Tensor, count: int) -> Tensor:
        places = (~kept).nonzero().flatten()
        return places[torch.randperm(len(places), generator=self._generator)[:count].to(g.device)]


class SET(_SET, torch.optim.SGD):
    """SET: the edges nearest to zero make way for random ones.

    After every ``every``-th step, until the fraction ``end`` of the gradients, a layer drops the part
    ``alpha / 2 (1 + cos(pi t / T))`` of its positive edges, the smallest, and of its negative ones, the largest
    (``T = end * total``). As many grow at random places; they start at zero, with no momentum. D. C. Mocanu et al. (Scalable
    training of artificial neural networks with adaptive sparse connectivity, 2018) drop 0.3 after each epoch; when and
    how many edges change is here as U. Evci et al. (2020) compare it with RigL. An edge at zero counts as positive. The edges
    are the weights that are not zero when the optimizer is made; see :func:`sparse_init_`. A layer that has all keeps
    them.

    Args:
        params: the parameters of the network.
        layers: those that are sparse.
        lr: the learning rate.
        momentum: as in ``torch.optim.SGD``.
        weight_decay: as in ``torch.optim.SGD``.
        total: the number of gradients of the run.
        seed: of the random places; which ones depends on it and on the number of gradients so far, so that a resumed run
            grows the same edges.
        alpha: the part of the edges that the first change drops.
        every: gradients between two changes.
        end: the fraction of the gradients after which edges stay where they are.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.tensor([[4.0, 1.0, 0.0, 0.0]]))
    >>> opt = SET([weight], [weight], lr=0.1, momentum=0.0, total=8, alpha=0.9, every=1, seed=0)
    >>> weight.grad = torch.zeros(1, 4)
    >>> opt.step()
    >>> weight.data, int(opt.state[weight]["mask"].sum())
    (tensor([[4., 0., 0., 0.]]), 2)
    """


class SETAdamW(_SET, torch.optim.AdamW):
    """SET with the steps of AdamW; edges that grow start with no moments."""


def _without_nearest_to_zero(x: Tensor, active: Tensor, fraction: float) -> Tensor:
    """The active entries without this part of them, the smallest in magnitude; rounded down."""
    count = int(active.sum())
    largest = x.abs().masked_fill(~active, -1.0).topk(count - int(fraction * count)).indices
    return torch.zeros_like(active).index_fill(0, largest, True)


def _evaluated(closure: Callable[[], Any] | None) -> Any:
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()
