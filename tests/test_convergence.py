"""Convex problems with known optima on proper faces: full gradients, float64."""

import numpy as np
import pytest
import torch
from torch.nn.functional import mse_loss

import inface
from inface.sets import GroupL1Ball, KSparsePolytope, L1Ball, LInfBall, NuclearBall, Simplex

# ---------------------------------------------------------------------- optima, by projected gradients in numpy


BOTH_PATHS = True


def project_simplex(v, r):
    """The Euclidean projection of a vector ``v >= 0`` of sum > r onto ``{u >= 0, sum u = r}``."""
    ordered = np.sort(v)[::-1]
    cuts = (np.cumsum(ordered) - r) / np.arange(1, len(v) + 1)
    return np.maximum(v - cuts[np.flatnonzero(ordered > cuts)[-1]], 0)


def project_l1(w, r):
    return w if np.abs(w).sum() <= r else np.sign(w) * project_simplex(np.abs(w), r)


def project_nuclear(x, r):
    u, s, vt = np.linalg.svd(x, full_matrices=False)
    return x if s.sum() <= r else (u * project_simplex(s, r)) @ vt


def minimise(gradient, project, x, L):
    for _ in range(100_000):
        new = project(x - gradient(x) / L)
        if np.abs(new - x).max() <= 1e-15 * np.abs(x).max():
            return new
        x = new
    raise AssertionError("the oracle has not converged")


def rank(x):
    return int((np.linalg.svd(x, compute_uv=False) > 1e-10).sum())


# ---------------------------------------------------------------------- the lasso


class Lasso:
    """``mean (A z - b)^2`` with ``z = (w, v, c)``: ``|w|_1 <= radius`` in 20 dimensions, v (3 numbers) and c (1) free."""

    radius = 2.5

    def __init__(self):
        rng, n = np.random.default_rng(0), 80
        self.A = np.hstack([rng.normal(size=(n, 23)) + 0.5 * rng.normal(size=(n, 1)), np.ones((n, 1))])
        self.b = self.A[:, [0, 1, 2, 3, 20]] @ [1.5, -2.0, 1.0, 0.7, 1.0] + 0.8 + 0.3 * rng.normal(size=n)
        self.L = 2 * np.linalg.eigvalsh(self.A.T @ self.A / n)[-1]
        self.best = minimise(self.gradient, self.project, np.zeros(24), self.L)
        self.F_star, self.F_0 = self.value(self.best), self.value(np.zeros(24))
        self.data = [(torch.tensor(self.A), torch.tensor(self.b))]

    def value(self, z):
        return np.mean((self.A @ z - self.b) ** 2)

    def gradient(self, z):
        return 2 * self.A.T @ (self.A @ z - self.b) / len(self.b)

    def project(self, z):
        return np.append(project_l1(z[:20], self.radius), z[20:])

    def fit(self, w, steps, **options):
        """Train from ``w`` with the rest zero; the relative errors and the non-zeros of w after every gradient."""
        model = Linear(w)
        opt = inface.FrankWolfe(model, {"w": L1Ball(self.radius)}, lr=1 / (2 * self.L), **options)
        errors, supports = [], []
        for _ in range(steps):
            self.descend(model, opt)
            errors.append((self.value(model.z()) - self.F_star) / self.F_0)
            supports.append(int((model.w != 0).sum()))
        return np.array(errors), np.array(supports)

    def descend(self, model, opt):
        opt.zero_grad()
        ((inputs, target),) = self.data
        mse_loss(model(inputs), target).backward()
        opt.step()


class Linear(torch.nn.Module):
    def __init__(self, w):
        super().__init__()
        self.w, self.v, self.c = (
            torch.nn.Parameter(torch.tensor(part)) for part in (np.array(w, float), np.zeros(3), np.zeros(1))
        )

    def forward(self, inputs):
        return inputs @ torch.cat([self.w, self.v, self.c])

    def z(self):
        return torch.cat([self.w, self.v, self.c]).detach().numpy()


LASSO = Lasso()
STARTS = {
    "zero": np.zeros(20),
    "wrong vertex": LASSO.radius * np.eye(20)[-1],
    "dense": np.full(20, LASSO.radius / 20),
}


def test_the_optimum_of_the_lasso_is_optimal_and_on_a_proper_face():
    w, g = LASSO.best[:20], LASSO.gradient(LASSO.best)
    assert np.abs(w).sum() == pytest.approx(LASSO.radius, rel=1e-14)
    assert np.count_nonzero(w) == 4
    assert g[:20] @ w + LASSO.radius * np.abs(g[:20]).max() <= 1e-12
    assert np.abs(g[20:]).max() <= 1e-12


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("in_face", ["away", "pairwise", "projected"])
def test_in_face_steps_reach_the_lasso_optimum_and_its_support(in_face, start):
    errors, supports = LASSO.fit(STARTS[start], 1200, in_face=in_face)
    assert errors[-1] <= 1e-6
    assert supports[-1] == np.count_nonzero(LASSO.best[:20])
    assert (np.diff(errors) <= 1e-15).all(), "with the true L every step descends"


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("in_face", [None, "frank-wolfe"])
def test_frank_wolfe_directions_alone_reach_the_lasso_optimum_at_their_rate(in_face, start):
    """``8 L (F_k - F_k+1) >= G^2`` and Proposition 2.2 give ``F_k - F* <= 8 L D^2 / k``, D the diameter (R is smaller)."""
    assert np.linalg.norm(LASSO.best[20:]) < 2 * LASSO.radius
    errors, _ = LASSO.fit(STARTS[start], 600, in_face=in_face)
    iterations = np.arange(1, 601) // (1 if in_face is None else 2)
    assert (errors * LASSO.F_0 * iterations <= 8 * LASSO.L * (2 * LASSO.radius) ** 2).all()
    assert (np.diff(errors) <= 1e-15).all()
    assert errors[-1] <= 0.1


@pytest.mark.parametrize("start", ["wrong vertex", "dense"])
@pytest.mark.parametrize("in_face", ["away", "pairwise"])
def test_in_face_steps_are_sparser_and_nearer_than_plain_ones_after_as_many_gradients(in_face, start):
    errors, supports = LASSO.fit(STARTS[start], 600, in_face=in_face)
    plain_errors, plain_supports = LASSO.fit(STARTS[start], 600)
    assert supports[-1] < plain_supports[-1]
    assert errors[-1] < 0.1 * plain_errors[-1]


@pytest.mark.parametrize(("in_face", "momentum"), [("away", 0.5), ("away", 0.9), ("pairwise", 0.9), ("projected", 0.9)])
def test_in_face_steps_with_momentum_reach_the_lasso_optimum(in_face, momentum):
    errors, supports = LASSO.fit(STARTS["dense"], 1200, in_face=in_face, momentum=momentum)
    assert errors[-1] <= 1e-6
    assert supports[-1] == np.count_nonzero(LASSO.best[:20])


# In units of 1 / (2 L), for w, v and c: Proposition 2.2 holds for every C and L, so for all of them.
RATES = {"one": (1.0, 1.0, 1.0), "several": (2.0, 0.25, 1.0), "other order": (0.5, 1.0, 0.1)}


@pytest.mark.parametrize("gradient_bound", [None, 400.0])
@pytest.mark.parametrize("rates", RATES)
def test_convex_bound_is_above_the_error_at_every_point_and_falls_with_it(rates, gradient_bound):
    lr = np.array(RATES[rates]) / (2 * LASSO.L)
    model = Linear(STARTS["dense"])
    groups = {
        "w": {"set": L1Ball(LASSO.radius), "lr": lr[0], "gradient_bound": gradient_bound},
        "v": {"set": None, "lr": lr[1]},
        "c": {"set": None, "lr": lr[2]},
    }
    opt = inface.FrankWolfe(model, groups, lr=1.0, in_face="pairwise")
    bounds, errors = [], []
    for _ in range(300):
        apart = model.z() - LASSO.best
        R = np.sqrt(max(lr[1:]) * ((apart[20:23] ** 2).sum() / lr[1] + apart[23] ** 2 / lr[2]))
        bounds.append(inface.convex_bound(inface.modified_gap(model, mse_loss, LASSO.data, opt), R))
        errors.append(LASSO.value(model.z()) - LASSO.F_star)
        LASSO.descend(model, opt)
    assert (np.array(errors) <= bounds).all()
    assert bounds[-1] <= 0.1 * bounds[0]


# ---------------------------------------------------------------------- matrices


def nuclear_fit(mask, target, radius, x, steps, in_face, **options):
    """``1/2 |mask (X - target)|^2``, whose L is 1, over a nuclear ball; the values of F after every gradient, and X."""
    p, mask, target = (torch.tensor(value) for value in (np.array(x, float), mask, target))
    p.requires_grad_()
    opt = inface.FrankWolfe([{"params": [p], "set": NuclearBall(radius)}], lr=0.5, in_face=in_face, **options)
    values = []
    for _ in range(steps):
        with torch.no_grad():
            p.grad = mask * (p - target)
        opt.step()
        values.append(float((mask * (p - target)).detach().square().sum() / 2))
    return np.array(values), p.detach().numpy()


class Completion:
    """70 % of the entries of a 12 x 9 matrix of rank 2, with noise, in a ball that is smaller than it."""

    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(12, 2)) @ rng.normal(size=(2, 9))
    matrix *= 4 / np.linalg.norm(matrix)
    size = np.linalg.svd(matrix, compute_uv=False).sum()
    mask = (rng.random((12, 9)) < 0.7).astype(float)
    noisy = mask * (matrix + 0.02 * rng.normal(size=(12, 9)))
    radius = 0.8 * size

    @classmethod
    def value(cls, x):
        return ((cls.mask * x - cls.noisy) ** 2).sum() / 2

    @classmethod
    def optimum(cls):
        return minimise(lambda x: cls.mask * x - cls.noisy, lambda x: project_nuclear(x, cls.radius), 0 * cls.mask, 1.0)


@pytest.mark.parametrize("in_face", [None, "away", "frank-wolfe", "pairwise", "projected"])
def test_a_matrix_is_completed_in_a_ball_with_room_for_it(in_face):
    """The data have no noise, so F* = 0."""
    target = Completion.mask * Completion.matrix
    start = (target**2).sum() / 2
    values, _ = nuclear_fit(Completion.mask, target, 3 * Completion.size, 0 * target, 800, in_face)
    assert values[-1] <= 1e-6 * start
    if in_face in ("away", "pairwise"):
        assert values[400] <= 1e-6 * start


@pytest.mark.parametrize("in_face", [None, "away", "frank-wolfe", "pairwise", "projected"])
def test_completion_in_a_small_ball_comes_closer_at_the_rate_of_the_theorem(in_face):
    best = Completion.optimum()
    assert rank(best) == 3
    assert np.linalg.svd(best, compute_uv=False).sum() == pytest.approx(Completion.radius, rel=1e-13)
    values, x = nuclear_fit(Completion.mask, Completion.noisy, Completion.radius, 0 * best, 600, in_face)
    iterations = np.arange(1, 601) // (1 if in_face is None else 2)
    assert ((values - Completion.value(best)) * iterations <= 8 * (2 * Completion.radius) ** 2).all()
    assert values[-1] - Completion.value(best) <= 0.03 * Completion.value(0 * best)
    assert np.linalg.svd(x, compute_uv=False).sum() <= Completion.radius * (1 + 1e-14)


def test_a_projected_gradient_as_in_face_direction_completes_a_matrix_to_its_optimum_and_rank():
    """The end of a projected gradient step, scaled so that ``A / C = 1``, is a direction that Step 4b allows."""

    def projected(set_, x, g):
        ends = [torch.tensor(project_nuclear(end.numpy(), Completion.radius)) for end in x - 0.5 * g]
        d = torch.stack(ends) - x
        fall, length = -(g * d).sum(), d.norm()
        return (
            d * min((2 * Completion.radius / (0.5 * fall).sqrt()), 2 * Completion.radius / length)
            if fall > 0
            else 0 * d
        )

    best = Completion.optimum()
    values, x = nuclear_fit(Completion.mask, Completion.noisy, Completion.radius, 0 * best, 400, projected)
    _, plain = nuclear_fit(Completion.mask, Completion.noisy, Completion.radius, 0 * best, 400, None)
    assert values[-1] - Completion.value(best) <= 1e-6 * Completion.value(0 * best)
    assert rank(x) == rank(best) < rank(plain)


@pytest.mark.parametrize(("k", "gradients"), [(1, 600), (5, 1800)])
def test_projected_steps_complete_a_matrix_to_its_optimum_and_rank_where_away_steps_do_not(k, gradients):
    best = Completion.optimum()
    start, wanted = Completion.value(0 * best), Completion.value(best)
    some = (Completion.mask, Completion.noisy, Completion.radius, 0 * best)
    values, x = nuclear_fit(*some, gradients, "projected", in_face_steps=k)
    assert values[-1] - wanted <= 1e-6 * start
    assert rank(x) == rank(best)
    away, _ = nuclear_fit(*some, gradients, "away")
    assert away[-1] - wanted > 1e-3 * start


class Quadratic:
    """``1/2 |A x - b|^2`` over a set, with the set's own projection for the oracle; the optimum lies on a face."""

    def __init__(self, set_, shape, seed=0):
        rng, n = np.random.default_rng(seed), int(np.prod(shape))
        self.set, self.shape = set_, shape
        self.A = torch.tensor(rng.normal(size=(3 * n, n)) / (3 * n) ** 0.5)
        self.b = self.A @ torch.tensor(rng.normal(size=n) * (rng.random(n) < 0.4))
        self.L = float(torch.linalg.eigvalsh(self.A.T @ self.A)[-1])
        best = minimise(
            lambda x: self.gradient(torch.tensor(x)).numpy(),
            lambda x: set_.project(torch.tensor(x)).numpy(),
            set_.project(torch.zeros(shape, dtype=torch.float64)).numpy(),
            self.L,
        )
        self.best = torch.tensor(best)

    def value(self, x):
        return float((self.A @ x.flatten() - self.b).square().sum() / 2)

    def gradient(self, x):
        return (self.A.T @ (self.A @ x.flatten() - self.b)).reshape(self.shape)

    def fit(self, steps, **options):
        p = torch.nn.Parameter(self.set.project(torch.zeros(self.shape, dtype=torch.float64)))
        opt = inface.FrankWolfe([{"params": [p], "set": self.set}], lr=1 / (2 * self.L), **options)
        for _ in range(steps):
            p.grad = self.gradient(p.detach())
            opt.step()
        return p.detach()


PROBLEMS = {
    "l1": lambda: Quadratic(L1Ball(2.0, per="tensor"), (30,)),
    "simplex": lambda: Quadratic(Simplex(1.5, per="tensor"), (30,)),
    "group": lambda: Quadratic(GroupL1Ball(2.0), (10, 3)),
    "box": lambda: Quadratic(LInfBall(0.3, per="tensor"), (30,)),
    "k-sparse": lambda: Quadratic(KSparsePolytope(0.4, k=4, per="tensor"), (30,)),
}


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("name", PROBLEMS)
def test_projected_steps_reach_an_optimum_on_a_face_to_one_part_in_a_million(name, k):
    problem = PROBLEMS[name]()
    assert float(problem.set.norm(problem.best)[0]) == pytest.approx(problem.set.radius, rel=1e-9), "on the boundary"
    x = problem.fit(1500, in_face="projected", in_face_steps=k)
    start = problem.value(problem.set.project(0 * x))
    assert problem.value(x) - problem.value(problem.best) <= 1e-6 * start
    if name in ("l1", "simplex", "group"):
        assert torch.equal(x == 0, problem.best.abs() < 1e-9), "the support of the optimum"


@pytest.mark.parametrize("start", ["zero", "full rank"])
@pytest.mark.parametrize("in_face", ["away", "pairwise", "projected"])
def test_in_face_steps_project_a_matrix_onto_a_nuclear_ball_and_reach_its_rank(in_face, start):
    u, _, vt = np.linalg.svd(np.random.default_rng(1).normal(size=(12, 9)), full_matrices=False)
    target = (u * [3.0, 2.0, 1.2, 0.4, 0.3, 0.2, 0.1, 0.05, 0.02]) @ vt
    best = project_nuclear(target, 4.0)
    x = 4.0 / 9 * u @ vt if start == "full rank" else 0 * target
    values, end = nuclear_fit(np.ones((12, 9)), target, 4.0, x, 300, in_face)
    _, plain = nuclear_fit(np.ones((12, 9)), target, 4.0, x, 300, None)
    assert np.abs(end - best).max() <= 1e-5
    assert values[-1] - ((best - target) ** 2).sum() / 2 <= 1e-9 * (target**2).sum() / 2
    assert rank(end) == rank(best) == 3
    if start == "full rank":
        assert rank(plain) == 9
