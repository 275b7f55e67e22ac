"""Bad input: a ValueError that names parameter, value and what was wanted, before anything is modified."""

import math

import pytest
import torch
from torch import nn
from torch.nn import Parameter

import inface
from inface.sets import GroupL1Ball, KSparsePolytope, L1Ball, L2Ball, LInfBall, NuclearBall, Simplex, SpectralBall


def constrained(set_, shape=(2, 3), **options):
    return inface.FrankWolfe(
        [{"params": [("fc1.weight", Parameter(torch.zeros(shape)))], "set": set_}], lr=0.1, **options
    )


@pytest.mark.parametrize(
    "radius", [0, -1.0, math.nan, math.inf, "1", None, torch.tensor([1.0, -2.0]), torch.ones(2, 2)]
)
def test_a_radius_must_be_positive_and_finite(radius):
    with pytest.raises(ValueError, match=r"L1Ball: .*radius must be"):
        L1Ball(radius)


def test_per_block_radii_must_be_as_many_as_blocks():
    with pytest.raises(
        ValueError, match=r'L1Ball: radius has 3 values, wanted one for each of the 2 blocks .*"fc1.weight"'
    ):
        constrained(L1Ball(torch.ones(3)))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: L1Ball(1.0, per="row"), r"per must be one of 'output', 'input', 'tensor', 'group', got 'row'"),
        (lambda: GroupL1Ball(1.0, groups="node"), "groups must be 'output' or 'input', got 'node'"),
        (lambda: GroupL1Ball(1.0, groups="output", per="output"), "groups and per are both 'output'"),
        (lambda: KSparsePolytope(1.0, k=0), "k must be a whole number >= 1, got 0"),
        (lambda: KSparsePolytope(1.0, k=2.5), "k must be a whole number >= 1, got 2.5"),
    ],
)
def test_a_set_names_what_it_refuses(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("lr", 0.0, "lr must be > 0 and finite, got 0.0"),
        ("lr", -1.0, "lr must be > 0 and finite, got -1.0"),
        ("lr", math.nan, "lr must be > 0 and finite, got nan"),
        ("lr", torch.ones(2), "Tensor lr must be 1-element"),
        ("lr", "fast", "lr must be > 0 and finite, got 'fast'"),
        ("momentum", 1.0, r"momentum must be in \[0, 1\), got 1.0"),
        ("momentum", -0.1, r"momentum must be in \[0, 1\), got -0.1"),
        ("momentum", math.nan, r"momentum must be in \[0, 1\), got nan"),
        (
            "in_face",
            "awry",
            "in_face must be None, 'away', 'frank-wolfe', 'pairwise', 'projected' or a function, got 'awry'",
        ),
        ("norm", "l3", "norm must be one of 'l2', 'l1', 'linf', 'spectral', 'adaptive', got 'l3'"),
        ("betas", (0.9, 1.0), r"betas must be two numbers in \[0, 1\), got \(0.9, 1.0\)"),
        ("betas", (0.9,), r"betas must be two numbers in \[0, 1\), got \(0.9,\)"),
        ("betas", 0.9, r"betas must be two numbers in \[0, 1\), got 0.9"),
        ("eps", -1e-8, "eps must be >= 0 and finite, got -1e-08"),
        ("eps", None, "eps must be >= 0 and finite, got None"),
        ("gradient_bound", 0.0, "gradient_bound must be None or > 0 and finite, got 0.0"),
        ("gradient_bound", math.inf, "gradient_bound must be None or > 0 and finite, got inf"),
        ("set", "l1", "set must be one of inface.sets or None, got 'l1'"),
    ],
)
def test_an_option_names_its_value_and_what_was_wanted(option, value, message):
    with pytest.raises(ValueError, match=message):
        inface.FrankWolfe([{"params": [Parameter(torch.zeros(2))], option: value}], lr=0.1)


def test_a_gradient_bound_per_block_must_be_as_many_as_blocks():
    with pytest.raises(ValueError, match="gradient_bound has 3 values, wanted one for each of the 2 blocks"):
        constrained(L1Ball(1.0), gradient_bound=torch.ones(3))


def test_an_infeasible_start_is_refused_with_its_norm_and_repaired_by_project():
    p = Parameter(torch.tensor([[0.5, 0.5], [3.0, -1.0]]))
    groups = [{"params": [("fc1.weight", p)], "set": L1Ball(1.0)}]
    with pytest.raises(ValueError, match=r'"fc1.weight" starts outside .*block 1 has norm 4.* project=True'):
        inface.FrankWolfe(groups, lr=0.1)
    assert p.tolist() == [[0.5, 0.5], [3.0, -1.0]]
    inface.FrankWolfe([{"params": [p], "set": L1Ball(1.0)}], lr=0.1, project=True)
    assert p.tolist() == [[0.5, 0.5], [1.0, 0.0]]


def test_nothing_is_projected_when_a_later_group_is_wrong():
    outside = Parameter(torch.full((2, 2), 5.0))
    with pytest.raises(ValueError, match="momentum"):
        inface.FrankWolfe(
            [{"params": [outside], "set": L1Ball(1.0)}, {"params": [Parameter(torch.zeros(2))], "momentum": 2.0}],
            lr=0.1,
            project=True,
        )
    assert (outside == 5).all()


def test_a_refused_group_is_not_added():
    opt = constrained(L1Ball(1.0))
    with pytest.raises(ValueError, match="starts outside"):
        opt.add_param_group({"params": [("fc2.weight", Parameter(torch.ones(2, 2)))], "set": L1Ball(1.0)})
    assert len(opt.param_groups) == 1


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int64])
def test_a_parameter_of_another_dtype_is_named(dtype):
    p = torch.zeros(2, dtype=dtype)
    with pytest.raises(ValueError, match=rf'"fc1.weight" has dtype {dtype}'):
        inface.FrankWolfe([("fc1.weight", p)], lr=0.1)


def test_a_sparse_gradient_is_named_and_nothing_moves():
    first, second = Parameter(torch.ones(3)), nn.Embedding(4, 2, sparse=True)
    opt = inface.FrankWolfe([("first", first), ("embedding.weight", second.weight)], lr=0.1)
    (second(torch.tensor([1])).sum() + first.sum()).backward()
    with pytest.raises(ValueError, match=r'"embedding.weight" has a gradient of layout torch.sparse_coo'):
        opt.step()
    assert first.tolist() == [1.0, 1.0, 1.0]


def test_in_face_steps_are_refused_where_a_set_has_no_faces():
    with pytest.raises(ValueError, match=r"SpectralBall offers no in-face steps .*'away'.*\"fc1.weight\""):
        constrained(SpectralBall(1.0), in_face="away")
    with pytest.raises(ValueError, match="SpectralBall has no faces"):
        SpectralBall(1.0).face_vertex(torch.zeros(2, 2), torch.zeros(2, 2))


@pytest.mark.parametrize("set_", [GroupL1Ball(1.0, groups="input"), GroupL1Ball(1.0, groups="input", per="output")])
def test_groups_of_a_vector_are_refused(set_):
    with pytest.raises(ValueError, match=r'needs a parameter of at least two dimensions, got parameter "fc1.weight"'):
        constrained(set_, shape=(3,))


@pytest.mark.parametrize(
    ("direction", "message"),
    [
        (lambda s, x, g: g, 'wanted <g, d> <= 0 in block 0 of parameter "fc1.weight", got 3'),
        (lambda s, x, g: -5 * g, r"wanted \|d\| <= diam in block 0"),
        (lambda s, x, g: g * math.nan, "wanted a finite direction in block 0"),
        (lambda s, x, g: g[:1], "wanted directions of shape"),
        (lambda s, x, g: None, "wanted directions of shape .* got NoneType"),
    ],
)
def test_a_direction_that_breaks_step_4b_is_refused_before_any_parameter_moves(direction, message):
    free, p = Parameter(torch.ones(3)), Parameter(torch.zeros(2, 3))
    opt = inface.FrankWolfe(
        [{"params": [("free", free)]}, {"params": [("fc1.weight", p)], "set": LInfBall(0.5), "in_face": direction}],
        lr=0.1,
        momentum=0.5,
    )
    p.grad, free.grad = torch.ones(2, 3), torch.ones(3)
    opt.step()
    before = [free.detach().clone(), p.detach().clone(), opt.state[p]["momentum_buffer"].clone()]
    with pytest.raises(ValueError, match=message):
        opt.step()
    assert all(torch.equal(a, b) for a, b in zip(before, [free, p, opt.state[p]["momentum_buffer"]], strict=True))


@pytest.mark.parametrize(
    "call",
    [
        lambda: inface.convex_bound(inface.FrankWolfe([Parameter(torch.ones(1))], lr=1.0).report().gap, R=-1.0),
        lambda: inface.theory.squared_gap_bound(-1, L=1, initial=1, sigma=1, kappa=1, batch_sizes=1),
        lambda: inface.theory.squared_gap_bound(3, L=1, initial=1, sigma=1, kappa=1, batch_sizes=[1, 1, 1]),
        lambda: inface.theory.squared_gap_bound(3, L=1, initial=1, sigma=1, kappa=1, batch_sizes=lambda k: k),
        lambda: inface.theory.squared_gap_bound(3, L=1, initial=1, sigma=1, batch_sizes=1, kappa=0.5),
        lambda: inface.batches.constant(0),
        lambda: inface.batches.growing(0.0),
        lambda: inface.batches.RandomBatches(0, inface.batches.constant(1), iterations=1),
        lambda: inface.sparsity.nonzeros(nn.Linear(2, 2), -1.0),
        lambda: inface.sparsity.nonzeros(nn.Linear(2, 2)),
        lambda: inface.sparsity.nonzeros(nn.Linear(2, 2), layers="fc"),
        lambda: inface.sparsity.hard_threshold(nn.Linear(2, 2), 0.0, layers="weight"),
        lambda: inface.sparsity.hard_threshold(nn.Linear(2, 2), 5, layers="weight"),
        lambda: inface.sparsity.hard_threshold(nn.Linear(2, 2), 0.5, layers="weight", scope="network"),
        lambda: inface.modified_gap(nn.Linear(2, 2), nn.functional.mse_loss, [], constrained(L1Ball(1.0))),
    ],
)
def test_the_smaller_functions_refuse_bad_values_too(call):
    with pytest.raises(ValueError, match=r"must be|wanted|matches no|is constrained by"):
        call()


def test_a_convex_bound_with_free_parameters_wants_their_distance():
    p = Parameter(torch.ones(2))
    opt = inface.FrankWolfe([p], lr=0.1)
    p.grad = torch.tensor([3.0, 4.0])
    opt.step()
    with pytest.raises(ValueError, match=r"R must be given.* gradient norm is 5"):
        inface.convex_bound(opt.report().gap)


@pytest.mark.parametrize("project", [False, True])
@pytest.mark.parametrize("set_", [L1Ball(1.0), LInfBall(1.0), SpectralBall(1.0)], ids=lambda s: s.kind)
def test_a_start_that_is_not_finite_is_refused_whatever_may_be_projected(set_, project):
    p = Parameter(torch.tensor([[0.1, 0.2], [math.nan, 0.0]]))
    with pytest.raises(ValueError, match=r'"fc1.weight" is not finite in block \d'):
        inface.FrankWolfe([{"params": [("fc1.weight", p)], "set": set_}], lr=0.1, project=project)


@pytest.mark.parametrize("options", [{"in_face": lambda s, x, g: -g}, {"differentiable": True}])
def test_the_kernel_is_refused_where_only_torch_operations_will_do(options):
    with pytest.raises(ValueError, match=r'fused=True does not go with .*"fc1.weight"'):
        constrained(L1Ball(1.0), fused=True, **options)


@pytest.mark.parametrize("option", ["maximize", "every_gradient", "project"])
def test_a_word_is_not_a_yes_or_no(option):
    with pytest.raises(ValueError, match=rf"{option} must be True or False, got 'no'.*group 0: fc1.weight"):
        constrained(L1Ball(1.0), **{option: "no"})


@pytest.mark.parametrize("lr", [-1.0, math.nan, math.inf])
def test_a_learning_rate_that_went_wrong_stops_the_step_before_anything_moves(lr):
    opt = constrained(L1Ball(1.0))
    p = opt.param_groups[0]["params"][0]
    p.grad = torch.ones(2, 3)
    opt.param_groups[0]["lr"] = lr
    with pytest.raises(ValueError, match="lr must be >= 0 and finite"):
        opt.step()
    assert (p == 0).all()


def test_numbers_of_numpy_are_numbers():
    numpy = pytest.importorskip("numpy")
    inface.FrankWolfe([Parameter(torch.zeros(2))], lr=numpy.float32(0.1), momentum=numpy.float64(0.5))


def test_an_argument_with_another_number_of_blocks_or_of_whole_numbers_is_refused():
    with pytest.raises(ValueError, match="radius has 2 values, wanted one for each of the 1 blocks of an argument"):
        L1Ball(torch.tensor([1.0, 2.0])).contains(torch.zeros(5))
    with pytest.raises(ValueError, match=r"wanted a floating-point tensor, got torch\.int64"):
        L1Ball(1.0).vertex(torch.zeros(2, 2, dtype=torch.long))


@pytest.mark.parametrize("norm", ["l2", "l1", "linf", "spectral", "adaptive"])
def test_a_free_gradient_that_is_not_finite_is_taken_as_sgd_takes_it(norm):
    p, w = Parameter(torch.ones(2, 2)), Parameter(torch.zeros(2, 2))
    opt = inface.FrankWolfe([{"params": [w], "set": L1Ball(1.0)}, {"params": [p]}], lr=0.1, norm=norm)
    p.grad, w.grad = torch.tensor([[math.nan, 1.0], [1.0, 1.0]]), torch.ones(2, 2)
    opt.step()
    assert torch.isnan(p).any()
    assert torch.isfinite(w).all()


@pytest.mark.parametrize(
    "kind", [L1Ball, GroupL1Ball, Simplex, LInfBall, L2Ball, KSparsePolytope, NuclearBall, SpectralBall]
)
def test_a_set_without_a_radius_says_what_it_wants(kind):
    with pytest.raises(
        ValueError, match=rf"^{kind.__name__}: radius must be given, a number > 0 or a tensor .*, got None"
    ):
        kind()


def test_a_k_sparse_polytope_without_k_says_what_it_wants():
    with pytest.raises(ValueError, match="KSparsePolytope: k must be a whole number >= 1, got None"):
        KSparsePolytope(1.0)


def test_a_start_outside_of_a_common_set_names_that_set():
    params = [("a", Parameter(torch.ones(2, 3))), ("b", Parameter(torch.ones(3)))]
    with pytest.raises(ValueError, match=r'"a \+ b" starts outside its L1Ball\(radius=1\.0, per=\'group\'\)'):
        inface.FrankWolfe([{"params": params, "set": L1Ball(1.0, per="group")}], lr=0.1)


def test_the_shape_of_a_parameter_without_a_name_is_said_once():
    with pytest.raises(ValueError, match=r"of group 0, parameter 0 of shape \(2, 3\) \(per='output'\)"):
        inface.FrankWolfe([{"params": [Parameter(torch.zeros(2, 3))], "set": L1Ball(torch.ones(5))}], lr=0.1)
