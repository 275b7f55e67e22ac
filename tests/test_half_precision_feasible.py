"""Half-precision parameters: the set is that of their float32 copies, with float32's tolerance, from the start."""

import pytest
import torch
from torch import nn

import inface
from inface.sets import GroupL1Ball, KSparsePolytope, L1Ball, L2Ball, LInfBall, NuclearBall, SpectralBall

SETS = [
    L1Ball(1.3),
    LInfBall(0.3),
    GroupL1Ball(1.3),
    L2Ball(1.3),
    KSparsePolytope(0.3, k=3),
    NuclearBall(1.3),
    SpectralBall(1.3),
]
every_set = pytest.mark.parametrize("set_", SETS, ids=lambda set_: set_.kind)
half = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])


def outside(set_, dtype, factor):
    x = torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
    return nn.Parameter((factor * set_.project(10 * x)).to(dtype))


@every_set
@half
def test_a_start_five_percent_outside_is_refused(set_, dtype):
    with pytest.raises(ValueError, match="starts outside"):
        inface.FrankWolfe([{"params": [outside(set_, dtype, 1.05)], "set": set_}], lr=0.1)


@every_set
@half
def test_project_puts_it_inside_in_its_own_precision(set_, dtype):
    p = outside(set_, dtype, 1.05)
    inface.FrankWolfe([{"params": [p], "set": set_}], lr=0.1, project=True)
    assert bool((set_.norm(p.detach().double()) <= set_.radius * (1 + 1e-6)).all())
    assert bool((set_.norm(p.detach().double()) >= set_.radius * 0.95).all())


@every_set
@half
@pytest.mark.parametrize("fused", [None, False])
def test_what_is_written_back_is_in_the_set_at_every_step(set_, dtype, fused):
    p = outside(set_, dtype, 1.0)
    opt = inface.FrankWolfe(
        [{"params": [p], "set": set_}], lr=1.0, in_face="away" if set_.has_faces else None, project=True, fused=fused
    )
    generator = torch.Generator().manual_seed(1)
    for _ in range(30):
        p.grad = torch.randn(5, 40, generator=generator).to(dtype)
        opt.step()
        for x in (p.detach(), opt.state[p]["master"]):
            assert bool((set_.norm(x.double()) <= set_.radius * (1 + 1e-6)).all())
        torch.testing.assert_close(p.float(), opt.state[p]["master"], rtol=0.05, atol=1e-3)


@half
def test_blocks_that_do_not_move_are_inside_too(dtype):
    set_ = L1Ball(1.3)
    p = outside(set_, dtype, 1.05)
    opt = inface.FrankWolfe([{"params": [p], "set": set_}], lr=0.1, project=True)
    p.grad = torch.zeros_like(p)
    opt.step()
    assert bool((set_.norm(p.detach().double()) <= set_.radius * (1 + 1e-6)).all())


@half
def test_the_graph_initialisation_is_a_start(dtype):
    model = nn.Sequential(nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 7)).to(dtype)
    groups = inface.param_groups(model, {"*.weight": L1Ball(1.3)})
    inface.graph_init_(model, groups)
    inface.FrankWolfe(groups, lr=0.1)
    for layer in (model[0], model[2]):
        assert bool((layer.weight.double().abs().sum(1) <= 1.3 * (1 + 1e-6)).all())


@half
def test_rounding_into_a_set_is_to_the_nearest_where_that_is_inside(dtype):
    x = 0.01 * torch.randn(4, 6, 1)
    assert torch.equal(L1Ball(1.0).round_into(x, dtype), x.to(dtype))


@every_set
@half
def test_what_is_inside_stays_bit_for_bit_when_an_optimizer_is_made_for_it(set_, dtype):
    """As when a run is resumed: the weights are loaded before their optimizer is made."""
    p = outside(set_, dtype, 1.0)
    in_face = "pairwise" if set_.has_faces else None
    opt = inface.FrankWolfe([{"params": [p], "set": set_}], lr=5.0, in_face=in_face, project=True)
    generator = torch.Generator().manual_seed(1)
    for _ in range(7):
        p.grad = torch.randn(5, 40, generator=generator).to(dtype)
        opt.step()
        q = nn.Parameter(p.detach().clone())
        inface.FrankWolfe([{"params": [q], "set": set_}], lr=5.0, in_face=in_face, project=True)
        assert torch.equal(p, q)
