"""The paper's output rule: an iterate drawn uniformly from all of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .dtensors import agree
from .optimizer import FrankWolfe
from .paths import regrows

__all__ = ["RandomIterate"]


class RandomIterate:
    """Keeps one uniformly random iterate of ``(x_0, y_0), ..., (x_K, y_K)``, the point that the theorems speak of.

    Reservoir sampling: after iteration ``k`` the snapshot is replaced with probability ``1 / (k + 1)``, so that one
    snapshot in memory is enough and ``K`` need not be known. It attaches itself to the optimizer's steps; with in-face
    steps an iteration is complete after its last second half.

    Args:
        optimizer: whose parameters to follow, from where they are now.
        generator: a CPU generator; by default one of its own, so that training draws the same numbers with and without.
            Processes that hold sharded parameters together all draw as the first of them does.

    >>> import torch, inface
    >>> weight = torch.nn.Parameter(torch.tensor([4.0]))
    >>> opt = inface.FrankWolfe([weight], lr=0.25)
    >>> iterate = inface.RandomIterate(opt, generator=torch.Generator().manual_seed(1))
    >>> for _ in range(3):
    ...     opt.zero_grad()
    ...     (weight ** 2).sum().backward()
    ...     opt.step()
    >>> iterate.index, iterate.snapshot, iterate.count
    (3, [tensor([0.5000])], 4)
    """

    def __init__(self, optimizer: FrankWolfe, generator: torch.Generator | None = None) -> None:
        self.optimizer = optimizer
        own = torch.Generator("cpu").manual_seed(torch.initial_seed()) if generator is None else generator
        self.generator: torch.Generator = agree(self._params(), own) or own
        self.index = 0
        self.count = 1
        self.snapshot = [p.detach().clone() for p in self._params()]
        self._leader: Tensor | None = None
        self._hook = optimizer.register_step_post_hook(self._after_step)

    @torch.no_grad()
    def restore_(self) -> int:
        """Put the snapshot into the parameters, and return the number of the iteration that it is from."""
        for p, kept in zip(self._params(), self.snapshot, strict=True):
            p.copy_(kept)
        return self.index

    def detach(self) -> None:
        """Stop following the optimizer; the snapshot stays."""
        self._hook.remove()

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on, as plain data."""
        return {
            "index": self.index,
            "count": self.count,
            "snapshot": [kept.clone() for kept in self.snapshot],
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another one stopped."""
        shapes, wanted = [kept.shape for kept in state["snapshot"]], [kept.shape for kept in self.snapshot]
        if shapes != wanted:
            raise ValueError(f"RandomIterate: wanted a snapshot of shapes {wanted}, got {shapes}")
        self.index, self.count = state["index"], state["count"]
        for kept, new in zip(self.snapshot, state["snapshot"], strict=True):
            kept.copy_(new)
        self.generator.set_state(state["generator"])

    def _params(self) -> list[Tensor]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def _after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        moved = [
            p
            for group in optimizer.param_groups
            if float(group["lr"]) != 0
            for p in group["params"]
            if p.grad is not None and p.numel()
        ]
        if not moved:
            return
        # Parameters alternate each for itself; the first one that moved says where an iteration ends.
        self._leader = self._leader if self._leader is not None else moved[0]
        if not any(p is self._leader for p in moved) or not _complete(optimizer, self._leader):
            return
        if len(self._params()) != len(self.snapshot):
            raise ValueError(
                f"RandomIterate: the optimizer has {len(self._params())} parameters, had {len(self.snapshot)}; "
                f"attach another one after add_param_group"
            )
        if int(torch.randint(self.count + 1, (), generator=self.generator, device="cpu")) == 0:
            self.index = self.count
            for p, kept in zip(self._params(), self.snapshot, strict=True):
                kept.copy_(p.detach())
        self.count += 1


def _complete(optimizer: torch.optim.Optimizer, p: Tensor) -> bool:
    """Whether an iteration of a parameter has ended; on a path of densities some have no first half."""
    group = next(group for group in optimizer.param_groups if any(p is other for other in group["params"]))
    first = 0 if group["in_face"] is None or regrows(group["path"]) else 1
    return bool(optimizer.state[p]["phase"] in (0, first))
