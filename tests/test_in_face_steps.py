"""Several second halves after each first half."""

import copy

import numpy as np
import pytest
import torch
from torch.nn import Parameter

import inface
from inface.sets import L1Ball, LInfBall

BOTH_PATHS = True


def gradients(count, shape=(3, 5)):
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(0))


def make(in_face="away", **options):
    p, free = Parameter(L1Ball(1.0).project(torch.full((3, 5), 0.5))), Parameter(torch.zeros(2))
    groups = [{"params": [p], "set": L1Ball(1.0)}, {"params": [free]}]
    return p, free, inface.FrankWolfe(groups, lr=0.1, in_face=in_face, **options)


def step(p, free, opt, g):
    p.grad, free.grad = g.clone(), torch.ones(2)
    opt.step()


@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("in_face", ["away", "frank-wolfe", "pairwise", "projected", "function"])
def test_k_in_face_halves_follow_each_first_half(in_face, k):
    def projected(set_, x, g):
        return torch.zeros_like(x)

    p, free, opt = make(projected if in_face == "function" else in_face, in_face_steps=k)
    phases, moves = [], []
    for g in gradients(3 * (k + 1)):
        before = free.detach().clone()
        step(p, free, opt, g)
        phases.append(opt.state[p]["phase"])
        assert opt.state[free]["phase"] == phases[-1]
        moves.append(not torch.equal(free, before))
    assert phases == [*range(1, k + 1), 0] * 3
    assert moves == ([True] + [False] * k) * 3, "free parameters move on first halves only"
    report = opt.report()
    assert report.frank_wolfe == 9
    assert report.in_face <= 9 * k


def test_one_iteration_is_its_halves_one_by_one():
    p, free, opt = make("projected", in_face_steps=3, momentum=0.5)
    q, other, single = make("projected", momentum=0.5)
    for number, g in enumerate(gradients(8)):
        step(p, free, opt, g)
        single.state[q]["phase"] = single.state[other]["phase"] = min(number % 4, 1)
        step(q, other, single, g)
        assert torch.equal(p, q)
        assert torch.equal(free, other)


def test_with_every_gradient_free_parameters_move_with_each_of_them():
    p, free, opt = make(in_face_steps=3, every_gradient=True)
    for g in gradients(4):
        step(p, free, opt, g)
    np.testing.assert_allclose(free.detach(), [-0.4, -0.4], rtol=1e-6)


@pytest.mark.parametrize("stop", range(8))
def test_a_run_resumed_anywhere_in_an_iteration_goes_on_bit_for_bit(stop):
    p, free, opt = make("projected", in_face_steps=3, momentum=0.9)
    some = gradients(16)
    for g in some[:stop]:
        step(p, free, opt, g)
    q, other, again = make("projected", in_face_steps=3, momentum=0.9)
    q.data, other.data = p.detach().clone(), free.detach().clone()
    again.load_state_dict(copy.deepcopy(opt.state_dict()))
    for g in some[stop:]:
        step(p, free, opt, g)
        step(q, other, again, g)
        assert torch.equal(p, q)
        assert torch.equal(free, other)


def test_a_state_from_before_the_option_loads_with_one_in_face_step():
    p, free, opt = make("away")
    step(p, free, opt, gradients(1)[0])
    saved = opt.state_dict()
    for group in saved["param_groups"]:
        del group["in_face_steps"]
    q, other, again = make("away", in_face_steps=4)
    again.load_state_dict(saved)
    assert [group["in_face_steps"] for group in again.param_groups] == [1, 1]
    step(q, other, again, gradients(1)[0])
    assert again.state[q]["phase"] == 0


def test_the_number_of_steps_belongs_to_a_group_and_may_change_at_any_time():
    p, q = Parameter(torch.zeros(2, 3)), Parameter(torch.zeros(2, 3))
    sets = [{"params": [p], "set": L1Ball(1.0), "in_face_steps": 3}, {"params": [q], "set": LInfBall(1.0)}]
    opt = inface.FrankWolfe(sets, lr=0.1, in_face="away")
    found = []
    for number in range(6):
        if number == 3:
            opt.param_groups[0]["in_face_steps"] = 1
        p.grad = q.grad = torch.ones(2, 3)
        opt.step()
        found.append((opt.state[p]["phase"], opt.state[q]["phase"]))
    # In the phase 3 of an iteration that was cut to 1 second half, a first half comes next.
    assert found == [(1, 1), (2, 0), (3, 1), (1, 0), (0, 1), (1, 0)]


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "2", None])
def test_what_is_no_whole_number_of_at_least_one_is_refused(wrong):
    with pytest.raises(ValueError, match=r"in_face_steps must be a whole number >= 1, got"):
        make(in_face_steps=wrong)


def test_a_random_iterate_is_drawn_from_whole_iterations():
    p, free, opt = make("projected", in_face_steps=3)
    iterate = inface.RandomIterate(opt)
    for g in gradients(12):
        step(p, free, opt, g)
    assert iterate.count == 4


def test_each_in_face_step_adds_its_noise_to_the_bound_of_the_theorem():
    known = {"L": 1.0, "initial": 0.0, "sigma": 1.0, "batch_sizes": 1}
    bounds = []
    for k in (1, 4):
        _, _, opt = make(in_face_steps=k)
        bounds.append(inface.theory.squared_gap_bound(9, optimizer=opt, **known))
    assert bounds == [8.0, 20.0]
    assert inface.theory.squared_gap_bound(9, kappa=1.0, in_face=True, in_face_steps=4, **known) == 20
    with pytest.raises(ValueError, match="in_face_steps must be >= 1, got 0"):
        inface.theory.squared_gap_bound(9, kappa=1.0, in_face=True, in_face_steps=0, **known)
