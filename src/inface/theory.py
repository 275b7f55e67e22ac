"""The guarantees of the paper, as numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["squared_gap_bound"]


def squared_gap_bound(
    iterations: int,
    *,
    L: float,
    initial: float,
    sigma: float,
    batch_sizes: int | Sequence[int] | Callable[[int], int],
    kappa: float = 1.0,
    in_face: bool = False,
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
        kappa: the ratio of norms; 1 for l2 norms.
        in_face: whether in-face steps are taken (:math:`\alpha_{AD} = 2`) or not (:math:`\alpha_{AD} = 1`). An iteration
            with them uses two gradients.

    >>> squared_gap_bound(99, L=2.0, initial=1.0, sigma=0.0, batch_sizes=1)
    0.16
    >>> squared_gap_bound(99, L=2.0, initial=1.0, sigma=0.5, batch_sizes=100, in_face=True)
    0.18
    """
    for name, value, least in (
        ("iterations", iterations, 0),
        ("L", L, 0),
        ("initial", initial, 0),
        ("sigma", sigma, 0),
        ("kappa", kappa, 1),
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
    noise = 4 * (2 if in_face else 1) * kappa**2 * sigma**2
    return (8 * L * initial + noise * total) / (iterations + 1)
