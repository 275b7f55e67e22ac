"""What the Triton kernels are to do beside what the tests of the CPU kernels ask: run by test_triton.py, interpreted."""

import sys

import pytest
import torch
from torch.nn import Parameter

import inface
from inface.kernels import device, disabled
from inface.sets import GroupL1Ball, L1Ball, LInfBall, NuclearBall, Simplex

SETS = [L1Ball(0.7), Simplex(0.7), LInfBall(0.1), GroupL1Ball(0.7)]
STRATEGIES = [None, "away", "frank-wolfe", "pairwise", "projected"]


def steps(set_, *, fused, shape=(5, 17), dtype=torch.float32, count=6, **options):
    generator = torch.Generator().manual_seed(0)
    p = Parameter(set_.project(torch.randn(shape, generator=generator)).to(dtype))
    options = {"lr": 0.1, "project": dtype is torch.bfloat16, **options}
    opt = inface.FrankWolfe([{"params": [p], "set": set_}], fused=fused, **options)
    for _ in range(count):
        p.grad = torch.randn(shape, generator=generator).to(dtype)
        opt.step()
    return p.detach(), opt


def assert_same(set_, **options):
    (p, one), (q, two) = (steps(set_, fused=fused, **options) for fused in (None, False))
    torch.testing.assert_close(p, q, rtol=0, atol=1e-5)
    assert torch.equal(p == 0, q == 0)
    found, wanted = one.report(), two.report()
    assert str(found).split("|")[1] == str(wanted).split("|")[1]
    torch.testing.assert_close(found.gap.value, wanted.gap.value, rtol=1e-5, atol=1e-6)


def test_a_step_goes_through_triton_unless_it_is_told_not_to():
    x = torch.zeros(2, 3, 1)
    assert device.takes(L1Ball(1.0), x, "away")
    assert "inface.kernels.triton_rows" in sys.modules
    assert not device.takes(NuclearBall(1.0), torch.zeros(1, 2, 3), None)
    assert not device.takes(L1Ball(1.0), x.half(), None)
    assert not device.takes(L1Ball(1.0), torch.zeros(1, device.LONGEST + 1, 1), None)
    with disabled():
        assert not device.takes(L1Ball(1.0), x, "away")


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("set_", SETS, ids=lambda set_: set_.kind)
def test_relative_steps_several_in_face_steps_and_rows_of_several_pieces_agree(set_, strategy, monkeypatch):
    assert_same(set_, in_face=strategy, shape=(3, 20), relative=1.0, lr=0.3, in_face_steps=2, momentum=0.5, count=4)
    # As rows of thousands of entries do, and blocks of thousands of groups.
    monkeypatch.setattr(device, "PIECE", 16)
    shape = (35, 2) if isinstance(set_, GroupL1Ball) else (2, 67)
    assert_same(set_, in_face=strategy, shape=shape, momentum=0.9, count=2)


@pytest.mark.parametrize(
    "set_", [L1Ball(0.7, norm="l1"), Simplex(0.7, norm="l1"), LInfBall(0.1, norm="l1")], ids=lambda s: s.kind
)
def test_projected_steps_measured_in_l1_may_end_on_the_way(set_):
    assert_same(set_, in_face="projected", lr=0.1, shape=(3, 20))
    assert_same(set_, in_face="projected", lr=0.1, shape=(3, 20), momentum=0.9)


@pytest.mark.parametrize("strategy", ["away", "projected"])
def test_blocks_of_inputs_free_blocks_joint_blocks_and_half_precision_agree(strategy):
    radii = torch.tensor([1.0, float("inf"), 0.5, 1.0, float("inf")])
    assert_same(L1Ball(0.7, per="input"), in_face=strategy, momentum=0.9)
    assert_same(L1Ball(radii), in_face=strategy, momentum=0.9)
    assert_same(LInfBall(torch.linspace(0.05, 0.1, 5)), in_face=strategy)
    assert_same(L1Ball(0.7), in_face=strategy, dtype=torch.bfloat16)


def test_autograd_is_told_of_the_memory_that_a_kernel_writes():
    p = Parameter(torch.zeros(2, 3))
    opt = inface.FrankWolfe([{"params": [p], "set": L1Ball(1.0)}], lr=0.1)
    loss = p.square().sum()
    loss.backward(retain_graph=True)
    p.grad = torch.ones(2, 3)
    opt.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
