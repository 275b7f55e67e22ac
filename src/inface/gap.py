"""The modified Frank-Wolfe gap: how far a point is from being stationary (Definition 2.1 of the paper)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .adaptive import Moments, scales, weighted_square
from .dtensors import is_sharded, whole
from .free import dual_square
from .gradients import dense_gradients
from .sets import Set
from .sets.base import computable
from .sets.base import number as as_tensor
from .state import implied, moments_of
from .units import Unit, free_part, units

if TYPE_CHECKING:
    from .optimizer import FrankWolfe

__all__ = [
    "BlockGaps", "FreeNorm", "ModifiedGap", "block_gaps", "combine", "convex_bound", "learning_rate", "modified_gap",
    "step_rate",
]  # fmt: skip


# What is kept of a parameter's moments.
MOMENTS = ("exp_avg", "exp_avg_sq", "step")


@dataclass(frozen=True)
class ModifiedGap:
    r"""The modified gap :math:`G = \tilde G \sqrt{2L/C} + \|h\|_*` and what it is made of.

    With several learning rates, the norms of the blocks are scaled so that one smoothness constant serves them all:
    :math:`G = \sum_i \tilde G_i / \sqrt{lr_{ref} \sum_i C_i} + \sqrt{\sum_j (lr_j / lr_{ref}) \|h_j\|_*^2}`, with
    :math:`lr_{ref}` the largest learning rate of the free groups (of all groups, if none is free). A group whose learning
    rate is 0 while others move is frozen, and adds nothing.

    Attributes:
        value: :math:`G`.
        constrained: its first term, the gap of the constrained parameters.
        free: its second term, the gradient norm of the free parameters.
        scale: :math:`\sqrt{lr_{ref} \sum_i C_i}`, which is :math:`\sqrt{C / 2L}`.
        blocks: :math:`\tilde G_i` of every block, by parameter name.

    >>> import torch
    >>> gap = combine([BlockGaps({"fc.weight": 2}, torch.tensor([1.0, 3.0]), 2.0, 0.5)], [FreeNorm(torch.tensor(9.0), 0.5)])
    >>> round(float(gap), 4), float(gap.free), gap.sets
    (4.4142, 3.0, {'fc.weight': tensor(4.)})
    """

    value: Tensor
    constrained: Tensor
    free: Tensor
    scale: Tensor
    blocks: dict[str, Tensor]

    @property
    def sets(self) -> dict[str, Tensor]:
        """The Frank-Wolfe gap of each constrained parameter: the sum over its blocks."""
        return {name: gaps.sum() for name, gaps in self.blocks.items()}

    def __float__(self) -> float:
        return float(self.value)


@dataclass(frozen=True)
class BlockGaps:
    """The gaps of the blocks of some parameters, with what their ``C_i`` are made of.

    ``parameters`` says how many blocks each has. A block of infinite diameter is free, and adds nothing.
    """

    parameters: dict[str, int]
    gaps: Tensor
    diameter: float | Tensor
    lr: float | Tensor
    gradient_bound: float | Tensor | None = None

    def alike(self) -> object:
        """Equal for what can be added up as one: the same numbers, in the same place."""
        numbers = (self.diameter, self.lr, self.gradient_bound)
        return None if any(isinstance(number, Tensor) for number in numbers) else (*numbers, self.gaps.device)


@dataclass(frozen=True)
class FreeNorm:
    """The squared dual norm of one free group's gradient."""

    square: Tensor
    lr: float | Tensor


def modified_gap(
    model: nn.Module,
    loss: Callable[[Any, Any], Tensor],
    batches: Iterable[tuple[Any, Any]],
    optimizer: FrankWolfe,
) -> ModifiedGap:
    """The exact modified gap of a model over a data set.

    Args:
        model: the network, in the mode (train or eval) that it is to be measured in; its buffers and gradients are left
            as they were.
        loss: ``loss(model(inputs), target)``, a mean over the batch.
        batches: pairs ``(inputs, target)``, together the data set; they may differ in size. Under data parallel training
            every process has its share: as many batches as the others, of the same sizes.
        optimizer: says which parameters are constrained to what, and with which learning rates. Under
            ``norm="adaptive"`` the norm is the one that its last step has left; before the first one it is the one that a
            step with this gradient would make. Gradients of constrained parameters are taken as they are, also where
            ``precondition`` scales them for steps: only so is the gap zero at stationary points of the loss alone.

    >>> import torch, inface
    >>> from inface.sets import L1Ball
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> opt = inface.FrankWolfe(model, {"weight": L1Ball(1.0)}, lr=1.0, project=True)
    >>> _ = model.weight.data.copy_(torch.tensor([[1.0, 0.0]]))
    >>> inputs = torch.eye(2)
    >>> data = [(inputs, torch.tensor([[3.0], [0.0]]))]
    >>> float(inface.modified_gap(model, torch.nn.functional.mse_loss, data, opt))
    0.0
    """
    members = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad and p.numel()]
    gradients = dict(zip(members, _full_gradient(model, loss, batches, members), strict=True))
    names = {id(p): name for name, p in model.named_parameters()}
    constrained, free = [], []
    for index, group in enumerate(optimizer.param_groups):
        moving = [p for p in group["params"] if p in gradients]
        descending = []
        if group["set"] is None or group["set"].free is not None:
            parts = [free_part(group["set"], whole(gradients[p])) for p in moving]
            descending = [h for h in parts if h is not None]
        if descending and group["norm"] == "adaptive":
            free.append(FreeNorm(_adaptive_square(optimizer, group, moving, descending), group["lr"]))
        elif descending:
            free.append(FreeNorm(dual_square(descending, group["norm"]), group["lr"]))
        for unit in units(group, index) if group["set"] is not None else ():
            if unit.set.all_free or not any(p in gradients for p in unit.params):
                continue
            known = [whole(gradients[p]) if p in gradients else None for p in unit.params]
            values = [computable(whole(p)) for p in unit.params]
            g = unit.blocks([torch.zeros_like(x) if h is None else h for x, h in zip(values, known, strict=True)])
            gaps = block_gaps(unit.set, unit.blocks(values), -g if group["maximize"] else g)
            own = [names.get(id(p)) for p in unit.params]
            name = unit.name if None in own else " + ".join(map(str, own))
            constrained.append(
                BlockGaps(
                    {name: len(gaps)},
                    gaps,
                    unit.diameter(),
                    learning_rate(optimizer, group, unit),
                    group["gradient_bound"],
                )
            )
    return combine(constrained, free)


def block_gaps(set_: Set, x: Tensor, g: Tensor) -> Tensor:
    """The Frank-Wolfe gap of every block; 0 for those that are free."""
    kept = set_.constrained(x)
    if kept is None:
        return set_.toward(x, g).slope.clamp(min=0)
    gaps = set_.part(kept).toward(x[kept], g[kept]).slope.clamp(min=0)
    return gaps.new_zeros(len(x)).index_copy(0, kept, gaps)


def convex_bound(gap: ModifiedGap, R: float | None = None) -> float:
    r"""An upper bound on :math:`F(x, y) - F^*` for convex :math:`F` (Proposition 2.2).

    Args:
        gap: the exact gap at the point.
        R: a bound on the distance of the free parameters from an optimal point, in their groups' norms; with several
            learning rates, in the norm :math:`\sqrt{\sum_j (lr_{ref} / lr_j) \|y_j\|^2}`. Only where nothing is free,
            or the free gradient is zero, can it be left out.

    >>> import torch
    >>> gap = ModifiedGap(torch.tensor(0.5), torch.tensor(0.25), torch.tensor(0.25), torch.tensor(2.0), {})
    >>> convex_bound(gap, R=3.0)
    1.5
    """
    if R is None:
        if float(gap.free) > 0:
            raise ValueError(
                f"convex_bound: R must be given, a bound on the distance of the free parameters from an optimal point: "
                f"their gradient norm is {float(gap.free):.6g}, not 0"
            )
        return float(gap.scale) * float(gap.value)
    if not R >= 0:
        raise ValueError(f"convex_bound: R must be >= 0, got {R!r}")
    return max(float(gap.scale), float(R)) * float(gap.value)


def combine(constrained: Sequence[BlockGaps], free: Sequence[FreeNorm]) -> ModifiedGap:
    """The modified gap of several parameters and groups; nothing is synchronised with a device."""
    if not constrained and not free:
        unknown = torch.tensor(torch.nan, device="cpu")
        return ModifiedGap(unknown, unknown, unknown, unknown, {})
    like = (constrained[0].gaps if constrained else free[0].square).detach()
    like = like if like.device.type == "mps" else like.double()

    def number(value: float | Tensor) -> Tensor:
        return as_tensor(value, like.dtype, like.device)

    rates = torch.stack(
        [number(lr).reshape(()) for lr in [*(part.lr for part in free), *(part.lr for part in constrained)]]
    )
    reference = rates[: len(free) or None].max()
    reference = torch.where(reference > 0, reference, rates.max())

    def ratio(lr: float | Tensor) -> Tensor:
        """``lr_ref / lr``, which is 1 when a schedule has brought both to 0, and infinite for a frozen group."""
        own = number(lr).reshape(())
        return torch.where(own == reference, 1, reference / own)

    gaps, constant, square = number(0.0), number(0.0), number(0.0)
    for part in _merged(constrained):
        diameter = number(part.diameter)
        diameter = torch.where(torch.isinf(diameter), 0, diameter)
        scaled = diameter.square() * ratio(part.lr)
        if part.gradient_bound is not None:
            scaled = torch.maximum(scaled, reference * number(part.gradient_bound) * diameter)
        moves = torch.isfinite(ratio(part.lr))
        gaps = gaps + torch.where(moves, part.gaps.sum().to(like), 0)
        constant = constant + torch.where(moves, scaled.expand(part.gaps.shape).sum(), 0)
    for norm in free:
        square = square + norm.square.to(like) / ratio(norm.lr)
    first, second = torch.where(constant > 0, gaps / constant.sqrt(), 0), square.sqrt()
    named = {
        name: gaps
        for part in constrained
        for name, gaps in zip(part.parameters, part.gaps.split(list(part.parameters.values())), strict=True)
    }
    return ModifiedGap(first + second, first, second, constant.sqrt(), named)


def _adaptive_square(
    optimizer: FrankWolfe, group: dict[str, Any], params: Sequence[Tensor], grads: list[Tensor]
) -> Tensor:
    """The square of the dual norm of a free gradient in the norm of the moments that the optimizer has."""
    moments = []
    for p, h in zip(params, grads, strict=True):
        state = {key: whole(value) for key, value in optimizer.state.get(p, {}).items() if key in MOMENTS}
        started = "step" in state and bool(state["step"] > 0)
        fresh = Moments(h, (1 - group["betas"][1]) * h.square(), torch.ones((), device="cpu"))
        moments.append(moments_of(group["set"], state) if started else fresh)
    with torch.no_grad():
        return weighted_square(grads, scales(moments, group["betas"], group["eps"]))


def _merged(parts: Sequence[BlockGaps]) -> list[BlockGaps]:
    """As few parts as say the same, so that a thousand layers cost what one does."""
    alike: dict[object, list[BlockGaps]] = {}
    for i, part in enumerate(parts):
        mark = part.alike()
        alike.setdefault(i if mark is None else mark, []).append(part)
    return [
        same[0] if len(same) == 1 else replace(same[0], gaps=torch.cat([part.gaps for part in same]))
        for same in alike.values()
    ]


def learning_rate(optimizer: Optimizer, group: dict[str, Any], unit: Unit) -> float | Tensor:
    """The ``lr = 1 / (2 L)`` of a unit: the group's, or what its last relative step implied."""
    if group["relative"] is None or group["lr"] == 0:
        return group["lr"]
    found = implied(optimizer.state.get(unit.params[0], {}))
    return group["lr"] if found is None else found


def step_rate(diameter: float | Tensor, lr: float | Tensor, gradient_bound: float | Tensor | None) -> float | Tensor:
    """``1 / C_i``, without dividing by ``lr``; 0 for a set that is a single point.

    >>> step_rate(2.0, 0.5, None), step_rate(2.0, 0.5, 10.0), step_rate(0.0, 0.5, None)
    (0.125, 0.05, 0.0)
    """
    tensors = [number for number in (diameter, lr, gradient_bound) if isinstance(number, Tensor)]
    if not tensors:
        rate = lr / diameter**2 if diameter > 0 else 0.0
        return rate if gradient_bound is None or diameter == 0 else min(rate, 1 / (gradient_bound * diameter))
    device = next((number.device for number in tensors if number.ndim > 0), tensors[0].device)
    # Not torch's default dtype: a float64 parameter must not move by steps that are rounded to float32.
    dtype = torch.float32 if any(number.device.type == "mps" for number in tensors) else torch.float64
    size = as_tensor(diameter, dtype, device)
    positive = torch.where(size > 0, size, 1)
    # As tensors: torch divides a number by a tensor with one more rounding.
    rate = (lr if isinstance(lr, Tensor) else as_tensor(lr, dtype, device)) / positive.square()
    if gradient_bound is not None:
        rate = torch.minimum(rate, 1 / (as_tensor(gradient_bound, dtype, device) * positive))
    return torch.where(size > 0, rate, 0)


def _full_gradient(
    model: nn.Module, loss: Callable[[Any, Any], Tensor], batches: Iterable[tuple[Any, Any]], params: list[Tensor]
) -> list[Tensor]:
    """The gradient of the mean loss over all batches, in at least float32."""
    totals = [torch.zeros_like(computable(p.detach())) for p in params]
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    # Of parameters that FSDP gathers for a forward pass, autograd knows others: their gradients come by backward() alone.
    kept = {p: p.grad for p in (*model.parameters(), *params)} if any(is_sharded(p) for p in params) else {}
    seen = 0
    try:
        with torch.enable_grad(), dense_gradients():
            for inputs, target in batches:
                size = len(target)
                gradients: Sequence[Tensor | None]
                if kept:
                    for p in kept:
                        p.grad = None
                    loss(model(inputs), target).backward()
                    gradients = [p.grad for p in params]
                else:
                    gradients = torch.autograd.grad(loss(model(inputs), target), params, allow_unused=True)
                for total, gradient in zip(totals, gradients, strict=True):
                    if gradient is not None:
                        total.add_(gradient, alpha=size)
                seen += size
    finally:
        for p, g in kept.items():
            p.grad = g
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])
    if seen == 0:
        raise ValueError("modified_gap: batches is empty, wanted at least one pair (inputs, target)")
    return [total.div_(seen) for total in totals]
