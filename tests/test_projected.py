"""Projected in-face steps: SGD in the minimal face, a direction of Step 4b with its step size."""

import numpy as np
import pytest
import torch
from torch.nn import Parameter

import inface
from inface.sets import GroupL1Ball, KSparsePolytope, L1Ball, L2Ball, LInfBall, NuclearBall, Simplex
from inface.sets.base import Set

BOTH_PATHS = True

SETS = [
    L1Ball(1.5),
    Simplex(1.5),
    GroupL1Ball(1.5),
    LInfBall(0.5),
    L2Ball(1.5),
    KSparsePolytope(0.5, k=3),
    NuclearBall(1.5),
]
EPS = {torch.float32: 2.0**-23, torch.float64: 2.0**-52}


def optimizer(x, set_, lr=0.1, **options):
    p = Parameter(torch.as_tensor(x).clone())
    return p, inface.FrankWolfe([{"params": [p], "set": set_}], lr=lr, **{"in_face": "projected", **options})


def step(p, opt, g):
    p.grad = torch.as_tensor(g, dtype=p.dtype).reshape(p.shape).clone()
    opt.step()


def second_half(x, set_, g, lr=0.1, **options):
    """The parameter after a second half with gradient ``g``; the first half, with a zero gradient, moves nothing."""
    p, opt = optimizer(x, set_, lr, **options)
    step(p, opt, torch.zeros_like(p))
    step(p, opt, g)
    return p.detach(), opt


def draws(set_, count=40, shape=(6, 8), dtype=torch.float64):
    """Points on faces and inside, with gradients."""
    generator = torch.Generator().manual_seed(0)
    for i in range(count):
        x = torch.randn(shape, generator=generator, dtype=dtype)
        x = x * (torch.rand(shape, generator=generator) < 0.6)
        x = set_.project(x * (3.0, 0.5, 0.05)[i % 3])
        yield x, torch.randn(shape, generator=generator, dtype=dtype)


def project_simplex(v, r):
    ordered = np.sort(v)[::-1]
    cuts = (np.cumsum(ordered) - r) / np.arange(1, len(v) + 1)
    return np.maximum(v - cuts[np.flatnonzero(ordered > cuts)[-1]], 0)


def oracle(x, g, r, lr):
    """A row of an l1 ball, by hand."""
    w, used = np.zeros_like(x), x != 0
    v = np.abs(x[used]) - lr * np.sign(x[used]) * g[used]
    inside = np.abs(x).sum() < r * (1 - 1e-12)
    if not inside or np.maximum(v, 0).sum() > r:
        v = project_simplex(v, r)
    w[used] = np.sign(x[used]) * np.maximum(v, 0)
    return w


@pytest.mark.parametrize("lr", [0.01, 0.3, 30.0])
def test_a_row_of_an_l1_ball_takes_a_gradient_step_on_its_support_projected_onto_the_signed_simplex(lr):
    for x, g in draws(L1Ball(1.5)):
        after, _ = second_half(x, L1Ball(1.5), g, lr)
        expected = np.stack([oracle(row, slope, 1.5, lr) for row, slope in zip(x.numpy(), g.numpy(), strict=True)])
        np.testing.assert_allclose(after.numpy(), expected, rtol=0, atol=1e-12 * max(1, lr))
        assert not ((after != 0) & (x == 0)).any()
        assert (after * x >= 0).all()


@pytest.mark.parametrize("options", [{}, {"gradient_bound": 7.0}], ids=["plain", "gradient bound"])
@pytest.mark.parametrize("set_", SETS, ids=lambda s: s.kind)
def test_the_move_is_a_direction_of_step_4b_with_the_paper_s_step_size(set_, options):
    """``d = D diam / sqrt(lr A)`` is no longer than the diameter, and ``min(A(d) / C, a_stop)`` along it moves by D."""
    lr, moved = 0.2, 0
    for x, g in draws(set_):
        after, _ = second_half(x, set_, g, lr, **options)
        for one, (start, slope, end) in enumerate(zip(*(set_.to_blocks(t) for t in (x, g, after)), strict=True)):
            D = end - start
            A = float(-(slope * D).sum())
            if A <= 0:
                assert not D.any()
                continue
            diameter = float(set_.diameter(x.shape if set_.per == "tensor" else x.shape[1:]))
            C = max(diameter**2 / lr, options.get("gradient_bound", 0) * diameter)
            rate = diameter**2 / C
            assert float(D.square().sum()) / rate * (1 - 1e-9) <= A, "the projection inequality"
            scale = diameter / (rate * A) ** 0.5
            d = D * scale
            assert float(d.norm()) <= diameter * (1 + 1e-9)
            slope_of_d = float(-(slope * d).sum())
            stop = float(set_.max_step(x, _only(set_, x, one, D))[one]) / scale  # of D, whose rounding d magnifies
            beta = min(slope_of_d / C, stop)
            np.testing.assert_allclose(start + beta * d, end, rtol=0, atol=1e-9 * diameter)
            moved += 1
    assert moved > 10


def _only(set_, like, block, d):
    """A tensor like the parameter that is zero but in one block."""
    zero = torch.zeros_like(set_.to_blocks(like))
    zero[block] = d
    return set_.from_blocks(zero, like)


@pytest.mark.parametrize(
    "set_", [L1Ball(1.5, norm="l1"), GroupL1Ball(1.5, norm="l1"), LInfBall(0.5, norm="l1")], ids=str
)
def test_in_the_l1_norm_the_direction_is_cut_to_the_diameter_and_the_step_is_still_the_paper_s(set_):
    cut = 0
    for x, g in draws(set_):
        after, _ = second_half(x, set_, g, 0.2)
        ends = set_.to_blocks(set_.face_project(x, x - 0.2 * g))
        for start, slope, end, whole in zip(*(set_.to_blocks(t) for t in (x, g, after)), ends, strict=True):
            D = whole - start
            A, length = float(-(slope * D).sum()), float(D.abs().sum())
            if A <= 0:
                continue
            part = min(1.0, 0.2 * A / length**2)
            cut += part < 1
            np.testing.assert_allclose(end, start + part * D, rtol=0, atol=1e-9)
    assert cut > 0


@pytest.mark.parametrize("dtype", EPS)
def test_many_edges_leave_at_once_to_exact_zeros_and_the_drop_is_counted(dtype):
    x = torch.tensor([[0.05, -0.05, 0.1, 0.8, 0.0], [0.05, -0.05, 0.1, 0.1, 0.0]], dtype=dtype)
    x[0] /= x[0].abs().sum()
    after, opt = second_half(x, L1Ball(1.0), [[1.0, -1.0, 1.0, -1.0, 9.0], [1.0, -1.0, 0.0, 0.0, 9.0]], lr=0.3)
    assert (after[0] != 0).tolist() == [False, False, False, True, False]
    assert after[0, 3] == 1
    assert (after[1] != 0).tolist() == [False, False, True, True, False]
    assert after[1, 2:].tolist() == x[1, 2:].tolist(), (
        "inside, what crosses zero becomes zero, and the rest moves freely"
    )
    assert (opt.report().in_face, opt.report().drop) == (2, 2)


def test_inside_the_ball_a_row_that_reaches_the_boundary_lands_on_it_and_never_gains_an_edge():
    x = torch.tensor([[0.3, -0.2, 0.0]])
    after, opt = second_half(x, L1Ball(1.0), [[-9.0, 1.0, -100.0]], lr=0.1)
    assert float(after.abs().sum()) == 1
    assert after[0, 2] == 0
    assert opt.report().drop == 1
    nothing, opt = second_half(torch.zeros(1, 3), L1Ball(1.0), [[-9.0, 1.0, -100.0]])
    assert not nothing.any()
    assert opt.report().in_face == 0


def test_in_a_face_of_groups_norms_move_along_their_directions_and_groups_vanish():
    x = torch.tensor([[0.3, 0.4], [0.24, -0.32], [0.06, 0.08], [0.0, 0.0]])
    g = torch.tensor([[-1.0, 0.0], [0.0, 0.0], [1.0, 1.0], [5.0, 5.0]])
    after, _ = second_half(x, GroupL1Ball(1.0), g, lr=0.2)
    assert after[2:].tolist() == [[0.0, 0.0], [0.0, 0.0]]
    v = project_simplex(np.array([0.5 + 0.2 * 0.6, 0.4, 0.1 - 0.2 * 1.4]), 1.0)
    np.testing.assert_allclose(after[:2].norm(dim=1), v[:2], rtol=1e-6)
    np.testing.assert_allclose(after[0] / after[0].norm(), [0.6, 0.8], rtol=1e-6)


def test_inside_a_group_ball_active_groups_turn_freely_and_zero_groups_stay_zero():
    x = torch.tensor([[0.1, 0.0], [0.0, 0.0]])
    after, _ = second_half(x, GroupL1Ball(1.0), [[0.0, -1.0], [5.0, 5.0]], lr=0.2)
    np.testing.assert_allclose(after, [[0.1, 0.2], [0.0, 0.0]], rtol=1e-6)


def test_in_a_box_coordinates_at_a_bound_stay_and_the_others_arrive_exactly():
    x = torch.tensor([[0.3, -0.3, 0.1, 0.1, 0.0]])
    after, opt = second_half(x, LInfBall(0.3), [[9.0, -9.0, 9.0, -9.0, 0.5]], lr=0.1)
    assert torch.equal(after, torch.tensor([[0.3, -0.3, -0.3, 0.3, -0.05]]))
    assert opt.report().drop == 1


def test_an_l2_ball_takes_sgd_steps_inside_and_none_on_the_sphere():
    x = torch.tensor([[0.1, 0.2], [0.6, 0.8]])
    after, opt = second_half(x, L2Ball(1.0), [[1.0, -1.0], [1.0, -1.0]], lr=0.1)
    np.testing.assert_allclose(after, [[0.0, 0.3], [0.6, 0.8]], rtol=1e-6, atol=1e-8)
    assert opt.report().in_face == 1
    far, _ = second_half(x[:1], L2Ball(1.0), [[-30.0, -40.0]], lr=1.0)
    assert float(L2Ball(1.0).norm(far)) == pytest.approx(1, abs=2**-22)


def test_a_k_sparse_polytope_keeps_bounds_zeros_and_signs_and_with_k_one_is_the_l1_ball():
    x = torch.tensor([[0.3, 0.2, -0.06, 0.04, 0.0]])  # on the l1 facet of radius 0.3, k = 2
    after, opt = second_half(x, KSparsePolytope(0.3, k=2), [[9.0, -1.0, -1.0, 0.0, 9.0]], lr=0.2)
    # Of the sum 0.6 the bound takes 0.3; v = (0.4, -0.14, 0.04) then gives (0.3, 0, 0).
    np.testing.assert_allclose(after, [[0.3, 0.3, 0.0, 0.0, 0.0]], rtol=1e-6, atol=0)
    assert opt.report().drop == 1
    for x, g in draws(L1Ball(1.5), 12):
        for lr in (0.05, 1.0):
            one, _ = second_half(x, L1Ball(1.5), g, lr)
            two, _ = second_half(x, KSparsePolytope(1.5, k=1), g, lr)
            torch.testing.assert_close(one, two, rtol=0, atol=1e-13)


@pytest.mark.parametrize("inside", [False, True])
def test_in_a_nuclear_ball_the_small_matrix_moves_and_the_singular_spaces_stay(inside):
    rng = np.random.default_rng(0)
    u, _, vt = np.linalg.svd(rng.normal(size=(7, 5)), full_matrices=False)
    u, vt, g = u[:, :3], vt[:3], rng.normal(size=(7, 5))
    x = torch.tensor((u * [0.6, 0.3, 0.1]) @ vt)
    core = np.diag([0.6, 0.3, 0.1]) - 0.05 * u.T @ g @ vt.T
    if inside:
        after, _ = second_half(x, NuclearBall(4.0), g, lr=0.05)
        np.testing.assert_allclose(after, u @ core @ vt, rtol=0, atol=1e-14)
    else:
        after, opt = second_half(x, NuclearBall(1.0), g, lr=0.05)
        values, vectors = np.linalg.eigh((core + core.T) / 2)
        small = (vectors * project_simplex(values, 1.0)) @ vectors.T
        np.testing.assert_allclose(after, u @ small @ vt, rtol=0, atol=1e-14)
        far, opt = second_half(x, NuclearBall(1.0), g, lr=5.0)
        assert np.linalg.matrix_rank(far.numpy(), tol=1e-12) < 3
        assert opt.report().drop == 1
    assert np.linalg.matrix_rank(after.numpy(), tol=1e-12) <= 3


@pytest.mark.parametrize("set_", SETS, ids=lambda s: s.kind)
def test_the_momentum_and_the_sign_of_the_objective_are_those_of_other_steps(set_):
    x, g = next(draws(set_))
    p, opt = optimizer(x, set_, momentum=0.75, maximize=True)
    step(p, opt, torch.zeros_like(x))
    step(p, opt, -g)
    expected, _ = second_half(x, set_, 0.25 * g)
    torch.testing.assert_close(p.detach(), expected, rtol=0, atol=1e-12)
    used = set_.in_use(set_.to_blocks(x))  # elsewhere momentum waits for a gradient of a first half
    seen = g if used is None else set_.from_blocks(used * set_.to_blocks(g), x)
    torch.testing.assert_close(opt.state[p]["momentum_buffer"], 0.25 * seen)


@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("set_", [L1Ball(0.3), Simplex(0.3), GroupL1Ball(0.3)], ids=lambda s: s.kind)
def test_rounding_never_takes_a_block_off_its_face(set_, dtype):
    generator = torch.Generator().manual_seed(0)
    start = set_.project(torch.rand(4, 300, generator=generator, dtype=dtype))
    p, opt = optimizer(start, set_, lr=1e-5, in_face_steps=1000)
    gradients = torch.randn(1001, 4, 300, generator=generator, dtype=dtype)
    gradients[0] = 0
    for g in gradients:
        step(p, opt, g)
    assert opt.report().in_face >= 900
    assert (set_.norm(p.detach()) / 0.3 - 1).abs().max() < 4 * EPS[dtype]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_steps_add_up_in_the_master_copy(dtype):
    x = torch.tensor([[0.5, 0.5]])
    half, opt = optimizer(x.to(dtype), L1Ball(1.0), lr=1e-4, in_face_steps=200)
    full, opt_full = optimizer(x, L1Ball(1.0), lr=1e-4, in_face_steps=200)
    for _ in range(200):
        step(half, opt, [[1.0, 0.0]])
        step(full, opt_full, [[1.0, 0.0]])
    torch.testing.assert_close(opt.state[half]["master"], full.detach(), rtol=1e-4, atol=0)
    assert full[0, 0] < 0.495


def test_a_row_somebody_put_outside_is_projected_and_then_steps():
    p, opt = optimizer(torch.tensor([[0.5, 0.5], [0.5, 0.5]]), L1Ball(1.0), project=True)
    step(p, opt, torch.zeros(2, 2))
    with torch.no_grad():
        p[0] = torch.tensor([1.5, 0.7])
    with pytest.warns(UserWarning, match="lay outside"):
        step(p, opt, [[1.0, 0.0], [1.0, 0.0]])
    np.testing.assert_allclose(p.detach(), [[0.85, 0.15], [0.45, 0.55]], rtol=1e-6)
    assert opt.report().outside == 1


def test_free_blocks_descend_once_per_iteration_and_the_others_stay_on_their_faces():
    radius = torch.tensor([1.0, torch.inf])
    p, opt = optimizer(torch.tensor([[0.5, -0.5], [2.0, 3.0]]), L1Ball(radius), in_face_steps=2)
    for _ in range(3):
        step(p, opt, [[1.0, 1.0], [1.0, 1.0]])
    np.testing.assert_allclose(p[1].detach(), [1.9, 2.9], rtol=1e-6)
    assert float(p[0].detach().abs().sum()) <= 1 + 1e-6


def test_a_set_that_cannot_project_onto_faces_says_so_at_construction():
    class Corner(Set):
        kind = "corner of a test"
        dense_vertex = Simplex.dense_vertex
        block_norm = Simplex.block_norm
        block_project = Simplex.block_project
        diameter = Simplex.diameter

        def dense_face_vertex(self, x, g):
            return x

    assert Corner.has_faces
    assert not Corner.projects_faces
    with pytest.raises(ValueError, match=r"Corner projects onto no faces .* in_face='projected' for group 0"):
        inface.FrankWolfe([{"params": [Parameter(torch.zeros(2, 3))], "set": Corner(1.0)}], 0.1, in_face="projected")
    with pytest.raises(ValueError, match="Corner projects onto no faces"):
        Corner(1.0).face_project(torch.zeros(2, 3), torch.zeros(2, 3))
