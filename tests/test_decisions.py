"""Where the paper is loose, a decision was made; each of these fails without it."""

import numpy as np
import pytest
import torch
from torch.nn import Parameter

import inface
from inface.sets import GroupL1Ball, KSparsePolytope, L1Ball, L2Ball, LInfBall, NuclearBall, Simplex

BOTH_PATHS = True

STRATEGIES = ["away", "frank-wolfe", "pairwise", "projected"]
SETS = [
    L1Ball(1.5),
    Simplex(1.5),
    GroupL1Ball(1.5),
    LInfBall(0.5),
    KSparsePolytope(0.5, k=3),
    L2Ball(1.5),
    NuclearBall(1.5),
]


def optimizer(x, set_, lr=0.1, **options):
    """One constrained parameter that starts at ``x``."""
    p = Parameter(torch.as_tensor(x).clone())
    return p, inface.FrankWolfe([{"params": [p], "set": set_}], lr=lr, **options)


def step(p, opt, g):
    p.grad = torch.as_tensor(g, dtype=p.dtype).reshape(p.shape).clone()
    opt.step()


def second_half(x, set_, g, strategy="away", lr=0.1, **options):
    """The parameter after a second half with gradient ``g``; the first half, with a zero gradient, moves nothing."""
    p, opt = optimizer(x, set_, lr, in_face=strategy, **options)
    step(p, opt, torch.zeros_like(p))
    step(p, opt, g)
    return p.detach(), opt


# 1. The away vertex is the arg max over the minimal face, by sign(x_j) g_j on the support.


def test_the_away_step_leaves_the_worst_edge_of_the_support_not_the_largest_gradient():
    x = torch.tensor([[0.5, -0.5, 0.0]], dtype=torch.float64)
    g = torch.tensor([[1.0, 2.0, 9.0]], dtype=torch.float64)
    # On the support sign(x) g = (1, -2): the worst vertex is +e_0, so weight flows from x_0 to x_1; x_2 stays zero.
    after, _ = second_half(x, L1Ball(1.0), g)
    assert after[0, 0] < 0.5
    assert after[0, 1] < -0.5
    assert after[0, 2] == 0


# 2. d = 0 and beta = 0 are legal.


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("set_", SETS, ids=lambda s: s.kind)
def test_a_zero_gradient_leaves_constrained_parameters_bit_identical_in_both_halves(set_, strategy):
    start = set_.project(torch.randn(5, 6, generator=torch.Generator().manual_seed(0)))
    start[0] = set_.vertex(torch.randn(5, 6))[0] if set_.per == "output" else start[0]
    p, opt = optimizer(start, set_, in_face=strategy)
    for _ in range(4):
        step(p, opt, torch.zeros(5, 6))
        assert torch.equal(p.detach(), start)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_vertex_is_a_face_of_its_own_and_does_not_move_in_the_second_half(strategy):
    x = torch.tensor([[0.0, -1.0, 0.0]])
    after, opt = second_half(x, L1Ball(1.0), [[3.0, 5.0, -7.0]], strategy)
    assert torch.equal(after, x)
    assert opt.report().in_face == 0


# 3. alpha is clamped to [0, 1], and counted.


def test_a_huge_step_is_clamped_to_the_vertex_and_counted():
    p, opt = optimizer(torch.full((2, 4), 0.1), L1Ball(1.0), lr=1e6)
    step(p, opt, [[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, -1.0, 0.0]])
    assert p.tolist() == [[-1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]]
    assert opt.report().clamped == 2


def test_a_small_step_is_not_counted_as_clamped():
    p, opt = optimizer(torch.full((2, 4), 0.1), L1Ball(1.0), lr=0.1)
    step(p, opt, torch.ones(2, 4))
    assert (opt.report().frank_wolfe, opt.report().clamped) == (2, 0)


# 4. "On the boundary" is relative to the radius, and does not depend on the size of the block.


@pytest.mark.parametrize("radius", [1e-2, 1.0, 1e3])
@pytest.mark.parametrize("width", [4, 20_000])
def test_slack_of_one_part_in_ten_thousand_is_the_interior_at_any_radius_and_width(radius, width):
    x = torch.zeros(1, width)
    x[0, :2] = radius * torch.tensor([0.75, 0.25]) * (1 - 1e-4)
    g = torch.zeros(1, width)
    g[0, 3] = 1.0
    # The worst vertex of the whole ball is +r e_3, which an in-face step cannot see: an interior step adds that edge.
    after, _ = second_half(x, L1Ball(radius), g)
    assert after[0, 3] < 0


@pytest.mark.parametrize("radius", [1e-2, 1.0, 1e3])
@pytest.mark.parametrize("width", [4, 20_000])
def test_a_point_within_rounding_of_the_sphere_is_on_the_boundary_at_any_radius_and_width(radius, width):
    weights = torch.rand(1, width, generator=torch.Generator().manual_seed(0)) + 0.1
    weights[0, 3] = 0
    x = (weights * (radius / weights.sum(dtype=torch.float64))).float()
    support = x != 0
    g = torch.zeros(1, width)
    g[0, 3] = 1.0
    g[0, 0] = 1e-3
    after, _ = second_half(x, L1Ball(radius), g, lr=radius)
    assert not ((after != 0) & ~support).any()
    assert after[0, 0] < x[0, 0]


def test_the_norm_of_a_wide_block_is_accumulated_in_more_than_its_own_precision():
    # 2**25 ones in float32 add up to 2**24 in float32.
    blocks = torch.full((1, 2**25), 2.0**-25)
    assert L1Ball(1.0).norm(blocks).item() == 1.0


# 5. A maximal step lands exactly.


@pytest.mark.parametrize("strategy", ["away", "pairwise", "projected"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_drop_leaves_an_exact_zero(strategy, dtype):
    x = torch.tensor([[0.1, 0.2, 0.7]], dtype=dtype)
    x = x / x.sum()
    after, opt = second_half(x, L1Ball(1.0), [[1.0, 0.0, -1.0]], strategy, lr=1e3)
    assert after[0, 0] == 0
    assert opt.report().drop == 1


def test_a_dropped_group_is_exactly_zero():
    x = torch.tensor([[0.06, 0.08], [0.54, 0.72]])
    after, _ = second_half(x, GroupL1Ball(1.0), [[1.0, 1.0], [-1.0, -1.0]], lr=1e3)
    assert after[0].tolist() == [0.0, 0.0]
    assert after[1].norm() == pytest.approx(1.0)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_maximal_step_in_a_box_lands_exactly_on_the_bound(strategy):
    x = torch.tensor([[0.29, -0.1, 0.1]])
    after, _ = second_half(x, LInfBall(0.3), [[-1.0, 0.5, 0.5]], strategy, lr=1e3)
    assert after[0, 0] == torch.tensor(0.3)
    assert after.abs().max() <= torch.tensor(0.3)


def test_a_maximal_step_in_a_k_sparse_polytope_lands_exactly_on_zero_or_bound():
    x = torch.tensor([[0.3, 0.2, 0.06, 0.04]])  # on the l1 facet of radius 0.3, k = 2
    after, _ = second_half(x, KSparsePolytope(0.3, k=2), [[0.0, -1.0, 0.5, 1.0]], lr=1e3)
    assert after[0, 0] == torch.tensor(0.3)
    assert (after == 0).any() or (after[0, 1] == torch.tensor(0.3))
    assert after.abs().sum() == pytest.approx(0.6, rel=1e-6)


# 6. Rounding never accumulates, in either direction.


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("set_", [L1Ball(0.3), Simplex(0.3), GroupL1Ball(0.3)], ids=lambda s: s.kind)
def test_a_block_stays_on_the_sphere_it_is_kept_on_for_thousands_of_steps(set_, strategy):
    generator = torch.Generator().manual_seed(0)
    start = set_.project(torch.rand(4, 300, generator=generator))
    p, opt = optimizer(start, set_, lr=1e-4, in_face=strategy)
    for k in range(2000):
        # All entries want to grow, so a first half stays on the sphere too, except between groups' directions.
        g = -torch.rand(4, 300, generator=generator)
        step(p, opt, g * 0 if set_.kind == "group-l1" and k % 2 == 0 else g)
    assert (set_.norm(p.detach()) / 0.3 - 1).abs().max() < 4 * torch.finfo(torch.float32).eps


# 7. Ties, NaN and missing gradients.


def test_ties_go_to_the_lowest_index_and_the_vertex_of_zero_is_the_first_positive_one():
    assert L1Ball(2.0).vertex(torch.tensor([[1.0, -1.0, 1.0]])).tolist() == [[-2.0, 0.0, 0.0]]
    assert L1Ball(2.0).vertex(torch.zeros(1, 3)).tolist() == [[2.0, 0.0, 0.0]]
    assert Simplex(2.0).vertex(torch.zeros(1, 3)).tolist() == [[2.0, 0.0, 0.0]]
    assert KSparsePolytope(2.0, k=2).vertex(torch.ones(1, 4)).tolist() == [[-2.0, -2.0, 0.0, 0.0]]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("set_", SETS, ids=lambda s: s.kind)
def test_a_gradient_that_is_not_finite_leaves_its_block_and_momentum_alone_and_the_phase_advances(set_, strategy, bad):
    start = set_.project(0.1 * torch.randn(5, 6, generator=torch.Generator().manual_seed(0)))
    p, opt = optimizer(start, set_, in_face=strategy, momentum=0.5)
    for _ in range(3):
        step(p, opt, torch.ones(5, 6))
    before, average = p.detach().clone(), opt.state[p]["momentum_buffer"].clone()
    g = torch.ones(5, 6)
    g[2, slice(None) if strategy == "projected" else 4] = bad  # projected steps look at what a block uses
    for _ in range(2):
        phase = opt.state[p]["phase"]
        step(p, opt, g)
        assert opt.state[p]["phase"] == 1 - phase
        rows = slice(2, 3) if set_.per == "output" else slice(None)
        assert torch.equal(p.detach()[rows], before[rows])
        torch.testing.assert_close(opt.state[p]["momentum_buffer"][rows], average[rows], rtol=0, atol=0, equal_nan=True)
    assert torch.isfinite(p).all()
    assert torch.isfinite(opt.gap)
    assert opt.report().skipped == 2


def test_a_projected_step_looks_at_gradients_and_momentum_where_its_weights_are_not_zero():
    p, opt = optimizer(torch.tensor([[0.5, 0.0, -0.5]]), L1Ball(2.0), in_face="projected", momentum=0.5)
    step(p, opt, torch.zeros(1, 3))
    step(p, opt, torch.tensor([[1.0, float("nan"), 3.0]]))
    assert opt.state[p]["momentum_buffer"].tolist() == [[0.5, 0.0, 1.5]]
    lr = opt.param_groups[0]["lr"]
    torch.testing.assert_close(p.detach(), torch.tensor([[0.5 - 0.5 * lr, 0.0, -0.5 - 1.5 * lr]]).to(p.dtype))


@pytest.mark.parametrize("set_", SETS, ids=lambda s: s.kind)
def test_a_function_as_in_face_skips_blocks_whose_gradient_is_not_finite_too(set_):
    start = set_.project(torch.randn(5, 6, generator=torch.Generator().manual_seed(0)))
    p, opt = optimizer(start, set_, in_face=lambda s, x, g: s.dense_vertex(torch.nan_to_num(g, 0, 0, 0)) - x)
    step(p, opt, torch.ones(5, 6))
    before = p.detach().clone()
    g = torch.ones(5, 6)
    g[2, 4] = float("nan")
    step(p, opt, g)
    rows = slice(2, 3) if set_.per == "output" else slice(None)
    assert torch.equal(p.detach()[rows], before[rows])
    assert opt.report().skipped == 1


def test_the_first_finite_gradient_starts_the_average_of_a_block_that_began_with_nan():
    p, opt = optimizer(torch.zeros(2, 3), L1Ball(1.0), momentum=0.9)
    step(p, opt, [[float("nan"), 0.0, 0.0], [1.0, 0.0, 0.0]])
    step(p, opt, [[2.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    assert opt.state[p]["momentum_buffer"][:, 0].tolist() == [2.0, 1.0]


def test_a_parameter_without_a_gradient_is_left_out_and_keeps_its_phase():
    p, opt = optimizer(torch.zeros(2, 3), L1Ball(1.0), in_face="away")
    step(p, opt, torch.ones(2, 3))
    before = p.detach().clone()
    p.grad = None
    opt.step()
    assert torch.equal(p.detach(), before)
    assert opt.state[p]["phase"] == 1


# 8. Half precision is computed in float32, with a copy in the state.


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_steps_that_half_precision_would_swallow_still_add_up(dtype):
    half, opt_half = optimizer(torch.full((1, 4), 0.25, dtype=dtype), L1Ball(1.0), lr=1e-3)
    full, opt_full = optimizer(torch.full((1, 4), 0.25), L1Ball(1.0), lr=1e-3)
    for _ in range(500):
        step(half, opt_half, [[0.0, 0.0, 0.0, -1.0]])
        step(full, opt_full, [[0.0, 0.0, 0.0, -1.0]])
    assert full[0, 3] > 0.3
    torch.testing.assert_close(half.float(), full.detach(), rtol=2**-7, atol=0)


# 9. In the interior the minimal face is the whole set.


def test_an_away_step_from_the_interior_may_add_a_coordinate():
    after, _ = second_half([[0.1, 0.0]], L1Ball(1.0), [[0.0, 1.0]])
    assert after[0, 1] < 0


def test_an_interior_away_step_that_goes_as_far_as_it_can_lands_on_the_sphere():
    after, _ = second_half(np.array([[0.1, 0.2]]), L1Ball(1.0), [[0.0, 1.0]], lr=1e6)
    assert after.abs().sum().item() == pytest.approx(1.0, abs=1e-15)
