"""The fast paths follow ``inface.reference``, which is Algorithm 1 as the paper prints it, step by step."""

import pytest
import torch

import inface
from inface import kernels, reference
from inface.sets import L1Ball, LInfBall

ROWS, COLUMNS, ITERATIONS, LR = 12, 40, 150, 0.15


class Problem:
    """Noisy gradients of a function of a matrix ``x`` and free parameters ``y`` that is neither convex nor separable."""

    def __init__(self, dtype):
        self.generator = torch.Generator().manual_seed(0)
        self.dtype = dtype
        self.radius = torch.linspace(0.3, 3, ROWS, dtype=dtype)
        self.inputs, self.outputs = self.draw(60, COLUMNS), self.draw(60, ROWS)
        self.x, self.y = L1Ball(self.radius).project(self.draw(ROWS, COLUMNS)), self.draw(ROWS)

    def draw(self, *shape):
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64).to(self.dtype)

    def gradients(self):
        """A function of ``x`` and ``y`` that samples anew at every call; each run has one of its own, with the same samples."""
        generator = torch.Generator().manual_seed(1)

        def gradient(x, y):
            rows = torch.randint(60, (20,), generator=generator)
            x, y = (z.detach().clone().requires_grad_() for z in (x, y))
            missed = torch.tanh(self.inputs[rows] @ x.T / 3) * y - self.outputs[rows]
            return torch.autograd.grad(missed.square().sum(1).mean(), (x, y))

        return gradient


def follow(problem, in_face, fused):
    """Yields both points after every iteration of both, and the optimizer."""
    p, q = (torch.nn.Parameter(z.clone()) for z in (problem.x, problem.y))
    groups = [{"params": [p], "set": L1Ball(problem.radius)}, {"params": [q]}]
    opt = inface.FrankWolfe(groups, LR, in_face=in_face, fused=fused)
    x, y = problem.x, problem.y
    ours, theirs = problem.gradients(), problem.gradients()
    for _ in range(ITERATIONS):
        for _ in range(1 if in_face is None else 2):
            p.grad, q.grad = ours(p, q)
            opt.step()
        x, y = reference.algorithm_1(x, y, theirs, problem.radius, LR, 1, away=in_face == "away")
        yield (p.detach(), q.detach()), (x, y), opt


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("in_face", [None, "away"])
@pytest.mark.parametrize("fused", [True, False])
def test_constrained_and_free_parameters_follow_the_reference(fused, in_face, dtype):
    near = 1000 * torch.finfo(dtype).eps
    problem = Problem(dtype)
    for (p, q), (x, y), opt in follow(problem, in_face, fused):  # noqa: B007 - its report, at the end
        assert torch.equal(p != 0, x != 0)
        torch.testing.assert_close(p, x, rtol=0, atol=near * float(problem.radius.max()))
        torch.testing.assert_close(q, y, rtol=near, atol=near)
    report = opt.report()
    assert report.frank_wolfe > 0
    if in_face == "away":
        assert report.drop > 100


def random_rows(generator, rows=400, columns=5):
    """Points of balls of radius 1: vertices, faces of every dimension, just inside, and deep inside; gradients with ties."""
    x = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    x = x * (torch.rand(rows, columns, generator=generator) < 0.6)
    x[:20] = torch.eye(columns).repeat(4, 1)
    x = L1Ball(1.0).project(x * torch.tensor([0.05, 50.0]).repeat(rows // 2).unsqueeze(1))
    g = torch.randint(-3, 4, (rows, columns), generator=generator).double()
    g[::7] = 0
    return x, g


@pytest.mark.parametrize("lr", [1e-3, 0.3, 1e6])
@pytest.mark.parametrize("fused", [True, False])
def test_single_steps_from_vertices_faces_and_inside_are_those_of_the_reference(fused, lr):
    x, g = random_rows(torch.Generator().manual_seed(2))
    h = g.roll(1, 0)
    p = torch.nn.Parameter(x.clone())
    opt = inface.FrankWolfe([{"params": [p], "set": L1Ball(1.0)}], lr, in_face="away", fused=fused)
    r = torch.ones(1, 1, dtype=torch.float64)
    for gradient, step in ((g, reference.frank_wolfe_step), (h, reference.away_step)):
        p.grad = gradient
        opt.step()
        x = step(x, gradient, r, lr)
        assert torch.equal(p != 0, x != 0)
        torch.testing.assert_close(p.detach(), x, rtol=0, atol=1e-14)


def test_a_zero_gradient_leaves_the_reference_where_it_is():
    x, _ = random_rows(torch.Generator().manual_seed(3))
    for step in (reference.frank_wolfe_step, reference.away_step):
        assert torch.equal(step(x, torch.zeros_like(x), torch.ones_like(x[:1, :1]), 0.5), x)


def test_an_optimizer_of_another_set_leaves_the_reference():
    """The comparison can fail."""
    problem = Problem(torch.float64)
    p = torch.nn.Parameter(problem.x.clone())
    opt = inface.FrankWolfe([{"params": [p], "set": LInfBall(problem.radius)}], LR)
    p.grad, _ = problem.gradients()(problem.x, problem.y)
    opt.step()
    x, _ = reference.algorithm_1(problem.x, problem.y, problem.gradients(), problem.radius, LR, 1, away=False)
    assert not torch.allclose(p, x)


def test_the_runs_with_kernels_use_them():
    assert kernels.available(L1Ball(1.0), torch.float32) is not None
    assert kernels.available(L1Ball(1.0), torch.float64) is not None
