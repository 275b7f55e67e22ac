"""Steepest descent for the free parameters (the paper's Step 3), in the norm of their group.

For a gradient ``h`` and a norm ``|.|`` on a whole group, the step is ``y <- y - lr |h|_* u`` with ``u`` the unit vector
that maximises ``<h, u>``:

============  ===========================================================  ==========================
norm          step                                                         dual norm ``|h|_*``
============  ===========================================================  ==========================
``l2``        ``lr h``: SGD                                                ``|h|_2``
``l1``        ``lr h_j`` for the largest entry of the group alone          ``max_j |h_j|``
``linf``      ``lr |h|_1 sign(h)``                                         ``|h|_1``
``spectral``  ``lr |H|_nuc U V^T`` for each matrix ``H = U S V^T``         ``sqrt(sum |H|_nuc^2)``
``adaptive``  ``lr h / s``, ``s = sqrt(v) + eps``: AdamW                   ``sqrt(sum h_j^2 / s_j)``
============  ===========================================================  ==========================

The norm ``adaptive`` changes with every gradient: ``h`` is the running average of gradients and ``v`` that of their squares,
both corrected for their start at zero. It is in :mod:`inface.adaptive`; the others are here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from .linalg import polar

__all__ = ["FixedNorm", "Norm", "descend", "dual_square"]

FixedNorm = Literal["l2", "l1", "linf", "spectral"]
Norm = Literal["l2", "l1", "linf", "spectral", "adaptive"]


def descend(
    params: list[Tensor], grads: list[Tensor], lr: float | Tensor, norm: FixedNorm, weight_decay: float = 0.0
) -> Tensor:
    """Move ``params`` in place, and return the square of the gradient's dual norm (a 0-d tensor, not synchronised).

    With ``weight_decay`` they shrink first, by ``1 - lr * weight_decay``.

    >>> import torch
    >>> y = torch.tensor([1.0, 2.0])
    >>> descend([y], [torch.tensor([3.0, -4.0])], lr=0.1, norm="l1"), y
    (tensor(16.), tensor([1.0000, 2.4000]))
    """
    if weight_decay:
        shrink = 1 - lr * weight_decay
        if torch.is_grad_enabled():
            for p in params:
                p.mul_(shrink)
        else:
            torch._foreach_mul_(params, shrink)
    return _STEPS[norm](params, grads, lr)


def dual_square(grads: list[Tensor], norm: FixedNorm) -> Tensor:
    """The square of the dual norm of a group's gradient.

    >>> import torch
    >>> dual_square([torch.tensor([3.0]), torch.tensor([-4.0])], "linf")
    tensor(49.)
    """
    if norm == "l2":
        return _together(torch._foreach_norm(grads)).square().sum()
    if norm == "l1":
        return _together([h.abs().max() for h in grads]).max().square()
    if norm == "linf":
        return _together(torch._foreach_norm(grads, 1)).sum().square()
    return _together([torch.linalg.svdvals(_matrix(h)).sum() for h in grads]).square().sum()


def _l2(params: list[Tensor], grads: list[Tensor], lr: float | Tensor) -> Tensor:
    if torch.is_grad_enabled():
        for p, h in zip(params, grads, strict=True):
            p.sub_(lr * h)
    elif isinstance(lr, Tensor):
        torch._foreach_sub_(params, torch._foreach_mul(grads, lr))
    else:
        torch._foreach_add_(params, grads, alpha=-lr)
    return dual_square(grads, "l2")


def _l1(params: list[Tensor], grads: list[Tensor], lr: float | Tensor) -> Tensor:
    largest = [h.abs().flatten().max(0) for h in grads]
    sizes = _together([found.values for found in largest])
    winner = sizes.argmax()
    for i, (p, h, found) in enumerate(zip(params, grads, largest, strict=True)):
        at = found.indices.reshape(1)  # as an index without dimensions it would be looked at
        move = torch.where(winner.to(h.device) == i, lr * h.flatten().gather(0, at), 0)
        change = torch.zeros_like(h).flatten().scatter(0, at, move.to(h.dtype))
        p.sub_(change.reshape(p.shape))
    return sizes.max().square()


def _linf(params: list[Tensor], grads: list[Tensor], lr: float | Tensor) -> Tensor:
    square = dual_square(grads, "linf")
    for p, h in zip(params, grads, strict=True):
        p.sub_((lr * square.sqrt()).to(h) * h.sign())
    return square


def _spectral(params: list[Tensor], grads: list[Tensor], lr: float | Tensor) -> Tensor:
    sizes = []
    for p, h in zip(params, grads, strict=True):
        matrix = _matrix(h).unsqueeze(0)
        # LAPACK refuses what is not finite; under the other norms such a gradient makes its parameter NaN.
        finite = torch.isfinite(matrix).all()
        factor, size = polar(torch.where(finite, matrix, 0))
        size = torch.where(finite, size, torch.nan)
        p.sub_((lr * size * factor).reshape(p.shape))
        sizes.append(size[0])
    return _together(sizes).square().sum()


_STEPS: dict[str, Callable[[list[Tensor], list[Tensor], float | Tensor], Tensor]] = {
    "l2": _l2,
    "l1": _l1,
    "linf": _linf,
    "spectral": _spectral,
}


def _matrix(h: Tensor) -> Tensor:
    """(first dimension, the rest); a vector is a matrix of one column, whose spectral norm is its l2 norm."""
    return h.reshape(h.shape[0] if h.ndim else 1, -1)


def _together(numbers: Sequence[Tensor]) -> Tensor:
    """0-d tensors as one, on the device and in the dtype of the first."""
    return torch.stack([number.to(numbers[0]) for number in numbers])
