"""Algorithm 1 of the paper for the l1 ball with away steps, as it is printed: the thing to read first.

:class:`inface.FrankWolfe` takes the same steps for every set, in other norms, with momentum, and fast; the tests hold it
to these lines. ``x`` has one l1 ball per row, ``S_i = {x_i : |x_i|_1 <= r_i}`` of diameter ``2 r_i``, and ``y`` is free.
The learning rate is ``lr = 1 / (2 L)`` with the paper's smoothness constant ``L``, so that ``C_i = diam_i^2 / lr``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["algorithm_1", "away_step", "frank_wolfe_step", "steepest_descent_step"]

# A row is on the boundary of its ball if rounding alone could have taken it off: 8 eps of the radius.
ULPS = 8


def algorithm_1(
    x: Tensor,
    y: Tensor,
    gradient: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    radius: float | Tensor,
    lr: float,
    iterations: int,
    *,
    away: bool = True,
) -> tuple[Tensor, Tensor]:
    """Algorithm 1 with the block steps of Section 3: the last iterates ``x_K`` and ``y_K``.

    Args:
        x: a matrix, every row in its ball.
        y: the free parameters.
        gradient: ``gradient(x, y)`` is a stochastic gradient in ``x`` and in ``y``, from a new sample at each call.
        radius: of the balls: a number, or a tensor with one for each row.
        lr: ``1 / (2 L)``.
        iterations: the paper's ``K``.
        away: AlternativeDirections = TRUE, with away steps.

    >>> import torch
    >>> wanted = torch.tensor([[2.0, 0.5, 0.0]])
    >>> x, y = algorithm_1(torch.zeros(1, 3), torch.ones(2), lambda x, y: (x - wanted, y), 1.0, lr=0.5, iterations=50)
    >>> x, y.abs().max() < 1e-6
    (tensor([[1., 0., 0.]]), tensor(True))
    """
    r = torch.as_tensor(radius, dtype=x.dtype).reshape(-1, 1)
    for _ in range(iterations):
        g, h = gradient(x, y)  # 1.
        x = frank_wolfe_step(x, g, r, lr)  # 2.
        y = steepest_descent_step(y, h, lr)  # 3.
        if away:
            g, _ = gradient(x, y)  # 4a.
            x = away_step(x, g, r, lr)  # 4b.
    return x, y


def frank_wolfe_step(x: Tensor, g: Tensor, r: Tensor, lr: float) -> Tensor:
    """Step 2, on each row: ``x + alpha (v - x)`` with ``alpha = G / C``.

    ``v = argmin {<g, v> : v in S}`` is ``-r sgn(g_j) e_j`` with ``j = argmax |g_j|``, and ``G = <g, x - v>`` is the gap.
    ``alpha`` is at most 1: the next point is in the ball whatever ``L`` is.

    >>> import torch
    >>> frank_wolfe_step(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0]]), lr=1.0)
    tensor([[ 0.7500, -0.2500]])
    """
    j = g.abs().argmax(1, keepdim=True)
    v = torch.zeros_like(x).scatter(1, j, torch.where(g.gather(1, j) > 0, -r, r))
    G = _dot(g, x - v)
    alpha = (G * lr / (2 * r) ** 2).clamp(0, 1)
    end = torch.lerp(x, v, alpha)  # exactly v at alpha = 1
    stays = _on_boundary(x, r) & (_dot(v, x) >= 0)  # then x and v are in one face, which the step does not leave
    return torch.where(stays & (alpha > 0) & (alpha < 1), _onto_boundary(end, r), end)


def steepest_descent_step(y: Tensor, h: Tensor, lr: float) -> Tensor:
    """Step 3 in the l2 norm: ``y - alpha h / |h|`` with ``alpha = |h| / (2 L)``.

    >>> import torch
    >>> steepest_descent_step(torch.tensor([1.0]), torch.tensor([2.0]), lr=0.25)
    tensor([0.5000])
    """
    return y - lr * h


def away_step(x: Tensor, g: Tensor, r: Tensor, lr: float) -> Tensor:
    """Step 4b, on each row: ``x + beta d`` with ``d = x - w``, ``A = -<g, d>`` and ``beta = min(A / C, stop)``.

    ``w = argmax {<g, w> : w in F(x)}`` is the worst vertex ``s r e_j`` of the minimal face of ``x``: on the boundary the
    face has the signed support of ``x`` (``s = sgn(x_j)``), inside it is the ball (``s = sgn(g_j)``). With ``R`` the sum
    of the other ``|x_i|``, ``x + a d`` stays in the ball up to ``stop = |x_j| / R`` on the boundary, where ``x_j``
    arrives at zero, and up to ``(r - R + s x_j) / (r + R - s x_j)`` inside, where the row arrives at the boundary.

    >>> import torch
    >>> away_step(torch.tensor([[0.75, -0.25]]), torch.tensor([[0.0, -1.0]]), torch.tensor([[1.0]]), lr=9.0)
    tensor([[1., 0.]])
    """
    on = _on_boundary(x, r)
    price = torch.where(on, torch.where(x != 0, x.sign() * g, -torch.inf), g.abs())
    j = price.argmax(1, keepdim=True)
    x_j = x.gather(1, j)
    s = torch.where(on, x_j.sign(), torch.where(g.gather(1, j) < 0, -1, 1).to(x.dtype))
    R = x.scatter(1, j, 0).abs().sum(1, keepdim=True)
    d = x - torch.zeros_like(x).scatter(1, j, s * r)
    A = -_dot(g, d)
    stop = torch.where(on, x_j.abs() / R, (r - R + s * x_j) / (r + R - s * x_j))
    beta = torch.minimum(A * lr / (2 * r) ** 2, stop)
    dropped = beta == stop
    end = x + beta * d
    end = torch.where(on & dropped, end.scatter(1, j, 0), end)  # an exact zero
    end = torch.where(on | dropped, _onto_boundary(end, r), end)
    vertex = on & (R == 0)  # its own minimal face: d = 0
    return torch.where((A > 0) & ~vertex, end, x)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(1, keepdim=True)


def _on_boundary(x: Tensor, r: Tensor) -> Tensor:
    return x.abs().sum(1, keepdim=True) >= r * (1 - ULPS * torch.finfo(x.dtype).eps)


def _onto_boundary(x: Tensor, r: Tensor) -> Tensor:
    """Take off what rounding put on, or put on what it took off."""
    return x * (r / x.abs().sum(1, keepdim=True))
