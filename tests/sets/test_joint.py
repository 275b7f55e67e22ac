"""per="group": one set over all tensors of a parameter group, one common step: Algorithm 1 without blocks."""

import pytest
import torch
from torch import nn

import inface
from inface.sets import GroupL1Ball, KSparsePolytope, L1Ball, L2Ball, LInfBall, NuclearBall, Simplex, SpectralBall

SETS = [
    L1Ball(2.0, per="group"),
    Simplex(2.0, per="group"),
    LInfBall(0.3, per="group"),
    L2Ball(1.0, per="group"),
    KSparsePolytope(0.3, k=3, per="group"),
    GroupL1Ball(2.0, per="group"),
    GroupL1Ball(2.0, groups="input", per="group"),
]
IDS = [f"{set_.kind} {getattr(set_, 'groups', '')}" for set_ in SETS]
SHAPES = [(3, 4), (2, 4), (2, 3, 2)]
every_set = pytest.mark.parametrize("set_", SETS, ids=IDS)


def gradients(count, seed=1, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return [[torch.randn(shape, generator=generator, dtype=dtype) for shape in SHAPES] for _ in range(count)]


def start(set_, dtype=torch.float64, seed=0):
    """Tensors that together are one point of the set."""
    generator = torch.Generator().manual_seed(seed)
    like = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]
    whole = set_.together()
    point = whole.project(set_.gather(like))
    scale = 1 if isinstance(set_, Simplex) else 0.5
    return [nn.Parameter((scale * x).to(dtype)) for x in set_.scatter(point, like)]


def optimizer(params, set_, **options):
    return inface.FrankWolfe([{"params": params, "set": set_}], **{"lr": 0.3, "in_face": "away"} | options)


def step(params, opt, grads):
    for p, g in zip(params, grads, strict=True):
        p.grad = None if g is None else g.clone()
    opt.step()


@every_set
@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("in_face", [None, "away", "frank-wolfe", "pairwise", "projected"])
def test_the_tensors_of_a_group_step_as_the_one_vector_that_they_are(set_, in_face, momentum, fused):
    params = start(set_)
    vector = nn.Parameter(set_.gather([p.detach() for p in params]).clone())
    joint = optimizer(params, set_, in_face=in_face, momentum=momentum, fused=fused)
    single = optimizer([vector], set_.together(), in_face=in_face, momentum=momentum, fused=fused)
    for grads in gradients(12):
        step(params, joint, grads)
        step([vector], single, [set_.gather(grads)])
        torch.testing.assert_close(set_.gather([p.detach() for p in params]), vector.detach(), rtol=1e-12, atol=1e-14)
    assert float(joint.gap) == pytest.approx(float(single.gap), rel=1e-10)
    a, b = joint.report(), single.report()
    assert (a.frank_wolfe, a.clamped, a.in_face, a.drop) == (b.frank_wolfe, b.clamped, b.in_face, b.drop)
    assert a.frank_wolfe + a.in_face > 6


@every_set
def test_a_resumed_run_is_bit_exact(set_, tmp_path):
    grads = gradients(11)
    params = start(set_)
    opt = optimizer(params, set_, momentum=0.9)
    for g in grads[:5]:
        step(params, opt, g)
    torch.save({"opt": opt.state_dict(), "params": [p.detach() for p in params]}, tmp_path / "state.pt")
    for g in grads[5:]:
        step(params, opt, g)
    saved = torch.load(tmp_path / "state.pt", weights_only=True)
    others = [nn.Parameter(p.clone()) for p in saved["params"]]
    other = optimizer(others, set_, momentum=0.9)
    other.load_state_dict(saved["opt"])
    for g in grads[5:]:
        step(others, other, g)
    for p, q in zip(params, others, strict=True):
        assert torch.equal(p, q)


@every_set
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_tensors_stay_in_their_common_set(set_, dtype):
    params = start(set_, dtype)
    opt = optimizer(params, set_, lr=1.0)
    whole = set_.together()
    for grads in gradients(20, dtype=dtype):
        step(params, opt, grads)
        masters = set_.gather([opt.state[p]["master"] for p in params])
        assert bool(whole.contains(masters).all())
        if not isinstance(set_, Simplex):
            assert bool(whole.contains(set_.gather([p.detach() for p in params])).all())


def test_a_tensor_without_a_gradient_has_a_zero_one():
    set_ = L1Ball(2.0, per="group")
    params, others = start(set_), start(set_)
    joint, reference = optimizer(params, set_), optimizer(others, set_)
    for grads in gradients(4):
        step(params, joint, [grads[0], None, grads[2]])
        step(others, reference, [grads[0], torch.zeros(SHAPES[1], dtype=torch.float64), grads[2]])
    for p, q in zip(params, others, strict=True):
        assert torch.equal(p, q)


def test_the_exact_gap_and_its_bound_are_those_of_the_whole_set():
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 2, bias=False)).double()
    set_ = L1Ball(5.0, per="group")
    opt = inface.FrankWolfe(model, {"*": set_}, lr=0.1, project=True)
    inputs, target = torch.randn(20, 3).double(), torch.randn(20, 2).double()
    gap = inface.modified_gap(model, nn.functional.mse_loss, [(inputs, target)], opt)
    weights = list(model.parameters())
    g = torch.cat([h.flatten() for h in torch.autograd.grad(nn.functional.mse_loss(model(inputs), target), weights)])
    x = torch.cat([w.detach().flatten() for w in weights])
    wolfe = float((g * x).sum() + 5 * g.abs().max())
    assert gap.blocks["0.weight + 2.weight"].tolist() == [pytest.approx(wolfe)]
    assert float(gap) == pytest.approx(wolfe / 10)
    assert inface.convex_bound(gap) == pytest.approx(wolfe)


def test_it_minimises_a_convex_function_over_the_whole_set():
    set_, target = L1Ball(1.0, per="group"), [torch.tensor([[2.0, 0.1]]), torch.tensor([0.5])]
    params = [nn.Parameter(torch.zeros(1, 2)), nn.Parameter(torch.zeros(1))]
    opt = optimizer(params, set_, lr=0.5)
    for _ in range(200):
        opt.zero_grad()
        sum(((p - t) ** 2).sum() for p, t in zip(params, target, strict=True)).backward()
        opt.step()
    assert [p.detach().flatten().tolist() for p in params] == [
        pytest.approx([1.0, 0.0], abs=1e-4),
        pytest.approx([0.0], abs=1e-4),
    ]


@pytest.mark.parametrize(
    "set_",
    [L1Ball(3.0, per="group"), KSparsePolytope(0.5, k=3, per="group"), GroupL1Ball(3.0, per="group")],
    ids=["l1", "k-sparse", "group"],
)
def test_initialisation_puts_the_group_on_the_boundary_of_its_set(set_):
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2))
    groups = inface.param_groups(model, {"*.weight": set_})
    inface.graph_init_(model, groups)
    inface.FrankWolfe(groups, lr=0.1, in_face="away")
    weights = [model[0].weight.detach(), model[2].weight.detach()]
    assert float(set_.together().norm(set_.gather(weights))) == pytest.approx(float(set_.radius), rel=1e-5)
    assert bool((weights[0] != 0).any(0).all())
    assert bool((weights[0] != 0).any(1).all())


def test_it_starts_inside_or_is_projected_there():
    params = [nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2))]
    with pytest.raises(ValueError, match=r'the parameters "a \+ b" starts outside'):
        inface.FrankWolfe([{"params": [("a", params[0]), ("b", params[1])], "set": L1Ball(3.0, per="group")}], lr=0.1)
    optimizer(params, L1Ball(3.0, per="group"), project=True)
    assert float(sum(p.detach().abs().sum() for p in params)) == pytest.approx(3.0)


@pytest.mark.parametrize("set_", [NuclearBall, SpectralBall])
def test_matrices_do_not_add_up(set_):
    with pytest.raises(ValueError, match="per='group' is for sets of vectors"):
        set_(1.0, per="group")


def test_a_frozen_tensor_and_different_dtypes_are_refused():
    params = [nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(2))]
    opt = optimizer(params, L1Ball(1.0, per="group"))
    params[0].grad = torch.ones(2, 2)
    params[1].requires_grad_(requires_grad=False)
    with pytest.raises(ValueError, match="is frozen, but shares a set with its group"):
        opt.step()
    with pytest.raises(ValueError, match="wanted one dtype and one device"):
        optimizer([nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2).double())], L1Ball(1.0, per="group"))
    with pytest.raises(ValueError, match="radius has 2 values, wanted one"):
        optimizer(start(L1Ball(2.0, per="group")), L1Ball(torch.ones(2), per="group"))
