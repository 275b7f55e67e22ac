"""norm="adaptive": free parameters move as under torch's AdamW."""

import copy
import io

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR

import inface
from inface.sets import L1Ball
from inface.theory import kappa

SHAPES = [(4, 3), (5,), (), (2, 3, 2, 2)]
INF = float("inf")


def parameters(dtype=torch.float32, shapes=SHAPES):
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]


def gradients(count, dtype=torch.float32, shapes=SHAPES):
    """Of very different sizes, so that second moments matter."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield [10.0 ** (2 * i - 3) * torch.randn(s, generator=generator).to(dtype) for i, s in enumerate(shapes)]


def give(params, grads):
    for p, g in zip(params, grads, strict=True):
        p.grad = None if g is None else g.clone()


OPTIONS = {
    "defaults": {},
    "weight decay": {"weight_decay": 0.3},
    "maximize": {"maximize": True, "weight_decay": 0.01},
    "betas and eps": {"betas": (0.5, 0.9), "eps": 1e-3},
    "no averages": {"betas": (0.0, 0.0), "eps": 0.1},
}


@pytest.mark.parametrize("ours", [{}, {"in_face": "away", "every_gradient": True}, {"momentum": 0.7}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))
def test_steps_are_those_of_adamw(options, dtype, ours):
    params, theirs = parameters(dtype), parameters(dtype)
    opt = inface.FrankWolfe(params, lr=0.01, norm="adaptive", **options, **ours)
    adamw = torch.optim.AdamW(theirs, lr=0.01, **{"weight_decay": 0.0, **options})
    for grads in gradients(200, dtype):
        give(params, grads)
        give(theirs, grads)
        opt.step()
        adamw.step()
    eps = torch.finfo(dtype).eps
    for p, q in zip(params, theirs, strict=True):
        torch.testing.assert_close(p, q, rtol=32 * eps, atol=32 * eps)
        assert "momentum_buffer" not in opt.state[p]
        for key in ("exp_avg", "exp_avg_sq", "step"):
            torch.testing.assert_close(opt.state[p][key], adamw.state[q][key], rtol=32 * eps, atol=0)


@pytest.mark.parametrize("tensor", [False, True])
@pytest.mark.parametrize("schedule", ["one cycle", "cosine"])
def test_schedulers_act_as_they_do_on_adamw(schedule, tensor):
    params, theirs = parameters(torch.float64), parameters(torch.float64)
    lr = torch.tensor(0.05, dtype=torch.float64) if tensor else 0.05
    opt = inface.FrankWolfe(params, lr=copy.copy(lr), norm="adaptive", weight_decay=0.1)
    adamw = torch.optim.AdamW(theirs, lr=copy.copy(lr), weight_decay=0.1)
    if schedule == "cosine":
        schedulers = [CosineAnnealingLR(each, T_max=50, eta_min=1e-3) for each in (opt, adamw)]
    else:
        schedulers = [OneCycleLR(each, max_lr=0.1, total_steps=60, cycle_momentum=False) for each in (opt, adamw)]
    for grads in gradients(50, torch.float64):
        give(params, grads)
        give(theirs, grads)
        opt.step()
        adamw.step()
        for scheduler in schedulers:
            scheduler.step()
    for p, q in zip(params, theirs, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_parameters_move_as_float32_ones_under_adamw(dtype):
    params = parameters(dtype)
    exact = [nn.Parameter(p.detach().float()) for p in params]
    opt = inface.FrankWolfe(params, lr=1e-4, norm="adaptive", weight_decay=0.1)  # 2^-9 of a weight would be swallowed
    adamw = torch.optim.AdamW(exact, lr=1e-4, weight_decay=0.1)
    for grads in gradients(100, dtype):
        give(params, grads)
        give(exact, [g.float() for g in grads])
        opt.step()
        adamw.step()
    for p, q in zip(params, exact, strict=True):
        state = opt.state[p]
        assert {state[key].dtype for key in ("master", "exp_avg", "exp_avg_sq", "step")} == {torch.float32}
        torch.testing.assert_close(state["master"], q.detach(), rtol=1e-5, atol=1e-6)
        assert torch.equal(p, state["master"].to(dtype))


def test_parameters_without_a_gradient_are_left_out_and_count_their_own_steps():
    params, theirs = parameters(), parameters()
    opt = inface.FrankWolfe(params, lr=0.01, norm="adaptive")
    adamw = torch.optim.AdamW(theirs, lr=0.01, weight_decay=0.0)
    for step, grads in enumerate(gradients(20)):
        some = [g if step % (i + 1) == 0 else None for i, g in enumerate(grads)]
        give(params, some)
        give(theirs, some)
        opt.step()
        adamw.step()
    assert [int(opt.state[p]["step"]) for p in params] == [20, 10, 7, 5]
    for p, q in zip(params, theirs, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def test_second_halves_are_averaged_but_do_not_move():
    """By hand: both gradients enter the moments, the first of two moves the parameter."""
    params = parameters(torch.float64, [(3, 2)])
    opt = inface.FrankWolfe(params, lr=0.1, norm="adaptive", in_face="away", betas=(0.8, 0.9), eps=0.01)
    y = params[0].detach().numpy().copy()
    m = v = np.zeros((3, 2))
    for step, (g,) in enumerate(gradients(12, torch.float64, [(3, 2)]), start=1):
        give(params, [g])
        opt.step()
        m, v = 0.8 * m + 0.2 * g.numpy(), 0.9 * v + 0.1 * g.numpy() ** 2
        h, s = m / (1 - 0.8**step), np.sqrt(v / (1 - 0.9**step)) + 0.01
        if step % 2:
            y = y - 0.1 * h / s
            gap = np.sqrt((h**2 / s).sum())
        np.testing.assert_allclose(params[0].detach().numpy(), y, rtol=1e-13)
        assert float(opt.gap) == pytest.approx(gap, rel=1e-13)


def test_the_gap_is_the_dual_norm_of_the_step_that_was_taken():
    """lr times its square is how far the step goes down along the averaged gradient."""
    params = parameters(torch.float64)
    opt = inface.FrankWolfe(params, lr=0.1, norm="adaptive")
    for grads in gradients(5, torch.float64):
        before = [p.detach().clone() for p in params]
        give(params, grads)
        opt.step()
    correction = 1 - 0.9**5
    down = sum(
        (opt.state[p]["exp_avg"] / correction * (old - p.detach())).sum() for p, old in zip(params, before, strict=True)
    )
    assert float(opt.gap) ** 2 * 0.1 == pytest.approx(float(down), rel=1e-12)


def squares(model):
    data = [(torch.eye(3, dtype=torch.float64), torch.ones(3, 2, dtype=torch.float64))]
    inputs, target = data[0]
    gradients = torch.autograd.grad(nn.functional.mse_loss(model(inputs), target), list(model.parameters()))
    return data, [g.numpy() for g in gradients]


def test_the_exact_gap_is_measured_in_the_norm_that_the_last_step_has_left():
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    opt = inface.FrankWolfe(model.parameters(), lr=0.1, norm="adaptive", eps=0.01)
    data, grads = squares(model)
    found = inface.modified_gap(model, nn.functional.mse_loss, data, opt)
    own = [(h**2 / (np.abs(h) + 0.01)).sum() for h in grads]  # the norm of a first step
    assert float(found.free) == pytest.approx(np.sqrt(sum(own)), rel=1e-13)
    for _ in range(4):
        opt.zero_grad()
        nn.functional.mse_loss(model(data[0][0]), data[0][1]).backward()
        opt.step()
    _, grads = squares(model)
    found = inface.modified_gap(model, nn.functional.mse_loss, data, opt)
    sizes = [np.sqrt(opt.state[p]["exp_avg_sq"].numpy() / (1 - 0.999**4)) + 0.01 for p in model.parameters()]
    own = [(h**2 / s).sum() for h, s in zip(grads, sizes, strict=True)]
    assert float(found.free) == pytest.approx(np.sqrt(sum(own)), rel=1e-13)


def test_kappa_is_refused_because_the_norm_changes():
    opt = inface.FrankWolfe(parameters(), lr=0.1, norm="adaptive")
    with pytest.raises(ValueError, match=r"kappa: wanted norms that stay .* got norm='adaptive' \(group 0\)"):
        kappa(opt)


@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_free_blocks_move_as_a_free_parameter_and_constrained_ones_as_without_them(momentum, dtype, fused):
    start = (0.01 * torch.randn(4, 4, generator=torch.Generator().manual_seed(0))).to(dtype)
    kept, free = torch.tensor([0, 2]), torch.tensor([1, 3])
    p, parts = nn.Parameter(start.clone()), [nn.Parameter(start[rows].clone()) for rows in (kept, free)]
    common = {"lr": 0.1, "in_face": "away", "momentum": momentum, "fused": fused, "norm": "adaptive"}
    mixed = inface.FrankWolfe([{"params": [p], "set": L1Ball(torch.tensor([1.0, INF, 0.5, INF]))}], **common)
    ball = L1Ball(torch.tensor([1.0, 0.5]))
    apart = inface.FrankWolfe([{"params": parts[:1], "set": ball}, {"params": parts[1:]}], **common)
    for (g,) in gradients(12, dtype, [(4, 4)]):
        give([p, *parts], [g, g[kept], g[free]])
        mixed.step()
        apart.step()
        assert torch.equal(p[kept], parts[0])
        assert torch.equal(p[free], parts[1])
    assert float(mixed.gap) == pytest.approx(float(apart.gap), rel=1e-6)


def test_free_blocks_can_go_over_to_another_norm():
    p = nn.Parameter(torch.zeros(2, 4))
    opt = inface.FrankWolfe(
        [{"params": [p], "set": L1Ball(torch.tensor([1.0, INF]))}], lr=0.1, momentum=0.9, norm="adaptive"
    )
    for step, (g,) in enumerate(gradients(6, shapes=[(2, 4)])):
        if step == 3:
            opt.param_groups[0]["norm"] = "l2"
        give([p], [g])
        opt.step()
    assert bool(torch.isfinite(p).all())


def build(dtype, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).to(dtype)
    sets = {"0.weight": L1Ball(torch.tensor([1.0, INF, 0.5, 1.0]))}
    common = {"lr": 0.05, "in_face": "away", "momentum": 0.9, "norm": "adaptive", "weight_decay": 0.1, "project": True}
    return model, inface.FrankWolfe(model, sets, **{**common, **options})


def train(model, opt, start, stop):
    for seed in range(start, stop):
        inputs = torch.randn(8, 5, generator=torch.Generator().manual_seed(seed)).to(model[0].weight.dtype)
        opt.zero_grad()
        model(inputs).square().mean().backward()
        opt.step()


def states(opt):
    for group in opt.param_groups:
        for p in group["params"]:
            yield p.detach()
            yield from (torch.as_tensor(value) for _, value in sorted(opt.state[p].items()))


@pytest.mark.parametrize("at", [5, 6], ids=["between halves", "between iterations"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_resumed_run_is_bit_equal_to_one_that_never_stopped(dtype, at):
    whole, straight = build(dtype)
    train(whole, straight, 0, 12)
    model, opt = build(dtype)
    train(model, opt, 0, at)
    file = io.BytesIO()
    torch.save((model.state_dict(), opt.state_dict()), file)
    file.seek(0)
    weights, state = torch.load(file, weights_only=True)
    other, live = build(dtype, lr=1.0, betas=(0.1, 0.1))
    other.load_state_dict(weights)
    live.load_state_dict(state)
    train(other, live, at, 12)
    assert live.param_groups[0]["betas"] == (0.9, 0.999)
    for one, two in zip(states(straight), states(live), strict=True):
        assert one.dtype is two.dtype
        assert torch.equal(one, two)


def test_a_checkpoint_from_before_betas_and_eps_loads():
    model, opt = build(torch.float32, norm="l2")
    train(model, opt, 0, 3)
    saved = opt.state_dict()
    for group in saved["param_groups"]:
        del group["betas"], group["eps"]
    other, live = build(torch.float32, norm="l2", betas=(0.8, 0.99))
    live.load_state_dict(saved)
    assert live.param_groups[0]["betas"] == (0.8, 0.99)
    assert live.param_groups[0]["eps"] == 1e-8
    train(other, live, 3, 5)


def test_moments_follow_a_parameter_to_another_dtype():
    model, opt = build(torch.bfloat16)
    train(model, opt, 0, 4)
    model.float()
    train(model, opt, 4, 6)
    state = opt.state[model[2].weight]
    assert "master" not in state
    assert state["exp_avg"].dtype is torch.float32
    model.double()
    train(model, opt, 6, 8)
    assert {state["exp_avg"].dtype, state["exp_avg_sq"].dtype} == {torch.float64}
    assert state["step"] == 8


def test_a_scheduler_that_cycles_momentum_cycles_that_of_the_constrained_layers():
    _, opt = build(torch.float32)
    scheduler = OneCycleLR(opt, max_lr=0.1, total_steps=10, base_momentum=0.5, max_momentum=0.6)
    for _ in range(3):
        opt.step()
        scheduler.step()
    assert {0.5 <= group["momentum"] < 0.6 for group in opt.param_groups} == {True}
    assert {group["betas"] for group in opt.param_groups} == {(0.9, 0.999)}


def test_groups_added_to_a_copy_have_the_betas_of_the_original():
    opt = copy.deepcopy(inface.FrankWolfe(parameters(), lr=0.1, norm="adaptive", betas=(0.5, 0.6)))
    opt.add_param_group({"params": parameters()})
    assert [group["betas"] for group in opt.param_groups] == [(0.5, 0.6)] * 2


def test_betas_and_eps_are_options_of_a_group():
    model = nn.Linear(3, 2)
    groups = inface.param_groups(model, {"bias": {"set": None, "norm": "adaptive", "betas": (0.5, 0.5), "eps": 1e-4}})
    opt = inface.FrankWolfe(groups, lr=0.1)
    assert [(group["norm"], group["betas"], group["eps"]) for group in opt.param_groups] == [
        ("adaptive", (0.5, 0.5), 1e-4),
        ("l2", (0.9, 0.999), 1e-8),
    ]
