"""The contract of a set, as one call that people can make on sets of their own.

Everything is checked against definitions, with points that the set itself makes: a vertex must be no worse than any of
them, a projection no farther. What fails is named: the method, what it must do, the block and the numbers.
"""

from __future__ import annotations

import copy
import functools
import io
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor

from .optimizer import FrankWolfe
from .sets import InFace, Set, blocks
from .sets.base import Decision, decide, dot, spread

__all__ = ["check_set"]

HALF = (torch.bfloat16, torch.float16)
IN_FACE: tuple[InFace, ...] = get_args(InFace)

# Rounding that a method may make, in eps; and what counts as a real difference where rounding is magnified.
NEAR, COARSE = 2000, 1e-2


def check_set(set_: Set, shape: Sequence[int] = (4, 6), *, seed: int = 0) -> None:
    """Check everything that an optimizer and people rely on in a set, on a parameter of this shape.

    Blocks and their layout, vertices, norms, membership, projections, diameters in every norm, step limits, faces and
    in-face steps (where the set has them), exact landing, radii of single blocks, free blocks, several parameters as one
    block, half precision, plain data, and many steps of :class:`inface.FrankWolfe`.

    Args:
        set_: the set, with any radius.
        shape: of a parameter that the set fits. Several shapes and several ``per`` are several calls.
        seed: for the random points.

    Raises:
        AssertionError: naming the set, the method, what it must do, the first block where it does not, and the values.
        ValueError: if the set does not fit the shape.

    >>> from inface.sets import L1Ball
    >>> check_set(L1Ball(2.0))
    >>> class Careless(L1Ball):
    ...     kind = "careless"
    ...     def block_contains(self, x, tol=None):
    ...         return x.flatten(1).sum(1) <= self.radius
    >>> check_set(Careless(2.0), shape=(1, 2))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    AssertionError: check_set: Careless(radius=2.0, per='output'), shape (1, 2), float32: contains: must be False outside ...
    """
    size = torch.Size(shape)
    set_.check(size, "a parameter")
    _plain_data(set_)
    count = blocks.count(size, set_.per)
    own = torch.as_tensor(set_.radius, dtype=torch.float64).expand(count)
    finite = torch.where(torch.isinf(own), 1, own)
    many = set_.with_radius(finite * torch.linspace(0.5, 2, count, dtype=torch.float64))
    _plain_data(many)
    constrained = set_ if set_.free is None else set_.with_radius(finite)
    for each, dtype in ((constrained, torch.float32), (many, torch.float64)):
        case = _Case(each, size, dtype, seed)
        for clause in CLAUSES:
            clause(case)
    _diameter(case)
    _free_blocks(case)
    _joint(case)
    _half_precision(case)


class _Case:
    """A set without free blocks, a shape and a dtype, and what the clauses look at."""

    def __init__(self, set_: Set, size: torch.Size, dtype: torch.dtype, seed: int) -> None:
        self.set, self.size, self.dtype = set_, size, dtype
        self.generator = torch.Generator().manual_seed(seed)
        self.count = blocks.count(size, set_.per)
        self.r = torch.as_tensor(set_.radius, dtype=torch.float64).expand(self.count)
        self.eps = torch.finfo(dtype).eps
        self.near = NEAR * self.eps

    def demand(self, clause: str, holds: Tensor, **values: Tensor) -> None:
        """Raise an AssertionError if ``holds``, one truth per block, has a False."""
        if bool(holds.all()):
            return
        block = int((~holds).flatten().nonzero()[0])
        shown = ", ".join(f"{name} = {_shown(value[block])}" for name, value in values.items())
        dtype = str(self.dtype).removeprefix("torch.")
        where = f"check_set: {self.set!r}, shape {tuple(self.size)}, {dtype}"
        raise AssertionError(f"{where}: {clause}: block {block % self.count}: {shown}")

    def require(self, clause: str, holds: bool, found: object) -> None:
        """The same for what is not about one block."""
        if not holds:
            dtype = str(self.dtype).removeprefix("torch.")
            raise AssertionError(f"check_set: {self.set!r}, shape {tuple(self.size)}, {dtype}: {clause}: found {found}")

    def flat(self, x: Tensor) -> Tensor:
        """The blocks of a tensor like the parameter, ``(N, n)``, whatever the set makes of them."""
        return blocks.split(x, self.set.per).flatten(1)

    def random(self) -> Tensor:
        return torch.randn(self.size, generator=self.generator, dtype=torch.float64).to(self.dtype)

    @functools.cached_property
    def gradients(self) -> list[Tensor]:
        """Generic ones, ones with ties and zeros, single entries, and constants."""
        ties = torch.randint(-1, 2, self.size, generator=self.generator).to(self.dtype)
        ones = torch.ones(self.size, dtype=self.dtype)
        return [self.random(), self.random(), -self.random(), ties, self.single(0), -self.single(-1), ones, -ones]

    def single(self, at: int) -> Tensor:
        g = torch.zeros(self.count, self.size.numel() // self.count, dtype=self.dtype)
        g[:, at] = 1
        return blocks.join(g, torch.empty(self.size), self.set.per)

    def scaled(self, x: Tensor, factor: Tensor | float) -> Tensor:
        """The blocks of ``x``, each times its factor."""
        moved = self.flat(x) * spread(torch.as_tensor(factor, dtype=torch.float64).expand(self.count), self.flat(x))
        return blocks.join(moved.to(self.dtype), x, self.set.per)

    def batch(self, points: list[Tensor], others: list[Tensor]) -> _Batch:
        """Every point beside every other tensor, in blocks, and the set of all these blocks."""
        pairs = list(itertools.product(map(self.set.to_blocks, points), map(self.set.to_blocks, others)))
        rows = torch.arange(self.count).repeat(len(pairs))
        x, other = (torch.cat(each) for each in zip(*pairs, strict=True))
        return _Batch(self.set.part(rows), x, other, self.r[rows])

    @functools.cached_property
    def points(self) -> list[Tensor]:
        """Points of the set: vertices, points between them, and projections from near and far."""
        first, second, third, *_ = (self.set.vertex(g) for g in self.gradients)
        between = [0.5 * first + 0.5 * second, 0.5 * first + 0.25 * second + 0.25 * third]
        outside = [self.scaled(self.random(), self.r * factor) for factor in (1e-3, 0.3, 3.0, 1e3)]
        return [first, *map(self.set.project, [*between, *outside])]


class _Batch(NamedTuple):
    """Many blocks, and the set that they are in."""

    set: Set
    x: Tensor
    other: Tensor
    r: Tensor


# ---------------------------------------------------------------------- the dense interface


def _blocks(case: _Case) -> None:
    x = case.random()
    shape = case.set.to_blocks(x).shape
    case.require("to_blocks: must have one row for each block", shape[0] == case.count, tuple(shape))
    back = case.set.from_blocks(case.set.to_blocks(x), x)
    case.require("from_blocks: must undo to_blocks, bit for bit", torch.equal(back, x), back)


def _vertex(case: _Case) -> None:
    set_, points = case.set, case.points
    gradients = [*case.gradients, torch.zeros(case.size, dtype=case.dtype)]
    vertices = [set_.vertex(g) for g in gradients]
    for g, v in zip(gradients, vertices, strict=True):
        case.require("vertex: must keep shape and dtype", (v.shape, v.dtype) == (g.shape, g.dtype), (v.shape, v.dtype))
        case.demand("vertex: must lie in the set", set_.contains(v), g=case.flat(g), vertex=case.flat(v))
        size = set_.norm(v)
        case.demand(
            "vertex: must have the norm of the radius", _close(size, case.r, case.near), norm=size, radius=case.r
        )
    for g, v in zip(gradients, vertices, strict=True):
        slack = case.near * case.flat(g).abs().sum(1) * case.flat(v).abs().amax(1)
        price = dot(case.flat(g), case.flat(v))
        for other in (*vertices, *points):
            lower = dot(case.flat(g), case.flat(other))
            case.demand(
                "vertex: must minimise <g, v> over the set",
                price <= lower + slack,
                g=case.flat(g), vertex=case.flat(v), price=price, better=case.flat(other), its_price=lower,
            )  # fmt: skip
        again = set_.vertex(4 * g)
        case.demand(
            "vertex: must not depend on the length of g, and be the same at each call",
            (case.flat(again - v).abs() <= spread(case.near * case.r, case.flat(v))).all(1),
            g=case.flat(g), vertex=case.flat(v), of_4g=case.flat(again),
        )  # fmt: skip


def _norm(case: _Case) -> None:
    set_ = case.set
    for x, y in itertools.pairwise(case.points):
        one, two = set_.norm(x), set_.norm(y)
        case.require("norm: must have one number for each block", tuple(one.shape) == (case.count,), tuple(one.shape))
        case.demand("norm: of a point of the set must be at most the radius", one <= case.r * (1 + case.near), norm=one)
        double = set_.norm(2 * x)
        case.demand("norm: of 2x must be twice that of x", _close(double, 2 * one, case.near), of_x=one, of_2x=double)
        both = set_.norm(x + y)
        case.demand(
            "norm: of a sum must be at most the sum of the norms",
            both <= (one + two) * (1 + case.near),
            of_x=one, of_y=two, of_sum=both,
        )  # fmt: skip
    case.demand("norm: of zero must be zero", set_.norm(torch.zeros_like(x)) == 0, norm=set_.norm(torch.zeros_like(x)))


def _contains(case: _Case) -> None:
    set_, off = case.set, case.eps**0.5
    for g in case.gradients:
        v = set_.vertex(g)
        v = case.scaled(v, case.r / set_.norm(v))  # on the boundary, whether or not it is a vertex
        for factor in (1.0, 1 - off, 0.5) if set_.has_inside else (1.0,):
            x = case.scaled(v, factor)
            inside, size = set_.contains(x), set_.norm(x)
            case.demand("contains: must be True for a point of the set", inside, x=case.flat(x), norm=size)
        for factor in (1 + off, 1.5, 100.0):
            x = case.scaled(v, factor)
            inside, size = set_.contains(x), set_.norm(x)
            case.demand("contains: must be False outside the set", ~inside, x=case.flat(x), norm=size)
        x = case.scaled(v, 1 + off)
        case.demand("contains: must take tol times the radius", set_.contains(x, tol=4 * off), x=case.flat(x))
        spoiled = case.flat(v).clone()
        spoiled[:, -1] = torch.nan
        x = blocks.join(spoiled, v, set_.per)
        case.demand("contains: must be False where an entry is not a number", ~set_.contains(x), x=case.flat(x))


def _points(case: _Case) -> None:
    """What everything else is measured by."""
    for x in case.points[1:]:
        case.demand("project: must end in the set", case.set.contains(x), projected=case.flat(x), norm=case.set.norm(x))


def _project(case: _Case) -> None:
    set_ = case.set
    for x in case.points:
        again = set_.project(x)
        same = (_bits(case.flat(again)) == _bits(case.flat(x))).all(1)
        case.demand(
            "project: must return points of the set bit for bit", same, x=case.flat(x), projected=case.flat(again)
        )
    for factor in (0.3, 3.0, 1e4):
        x = case.scaled(case.random(), case.r * factor)
        y = set_.project(x)
        case.require("project: must keep shape and dtype", (y.shape, y.dtype) == (x.shape, x.dtype), (y.shape, y.dtype))
        case.demand("project: must end in the set", set_.contains(y), x=case.flat(x), projected=case.flat(y))
        # The nearest point y is the one with <x - y, w - y> <= 0 for every w in the set; the vertex in that direction is the worst.
        gap, best = x - y, set_.vertex(y - x)
        rise = dot(case.flat(gap), case.flat(best - y))
        slack = case.near * case.flat(gap).abs().sum(1) * (case.flat(best).abs() + case.flat(y).abs()).amax(1)
        case.demand(
            "project: must be the nearest point: <x - y, w - y> <= 0 for w in the set",
            rise <= slack,
            x=case.flat(x), y=case.flat(y), w=case.flat(best), product=rise,
        )  # fmt: skip


def _max_step(case: _Case) -> None:
    set_ = case.set
    if not set_.has_inside:  # from which almost all directions lead at once
        ends = [set_.vertex(g) for g in case.gradients[:3]]
    else:
        ends = [case.scaled(case.random(), case.r * factor) for factor in (1.0, 1e-3)]
    many, x, d, r = case.batch(case.points, ends)
    d = d if set_.has_inside else d - x
    a = many.ray(x, d)
    length = d.abs().flatten(1).amax(1).double()
    values = {"x": x.flatten(1), "d": d.flatten(1), "step": a}
    case.demand("max_step: must not be negative", a >= 0, **values)
    some = torch.where(torch.isfinite(a), a, 0)
    end = x.double() + spread(some, x) * d.double()
    inside = many.block_contains(end, tol=case.near)
    case.demand("max_step: must end in the set", inside | ~torch.isfinite(a), **values)
    beyond = some * (1 + COARSE) + COARSE * r / torch.where(length > 0, length, 1)
    outside = ~many.block_contains(x.double() + spread(beyond, x) * d.double(), tol=case.eps**0.5 / 10)
    case.demand(
        "max_step: must be the largest step that ends in the set", outside | (length <= case.near * r), **values
    )
    a = set_.max_step(case.points[0], case.random())
    case.require("max_step: must have one number for each block", tuple(a.shape) == (case.count,), tuple(a.shape))
    still = set_.max_step(case.points[0], torch.zeros_like(case.points[0]))
    case.demand("max_step: must be inf along zero", torch.isinf(still), step=still)


def _layout(case: _Case) -> None:
    """Strides of a tensor, and what other blocks hold, must not matter."""
    set_, x, g = case.set, case.points[-2], case.random()
    calls: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "vertex": lambda _, g: set_.vertex(g),
        "project": lambda _, g: set_.project(3 * g),
        "norm": lambda _, g: set_.norm(g.abs()),
    }
    if set_.has_inside:
        calls["max_step"] = set_.max_step
    if set_.has_faces:
        calls["face_vertex"] = set_.face_vertex
    turned = [_turned(each) for each in (x, g)]
    strided = [torch.stack([each, -each], -1).flatten(-2)[..., ::2] for each in (x, g)]
    expanded = [x, g[:1].expand_as(g)]
    for name, call in calls.items():
        for other in (turned, strided, expanded):
            found, wanted = call(*other), call(*(each.contiguous() for each in other))
            near = torch.allclose(found.double(), wanted.double(), rtol=case.near, atol=case.near * float(case.r.max()))
            case.require(f"{name}: must not depend on the layout of a tensor", near, found)
    gb = set_.to_blocks(g)
    last = torch.tensor([case.count - 1])
    for name in ("dense_vertex", "block_norm", "block_project"):
        found, wanted = getattr(set_.part(last), name)(gb[last]), getattr(set_, name)(gb)[last]
        near = torch.allclose(found, wanted, rtol=case.near, atol=case.near * float(case.r.max()))
        case.require(f"{name}: of one block must not depend on the others (see part)", near, found)


# ---------------------------------------------------------------------- steps


def _toward(case: _Case) -> None:
    set_, x, g, _ = case.batch(case.points, case.gradients[:5])
    v = set_.dense_vertex(g)
    move = set_.toward(x, g)
    slack = case.near * g.flatten(1).abs().sum(1) * (v.abs() + x.abs()).flatten(1).amax(1)
    gap = dot(g, x - v)
    case.demand(
        "toward: its slope must be the gap <g, x - v>", (move.slope - gap).abs() <= slack, slope=move.slope, gap=gap
    )
    case.demand("toward: its limit must be 1", move.limit == 1, limit=move.limit)
    ones = torch.ones_like(move.slope)
    end = set_.apply(x, move, Decision(ones, ones > 0))
    moved = move.slope > slack
    near = (end - v).flatten(1).abs().amax(1) <= 4 * case.eps * v.flatten(1).abs().amax(1)
    case.demand("apply: a step of 1 must end at the vertex", near | ~moved, end=end.flatten(1), vertex=v.flatten(1))
    half = set_.apply(x, move, Decision(ones / 2, ones < 0))
    near = (half - (x + v) / 2).flatten(1).abs().amax(1) <= case.near * v.flatten(1).abs().amax(1)
    case.demand("apply: half a step must end half way", near | ~moved, end=half.flatten(1), x=x.flatten(1))
    case.demand("apply: must end in the set", set_.block_contains(half), end=half.flatten(1))
    stayed = set_.apply(x, move, Decision(0 * ones, ones < 0))
    same = (_bits(stayed) == _bits(x)).flatten(1).all(1)
    case.demand("apply: a step of 0 must leave every bit alone", same, x=x.flatten(1), end=stayed.flatten(1))


def _faces(case: _Case) -> None:
    if not case.set.has_faces:
        return
    gradients = case.gradients[:4]
    set_, x, g, _ = case.batch(case.points, gradients)
    v = set_.dense_face_vertex(x, g)
    values = {"x": x.flatten(1), "g": g.flatten(1), "face_vertex": v.flatten(1)}
    case.demand("face_vertex: must lie in the set", set_.block_contains(v), **values)
    # x is in the relative interior of its minimal face: there is a way on from every point of it.
    case.demand("face_vertex: must lie in the minimal face of x", set_.ray(x, x - v) > 0, **values)
    slack = case.near * g.flatten(1).abs().sum(1) * (v.abs() + x.abs()).flatten(1).amax(1)
    by_point = v.reshape(len(case.points), len(gradients), case.count, *v.shape[1:])
    others = [by_point.roll(i, 1).reshape(v.shape) for i in range(1, len(gradients))]
    for other in (x, *others):
        better = dot(g, v) <= dot(g, other) + slack
        case.demand(
            "face_vertex: must minimise <g, v> over the minimal face", better, **values, better=other.flatten(1)
        )
    inside = ~set_.on_boundary(set_.block_norm(x), x) & set_.has_inside
    best = set_.dense_vertex(g)
    case.demand(
        "face_vertex: must be as good as the vertex inside the set, where the face is all of it",
        (dot(g, v) <= dot(g, best) + slack) | ~inside,
        **values,
        vertex=best.flatten(1),
    )
    set_, v, g, _ = case.batch([case.set.vertex(g) for g in case.gradients], [case.random()])
    own = set_.dense_face_vertex(v, g)
    near = (own - v).flatten(1).abs().amax(1) <= case.eps**0.5 * v.flatten(1).abs().amax(1)
    case.demand("face_vertex: of a vertex must be that vertex", near, vertex=v.flatten(1), face_vertex=own.flatten(1))


def _in_face(case: _Case) -> None:
    if not case.set.has_faces:
        return
    set_, x, g, r = case.batch(case.points, case.gradients[:3])
    best, worst = set_.dense_face_vertex(x, g), set_.dense_face_vertex(x, -g)
    steepest = g.flatten(1).abs().sum(1) * (best.abs() + worst.abs() + x.abs()).flatten(1).amax(1)
    directions: dict[InFace, Tensor] = {"away": x - worst, "frank-wolfe": best - x, "pairwise": best - worst}
    for name, d in directions.items():
        move = set_.in_face(name, x, g)
        values = {"x": x.flatten(1), "g": g.flatten(1), "d": d.flatten(1), "slope": move.slope}
        slope = -dot(g, d)
        near = (move.slope - slope).abs() <= case.near * steepest
        case.demand(f"{name}: its slope must be -<g, d>", near, **values, wanted=slope)
        moves = move.slope > case.eps**0.5 * steepest
        far = torch.full_like(move.slope, 1e3)
        limit = torch.minimum(set_.limit(x, move, far), far)
        room = torch.ones_like(limit) if name == "frank-wolfe" else torch.minimum(set_.ray(x, d), far)
        near = (limit - room).abs() <= COARSE * room + case.near
        case.demand(f"{name}: its limit must be max_step(x, d)", near | ~moves, **values, limit=limit, max_step=room)
        end = set_.apply(x, move, Decision(torch.where(moves, limit, 0), moves))
        values["end"] = end.flatten(1)
        case.demand(f"{name}: a maximal step must end in the set", set_.block_contains(end), **values)
        on, still = (set_.on_boundary(set_.block_norm(each), each) for each in (x, end))
        case.demand(f"{name}: a step from the boundary must stay on it", still | ~on, **values)
        if name == "frank-wolfe":
            continue
        left = set_.dense_face_vertex(end, -g)
        gone = (left - worst).flatten(1).abs().amax(1) > case.near * r
        case.demand(
            f"{name}: a maximal step must land exactly: the vertex that it leaves is not in the next face",
            gone | ~moves | (limit >= far),
            **values,
            vertex=worst.flatten(1),
        )


def _face_project(case: _Case) -> None:
    if not case.set.projects_faces:
        return
    reach = float(case.r.max())
    for factor in (1e-2, 1.0, 1e2):
        set_, x, g, r = case.batch(case.points, [factor * reach * g for g in case.gradients[:4]])
        y = x.double() - g.double()
        end, smaller = set_.block_face_project(x, y)
        values = {"x": x.flatten(1), "y": y.flatten(1), "end": end.flatten(1)}
        case.require("face_project: must keep the dtype of x", end.dtype == x.dtype, end.dtype)
        case.demand("face_project: must end in the set", set_.block_contains(end), **values)
        on, still = (set_.on_boundary(set_.block_norm(each), each) for each in (x, end))
        case.demand("face_project: from the boundary must stay on it", still | ~on, **values)
        again, _ = set_.block_face_project(end, end.double())
        near = (again - end).flatten(1).abs().amax(1) <= case.near * r
        case.demand("face_project: of a point of the face must be that point", near, **values, again=again.flatten(1))
        # The vertex of the face in the direction of y is the worst; a set may keep to a part of the face, so it is projected.
        worst = set_.block_face_project(x, set_.dense_face_vertex(x, (end - y).to(x.dtype)).double()).end
        largest = (end.abs() + x.abs() + worst.abs()).flatten(1).amax(1)
        slack = case.near * ((y - end).abs() + end.abs()).flatten(1).sum(1) * largest
        for other in (x, worst):
            product = dot(y - end, other - end)
            case.demand(
                "face_project: must be the nearest point of the face: <y - w, z - w> <= 0 for z in it",
                product <= slack,
                **values, z=other.flatten(1), product=product,
            )  # fmt: skip
        moved = (end - x).flatten(1).abs().amax(1) > case.near * r
        case.demand("face_project: a smaller face must be another point", moved | ~smaller, **values)


def _projected(case: _Case) -> None:
    """The way from ``x`` to the end is the paper's ``beta d``, with a direction no longer than the diameter."""
    if not case.set.projects_faces:
        return
    set_, x, g, r = case.batch(case.points, case.gradients[:3])
    rows = torch.arange(case.count).repeat(len(x) // case.count)
    diameter = torch.as_tensor(case.set.diameter(blocks.shape(case.size, case.set.per)), dtype=torch.float64)
    diameter = diameter.expand(case.count)[rows]
    steepest = g.flatten(1).abs().sum(1) * x.flatten(1).abs().amax(1).clamp(min=1e-3 * float(r.min()))
    for factor in (0.1, 1.0, 10.0):
        lr = factor * r
        rate = torch.where(diameter > 0, lr / torch.where(diameter > 0, diameter, 1).square(), 0)
        move = set_.project_in_face(x, g, rate, diameter)
        decision = decide(set_, x, move, rate)
        end = set_.apply(x, move, decision)
        values = {"x": x.flatten(1), "g": g.flatten(1), "end": end.flatten(1), "slope": move.slope}
        moves = move.slope * decision.step > case.eps**0.5 * steepest
        way = (end - x).double()
        d = way / spread(torch.where(decision.step > 0, decision.step, 1), way)
        near = (-dot(g, d) - move.slope).abs() <= COARSE * move.slope
        case.demand("projected: its slope must be -<g, d> of its direction", near | ~moves, **values)
        length = set_.block_length(d)
        case.demand(
            "projected: its direction must be no longer than the diameter",
            (length <= diameter * (1 + COARSE)) | ~moves, **values, length=length, diameter=diameter,
        )  # fmt: skip
        room = set_.ray(x, way.to(x.dtype))
        case.demand("projected: its step must be at most max_step", (room >= 1 - COARSE) | ~moves, **values, room=room)


def _offers(set_: Set, strategy: InFace) -> bool:
    """Whether a set offers in-face steps of that name."""
    return set_.projects_faces if strategy == "projected" else set_.has_faces


def _steps(case: _Case) -> None:
    """Many steps of the optimizer keep inside; a zero gradient moves no bit; a saved run goes on as it would have."""
    set_ = case.set
    strategies: list[InFace | None] = [None, *(each for each in IN_FACE if _offers(set_, each))]
    for in_face in strategies:
        p = torch.nn.Parameter(case.points[4])
        opt = _optimizer(set_, [p], 0.3 * float(case.r.min()), in_face)
        target = case.random()
        for step in range(18):
            opt.param_groups[0]["lr"] = float(case.r.min()) * (1e4 if step % 8 == 7 else 0.3)
            p.grad = p.detach() / float(case.r.max()) - target + case.random()
            before = _bits(p.detach())
            if step % 6 == 5:
                p.grad.zero_()
            opt.step()
            found = f"{case.flat(p.detach()).tolist()} after step {step}, in_face={in_face!r}"
            case.require("steps: must stay in the set", bool(set_.contains(p.detach()).all()), found)
            if step % 6 == 5:
                same = torch.equal(_bits(p.detach()), before)
                case.require("steps: a zero gradient must leave every bit alone", same, found)
        case.require("steps: the gap must not be negative", bool(opt.gap >= 0), opt.gap)
        other = torch.nn.Parameter(p.detach().clone())
        again = _optimizer(copy.deepcopy(set_), [other], 1.0, in_face)
        again.load_state_dict(_saved(opt.state_dict()))
        for _ in range(2):
            p.grad = other.grad = case.random()
            opt.step()
            again.step()
        case.require("steps: must go on from a saved state bit for bit", torch.equal(p, other), (p, other))


CLAUSES: tuple[Callable[[_Case], None], ...] = (
    _blocks,
    _contains,
    _points,
    _vertex,
    _norm,
    _project,
    _max_step,
    _layout,
    _toward,
    _faces,
    _in_face,
    _face_project,
    _projected,
    _steps,
)


# ---------------------------------------------------------------------- once for each set


def _plain_data(set_: Set) -> None:
    """A set must survive being saved and loaded, and must refuse a bad radius."""
    data = set_.to_dict()
    try:
        again = Set.from_dict(_saved(data))
    except Exception as error:
        raise AssertionError(
            f"check_set: {set_!r}: to_dict: must make the set again from a file, got {type(error).__name__}: {error}"
        ) from error
    if type(again) is not type(set_):
        raise AssertionError(
            f"check_set: {set_!r}: to_dict: kind {data['kind']!r} makes a {type(again).__name__}: give the class a kind of its own"
        )
    for key, value in again.to_dict().items():
        same = (
            torch.equal(torch.as_tensor(value), torch.as_tensor(data[key])) if key == "radius" else value == data[key]
        )
        if same is not True:
            raise AssertionError(
                f"check_set: {set_!r}: options: {key} must come back as it was saved, as plain data, got {value!r} for {data[key]!r}"
            )
    if repr(again) != repr(set_):
        raise AssertionError(f"check_set: {set_!r}: to_dict: must make the set again, got {again!r}")
    if type(set_.with_radius(5.0)) is not type(set_) or set_.with_radius(5.0).radius != 5.0:
        raise AssertionError(f"check_set: {set_!r}: with_radius: must make the same set of another radius")
    try:
        set_.with_radius(-1.0)
    except ValueError:
        return
    raise AssertionError(f"check_set: {set_!r}: radius: -1 must be refused with a ValueError")


def _diameter(case: _Case) -> None:
    """In every norm: no two points are farther apart, and some two are as far."""
    n = case.size.numel() // case.count
    singles = [case.single(j) for j in range(min(n, 32))]
    signs = torch.ones(case.size, dtype=case.dtype)
    gradients = [*case.gradients, *singles, signs]
    for norm in case.set.norms:
        set_ = Set.from_dict({**case.set.to_dict(), "norm": norm})
        diameter = torch.as_tensor(set_.diameter(blocks.shape(case.size, set_.per)), dtype=torch.float64)
        found = torch.zeros(case.count, dtype=torch.float64)
        for g in gradients:
            v, w = set_.vertex(g), set_.vertex(-g)
            for _ in range(3):  # each turn takes two points at least as far apart in l2
                found = torch.maximum(found, set_.block_length(set_.to_blocks(v - w)))
                v, w = set_.vertex(w - v), set_.vertex(v - w)
        values = {"diameter": diameter.expand(case.count), "distance": found}
        case.demand(
            f"diameter: in {norm}: no two points may be farther apart", found <= diameter * (1 + case.near), **values
        )
        case.demand(
            f"diameter: in {norm}: two points must be that far apart", found >= diameter * (1 - COARSE), **values
        )


def _free_blocks(case: _Case) -> None:
    """A block of infinite radius contains everything, has no vertices, and descends like a free parameter."""
    radius = case.r.clone()
    radius[0] = torch.inf
    set_ = case.set.with_radius(radius)
    x = 100 * case.random()
    case.require("contains: must be True for a free block", bool(set_.contains(x)[0]), set_.contains(x))
    y = set_.project(x)
    case.require(
        "project: must leave a free block alone", torch.equal(case.flat(y)[0], case.flat(x)[0]), case.flat(y)[0]
    )
    case.require("project: must end in the set", bool(set_.contains(y).all()), case.flat(y))
    case.require(
        "max_step: must be inf in a free block", bool(torch.isinf(set_.max_step(y, x)[0])), set_.max_step(y, x)
    )
    p = torch.nn.Parameter(y.clone())
    p.grad = case.random()
    _optimizer(set_, [p], 0.5, None).step()
    wanted = case.flat(y - 0.5 * p.grad)[0]
    case.require("steps: must move a free block by -lr g", torch.allclose(case.flat(p.detach())[0], wanted), p)
    case.require("steps: must stay in the set", bool(set_.contains(p.detach()).all()), p)


def _joint(case: _Case) -> None:
    """per="group": several parameters as one block, where the set allows it."""
    if not case.set.joinable:
        return
    joint = Set.from_dict({**case.set.to_dict(), "per": "group", "radius": 1.5})
    tensors = [case.random(), case.random()]
    try:
        joint.check(case.size, "a parameter")
        joint.together().check(joint.gather(tensors).shape, "a group")
    except ValueError:
        return
    back = joint.scatter(joint.gather(tensors), tensors)
    case.require("scatter: must undo gather, bit for bit", all(map(torch.equal, back, tensors)), back)
    params = [torch.nn.Parameter(x) for x in joint.scatter(joint.together().project(joint.gather(tensors)), tensors)]
    strategies: list[InFace | None] = [each for each in IN_FACE if _offers(joint, each)] or [None]
    opt = _optimizer(joint, params, 0.3, strategies[0])
    for step in range(8 * len(strategies)):
        opt.param_groups[0]["in_face"] = strategies[step // 8]
        for p in params:
            p.grad = case.random()
        opt.step()
        inside = joint.together().contains(joint.gather([p.detach() for p in params]))
        case.require(
            "gather: steps on several parameters as one block must stay in the set", bool(inside.all()), params
        )


def _half_precision(case: _Case) -> None:
    for dtype in HALF:
        x = case.scaled(case.random(), case.r).to(dtype)
        tol = x.numel() * torch.finfo(dtype).eps
        for name, y in (("vertex", case.set.vertex(x)), ("project", case.set.project(x))):
            case.require(f"{name}: must keep the dtype {dtype}", y.dtype == dtype, y.dtype)
            case.demand(f"{name}: must lie in the set in {dtype}", case.set.contains(y, tol=tol), found=case.flat(y))


# ---------------------------------------------------------------------- helpers


def _optimizer(set_: Set, params: list[torch.nn.Parameter], lr: float, in_face: InFace | None) -> FrankWolfe:
    return FrankWolfe([{"params": params, "set": set_}], lr, in_face=in_face, project=False)


def _saved(data: dict[str, Any]) -> dict[str, Any]:
    """Plain data after a way through a file that loads nothing else."""
    buffer = io.BytesIO()
    torch.save(data, buffer)
    buffer.seek(0)
    loaded: dict[str, Any] = torch.load(buffer, weights_only=True)
    return loaded


def _bits(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.int32 if x.dtype == torch.float32 else torch.int64).clone()


def _close(found: Tensor, wanted: Tensor, near: float) -> Tensor:
    return (found == wanted) | ((found - wanted).abs() <= near * wanted.abs())


def _turned(x: Tensor) -> Tensor:
    order = tuple(reversed(range(x.ndim)))
    return x.permute(order).contiguous().permute(order)


def _shown(value: Tensor) -> str:
    numbers = value.detach().flatten().tolist()
    text = ", ".join(f"{number:.9g}" if isinstance(number, float) else str(number) for number in numbers[:12])
    return text if value.ndim == 0 else f"[{text}{', ...' if len(numbers) > 12 else ''}]"
