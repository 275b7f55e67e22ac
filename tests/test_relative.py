"""Relative steps: rescaling the loss, or a layer and its successor, changes nothing but rounding."""

import copy
import io
import math

import pytest
import torch
from torch import nn

import inface
from inface.sets import GroupL1Ball, L1Ball, NuclearBall

STEPS = 40
STRATEGIES = ["projected", "away", "pairwise", "frank-wolfe", None]
DATA = torch.randn(STEPS, 2, 16, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """Two layers without biases: the first times a and the second over a is the same function."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 12, bias=False), nn.Linear(12, 8, bias=False)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


def make(in_face, a=1.0, dtype=torch.float64, set_=L1Ball, radius=1.5, **options):
    torch.manual_seed(0)
    model = Net().double()
    with torch.no_grad():
        for layer in (model.first, model.second):
            layer.weight.copy_(set_(radius).project(layer.weight))
        model.first.weight *= a
        model.second.weight /= a
    model.to(dtype)
    sets = {"first.weight": set_(radius * a), "second.weight": set_(radius / a)}
    options = {"lr": "auto", "momentum": 0.9} | options
    return model, inface.FrankWolfe(model, sets, in_face=in_face, project=True, **options)


def train(model, opt, scale=1.0, data=DATA):
    for x, y in data.to(model.first.weight.dtype):
        opt.zero_grad()
        (scale * nn.functional.mse_loss(model(x), y)).backward()
        opt.step()


@pytest.mark.parametrize("fused", [None, False], ids=["kernels", "torch"])
@pytest.mark.parametrize("scale", [1000.0, 1e-3])
@pytest.mark.parametrize("in_face", STRATEGIES)
def test_multiplying_the_loss_changes_nothing_but_rounding(in_face, scale, fused):
    model, opt = make(in_face, fused=fused)
    other, live = make(in_face, fused=fused)
    before = copy.deepcopy(model)
    train(model, opt)
    train(other, live, scale)
    for p, q, start in zip(model.parameters(), other.parameters(), before.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-8, atol=1e-10)
        assert (p - start).norm() > 0.01 * start.norm()
    for name, L in opt.report().smoothness.items():
        assert live.report().smoothness[name] == pytest.approx(scale * L, rel=1e-6)


@pytest.mark.parametrize("a", [16.0, 0.1])
@pytest.mark.parametrize("in_face", STRATEGIES)
def test_rescaling_a_layer_and_its_successor_changes_nothing_but_rounding(in_face, a):
    model, opt = make(in_face)
    other, live = make(in_face, a)
    train(model, opt)
    train(other, live)
    torch.testing.assert_close(a * model.first.weight, other.first.weight, rtol=1e-8, atol=1e-10 * a)
    torch.testing.assert_close(model.second.weight / a, other.second.weight, rtol=1e-8, atol=1e-10 / a)


@pytest.mark.parametrize("set_", [GroupL1Ball, NuclearBall])
def test_the_same_holds_for_whole_nodes_and_ranks(set_):
    model, opt = make("projected", set_=set_)
    for a, scale in ((1.0, 1000.0), (8.0, 1.0)):
        other, live = make("projected", a, set_=set_)
        train(other, live, scale, DATA[:30])
        if a == 1.0:
            train(model, opt, data=DATA[:30])
        torch.testing.assert_close(a * model.first.weight, other.first.weight, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("scale", [1000.0, 1e-3])
def test_the_sparse_layers_of_a_network_do_not_see_the_scale_of_the_loss(scale):
    def run(scale):
        torch.manual_seed(0)
        model = Net().double()
        opt = inface.sparse_optimizer(model, density=0.2, lr=0.1, steps=STEPS)
        train(model, opt, scale)
        return model

    for p, q in zip(run(1.0).parameters(), run(scale).parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-7, atol=1e-9)
        assert torch.equal(p == 0, q == 0)


def test_a_scheduled_lr_scales_relative_steps():
    moved = []
    for factor in (1.0, 0.5):
        model, opt = make("projected", momentum=0.0)
        train(model, opt, data=DATA[:1])  # a first half
        before = model.first.weight.detach().clone()
        for group in opt.param_groups:
            group["lr"] *= factor
        train(model, opt, data=DATA[1:2])
        lr = opt.state[model.first.weight]["implied_lr"]
        moved.append((float(lr), float((model.first.weight.detach() - before).norm())))
    assert moved[1][0] == pytest.approx(moved[0][0] / 2)
    assert moved[1][1] < 0.75 * moved[0][1]


@pytest.mark.parametrize("in_face", STRATEGIES)
def test_the_report_names_the_constant_that_the_last_step_used(in_face):
    model, opt = make(in_face, momentum=0.0)
    assert opt.report().smoothness == {}
    train(model, opt, data=DATA[:2])
    smoothness = opt.report().smoothness
    assert set(smoothness) == {"first.weight", "second.weight"}
    other, live = copy.deepcopy((model, opt))
    train(model, opt, data=DATA[2:3])
    L = opt.report().smoothness
    # The same step of a group whose lr says so.
    for group, name in zip(live.param_groups, L, strict=True):
        group["relative"], group["lr"] = None, 1 / (2 * L[name])
    train(other, live, data=DATA[2:3])
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-12)


def test_a_gradient_that_is_zero_or_not_finite_moves_nothing_and_leaves_no_trace():
    for bad in (0.0, math.nan, math.inf):
        model, opt = make("projected")
        other, live = make("projected")
        before = [p.detach().clone() for p in model.parameters()]
        for p in model.parameters():
            p.grad = torch.full_like(p, bad)
        opt.step()
        for p, q in zip(before, model.parameters(), strict=True):
            assert torch.equal(p, q)
        for state in opt.state.values():
            state["phase"] = 0
            if bad == 0:
                state["momentum_buffer"].fill_(math.nan)
                state["started"] = False
        train(model, opt)
        train(other, live)
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            assert torch.isfinite(p).all()
            torch.testing.assert_close(p, q, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("at", [1, 2, 13])
@pytest.mark.parametrize("in_face", STRATEGIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_resuming_is_bit_equal_to_never_having_stopped(in_face, at, dtype):
    model, opt = make(in_face, dtype=dtype)
    train(model, opt, data=DATA[:at])
    file = io.BytesIO()
    torch.save([model.state_dict(), opt.state_dict()], file)
    file.seek(0)
    weights, state = torch.load(file, weights_only=True)
    train(model, opt, data=DATA[at:])
    other, live = make(in_face, dtype=dtype)
    other.load_state_dict(weights)
    live.load_state_dict(state)
    train(other, live, data=DATA[at:])
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)


def test_lr_auto_is_for_sets_alone_and_bad_values_are_refused_by_name():
    model = Net()
    with pytest.raises(ValueError, match="lr='auto' is for groups with a set"):
        inface.FrankWolfe(model.parameters(), lr="auto")
    with pytest.raises(ValueError, match="lr must be"):
        inface.FrankWolfe(model.parameters(), lr="fast")
    for wrong in (0, -1.0, math.nan, math.inf, True, "1"):
        with pytest.raises(ValueError, match="relative must be None or > 0"):
            inface.FrankWolfe(model, {"*.weight": L1Ball(50.0)}, lr=0.1, relative=wrong)
    for option, value in (("dampening", 1.0), ("dampening", "0"), ("precondition", 1)):
        with pytest.raises(ValueError, match=f"{option} must be"):
            inface.FrankWolfe(model.parameters(), lr=0.1, **{option: value})


def test_parameters_of_relative_groups_become_groups_of_their_own():
    _, opt = make("projected")
    assert [len(group["params"]) for group in opt.param_groups] == [1, 1]
    model = Net()
    opt = inface.FrankWolfe(model, {"*.weight": L1Ball(50.0)}, lr="auto")
    assert [group["param_names"] for group in opt.param_groups] == [["first.weight"], ["second.weight"]]


def test_dampening_0_is_torchs_sgd_with_momentum_under_a_schedule():
    torch.manual_seed(0)
    model = Net().double()
    other = copy.deepcopy(model)
    opt = inface.FrankWolfe(model.parameters(), lr=0.05, momentum=0.9, dampening=0.0)
    torchs = torch.optim.SGD(other.parameters(), lr=0.05, momentum=0.9)
    schedules = [torch.optim.lr_scheduler.OneCycleLR(one, 0.05, total_steps=STEPS + 1) for one in (opt, torchs)]
    for x, y in DATA:
        for net, one in ((model, opt), (other, torchs)):
            one.zero_grad()
            nn.functional.mse_loss(net(x), y).backward()
            one.step()
        for schedule in schedules:
            schedule.step()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-13)


def test_preconditioned_steps_do_not_see_the_scale_of_single_columns():
    columns = 2.0 ** torch.arange(-4, 4, dtype=torch.float64)  # powers of two: first gradients are ties
    weights = []
    for scaled in (torch.ones(8, dtype=torch.float64), columns):
        torch.manual_seed(0)
        p = nn.Parameter(L1Ball(1.0).project(torch.randn(4, 8, dtype=torch.float64)))
        opt = inface.FrankWolfe(
            [{"params": [p], "set": L1Ball(1.0)}], lr="auto", in_face="projected", precondition=True, eps=0.0
        )
        for g in torch.randn(STEPS, 4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1)):
            p.grad = g * scaled
            kept = p.grad
            opt.step()
            assert p.grad is kept
        weights.append(p.detach())
    torch.testing.assert_close(*weights, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("in_face", ["projected", "away"])
def test_compiled_relative_steps_are_the_eager_ones(in_face):
    torch._dynamo.reset()
    model, opt = make(in_face, fused=False)
    other, live = make(in_face, fused=False)
    train(model, opt, data=DATA[:12])
    step = torch.compile(live.step, backend="eager")
    for x, y in DATA[:12]:
        live.zero_grad()
        nn.functional.mse_loss(other(x), y).backward()
        step()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("fused", [None, False], ids=["kernels", "torch"])
@pytest.mark.parametrize("set_", [L1Ball(2.0), GroupL1Ball(2.0)], ids=lambda s: s.kind)
def test_no_block_goes_farther_than_the_length_of_a_step_however_small_the_gaps_were_before(set_, fused):
    weight = nn.Parameter(set_.project(torch.randn(6, 8, dtype=torch.float64)))
    opt = inface.FrankWolfe([{"params": [weight], "set": set_}], lr="auto", in_face=None, fused=fused)
    weight.grad = 1e-9 * torch.randn(6, 8, dtype=torch.float64)
    opt.step()
    before = weight.detach().clone()
    weight.grad = torch.randn(6, 8, dtype=torch.float64)
    opt.step()
    way = set_.vertex(weight.grad) - before
    torch.testing.assert_close(weight.detach() - before, inface.relative.AUTO * way)
