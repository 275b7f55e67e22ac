"""The matrix factorisations behind the nuclear and spectral sets, each with the accuracy it reaches.

All of them take a batch of matrices ``(N, m, n)`` in float32 or float64, and none draws from the global random state.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Factors", "TopPair", "frobenius", "polar", "power_of_two", "svd", "top_pair"]

# Below this size LAPACK's whole decomposition is faster than iterating (one thread, square matrices).
SMALL = 96
# Krylov dimension at which iterating is given up for the whole decomposition.
KRYLOV = 60


class TopPair(NamedTuple):
    """The largest singular value of each matrix with its vectors: ``a v = sigma u``."""

    u: Tensor
    sigma: Tensor
    v: Tensor


class Factors(NamedTuple):
    """``a = u diag(s) v^T`` for each matrix."""

    u: Tensor
    s: Tensor
    v: Tensor


def top_pair(a: Tensor) -> TopPair:
    """The leading singular triple of each matrix.

    Small matrices take LAPACK's thin SVD. Larger ones take Golub-Kahan-Lanczos bidiagonalisation with full
    reorthogonalisation, stopped when the residual ``|a^T u - sigma v|`` falls below ``32 eps sigma`` for every matrix
    of the batch, so that ``sigma`` is right to ``32 eps`` relative (quadratically better where the leading singular
    value is separated); a batch that has not converged in 60 steps falls back to the thin SVD. Zero matrices give
    ``sigma = 0`` with the first unit vectors.

    >>> import torch
    >>> u, sigma, v = top_pair(torch.diag(torch.tensor([3.0, 2.0, 1.0])).unsqueeze(0))
    >>> round(float(sigma), 6), [round(abs(float(c)), 6) for c in u[0]]
    (3.0, [1.0, 0.0, 0.0])
    """
    found = None if min(a.shape[-2:]) <= SMALL else _lanczos(a)
    if found is None:
        u, s, vh = torch.linalg.svd(a, full_matrices=False)
        found = TopPair(_unit(u[..., 0]), s[..., 0], _unit(vh[..., 0, :]))
    zero = (found.sigma == 0).unsqueeze(-1)
    u, v = (torch.where(zero, _first_axis(vector), vector) for vector in (found.u, found.v))
    return TopPair(u, _values(a, u.unsqueeze(-1), v.unsqueeze(-1)).squeeze(-1), v)


def svd(a: Tensor, tol: Tensor) -> Factors:
    """The singular value decomposition of each matrix, up to singular values of at most ``tol`` (one number per matrix).

    A low-rank matrix, which is what a nuclear ball's iterate is, is sketched by a random range finder whose width
    doubles until what it leaves out has a Frobenius norm of at most ``tol``; a matrix that is not low-rank gets
    LAPACK's thin SVD. Singular values of at most ``tol`` come back as exact zeros, and trailing columns that are zero
    for the whole batch are cut off (one column always stays).

    >>> import torch
    >>> u, s, v = svd(torch.ones(1, 3, 2), torch.tensor([1e-6]))
    >>> s.shape, round(float(s[0, 0]), 4)
    (torch.Size([1, 1]), 2.4495)
    """
    scale = _scale(a)
    u, _, v = _sketched(a / scale.reshape(-1, 1, 1), tol / scale)
    u, v = _unit(u.mT).mT, _unit(v.mT).mT
    s = _values(a, u, v)
    used = s > tol.unsqueeze(-1)
    rank = max(1, int((used * torch.arange(1, s.shape[-1] + 1, device=s.device)).max()))
    return Factors(u[..., :rank], torch.where(used, s, 0)[..., :rank], v[..., :rank])


def polar(a: Tensor) -> tuple[Tensor, Tensor]:
    """The polar factor ``U V^T`` of each matrix and its nuclear norm, by LAPACK's thin SVD: backward stable.

    A Newton-Schulz step takes what LAPACK leaves of non-orthogonality, which grows with the size, to a few eps. Singular
    vectors of zero singular values are completed by LAPACK, so the factor always has orthonormal rows or
    columns.

    >>> import torch
    >>> factor, norm = polar(torch.diag(torch.tensor([2.0, -3.0])).unsqueeze(0))
    >>> [round(float(d), 6) for d in factor[0].diagonal()], round(float(norm), 6)
    ([1.0, -1.0], 5.0)
    """
    u, s, vh = torch.linalg.svd(a, full_matrices=False)
    factor = (u @ vh).to(_exact(a))
    if a.shape[-2] < a.shape[-1]:
        factor = (1.5 * factor) - 0.5 * (factor @ factor.mT) @ factor
    else:
        factor = (1.5 * factor) - 0.5 * factor @ (factor.mT @ factor)
    return factor.to(a.dtype), s.sum(-1)


def frobenius(a: Tensor) -> Tensor:
    """The Frobenius norm of each matrix, in its own dtype; squares neither vanish nor overflow.

    >>> import torch
    >>> frobenius(torch.full((1, 4, 4), 2.0**100)) == 2.0**102
    tensor([True])
    """
    scale = _scale(a)
    return torch.linalg.matrix_norm(a / scale.reshape(-1, 1, 1)) * scale


def power_of_two(largest: Tensor) -> Tensor:
    """A power of two just below each number: what divides by it loses no digit. 1 for what is zero or not finite.

    >>> import torch
    >>> power_of_two(torch.tensor([3.0, 2.0**-149, 0.0])).tolist() == [2.0, 2.0**-149, 1.0]
    True
    """
    usable = (largest > 0) & torch.isfinite(largest)
    return torch.where(usable, largest / (2 * torch.frexp(torch.where(usable, largest, 1)).mantissa), 1)


def _first_axis(vector: Tensor) -> Tensor:
    axis = torch.zeros_like(vector)
    axis[..., 0] = 1
    return axis


def _gaussian(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Fixed random numbers, the same on every device."""
    source = torch.Generator("cpu").manual_seed(0)
    return torch.randn(shape, generator=source, dtype=like.dtype, device="cpu").to(like.device)


def _sketched(a: Tensor, tol: Tensor) -> Factors:
    size = min(a.shape[-2:])
    width = 16
    while size > SMALL and width <= size // 4:
        q = torch.linalg.qr(a @ _gaussian((a.shape[-1], width), a)).Q
        q = torch.linalg.qr(a @ (a.mT @ q)).Q
        core = q.mT @ a
        if bool((torch.linalg.matrix_norm(a - q @ core) <= tol).all()):
            u, s, vh = torch.linalg.svd(core, full_matrices=False)
            return Factors(q @ u, s, vh.mT)
        width *= 2
    u, s, vh = torch.linalg.svd(a, full_matrices=False)
    return Factors(u, s, vh.mT)


def _lanczos(a: Tensor) -> TopPair | None:
    """Golub-Kahan-Lanczos; None when it has not converged."""
    n = a.shape[-1]
    tol = 32 * torch.finfo(a.dtype).eps
    scale = _scale(a)
    a = a / scale.reshape(-1, 1, 1)
    v = _unit(_gaussian((n,), a).expand(a.shape[0], n))
    us: list[Tensor] = []
    vs = [v]
    alphas: list[Tensor] = []
    betas: list[Tensor] = []
    largest = torch.zeros_like(scale)
    for step in range(1, KRYLOV + 1):
        u = (a @ v.unsqueeze(-1)).squeeze(-1)
        if us:
            u = _orthogonal(u, torch.stack(us, -1))
        alpha, u = _direction(u, tol * largest)
        largest = torch.maximum(largest, alpha)
        alphas.append(alpha)
        us.append(u)
        beta, v = _direction(_orthogonal((a.mT @ u.unsqueeze(-1)).squeeze(-1), torch.stack(vs, -1)), tol * largest)
        largest = torch.maximum(largest, beta)
        betas.append(beta)
        vs.append(v)
        if step % 5 and step > 2:
            continue
        core = torch.diag_embed(torch.stack(alphas, -1))
        if step > 1:
            core = core + torch.diag_embed(torch.stack(betas[:-1], -1), offset=1)
        left, s, right = torch.linalg.svd(core)
        if bool((betas[-1] * left[:, -1, 0].abs() <= tol * s[:, 0]).all()):
            top_u = (torch.stack(us, -1) @ left[:, :, :1]).squeeze(-1)
            top_v = (torch.stack(vs[:-1], -1) @ right.mT[:, :, :1]).squeeze(-1)
            return TopPair(_unit(top_u), s[:, 0] * scale, _unit(top_v))
    return None


def _values(a: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """``u_i^T a v_i``, added up in float64: errors of the vectors enter squared, while LAPACK's own values, zeros among
    them, are off by a multiple of eps that grows with the size."""
    a64, v64 = a.to(_exact(a)), v.to(_exact(a))
    # A sum is added up in pairs, a product one by one: where one column makes it cheap, the better of the two.
    product = (a64 * v64.mT).sum(-1, keepdim=True) if v.shape[-1] == 1 else a64 @ v64
    return (u * product).sum(-2).clamp(min=0).to(a.dtype)


def _exact(a: Tensor) -> torch.dtype:
    return a.dtype if a.device.type == "mps" else torch.float64


def _scale(a: Tensor) -> Tensor:
    """A power of two near the largest entry of each matrix: with it taken out, exactly, no product over- or underflows."""
    return power_of_two(a.detach().abs().amax((-2, -1)))


def _direction(vector: Tensor, floor: Tensor) -> tuple[Tensor, Tensor]:
    """Its size and its direction; zeros where it is no larger than rounding: a Krylov space that has no further one."""
    size = vector.norm(dim=-1)
    size = torch.where(size <= floor, 0, size)
    used = (size != 0).unsqueeze(-1)
    return size, torch.where(used, vector / torch.where(used, size.unsqueeze(-1), 1), 0)


def _orthogonal(vector: Tensor, basis: Tensor) -> Tensor:
    """``vector`` without its part in the basis; twice, because once is not enough in floating point."""
    for _ in range(2):
        vector = vector - (basis @ (basis.mT @ vector.unsqueeze(-1))).squeeze(-1)
    return vector


def _unit(vector: Tensor) -> Tensor:
    """Length one to the last digit, which LAPACK's vectors do not have, nor a norm added up in float32."""
    size = torch.linalg.vector_norm(vector, dim=-1, keepdim=True, dtype=_exact(vector))
    return (vector / torch.where(size > 0, size, 1)).to(vector.dtype)
