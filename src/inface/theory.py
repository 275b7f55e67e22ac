"""The guarantees of the paper, as numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from .gap import learning_rate
from .sets import Set, blocks
from .sets.norms import equivalence
from .units import free_part, units

if TYPE_CHECKING:
    from .optimizer import FrankWolfe

__all__ = ["kappa", "squared_gap_bound"]


def kappa(optimizer: FrankWolfe) -> float:
    r"""The ratio of norms :math:`\kappa = \kappa_1 \kappa_2` of Theorems 2.1 and 3.1, of the norms that an optimizer uses.

    .. math::
        \kappa_1 = \max_{(x, y) \ne 0} \|(x, y)\|_2 / \|(x, y)\|, \qquad
        \kappa_2 = \max_{(x, y) \ne 0} \|(x, y)\| / \|(x, y)\|_2

    The norm on all variables is the Euclidean combination of the norms of the blocks (their sets' ``norm``) and of the
    free groups (their ``norm``), so each maximum is the largest of theirs. With several learning rates the norm of each is
    scaled by :math:`\sqrt{lr_{ref} / lr}`, as in :class:`inface.ModifiedGap`, and ``sigma`` of the bound is measured in
    the norms so scaled. Groups with a learning rate of 0 while others move, and frozen parameters, do not count.

    Raises:
        ValueError: free parameters under ``norm="adaptive"``, whose norm changes with every gradient.

    >>> import torch, inface
    >>> from inface.sets import L1Ball
    >>> model = torch.nn.Linear(9, 2)
    >>> kappa(inface.FrankWolfe(model, {"weight": L1Ball(1.0)}, lr=0.1, project=True))
    1.0
    >>> kappa(inface.FrankWolfe(model, {"weight": L1Ball(1.0, norm="l1")}, lr=0.1, project=True))
    3.0
    """
    found: list[tuple[float, float, float]] = []
    for index, group in enumerate(optimizer.param_groups):
        set_: Set | None = group["set"]
        moving_params = [p for p in group["params"] if p.requires_grad and p.numel()]
        parts = [free_part(set_, torch.empty(p.shape, device="meta")) for p in moving_params]
        shapes = [part.shape for part in parts if part is not None]
        if group["norm"] == "adaptive" and shapes:
            raise ValueError(
                f"kappa: wanted norms that stay as they are, got norm='adaptive' (group {index}), which every gradient changes"
            )
        if group["norm"] == "spectral":
            ratios = [equivalence("spectral", shape.numel(), _rank(shape)) for shape in shapes]
        else:
            ratios = [equivalence(group["norm"], sum(shape.numel() for shape in shapes), 1)] if shapes else []
        found += [(float(group["lr"]), *ratio) for ratio in ratios]
        for unit in units(group, index) if set_ is not None and not set_.all_free else ():
            if any(p.requires_grad for p in unit.params):
                shape, lr = blocks.shape(unit.size, unit.set.per), learning_rate(optimizer, group, unit)
                found.append((float(lr), *equivalence(unit.set.norm_name, shape.numel(), _rank(shape))))
    moving = [part for part in found if part[0] > 0] or [(1.0, first, second) for _, first, second in found]
    if not moving:
        return 1.0
    largest = max(lr for lr, *_ in moving)
    first_ratio = max(first * (lr / largest) ** 0.5 for lr, first, _ in moving)
    return first_ratio * max(second * (largest / lr) ** 0.5 for lr, _, second in moving)


def squared_gap_bound(
    iterations: int,
    *,
    L: float,
    initial: float,
    sigma: float,
    batch_sizes: int | Sequence[int] | Callable[[int], int],
    kappa: float | None = None,
    optimizer: FrankWolfe | None = None,
    in_face: bool | None = None,
    in_face_steps: int | None = None,
) -> float:
    r"""The right-hand side of Theorems 2.1 and 3.1: what the expected squared gap of a random iterate stays under.

    .. math::
        \mathbb{E}[G(\hat x_K, \hat y_K)^2] \le \frac{8 L (F(x_0, y_0) - F^*)}{K + 1}
        + \frac{4 \alpha_{AD} \kappa^2 \sigma^2}{K + 1} \sum_{k=0}^{K} \frac{1}{b_k}

    Args:
        iterations: :math:`K`. The iterate is drawn from :math:`(x_0, y_0), \ldots, (x_K, y_K)`, which is what
            :class:`inface.RandomIterate` does.
        L: the smoothness constant; the optimizer's ``lr`` is :math:`1 / (2 L)`.
        initial: :math:`F(x_0, y_0) - F^*`.
        sigma: the bound on the standard deviation of a single sample's gradient.
        batch_sizes: :math:`b_k`: a number, a sequence of at least ``K + 1``, or a schedule of :mod:`inface.batches`.
        kappa: the ratio of norms; 1 for l2 norms and one learning rate. Where ``sigma`` is not 0, either it or the
            optimizer must be given.
        optimizer: gives its :func:`kappa`, and ``in_face`` and ``in_face_steps`` where they are not given.
        in_face: whether in-face steps are taken (:math:`\alpha_{AD} = 2`) or not (:math:`\alpha_{AD} = 1`); without an
            optimizer, they are not unless this says so. An iteration with them uses two gradients.
        in_face_steps: how many of them an iteration takes, each with a gradient of ``b_k`` samples. Each adds what the
            paper's one adds: :math:`\alpha_{AD} = 1 + \mathrm{in\_face\_steps}`.

    >>> squared_gap_bound(99, L=2.0, initial=1.0, sigma=0.0, batch_sizes=1)
    0.16
    >>> squared_gap_bound(99, L=2.0, initial=1.0, sigma=0.5, batch_sizes=100, kappa=1.0, in_face=True)
    0.18
    """
    ratio = _given_ratio(kappa, optimizer, sigma)
    if in_face is None:
        groups = [] if optimizer is None else optimizer.param_groups
        in_face = any(group["set"] is not None and group["in_face"] is not None for group in groups)
    if in_face_steps is None:
        groups = [] if optimizer is None else optimizer.param_groups
        moving = [
            group["in_face_steps"] for group in groups if group["set"] is not None and group["in_face"] is not None
        ]
        in_face_steps = max(moving, default=1)
    for name, value, least in (
        ("iterations", iterations, 0),
        ("L", L, 0),
        ("initial", initial, 0),
        ("sigma", sigma, 0),
        ("kappa", ratio, 1),
        ("in_face_steps", in_face_steps, 1),
    ):
        if not value >= least:
            raise ValueError(f"squared_gap_bound: {name} must be >= {least}, got {value!r}")
    if not isinstance(iterations, int):
        raise ValueError(f"squared_gap_bound: iterations must be a whole number, got {iterations!r}")
    if not isinstance(batch_sizes, int) and not callable(batch_sizes) and len(batch_sizes) <= iterations:
        raise ValueError(f"squared_gap_bound: wanted {iterations + 1} batch sizes b_0 to b_K, got {len(batch_sizes)}")
    total = 0.0
    for k in range(iterations + 1):
        size = (
            batch_sizes if isinstance(batch_sizes, int) else batch_sizes(k) if callable(batch_sizes) else batch_sizes[k]
        )
        if size < 1:
            raise ValueError(f"squared_gap_bound: batch sizes must be >= 1, got b_{k} = {size!r}")
        total += 1 / size
    noise = 4 * (1 + in_face_steps if in_face else 1) * ratio**2 * sigma**2
    return (8 * L * initial + noise * total) / (iterations + 1)


_kappa = kappa  # also where an argument has its name


def _given_ratio(kappa: float | None, optimizer: FrankWolfe | None, sigma: float) -> float:
    if kappa is not None and optimizer is not None:
        raise ValueError(f"squared_gap_bound: wanted kappa or the optimizer, got kappa={kappa!r} and an optimizer")
    if optimizer is not None:
        return _kappa(optimizer)
    if kappa is None and sigma != 0:
        raise ValueError(
            f"squared_gap_bound: with sigma = {sigma!r}, wanted kappa (1 for l2 norms and one learning rate) or optimizer=, "
            f"got neither"
        )
    return 1.0 if kappa is None else kappa


def _rank(shape: torch.Size) -> int:
    """The largest rank of a block of this shape, matricised as (first dimension, the rest)."""
    return min(shape[0], shape.numel() // shape[0]) if shape else 1
