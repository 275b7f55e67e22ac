"""Every set against oracles of its own: corners by brute force, linear programs, exact ratio tests, bisection, numpy's SVD."""

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

import inface
from inface.linalg import polar, svd, top_pair
from inface.sets import GroupL1Ball, KSparsePolytope, L1Ball, L2Ball, LInfBall, NuclearBall, Set, Simplex, SpectralBall
from inface.sets.base import Decision

IN_FACE = ["away", "within", "pairwise"]
BOTH = [torch.float32, torch.float64]


def tensor(a):
    return torch.tensor(np.asarray(a, dtype=np.float64))


def bits(x):
    return x.contiguous().view(torch.int32 if x.dtype == torch.float32 else torch.int64)


def bisected(inside, high=1e9):
    """The largest ``a`` in ``[0, high]`` with ``inside(a)``."""
    assert not inside(high)
    low, high = np.longdouble(0), np.longdouble(high)
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if inside(middle) else (low, middle)
    return float(low)


# ---------------------------------------------------------------------------------------------------------- polytopes


@dataclass(frozen=True)
class Polytope:
    """``{y : A y <= b}``, written out together with its corners. All numbers are dyadic: sums and products are exact."""

    set: Set
    corners: np.ndarray
    A: np.ndarray
    b: np.ndarray

    def face(self, x):
        """Which inequalities are tight at ``x``, and the corners of the minimal face: those where they are tight too."""
        tight = self.A @ x == self.b
        return tight, self.corners[(self.corners @ self.A[tight].T == self.b[tight]).all(1)]

    def ratio(self, x, d):
        """The largest ``a`` with ``A (x + a d) <= b``."""
        rise = self.A @ d
        return min(((self.b - self.A @ x)[rise > 0] / rise[rise > 0]), default=np.inf)


def polytope(name, n, r):
    eye, every = np.eye(n), np.array(list(itertools.product([1.0, -1.0], repeat=n)))
    both, box = np.vstack([eye, -eye]), np.full(2 * n, r)
    if name == "l1":
        return Polytope(L1Ball(r), r * both, every, np.full(2**n, r))
    if name == "simplex":
        plane = np.vstack([-eye, np.ones((1, n)), -np.ones((1, n))])
        return Polytope(Simplex(r), r * eye, plane, np.r_[np.zeros(n), r, -r])
    if name == "box":
        return Polytope(LInfBall(r), r * every, both, box)
    k = int(name.removeprefix("k="))
    held = min(k, n)
    corners = [c for c in itertools.product([1.0, -1.0, 0.0], repeat=n) if np.count_nonzero(c) == held]
    return Polytope(
        KSparsePolytope(r, k), r * np.array(corners), np.vstack([both, every]), np.r_[box, np.full(2**n, held * r)]
    )


POLYTOPES = [
    pytest.param(polytope(name, n, r), id=f"{name}-n{n}")
    for name, n, r in [
        ("l1", 4, 2.0),
        ("l1", 1, 0.5),
        ("simplex", 4, 0.5),
        ("simplex", 1, 2.0),
        ("box", 3, 4.0),
        ("k=1", 3, 2.0),
        ("k=2", 4, 0.5),
        ("k=3", 4, 1.0),
        ("k=9", 3, 2.0),
    ]
]


def points(p, rng, count=60):
    """All corners, then points in the relative interior of faces of every dimension, the whole set included."""
    found = list(p.corners)
    for _ in range(count):
        price = p.corners @ rng.integers(-1, 2, p.corners.shape[1])
        face = p.corners[price == price.max()]
        chosen = face[rng.integers(0, len(face), rng.integers(1, 6))]
        found.append(rng.multinomial(64, np.full(len(chosen), 1 / len(chosen))) / 64 @ chosen)
    return np.array(found)


def gradients(shape, rng):
    """Generic ones: no two corners have the same price."""
    return rng.standard_normal(shape)


@pytest.mark.parametrize("p", POLYTOPES)
def test_vertex_is_a_best_corner(p):
    rng = np.random.default_rng(0)
    n = p.corners.shape[1]
    g = np.vstack([gradients((40, n), rng), rng.integers(-2, 3, (40, n)), np.zeros((1, n))])
    v = p.set.vertex(tensor(g)).numpy()
    np.testing.assert_allclose((g * v).sum(1), (g @ p.corners.T).min(1), rtol=1e-14, atol=1e-14)
    assert all((p.corners == row).all(1).any() for row in v)


@pytest.mark.parametrize(
    ("set_", "g", "wanted"),
    [
        (L1Ball(3.0), [[1, -2, 2, -2]], [[0, 3, 0, 0]]),
        (Simplex(3.0), [[1, -2, -2, 0]], [[0, 3, 0, 0]]),
        (LInfBall(3.0), [[0, -2, 2, 0]], [[3, 3, -3, 3]]),
        (KSparsePolytope(3.0, k=2), [[1, -2, 1, 1]], [[-3, 3, 0, 0]]),
        (GroupL1Ball(10.0), [[0, 1], [3, 4], [4, -3]], [[0, 0], [-6, -8], [0, 0]]),
        (L1Ball(3.0), [[0, 0, 0]], [[3, 0, 0]]),
        (Simplex(3.0), [[0, 0, 0]], [[3, 0, 0]]),
        (LInfBall(3.0), [[0, 0, 0]], [[3, 3, 3]]),
        (KSparsePolytope(3.0, k=2), [[0, 0, 0]], [[3, 3, 0]]),
        (GroupL1Ball(3.0), [[0, 0], [0, 0]], [[3, 0], [0, 0]]),
        (L2Ball(3.0), [[0, 0]], [[3, 0]]),
        (NuclearBall(3.0), [[0, 0, 0], [0, 0, 0]], [[3, 0, 0], [0, 0, 0]]),
        (SpectralBall(3.0), [[0, 0, 0], [0, 0, 0]], [[3, 0, 0], [0, 3, 0]]),
    ],
    ids=repr,
)
def test_ties_go_to_the_lowest_index_and_a_zero_gradient_to_the_first_positive_vertex(set_, g, wanted):
    np.testing.assert_allclose(set_.vertex(tensor(g)).numpy(), wanted, rtol=1e-15)


@pytest.mark.parametrize(
    ("set_", "x", "g", "wanted"),
    [
        (L1Ball(4.0), [[0, 1, -1, 2]], [[-9, 1, -1, 1]], [[0, 4, 0, 0]]),
        (Simplex(4.0), [[0, 1, 1, 2]], [[-9, 5, 5, 5]], [[0, 4, 0, 0]]),
        (LInfBall(4.0), [[4, 1, -4, 2]], [[9, 0, -9, 0]], [[4, 4, -4, 4]]),
        (KSparsePolytope(2.0, k=2), [[0, 1, 2, 1]], [[-9, 5, 9, 5]], [[0, 2, 2, 0]]),
        (KSparsePolytope(2.0, k=2), [[0, 0, -2, 0]], [[5, 5, -9, 5]], [[-2, 0, -2, 0]]),
        (GroupL1Ball(10.0), [[0, 0], [3, 4], [4, 3]], [[-9, 0], [4, 3], [3, 4]], [[0, 0], [6, 8], [0, 0]]),
    ],
    ids=repr,
)
def test_ties_in_the_face_go_to_the_lowest_index(set_, x, g, wanted):
    np.testing.assert_allclose(set_.face_vertex(tensor(x), tensor(g)).numpy(), wanted, rtol=1e-15)


@pytest.mark.parametrize("p", POLYTOPES)
def test_face_vertex_solves_the_linear_program_over_the_minimal_face(p):
    rng = np.random.default_rng(1)
    x = points(p, rng)
    g = gradients(x.shape, rng)
    g[::3] = rng.integers(-2, 3, g[::3].shape)
    for xi, gi, v in zip(x, g, p.set.face_vertex(tensor(x), tensor(g)).numpy(), strict=True):
        tight, face = p.face(xi)
        solved = linprog(gi, p.A, p.b, p.A[tight] if tight.any() else None, p.b[tight], bounds=(None, None))
        np.testing.assert_allclose(gi @ v, solved.fun, rtol=1e-9, atol=1e-9)
        assert (face == v).all(1).any(), f"{v} is no corner of the minimal face of {xi}"


@pytest.mark.parametrize("p", POLYTOPES)
def test_max_step_of_a_polytope_is_the_ratio_test(p):
    rng = np.random.default_rng(2)
    x = points(p, rng)
    inside_face = np.array(
        [rng.multinomial(64, np.full(len(f), 1 / len(f))) / 64 @ f for f in (p.face(y)[1] for y in x)]
    )
    for d in (rng.integers(-8, 9, x.shape) / 8, inside_face - x, x - inside_face, x, -x, rng.permutation(x) - x):
        wanted = [p.ratio(*row) for row in zip(x, d, strict=True)]
        np.testing.assert_allclose(p.set.max_step(tensor(x), tensor(d)).numpy(), wanted, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("scale", [1e-20, 1e-8, 1e8])
@pytest.mark.parametrize("set_", [L1Ball(3.0), GroupL1Ball(3.0), L2Ball(3.0), LInfBall(3.0), KSparsePolytope(3.0, k=2)])
def test_max_step_scales_with_the_direction(set_, scale):
    x, d = tensor([[1.0, 0.5]]), tensor([[0.25, -0.125]])
    np.testing.assert_allclose(set_.max_step(x, scale * d), set_.max_step(x, d) / scale, rtol=1e-13)


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize(
    "set_", [L1Ball(0.3), Simplex(0.3), KSparsePolytope(0.3, k=1), GroupL1Ball(0.3, "input")], ids=repr
)
def test_max_step_inside_a_face_is_not_cut_short_by_rounding(set_, dtype):
    """Along ``x - w`` with ``w`` the near vertex, the l1 norm rises by the rounding of ``x``, a hundred times over."""
    small = torch.linspace(1e-3, 3e-3, 50, dtype=dtype)
    for other in small:
        x = torch.stack([0.3 - other, other]).unsqueeze(0)
        d = x - torch.tensor([[0.3, 0.0]], dtype=dtype)
        np.testing.assert_allclose(
            set_.max_step(x, d), float(x[0, 0]) / float(other), rtol=1000 * torch.finfo(dtype).eps
        )


@pytest.mark.parametrize("p", [polytope(name, 5, 0.3458) for name in ("l1", "box", "k=2", "k=3")], ids=lambda p: p.set)
def test_max_step_ignores_what_rounding_adds_to_a_direction_inside_a_face(p):
    """Entries at a bound, and with them the direction, are off by a few units in the last place: a linear program, whose
    tolerance is far larger, does not see it."""
    rng = np.random.default_rng(23)
    eps = np.finfo(float).eps
    steps = []
    for x in points(p, rng)[len(p.corners) :]:
        g = rng.standard_normal(x.shape)
        d = x - p.set.face_vertex(tensor(x[None]), tensor(g[None]))[0].numpy()
        if np.abs(d).max() < 0.01:
            continue
        d += rng.choice([-2, 0, 2], d.shape) * eps * (np.abs(x) > 0.345)
        solved = linprog([-1], (p.A @ d)[:, None], p.b - p.A @ x, bounds=(0, None))
        steps.append(p.set.max_step(tensor(x[None]), tensor(d[None])).item())
        np.testing.assert_allclose(steps[-1], solved.x[0], rtol=1e-6, atol=1e-9)
    assert len(steps) > 20
    assert min(steps) > 0.01


def test_max_step_of_a_k_sparse_polytope_in_the_face_of_an_entry_that_is_at_its_bound_up_to_rounding():
    r = 0.3458
    x = r * tensor([[0, -0.0893, -1, 0.9107, 0]])
    d = x - r * tensor([[0, 0, -1, 1, 0]])
    d[0, 2] = -1.6e-16
    wanted = (r - 0.0893 * r) / (0.0893 * r)
    for set_ in (KSparsePolytope(r, k=2), LInfBall(r)):
        np.testing.assert_allclose(set_.max_step(x, d), wanted, rtol=1e-12)


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("length", [1e-30, 1e-9, 1e-3, 1e6])
@pytest.mark.parametrize(
    "set_", [L1Ball(3.0), Simplex(3.0), LInfBall(3.0), KSparsePolytope(3.0, k=2), GroupL1Ball(3.0, "input")], ids=repr
)
def test_a_direction_that_points_out_of_the_set_is_no_rounding_however_short(set_, length, dtype):
    x = torch.full((1, 2), 3.0 if set_.kind in {"linf", "k-sparse"} else 1.5, dtype=dtype)
    for d in ([[1.0, 0.0]], [[1.0, 1.0]], [[0.5, -0.25]]):
        assert set_.max_step(x, length * torch.tensor(d, dtype=dtype)) * length <= 64 * torch.finfo(dtype).eps


CURVED = [L2Ball(0.7, per="tensor"), GroupL1Ball(0.7), NuclearBall(0.7), SpectralBall(0.7)]


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("length", [1e-12, 1e-6, 1e-3, 1.0, 1e6])
@pytest.mark.parametrize("set_", CURVED, ids=repr)
def test_a_maximal_step_along_a_tangent_of_a_curved_set_does_not_leave_it(set_, length, dtype):
    rng = np.random.default_rng(24)
    for _ in range(20):
        normal = tensor(rng.standard_normal((3, 2)))
        x = set_.vertex(-normal)
        d = tensor(rng.standard_normal((3, 2)))
        d = (length * (d - (d * normal).sum() / (normal * normal).sum() * normal)).to(dtype)
        for start in (x.to(dtype), (0.999 * x).to(dtype)):
            a = set_.max_step(start, d)
            assert set_.contains(start + a.to(dtype) * d).all()
            assert not set_.contains(start.double() + (1.01 * a + 1e-2 / length) * d.double(), tol=1e-7).any()


@pytest.mark.parametrize("set_", CURVED, ids=repr)
def test_a_float32_step_along_a_tiny_tangent_ends_inside(set_):
    x, d = torch.tensor([[0.7, 0.0]]), torch.tensor([[0.0, 1e-6]])
    assert set_.contains(x + set_.max_step(x, d).float() * d).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["toward", *IN_FACE])
@pytest.mark.parametrize(
    "set_",
    [
        L1Ball(3.0),
        Simplex(3.0),
        LInfBall(3.0),
        KSparsePolytope(3.0, k=2),
        GroupL1Ball(3.0),
        L2Ball(3.0),
        NuclearBall(3.0),
    ],
    ids=repr,
)
def test_no_move_overlooks_a_gradient_that_is_not_finite(set_, name, bad):
    vertex, face = set_.vertex(tensor([[-1, -2, 0], [0, 0, 1]])), set_.project(tensor([[5, 4, 0], [0, 6, 5]]))
    for x, i, j in itertools.product([vertex, face, set_.project(0.1 * face)], range(2), range(3)):
        g = tensor([[1, -2, 0.5], [3, 0.5, -1]])
        g[i, j] = bad
        slope = getattr(set_, name)(set_.to_blocks(x), set_.to_blocks(g)).slope
        assert not torch.isfinite(slope[i if len(slope) > 1 else 0])
        assert torch.isfinite(slope).sum() == len(slope) - 1


@pytest.mark.parametrize("set_", [NuclearBall(3.0, per="output"), SpectralBall(3.0, per="output")], ids=repr)
def test_a_matrix_that_is_not_finite_does_not_cost_the_others_their_vertex(set_):
    g = tensor(np.random.default_rng(22).standard_normal((3, 4, 2)))
    spoiled = g.clone()
    spoiled[1, 0, 0] = float("nan")
    x = set_.project(g)
    calls = [set_.vertex] + ([lambda y: set_.face_vertex(x, y)] if set_.has_faces else [])
    for call in calls:
        np.testing.assert_allclose(call(spoiled)[[0, 2]], call(g)[[0, 2]], rtol=1e-13)


@pytest.mark.parametrize("name", IN_FACE)
@pytest.mark.parametrize("p", POLYTOPES)
def test_in_face_moves_of_a_polytope_have_the_slope_and_the_limit_of_brute_force(p, name):
    rng = np.random.default_rng(3)
    x = points(p, rng)
    g = gradients(x.shape, rng)
    xb, gb = p.set.to_blocks(tensor(x)), p.set.to_blocks(tensor(g))
    move = getattr(p.set, name)(xb, gb)
    ends = p.set.apply(xb, move, Decision(move.limit, torch.ones_like(move.limit, dtype=torch.bool)))
    for i, (xi, gi, end) in enumerate(zip(x, g, ends.flatten(1).numpy(), strict=True)):
        tight, face = p.face(xi)
        best, worst = face[(face @ gi).argmin()], face[(face @ gi).argmax()]
        d = {"away": xi - worst, "within": best - xi, "pairwise": best - worst}[name]
        np.testing.assert_allclose(move.slope[i], -gi @ d, rtol=1e-13, atol=1e-14)
        if not d.any():
            assert move.slope[i] == 0
            continue
        a = p.ratio(xi, d)
        assert a > 0
        np.testing.assert_allclose(move.limit[i], a, rtol=1e-13)
        np.testing.assert_allclose(end, xi + a * d, rtol=1e-13, atol=1e-13)
        assert np.all(np.isclose(p.A @ end, p.b, rtol=1e-13, atol=1e-13)[tight]), "the step left the face"
        assert np.isclose(p.A @ end, p.b, rtol=1e-13, atol=1e-13).sum() > tight.sum(), "the step ended inside the face"
        r = np.abs(p.corners).max()
        for mark in (-r, 0, r):
            landed = np.isclose(end, mark, rtol=0, atol=1e-9)
            assert (end[landed] == mark).all(), f"{end} is near {mark} and not at it"


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("name", ["away", "pairwise"])
@pytest.mark.parametrize("set_", [L1Ball(0.3), Simplex(0.3), LInfBall(0.3), KSparsePolytope(0.3, k=3)], ids=repr)
def test_a_maximal_step_lands_exactly_also_where_arithmetic_is_not_exact(set_, name, dtype):
    rng = np.random.default_rng(21)
    x = set_.project(tensor(rng.standard_normal((400, 6)) * rng.uniform(0.01, 0.5, (400, 1))).to(dtype))
    r = float(torch.tensor(0.3, dtype=dtype))
    marks = [0.0] if isinstance(set_, L1Ball | Simplex) else [-r, 0.0, r]
    for _ in range(4):
        move = getattr(set_, name)(set_.to_blocks(x), set_.to_blocks(tensor(gradients(x.shape, rng)).to(dtype)))
        moves = move.slope > 0
        decision = Decision(torch.where(moves, move.limit, 0), moves)
        end = set_.from_blocks(set_.apply(set_.to_blocks(x), move, decision), x)
        for mark in marks:
            landed = ((end - mark).abs() <= 64 * torch.finfo(dtype).eps * r) & (end != x)
            assert (end[landed] == mark).all()
        smaller = sum(((end == mark) & (x != mark)).any(1) for mark in marks) > 0
        reached = set_.norm(end) >= 0.3 * (1 - 8 * torch.finfo(dtype).eps)
        assert (smaller | reached)[moves].all()
        assert set_.contains(end).all()
        x = end


@pytest.mark.parametrize("p", POLYTOPES)
def test_the_frank_wolfe_move_of_a_polytope_has_the_gap_as_slope_and_ends_at_the_corner(p):
    rng = np.random.default_rng(4)
    x = points(p, rng)
    g = gradients(x.shape, rng)
    xb = p.set.to_blocks(tensor(x))
    move = p.set.toward(xb, p.set.to_blocks(tensor(g)))
    np.testing.assert_allclose(move.slope, (g * x).sum(1) - (g @ p.corners.T).min(1), rtol=1e-13, atol=1e-14)
    assert (move.limit == 1).all()
    ends = p.set.apply(xb, move, Decision(move.limit, move.limit > 0)).flatten(1).numpy()
    moved = move.slope.numpy() > 0
    np.testing.assert_array_equal(ends[moved], p.corners[(g @ p.corners.T).argmin(1)][moved])


@pytest.mark.parametrize("p", POLYTOPES)
def test_diameter_is_the_largest_distance_of_two_corners(p):
    distances = np.linalg.norm(p.corners[:, None] - p.corners[None], axis=2)
    assert p.set.diameter(torch.Size([p.corners.shape[1]])) == pytest.approx(distances.max(), rel=1e-15)


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e3, 1e20])
@pytest.mark.parametrize("p", POLYTOPES)
def test_projection_onto_a_polytope_satisfies_the_variational_inequality(p, scale):
    rng = np.random.default_rng(5)
    n = p.corners.shape[1]
    x = scale * np.vstack([rng.standard_normal((40, n)), rng.integers(-2, 3, (40, n)), np.zeros((1, n))])
    y = p.set.project(tensor(x))
    assert p.set.contains(y).all()
    y = y.numpy()
    slack = 1e-14 * np.abs(p.corners).max()
    excess = (p.A @ y.T).T - p.b
    assert (excess <= n * slack).all()
    rise = ((x - y)[:, None] * (p.corners - y[:, None])).sum(2).max(1)
    assert (rise <= slack * (1 + np.abs(x).max(1))).all()


# ------------------------------------------------------------------------------------- balls of a sum of group norms


TRIPLES = np.array([[3.0, 4.0], [-5.0, 12.0], [8.0, -15.0], [-20.0, -21.0]])  # of norms 5, 13, 17, 29


def group_gauge(x):
    return np.sqrt((np.asarray(x, dtype=np.longdouble) ** 2).sum(1)).sum()


def group_points(rng, groups, count=60):
    """Points (G, 2) whose groups have norms that are exact, with a radius that they reach, or half reach."""
    for i in range(count):
        weights = rng.integers(0, 4, groups) if i % 4 else np.eye(groups)[i % groups]
        x = TRIPLES[:groups] * weights[:, None]
        size = float(group_gauge(x))
        if size:
            yield x, size if i % 2 else 2 * size
    yield np.zeros((groups, 2)), 1.0


def group_ball(groups, r):
    return GroupL1Ball(r) if groups > 1 else L2Ball(r)


def group_corners(x, g, r):
    """The best and the worst extreme point of the minimal face of ``x``."""
    if np.isclose(float(group_gauge(x)), r):
        norms = np.linalg.norm(x, axis=1)
        face = [r * np.where(np.arange(len(x)) == j, 1, 0)[:, None] * x / norms[j] for j in np.flatnonzero(norms)]
        return min(face, key=lambda v: (g * v).sum()), max(face, key=lambda v: (g * v).sum())
    norms = np.linalg.norm(g, axis=1)
    best = -r * np.where(np.arange(len(g)) == norms.argmax(), 1, 0)[:, None] * g / norms.max()
    return best, -best


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_group_vertices_are_the_best_of_the_set_and_of_the_face(groups):
    rng = np.random.default_rng(6)
    for x, r in group_points(rng, groups):
        g = gradients(x.shape, rng)
        ball = group_ball(groups, r)
        np.testing.assert_allclose(ball.vertex(tensor(g)), group_corners(0 * x, g, r)[0], rtol=1e-14, atol=1e-14 * r)
        np.testing.assert_allclose(
            ball.face_vertex(tensor(x), tensor(g)), group_corners(x, g, r)[0], rtol=1e-14, atol=1e-14 * r
        )


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_max_step_of_a_group_ball_is_found_by_bisection(groups):
    rng = np.random.default_rng(7)
    for x, r in group_points(rng, groups):
        best, worst = group_corners(x, gradients(x.shape, rng), r)
        for d in (rng.standard_normal(x.shape), r * rng.standard_normal(x.shape), best - x, x - worst, best - worst):
            if not d.any():
                continue
            wanted = bisected(lambda a, d=d, x=x, r=r: group_gauge(x + a * d) <= r * (1 + 1e-15))
            found = group_ball(groups, r).max_step(tensor(x), tensor(d))
            np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-12 * r / np.linalg.norm(d))
        assert torch.isinf(group_ball(groups, r).max_step(tensor(x), tensor(0 * x))).all()


@pytest.mark.parametrize("name", IN_FACE)
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_in_face_moves_of_a_group_ball_have_the_slope_and_the_limit_of_brute_force(groups, name):
    rng = np.random.default_rng(8)
    for x, r in group_points(rng, groups):
        g = gradients(x.shape, rng)
        ball = group_ball(groups, r)
        xb = ball.to_blocks(tensor(x))
        move = getattr(ball, name)(xb, ball.to_blocks(tensor(g)))
        best, worst = group_corners(x, g, r)
        d = {"away": x - worst, "within": best - x, "pairwise": best - worst}[name]
        alone = np.allclose(best, worst, rtol=1e-14)
        assert move.slope[0] == (0 if alone else pytest.approx(-(g * d).sum(), rel=1e-12))
        if alone:
            continue
        wanted = bisected(lambda a, d=d, x=x, r=r: group_gauge(x + a * d) <= r * (1 + 1e-15))
        np.testing.assert_allclose(move.limit, wanted, rtol=1e-12)
        end = ball.from_blocks(ball.apply(xb, move, Decision(move.limit, move.limit > 0)), tensor(x)).numpy()
        np.testing.assert_allclose(end, x + wanted * d, atol=1e-12 * r)
        gone = np.linalg.norm(x + wanted * d, axis=1) < 1e-9 * r
        assert (end[gone] == 0).all()
        if name != "within" and group_gauge(x) == r:
            assert (gone & (np.linalg.norm(x, axis=1) > 0)).any()


# ----------------------------------------------------------------------------------------------------------- matrices


def matrix(rng, rows, columns, values):
    """A matrix with these singular values and random singular vectors, and those vectors."""
    u, v = (np.linalg.qr(rng.standard_normal((size, len(values))))[0] for size in (rows, columns))
    return u * values @ v.T, u, v


def nuclear(x):
    return np.linalg.svd(x, compute_uv=False).sum()


def spectra(rng, r=3.0):
    """Singular values that sum to ``r``: one, two equal, some, as many as there can be, of very different sizes."""
    yield np.array([r])
    yield np.array([r / 2, r / 2])
    for rank in (2, 3, 4):
        values = np.sort(rng.dirichlet(np.ones(rank)))[::-1] * r
        yield values
    yield np.array([r - 1e-3 - 1e-6, 1e-3, 1e-6])


def nuclear_cases(seed, r=3.0):
    rng = np.random.default_rng(seed)
    for values, (rows, columns) in itertools.product(spectra(rng, r), [(5, 4), (4, 7), (4, 4)]):
        yield (*matrix(rng, rows, columns, values), values, rng.standard_normal((rows, columns)))


def face_eigenvectors(u, v, g):
    """The coordinates of the best and of the worst extreme point ``r U z z^T V^T`` of the face."""
    core = u.T @ g @ v
    vectors = np.linalg.eigh((core + core.T) / 2)[1]
    return vectors[:, 0], vectors[:, -1]


def test_nuclear_face_vertex_is_the_extreme_eigenvector_of_the_face():
    for x, u, v, _, g in nuclear_cases(9):
        best, _ = face_eigenvectors(u, v, g)
        found = NuclearBall(3.0).face_vertex(tensor(x), tensor(g)).numpy()
        np.testing.assert_allclose(found, 3 * np.outer(u @ best, v @ best), atol=1e-8)
        inner = NuclearBall(4.0).face_vertex(tensor(x), tensor(g)).numpy()
        np.testing.assert_allclose((g * inner).sum(), -4 * np.linalg.norm(g, 2), rtol=1e-13)


@pytest.mark.parametrize("name", IN_FACE)
def test_nuclear_in_face_moves_stop_where_the_eigenvalues_of_the_face_do(name):
    ball = NuclearBall(3.0)
    for x, u, v, values, g in nuclear_cases(10):
        best, worst = face_eigenvectors(u, v, g)
        middle = {
            "away": np.diag(values) - 3 * np.outer(worst, worst),
            "within": 3 * np.outer(best, best) - np.diag(values),
            "pairwise": 3 * (np.outer(best, best) - np.outer(worst, worst)),
        }[name]
        xb = ball.to_blocks(tensor(x))
        move = getattr(ball, name)(xb, ball.to_blocks(tensor(g)))
        np.testing.assert_allclose(move.slope, -(g * (u @ middle @ v.T)).sum(), rtol=1e-9, atol=1e-12)
        if len(values) == 1:
            assert move.slope == 0, "a matrix of rank one is a vertex"
            continue
        wanted = bisected(lambda a, m=values, d=middle: np.linalg.eigvalsh(np.diag(m) + float(a) * d)[0] >= -1e-15)
        np.testing.assert_allclose(move.limit, wanted, rtol=1e-8)
        end = ball.apply(xb, move, Decision(move.limit, move.limit > 0))[0].numpy()
        np.testing.assert_allclose(end, x + wanted * (u @ middle @ v.T), atol=1e-7)
        assert nuclear(end) == pytest.approx(3, rel=1e-14)
        left = 1 if name == "within" else len(values) - 1
        assert (np.linalg.svd(end, compute_uv=False) > 8 * np.finfo(float).eps * 3).sum() == left


@pytest.mark.parametrize(("name", "growth"), [("away", 1), ("pairwise", 0)])
def test_nuclear_moves_from_inside_stop_at_the_boundary(name, growth):
    ball = NuclearBall(5.0)
    for x, *_, g in nuclear_cases(11):
        left, _, right = np.linalg.svd(g)
        best = -5 * np.outer(left[:, 0], right[0])
        d = growth * x + (2 - growth) * best
        move = getattr(ball, name)(ball.to_blocks(tensor(x)), ball.to_blocks(tensor(g)))
        np.testing.assert_allclose(move.slope, -(g * d).sum(), rtol=1e-12)
        wanted = bisected(lambda a, x=x, d=d: nuclear(x + float(a) * d) <= 5, high=1e3)
        blocks = ball.to_blocks(tensor(x))
        np.testing.assert_allclose(ball.limit(blocks, move, torch.tensor([1e3])), wanted, rtol=1e-10)
        assert ball.limit(blocks, move, torch.tensor([wanted / 2])) > wanted / 2, "a step that stays inside is allowed"


def test_nuclear_and_spectral_max_step_is_found_by_bisection():
    rng = np.random.default_rng(12)
    for x, u, v, values, g in nuclear_cases(12):
        best, worst = face_eigenvectors(u, v, g)
        in_face = u @ (np.outer(best, best) - np.outer(worst, worst)) @ v.T if len(values) > 1 else g
        for ball, gauge in [
            (NuclearBall(3.0), nuclear),
            (NuclearBall(7.0), nuclear),
            (SpectralBall(np.linalg.norm(x, 2)), lambda y: np.linalg.norm(y, 2)),
            (SpectralBall(4.0), lambda y: np.linalg.norm(y, 2)),
        ]:
            for d in (g, -x, 1e-3 * g, rng.standard_normal(x.shape), in_face):
                wanted = bisected(lambda a, d=d: gauge(x + float(a) * d) <= ball.radius * (1 + 1e-14), high=1e5)  # noqa: B023
                found = ball.max_step(tensor(x), tensor(d))
                np.testing.assert_allclose(found, wanted, rtol=1e-8, atol=1e-12 * ball.radius / np.linalg.norm(d))
            assert torch.isinf(ball.max_step(tensor(x), tensor(0 * x))).all()


@pytest.mark.parametrize("shape", [(5, 4), (4, 7), (1, 6), (6, 1), (3, 3)])
def test_nuclear_and_spectral_vertices_attain_the_dual_norm(shape):
    rng = np.random.default_rng(13)
    for g in (rng.standard_normal(shape), rng.integers(-1, 2, shape).astype(float), np.eye(*shape), np.ones(shape)):
        rank_one, flat = NuclearBall(3.0).vertex(tensor(g)).numpy(), SpectralBall(3.0).vertex(tensor(g)).numpy()
        np.testing.assert_allclose((g * rank_one).sum(), -3 * np.linalg.norm(g, 2), rtol=1e-13)
        np.testing.assert_allclose((g * flat).sum(), -3 * nuclear(g), rtol=1e-13)
        found = np.linalg.svd(rank_one, compute_uv=False)
        np.testing.assert_allclose(found, 3 * np.eye(len(found))[0], atol=1e-14)
        np.testing.assert_allclose(np.linalg.svd(flat, compute_uv=False), 3, rtol=1e-14)


def test_spectral_ball_offers_no_faces_and_says_so():
    assert not SpectralBall(1.0).has_faces
    with pytest.raises(ValueError, match="SpectralBall has no faces"):
        SpectralBall(1.0).face_vertex(torch.eye(2), torch.eye(2))


SPECTRA = {
    "separated": np.r_[3.0, 1.0, np.linspace(0.9, 0.1, 98)],
    "decaying": 0.9 ** np.arange(100.0),
    "clustered": np.r_[np.ones(10), np.linspace(0.99, 0.1, 90)],
    "nearly equal": np.r_[1.0, 1 - 1e-9, 1 - 2e-9, np.linspace(0.5, 0.1, 97)],
    "all equal": np.ones(100),
    "rank 3": np.r_[2.0, 1.0, 0.5],
    "rank 1": np.array([2.0]),
    "rank 40": np.linspace(2, 1, 40),
}


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("shape", [(100, 130), (160, 100)])
def test_the_leading_pair_of_a_large_matrix_is_right_to_32_eps(shape, dtype):
    rng = np.random.default_rng(14)
    eps = torch.finfo(dtype).eps
    batch = [matrix(rng, *shape, values)[0] for values in SPECTRA.values()]
    batch += [np.zeros(shape), rng.standard_normal(shape), 1e-20 * batch[0], 1e20 * batch[0], np.ones(shape)]
    a = tensor(np.array(batch)).to(dtype)
    exact = np.linalg.svd(a.double().numpy(), compute_uv=False)[:, 0]
    singles = [top_pair(one.unsqueeze(0)) for one in a]
    for u, sigma, v in (top_pair(a), [torch.cat(part) for part in zip(*singles, strict=True)]):
        np.testing.assert_allclose(sigma, exact, rtol=32 * eps)
        for vector in (u, v):
            np.testing.assert_allclose(vector.double().norm(dim=1), 1, rtol=8 * eps)
        left = (a.double() @ v.double().unsqueeze(2)).squeeze(2) - sigma.double().unsqueeze(1) * u.double()
        right = (a.double().mT @ u.double().unsqueeze(2)).squeeze(2) - sigma.double().unsqueeze(1) * v.double()
        for residual in (left, right):
            assert (residual.norm(dim=1).numpy() <= 64 * eps * exact).all()


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("shape", [(100, 130), (160, 100), (40, 60)])
@pytest.mark.parametrize("name", SPECTRA)
def test_the_factors_of_a_matrix_rebuild_it_up_to_the_tolerance(name, shape, dtype):
    rng = np.random.default_rng(15)
    eps = torch.finfo(dtype).eps
    for scale in (1.0, 1e-20, 1e20):
        a = tensor([scale * matrix(rng, *shape, SPECTRA[name][: min(shape)])[0], np.zeros(shape)]).to(dtype)
        exact = np.linalg.svd(a.double().numpy(), compute_uv=False)
        tol = tensor(8 * eps * exact.sum(1)).to(dtype)
        u, s, v = (part.double().numpy() for part in svd(a, tol))
        held = (s > 0).sum(1)
        np.testing.assert_array_equal(held, [np.count_nonzero(SPECTRA[name][: min(shape)]), 0])
        np.testing.assert_allclose(s, exact[:, : s.shape[1]], atol=8 * eps * scale * SPECTRA[name].sum())
        rebuilt = u * s[:, None] @ v.transpose(0, 2, 1)
        assert np.linalg.norm((rebuilt - a.double().numpy())[0]) <= float(tol[0])
        for part in (u[0, :, : held[0]], v[0, :, : held[0]]):
            np.testing.assert_allclose(part.T @ part, np.eye(held[0]), atol=100 * eps)


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("shape", [(100, 130), (40, 30)])
def test_the_polar_factor_has_orthonormal_rows_or_columns_and_the_nuclear_norm(shape, dtype):
    rng = np.random.default_rng(16)
    eps = torch.finfo(dtype).eps
    for values in SPECTRA.values():
        a = tensor([matrix(rng, *shape, values[: min(shape)])[0]]).to(dtype)
        factor, norm = polar(a)
        np.testing.assert_allclose(norm, nuclear(a[0].double().numpy()), rtol=64 * eps)
        np.testing.assert_allclose(torch.linalg.svdvals(factor[0].double()), 1, rtol=16 * eps)
        assert float((factor * a).sum()) == pytest.approx(float(norm), rel=64 * eps)


def test_factorisations_do_not_touch_the_random_state():
    before = torch.get_rng_state()
    a = torch.ones(1, 120, 120)
    top_pair(a)
    svd(a, torch.ones(1))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", IN_FACE)
def test_nuclear_moves_of_a_large_low_rank_matrix_match_the_dense_decomposition(name):
    rng = np.random.default_rng(17)
    ball, values = NuclearBall(3.0), np.array([1.5, 0.7, 0.5, 0.2, 0.1])
    x, u, v = matrix(rng, 150, 110, values)
    g = rng.standard_normal(x.shape)
    best, worst = face_eigenvectors(u, v, g)
    p, m, q = (worst**2 / values).sum(), (best**2 / values).sum(), (best * worst / values).sum()
    t = 1 / (3 * p)
    wanted = {
        "away": t / (1 - t),
        "within": 1,
        "pairwise": 2 / ((p - m) + np.sqrt((p - m) ** 2 + 4 * (p * m - q**2))) / 3,
    }[name]
    move = getattr(ball, name)(tensor([x]), tensor([g]))
    np.testing.assert_allclose(move.limit, wanted, rtol=1e-10)
    end = ball.apply(tensor([x]), move, Decision(move.limit, move.limit > 0))[0].numpy()
    assert np.linalg.matrix_rank(end, tol=1e-12) == (1 if name == "within" else 4)
    assert nuclear(end) == pytest.approx(3, rel=1e-13)


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("set_", [NuclearBall(0.3), SpectralBall(0.3)], ids=repr)
@pytest.mark.parametrize("shape", [(128, 128), (300, 784)])
def test_vertices_and_projections_of_large_matrices_are_in_the_set(set_, shape, dtype):
    rng = np.random.default_rng(18)
    g = tensor(rng.standard_normal(shape)).to(dtype)
    assert set_.contains(set_.vertex(g)).all()
    assert set_.contains(set_.project(g)).all()
    if set_.has_faces:
        assert set_.contains(set_.face_vertex(set_.project(g), -g)).all()


@pytest.mark.parametrize("set_", [NuclearBall(0.3), SpectralBall(0.3)], ids=repr)
@pytest.mark.parametrize("shape", [(2, 500), (4, 48), (60, 784), (64, 1024), (300, 784)])
def test_rounding_that_all_goes_one_way_does_not_push_a_float32_vertex_out(set_, shape):
    """A product of equal numbers, added up in float32, is off by a multiple of eps that grows with the size."""
    assert set_.contains(set_.vertex(torch.ones(shape))).all()
    assert set_.contains(set_.project(torch.ones(shape))).all()
    assert set_.norm(torch.ones(shape)).item() == pytest.approx(math.prod(shape) ** 0.5, rel=2**-23)


# ------------------------------------------------------------------------- the dense interface, the same for all sets


SETS = {
    "l1": L1Ball,
    "group": lambda r, per=None: GroupL1Ball(r, per=per),
    "group-input": lambda r, per=None: GroupL1Ball(r, groups="input", per=per),
    "nuclear": NuclearBall,
    "simplex": Simplex,
    "box": LInfBall,
    "k=2": lambda r, per=None: KSparsePolytope(r, k=2, per=per),
    "l2": L2Ball,
    "spectral": SpectralBall,
}
PER = ["output", "input", "tensor"]
SHAPES = [(4,), (3, 4), (3, 2, 4), (2, 3, 2, 2), (2, 3, 1, 2, 2)]


def fits(name, shape, per):
    """Whether the set exists with this ``per`` on this shape: a group ball needs groups inside its blocks."""
    if not name.startswith("group"):
        return True
    groups = "input" if name == "group-input" else "output"
    return groups != per and (len(shape) > 1 or (groups, per) == ("output", "tensor"))


COMBINATIONS = [c for c in itertools.product(SETS, SHAPES, PER) if fits(*c)]


def blocks_by_hand(x, per):
    """The blocks of a parameter, by indexing."""
    if x.ndim == 1 or per == "tensor":
        return [x]
    return [x[i] for i in range(x.shape[0])] if per == "output" else [x[:, i] for i in range(x.shape[1])]


def joined_by_hand(parts, x, per):
    if x.ndim == 1 or per == "tensor":
        return parts[0]
    return torch.stack(parts, 0 if per == "output" else 1)


def matricised(block):
    return block.reshape(block.shape[0], -1).double().numpy()


def gauge_by_hand(name, block, groups_in_second=False):
    """The norm of one block in numpy, and its dual; a group ball's groups run along the first or second dimension."""
    x = block.double().numpy()
    flat = np.abs(x.reshape(-1))
    values = np.linalg.svd(matricised(block), compute_uv=False)
    groups = np.linalg.norm(matricised(block.transpose(0, 1) if groups_in_second else block), axis=1)
    k = min(2, len(flat))
    return {
        "l1": (flat.sum(), flat.max()),
        "simplex": (x.sum() if (x >= 0).all() else np.inf, x.max()),
        "box": (flat.max(), flat.sum()),
        "k=2": (max(flat.max(), flat.sum() / k), np.sort(flat)[-k:].sum()),
        "l2": (np.linalg.norm(flat), np.linalg.norm(flat)),
        "group": (groups.sum(), groups.max()),
        "nuclear": (values.sum(), values.max()),
        "spectral": (values.max(), values.sum()),
    }[name.removesuffix("-input")]


def sample(name, shape, per, dtype=torch.float64, seed=0):
    """A set with a radius of its own for every block, a point of it (some blocks on the boundary), and a gradient."""
    rng = np.random.default_rng(seed)
    x, g = (tensor(rng.standard_normal(shape)).to(dtype) for _ in range(2))
    count = len(blocks_by_hand(x, per))
    set_ = SETS[name](torch.linspace(0.5, 2.0, count, dtype=torch.float64), per)
    set_.check(x.shape, "x")
    x = set_.project(x)
    if name != "simplex":
        inner = torch.arange(count, dtype=dtype) % 3 == 2
        x = joined_by_hand([b * (0.5 if i else 1) for b, i in zip(blocks_by_hand(x, per), inner, strict=True)], x, per)
    return set_, x, g


@pytest.mark.parametrize(("name", "shape", "per"), COMBINATIONS)
def test_a_set_on_a_parameter_is_the_set_on_each_of_its_blocks(name, shape, per):
    set_, x, g = sample(name, shape, per)
    second = name == "group-input" and per == "tensor"
    alone = "group" if name == "group-input" and per != "tensor" else name
    ones = [SETS[alone](float(r), "tensor") for r in set_.radius]
    xs, gs = blocks_by_hand(x, per), blocks_by_hand(g, per)
    norms = [gauge_by_hand(name, b, second)[0] for b in xs]
    np.testing.assert_allclose(set_.norm(x), norms, rtol=1e-13)
    np.testing.assert_array_equal(set_.contains(2 * x), 2 * np.array(norms) <= set_.radius.numpy() * (1 + 1e-14))
    np.testing.assert_allclose(
        set_.max_step(x, g), [one.max_step(b, c)[0] for one, b, c in zip(ones, xs, gs, strict=True)], rtol=1e-12
    )
    results = {"vertex": (g,), "project": (3 * g,)} | ({"face_vertex": (x, g)} if set_.has_faces else {})
    for method, args in results.items():
        pieces = zip(ones, *(blocks_by_hand(a, per) for a in args), strict=True)
        wanted = joined_by_hand([getattr(one, method)(*piece) for one, *piece in pieces], x, per)
        found = getattr(set_, method)(*args)
        assert found.shape == x.shape
        np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-11, err_msg=method)
    best = [(b * c).sum() for b, c in zip(blocks_by_hand(set_.vertex(g), per), gs, strict=True)]
    price = [-r * gauge_by_hand(name, -c, second)[1] for c, r in zip(gs, set_.radius, strict=True)]
    np.testing.assert_allclose(best, price, rtol=1e-12)
    diameter = set_.diameter(xs[0].shape)
    np.testing.assert_allclose(diameter, [one.diameter(b.shape) for one, b in zip(ones, xs, strict=True)], rtol=1e-15)


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("name", SETS)
def test_contains_takes_8_eps_of_the_radius_and_no_more(name, dtype):
    eps = torch.finfo(dtype).eps
    set_ = SETS[name](1024.0)
    x = torch.zeros(1, 4, dtype=dtype)
    x[0, 0] = 1024
    if name == "box":
        x[0, 1:] = -1024
    for excess, wanted in ((0, True), (6, True), (10, False)):
        assert bool(set_.contains(x * (1 + excess * eps))) is wanted
    assert set_.contains(x * 1.001, tol=0.01)
    assert not set_.contains(x * 1.001, tol=0.0001)


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [(torch.float64, 2.0**-700), (torch.float64, 2.0**700), (torch.float32, 2.0**-70), (torch.float32, 2.0**70)],
)
@pytest.mark.parametrize(("name", "shape", "per"), [c for c in COMBINATIONS if len(c[1]) == 3])
def test_norms_and_vertices_scale_with_their_argument_and_steps_with_the_direction(name, shape, per, dtype, scale):
    set_, x, g = sample(name, shape, per, dtype)
    rtol = 8 * torch.finfo(dtype).eps
    np.testing.assert_allclose(set_.norm(scale * x), scale * set_.norm(x), rtol=rtol)
    np.testing.assert_allclose(set_.vertex(scale * g), set_.vertex(g), rtol=rtol, atol=rtol)
    assert (
        set_.contains(scale * x) == set_.contains(torch.zeros_like(x) if scale < 1 else 9 * x)
    ).all() or name == "simplex"
    inside = set_.project(g) if name == "simplex" else set_.project(g) / 2
    d = set_.vertex(g) - inside
    np.testing.assert_allclose(set_.max_step(inside, scale * d) * scale, set_.max_step(inside, d), rtol=32 * rtol)


def test_a_matrix_of_large_entries_is_not_in_a_small_nuclear_ball():
    x = torch.full((3, 3), 1e20)
    assert NuclearBall(1.0).norm(x).item() == pytest.approx(3e20)
    assert not NuclearBall(1.0).contains(x)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("size", [3, 120])
@pytest.mark.parametrize("name", SETS)
def test_no_set_contains_a_block_that_is_not_finite(name, size, bad):
    x = torch.zeros(size, size)
    x[-1, -1] = bad
    assert not SETS[name](1.0, "tensor").contains(x)


def test_a_simplex_contains_neither_sums_too_small_nor_negative_entries():
    x = tensor([[0.5, 0.5], [0.5, 0.4], [1 + 1e-16, -1e-16], [0.25, 0.75]])
    assert Simplex(1.0).contains(x).tolist() == [True, False, False, True]
    assert Simplex(1.0).contains(x, tol=0.2).tolist() == [True, True, True, True]
    assert Simplex(1.0).norm(x)[2] == torch.inf


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e3, 1e17])
@pytest.mark.parametrize("name", ["group", "group-input", "l2", "nuclear", "spectral"])
def test_projection_onto_a_curved_set_satisfies_the_variational_inequality(name, scale):
    rng = np.random.default_rng(19)
    for shape in ((4, 3), (3, 5), (1, 4)):
        set_ = SETS[name](0.75, "tensor")
        x = scale * tensor(rng.standard_normal(shape))
        y = set_.project(x)
        assert set_.contains(y).all()
        size, _ = gauge_by_hand(name, y, name == "group-input")
        assert size <= 0.75 * (1 + 1e-14)
        rise = 0.75 * gauge_by_hand(name, x - y, name == "group-input")[1] - float(((x - y) * y).sum())
        assert abs(rise) <= 1e-13 * (1 + float(x.abs().max()))


# --------------------------------------------------------------------------------------------- plain data, and errors


def test_a_set_does_not_share_its_radii_with_anybody():
    radius = torch.tensor([1.0, 2.0])
    set_ = L1Ball(radius)
    radius[0] = -1
    set_.to_dict()["radius"][1] = -1
    assert set_.radius.tolist() == [1.0, 2.0]


EVERY_CLASS = [L1Ball, GroupL1Ball, NuclearBall, Simplex, LInfBall, L2Ball, SpectralBall, KSparsePolytope]


@pytest.mark.parametrize("cls", EVERY_CLASS)
@pytest.mark.parametrize(
    ("radius", "shown", "wanted"),
    [
        (0, "0", "> 0"),
        (-1.5, "-1.5", "> 0"),
        (float("nan"), "nan", "> 0"),
        (float("inf"), "inf", "finite"),
        ("big", "'big'", "number"),
        (None, "None", "number"),
        (torch.tensor(-2.0), "-2.0", "> 0"),
        (torch.tensor([1.0, -3.0]), "-3.0", "> 0"),
        (torch.tensor([1.0, float("nan")]), "nan", "> 0"),
        (torch.ones(2, 2), "(2, 2)", "1-D"),
        (torch.tensor([1, 2]), "int64", "floating-point"),
    ],
    ids=str,
)
def test_a_bad_radius_is_refused_with_the_name_of_the_set_and_the_value(cls, radius, shown, wanted):
    with pytest.raises(ValueError, match=cls.__name__) as error:
        cls(radius, **({"k": 2} if cls is KSparsePolytope else {}))
    assert shown in str(error.value)
    assert wanted in str(error.value)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        *(
            (lambda c=c: c(1.0, per="row"), [c.__name__, "per", "'row'", "'output', 'input', 'tensor'"])
            for c in EVERY_CLASS[:7]
        ),
        (
            lambda: KSparsePolytope(1.0, k=2, per="row"),
            ["KSparsePolytope", "per", "'row'", "'output', 'input', 'tensor'"],
        ),
        *(
            (lambda k=k: KSparsePolytope(1.0, k=k), ["KSparsePolytope", "k must", repr(k), ">= 1"])
            for k in (0, -1, 1.5, True)
        ),
        (lambda: GroupL1Ball(1.0, groups="rows"), ["GroupL1Ball", "groups", "'rows'", "'output' or 'input'"]),
        (lambda: GroupL1Ball(1.0, groups="output", per="output"), ["GroupL1Ball", "'output'", "L2Ball"]),
        (lambda: Set.from_dict({"kind": "l7", "radius": 1.0}), ["'l7'", "l1", "nuclear", "simplex"]),
        (
            lambda: L1Ball(torch.ones(3)).check(torch.Size([2, 5]), 'parameter "w"'),
            ["L1Ball", "3 values", "2 blocks", 'parameter "w"', "(2, 5)"],
        ),
        (
            lambda: GroupL1Ball(1.0, groups="input").check(torch.Size([5]), 'parameter "w"'),
            ["GroupL1Ball", "two dimensions", 'parameter "w"', "(5,)"],
        ),
    ],
)
def test_bad_options_are_refused_with_the_name_of_the_set_the_value_and_what_was_wanted(make, words):
    with pytest.raises(ValueError, match=words[0]) as error:
        make()
    assert [word for word in words if word not in str(error.value)] == []


def test_gradients_through_an_away_step_of_a_box_are_finite_where_entries_are_at_their_worst_bound():
    lr = torch.tensor(0.05, requires_grad=True)
    p = torch.nn.Parameter(torch.tensor([[0.1, 0.02, -0.1], [0.1, 0.1, 0.1]])).clone()
    opt = inface.FrankWolfe([{"params": [p], "set": LInfBall(0.1)}], lr=lr, in_face="away", differentiable=True)
    for _ in range(2):
        p.grad = torch.tensor([[1.0, -1.0, 0.5], [1.0, -1.0, 2.0]])
        opt.step()
    p.square().sum().backward()
    assert bool(torch.isfinite(lr.grad))
