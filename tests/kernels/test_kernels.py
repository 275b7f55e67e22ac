"""The fused kernels and the torch operations do the same, and the kernels are nobody's burden."""

import json
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import Parameter

import inface
from inface.kernels import alike, fits
from inface.sets import GroupL1Ball, L1Ball, L2Ball, LInfBall, NuclearBall, Simplex

SETS = [L1Ball, Simplex, LInfBall, GroupL1Ball, L2Ball]
STRATEGIES = [None, "away", "frank-wolfe", "pairwise", "projected"]
DTYPES = [torch.float32, torch.float64]


def run(start, gradients, set_, *, fused, lr=0.1, **options):
    """Every iterate, the last gaps and the counts."""
    p = Parameter(start.clone())
    opt = inface.FrankWolfe([{"params": [p], "set": set_}], lr=lr, fused=fused, **options)
    iterates = []
    for g in gradients:
        p.grad = g.clone()
        opt.step()
        iterates.append(p.detach().clone())
    report = opt.report()
    counts = (report.frank_wolfe, report.clamped, report.in_face, report.drop, report.skipped)
    return iterates, next(iter(report.gap.blocks.values())), counts, opt.state[p].get("momentum_buffer")


def assert_same(start, gradients, set_, *, ulps=64, **options):
    """Both paths agree at every step to a few units in the last place of the radius, and in every zero.

    The length of a projected step has the rounding of its gradient step, which may be much longer than the radius.
    """
    reach = float(torch.as_tensor(set_.radius).max())
    if options.get("in_face") == "projected":
        reach += options.get("lr", 0.1) * max(float(g.abs().nan_to_num(0, 0, 0).max()) for g in gradients)
    tol = ulps * torch.finfo(start.dtype).eps * reach
    for fused, torch_path in zip(
        *(run(start, gradients, set_, fused=fused, **options)[0] for fused in (True, False)), strict=True
    ):
        torch.testing.assert_close(fused, torch_path, rtol=0, atol=tol)
        assert ((fused == 0) == (torch_path == 0)).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("set_", SETS)
@pytest.mark.parametrize("shape", [(1, 1), (5, 1), (1, 7), (3, 255), (2, 256), (3, 257), (2, 600), (9,), (4, 3, 5, 5)])
def test_both_paths_agree_on_every_shape(shape, set_, strategy, dtype):
    generator = torch.Generator().manual_seed(0)
    ball = set_(0.7)
    start = ball.project(torch.randn(shape, generator=generator, dtype=dtype))
    gradients = torch.randn(4, *shape, generator=generator, dtype=dtype)
    for options in (
        {},
        {"momentum": 0.9},
        {"maximize": True},
        {"momentum": 0.3, "maximize": True},
        {"gradient_bound": 0.5},
    ):
        assert_same(start, gradients, ball, in_face=strategy, **options)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("set_", SETS)
def test_both_paths_take_the_same_vertex_on_ties_and_signed_zeros(set_, strategy, dtype):
    ball = set_(1.0)
    values = torch.tensor([-1.0, -0.0, 0.0, 1.0], dtype=dtype)
    generator = torch.Generator().manual_seed(0)
    for _ in range(30):
        gradients = values[torch.randint(4, (2, 6, 40), generator=generator)]
        start = ball.project(values[torch.randint(4, (6, 40), generator=generator)])
        # No round step size: a step that meets its limit exactly would be maximal on one path and not on the other.
        assert_same(start, gradients, ball, lr=0.77, in_face=strategy)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("set_", SETS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_both_paths_leave_rows_alone_whose_gradient_is_not_finite(set_, strategy, momentum):
    ball = set_(1.0)
    start = ball.project(torch.randn(8, 300, generator=torch.Generator().manual_seed(0)))
    gradients = torch.randn(6, 8, 300, generator=torch.Generator().manual_seed(1))
    gradients[0, 0, 17], gradients[1, 1, 299], gradients[2, 2, 0] = float("nan"), float("inf"), -float("inf")
    gradients[3, 0, 5] = float("nan")
    if strategy == "projected":  # such a half looks at what a row uses: all of it is spoiled
        gradients[1, slice(None) if ball.per == "tensor" else 1] = float("inf")
        gradients[3, slice(None) if ball.per == "tensor" else 0] = float("nan")
    fused, torch_path = (
        run(start, gradients, ball, fused=f, in_face=strategy, momentum=momentum) for f in (True, False)
    )
    assert fused[2] == torch_path[2]
    assert fused[2][-1] == 4
    torch.testing.assert_close(fused[0][-1], torch_path[0][-1], rtol=0, atol=1e-5)
    if momentum:
        torch.testing.assert_close(fused[3], torch_path[3], equal_nan=True)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("set_", SETS)
def test_both_paths_agree_on_zero_rows_vertices_denormals_and_zero_gradients(set_, strategy):
    ball = set_(1.0)
    start = ball.project(torch.randn(6, 50, generator=torch.Generator().manual_seed(0)))
    if set_ is not Simplex:
        start[0] = 0
        start[5, 10:] = 1e-42
        start[5, 0] = 0.5
    start[1] = ball.vertex(torch.randn(6, 50, generator=torch.Generator().manual_seed(2)))[1]
    gradients = torch.randn(4, 6, 50, generator=torch.Generator().manual_seed(1))
    gradients[:, 3] = 0
    gradients[:, 4] *= 1e-42
    assert_same(start, gradients, ball, in_face=strategy)


@given(st.data())
def test_both_paths_agree_on_whatever_hypothesis_draws(data):
    set_ = data.draw(st.sampled_from(SETS))
    ball = set_(data.draw(st.sampled_from([1e-2, 1.0, 1e3])))
    rows, width = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 9))
    numbers = st.lists(
        st.sampled_from([-2.0, -1.0, -0.5, 0.0, 1e-3, 0.5, 1.0, 2.0]), min_size=rows * width, max_size=rows * width
    )
    start, *gradients = (torch.tensor(data.draw(numbers), dtype=torch.float64).reshape(rows, width) for _ in range(3))
    assert_same(
        ball.project(start * ball.radius),
        gradients,
        ball,
        lr=data.draw(st.sampled_from([1e-2, 1.0, 1e4])),
        in_face=data.draw(st.sampled_from(STRATEGIES)),
        momentum=data.draw(st.sampled_from([0.0, 0.5])),
    )


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("set_", SETS)
def test_gaps_and_counts_are_the_same(set_, strategy):
    ball = set_(0.5)
    start = ball.project(torch.randn(20, 30, generator=torch.Generator().manual_seed(0)))
    gradients = torch.randn(7, 20, 30, generator=torch.Generator().manual_seed(1))
    fused, torch_path = (run(start, gradients, ball, fused=f, in_face=strategy, lr=0.5) for f in (True, False))
    torch.testing.assert_close(fused[1], torch_path[1], rtol=1e-4, atol=1e-6)
    assert fused[2] == torch_path[2]
    assert fused[2][0] > 0


@pytest.mark.parametrize("set_", SETS)
def test_per_block_radii_and_per_tensor_balls_agree(set_):
    start = torch.rand(6, 40, generator=torch.Generator().manual_seed(0))
    gradients = torch.randn(4, 6, 40, generator=torch.Generator().manual_seed(1))
    several = {"groups": "input", "per": "output"} if set_ is GroupL1Ball else {}
    for ball in (set_(torch.linspace(0.5, 2.0, 6), **several), set_(2.0, per="tensor")):
        assert_same(ball.project(start), gradients, ball, in_face="away")


@pytest.mark.parametrize("set_", SETS)
@pytest.mark.parametrize("strategy", ["away", "pairwise", "projected"])
def test_the_result_does_not_depend_on_the_number_of_threads(set_, strategy):
    ball = set_(1.0)
    start = ball.project(torch.randn(401, 5300, generator=torch.Generator().manual_seed(0)))
    gradients = torch.randn(2, 401, 5300, generator=torch.Generator().manual_seed(1))
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(run(start, gradients, ball, fused=True, in_face=strategy, momentum=0.5))
    finally:
        torch.set_num_threads(1)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0][0], other[0], strict=True))
        assert torch.equal(results[0][1], other[1])
        assert results[0][2] == other[2]


@pytest.mark.parametrize("fused", [None, False])
def test_what_the_kernels_do_not_take_goes_through_torch(fused):
    weight = torch.randn(30, 20, generator=torch.Generator().manual_seed(0))
    g = torch.randn(30, 20, generator=torch.Generator().manual_seed(1))
    expected = run(
        L1Ball(1.0, per="input").project(weight), [g, g], L1Ball(1.0, per="input"), fused=False, in_face="away"
    )[0][-1]
    # The same blocks as rows of a transposed parameter: not contiguous, and with a gradient that is.
    p = Parameter(L1Ball(1.0, per="input").project(weight).T)
    assert not p.is_contiguous()
    opt = inface.FrankWolfe([{"params": [p], "set": L1Ball(1.0)}], lr=0.1, in_face="away", fused=fused)
    for _ in range(2):
        p.grad = g.T.contiguous()
        opt.step()
    torch.testing.assert_close(p.detach().T, expected)


def test_a_gradient_that_is_not_contiguous_is_no_obstacle():
    start = L1Ball(1.0).project(torch.randn(30, 20, generator=torch.Generator().manual_seed(0)))
    g = torch.randn(20, 30, generator=torch.Generator().manual_seed(1)).T
    assert_same(start, [g, torch.ones(1, 1).expand(30, 20), g], L1Ball(1.0), in_face="away")


@pytest.mark.parametrize(
    ("parameter", "set_"),
    [
        (torch.zeros(3, 4).T, L1Ball(1.0)),
        (torch.zeros(3, 4), L1Ball(1.0, per="input")),
        (torch.zeros(3, 4), GroupL1Ball(1.0, groups="input")),
        (torch.zeros(3, 4), NuclearBall(1.0)),
    ],
)
def test_asking_for_the_kernel_where_it_cannot_be_is_an_error_that_says_why(parameter, set_):
    with pytest.raises(ValueError, match=r'fused=True wants contiguous CPU memory .* got parameter "w"'):
        inface.FrankWolfe([{"params": [("w", Parameter(parameter))], "set": set_}], lr=0.1, fused=True)


def test_another_word_for_fused_is_refused():
    with pytest.raises(ValueError, match="fused must be None, True or False, got 'yes'"):
        inface.FrankWolfe([Parameter(torch.zeros(2))], lr=0.1, fused="yes")


# ---------------------------------------------------------------------- in processes of their own

STEP = """
import json, sys, time, warnings
import torch
torch.set_num_threads(1)
warnings.simplefilter("always")
import inface
from inface.sets import L1Ball
early = "numba" in sys.modules
p = torch.nn.Parameter(torch.zeros(2, 3))
opt = inface.FrankWolfe([{"params": [p], "set": L1Ball(1.0)}], lr=1.0, in_face="away")
with warnings.catch_warnings(record=True) as caught:
    for _ in range(3):
        p.grad = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, -1.0]])
        opt.step()
from inface.kernels import available
kernel = available(L1Ball(1.0), torch.float32)
hits = sum(kernel.stats.cache_hits.values()) if kernel else None
print(json.dumps({"early": early, "fused": kernel is not None, "hits": hits, "p": p.tolist(),
                  "warnings": [str(w.message) for w in caught]}))
"""


def in_a_process(prelude="", **environment):
    done = subprocess.run(
        [sys.executable, "-c", prelude + STEP],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def expected():
    p = Parameter(torch.zeros(2, 3))
    opt = inface.FrankWolfe([{"params": [p], "set": L1Ball(1.0)}], lr=1.0, in_face="away", fused=False)
    for _ in range(3):
        p.grad = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, -1.0]])
        opt.step()
    return p.tolist()


def test_importing_the_library_imports_no_compiler_and_a_second_process_compiles_nothing(tmp_path, expected):
    first, second = (in_a_process(NUMBA_CACHE_DIR=str(tmp_path)) for _ in range(2))
    assert not first["early"]
    assert (first["hits"], second["hits"]) == (0, 1)
    assert first["p"] == second["p"] == expected


def test_no_place_for_a_cache_is_not_an_error(tmp_path, expected):
    file = tmp_path / "file"
    file.touch()
    result = in_a_process(NUMBA_CACHE_DIR=str(file / "cache"), NUMBA_CACHE_LOCATOR_CLASSES="UserProvidedCacheLocator")
    assert result["fused"]
    assert result["p"] == expected
    assert result["warnings"] == []


def test_without_numba_torch_operations_do_it_after_one_warning(expected):
    result = in_a_process("import sys\nsys.modules['numba'] = None\n")
    assert not result["fused"]
    assert result["p"] == expected
    assert len(result["warnings"]) == 1
    assert "fused kernels are not available" in result["warnings"][0]


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_memory_that_changed_under_a_parameter_is_never_stepped_on_blindly(momentum):
    p = Parameter(torch.zeros(8, 16))
    opt = inface.FrankWolfe([{"params": [p], "set": L1Ball(1.0)}], lr=0.1, momentum=momentum)
    p.grad = torch.ones(8, 16)
    opt.step()
    # Another shape, with a gradient to match, and a momentum that does not.
    p.data = torch.zeros(2, 3)
    p.grad = torch.ones(2, 3)
    if momentum:
        with pytest.raises(RuntimeError, match="must match the size"):
            opt.step()
        opt.state[p]["momentum_buffer"] = torch.zeros(2, 3)
    opt.step()
    assert (p != 0).sum() == 2


def test_autograd_is_told_of_the_memory_that_a_kernel_writes():
    p = Parameter(torch.zeros(2, 3))
    opt = inface.FrankWolfe([{"params": [p], "set": L1Ball(1.0)}], lr=0.1, momentum=0.5, fused=True)
    loss = p.square().sum()
    loss.backward(retain_graph=True)
    p.grad = torch.ones(2, 3)
    opt.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_subclass_that_has_no_memory_goes_through_torch():
    class Wrapped(torch.Tensor):
        pass

    assert not fits(L1Ball(1.0), torch.zeros(2, 3).as_subclass(Wrapped))
    assert not alike(torch.zeros(2, 3), torch.zeros(2, 3).as_subclass(Wrapped), None)
    assert not alike(torch.zeros(2, 3), torch._neg_view(torch.zeros(2, 3)), None)


@pytest.mark.parametrize("set_", [GroupL1Ball(1.0), L2Ball(1.0)], ids=lambda s: s.kind)
@pytest.mark.parametrize("size", [1e-170, 1e-30, 1e150])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_gradients_of_any_size_neither_vanish_nor_overflow_in_groups(set_, size, strategy):
    start = set_.project(torch.randn(4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    g = torch.randn(4, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    results = [
        run(start, [g * size] * 2, set_, fused=True, lr=0.3 / size, in_face=strategy),
        run(start, [g] * 2, set_, fused=False, lr=0.3, in_face=strategy),
    ]
    torch.testing.assert_close(results[0][0][-1], results[1][0][-1], rtol=0, atol=1e-12)
    tiny = run(start, [g * 1e-310] * 2, set_, fused=True, lr=1e305, in_face=strategy)[0][-1]
    assert set_.contains(tiny).all()


@pytest.mark.parametrize("fused", [True, False])
def test_a_group_of_tiny_weights_is_a_group_of_the_face(fused):
    start = torch.tensor([[1.0, 0.0], [1e-200, 1e-200]], dtype=torch.float64)
    g = torch.tensor([[-1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    after = run(start, [0 * g, g], GroupL1Ball(1.0), fused=fused, in_face="away", lr=1e6)[0][-1]
    assert after.tolist() == [[1.0, 0.0], [0.0, 0.0]]


def test_an_interior_step_of_a_group_that_reaches_the_sphere_lands_on_it():
    direction = torch.randn(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    start = torch.zeros(2, 50, dtype=torch.float64)
    start[0], start[1, 0] = 0.4 * direction / direction.norm(), 0.6 - 1e-8
    g = torch.zeros(2, 50, dtype=torch.float64)
    g[0] = -direction
    after = run(start, [g * 0, g], GroupL1Ball(1.0), fused=True, in_face="away", lr=1e6)[0][-1]
    assert GroupL1Ball(1.0).contains(after).all()
    assert GroupL1Ball(1.0).norm(after).item() == pytest.approx(1.0, abs=1e-15)


def test_options_may_change_between_numbers_and_tensors_and_so_may_the_radius():
    results = []
    for fused in (True, False):
        p = Parameter(torch.full((2, 3), 0.1))
        set_ = L1Ball(torch.tensor([1.0, 2.0]))
        opt = inface.FrankWolfe([{"params": [p], "set": set_}], lr=0.1, fused=fused)
        for change in (
            {"lr": torch.tensor(0.2)},
            {"gradient_bound": torch.tensor([5.0, 6.0])},
            {"gradient_bound": 7.0},
            {"lr": 0.3},
        ):
            opt.param_groups[0].update(change)
            p.grad = torch.ones(2, 3)
            opt.step()
        opt.param_groups[0]["set"].radius.mul_(3)
        opt.step()
        opt.param_groups[0].update({"lr": torch.tensor(0.2), "gradient_bound": torch.tensor([5.0, 6.0])})
        for option in ("lr", "gradient_bound"):
            opt.step()
            opt.param_groups[0][option].mul_(2)
        opt.step()
        results.append((p.detach().clone(), opt.report().frank_wolfe))
    torch.testing.assert_close(results[0][0], results[1][0])
    assert results[0][1] == results[1][1] == 16


def test_a_damaged_cache_is_done_without(tmp_path, expected):
    in_a_process(NUMBA_CACHE_DIR=str(tmp_path))
    damaged = [file for file in tmp_path.rglob("*.nb*") if file.is_file()]
    assert damaged
    for file in damaged:
        file.write_bytes(file.read_bytes()[:20])
    result = in_a_process(NUMBA_CACHE_DIR=str(tmp_path))
    assert result["fused"]
    assert result["p"] == expected


def test_the_default_device_is_nobody_s_business():
    """Kernels write to the memory that they allocate: it must be a CPU's, whatever torch's default is."""
    script = """
import torch, inface
from torch import nn
from inface.sets import *
torch.set_num_threads(1)
sets = [L1Ball(1.0), Simplex(1.0), LInfBall(0.3), GroupL1Ball(1.0), L2Ball(1.0), KSparsePolytope(0.3, k=2), NuclearBall(1.0),
        L1Ball(torch.tensor([1.0, 2.0, float("inf")])), L1Ball(1.0, per="group")]
params = [nn.Parameter(torch.zeros(3, 4)) for _ in sets]
free = nn.Parameter(torch.zeros(3))
grads = [torch.randn(3, 4) for _ in sets]
model, inputs, target = nn.Linear(4, 3), torch.randn(5, 4), torch.randn(5, 3)
groups = inface.param_groups(model, {"weight": L1Ball(1.0)})
for device in ("meta", "cuda"):
    torch.set_default_device(device)
    inface.graph_init_(model, groups)
    opt = inface.FrankWolfe([*({"params": [p], "set": s} for p, s in zip(params, sets)), {"params": [free]}],
                            lr=0.1, in_face="away", momentum=0.9, project=True, gradient_bound=5.0)
    for _ in range(4):
        for p, g in zip(params, grads):
            p.grad = g
        free.grad = grads[0][:, 0].contiguous()
        opt.step()
    report = opt.report()
    assert report.gap.value.device.type == "cpu" and float(opt.gap) > 0, report
    own = inface.FrankWolfe(groups, lr=0.1)
    assert float(inface.modified_gap(model, nn.functional.mse_loss, [(inputs, target)], own)) > 0
    iterate = inface.RandomIterate(own)
    model.weight.grad = grads[0]
    own.step()
    inface.sparsity.nonzeros(model), inface.sparsity.hard_threshold(model, 0.5)
print("fine")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "fine\n", "")


def test_layers_of_one_group_take_one_step_as_each_alone_would():
    """Different shapes, a missing gradient, and phases that differ: one call does what many would do."""
    shapes = [(5, 4), (2, 3, 2), (7,), (1, 300)]
    generator = torch.Generator().manual_seed(0)
    for set_ in (L1Ball(1.0), LInfBall(0.2), Simplex(1.0), L2Ball(1.0)):
        together = [Parameter(torch.zeros(shape)) for shape in shapes]
        alone = [Parameter(torch.zeros(shape)) for shape in shapes]
        options = {"lr": 0.1, "in_face": "away", "momentum": 0.5, "project": True}
        opt = inface.FrankWolfe([{"params": together, "set": set_}], **options)
        others = [inface.FrankWolfe([{"params": [p], "set": set_}], **options) for p in alone]
        for i in range(9):
            for j, (p, q) in enumerate(zip(together, alone, strict=True)):
                p.grad = None if (i + j) % 4 == 3 else torch.randn(p.shape, generator=generator)
                q.grad = None if p.grad is None else p.grad.clone()
            opt.step()
            for other in others:
                other.step()
            for p, q in zip(together, alone, strict=True):
                assert torch.equal(p, q)
        report, single = opt.report(), [other.report() for other in others]
        assert report.frank_wolfe == sum(one.frank_wolfe for one in single)
        assert report.in_face == sum(one.in_face for one in single)
        for gaps, one in zip(report.gap.blocks.values(), single, strict=True):
            assert torch.equal(gaps, next(iter(one.gap.blocks.values())))


def test_a_layer_that_has_had_no_gradient_yet_is_no_obstacle():
    first, second = Parameter(torch.zeros(2, 3)), Parameter(torch.zeros(2, 3))
    opt = inface.FrankWolfe([{"params": [first, second], "set": L1Ball(1.0)}], lr=0.1)
    second.grad = torch.ones(2, 3)
    opt.step()
    assert not first.any()
    assert second.any()
    assert first not in opt.state


@pytest.mark.parametrize("fused", [None, False])
def test_parameters_of_one_name_are_told_apart_by_their_place(fused):
    first, second = Parameter(torch.zeros(2, 3)), Parameter(torch.zeros(4, 3))
    opt = inface.FrankWolfe([{"params": [("w", first), ("w", second)], "set": L1Ball(1.0)}], lr=0.1, fused=fused)
    first.grad, second.grad = torch.ones(2, 3), torch.ones(4, 3)
    opt.step()
    sizes = {name: len(gaps) for name, gaps in opt.report().gap.blocks.items()}
    assert sizes == {"w (parameter 0)": 2, "w (parameter 1)": 4}
    assert float(opt.gap) > 0
