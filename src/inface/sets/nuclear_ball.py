"""The nuclear-norm ball: low-rank weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..linalg import Factors, frobenius, svd, top_pair
from .base import ULPS, Decision, FaceProjection, Move, dot, spread, wide
from .group_sum import project_simplex
from .matrices import MatrixSet, clean, finite
from .rays import norm_ray

__all__ = ["NuclearBall"]


class RankOne(NamedTuple):
    """The radius times ``left right^T``, an extreme point of each block."""

    left: Tensor
    right: Tensor


@dataclass
class Toward(Move):
    atom: RankOne


@dataclass
class FaceMove(Move):
    """A move in the face ``{U M V^T : M >= 0, tr M = r}`` where ``on`` is set, along a straight line elsewhere.

    In the face the move is ``M <- scale M + t r (gain gain^T - lose lose^T)``, with ``scale = 1 + t * growth``.
    """

    on: Tensor
    factors: Factors
    growth: int
    gain: Tensor | None
    lose: Tensor | None
    inside: Tensor


class NuclearBall(MatrixSet):
    """``{X : sum_i sigma_i(X) <= radius}``, by default one ball per tensor.

    Its extreme points have rank one, so training inside it is low-rank by construction. On the boundary the minimal
    face is ``{U M V^T : M >= 0, tr M = radius}`` with the singular vectors of the point: in-face steps never raise the
    rank there, and a maximal away or pairwise step lowers it.

    Vertices take the leading singular pair alone (Lanczos for larger matrices, relative residual 32 eps); in-face steps
    take the factors of the iterate, found by a sketch whose width follows the rank (see :mod:`inface.linalg`).
    Singular values of at most 8 eps of the radius count as zero: rounding a matrix to its dtype cannot make larger ones.

    >>> import torch
    >>> NuclearBall(3.0).vertex(torch.diag(torch.tensor([1.0, -2.0])))
    tensor([[0., 0.],
            [0., 3.]])
    """

    kind = "nuclear"
    has_atoms = True

    def norm_ratio(self, x: Tensor) -> float:
        return min(x.shape[1:]) ** 0.5

    def toward(self, x: Tensor, g: Tensor) -> Toward:
        left, sigma, right = top_pair(clean(g))
        slope = dot(g, x) + self.r(x) * sigma
        return Toward(slope=slope, limit=torch.ones_like(slope), atom=RankOne(-left, right))

    def within(self, x: Tensor, g: Tensor) -> FaceMove:
        return self._in_face(x, g, growth=-1)

    def away(self, x: Tensor, g: Tensor) -> FaceMove:
        return self._in_face(x, g, growth=1)

    def pairwise(self, x: Tensor, g: Tensor) -> FaceMove:
        return self._in_face(x, g, growth=0)

    def limit(self, x: Tensor, move: Move, wanted: Tensor) -> Tensor:
        """Inside there is no closed form: the wanted step is tried, and the limit solved for only if that step leaves the ball."""
        if not isinstance(move, FaceMove) or move.growth < 0:
            return move.limit
        asks = torch.where(move.on, 0, wanted)
        leaves = (asks > 0) & (self._size(x + spread(asks, x).to(x.dtype) * move.inside) > self.r(x))
        if not bool(leaves.any()):
            return move.limit
        root = norm_ray(_value_and_slope, x, move.inside, self.r(x), torch.finfo(x.dtype).eps, start=asks)
        return torch.where(leaves, root, move.limit)

    def apply(self, x: Tensor, move: Move, decision: Decision) -> Tensor:
        t = spread(decision.step, x).to(x.dtype)
        if isinstance(move, Toward):
            end = (1 - t) * x + (t * spread(self.r(x), x).to(x.dtype)) * _outer(*move.atom)
        elif isinstance(move, FaceMove):
            end = self.land(x, x + t * move.inside, decision.hit & (move.growth >= 0))
            end = torch.where(spread(move.on, x), self._moved_in_face(x, move, decision), end)
        else:
            return super().apply(x, move, decision)
        return torch.where(t > 0, end, x)

    def dense_vertex(self, g: Tensor) -> Tensor:
        return self._dense(self._best(clean(g))[0], g)

    def dense_face_vertex(self, x: Tensor, g: Tensor) -> Tensor:
        factors, on = self._face(x)
        z = _extreme(factors, clean(g), largest=False)
        return torch.where(spread(on, x), self._dense(_rank_one(factors, z), x), self.dense_vertex(g))

    def block_face_project(self, x: Tensor, y: Tensor) -> FaceProjection:
        """``U M V^T`` with the singular vectors of ``x`` and the projection ``M`` of ``U^T y V``.

        On the boundary ``M`` is positive semidefinite of trace ``r``: the eigenvalues of the symmetric part are projected
        onto the simplex. Inside, where the row and column spaces of ``x`` stay and nothing else does, ``M`` is any matrix of
        nuclear norm at most ``r``: the singular values are projected. Neither raises the rank.
        """
        factors, on = self._face(x)
        r, used = self.r(x), factors.s > 0
        left, right = factors.u.to(wide(x)), factors.v.to(wide(x))
        core = torch.where(used.unsqueeze(1) & used.unsqueeze(2), left.mT @ clean(y) @ right, 0)
        sizes = core.abs().flatten(1).sum(1, keepdim=True)
        # Directions outside the face get an eigenvalue that no projection keeps.
        outside = torch.diag_embed(torch.where(used, 0, -2 * (sizes + r.expand(len(x)).unsqueeze(1))))
        values, vectors = torch.linalg.eigh((core + core.mT) / 2 + outside)
        a, inner, bh = torch.linalg.svd(core, full_matrices=False)
        onto = on | (inner.sum(1) >= r * (1 - self.tolerance(x)))
        kept = torch.where(spread(on, inner), values, inner)
        w = torch.where(spread(onto, inner), project_simplex(kept, r), inner)
        w = torch.where(w <= spread(r * self.tolerance(x), w), 0, w)
        total = w.sum(1)
        w = w * spread(torch.where(onto, r / torch.where(total > 0, total, 1), 1), w)
        first, second = (torch.where(spread(on, core), vectors, other) for other in (a, bh.mT))
        end = ((left @ (first * w.unsqueeze(1))) @ (right @ second).mT).to(x.dtype)
        rank = used.sum(1)
        alone = (on & (rank <= 1)) | (rank == 0)
        smaller = ((w > 0).sum(1) < rank) | (onto & ~on)
        return FaceProjection(torch.where(spread(alone, x), x, end), smaller & ~alone)

    def ray(self, x: Tensor, d: Tensor) -> Tensor:
        return norm_ray(_value_and_slope, x, d, self.r(x), torch.finfo(x.dtype).eps)

    def land(self, x: Tensor, end: Tensor, hit: Tensor) -> Tensor:
        size = self._size(end)
        onto = hit | self.on_boundary(size, x)
        return end * spread(torch.where(onto, self.r(x) / torch.where(size > 0, size, 1), 1), x).to(x.dtype)

    def block_norm(self, x: Tensor) -> Tensor:
        # A large matrix has many singular values that are nothing but rounding, and they would add up.
        known = clean(x)
        size = svd(known, frobenius(known) * self.tolerance(x)).s.sum(1, dtype=wide(x))
        return torch.where(finite(x), size, torch.nan)

    def atom_sizes(self, x: Tensor) -> Tensor:
        sizes: Tensor = torch.linalg.svdvals(x.to(wide(x)))
        return torch.where(sizes > self.tolerance(x) * sizes.amax(1, keepdim=True), sizes, 0)

    def keep_atoms(self, x: Tensor, keep: Tensor) -> Tensor:
        u, s, vh = torch.linalg.svd(x.to(wide(x)), full_matrices=False)
        return ((u * torch.where(keep, s, 0).unsqueeze(1)) @ vh).to(x.dtype)

    def block_project(self, x: Tensor) -> Tensor:
        u, s, vh = torch.linalg.svd(x.to(wide(x)), full_matrices=False)
        return self.pulled_in(((u * project_simplex(s, self.r(x)).unsqueeze(1)) @ vh).to(x.dtype))

    def diameter(self, block_shape: torch.Size) -> float | Tensor:  # noqa: ARG002 - the same in every dimension and norm
        return 2 * self.radius

    def _best(self, g: Tensor) -> tuple[RankOne, Tensor]:
        """The extreme point that minimises ``<g, v>``, and ``sigma_max(g)``."""
        left, sigma, right = top_pair(g)
        return RankOne(torch.where(spread(sigma > 0, left), -left, left), right), sigma.to(wide(g))

    def _face(self, x: Tensor) -> tuple[Factors, Tensor]:
        factors = self._factors(x)
        return factors, self.on_boundary(factors.s.sum(1, dtype=wide(x)), x)

    def _factors(self, x: Tensor) -> Factors:
        return svd(x, (self.r(x) * self.tolerance(x)).to(x.dtype).expand(x.shape[0]))

    def _size(self, x: Tensor) -> Tensor:
        return self._factors(x).s.sum(1, dtype=wide(x))

    def _in_face(self, x: Tensor, g: Tensor, growth: int) -> FaceMove:
        finite, r = clean(g), self.r(x)
        factors, on = self._face(x)
        gain = None if growth > 0 else _extreme(factors, finite, largest=False)
        lose = None if growth < 0 else _extreme(factors, finite, largest=True)
        best, _ = self._best(finite)
        vertex = self._dense(best, x)
        # Inside, the face is the ball, whose worst vertex is its best one with the sign turned.
        inside = vertex - x if growth < 0 else vertex + x if growth > 0 else 2 * vertex
        d = growth * x
        if gain is not None:
            d = d + self._dense(_rank_one(factors, gain), x)
        if lose is not None:
            d = d - self._dense(_rank_one(factors, lose), x)
        slope = -dot(g, torch.where(spread(on, x), d, inside))
        alone = on & ((factors.s > 0).sum(1) <= 1)
        return FaceMove(
            slope=torch.where(alone & torch.isfinite(slope), 0, slope),
            limit=torch.where(on, self._room(factors, gain, lose, r), torch.inf)
            if growth >= 0
            else torch.ones_like(slope),
            on=on,
            factors=factors,
            growth=growth,
            gain=gain,
            lose=lose,
            inside=inside,
        )

    def _room(self, factors: Factors, gain: Tensor | None, lose: Tensor | None, r: Tensor) -> Tensor:
        """How far the face reaches: until ``M`` loses its smallest eigenvalue."""
        if lose is None:
            return torch.ones_like(factors.s[:, 0], dtype=r.dtype)
        held = factors.s.to(r.dtype)
        inverse = torch.where(held > 0, 1 / torch.where(held > 0, held, 1), 0)
        p = (lose * lose * inverse).sum(1)
        if gain is None:
            t = 1 / (r * p)
            return torch.where(t < 1, t / (1 - t), torch.inf)
        m, q = (gain * gain * inverse).sum(1), (gain * lose * inverse).sum(1)
        return 2 / ((p - m) + ((p - m) ** 2 + 4 * (p * m - q * q).clamp(min=0)).sqrt()) / r

    def _moved_in_face(self, x: Tensor, move: FaceMove, decision: Decision) -> Tensor:
        u, s, v = move.factors
        r, t = self.r(x), decision.step.reshape(-1, 1, 1)
        m = torch.diag_embed(s.to(r.dtype)) * (1 + move.growth * t)
        if move.gain is not None:
            m = m + t * spread(r, m) * _outer(move.gain, move.gain)
        if move.lose is not None:
            m = m - t * spread(r, m) * _outer(move.lose, move.lose)
            # A maximal step takes one eigenvalue to zero; that one, and the directions that were not in the face.
            values, vectors = torch.linalg.eigh(m)
            empty = (s == 0).sum(1) + decision.hit
            gone = torch.arange(s.shape[1], device=x.device) < empty.unsqueeze(1)
            m = (vectors * torch.where(gone, 0, values.clamp(min=0)).unsqueeze(1)) @ vectors.mT
        trace = m.diagonal(dim1=1, dim2=2).sum(1)
        m = m * spread(r / torch.where(trace > 0, trace, 1), m)
        return (u @ m.to(x.dtype)) @ v.mT

    def _dense(self, atom: RankOne, like: Tensor) -> Tensor:
        return (_outer(*atom) * spread(self.r(like), like)).to(like.dtype)


def _outer(left: Tensor, right: Tensor) -> Tensor:
    return left.unsqueeze(2) * right.unsqueeze(1)


def _rank_one(factors: Factors, z: Tensor) -> RankOne:
    """The extreme point of the face that ``M = r z z^T`` stands for."""
    return RankOne(*((f @ z.to(f.dtype).unsqueeze(2)).squeeze(2) for f in (factors.u, factors.v)))


def _extreme(factors: Factors, g: Tensor, *, largest: bool) -> Tensor:
    """The unit ``z`` that minimises, or maximises, ``<g, U z z^T V^T>`` over the face, in per-block precision."""
    core = (factors.u.mT @ g @ factors.v).to(wide(g))
    core = (core + core.mT) / 2
    used = factors.s > 0
    core = torch.where(used.unsqueeze(1) & used.unsqueeze(2), core, 0)
    # Directions outside the face get an eigenvalue that is never chosen.
    out = 1 + core.abs().flatten(1).sum(1, keepdim=True)
    core = core + torch.diag_embed(torch.where(used, 0, -out if largest else out))
    return torch.linalg.eigh(core).eigenvectors[:, :, -1 if largest else 0]


def _value_and_slope(y: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    # The norm of the set: what rounding leaves outside a face of low rank does not add up.
    u, s, v = svd(y, frobenius(y) * (ULPS * torch.finfo(y.dtype).eps))
    return s.sum(1, dtype=wide(y)), dot((u * (s > 0).unsqueeze(1)) @ v.mT, d)
