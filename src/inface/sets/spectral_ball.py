"""The spectral ball: a bound on how much a layer can stretch its input."""

from __future__ import annotations

import torch
from torch import Tensor

from ..linalg import polar, top_pair
from .base import dot, spread, wide
from .matrices import MatrixSet, clean, finite
from .rays import norm_ray

__all__ = ["SpectralBall"]


class SpectralBall(MatrixSet):
    """``{X : sigma_max(X) <= radius}``, by default one ball per tensor.

    Its extreme points ``radius U V^T`` have all singular values equal. In-face steps are not offered: the minimal face
    of a point fixes the singular vectors of all singular values at the radius, and what it leaves is another spectral
    ball that buys no structure.

    Vertices are polar factors by LAPACK's thin SVD, accurate to rounding; norms take the leading singular value alone,
    to 32 eps (see :mod:`inface.linalg`).

    >>> import torch
    >>> SpectralBall(1.0).vertex(torch.diag(torch.tensor([2.0, -3.0]))).diagonal()
    tensor([-1.,  1.])
    """

    kind = "spectral"

    def norm_ratio(self, x: Tensor) -> float:  # noqa: ARG002 - the same in every shape
        return 1.0

    def dense_vertex(self, g: Tensor) -> Tensor:
        factor, size = polar(clean(g))
        eye = torch.eye(*g.shape[1:], dtype=g.dtype, device=g.device)
        return torch.where(spread(size > 0, g), -factor, eye) * spread(self.r(g), g).to(g.dtype)

    def ray(self, x: Tensor, d: Tensor) -> Tensor:
        return norm_ray(_value_and_slope, x, d, self.r(x), torch.finfo(x.dtype).eps)

    def block_norm(self, x: Tensor) -> Tensor:
        return torch.where(finite(x), top_pair(clean(x)).sigma.to(wide(x)), torch.nan)

    def block_project(self, x: Tensor) -> Tensor:
        u, s, vh = torch.linalg.svd(x.to(wide(x)), full_matrices=False)
        return self.pulled_in(((u * torch.minimum(s, spread(self.r(x), s)).unsqueeze(1)) @ vh).to(x.dtype))

    def diameter(self, block_shape: torch.Size) -> float | Tensor:
        power = {"frobenius": 0.5, "spectral": 0, "nuclear": 1}[self.norm_name]
        return 2 * self.radius * self.rank(block_shape) ** power


def _value_and_slope(y: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    u, sigma, v = top_pair(y)
    return sigma.to(wide(y)), dot(u.unsqueeze(2) * v.unsqueeze(1), d)
