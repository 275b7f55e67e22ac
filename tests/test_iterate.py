"""The output rule, the batches and the bound of the theorems."""

import collections

import pytest
import torch
from torch.nn import Parameter
from torch.utils.data import DataLoader, TensorDataset

import inface
from inface.batches import RandomBatches, constant, growing
from inface.theory import squared_gap_bound


def follow(seed, gradients, in_face=None):
    p = Parameter(torch.zeros(1))
    opt = inface.FrankWolfe([p], lr=1.0, in_face=in_face)
    iterate = inface.RandomIterate(opt, torch.Generator().manual_seed(seed))
    for _ in range(gradients):
        p.grad = -torch.ones(1)
        opt.step()
    return p, opt, iterate


def test_every_iterate_is_drawn_equally_often():
    draws = collections.Counter(follow(seed, 4)[2].index for seed in range(2000))
    assert sorted(draws) == [0, 1, 2, 3, 4]
    # Five standard deviations of a binomial with p = 1/5.
    assert all(abs(n - 400) < 5 * (2000 * 0.2 * 0.8) ** 0.5 for n in draws.values())


def test_the_snapshot_is_the_iterate_of_its_index_and_can_be_restored():
    for seed in range(20):
        p, _, iterate = follow(seed, 5)
        assert iterate.snapshot[0].item() == iterate.index
        assert iterate.restore_() == iterate.index
        assert p.item() == iterate.index


def test_with_in_face_steps_an_iteration_is_two_gradients():
    _, _, iterate = follow(0, 7, in_face="away")
    assert iterate.count == 1 + 3


def test_steps_that_move_nothing_are_not_iterations():
    p, opt, iterate = follow(0, 2)
    p.grad = None
    opt.step()
    p.grad = torch.ones(1)
    opt.param_groups[0]["lr"] = 0.0
    opt.step()
    assert iterate.count == 3


def test_it_stops_following_when_detached():
    p, opt, iterate = follow(0, 2)
    iterate.detach()
    p.grad = torch.ones(1)
    opt.step()
    assert iterate.count == 3


def test_it_goes_on_where_it_stopped():
    _, _, straight = follow(3, 10)
    p, opt, first = follow(3, 5)
    second = inface.RandomIterate(opt, torch.Generator())
    first.detach()
    second.load_state_dict(first.state_dict())
    for _ in range(5):
        p.grad = -torch.ones(1)
        opt.step()
    assert (second.index, second.snapshot) == (straight.index, straight.snapshot)
    with pytest.raises(ValueError, match="wanted a snapshot of shapes"):
        second.load_state_dict({**first.state_dict(), "snapshot": [torch.zeros(2)]})


def test_it_draws_from_a_stream_of_its_own():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    _, opt, _ = follow(0, 0)
    inface.RandomIterate(opt)
    assert torch.equal(torch.rand(3), expected)


def test_batches_have_their_schedules_sizes_and_repeat_samples():
    batches = list(
        RandomBatches(5, growing(2.0), iterations=4, gradients=2, generator=torch.Generator().manual_seed(0))
    )
    assert [len(batch) for batch in batches] == [1, 1, 2, 2, 4, 4, 6, 6]
    assert len(set(batches[-1])) < 6
    assert all(0 <= i < 5 for batch in batches for i in batch)


def test_batches_feed_a_data_loader():
    data = TensorDataset(torch.arange(10.0))
    loader = DataLoader(data, batch_sampler=RandomBatches(10, constant(4), iterations=3))
    assert [len(batch[0]) for batch in loader] == [4, 4, 4]


@pytest.mark.parametrize("in_face", [False, True])
def test_the_bound_is_the_papers(in_face):
    K, L, initial, sigma, kappa = 7, 3.0, 2.0, 0.7, 1.5
    sizes = [max(1, k) for k in range(K + 1)]
    expected = 8 * L * initial / (K + 1) + 4 * (2 if in_face else 1) * kappa**2 * sigma**2 / (K + 1) * sum(
        1 / b for b in sizes
    )
    options = {"L": L, "initial": initial, "sigma": sigma, "kappa": kappa, "in_face": in_face}
    assert squared_gap_bound(K, batch_sizes=sizes, **options) == pytest.approx(expected, rel=1e-14)
    assert squared_gap_bound(K, batch_sizes=growing(), **options) == pytest.approx(expected, rel=1e-14)


def test_parameters_that_alternate_out_of_step_do_not_stop_it():
    first, second = Parameter(torch.zeros(1)), Parameter(torch.zeros(1))
    opt = inface.FrankWolfe([first, second], lr=1.0, in_face="away")
    iterate = inface.RandomIterate(opt)
    for k in range(9):
        first.grad, second.grad = torch.ones(1), torch.ones(1) if k else None
        opt.step()
    assert iterate.count == 1 + 4


def test_a_parameter_that_is_added_later_is_named_as_the_trouble():
    p, opt, _ = follow(0, 1)
    opt.add_param_group({"params": [Parameter(torch.zeros(1))]})
    p.grad = torch.ones(1)
    with pytest.raises(ValueError, match="has 2 parameters, had 1"):
        opt.step()
