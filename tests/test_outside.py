"""Weights that somebody else puts outside of their set between two steps."""

import warnings

import pytest
import torch
from torch import nn

import inface
from inface.sets import GroupL1Ball, KSparsePolytope, L1Ball, L2Ball, LInfBall, NuclearBall, Simplex, SpectralBall

SETS = [
    L1Ball(1.0),
    Simplex(1.0),
    LInfBall(0.3),
    GroupL1Ball(1.0),
    L2Ball(1.0),
    KSparsePolytope(0.3, k=2),
    NuclearBall(1.0),
    SpectralBall(1.0),
]
every_set = pytest.mark.parametrize("set_", SETS, ids=lambda set_: set_.kind)
both_paths = pytest.mark.parametrize("fused", [None, False], ids=["fused", "torch"])
both_halves = pytest.mark.parametrize("half", [0, 1], ids=["first half", "second half"])


def make(set_, **options):
    p = nn.Parameter(set_.project(torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).double()))
    in_face = "away" if set_.has_faces else None
    options = {"lr": 0.01, "in_face": in_face} | options
    return p, inface.FrankWolfe([{"params": [("fc.weight", p)], "set": set_}], **options)


def step(p, opt, seed=1):
    p.grad = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed)).double()
    opt.step()


@every_set
@both_paths
@both_halves
def test_it_is_said_once_by_name_and_counted(set_, half, fused):
    p, opt = make(set_, fused=fused)
    for i in range(half):
        step(p, opt, i)
    with torch.no_grad():
        p.mul_(3)
    with pytest.warns(
        UserWarning, match=r"fc\.weight lay outside of the set .* With project=True it is put back"
    ) as found:
        step(p, opt)
    assert found[0].filename == __file__
    assert opt.report().outside > 0
    assert "found outside" in str(opt.report())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(p, opt)


@every_set
@both_paths
@both_halves
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_with_project_a_step_is_that_from_the_projected_point(set_, half, momentum, fused):
    p, opt = make(set_, fused=fused, project=True, momentum=momentum)
    q, reference = make(set_, fused=fused, momentum=momentum)
    for i in range(half):
        step(p, opt, i)
        step(q, reference, i)
    with torch.no_grad():
        p[1:].mul_(3)
        q[1:].mul_(3)
        q.copy_(set_.project(q))
    with pytest.warns(UserWarning, match="lay outside"):
        step(p, opt)
    step(q, reference)
    torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-12)
    assert bool(set_.contains(p.detach()).all())
    assert float(opt.gap) == pytest.approx(float(reference.gap), rel=1e-9)
    a, b = opt.report(), reference.report()
    assert (a.frank_wolfe, a.in_face) == (b.frank_wolfe, b.in_face)


@both_paths
def test_a_dense_state_dict_is_noticed(fused):
    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
    dense = {name: value.clone() for name, value in model.state_dict().items()}
    opt = inface.FrankWolfe(model, {"*.weight": L1Ball(0.1)}, lr=0.1, in_face="away", project=True, fused=fused)
    model.load_state_dict(dense)
    model(torch.randn(5, 8)).sum().backward()
    with pytest.warns(UserWarning, match=r"0\.weight, 2\.weight lay outside"):
        opt.step()
    assert opt.report().outside == 6
    for layer in (model[0], model[2]):
        assert bool((layer.weight.abs().sum(1) <= 0.1 * (1 + 1e-6)).all())


@every_set
@both_paths
def test_what_autograd_does_not_see_is_noticed_too(set_, fused):
    p, opt = make(set_, fused=fused)
    step(p, opt)
    p.data.mul_(3)
    with pytest.warns(UserWarning, match="lay outside"):
        step(p, opt)


def test_negative_entries_of_a_simplex_are_outside():
    p, opt = make(Simplex(1.0))
    with torch.no_grad():
        p.neg_()
    with pytest.warns(UserWarning, match="lay outside"):
        step(p, opt)


@every_set
@both_paths
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_long_run_finds_nothing(set_, fused, dtype):
    start = set_.project(torch.randn(3, 40, generator=torch.Generator().manual_seed(0)))
    p = nn.Parameter(start.to(dtype))
    opt = inface.FrankWolfe(
        [{"params": [p], "set": set_}], lr=1.0, in_face="away" if set_.has_faces else None, fused=fused, project=True
    )
    generator = torch.Generator().manual_seed(1)
    for _ in range(100):
        p.grad = torch.randn(3, 40, generator=generator).to(dtype)
        opt.step()
    assert opt.report().outside == 0


def test_a_weight_that_was_taken_away_and_put_back_is_not_outside():
    p = nn.Parameter(L1Ball(1.0).project(torch.randn(3, 40)).bfloat16())
    opt = inface.FrankWolfe([{"params": [p], "set": L1Ball(1.0)}], lr=1.0, in_face="away", project=True)
    for i in range(20):
        p.grad = torch.randn(3, 40, generator=torch.Generator().manual_seed(i)).bfloat16()
        opt.step()
        held, master = p.detach().clone(), opt.state[p]["master"].clone()
        with torch.no_grad():
            p.mul_(3)  # as an averaged copy swapped in for an evaluation
            p.copy_(held)
        p.grad.zero_()
        opt.step()
        assert torch.equal(opt.state[p]["master"], master)
    assert opt.report().outside == 0


def test_a_function_as_in_face_sees_the_projected_point():
    def toward(set_, x, g):
        assert bool(set_.block_contains(x).all())
        return set_.dense_vertex(g) - x

    p, opt = make(L1Ball(1.0), in_face=toward, project=True)
    step(p, opt, 1)
    with torch.no_grad():
        p.mul_(10)
    with pytest.warns(UserWarning, match="lay outside"):
        step(p, opt, 2)
    assert bool(L1Ball(1.0).contains(p.detach()).all())


@pytest.mark.parametrize("set_", SETS[:5], ids=lambda set_: set_.kind)
@both_paths
def test_a_block_that_is_not_finite_is_skipped_and_not_projected_to_nan(set_, fused):
    p, opt = make(set_, fused=fused, project=True)
    with torch.no_grad():
        p[0] = torch.inf
    step(p, opt)
    assert bool(torch.isinf(p[0]).all())
    assert (opt.report().skipped, opt.report().outside) == (1, 0)


@both_paths
def test_a_set_of_many_layers_is_called_by_the_first_of_them(fused):
    params = [(f"{i}.weight", nn.Parameter(torch.zeros(2, 2))) for i in range(300)]
    opt = inface.FrankWolfe([{"params": params, "set": L1Ball(1.0, per="group")}], lr=0.1, fused=fused)
    for _, p in params:
        p.grad = torch.ones(2, 2)
        p.data.fill_(1.0)
    with pytest.warns(UserWarning, match=r"FrankWolfe: 0\.weight \+ 1\.weight \+ 2\.weight \+ 297 more lay outside"):
        opt.step()


@pytest.mark.parametrize("set_", [*SETS, Simplex(1.0)], ids=lambda set_: set_.kind)
def test_weights_that_were_rounded_elsewhere_are_not_outside(set_):
    """Only the weights of a half-precision model are loaded, into one whose optimizer has stepped."""
    parts = []
    for seed in range(2):
        start = set_.project(torch.randn(6, 300, generator=torch.Generator().manual_seed(seed)))
        p = nn.Parameter(start.bfloat16())
        in_face = "away" if set_.has_faces else None
        opt = inface.FrankWolfe([{"params": [p], "set": set_}], lr=1.0, in_face=in_face, project=True)
        for i in range(3):
            p.grad = torch.randn(6, 300, generator=torch.Generator().manual_seed(10 * seed + i)).bfloat16()
            opt.step()
        parts.append((p, opt))
    (p, opt), (q, _) = parts
    with torch.no_grad():
        p.copy_(q)
    opt.step()
    assert opt.report().outside == 0
