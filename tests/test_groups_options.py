"""Options that a user of torch.optim expects: a learning rate per group, weight decay, and answers to what is missing."""

import pytest
import torch
from torch import nn

import inface
from inface.sets import GroupL1Ball, KSparsePolytope, L1Ball, L2Ball, LInfBall, NuclearBall, Simplex, SpectralBall


def parameter(*shape, seed=0):
    return nn.Parameter(0.1 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed)))


def test_a_learning_rate_per_group_is_enough():
    w, b = parameter(2, 3), parameter(2)
    opt = inface.FrankWolfe([{"params": [w], "set": L1Ball(1.0), "lr": 0.5}, {"params": [b], "lr": 0.25}])
    before = b.detach().clone()
    w.grad, b.grad = torch.ones(2, 3), torch.ones(2)
    opt.step()
    assert [group["lr"] for group in opt.param_groups] == [0.5, 0.25]
    torch.testing.assert_close(b.detach(), before - 0.25)
    scheduler = torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.5)
    opt.step()
    scheduler.step()
    assert [group["lr"] for group in opt.param_groups] == [0.25, 0.125]


def test_a_group_without_a_learning_rate_is_named_whenever_it_comes():
    with pytest.raises(TypeError, match=r"lr is missing; .* \(give it to the optimizer, or to every group\)"):
        inface.FrankWolfe([{"params": [parameter(2)], "lr": 0.5}, {"params": [parameter(2)]}])
    with pytest.raises(TypeError, match="lr is missing"):
        inface.FrankWolfe([parameter(2)])
    opt = inface.FrankWolfe([{"params": [parameter(2)], "lr": 0.5}])
    with pytest.raises(ValueError, match=r"lr is missing, neither the optimizer nor the group has one \(group 1\)"):
        opt.add_param_group({"params": [parameter(2)]})
    assert len(opt.param_groups) == 1


@pytest.mark.parametrize("set_", [L1Ball, Simplex, LInfBall, L2Ball, GroupL1Ball, NuclearBall, SpectralBall])
def test_a_set_without_a_radius_says_what_it_wants(set_):
    with pytest.raises(ValueError, match=f"{set_.__name__}: radius must be given, a number > 0 or a tensor"):
        set_()


def test_a_k_sparse_polytope_without_k_says_what_it_wants():
    with pytest.raises(ValueError, match="KSparsePolytope: k must be a whole number >= 1, got None"):
        KSparsePolytope(1.0)


@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1)], ids=["float", "tensor"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weight_decay_is_decoupled_and_for_free_parameters_only(lr, dtype):
    w, b, plain = (parameter(2, 3).to(dtype) for _ in range(3))
    w, b, plain = nn.Parameter(w.detach()), nn.Parameter(b.detach()), nn.Parameter(plain.detach())
    opt = inface.FrankWolfe([{"params": [w], "set": L1Ball(1.0)}, {"params": [b]}], lr=lr, weight_decay=0.5)
    same = inface.FrankWolfe([{"params": [plain], "set": L1Ball(1.0)}], lr=lr)
    expected = b.detach().float().clone()
    for seed in range(5):
        g = torch.randn(2, 3, generator=torch.Generator().manual_seed(seed)).to(dtype)
        w.grad, b.grad, plain.grad = g.clone(), g.clone(), g.clone()
        opt.step()
        same.step()
        expected = expected * (1 - 0.1 * 0.5) - 0.1 * g.float()
    assert torch.equal(w, plain)
    torch.testing.assert_close(b.detach().float(), expected, rtol=1e-5 if dtype is torch.float32 else 1e-2, atol=1e-6)


def test_without_momentum_it_is_what_adamw_does_to_weights_beside_its_step():
    """With a zero gradient AdamW only decays."""
    p, q = parameter(4), parameter(4)
    ours = inface.FrankWolfe([p], lr=0.1, weight_decay=0.3)
    adamw = torch.optim.AdamW([q], lr=0.1, weight_decay=0.3)
    for _ in range(3):
        p.grad, q.grad = torch.zeros(4), torch.zeros(4)
        ours.step()
        adamw.step()
    torch.testing.assert_close(p, q)


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf"), "0.1", True])
def test_what_is_no_weight_decay_is_refused(value):
    with pytest.raises(ValueError, match="weight_decay must be >= 0 and finite"):
        inface.FrankWolfe([parameter(2)], lr=0.1, weight_decay=value)


def test_a_checkpoint_from_before_weight_decay_loads():
    p = parameter(3)
    opt = inface.FrankWolfe([p], lr=0.1, weight_decay=0.2)
    saved = opt.state_dict()
    del saved["param_groups"][0]["weight_decay"]
    opt.load_state_dict(saved)
    p.grad = torch.zeros(3)
    opt.step()
    assert opt.param_groups[0]["weight_decay"] == 0.2


def test_kappa_counts_a_group_set_as_one_block_and_free_blocks_under_the_norm_of_their_group():
    params = [parameter(2, 3), parameter(10)]
    joint = inface.FrankWolfe([{"params": params, "set": L1Ball(9.0, per="group", norm="l1")}], lr=0.1)
    assert inface.theory.kappa(joint) == pytest.approx(4.0)  # the root of all 16 entries
    mixed = L1Ball(torch.tensor([9.0, torch.inf]))
    free = inface.FrankWolfe([{"params": [parameter(2, 4)], "set": mixed, "norm": "linf"}], lr=0.1)
    assert inface.theory.kappa(free) == pytest.approx(2.0)  # the root of the 4 entries of the free node
