"""Theorems 2.1 and 3.1 on a non-convex problem whose constants are all known."""

import numpy as np
import pytest
import torch

import inface
from inface.sets import L1Ball, LInfBall

# F(z) = sum_i psi(u_i) with u = W (z - c), psi(u) = u^2 / (1 + u^2) and W orthogonal. psi is not convex, its minimum is
# 0, |psi''| <= psi''(0) = 2 and |psi'| <= psi'(1 / sqrt 3). The centre c is feasible, and on proper faces, so F* = 0.
L, F_STAR = 2.0, 0.0
RADII, BOX = [1.0, 0.2], 0.5
CENTRE = np.array([0.6, -0.4, 0.0, 0.0, 0.0, 0.2, 0.5, 0.1, 1.0, -1.0, 0.5, 0.0])
START = np.array([-1.0, 0.0, 0.0, 0.1, 0.0, 0.0, -0.5, -0.5, 0.0, 0.0, 0.0, 1.0])
SIZE = len(CENTRE)
STEEPEST = SIZE**0.5 * (2 / 3**0.5) / (1 + 1 / 3) ** 2
W = np.linalg.qr(np.random.default_rng(0).normal(size=(SIZE, SIZE)))[0]
SEEDS = 20


BOTH_PATHS = True


def objective(z):
    u = (z - CENTRE) @ W.T
    return (u**2 / (1 + u**2)).sum(-1)


def gradient(z):
    u = (z - CENTRE) @ W.T
    return (2 * u / (1 + u**2) ** 2) @ W


def constants(sigma):
    """``C_i`` of the three blocks by (A4-B); the gradient of a sample is its mean plus noise of norm sigma."""
    diameters = np.array([2 * RADII[0], 2 * RADII[1], 2 * BOX * 2**0.5])
    return np.maximum(2 * L * diameters**2, (STEEPEST + sigma) * diameters)


def gap(z, sigma):
    """Definition 2.1 with ``C = sum C_i``: the support functions of two l1 balls and of a box, and a gradient norm."""
    g = gradient(z)
    supports = RADII[0] * np.abs(g[..., 0:3]).max(-1) + RADII[1] * np.abs(g[..., 3:6]).max(-1)
    supports = supports + BOX * np.abs(g[..., 6:8]).sum(-1)
    inner = (g[..., :8] * z[..., :8]).sum(-1) + supports
    return inner * np.sqrt(2 * L / constants(sigma).sum()) + np.linalg.norm(g[..., 8:], axis=-1)


def bound(K, sigma, batch, in_face):
    """The right-hand side; l2 norms, so kappa = 1."""
    alpha_ad = 1 if in_face is None else 2
    noise = 4 * alpha_ad * sigma**2 * sum(1 / batch(k) for k in range(K + 1))
    return (8 * L * (objective(START) - F_STAR) + noise) / (K + 1)


class Runs:
    """Twenty independent runs as the blocks of one optimizer: a seed is two rows, a box and a row of free numbers."""

    def __init__(self, sigma, in_face, lr=1 / (2 * L), **options):
        z = np.tile(START, (SEEDS, 1))
        self.rows, self.box, self.free = (
            torch.nn.Parameter(torch.tensor(part)) for part in (z[:, :6].reshape(-1, 3), z[:, 6:8], z[:, 8:])
        )
        self.opt = inface.FrankWolfe(
            [
                {"params": [self.rows], "set": L1Ball(torch.tensor(RADII * SEEDS, dtype=torch.float64))},
                {"params": [self.box], "set": LInfBall(BOX)},
                {"params": [self.free]},
            ],
            lr=lr,
            in_face=in_face,
            gradient_bound=STEEPEST + sigma,
            **options,
        )
        self.sigma, self.rng, self.halves = sigma, np.random.default_rng(1), 1 if in_face is None else 2

    def point(self):
        parts = (self.rows.reshape(SEEDS, 6), self.box, self.free)
        return torch.cat([part.detach() for part in parts], 1).numpy()

    def iterate(self, batch):
        for _ in range(self.halves):
            # The mean of `batch` samples of sigma / sqrt(n) (+-1, ..., +-1), which have norm sigma and mean 0.
            noise = 2 * self.rng.binomial(batch, 0.5, (SEEDS, SIZE)) / batch - 1
            g = torch.tensor(gradient(self.point()) + self.sigma / SIZE**0.5 * noise)
            self.rows.grad, self.box.grad, self.free.grad = g[:, :6].reshape(-1, 3), g[:, 6:8], g[:, 8:]
            self.opt.step()

    def mean_squared_gap(self, K, batch):
        """The expectation over the seeds and over an iterate drawn from 0, ..., K."""
        total = 0.0
        for k in range(K + 1):
            total += (gap(self.point(), self.sigma) ** 2).mean()
            self.iterate(batch(k))
        return total / (K + 1)


SCHEDULES = {
    "b_k = 1": lambda _: lambda _: 1,
    "b_k = K": lambda K: lambda _: K,
    "b_k = k + 1": lambda _: lambda k: k + 1,
}


def test_the_constants_of_the_problem_are_what_they_are_said_to_be():
    rng = np.random.default_rng(2)
    assert objective(CENTRE) == F_STAR
    assert np.abs(CENTRE[0:3]).sum() == RADII[0]
    assert np.abs(CENTRE[3:6]).sum() == RADII[1]
    assert np.abs(CENTRE[6:8]).max() == BOX
    centre, w = torch.tensor(CENTRE), torch.tensor(W)

    def torch_objective(z):
        u = w @ (z - centre)
        return (u**2 / (1 + u**2)).sum()

    spectra = [
        torch.linalg.eigvalsh(torch.autograd.functional.hessian(torch_objective, torch.tensor(CENTRE + shift)))
        for shift in (0 * CENTRE, *rng.normal(size=(50, SIZE)))
    ]
    assert float(spectra[0].max()) == pytest.approx(L, rel=1e-12)
    assert max(float(values.abs().max()) for values in spectra) <= L * (1 + 1e-12)
    assert min(float(values.min()) for values in spectra) < -0.1, "the problem must not be convex"
    assert np.linalg.norm(gradient(CENTRE + rng.normal(size=(1000, SIZE))), axis=1).max() <= STEEPEST
    z = torch.tensor(START, requires_grad=True)
    torch_objective(z).backward()
    assert np.abs(z.grad.numpy() - gradient(START)).max() <= 1e-15


@pytest.mark.parametrize("sigma", [0.3, 3.0])
@pytest.mark.parametrize("z", [START, 0.3 * START + 0.7 * CENTRE], ids=["start", "near"])
def test_modified_gap_is_definition_2_1(z, sigma):
    class Problem(torch.nn.Module):
        def __init__(self):
            super().__init__()
            parts = (z[:6].reshape(2, 3), z[6:8], z[8:])
            self.rows, self.box, self.free = (torch.nn.Parameter(torch.tensor(part)) for part in parts)

        def forward(self, inputs):
            return torch.cat([self.rows.flatten(), self.box, self.free]) - inputs

    def loss(shift, _):
        u = torch.tensor(W) @ shift
        return (u**2 / (1 + u**2)).sum()

    model = Problem()
    sets = {"rows": L1Ball(torch.tensor(RADII, dtype=torch.float64)), "box": LInfBall(BOX)}
    opt = inface.FrankWolfe(model, sets, lr=1 / (2 * L), gradient_bound=STEEPEST + sigma)
    found = inface.modified_gap(model, loss, [(torch.tensor(CENTRE), torch.zeros(1))], opt)
    assert float(found) == pytest.approx(gap(z, sigma), rel=1e-13)


@pytest.mark.parametrize("in_face", [None, "away", "projected"])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("sigma", [0.3, 3.0])
def test_the_averaged_squared_gap_stays_under_the_bound(sigma, schedule, in_face):
    for K in (10, 160):
        batch, runs = SCHEDULES[schedule](K), Runs(sigma, in_face)
        limit = bound(K, sigma, batch, in_face)
        assert runs.mean_squared_gap(K, batch) <= limit
        assert runs.opt.report().clamped == 0
        known = {"L": L, "initial": objective(START) - F_STAR, "sigma": sigma, "optimizer": runs.opt}
        assert inface.theory.squared_gap_bound(K, batch_sizes=batch, **known) == pytest.approx(limit, rel=1e-12)


@pytest.mark.parametrize("in_face", [None, "away", "projected"])
@pytest.mark.parametrize("sigma", [0.3, 3.0])
def test_the_averaged_squared_gap_falls_like_1_over_k_when_the_batch_is_k(sigma, in_face):
    Ks = [10, 40, 160, 640]
    gaps = [Runs(sigma, in_face).mean_squared_gap(K, SCHEDULES["b_k = K"](K)) for K in Ks]
    for K, found in zip(Ks, gaps, strict=True):
        assert found <= bound(K, sigma, SCHEDULES["b_k = K"](K), in_face)
    assert np.polyfit(np.log(Ks), np.log(gaps), 1)[0] < -0.9
    if sigma > 1:
        noisy = [Runs(sigma, in_face).mean_squared_gap(K, SCHEDULES["b_k = 1"](K)) for K in Ks[:3]]
        assert np.polyfit(np.log(Ks[:3]), np.log(noisy), 1)[0] > -0.5, "with one sample a gradient the noise must show"


@pytest.mark.parametrize("in_face", [None, "away", "projected"])
@pytest.mark.parametrize(
    "wrong",
    [{"lr": 8 / (2 * L)}, {"lr": 0.1 / (2 * L)}, {"maximize": True}],
    ids=["step 8 times too long", "step 10 times too short", "wrong sign"],
)
def test_the_bound_is_tight_enough_that_a_wrong_step_breaks_it(wrong, in_face):
    K, sigma = 160, 0.3
    runs, batch = Runs(sigma, in_face, **wrong), SCHEDULES["b_k = K"](K)
    assert runs.mean_squared_gap(K, batch) > 2 * bound(K, sigma, batch, in_face)
    assert runs.opt.report().clamped == 0
