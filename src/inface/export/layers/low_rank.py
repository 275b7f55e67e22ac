"""Split a low-rank layer, as trained in a NuclearBall, into two thin layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["factors", "thin_layers"]

# The allowed error of two factors, in eps of the dtype relative to the whole matrix: about the rounding of a product.
ULPS = 16

# Pivots smaller than this, relative to the largest one, may be zeros plus rounding.
PIVOT = 1e-5

WIDTH = 16  # columns of the first sketch
SPARE = 8  # additional columns of a sketch, for accuracy (oversampling)


def thin_layers(linear: nn.Linear, below: int | None = None) -> nn.Sequential | None:
    """Two thin layers with the same outputs up to rounding; None if they would not be smaller.

    Args:
        linear: the layer; it is not changed.
        below: the two weights must have fewer numbers than this; by default than the layer's own weight.

    >>> import torch
    >>> linear = torch.nn.Linear(20, 30)
    >>> thin_layers(linear)
    >>> _ = linear.weight.data.copy_(torch.outer(torch.ones(30), torch.ones(20)))
    >>> thin_layers(linear)
    Sequential(
      (0): Linear(in_features=20, out_features=1, bias=False)
      (1): Linear(in_features=1, out_features=30, bias=True)
    )
    """
    weight = linear.weight.detach()
    found = factors(weight, weight.numel() if below is None else min(below, weight.numel()))
    if found is None:
        return None
    kind = {"device": weight.device, "dtype": weight.dtype}
    thin = nn.Sequential(
        *(
            nn.utils.skip_init(nn.Linear, part.shape[1], part.shape[0], bias=bias, **kind)
            for part, bias in ((found[1], False), (found[0], linear.bias is not None))
        )
    )
    with torch.no_grad():
        for layer, part in zip(thin, found[::-1], strict=True):
            layer.weight = nn.Parameter(part, requires_grad=linear.weight.requires_grad)
        if linear.bias is not None:
            thin[1].bias = nn.Parameter(linear.bias.detach().clone(), requires_grad=linear.bias.requires_grad)
    return thin.train(linear.training)


def factors(weight: Tensor, below: int) -> tuple[Tensor, Tensor] | None:
    """``(a, b)`` with fewer than ``below`` numbers and ``a b = weight`` up to rounding; None if there are none.

    A random sketch finds the range of the matrix; its width doubles until the error is only rounding. The singular
    values of the sketch give the rank. A matrix with a regular block larger than the wanted rank is rejected at once.

    >>> import torch
    >>> a, b = factors(torch.ones(5, 4), below=20)
    >>> a.shape, b.shape, bool((a @ b - 1).abs().max() < 1e-5)
    (torch.Size([5, 1]), torch.Size([1, 4]), True)
    """
    limit = (below - 1) // max(1, sum(weight.shape))
    if limit < 1 or not bool(torch.isfinite(weight).all()) or not bool(weight.any()) or _exceeds(weight, limit):
        return None
    w = weight.double()
    tol = ULPS * torch.finfo(weight.dtype).eps * torch.linalg.matrix_norm(w)
    generator = torch.Generator().manual_seed(0)
    width = min(WIDTH, limit)
    while True:
        q = torch.linalg.qr(w @ torch.randn(w.shape[1], width + SPARE, generator=generator, dtype=w.dtype)).Q
        core = q.mT @ w
        if torch.linalg.matrix_norm(w - q @ core) <= tol:
            break
        if width == limit:
            return None
        width = min(2 * width, limit)
    u, s, vh = torch.linalg.svd(core, full_matrices=False)
    # The Frobenius error of stopping at each rank.
    beyond = s.square().flip(0).cumsum(0).flip(0).sqrt()
    rank = int((beyond > tol / 2).sum())
    if rank > limit:
        return None
    root = s[:rank].sqrt()
    return ((q @ u[:, :rank]) * root).to(weight.dtype), (root.unsqueeze(1) * vh[:rank]).to(weight.dtype)


def _exceeds(weight: Tensor, rank: int) -> bool:
    """Whether the rank is clearly larger: a block of ``rank + 1`` rows and columns has no vanishing pivot."""
    if min(weight.shape) <= rank:
        return False
    strong = [weight.norm(dim=dim).topk(rank + 1).indices for dim in (1, 0)]
    block = weight[strong[0]][:, strong[1]].double()
    pivots = torch.linalg.lu_factor_ex(block).LU.diagonal().abs()
    return bool(pivots.min() > PIVOT * pivots.max())
