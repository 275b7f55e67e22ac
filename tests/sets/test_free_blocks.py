"""Radii that are infinite for some blocks: those nodes are free, the others constrained."""

import copy

import pytest
import torch
from torch import nn

import inface
from inface.sets import GroupL1Ball, KSparsePolytope, L1Ball, L2Ball, LInfBall, NuclearBall, Simplex

INF = float("inf")
NORMS = ["l2", "l1", "linf", "spectral", "adaptive"]


def gradients(shape, count, seed=1):
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed))


def optimizer(p, set_, **options):
    return inface.FrankWolfe([{"params": [p], "set": set_}], **{"lr": 0.1, "in_face": "away"} | options)


def run(p, opt, grads):
    for g in grads:
        p.grad = g.to(p.dtype)
        opt.step()


@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize(
    "options", [{}, {"momentum": 0.9}, {"every_gradient": True, "weight_decay": 0.1}, {"maximize": True}]
)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("per", ["output", "input"])
def test_all_blocks_infinite_is_a_free_parameter_bit_for_bit(per, norm, options, fused):
    shape, grads = (3, 4), gradients((3, 4), 9)
    start = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    p, q = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    radius = torch.full((3 if per == "output" else 4,), INF)
    ours = optimizer(p, L1Ball(radius, per=per), norm=norm, fused=fused, **options)
    free = optimizer(q, None, norm=norm, **options)
    for g in grads:
        p.grad, q.grad = g.clone(), g.clone()
        ours.step()
        free.step()
        assert torch.equal(p, q)
        assert torch.equal(ours.gap, free.gap)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("per", ["output", "input"])
def test_a_mixed_parameter_steps_as_its_two_parts_do(per, momentum, fused, dtype):
    start = 0.01 * torch.randn(4, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    radius = torch.tensor([1.0, INF, 0.5, INF])
    kept, free = torch.tensor([0, 2]), torch.tensor([1, 3])
    dim = 0 if per == "output" else 1
    p = nn.Parameter(start.clone())
    parts = [nn.Parameter(start.index_select(dim, rows).clone()) for rows in (kept, free)]
    mixed = optimizer(p, L1Ball(radius, per=per), momentum=momentum, fused=fused)
    apart = inface.FrankWolfe(
        [{"params": [parts[0]], "set": L1Ball(radius[kept], per=per)}, {"params": [parts[1]]}],
        lr=0.1, in_face="away", momentum=momentum, fused=fused,
    )  # fmt: skip
    for g in gradients((4, 4), 12).to(dtype):
        p.grad = g
        for part, rows in zip(parts, (kept, free), strict=True):
            part.grad = g.index_select(dim, rows).contiguous()
        mixed.step()
        apart.step()
        for part, rows in zip(parts, (kept, free), strict=True):
            assert torch.equal(p.index_select(dim, rows), part)
    assert float(mixed.gap) == pytest.approx(float(apart.gap), rel=1e-12)
    a, b = mixed.report(), apart.report()
    assert (a.frank_wolfe, a.in_face, a.drop) == (b.frank_wolfe, b.in_face, b.drop)


@pytest.mark.parametrize(
    "set_",
    [
        Simplex(torch.tensor([1.0, INF])),
        LInfBall(torch.tensor([0.4, INF])),
        L2Ball(torch.tensor([1.0, INF])),
        KSparsePolytope(torch.tensor([0.4, INF]), k=2),
        GroupL1Ball(torch.tensor([1.0, INF]), groups="input", per="output"),
        NuclearBall(torch.tensor([1.0, INF]), per="output"),
    ],
    ids=lambda set_: set_.kind,
)
@pytest.mark.parametrize("in_face", [None, "away", "pairwise", "frank-wolfe", "projected"])
def test_every_set_leaves_the_free_block_to_descent(set_, in_face):
    p = nn.Parameter(torch.rand(2, 3, 4, generator=torch.Generator().manual_seed(0)).double())
    opt = optimizer(p, set_, in_face=in_face, project=True)
    free = p[1].detach().clone()
    for i, g in enumerate(gradients(p.shape, 10)):
        p.grad = g.double()
        opt.step()
        if in_face is None or i % 2 == 0:
            free -= 0.1 * g[1].double()
        torch.testing.assert_close(p[1].detach(), free, rtol=1e-14, atol=1e-15)
        assert bool(set_.contains(p.detach()).all())


def test_a_function_as_in_face_sees_the_constrained_blocks_only():
    seen = []

    def away(set_, x, g):
        seen.append((x.shape[0], set_.radius.tolist()))
        return x - set_.dense_face_vertex(x, -g)

    p = nn.Parameter(torch.zeros(3, 4))
    run(p, optimizer(p, L1Ball(torch.tensor([1.0, INF, 2.0])), in_face=away), gradients((3, 4), 4))
    assert seen == [(2, [1.0, 2.0])] * 2


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_resumed_run_is_bit_exact(momentum, tmp_path):
    set_, grads = L1Ball(torch.tensor([1.0, INF])), gradients((2, 5), 11)
    p = nn.Parameter(torch.zeros(2, 5))
    opt = optimizer(p, set_, momentum=momentum)
    run(p, opt, grads[:5])
    torch.save({"opt": opt.state_dict(), "p": p.detach()}, tmp_path / "state.pt")
    run(p, opt, grads[5:])
    saved = torch.load(tmp_path / "state.pt", weights_only=True)
    q = nn.Parameter(saved["p"].clone())
    other = optimizer(q, set_, momentum=momentum)
    other.load_state_dict(saved["opt"])
    run(q, other, grads[5:])
    assert torch.equal(p, q)


def test_a_free_block_takes_a_gradient_that_is_not_finite_as_sgd_does():
    p = nn.Parameter(torch.zeros(2, 2))
    opt = optimizer(p, L1Ball(torch.tensor([1.0, INF])))
    p.grad = torch.full((2, 2), torch.nan)
    opt.step()
    assert torch.equal(p[0], torch.zeros(2))
    assert bool(p[1].isnan().all())


def test_the_gap_counts_a_free_block_as_free_gradient():
    p = nn.Parameter(torch.zeros(2, 2))
    opt = optimizer(p, L1Ball(torch.tensor([1.0, INF])))
    p.grad = torch.tensor([[1.0, 0.0], [3.0, 4.0]])
    opt.step()
    gap = opt.report().gap
    assert float(gap.free) == pytest.approx(5.0)
    assert float(gap.constrained) == pytest.approx(0.5)  # a gap of 1 over the diameter 2
    assert gap.blocks["group 0, parameter 0"].tolist() == [1.0, 0.0]


def test_the_exact_gap_is_that_of_the_two_parts():
    model = nn.Linear(3, 2, bias=False)
    with torch.no_grad():
        model.weight.mul_(0.1)
    opt = inface.FrankWolfe(model, {"weight": L1Ball(torch.tensor([1.0, INF]))}, lr=0.1)
    inputs, target = gradients((20, 3), 1)[0], gradients((20, 2), 1, seed=5)[0]
    gap = inface.modified_gap(model, nn.functional.mse_loss, [(inputs, target)], opt)
    (h,) = torch.autograd.grad(nn.functional.mse_loss(model(inputs), target), [model.weight])
    w = model.weight.detach()
    constrained = (h[0] * w[0]).sum() + h[0].abs().max()
    assert float(gap.free) == pytest.approx(float(h[1].norm()), rel=1e-5)
    assert float(gap.constrained) == pytest.approx(float(constrained) / 2, rel=1e-5)


def test_sparsity_and_thresholding_leave_free_nodes_alone():
    model = nn.Linear(4, 3, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.5, 0.0, 0.0, 0.0], [9.0, 0.01, 3.0, 4.0], [0.2, 0.1, 0.0, 0.0]]))
    inface.FrankWolfe(model, {"weight": L1Ball(torch.tensor([1.0, INF, 1.0]))}, lr=0.1)
    layer = inface.sparsity.nonzeros(model).layers["weight"]
    assert (layer.edges, layer.percent, layer.exact_percent) == (1.5, 37.5, 37.5)
    kept = inface.sparsity.hard_threshold(model, keep=0.25).weight
    assert kept.tolist() == [
        [0.5, 0.0, 0.0, 0.0],
        pytest.approx([9.0, 0.01, 3.0, 4.0]),
        pytest.approx([0.2, 0.0, 0.0, 0.0]),
    ]


def test_a_layer_that_is_all_free_is_not_a_constrained_one():
    model = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 2))
    sets = {"0.weight": L1Ball(torch.full((2,), INF)), "1.weight": L1Ball(10.0)}
    opt = inface.FrankWolfe(model, sets, lr=0.1)
    assert list(inface.sparsity.nonzeros(model).layers) == ["1.weight"]
    opt.load_state_dict(opt.state_dict())
    assert list(inface.sparsity.nonzeros(model).layers) == ["1.weight"]


def test_initialisation_leaves_free_nodes_alone():
    model = nn.Linear(6, 4)
    before = model.weight.detach().clone()
    groups = inface.param_groups(model, {"weight": L1Ball(torch.tensor([1.0, INF, 2.0, INF]))})
    inface.graph_init_(model, groups)
    assert torch.equal(model.weight[1::2], before[1::2])
    torch.testing.assert_close(model.weight[::2].abs().sum(1), torch.tensor([1.0, 2.0]))


def test_a_free_block_has_no_vertices_and_no_end_and_stays_where_it_is():
    set_ = L1Ball(torch.tensor([1.0, INF]))
    x = torch.tensor([[3.0, 0.0], [5.0, 6.0]])
    assert set_.contains(x).tolist() == [False, True]
    assert torch.equal(set_.project(x)[1], x[1])
    assert set_.max_step(torch.zeros(2, 2), x).tolist() == [pytest.approx(1 / 3), INF]
    with pytest.raises(ValueError, match="block 1 has radius inf: it is free, and has no vertices"):
        set_.vertex(x)


@pytest.mark.parametrize("radius", [torch.tensor([1.0, -INF]), torch.tensor([1.0, torch.nan]), INF])
def test_what_is_no_radius_is_refused(radius):
    with pytest.raises(ValueError, match="radius must be > 0"):
        L1Ball(radius)


def test_a_deep_copy_steps_alike():
    p = nn.Parameter(torch.zeros(2, 3))
    opt = optimizer(p, L1Ball(torch.tensor([1.0, INF])), momentum=0.9)
    run(p, opt, gradients((2, 3), 3))
    other = copy.deepcopy(opt)
    q = other.param_groups[0]["params"][0]
    for g in gradients((2, 3), 4, seed=7):
        p.grad, q.grad = g.clone(), g.clone()
        opt.step()
        other.step()
    assert torch.equal(p, q)
