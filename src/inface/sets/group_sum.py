"""Balls of a sum of group norms: what L1Ball, Simplex, GroupL1Ball and L2Ball have in common.

A block is ``(G, k)``: ``G`` groups of ``k`` numbers, and its norm is ``sum_j |x_j|_2``. With ``k = 1`` that is the l1
ball, with ``G = 1`` the l2 ball. An extreme point is one group, ``r`` times a unit vector ``u`` in group ``j``, so a
move changes one group (two for pairwise) and scales the rest:

* toward:   ``x <- (1 - t) x + t r u``
* away:     ``x <- (1 + t) x - t r u``
* pairwise: ``x <- x + t r (u - w)``

``R`` below is the sum of the *other* groups' norms. On the boundary the minimal face is the simplex over the
directions of the groups that are not zero; inside, it is the whole ball.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..linalg import power_of_two
from .base import Decision, FaceProjection, Move, Set, dot, spread, wide
from .rays import norm_ray

__all__ = ["GroupSum"]


class Atom(NamedTuple):
    """An extreme point of each block: the radius times ``unit`` in group ``at``."""

    at: Tensor
    unit: Tensor


class Share(NamedTuple):
    """What a block holds in one of its groups: which one, the group itself, and its norm."""

    at: Tensor
    own: Tensor
    norm: Tensor


@dataclass
class Scaled(Move):
    """A move that scales a block and rewrites one or two of its groups."""

    on: Tensor  # blocks whose minimal face is proper
    keeps: Tensor  # blocks whose norm the move leaves at the radius, by construction
    rest: Tensor  # the norms of the groups that are not rewritten, summed


@dataclass
class Toward(Scaled):
    gain: Share
    unit: Tensor


@dataclass
class Away(Scaled):
    lose: Share
    unit: Tensor


@dataclass
class Pairwise(Scaled):
    gain: Share
    lose: Share
    unit: Tensor


class GroupSum(Set):
    """The ball of a sum of group norms; subclasses say how a parameter falls into groups."""

    def toward(self, x: Tensor, g: Tensor) -> Toward:
        norms = group_norms(x)
        size = norms.sum(1, dtype=wide(x))
        index, unit = self.best(g)
        gain = share(x, norms, index)
        aligned = (gain.own * unit).sum(1) >= gain.norm * (1 - 4 * torch.finfo(x.dtype).eps)
        on = self.bounded(size, x)
        return self._toward(x, g, norms, on, on & aligned, Atom(index, unit))

    def within(self, x: Tensor, g: Tensor) -> Toward:
        norms = group_norms(x)
        on = self.bounded(norms.sum(1, dtype=wide(x)), x)
        move = self._toward(x, g, norms, on, on, self.face_best(x, g, norms, on))
        move.slope = nothing(on & (move.rest == 0), move.slope)
        return move

    def away(self, x: Tensor, g: Tensor) -> Away:
        norms, r = group_norms(x), self.r(x)
        on = self.bounded(norms.sum(1, dtype=wide(x)), x)
        atom = self.face_best(x, -g, norms, on)
        lose = share(x, norms, atom.at)
        rest = others(norms, atom.at)
        alone = on & (rest == 0)
        # Inside: |(1 + a) x_j - a r u| = r - (1 + a) R, solved without cancelling.
        room, along = r - rest - lose.norm, (lose.own * atom.unit).sum(1)
        bend = (lose.norm - along) * (lose.norm + along) + (r - along - rest) * (r - along + rest)
        inside = room * (r - rest + lose.norm) / torch.where(bend > 0, bend, 1)
        slope = r * (take(g, atom.at) * atom.unit).sum(1) - dot(g, x)
        return Away(
            slope=nothing(alone, slope),
            limit=torch.where(on, lose.norm / torch.where(rest > 0, rest, 1), inside),
            on=on,
            keeps=on,
            rest=rest,
            lose=lose,
            unit=atom.unit,
        )

    def pairwise(self, x: Tensor, g: Tensor) -> Pairwise:
        norms, r = group_norms(x), self.r(x)
        on = self.bounded(norms.sum(1, dtype=wide(x)), x)
        best, worst = self.face_best(x, g, norms, on), self.face_best(x, -g, norms, on)
        gain, lose = share(x, norms, best.at), share(x, norms, worst.at)
        rest = others(norms, best.at, worst.at)
        # Inside, both vertices are in one group and opposite: |x_j + 2 a r u| = r - R.
        back = -(gain.own * best.unit).sum(1)
        inside = (back + (back * back + (r - rest - gain.norm) * (r - rest + gain.norm)).clamp(min=0).sqrt()) / (2 * r)
        slope = r * ((take(g, worst.at) * worst.unit).sum(1) - (take(g, best.at) * best.unit).sum(1))
        return Pairwise(
            # A gradient that is not finite counts also where neither vertex looks at it.
            slope=nothing(on & (best.at == worst.at), slope + 0 * dot(g, x)),
            limit=torch.where(on, lose.norm / r, inside),
            on=on,
            keeps=on,
            rest=rest,
            gain=gain,
            lose=lose,
            unit=best.unit,
        )

    def apply(self, x: Tensor, move: Move, decision: Decision) -> Tensor:
        if not isinstance(move, Scaled):
            return super().apply(x, move, decision)
        t, hit = decision
        r, step = self.r(x), t.unsqueeze(1)
        on, moves = move.on.unsqueeze(1), (t > 0).unsqueeze(1)
        written: list[tuple[Tensor, Tensor, Tensor]] = []
        if isinstance(move, Toward):
            scale = 1 - t
            gained = (1 - step) * move.gain.own + step * spread(r, step) * move.unit
            written.append((move.gain.at, move.gain.own, gained))
        elif isinstance(move, Away):
            scale = 1 + t
            left = torch.where(hit, 0, (move.lose.norm - t * move.rest).clamp(min=0)).unsqueeze(1) * move.unit
            crossed = (1 + step) * move.lose.own - step * spread(r, step) * move.unit
            written.append((move.lose.at, move.lose.own, torch.where(on, left, crossed)))
        elif isinstance(move, Pairwise):
            scale = torch.ones_like(t)
            gained = move.gain.own + torch.where(on, step, 2 * step) * spread(r, step) * move.unit
            kept = (1 - t * r / torch.where(move.on, move.lose.norm, 1)).clamp(min=0)
            left = move.lose.own * torch.where(hit, 0, kept).unsqueeze(1)
            # Inside, both groups are the same: written last, the gained one stands.
            written.append((move.lose.at, move.lose.own, torch.where(on, left, gained)))
            written.append((move.gain.at, move.gain.own, gained))
        total = scale * move.rest + sum_of_norms(written, move.on)
        # The norm of what is about to be written is known, so putting it back on the sphere costs no pass of its own.
        repair = torch.where((t > 0) & (move.keeps | (hit & ~move.on)) & (total > 0), r / total, 1)
        if isinstance(move, Toward):
            repair = torch.where(hit, 1, repair)
        end = x * spread(scale * repair, x).to(x.dtype)
        rows = torch.arange(x.shape[0], device=x.device)
        for index, own, new in written:
            end.index_put_((rows, index), torch.where(moves, new * repair.unsqueeze(1), own).to(x.dtype))
        return end

    def dense_vertex(self, g: Tensor) -> Tensor:
        return self._dense(self.best(g), g)

    def dense_face_vertex(self, x: Tensor, g: Tensor) -> Tensor:
        norms = group_norms(x)
        return self._dense(self.face_best(x, g, norms, self.bounded(norms.sum(1, dtype=wide(x)), x)), x)

    def block_face_project(self, x: Tensor, y: Tensor) -> FaceProjection:
        """``y`` projected onto the minimal face of ``x``, or onto a part of the ball with the structure of ``x``.

        On the boundary the face is the simplex over the directions ``u_j`` of the active groups: ``sum_j w_j u_j`` with the
        projection ``w`` of ``v_j = <u_j, y_j>`` onto ``{w >= 0, sum w = r}``. Inside, zero groups stay zero. Groups of one
        entry keep their signs there too, so that what crosses zero becomes zero; larger groups may turn:
        ``v_j = |y_j|`` and ``u_j = y_j / |y_j|``. A block that is a single group has no structure to keep.
        """
        norms, r = group_norms(x).to(wide(x)), self.r(x)
        on = self.bounded(norms.sum(1), x)
        used = norms > 0
        single = x.shape[2] == 1
        if single:
            v = (x.sign() * y).squeeze(2)
            unit = x.sign().to(v.dtype)
        else:
            lengths_ = lengths(y)
            unit = torch.where(spread(on, y), x / _positive(norms).unsqueeze(2), y / _positive(lengths_).unsqueeze(2))
            v = torch.where(on.unsqueeze(1), (unit * y).sum(2), lengths_)
            used = used | (~on & (x.shape[1] == 1)).unsqueeze(1)
        v = torch.where(used, v, 0)
        least = spread(r * self.tolerance(x), v)
        positive = v.clamp(min=0)
        onto = on | (positive.sum(1) >= r * (1 - self.tolerance(x)))
        some = used | ~used.any(1, keepdim=True)
        w = torch.where(onto.unsqueeze(1), project_simplex(torch.where(some, v, -torch.inf), r), positive)
        # What rounding leaves of a group that was to vanish is not a group.
        w = torch.where((w <= least) & (w < norms), 0, w)
        w = w * torch.where(onto, r / _positive(w.sum(1)), 1).unsqueeze(1)
        smaller = (used & (w == 0)).any(1) | (onto & ~on)
        alone = on & (used.sum(1) <= 1)
        end = torch.where((w > 0).unsqueeze(2), unit * w.unsqueeze(2), 0).to(x.dtype)
        return FaceProjection(torch.where(spread(alone, x), x, end), smaller & ~alone)

    def in_use(self, x: Tensor) -> Tensor | None:
        """The groups that are not zero; in a block that is a single group, all of it."""
        return (group_norms(x) > 0).unsqueeze(2) if x.shape[1] > 1 else None

    def ray(self, x: Tensor, d: Tensor) -> Tensor:
        return norm_ray(_value_and_slope, x.to(wide(x)), d.to(wide(d)), self.r(x), torch.finfo(x.dtype).eps)

    def land(self, x: Tensor, end: Tensor, hit: Tensor) -> Tensor:
        gone = (group_norms(end) <= spread(self.r(x) * self.tolerance(x), end[..., 0])) & hit.unsqueeze(1)
        end = torch.where((gone & (group_norms(x) > 0)).unsqueeze(2), 0, end)
        size = self.block_norm(end)
        return end * spread(torch.where(self.bounded(size, x), self.r(x) / size, 1), x).to(x.dtype)

    def block_norm(self, x: Tensor) -> Tensor:
        return group_norms(x).sum(1, dtype=wide(x))

    def block_project(self, x: Tensor) -> Tensor:
        norms = group_norms(x).to(wide(x))
        kept = project_simplex(norms, self.r(x))
        shrunk = (x / torch.where(norms > 0, norms, 1).unsqueeze(2) * kept.unsqueeze(2)).to(x.dtype)
        return shrunk * spread(self.r(x) / self.block_norm(shrunk), x).to(x.dtype)

    def atom_sizes(self, x: Tensor) -> Tensor:
        return group_norms(x)

    def keep_atoms(self, x: Tensor, keep: Tensor) -> Tensor:
        return torch.where(keep.unsqueeze(2), x, 0)

    def diameter(self, block_shape: torch.Size) -> float | Tensor:
        """Twice the largest norm of a vertex, a group of l2 norm ``radius``: all entries equal in l1, any otherwise."""
        return 2 * self.radius * (self.group_size(block_shape) ** 0.5 if self.norm_name == "l1" else 1)

    def group_size(self, block_shape: torch.Size) -> int:  # noqa: ARG002 - groups of one entry, unless a set says otherwise
        """How many entries a group of a block of this shape has."""
        return 1

    def best(self, g: Tensor) -> Atom:
        """The extreme point that minimises ``<g, v>``."""
        index = group_norms(g).argmax(1)
        own = take(g, index)
        norm = lengths(own).unsqueeze(1)
        first = torch.zeros_like(own)
        first[:, 0] = 1
        return Atom(index, torch.where(norm > 0, -own / torch.where(norm > 0, norm, 1), first))

    def face_best(self, x: Tensor, g: Tensor, norms: Tensor, on: Tensor) -> Atom:
        """The extreme point of the minimal face that minimises ``<g, v>``."""
        index = torch.where(norms > 0, face_keys(x, g, norms), torch.inf).argmin(1)
        own = take(x, index)
        norm = lengths(own).unsqueeze(1)
        anywhere = self.best(g)
        return Atom(
            torch.where(on, index, anywhere.at),
            torch.where(on.unsqueeze(1), own / torch.where(norm > 0, norm, 1), anywhere.unit),
        )

    def bounded(self, size: Tensor, x: Tensor) -> Tensor:
        """Whether the minimal face of blocks of this norm is a proper one."""
        return self.on_boundary(size, x)

    def _toward(self, x: Tensor, g: Tensor, norms: Tensor, on: Tensor, keeps: Tensor, atom: Atom) -> Toward:
        slope = dot(g, x) - self.r(x) * (take(g, atom.at) * atom.unit).sum(1)
        return Toward(
            slope=slope,
            limit=torch.ones_like(slope),
            on=on,
            keeps=keeps,
            rest=others(norms, atom.at),
            gain=share(x, norms, atom.at),
            unit=atom.unit,
        )

    def _dense(self, atom: Atom, like: Tensor) -> Tensor:
        rows = torch.arange(like.shape[0], device=like.device)
        value = (spread(self.r(like), atom.unit) * atom.unit).to(like.dtype)
        return torch.zeros_like(like).index_put((rows, atom.at), value)


def group_norms(x: Tensor) -> Tensor:
    """The norm of each group, ``(N, G)``."""
    return x.squeeze(2).abs() if x.shape[2] == 1 else lengths(x)


def _positive(numbers: Tensor) -> Tensor:
    """Numbers to divide by: 1 where they are not positive."""
    return torch.where(numbers > 0, numbers, 1)


def lengths(x: Tensor) -> Tensor:
    """The l2 norm along the last dimension, in per-block precision; squares neither vanish nor overflow."""
    last = x.ndim - 1  # a compiled vector_norm of torch 2.10 keeps the dimension -1 if its size is 1
    if x.dtype != wide(x):
        return torch.linalg.vector_norm(x, dim=last, dtype=wide(x))
    scale = power_of_two(x.detach().abs().amax(last))
    return torch.linalg.vector_norm(x / scale.unsqueeze(last), dim=last) * scale


def take(x: Tensor, index: Tensor) -> Tensor:
    """One group of each block, in per-block precision: ``(N, k)``."""
    return x[torch.arange(x.shape[0], device=x.device), index].to(wide(x))


def nothing(still: Tensor, slope: Tensor) -> Tensor:
    """No slope for blocks that stay, unless it tells of a gradient that is not finite."""
    return torch.where(still & torch.isfinite(slope), 0, slope)


def share(x: Tensor, norms: Tensor, index: Tensor) -> Share:
    return Share(index, take(x, index), norms.gather(1, index.unsqueeze(1)).squeeze(1).to(wide(x)))


def others(norms: Tensor, *indices: Tensor) -> Tensor:
    """The sum of the norms of all groups but these, added up directly: a difference would cancel."""
    for index in indices:
        norms = norms.scatter(1, index.unsqueeze(1), 0)
    return norms.sum(1, dtype=wide(norms))


def face_keys(x: Tensor, g: Tensor, norms: Tensor) -> Tensor:
    """``<g_j, x_j> / |x_j|``: what one unit of each group's own direction costs."""
    if x.shape[2] == 1:
        return (g * x.sign()).squeeze(2)
    return (g * (x / torch.where(norms > 0, norms, 1).unsqueeze(2))).sum(2, dtype=wide(x))


def sum_of_norms(written: list[tuple[Tensor, Tensor, Tensor]], on: Tensor) -> Tensor:
    """The norms of the groups that a move writes; inside a ball a pairwise move writes one group twice."""
    norms = [lengths(new) for _, _, new in written]
    return norms[0] if len(norms) == 1 else torch.where(on, norms[0] + norms[1], norms[1])


def project_simplex(norms: Tensor, radius: Tensor) -> Tensor:
    """The Euclidean projection of each row of ``norms`` onto ``{v >= 0, sum v = radius}``."""
    # Measured from the largest one: the radius would drown in numbers that are much larger than it.
    norms = norms - norms.amax(1, keepdim=True)
    ordered = norms.sort(1, descending=True).values
    counts = torch.arange(1, norms.shape[1] + 1, device=norms.device, dtype=norms.dtype)
    cuts = (ordered.cumsum(1) - spread(radius, norms)) / counts
    active = (ordered > cuts).sum(1, keepdim=True).clamp(min=1)
    return (norms - cuts.gather(1, active - 1)).clamp(min=0)


def _value_and_slope(y: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    norms = group_norms(y)
    rising = torch.where(norms > 0, face_keys(y, d, norms), group_norms(d))
    return norms.sum(1, dtype=wide(y)), rising.sum(1, dtype=wide(y))
