"""What a feasible region is to the optimizer, and to people.

A set works on a batch of blocks (see :mod:`inface.sets.blocks`). A step on it has three parts, which never mix:

* **reduce**: ``toward`` (Frank-Wolfe), or ``away``, ``within``, ``pairwise`` and ``project_in_face`` (inside the minimal
  face) look at the blocks and return a :class:`Move`: per block, how fast the objective falls along it and how far it may
  go;
* **decide**: :func:`decide` turns those numbers into one step size per block;
* **apply**: ``apply`` walks that far, and lands exactly on what it hits.

Per-block numbers are kept in float64 where the device has it, whatever the dtype of the parameter.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from ..types import InFace
from . import blocks
from .blocks import Per
from .norms import DUAL, NormName, equivalence, length

__all__ = ["Decision", "InFace", "Move", "Set", "decide"]

# "On the boundary" means within this many units in the last place of the radius, whatever the size of the block.
ULPS = 8

# What can be computed in; parameters of other dtypes have float32 copies.
EXACT = (torch.float32, torch.float64)

# The compiled kernels there are, by the steps that they take.
Kernel = Literal["ball", "simplex", "box", "groups"]

# The numbers of no blocks.
NONE = torch.zeros(0, dtype=torch.long, device="cpu")

# How often a search for the end of a ray doubles a step of one radius, and how often it then halves an interval.
DOUBLINGS, HALVINGS = 64, 60


@dataclass
class Move:
    """A direction for every block, reduced to what the step size depends on.

    ``slope`` is ``-<g, d>``, the rate at which the linearised objective falls: the Frank-Wolfe gap or the paper's
    ``A``. ``limit`` is the paper's ``alpha_stop``. A block with ``slope <= 0`` stays where it is.
    """

    slope: Tensor
    limit: Tensor


@dataclass
class Straight(Move):
    """A move along directions that are written out."""

    direction: Tensor


@dataclass
class ToVertex(Move):
    """A move to a vertex that is written out."""

    vertex: Tensor


@dataclass
class Projected(Move):
    """A move to the projection of a gradient step onto the minimal face, or part of the way there.

    ``part`` is None where every block goes all the way, as it does in the norms in which no ``|D|`` exceeds ``|D|_2``.
    """

    end: Tensor
    part: Tensor | None


class FaceProjection(NamedTuple):
    """Blocks projected onto the minimal faces of others, and which of them ended on a smaller face."""

    end: Tensor
    smaller: Tensor


class Decision(NamedTuple):
    """One step size per block, and where it was cut short by the move's limit."""

    step: Tensor
    hit: Tensor


class Set(ABC):
    """A compact convex set, one copy of it per block of a parameter.

    A set of one's own is a subclass with a ``kind`` and four methods: :meth:`dense_vertex`, :meth:`block_norm`,
    :meth:`block_project` and :meth:`diameter`. In-face steps need one more, :meth:`dense_face_vertex`, and projected ones
    :meth:`block_face_project`. The rest follows from these by formulas that hold for every set whose multiples grow with the radius; a subclass replaces what it knows
    in closed form. :func:`inface.testing.check_set` checks all of it.

    Args:
        radius: the size of the set, which has no default: a number, or a tensor with one value per block (the paper's ``delta_{t,i}``). Where it
            is ``inf`` the block is free: it descends like a free parameter.
        density: instead of a radius, for sets with atoms: the share of atoms (edges, groups, ranks) that the set has room
            for. The optimizer gives each block ``x`` of ``A`` atoms the radius ``sqrt(density A) |x|_2``: that many atoms
            of one size then have the length of the block that the model starts with.
        per: what a block is: ``"output"`` (a row of a Linear, a filter of a Conv), ``"input"`` (what leaves one input),
            ``"tensor"`` (the whole parameter), or ``"group"`` (all parameters of a group together, which then take one
            common step; not for sets of matrices). A 1-D parameter is always one block.
        norm: on a block (the paper's ``|.|_X``), in which the diameter is measured, and with it the step size:
            ``"l2"`` (default), ``"l1"`` or ``"linf"`` for sets of vectors, ``"frobenius"`` (default), ``"spectral"`` or
            ``"nuclear"`` for sets of matrices. It is kept as ``norm_name``; the method :meth:`norm` is the set's gauge.

    The methods that take ``x``, ``g`` or ``d`` in the parameter's own shape are for people, research and checking;
    the optimizer works on blocks, with the methods whose arguments are called so.

    >>> import torch
    >>> from inface.sets import L1Ball
    >>> ball, x = L1Ball(2.0), torch.tensor([[1.5, 0.0, -0.5], [1.0, 0.0, 0.0]])
    >>> ball.norm(x), ball.contains(x)
    (tensor([2., 1.], dtype=torch.float64), tensor([True, True]))
    >>> ball.vertex(torch.tensor([[0.0, 3.0, 0.0], [-1.0, 0.0, 0.0]]))
    tensor([[ 0., -2.,  0.],
            [ 2.,  0.,  0.]])
    >>> ball.face_vertex(x, torch.tensor([[0.0, 3.0, -1.0], [-1.0, 0.0, 0.0]]))
    tensor([[2., 0., 0.],
            [2., 0., 0.]])
    >>> ball.max_step(x, torch.tensor([[-1.0, 0.0, -1.0], [1.0, 0.0, 0.0]]))
    tensor([1.5000, 1.0000], dtype=torch.float64)
    >>> ball.project(torch.tensor([[3.0, 0.0, -2.0]]))
    tensor([[ 1.5000,  0.0000, -0.5000]])
    >>> ball.diameter(torch.Size([3]))
    4.0
    >>> from inface.sets import LInfBall
    >>> LInfBall(2.0).diameter(torch.Size([4])), LInfBall(2.0, norm="l1").diameter(torch.Size([4]))
    (8.0, 16.0)
    """

    kind: ClassVar[str]  # what plain data calls it
    has_faces: ClassVar[bool] = False  # True in classes that define dense_face_vertex
    projects_faces: ClassVar[bool] = False  # True in classes that define block_face_project too
    default_per: ClassVar[Per] = "output"
    norms: ClassVar[tuple[NormName, ...]] = ("l2", "l1", "linf")  # what ``norm`` may be, the default first
    joinable: ClassVar[bool] = True  # whether per="group" means something
    cheap_norm: ClassVar[bool] = True  # whether a norm costs little beside a step
    has_edges: ClassVar[bool] = True  # whether a few entries of any signs, scaled, are a point of the set
    has_inside: ClassVar[bool] = True  # whether there are points of a norm below the radius
    signed: ClassVar[bool] = True  # whether entries may be negative
    has_atoms: ClassVar[bool] = False  # whether points are sums of atoms that can be counted: atom_sizes, keep_atoms
    kernel: Kernel | None = None  # which compiled kernel steps as this class does; a subclass must say it again
    _kinds: ClassVar[dict[str, type[Set]]] = {}

    radius: float | Tensor
    per: Per
    norm_name: NormName

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "has_faces" not in cls.__dict__:
            cls.has_faces = cls.dense_face_vertex is not Set.dense_face_vertex
        if "projects_faces" not in cls.__dict__:
            cls.projects_faces = cls.has_faces and cls.block_face_project is not Set.block_face_project
        cls.kernel = cls.__dict__.get("kernel")
        if "kind" in cls.__dict__:
            known = Set._kinds.get(cls.kind)
            if known is not None and known.__qualname__ != cls.__qualname__:
                raise ValueError(
                    f"{cls.__name__}: kind {cls.kind!r} is that of {known.__name__}; wanted one of its own"
                )
            Set._kinds[cls.kind] = cls

    def __init__(
        self,
        radius: float | Tensor | None = None,
        per: Per | None = None,
        *,
        norm: NormName | None = None,
        density: float | None = None,
    ) -> None:
        name = type(self).__name__
        self.per = self.default_per if per is None else per
        if self.per not in get_args(Per):
            raise ValueError(f"{name}: per must be one of {', '.join(map(repr, get_args(Per)))}, got {per!r}")
        self.norm_name = self.norms[0] if norm is None else norm
        if self.norm_name not in self.norms:
            raise ValueError(f"{name}: norm must be one of {', '.join(map(repr, self.norms))}, got {norm!r}")
        if self.per == "group" and not self.joinable:
            raise ValueError(f"{name}: per='group' is for sets of vectors; tensors do not add up to one matrix")
        self.density = self._checked_density(density)
        self.sized = radius is not None or density is None  # whether the radius is known, or waits for the parameters
        self.radius = _checked_radius(name, radius) if self.sized else 1.0
        self.all_free, self.free_blocks = False, NONE
        self.free: Tensor | None = None  # which blocks are; None if none is
        self._kept: Tensor | None = None
        if isinstance(self.radius, Tensor):
            infinite = torch.isinf(self.radius)
            self.all_free, self.free_blocks = bool(infinite.all()), infinite.nonzero().flatten()
            if bool(infinite.any()):
                self.free, self._kept = infinite, (~infinite).nonzero().flatten()

    # ------------------------------------------------------------------ for people: the parameter's own shape

    def vertex(self, g: Tensor) -> Tensor:
        """The extreme point of the set that minimises ``<g, v>``, block by block.

        Ties go to the lowest index, and ``vertex(0)`` is the set's first positive vertex.
        """
        self._needs_vertices()
        gb = self._numbers_of(g)
        return self._back(self.dense_vertex(gb), g)

    def face_vertex(self, x: Tensor, g: Tensor) -> Tensor:
        """The extreme point of the minimal face of ``x`` that minimises ``<g, v>``, block by block."""
        if not self.has_faces:
            raise ValueError(f"{type(self).__name__} has no faces to offer (has_faces is False)")
        self._needs_vertices()
        return self._back(self.dense_face_vertex(self._numbers_of(x), self._numbers_of(g)), g)

    def face_project(self, x: Tensor, y: Tensor) -> Tensor:
        """The Euclidean projection of ``y`` onto the minimal face of ``x``, block by block.

        Inside the set, where the minimal face is all of it, onto the part that has the structure of ``x``: see
        :meth:`block_face_project` of each set. Free blocks come back as they are in ``y``.

        >>> import torch
        >>> from inface.sets import L1Ball
        >>> x, y = torch.tensor([[0.5, -0.5, 0.0]]), torch.tensor([[1.0, -0.6, 9.0]])
        >>> L1Ball(1.0).face_project(x, y)  # the signed support of x is the face
        tensor([[ 0.7000, -0.3000,  0.0000]])
        >>> L1Ball(2.0).face_project(x, torch.tensor([[1.0, 0.6, 9.0]]))  # inside: support and signs stay
        tensor([[1., 0., 0.]])
        """
        if not self.projects_faces:
            raise ValueError(f"{type(self).__name__} projects onto no faces (projects_faces is False)")
        xb, yb = self._numbers_of(x), self._numbers_of(y)
        kept = self.constrained(xb)
        if kept is None:
            return self._back(self.block_face_project(xb, yb.to(wide(yb))).end, x)
        if self.all_free:
            return y
        end = self.part(kept).block_face_project(xb[kept], yb[kept].to(wide(yb))).end
        return self._back(yb.index_copy(0, kept, end.to(yb.dtype)), x)

    def max_step(self, x: Tensor, d: Tensor) -> Tensor:
        """The largest ``a >= 0`` with ``x + a d`` in the set, per block; ``inf`` where ``d`` is zero or the block is free.

        A norm that rises along ``d`` more slowly than rounding can tell counts as constant.
        """
        xb, db = self._numbers_of(x), self._numbers_of(d)
        if self.free is None:
            return self.ray(xb, db)
        bounded = self.with_radius(torch.where(self.free, 1, self.radius))
        return torch.where(self.free.to(xb.device), torch.inf, bounded.ray(xb, db))

    def contains(self, x: Tensor, tol: float | None = None) -> Tensor:
        """Whether each block lies in the set, up to ``tol`` times its radius.

        The default is 8 eps of the dtype, and of float32 for half precision: rounding into the set is possible there too.
        """
        return self.inside(self._numbers_of(x), tol)

    def project(self, x: Tensor) -> Tensor:
        """The Euclidean projection; blocks already in the set come back unchanged, bit for bit."""
        return self._back(self.projected(self._numbers_of(x)), x)

    def norm(self, x: Tensor) -> Tensor:
        """The gauge of the set times its radius, per block: at most ``radius`` exactly for points of the set."""
        return self.block_norm(self._numbers_of(x))

    @abstractmethod
    def diameter(self, block_shape: torch.Size) -> float | Tensor:
        """The diameter of the set in blocks of this shape, in the norm ``norm_name``: a number, or one per block."""

    # ------------------------------------------------------------------ for the optimizer: batches of blocks

    def to_blocks(self, x: Tensor) -> Tensor:
        """The parameter in the shape this set computes in, ``(N, n)`` unless it says otherwise."""
        return blocks.split(x, self.per).flatten(1)

    def from_blocks(self, blocks_: Tensor, like: Tensor) -> Tensor:
        """Back from :meth:`to_blocks`."""
        return blocks.join(blocks_, like, self.per)

    def toward(self, x: Tensor, g: Tensor) -> Move:
        """The Frank-Wolfe direction ``vertex(g) - x``; its slope is the gap."""
        return _to_vertex(x, g, self.dense_vertex(g))

    def away(self, x: Tensor, g: Tensor) -> Move:
        """From the worst vertex of the minimal face: ``d = x - face_vertex(x, -g)``."""
        return self.along(x, g, x - self.dense_face_vertex(x, -g))

    def within(self, x: Tensor, g: Tensor) -> Move:
        """The Frank-Wolfe direction inside the minimal face: ``d = face_vertex(x, g) - x``."""
        return _to_vertex(x, g, self.dense_face_vertex(x, g))

    def pairwise(self, x: Tensor, g: Tensor) -> Move:
        """From the worst to the best vertex of the face: ``d = face_vertex(x, g) - face_vertex(x, -g)``."""
        return self.along(x, g, self.dense_face_vertex(x, g) - self.dense_face_vertex(x, -g))

    def project_in_face(self, x: Tensor, g: Tensor, rate: float | Tensor, diameter: float | Tensor) -> Projected:
        """To ``w = P_F(x - lr g)`` with ``lr = diam^2 / C``, a direction of Step 4b: ``D = w - x``, scaled.

        The projection inequality gives ``A = -<g, D> >= |D|_2^2 / lr``. So ``d = D diam / sqrt(lr A)`` has
        ``|d|_2 <= diam``, and the step ``A(d) / C`` along it moves by exactly ``D``. In a norm in which that ``d`` may be
        longer (l1, nuclear) ``d`` is ``D`` scaled to the diameter at most, and the step may end on the way.

        Args:
            x: blocks of the set.
            g: their gradients.
            rate: ``1 / C``, a number or one per block.
            diameter: of the set, in its norm: a number or one per block.
        """
        rate, diam = (number(value, wide(x), x.device) for value in (rate, diameter))
        lr = rate * diam.square()
        end, smaller = self.block_face_project(x, x.to(wide(x)) - spread(lr, x) * g)
        fall = dot(g.to(wide(x)), x - end)
        usable = (rate > 0) & (fall > 0)
        slope = torch.where(usable, (fall / torch.where(usable, rate, 1)).sqrt(), 0 * fall)  # sqrt(A C)
        part = None
        if equivalence(self.norm_name, 2, 2)[1] > 1:
            size = self.block_length(end - x)
            size = torch.where(size > 0, size, 1)
            part = (lr * fall / size.square()).clamp(max=1)
            slope = torch.minimum(slope, diam / size * fall)
            smaller = smaller & (part >= 1)
        slope = slope.detach()
        return Projected(slope=slope, limit=torch.where(smaller, slope * rate, torch.inf), end=end, part=part)

    def in_use(self, x: Tensor) -> Tensor | None:  # noqa: ARG002 - some sets can say it
        """The entries that a projected in-face step looks at, as a mask of blocks (it broadcasts); None for all.

        Momentum is averaged there alone in such a step: gradients of other entries need not be known.
        """
        return None

    def in_face(self, strategy: InFace, x: Tensor, g: Tensor) -> Move:
        """The in-face move of that name, for those that need no more than the blocks and their gradients."""
        moves = {"away": self.away, "frank-wolfe": self.within, "pairwise": self.pairwise}
        return moves[strategy](x, g)

    def along(self, x: Tensor, g: Tensor, d: Tensor) -> Straight:
        """A move along directions that are given."""
        return Straight(slope=-dot(g, d), limit=self.ray(x, d), direction=d)

    def limit(self, x: Tensor, move: Move, wanted: Tensor) -> Tensor:  # noqa: ARG002 - sets without a closed form need them
        """How far the move may go, given how far it would like to go."""
        return move.limit

    def apply(self, x: Tensor, move: Move, decision: Decision) -> Tensor:
        """The blocks after the step. Blocks that do not move come back bit for bit."""
        t = spread(decision.step, x).to(x.dtype)
        if isinstance(move, ToVertex):
            end = torch.lerp(x, move.vertex, t)  # exactly the vertex at a step of one
            if self.cheap_norm:
                end = torch.where(t < 1, self.land(x, end, torch.zeros_like(decision.hit)), end)
        elif isinstance(move, Straight):
            end = self.land(x, x + t * move.direction, decision.hit)
        elif isinstance(move, Projected):
            end = move.end
            if move.part is not None:
                part = spread(move.part, x).to(x.dtype)
                end = torch.where(part < 1, self.land(x, torch.lerp(x, end, part), torch.zeros_like(decision.hit)), end)
        else:
            raise TypeError(f"{type(self).__name__} cannot apply a {type(move).__name__}")
        return torch.where(t > 0, end, x)

    @abstractmethod
    def dense_vertex(self, g: Tensor) -> Tensor:
        """:meth:`vertex` on blocks."""

    def dense_face_vertex(self, x: Tensor, g: Tensor) -> Tensor:
        """:meth:`face_vertex` on blocks."""
        raise NotImplementedError(type(self).__name__)

    def block_face_project(self, x: Tensor, y: Tensor) -> FaceProjection:
        """:meth:`face_project` on blocks, of ``y`` in per-block precision; the end is in the dtype of ``x``.

        ``smaller`` says which blocks ended on a smaller face than that of ``x``: a drop. A block whose face is a point
        comes back bit for bit.
        """
        raise NotImplementedError(type(self).__name__)

    def ray(self, x: Tensor, d: Tensor) -> Tensor:
        """:meth:`max_step` on blocks: by bisection, which is slow beside a closed form."""
        return _bisected(self.block_norm, x.to(wide(x)), d.to(wide(d)), self.r(x), self.tolerance(x))

    def land(self, x: Tensor, end: Tensor, hit: Tensor) -> Tensor:  # noqa: ARG002 - the start says which face to stay on
        """Put the end of a straight step from ``x`` exactly on the faces that it reached.

        Where ``hit`` is set the step went as far as it could. Elsewhere the step ends inside the set, or on the face
        it started from, up to rounding. Scaling to the radius does it in a set with no faces but its points.
        """
        size, r = self.block_norm(end), self.r(end)
        onto = (hit | (size > r)) & (size > 0)
        return end * spread(torch.where(onto, r / torch.where(size > 0, size, 1), 1), end).to(end.dtype)

    @abstractmethod
    def block_norm(self, x: Tensor) -> Tensor:
        """:meth:`norm` on blocks."""

    def block_contains(self, x: Tensor, tol: float | None = None) -> Tensor:
        """:meth:`contains` on blocks."""
        return self.block_norm(x) <= self.r(x) * (1 + (self.tolerance(x) if tol is None else tol))

    @abstractmethod
    def block_project(self, x: Tensor) -> Tensor:
        """:meth:`project` on blocks."""

    def block_length(self, d: Tensor) -> Tensor:
        """The norm ``norm_name`` of each block."""
        return length(d, self.norm_name)

    def block_dual_length(self, g: Tensor) -> Tensor:
        """The dual of the norm ``norm_name``, of each block: what a ``gradient_bound`` bounds."""
        return length(g, DUAL[self.norm_name])

    def onto_boundary(self, x: Tensor, smaller: Tensor, larger: Tensor) -> Tensor:
        """Blocks that rounding to a coarser dtype may have taken off the boundary, put back on it.

        ``smaller`` and ``larger`` bound what each entry may have been before it was rounded to ``x``.
        """
        return onto_sphere(self.block_norm, x, smaller, larger, self.r(x), self.tolerance(x))

    def inside(self, x: Tensor, tol: float | None = None) -> Tensor:
        """:meth:`block_contains`, and True for free blocks, whatever is in them."""
        kept = self.constrained(x)
        if kept is None:
            return self.block_contains(x, tol)
        inside = torch.ones(len(x), dtype=torch.bool, device=x.device)
        if self.all_free:
            return inside
        return inside.index_copy(0, kept, self.part(kept).block_contains(x[kept], tol))

    def projected(self, x: Tensor) -> Tensor:
        """:meth:`project` on blocks: those in the set, and free ones, come back bit for bit."""
        if self.all_free:
            return x
        kept = self.constrained(x)
        own, some = (self, x) if kept is None else (self.part(kept), x[kept])
        moved = torch.where(spread(own.block_contains(some), some), some, own.block_project(some))
        return moved if kept is None else x.index_copy(0, kept, moved)

    def round_into(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Blocks ``x`` of the set in a coarser dtype, and still in the set: to the nearest, or to zero where that leaves it.

        >>> import torch
        >>> from inface.sets import L1Ball
        >>> x = torch.tensor([[0.502, -0.498]])
        >>> [y.tolist() for y in (x.bfloat16(), L1Ball(1.0).round_into(x.unsqueeze(2), torch.bfloat16).squeeze(2))]
        [[[0.50390625, -0.498046875]], [[0.5, -0.49609375]]]
        """
        nearest = x.to(dtype)
        if dtype in EXACT:
            return nearest
        return torch.where(spread(self.block_contains(nearest.to(x.dtype)), x), nearest, _toward_zero(x, dtype))

    def r(self, x: Tensor) -> Tensor:
        """The radius in per-block numbers, beside blocks ``x``."""
        return number(self.radius, wide(x), x.device)

    def tolerance(self, x: Tensor) -> float:
        """What rounding may take from a norm, relative to the radius."""
        return ULPS * torch.finfo(x.dtype).eps

    def on_boundary(self, size: Tensor, x: Tensor) -> Tensor:
        """Whether blocks ``x`` of this norm lie on the boundary."""
        return size >= self.r(x) * (1 - self.tolerance(x))

    def check(self, size: torch.Size, where: str) -> None:
        """Raise a ValueError, naming ``where``, if this set does not fit a parameter of this size."""
        n = blocks.count(size, self.per)
        if isinstance(self.radius, Tensor) and self.radius.numel() != n:
            raise ValueError(
                f"{type(self).__name__}: radius has {self.radius.numel()} values, wanted one for each of the {n} blocks "
                f"of {where} of shape {tuple(size)} (per={self.per!r})"
            )

    # ------------------------------------------------------------------ atoms

    def atom_sizes(self, x: Tensor) -> Tensor:
        """The size of every atom of every block, ``(N, A)``: magnitudes of entries, norms of groups, singular values."""
        raise NotImplementedError(type(self).__name__)

    def keep_atoms(self, x: Tensor, keep: Tensor) -> Tensor:
        """The blocks with the atoms alone that ``keep``, of the shape of :meth:`atom_sizes`, says."""
        raise NotImplementedError(type(self).__name__)

    def sized_for(self, x: Tensor) -> Set:
        """The set with the radii that its density gives blocks ``x``.

        >>> import torch
        >>> from inface.sets import L1Ball
        >>> ball = L1Ball(density=0.25)
        >>> ball.sized_for(ball.to_blocks(torch.ones(1, 16))).radius
        8.0
        """
        length = torch.linalg.vector_norm(x.flatten(1), dim=1, dtype=wide(x))
        if not bool((length > 0).any()):
            raise ValueError(f"{type(self).__name__}: a density gives no radius to weights that are all zero")
        atoms = math.prod(self.atom_sizes(x[:1]).shape)
        radii = (max(1.0, float(self.density or 1) * atoms) ** 0.5 * length).clamp(min=1e-12 * float(length.max()))
        return self.with_radius(radii if len(radii) > 1 else float(radii[0]))

    def _checked_density(self, density: float | None) -> float | None:
        name = type(self).__name__
        if density is None:
            return None
        if not self.has_atoms:
            raise ValueError(
                f"{name}: density is for sets with atoms to count, wanted a radius, got density={density!r}"
            )
        if isinstance(density, bool) or not isinstance(density, Real) or not 0 < density <= 1:
            raise ValueError(f"{name}: density must be in (0, 1], got {density!r}")
        return float(density)

    # ------------------------------------------------------------------ plain data

    def options(self) -> dict[str, Any]:
        """What beside kind, radius and ``per`` makes this set: nothing, for most."""
        return {}

    def to_dict(self) -> dict[str, Any]:
        """The set as plain data, for ``state_dict``.

        >>> from inface.sets import L1Ball
        >>> L1Ball(2.0).to_dict()
        {'kind': 'l1', 'radius': 2.0, 'per': 'output'}
        >>> L1Ball(2.0, norm="l1").to_dict()
        {'kind': 'l1', 'radius': 2.0, 'per': 'output', 'norm': 'l1'}
        """
        radius = self.radius.clone() if isinstance(self.radius, Tensor) else self.radius if self.sized else None
        return {"kind": self.kind, "radius": radius, "per": self.per, **self._all_options()}

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Set:
        """A set from its plain data.

        >>> from inface.sets import Set
        >>> Set.from_dict({"kind": "l1", "radius": 2.0, "per": "output"})
        L1Ball(radius=2.0, per='output')
        """
        data = dict(data)
        kind = data.pop("kind", None)
        if kind not in Set._kinds:
            raise ValueError(f"unknown kind of set {kind!r}, wanted one of {', '.join(sorted(Set._kinds))}")
        return Set._kinds[kind](**data)

    # ------------------------------------------------------------------ per="group": all tensors as one block

    def together(self) -> Set:
        """The set that sees what :meth:`gather` returns as one block."""
        one = copy.copy(self)  # made without a look at the radius: every step makes it
        one.per = "tensor"
        return one

    def gather(self, tensors: Sequence[Tensor]) -> Tensor:
        """All tensors of a group as one.

        >>> import torch
        >>> from inface.sets import L1Ball
        >>> L1Ball(1.0, per="group").gather([torch.ones(2, 1), torch.zeros(1)])
        tensor([1., 1., 0.])
        """
        return torch.cat([x.flatten() for x in tensors])

    def scatter(self, gathered: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
        """Back from :meth:`gather`."""
        pieces = gathered.split([x.numel() for x in like])
        return [piece.reshape(x.shape) for piece, x in zip(pieces, like, strict=True)]

    def constrained(self, x: Tensor) -> Tensor | None:
        """The numbers of the blocks that are not free, beside blocks ``x``; None if that is all of them."""
        return None if self._kept is None else self._kept.to(x.device)

    def part(self, rows: slice | Tensor) -> Set:
        """The set of some of the constrained blocks: itself, unless each block has a radius of its own."""
        if not isinstance(self.radius, Tensor):
            return self
        # Made without a look at the numbers, which torch.compile could not follow.
        some = copy.copy(self)
        some.radius = self.radius[rows if isinstance(rows, slice) else rows.to(self.radius.device)]
        some.free, some.free_blocks, some.all_free, some._kept = None, self.free_blocks[:0], False, None  # noqa: SLF001
        return some

    def with_radius(self, radius: float | Tensor) -> Set:
        """The same set with another radius."""
        return self._remade(radius=radius)

    def __repr__(self) -> str:
        radius = self.radius
        shown = f"<{radius.numel()} values>" if isinstance(radius, Tensor) else repr(radius)
        shown = shown if self.sized else "by density"
        options = "".join(f", {name}={value!r}" for name, value in self._all_options().items())
        return f"{type(self).__name__}(radius={shown}{options}, per={self.per!r})"

    # ------------------------------------------------------------------ helpers

    def _remade(self, **changes: Any) -> Set:
        """A set of this class with some arguments changed."""
        arguments = {**self.to_dict(), **changes}
        del arguments["kind"]
        return type(self)(**arguments)

    def _all_options(self) -> dict[str, Any]:
        """The options, and the norm and the density where they are not the default."""
        norm = {} if self.norm_name == self.norms[0] else {"norm": self.norm_name}
        return {**self.options(), **norm, **({} if self.density is None else {"density": self.density})}

    def _numbers_of(self, x: Tensor) -> Tensor:
        """The blocks of a dense argument, in a dtype that can be computed in."""
        if not x.dtype.is_floating_point:
            raise ValueError(f"{type(self).__name__}: wanted a floating-point tensor, got {x.dtype}")
        self.check(x.shape, "an argument")
        return self.to_blocks(computable(x))

    def _back(self, blocks_: Tensor, like: Tensor) -> Tensor:
        return self.from_blocks(self.round_into(blocks_, like.dtype), like)

    def _needs_vertices(self) -> None:
        if self.free is not None:
            block = int(self.free.nonzero()[0])
            raise ValueError(f"{type(self).__name__}: block {block} has radius inf: it is free, and has no vertices")


def decide(set_: Set, x: Tensor, move: Move, rate: float | Tensor, most: float | Tensor = math.inf) -> Decision:
    """``min(slope / C, most, limit)`` per block, ``rate = 1 / C``; 0 where there is nothing to gain or a number is not finite."""
    wanted = torch.where(torch.isfinite(move.slope) & (move.slope > 0), move.slope, 0) * rate
    if isinstance(most, Tensor) or most < math.inf:
        wanted = wanted.clamp(max=most)
    limit = set_.limit(x, move, wanted)
    hit = (wanted >= limit) & (wanted > 0)
    return Decision(torch.where(hit, limit, wanted), hit)


def _to_vertex(x: Tensor, g: Tensor, vertex: Tensor) -> ToVertex:
    slope = dot(g, x - vertex)
    return ToVertex(slope=slope, limit=torch.ones_like(slope), vertex=vertex)


def _bisected(norm: Callable[[Tensor], Tensor], x: Tensor, d: Tensor, radius: Tensor, tol: float) -> Tensor:
    """The largest ``a >= 0`` with ``norm(x + a d) <= radius``, up to half of the tolerance; ``inf`` where ``d`` is zero."""
    longest = d.abs().flatten(1).amax(1)
    unit = radius / torch.where(longest > 0, longest, 1)
    d = d * spread(unit, d)
    allowed = torch.maximum(radius, norm(x)).minimum(radius * (1 + tol / 2)) + tol / 2 * radius
    low, high = torch.zeros_like(unit), torch.ones_like(unit)
    for _ in range(DOUBLINGS):
        inside = (norm(x + spread(high, x) * d) <= allowed) & (longest > 0)
        if can_look(x) and not bool(inside.any()):
            break
        low, high = torch.where(inside, high, low), torch.where(inside, 2 * high, high)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        inside = norm(x + spread(middle, x) * d) <= allowed
        low, high = torch.where(inside, middle, low), torch.where(inside, high, middle)
    return torch.where(longest > 0, low * unit, torch.inf)


def onto_sphere(
    norm: Callable[[Tensor], Tensor], x: Tensor, smaller: Tensor, larger: Tensor, radius: Tensor, tol: float
) -> Tensor:
    """Each block moved toward ``smaller`` or ``larger`` until its norm is the radius; as it is where that is too far.

    The norm is all but linear over the little way that rounding leaves, so a few chord steps find the place.
    """
    size = norm(x)
    end = torch.where(spread(size > radius, x), smaller, larger)
    span = norm(end) - size
    t, moved = torch.zeros_like(size), x
    for _ in range(4):
        t = (t + (radius - norm(moved)) / torch.where(span == 0, 1, span)).clamp(0, 1)
        moved = x + spread(t, x).to(x.dtype) * (end - x)
    return torch.where(spread((norm(moved) - radius).abs() <= tol * radius, x), moved, x)


def computable(x: Tensor) -> Tensor:
    """``x`` in a dtype that can be computed in: itself, or a float32 copy."""
    return x if x.dtype in EXACT else x.float()


def wide(x: Tensor) -> torch.dtype:
    """The dtype of per-block numbers beside ``x``."""
    return torch.float32 if x.device.type == "mps" else torch.float64


def number(value: float | Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A number as a tensor without dimensions, or a tensor of numbers, in a dtype on a device.

    A number becomes an argument of a kernel. As a tensor of the CPU that is copied, it would make the host wait, and no CUDA
    graph could hold it.
    """
    if isinstance(value, Tensor):
        return value.to(dtype=dtype, device=device)
    return torch.full((), value, dtype=dtype, device=device)


def can_look(x: Tensor) -> bool:
    """Whether what a tensor holds may decide what is done: on a device the host would wait, a compiler cannot know it."""
    return x.is_cpu and not torch.compiler.is_compiling()


def dot(a: Tensor, b: Tensor) -> Tensor:
    """The inner product of each block."""
    return (a * b).flatten(1).sum(1, dtype=wide(a))


def spread(numbers: Tensor, x: Tensor) -> Tensor:
    """Per-block numbers, shaped to be broadcast over blocks ``x``."""
    return numbers.reshape(-1, *[1] * (x.ndim - 1))


def _toward_zero(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x`` in a 16-bit dtype, rounded so that no entry grows in magnitude."""
    nearest = x.to(dtype)
    lower = (nearest.view(torch.int16) - 1).view(dtype)
    return torch.where(nearest.to(x.dtype).abs() > x.abs(), lower, nearest)


def _checked_radius(name: str, radius: float | Tensor | None) -> float | Tensor:
    if radius is None:
        raise ValueError(
            f"{name}: radius must be given, a number > 0 or a tensor with one value per block (inf for a free one), got None"
        )
    if isinstance(radius, Tensor):
        if radius.ndim == 0:
            return _checked_radius(name, radius.item())
        if radius.ndim != 1 or not radius.dtype.is_floating_point:
            raise ValueError(
                f"{name}: radius must be a number or a 1-D floating-point tensor with one value per block, "
                f"got a tensor of shape {tuple(radius.shape)} and dtype {radius.dtype}"
            )
        bad = radius[~(radius > 0)]
        if bad.numel():
            raise ValueError(f"{name}: every radius must be > 0 (inf for a free block), got {bad[0].item()!r}")
        return radius.detach().clone()
    if isinstance(radius, bool) or not isinstance(radius, Real):
        raise ValueError(f"{name}: radius must be a number > 0 or a tensor of them, got {radius!r}")
    value = float(radius)
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name}: radius must be > 0 and finite, got {radius!r}")
    return value
