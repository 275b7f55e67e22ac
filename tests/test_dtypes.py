"""Parameters of every dtype, memory layout and size."""

import io

import numpy as np
import pytest
import torch
from torch import nn

import inface
from inface.sets import GroupL1Ball, KSparsePolytope, L1Ball, L2Ball, LInfBall, NuclearBall, Simplex, SpectralBall

HALVES = [torch.bfloat16, torch.float16]
SETS = {
    "l1": L1Ball(1.5),
    "group": GroupL1Ball(3.0),
    "nuclear": NuclearBall(2.0),
    "simplex": Simplex(1.5),
    "box": LInfBall(0.4),
    "k-sparse": KSparsePolytope(0.4, k=3),
    "l2": L2Ball(1.5),
    "spectral": SpectralBall(1.5),
}
FACES = [pytest.param(set_, id=name) for name, set_ in SETS.items() if set_.has_faces]
half = pytest.mark.parametrize("dtype", HALVES, ids=["bfloat16", "float16"])


def optimizer(p, set_=None, **options):
    return inface.FrankWolfe([{"params": [p], "set": set_}], **{"lr": 0.1, "in_face": "away"} | options)


def start(set_, dtype, shape=(4, 6), scale=0.5, seed=0):
    """A parameter inside its set, away from the boundary (a point of it for the simplex)."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x = set_.project(10 * x)
    return nn.Parameter((x if isinstance(set_, Simplex) else scale * x).to(dtype))


def gradients(shape, count, seed=1):
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed))


def boundary(set_, shape, seed):
    """A point of the boundary of a set, in float64, with few zeros where its faces allow that."""
    x, d = gradients(shape, 2, seed).double()
    if isinstance(set_, Simplex):
        return set_.project(x)
    if isinstance(set_, L2Ball | NuclearBall):
        return set_.vertex(x)
    inside = 0.9 * set_.project(x)
    return inside + set_.max_step(inside, d).reshape(-1, 1) * d


def run(p, opt, grads):
    for g in grads:
        p.grad = g.to(p.dtype)
        opt.step()


# ---------------------------------------------------------------------- half precision


@half
@pytest.mark.parametrize("in_face", [None, "away", "frank-wolfe", "pairwise", "projected"])
@pytest.mark.parametrize("set_", [*FACES, pytest.param(SETS["spectral"], id="spectral")])
def test_a_half_precision_run_is_the_float32_run_rounded(set_, in_face, dtype):
    in_face = in_face if set_.has_faces else None
    p = start(set_, dtype)
    opt = optimizer(p, set_, in_face=in_face, momentum=0.9)
    opt.param_groups[0]["lr"] = 0.0
    run(p, opt, gradients(p.shape, 1))
    exact = nn.Parameter(opt.state[p]["master"].clone())
    assert torch.equal(exact.to(dtype), p)
    opt.param_groups[0]["lr"] = 0.1
    reference = optimizer(exact, set_, in_face=in_face, momentum=0.9)
    for g in gradients(p.shape, 20).to(dtype):
        p.grad, exact.grad = g, g.float()
        opt.step()
        reference.step()
        assert torch.equal(opt.state[p]["master"], exact)
        assert torch.equal(p, set_.from_blocks(set_.round_into(set_.to_blocks(exact.detach()), dtype), exact))
        assert bool(set_.contains(exact.detach()).all())
    assert opt.state[p]["master"].dtype is torch.float32


@half
def test_steps_that_half_precision_would_swallow_accumulate(dtype):
    p = nn.Parameter(torch.ones(3, dtype=dtype))
    opt = optimizer(p, lr=2.0**-13, in_face=None)
    run(p, opt, torch.ones(1024, 3))
    assert torch.equal(p, torch.full((3,), 1 - 1024 * 2.0**-13, dtype=dtype))
    one = torch.ones((), dtype=dtype)
    assert one - 2.0**-13 == one  # without a float32 copy nothing would have moved


@half
def test_constrained_steps_that_half_precision_would_swallow_accumulate(dtype):
    set_ = L1Ball(1.0)
    p = nn.Parameter(torch.tensor([[0.75, 0.0]], dtype=dtype))
    opt = optimizer(p, set_, lr=2.0**-10, in_face=None)
    run(p, opt, torch.tensor([[0.0, -1.0]]).expand(512, 1, 2))
    x = np.array([0.75, 0.0])
    for _ in range(512):  # alpha = lr gap / diam^2 with gap = 1 - x_2 and diam = 2
        x += 2.0**-10 * (1 - x[1]) / 4 * (np.array([0.0, 1.0]) - x)
    np.testing.assert_allclose(opt.state[p]["master"].numpy()[0], x, rtol=1e-5)
    np.testing.assert_allclose(p.detach().float().numpy()[0], x, rtol=torch.finfo(dtype).eps)
    assert x[0] < 0.7


@half
def test_the_momentum_buffer_is_float32_and_averages_like_it(dtype):
    p = nn.Parameter(torch.zeros(2, 3, dtype=dtype))
    opt = optimizer(p, L1Ball(1.0), momentum=0.99)
    grads = gradients(p.shape, 50).to(dtype)
    run(p, opt, grads)
    m = grads[0].double()
    for g in grads[1:].double():
        m = 0.99 * m + 0.01 * g
    buffer = opt.state[p]["momentum_buffer"]
    assert buffer.dtype is torch.float32
    torch.testing.assert_close(buffer.double(), m, rtol=1e-5, atol=1e-6)


@half
@pytest.mark.parametrize("set_", [None, L1Ball(1.0)], ids=["free", "constrained"])
def test_entries_that_somebody_else_changes_win_and_the_others_keep_their_precision(set_, dtype):
    p = nn.Parameter(torch.tensor([[0.25, 0.125, 0.0625, 0.0]], dtype=dtype))
    opt = optimizer(p, set_, lr=1e-3, in_face=None)
    run(p, opt, gradients(p.shape, 10))
    held = opt.state[p]["master"].clone()
    with torch.no_grad():
        p[0, 1] = -0.5
    run(p, opt, torch.zeros(1, *p.shape))
    expected = held.clone()
    expected[0, 1] = -0.5
    assert torch.equal(opt.state[p]["master"], expected)
    assert p[0, 1] == -0.5


@half
@pytest.mark.parametrize("shape", [(4, 6), (3, 300)])
@pytest.mark.parametrize("set_", FACES)
def test_a_start_that_was_on_the_boundary_before_rounding_is_recognised(set_, shape, dtype):
    for seed in range(10):
        x = boundary(set_, shape, seed)
        p = nn.Parameter(x.to(dtype))
        before = p.detach().clone()
        opt = optimizer(p, set_)
        run(p, opt, torch.zeros(1, *shape))
        master = opt.state[p]["master"]
        torch.testing.assert_close(set_.norm(master), set_.norm(x), rtol=8 * torch.finfo(torch.float32).eps, atol=0)
        assert torch.equal(master.to(dtype), before)
        inside = set_.contains(before)
        assert torch.equal(set_.to_blocks(p.detach())[inside], set_.to_blocks(before)[inside])
        assert bool(set_.contains(p.detach()).all()) or isinstance(set_, Simplex)


@half
@pytest.mark.parametrize("set_", [pytest.param(s, id=n) for n, s in SETS.items() if n != "simplex"])
def test_a_start_inside_by_more_than_rounding_is_left_where_it_is(set_, dtype):
    x = boundary(set_, (4, 6), 0) if set_.has_faces else set_.vertex(gradients((4, 6), 1)[0].double())
    p = nn.Parameter((x * (1 - torch.finfo(dtype).eps)).to(dtype))
    opt = optimizer(p, set_, in_face=None)
    run(p, opt, torch.zeros(1, 4, 6))
    assert torch.equal(opt.state[p]["master"], p.float())


@half
def test_in_face_steps_from_a_rounded_boundary_point_keep_its_zeros(dtype):
    x = torch.tensor([[1 / 3, 0.0, -1 / 3, 0.0, 1 / 3]])
    p = nn.Parameter(x.to(dtype))
    assert float(p.detach().float().abs().sum()) != 1.0
    opt = optimizer(p, L1Ball(1.0), lr=0.05)
    run(p, opt, torch.zeros(1, 1, 5))
    run(p, opt, torch.tensor([[[0.3, 5.0, 0.1, -5.0, -0.2]]]))
    assert opt.report().in_face == 1
    assert not torch.equal(p, x.to(dtype))
    assert torch.equal(p == 0, x == 0)


@half
def test_the_master_copy_survives_a_checkpoint_without_being_rounded(dtype):
    set_ = SETS["l1"]
    p, q = start(set_, dtype), start(set_, dtype, seed=3)
    opt, live = (optimizer(x, set_, lr=1e-3, momentum=0.9) for x in (p, q))
    run(p, opt, gradients(p.shape, 7))
    file = io.BytesIO()
    torch.save(opt.state_dict(), file)
    file.seek(0)
    live.load_state_dict(torch.load(file, weights_only=True))
    with torch.no_grad():
        q.copy_(p)
    for key in ("master", "momentum_buffer"):
        value = opt.state[p][key]
        assert not torch.equal(value, value.to(dtype).float())
        assert live.state[q][key].dtype is torch.float32
        assert torch.equal(live.state[q][key], value)
        assert live.state[q][key].data_ptr() != value.data_ptr()


@half
def test_an_infinite_gradient_in_half_precision_leaves_its_block_alone(dtype):
    p = start(SETS["l1"], dtype)
    opt = optimizer(p, SETS["l1"], momentum=0.9)
    run(p, opt, gradients(p.shape, 3))
    before, held = p.detach().clone(), opt.state[p]["momentum_buffer"].clone()
    g = gradients(p.shape, 1)[0]
    g[1, 2] = torch.inf
    run(p, opt, g[None])
    assert torch.equal(p[1], before[1])
    assert torch.equal(opt.state[p]["momentum_buffer"][1], held[1])
    assert not torch.equal(p[0], before[0])
    assert bool(torch.isfinite(opt.state[p]["master"]).all())


# ---------------------------------------------------------------------- conversions and mixtures


@pytest.mark.parametrize("old", [torch.float32, torch.float64, *HALVES], ids=str)
@pytest.mark.parametrize("new", [torch.float32, torch.float64, *HALVES], ids=str)
@pytest.mark.filterwarnings("ignore:.*weight lay outside")  # what float32 calls the boundary need not be it in float64
def test_training_goes_on_after_the_model_is_converted(old, new):
    model = nn.Linear(5, 3).to(old)
    opt = inface.FrankWolfe(model, {"weight": L1Ball(1.0)}, lr=0.1, in_face="away", momentum=0.9, project=True)
    for dtype in (old, new):
        model.to(dtype)
        for p in model.parameters():
            for g in gradients(p.shape, 4):
                p.grad = g.to(dtype)
                opt.step()
                p.grad = None
    for p in model.parameters():
        assert ("master" in opt.state[p]) == (new in HALVES)
        assert opt.state[p]["momentum_buffer"].dtype is (torch.float32 if new in HALVES else new)
    weight = opt.state[model.weight].get("master", model.weight.detach())
    assert bool(L1Ball(1.0).contains(weight, tol=0.05 if old in HALVES or new in HALVES else 1e-5).all())


@pytest.mark.parametrize("old", [torch.float32, torch.float64, *HALVES], ids=str)
@pytest.mark.parametrize("new", [torch.float32, torch.float64, *HALVES], ids=str)
def test_a_checkpoint_of_one_dtype_loads_into_another(old, new):
    p, q = start(SETS["l1"], old), start(SETS["l1"], new)
    opt, live = (optimizer(x, SETS["l1"], momentum=0.9) for x in (p, q))
    run(p, opt, gradients(p.shape, 5))
    live.load_state_dict(opt.state_dict())
    run(q, live, gradients(p.shape, 5))
    assert ("master" in live.state[q]) == (new in HALVES)
    assert live.state[q]["momentum_buffer"].dtype is (torch.float32 if new in HALVES else new)
    assert bool(torch.isfinite(q).all())


@pytest.mark.parametrize("norm", ["l2", "l1", "linf", "spectral", "adaptive"])
@pytest.mark.parametrize("set_", [None, L1Ball(2.0)], ids=["free", "constrained"])
def test_one_group_may_hold_parameters_of_all_dtypes(set_, norm):
    dtypes = [torch.float32, torch.float64, *HALVES]
    grads = gradients((3, 4), 5).bfloat16()
    params = [start(L1Ball(2.0), dtype, (3, 4), seed=i) for i, dtype in enumerate(dtypes)]
    exact = [nn.Parameter(p.detach().double()) for p in params]
    before = [p.detach().clone() for p in params]
    for together in (params, exact):
        opt = inface.FrankWolfe([{"params": together, "set": set_}], lr=0.03, norm=norm)
        for g in grads:
            for i, p in enumerate(together):
                p.grad = (g.roll(i) * (1 + i)).to(p.dtype)
            opt.step()
    for p, x in zip(params, exact, strict=True):
        torch.testing.assert_close(p.double(), x, rtol=torch.finfo(p.dtype).eps, atol=1e-5)
    moved = [not torch.equal(p, old) for p, old in zip(params, before, strict=True)]
    assert moved == ([False, False, False, True] if set_ is None and norm == "l1" else [True] * 4)


def test_float64_is_computed_in_float64():
    """A convex problem solved to far below the resolution of float32: min |x - c|^2 over the l1 ball."""
    c = torch.tensor([[0.9, -0.7, 0.1, 0.02]], dtype=torch.float64)
    p = nn.Parameter(torch.tensor([[0.1, 0.1, 0.1, 0.1]], dtype=torch.float64))
    opt = optimizer(p, L1Ball(1.0), lr=2.0, in_face="pairwise")
    for _ in range(400):
        opt.zero_grad()
        (p - c).square().sum().backward()
        opt.step()
    solution = np.array([0.6, -0.4, 0.0, 0.0])  # soft thresholding by 0.3
    np.testing.assert_allclose(p.detach().numpy()[0], solution, rtol=0, atol=1e-12)
    assert opt.gap.dtype is torch.float64


# ---------------------------------------------------------------------- memory layout


LAYOUTS = {
    "transposed": ((4, 6), lambda x: x.t().contiguous().t()),
    "strided": ((4, 6), lambda x: torch.stack([x, x], -1)[..., 0]),
    "channels-last": ((4, 3, 2, 5), lambda x: x.to(memory_format=torch.channels_last)),
    "channels-last-3d": ((4, 3, 2, 2, 2), lambda x: x.to(memory_format=torch.channels_last_3d)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("per", ["output", "input", "tensor"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", [L1Ball, L2Ball, NuclearBall, Simplex])
def test_the_memory_layout_of_a_parameter_does_not_matter(kind, layout, per, dtype):
    shape, arrange = LAYOUTS[layout]
    set_ = kind(2.0, per=per)
    p = start(set_, dtype, shape)
    q = nn.Parameter(arrange(p.detach().clone()))
    assert not q.is_contiguous()
    stride = q.stride()
    grads = gradients(shape, 6)
    opt, other = (optimizer(x, set_, momentum=0.9, project=True) for x in (p, q))
    for g in grads.to(dtype):
        p.grad, q.grad = g, arrange(g)
        opt.step()
        other.step()
    torch.testing.assert_close(q, p, rtol=1e-5, atol=1e-6)
    assert q.stride() == stride
    assert bool(set_.contains(other.state[q].get("master", q.detach())).all())
    for key, value in opt.state[p].items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(other.state[q][key], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("norm", ["l2", "l1", "linf", "spectral", "adaptive"])
def test_free_parameters_of_any_memory_layout_move_alike(norm):
    for shape, arrange in LAYOUTS.values():
        x = gradients(shape, 1)[0]
        p, q = nn.Parameter(x.clone()), nn.Parameter(arrange(x.clone()))
        for param, given in ((p, lambda g: g), (q, arrange)):
            opt = optimizer(param, lr=0.01, norm=norm, momentum=0.9, in_face=None)
            for g in gradients(shape, 3):
                param.grad = given(g)
                opt.step()
        assert not torch.equal(p, x)
        torch.testing.assert_close(q, p, rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------- small sizes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES], ids=str)
@pytest.mark.parametrize("set_", [L1Ball(1.0), L2Ball(1.0), LInfBall(1.0), KSparsePolytope(1.0, k=2), NuclearBall(1.0)])
def test_a_0_d_parameter_is_one_block_of_one_number(set_, dtype):
    p = nn.Parameter(torch.tensor(0.5, dtype=dtype))
    opt = optimizer(p, set_, momentum=0.5, in_face=None)
    expected = 0.5
    for _ in range(4):  # one number in [-1, 1] and g = 1: alpha = lr (x + 1) / 4
        p.grad = torch.ones((), dtype=dtype)
        opt.step()
        expected -= 0.1 * (expected + 1) / 4 * (expected + 1)
    assert p.shape == ()
    torch.testing.assert_close(p.item(), expected, rtol=torch.finfo(dtype).eps + 1e-6, atol=0)


def test_a_0_d_simplex_is_a_point_and_never_moves():
    p = nn.Parameter(torch.tensor(2.0))
    opt = optimizer(p, Simplex(2.0))
    run(p, opt, torch.tensor([1.0, -3.0]))
    assert p.item() == 2.0
    assert float(opt.gap) == 0.0


@pytest.mark.parametrize("norm", ["l2", "l1", "linf", "spectral"])
def test_a_free_0_d_parameter_takes_the_gradient_step_in_every_norm(norm):
    p = nn.Parameter(torch.tensor(2.0))
    run(p, optimizer(p, norm=norm, in_face=None), torch.tensor([1.0, -3.0]))
    torch.testing.assert_close(p.item(), 2.0 - 0.1 + 0.3)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
@pytest.mark.parametrize("set_", [None, *SETS.values()], ids=["free", *SETS])
def test_an_empty_parameter_is_left_alone_and_disturbs_nobody(set_, shape):
    empty, p, q = nn.Parameter(torch.empty(shape)), start(L1Ball(1.0), torch.float32), start(L1Ball(1.0), torch.float32)
    groups = [{"params": [empty], "set": set_}, {"params": [p], "set": L1Ball(1.0)}]
    opt, alone = (
        inface.FrankWolfe(groups, lr=0.1, momentum=0.9, project=True),
        optimizer(q, L1Ball(1.0), momentum=0.9, in_face=None),
    )
    for g in gradients(p.shape, 3):
        empty.grad, p.grad, q.grad = torch.empty(shape), g, g
        opt.step()
        alone.step()
    assert torch.equal(p, q)
    assert float(opt.gap) == float(alone.gap)
    opt.load_state_dict(opt.state_dict())
    assert empty.shape == shape
