"""The k-sparse polytope: the convex hull of vectors with k entries of one size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .base import Decision, FaceProjection, Move, Set, can_look, dot, onto_sphere, spread, wide
from .blocks import Per
from .linf_ball import POWERS, at_bound, onto_bounds, snap_to_bounds
from .norms import NormName
from .rays import box_ray, l1_ray_start, norm_ray

__all__ = ["KSparsePolytope"]

BISECTIONS = 60


class Atom(NamedTuple):
    """An extreme point of each block: ``k`` entries by index and value."""

    at: Tensor
    value: Tensor

    def dense(self, like: Tensor) -> Tensor:
        return torch.zeros_like(like).scatter(1, self.at, self.value.to(like.dtype))


@dataclass
class Toward(Move):
    atom: Atom
    keeps: Tensor  # blocks that the move leaves on the l1 facet, by construction


@dataclass
class FromVertex(Move):
    """``d = x - worst``, or ``best - worst`` where there is a best one: written out when it is applied."""

    best: Atom | None
    worst: Atom


class KSparsePolytope(Set):
    """``{x : max_j |x_j| <= radius, sum_j |x_j| <= k radius}``, by default one per output node.

    Its extreme points have exactly ``k`` entries ``+-radius``: between the l1 ball (``k = 1``) and the box
    (``k >= n``). In the minimal face entries at a bound stay, and on the l1 facet zeros and signs stay too.

    >>> import torch
    >>> KSparsePolytope(1.0, k=2).vertex(torch.tensor([[1.0, -3.0, 2.0]]))
    tensor([[ 0.,  1., -1.]])
    """

    kind = "k-sparse"

    def __init__(
        self,
        radius: float | Tensor | None = None,
        k: int | None = None,
        per: Per | None = None,
        *,
        norm: NormName | None = None,
    ) -> None:
        super().__init__(radius, per, norm=norm)
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise ValueError(f"KSparsePolytope: k must be a whole number >= 1, got {k!r}")
        self.k = k

    def options(self) -> dict[str, Any]:
        return {"k": self.k}

    def toward(self, x: Tensor, g: Tensor) -> Toward:
        atom = self._best(g)
        agrees = (atom.value * x.gather(1, atom.at) >= 0).all(1)
        return self._toward(x, g, atom, self._on_facet(x) & agrees)

    def within(self, x: Tensor, g: Tensor) -> Toward:
        return self._toward(x, g, self._face_best(x, g), self._on_facet(x))

    def away(self, x: Tensor, g: Tensor) -> FromVertex:
        return self._from_vertex(x, g, None, self._face_best(x, -g))

    def pairwise(self, x: Tensor, g: Tensor) -> FromVertex:
        return self._from_vertex(x, g, self._face_best(x, g), self._face_best(x, -g))

    def apply(self, x: Tensor, move: Move, decision: Decision) -> Tensor:
        t = spread(decision.step, x).to(x.dtype)
        if isinstance(move, Toward):
            end = ((1 - t) * x).scatter_add(1, move.atom.at, t * move.atom.value.to(x.dtype))
            held = x.gather(1, move.atom.at)
            same = held == move.atom.value.to(x.dtype)
            end = end.scatter(1, move.atom.at, torch.where(same, held, end.gather(1, move.atom.at)))
            end = torch.where(spread(move.keeps & ~decision.hit, x), self._onto_facet(end), end)
        elif isinstance(move, FromVertex):
            end = self.land(x, x + t * self._direction(x, move.best, move.worst), decision.hit)
            # A long step magnifies the rounding of the point, maybe beyond what still counts as on the facet.
            end = torch.where(spread(self._on_facet(x), x), self._onto_facet(end), end)
        else:
            return super().apply(x, move, decision)
        return torch.where(t > 0, end, x)

    def dense_vertex(self, g: Tensor) -> Tensor:
        return self._best(g).dense(g)

    def dense_face_vertex(self, x: Tensor, g: Tensor) -> Tensor:
        return self._face_best(x, g).dense(x)

    def block_face_project(self, x: Tensor, y: Tensor) -> FaceProjection:
        """Entries at a bound stay, zeros and signs too: ``|w| = clip(sign(x) y - s, 0, r)`` on the rest.

        On the l1 facet the threshold ``s`` gives the sum that entries at a bound leave of ``k radius``; inside it ``s`` is 0,
        unless the sum would be larger. So ``k = 1`` is the l1 ball.
        """
        tol, r, size = self.tolerance(x), self.r(x), x.abs().to(wide(x))
        facet, bound = self._on_facet(x), at_bound(x, r, tol)
        free = (x != 0) & ~bound
        count = (self._k(x) - bound.sum(1)).clamp(min=1)  # of entries at the radius that make up the rest of the sum
        edge, target = spread(r, size), (count * r).unsqueeze(1)
        v = torch.where(free, x.sign() * y, -torch.inf)
        kept = v.clamp(min=0).minimum(edge)
        onto = facet | (kept.sum(1) >= target.squeeze(1) - self._k(x) * r * tol)
        last = v.sort(1, descending=True).values.gather(1, (count - 1).clamp(max=x.shape[1] - 1).unsqueeze(1))
        cut = _capped(v - torch.where(torch.isfinite(last), last, 0), target, edge)
        w = torch.where(onto.unsqueeze(1), cut, kept)
        # What rounding leaves on the way to zero or to a bound is not there.
        w = torch.where((w <= edge * tol) & (w < size), 0, w)
        w = torch.where(w >= edge * (1 - tol), edge, w)
        gone = free & ((w == 0) | (w == edge))
        end = torch.where(free & (w > 0), torch.copysign(w.to(x.dtype), x), torch.where(bound, x, 0))
        end = torch.where(onto.unsqueeze(1), self._onto_facet(end), end)
        still = free.sum(1) <= facet.to(torch.long)
        return FaceProjection(torch.where(still.unsqueeze(1), x, end), (gone.any(1) | (onto & ~facet)) & ~still)

    def ray(self, x: Tensor, d: Tensor) -> Tensor:
        r, eps = self.r(x), torch.finfo(x.dtype).eps
        x, d = x.to(wide(x)), d.to(wide(d))
        if can_look(x):
            along = norm_ray(_l1_and_slope, x, d, self._k(x) * r, eps)
        else:
            along = norm_ray(_l1_and_slope, x, d, self._k(x) * r, eps, l1_ray_start(x, d, self._k(x) * r), turns=4)
        return torch.minimum(box_ray(x, d, r, eps), along)

    def land(self, x: Tensor, end: Tensor, hit: Tensor) -> Tensor:
        tol = self.tolerance(x)
        r = spread(self.r(x), x)
        end = snap_to_bounds(end, r, tol)
        # Also on arrival from inside: an entry that cancelled on the way there must not count as support.
        facet = self._on_facet(x) | self._on_facet(end)
        gone = (end.abs() <= (r * tol).to(x.dtype)) & spread(hit & facet, x)
        end = torch.where(gone & (x != 0), 0, end)
        return torch.where(spread(self._on_facet(end), x), self._onto_facet(end), end)

    def onto_boundary(self, x: Tensor, smaller: Tensor, larger: Tensor) -> Tensor:
        x = onto_bounds(x, smaller, larger, spread(self.r(x), x))
        bound = at_bound(x, self.r(x), self.tolerance(x))
        smaller, larger = torch.where(bound, x, smaller), torch.where(bound, x, larger)

        def facet_norm(y: Tensor) -> Tensor:
            return y.abs().sum(1, dtype=wide(y)) / self._k(y)

        return onto_sphere(facet_norm, x, smaller, larger, self.r(x), self.tolerance(x))

    def block_norm(self, x: Tensor) -> Tensor:
        size = x.abs()
        return torch.maximum(size.amax(1).to(wide(x)), size.sum(1, dtype=wide(x)) / self._k(x))

    def block_project(self, x: Tensor) -> Tensor:
        """``sign(x) clip(|x| - s, 0, r)`` with the threshold ``s >= 0`` that brings the l1 norm down to ``k radius``.

        The threshold lies within a radius below the k-th largest entry, and is measured from there: the radius would
        drown in entries that are much larger than it.
        """
        size, r = x.abs().to(wide(x)), spread(self.r(x), x)
        clipped = size.minimum(r)
        target = self._k(x) * r
        shrunk = _capped(size - size.topk(self._k(x), 1).values[:, -1:], target, r)
        return torch.copysign(torch.where(clipped.sum(1, keepdim=True) <= target, clipped, shrunk).to(x.dtype), x)

    def diameter(self, block_shape: torch.Size) -> float | Tensor:
        return 2 * self.radius * min(self.k, block_shape.numel()) ** POWERS[self.norm_name]

    def _k(self, x: Tensor) -> int:
        return min(self.k, x.shape[1])

    def _toward(self, x: Tensor, g: Tensor, atom: Atom, keeps: Tensor) -> Toward:
        slope = dot(g, x) - (g.gather(1, atom.at) * atom.value).sum(1)
        return Toward(slope=slope, limit=torch.ones_like(slope), atom=atom, keeps=keeps)

    def _from_vertex(self, x: Tensor, g: Tensor, best: Atom | None, worst: Atom) -> FromVertex:
        d = self._direction(x, best, worst)
        limit = torch.where(self._on_facet(x), _facet_ray(x, d, self.r(x)), self.ray(x, d))
        return FromVertex(slope=-dot(g, d), limit=limit, best=best, worst=worst)

    def _direction(self, x: Tensor, best: Atom | None, worst: Atom) -> Tensor:
        """Entries at a bound stay exactly: a face of a single vertex gives exact zeros, and no slope."""
        d = (x if best is None else best.dense(x)) - worst.dense(x)
        return torch.where(at_bound(x, self.r(x), self.tolerance(x)), 0, d)

    def _best(self, g: Tensor) -> Atom:
        index = (-g.abs()).sort(dim=1, stable=True).indices[:, : self._k(g)]
        return Atom(index, torch.where(g.gather(1, index) > 0, -1, 1) * spread(self.r(g), g))

    def _face_best(self, x: Tensor, g: Tensor) -> Atom:
        facet, bound = self._on_facet(x).unsqueeze(1), at_bound(x, self.r(x), self.tolerance(x))
        price = torch.where(facet, torch.where(x != 0, x.sign() * g, torch.inf), -g.abs())
        index = torch.where(bound, -torch.inf, price).sort(dim=1, stable=True).indices[:, : self._k(x)]
        held = x.gather(1, index).sign()
        sign = torch.where(facet | bound.gather(1, index), held, torch.where(g.gather(1, index) > 0, -1, 1))
        return Atom(index, sign * spread(self.r(x), x))

    def _on_facet(self, x: Tensor) -> Tensor:
        return x.abs().sum(1, dtype=wide(x)) >= self._k(x) * self.r(x) * (1 - self.tolerance(x))

    def _onto_facet(self, x: Tensor) -> Tensor:
        """The entries that are not at a bound, scaled so that the l1 norm is ``k radius``."""
        r = self.r(x)
        edge = spread(r, x).to(x.dtype)
        for _ in range(2):  # the first time may bring further entries to their bound
            bound = at_bound(x, self.r(x), self.tolerance(x))
            wanted = (self._k(x) - bound.sum(1)) * r
            held = torch.where(bound, 0, x.abs()).sum(1, dtype=wide(x))
            scale = spread(torch.where(held > 0, wanted / torch.where(held > 0, held, 1), 1), x).to(x.dtype)
            scaled = torch.minimum((x * scale).maximum(-edge), edge)
            x = torch.where(bound, torch.copysign(edge.expand_as(x), x), scaled)
        return x


def _capped(v: Tensor, target: Tensor, r: Tensor) -> Tensor:
    """``clip(v - s, 0, r)`` with the threshold ``s`` in ``[-r, 0]`` at which each row sums to its target.

    The sum falls in ``s`` along straight pieces: bisection finds the piece, which is then solved exactly.
    """
    low, high = -r.expand(v.shape[0], 1), torch.zeros_like(v[:, :1])
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        above = (v - middle).clamp(min=0).minimum(r).sum(1, keepdim=True) > target
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    cut, partial = v - high >= r, (v > high) & (v - high < r)
    pieces = partial.sum(1, keepdim=True)
    exact = (torch.where(partial, v, 0).sum(1, keepdim=True) + cut.sum(1, keepdim=True) * r - target) / pieces.clamp(
        min=1
    )
    return (v - torch.where(pieces > 0, exact, high)).clamp(min=0).minimum(r)


def _l1_and_slope(y: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    return y.abs().sum(1), torch.where(y != 0, y.sign() * d, d.abs()).sum(1)


def _facet_ray(x: Tensor, d: Tensor, radius: Tensor) -> Tensor:
    """How far one can go on the l1 facet, where signs are fixed: until an entry is zero or at its bound."""
    size, rise = x.abs().to(wide(x)), (x.sign() * d).to(wide(x))
    falls = torch.where(rise < 0, size / torch.where(rise < 0, -rise, 1), torch.inf)
    grows = torch.where(rise > 0, (spread(radius, x) - size).clamp(min=0) / torch.where(rise > 0, rise, 1), torch.inf)
    return torch.minimum(falls, grows).amin(1)
