"""Adam with decoupled weight decay, as steepest descent: free parameters under ``norm="adaptive"``.

With the running averages ``m`` of a group's gradients and ``v`` of their squares, corrected for their start at zero
(D. P. Kingma, J. Ba, 2015), and ``s = sqrt(v) + eps``:

- the norm of the group is ``|y|^2 = sum_j s_j y_j^2``, so that its dual norm is ``|m|_*^2 = sum_j m_j^2 / s_j``;
- the steepest-descent step of length ``lr |m|_*`` is ``y <- y - lr m / s``, which is Adam's;
- before it, ``y`` shrinks by ``1 - lr * weight_decay`` (I. Loshchilov, F. Hutter, 2019: AdamW).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .sets.base import can_look, number, wide

__all__ = ["Moments", "accumulate", "correction", "count", "descend_adaptively", "scales", "weighted_square"]

Betas = tuple[float, float]


class Moments(NamedTuple):
    """What is known of a parameter's gradients: their running average, that of their squares, and how many there were.

    The averages start at zero and are not corrected for it. ``step`` is a 0-d float32 tensor, as torch's: on the CPU, or
    beside the parameter if it is ``capturable``.

    >>> import torch
    >>> Moments(torch.zeros(2), torch.zeros(2), torch.tensor(0.0)).step
    tensor(0.)
    """

    first: Tensor
    second: Tensor
    step: Tensor


def accumulate(moments: list[Moments], grads: list[Tensor], betas: Betas) -> list[Moments]:
    """Take a gradient of every parameter into its moments: in place, unless autograd looks on.

    >>> import torch
    >>> moments = [Moments(torch.zeros(2), torch.zeros(2), torch.tensor(0.0))]
    >>> accumulate(moments, [torch.tensor([1.0, -2.0])], (0.5, 0.75))
    [Moments(first=tensor([ 0.5000, -1.0000]), second=tensor([0.2500, 1.0000]), step=tensor(1.))]
    """
    one, two = betas
    count([moment.step for moment in moments])
    if torch.is_grad_enabled():
        return [
            Moments(torch.lerp(m.first, g, 1 - one), two * m.second + (1 - two) * g.square(), m.step)
            for m, g in zip(moments, grads, strict=True)
        ]
    torch._foreach_lerp_([moment.first for moment in moments], grads, 1 - one)
    second = [moment.second for moment in moments]
    torch._foreach_mul_(second, two)
    torch._foreach_addcmul_(second, grads, grads, 1 - two)
    return moments


def descend_adaptively(
    params: list[Tensor],
    moments: list[Moments],
    lr: float | Tensor,
    *,
    betas: Betas,
    eps: float,
    weight_decay: float = 0.0,
) -> Tensor:
    """Move ``params`` in place, and return the square of the dual norm (a 0-d tensor, not synchronised).

    >>> import torch
    >>> y = torch.tensor([1.0, 2.0])
    >>> moments = [Moments(torch.zeros(2), torch.zeros(2), torch.tensor(0.0))]
    >>> moments = accumulate(moments, [torch.tensor([3.0, -4.0])], (0.9, 0.999))
    >>> square = descend_adaptively([y], moments, lr=0.1, betas=(0.9, 0.999), eps=1e-8)
    >>> round(float(square), 4), y
    (7.0, tensor([0.9000, 2.1000]))
    """
    first = [moment.first for moment in moments]
    corrections = [correction(betas[0], moment.step) for moment in moments]
    sizes = scales(moments, betas, eps)
    if torch.is_grad_enabled():
        for p, m, size, own in zip(params, first, sizes, corrections, strict=True):
            if weight_decay:
                p.mul_(1 - lr * weight_decay)
            p.sub_(lr / own * (m / size))
    else:
        if weight_decay:
            torch._foreach_mul_(params, 1 - lr * weight_decay)
        if isinstance(lr, Tensor) and lr.device.type != "mps":
            lr = lr.double()  # rounded once, as a number is
        rates = [-(lr / own) for own in corrections]
        plain = [rate for rate in rates if not isinstance(rate, Tensor)]
        if len(plain) == len(rates):
            torch._foreach_addcdiv_(params, first, sizes, plain)
        else:  # of a tensor lr, or inside torch.compile; the same operations in the same order
            steps = torch._foreach_mul(
                first, [number(rate, m.dtype, m.device) for m, rate in zip(first, rates, strict=True)]
            )
            torch._foreach_div_(steps, sizes)
            torch._foreach_add_(params, list(steps))
    return weighted_square(first, sizes, corrections)


def scales(moments: list[Moments], betas: Betas, eps: float) -> list[Tensor]:
    """The weights ``s = sqrt(v) + eps`` of the norm, with ``v`` corrected for its start at zero.

    >>> import torch
    >>> scales([Moments(torch.zeros(2), torch.tensor([0.25, 1.0]), torch.tensor(1.0))], (0.5, 0.75), eps=0.5)
    [tensor([1.5000, 2.5000])]
    """
    roots = [correction(betas[1], moment.step) ** 0.5 for moment in moments]
    second = [moment.second for moment in moments]
    if torch.is_grad_enabled():
        return [v.sqrt() / root + eps for v, root in zip(second, roots, strict=True)]
    found = torch._foreach_sqrt(second)
    torch._foreach_div_(found, roots)
    torch._foreach_add_(found, eps)
    return list(found)


def weighted_square(
    grads: list[Tensor], sizes: list[Tensor], corrections: Sequence[float | Tensor] | None = None
) -> Tensor:
    """The square ``sum_j h_j^2 / s_j`` of the dual norm of ``h = grads / corrections``; ``sizes`` are overwritten.

    >>> import torch
    >>> weighted_square([torch.tensor([3.0, -4.0])], [torch.tensor([3.0, 4.0])])
    tensor(7.)
    """
    pairs = zip(grads, sizes, strict=True)
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        squares = [torch.dot(h.flatten(), (h / size).flatten()).detach() for h, size in pairs]
    else:
        squares = [torch.dot(h.flatten(), torch.div(h, size, out=size).flatten()) for h, size in pairs]
    if corrections is not None:
        squares = [square / _like(square, own**2) for square, own in zip(squares, corrections, strict=True)]
    return torch.stack([square.to(squares[0]) for square in squares]).sum()


def count(steps: list[Tensor]) -> None:
    """Add one to each number of gradients, in place.

    >>> import torch
    >>> step = torch.tensor(2.0)
    >>> count([step])
    >>> step
    tensor(3.)
    """
    if not torch.compiler.is_compiling() and steps[0].is_cpu:
        torch._foreach_add_(steps, torch.tensor(1.0, device="cpu"))  # a number would become such a tensor for each
    else:
        torch._foreach_add_(steps, 1)


def correction(beta: float, step: Tensor) -> float | Tensor:
    """``1 - beta^step``: a number, or a tensor where a compiled or captured step is to serve for every count.

    >>> import torch
    >>> correction(0.5, torch.tensor(2.0))
    0.75
    """
    if can_look(step):
        return float(1.0 - beta ** step.item())
    return 1 - torch.pow(beta, step.to(wide(step)))


def _like(x: Tensor, number: float | Tensor) -> float | Tensor:
    """A 0-d tensor in the dtype of another, with which it would else be computed in its own."""
    return number.to(x) if isinstance(number, Tensor) else number
