"""Layers that leave out their zeros compute what dense layers compute, and everybody else sees dense layers."""

import copy
import io
import pickle
import re

import pytest
import torch
from torch import nn
from torch.nn import functional

import inface
from inface.kernels import disabled
from inface.sets import GroupL1Ball, KSparsePolytope, L1Ball, L2Ball, LInfBall, NuclearBall, Simplex

L1, SIMPLEX = L1Ball(2.0), Simplex(2.0)


def network(dtype=torch.float64, density=0.15, seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(40, 35), nn.ReLU(), nn.Linear(35, 20), nn.ReLU(), nn.Linear(20, 10)).to(dtype)
    with torch.no_grad():
        for name in ("0.weight", "2.weight"):
            weight = model.get_parameter(name)
            weight *= torch.rand(weight.shape) < density
    return model


def optimizer(model, set_=L1, **options):
    given = {"lr": 0.05, "in_face": "projected", "in_face_steps": 2, "project": True, **options}
    return inface.FrankWolfe(model, {"0.weight": set_, "2.weight": set_}, **given)


def data(dtype=torch.float64, batch=77):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, 40, generator=generator, dtype=dtype), torch.randint(10, (batch,), generator=generator)


def train(model, opt, steps, batch=77):
    inputs, target = data(model[0].weight.dtype, batch)
    for _ in range(steps):
        opt.zero_grad()
        functional.cross_entropy(model(inputs), target).backward()
        opt.step()
    return model


def pair(**options):
    """The same network and optimizer twice, the first of which leaves out its zeros."""
    dtype = options.pop("dtype", torch.float64)
    found = []
    for mode in ("sparse", "dense"):
        model = network(dtype)
        opt = optimizer(model, **options)
        inface.sparse_compute_(model, opt, mode=mode)
        found.append((model, opt))
    return found


def assert_same(model, other, tolerance=1e-11):
    for (name, p), q in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(p != 0, q != 0), name
        torch.testing.assert_close(p, q, rtol=tolerance, atol=tolerance)


def in_the_face(**options):
    """A network before its first in-face half, its optimizer, and its inputs."""
    model = network(**options)
    opt = optimizer(model)
    inface.sparse_compute_(model, opt, mode="sparse")
    train(model, opt, 1)
    opt.zero_grad()
    return model, opt, data(model[0].weight.dtype)[0]


# ---------------------------------------------------------------------- iterates


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(
    "set_", [L1, SIMPLEX, L1Ball(9.0, per="tensor"), L1Ball(2.0, per="input"), L1Ball(9.0, per="group")]
)
def test_projected_iterates_are_those_of_the_dense_computation(set_, momentum):
    (model, opt), (other, dense) = pair(set_=set_, momentum=momentum)
    train(model, opt, 24)
    train(other, dense, 24)
    assert_same(model, other)
    torch.testing.assert_close(opt.gap, dense.gap)


@pytest.mark.parametrize("in_face", [None, "away", "frank-wolfe", "pairwise"])
def test_strategies_that_look_everywhere_get_what_they_look_at(in_face):
    (model, opt), (other, dense) = pair(in_face=in_face, momentum=0.5)
    assert_same(train(model, opt, 12), train(other, dense, 12))


@pytest.mark.parametrize(
    "set_", [GroupL1Ball(2.0, groups="input"), LInfBall(0.1), KSparsePolytope(0.3, k=4), NuclearBall(3.0), L2Ball(1.0)]
)
def test_sets_whose_steps_look_beyond_entries_get_whole_gradients(set_):
    (model, opt), (other, dense) = pair(set_=set_, dtype=torch.float64)
    train(model, opt, 9)
    train(other, dense, 9)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "options",
    [
        {"relative": 0.5, "momentum": 0.9},
        {"precondition": True},
        {"maximize": True, "lr": 1e-4},
        {"every_gradient": True, "norm": "adaptive"},
        {"fused": False},
        {"gradient_bound": 5.0, "in_face_steps": 1},
    ],
)
def test_options_do_what_they_do_with_dense_layers(options):
    (model, opt), (other, dense) = pair(**options)
    assert_same(train(model, opt, 12), train(other, dense, 12), tolerance=1e-9)


def test_float32_iterates_agree_to_rounding():
    (model, opt), (other, dense) = pair(dtype=torch.float32)
    assert_same(train(model, opt, 30), train(other, dense, 30), tolerance=1e-5)


def test_a_path_to_a_density_is_the_same_path():
    found = []
    for mode in ("sparse", "dense"):
        model = network(density=1.0)
        opt = inface.sparse_optimizer(model, density=0.1, lr=0.1, steps=60)
        inface.sparse_compute_(model, opt, mode=mode)
        found.append(train(model, opt, 60))
        assert mode == "dense" or opt.param_groups[0]["compute"]["nonzeros"][0] < 300  # of 1400
    assert_same(*found, tolerance=1e-8)


def test_a_scheduler_of_densities_tells_how_many_are_left():
    model = network(density=1.0)
    opt = optimizer(model, set_=L1Ball(density=0.1), lr=0.01)
    inface.sparse_compute_(model, opt, mode="sparse")
    scheduler = inface.DensityScheduler(opt, steps=10)
    for _ in range(10):
        train(model, opt, 1)
        scheduler.step()
    counts = [group["compute"]["nonzeros"] for group in opt.param_groups if "compute" in group]
    assert [int(model[i].weight.count_nonzero()) for i in (0, 2)] <= [count for (count,) in counts]
    assert sum(count for (count,) in counts) <= 210


def test_the_theorem_bounds_the_gaps():
    """Theorem 3.1 without noise: the mean of the squared gaps is at most 8 L (F(start) - F*) / (K + 1)."""
    torch.manual_seed(0)
    size, seeds, smoothness, steps = 6, 20, 2.0, 200
    basis = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64)).Q
    centre = torch.tensor([0.6, -0.4, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    layer = nn.Linear(size, seeds, bias=False, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.zero_()[torch.arange(seeds), torch.arange(seeds) % size] = -1.0
    opt = inface.FrankWolfe(layer, {"weight": L1Ball(1.0)}, lr=1 / (2 * smoothness), in_face="projected")
    inface.sparse_compute_(layer, opt, mode="sparse")

    def objective():
        u = layer(basis) - (basis @ centre)[:, None]
        return (u.square() / (1 + u.square())).sum()

    start, squares = float(objective().detach()), 0.0
    for _ in range(steps):
        opt.zero_grad()
        objective().backward()
        opt.step()
        squares += float(opt.gap) ** 2
        opt.zero_grad()
        objective().backward()
        opt.step()
    assert float(objective().detach()) < 0.01 * start
    assert squares / steps <= 8 * smoothness * start / steps


# ---------------------------------------------------------------------- convolutions


def convolutional(options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(6, 9, **options), nn.Tanh(), nn.Conv2d(9, 7, 1), nn.Flatten(), nn.LazyLinear(3))
    model = model.double()
    model(torch.zeros(1, 6, 8, 7, dtype=torch.float64))
    with torch.no_grad():
        for layer in (model[0], model[2]):
            layer.weight *= torch.rand(layer.weight.shape) < 0.2
    return model


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 3, "padding": 1},
        {"kernel_size": (3, 2), "stride": (2, 1), "padding": (0, 1), "dilation": (1, 2), "bias": False},
        {"kernel_size": 1, "stride": 2},
        {"kernel_size": 3, "groups": 3},
        {"kernel_size": 3, "padding": "same"},
    ],
)
@pytest.mark.parametrize("mode", ["sparse", "auto"])
def test_convolutions_do_what_they_do_densely(options, mode):
    found, inputs = [], torch.randn(5, 6, 8, 7, dtype=torch.float64)
    for own in (mode, "dense"):
        model = convolutional(options)
        sets = {"0.weight": L1Ball(2.0), "2.weight": L1Ball(2.0)}
        opt = inface.FrankWolfe(model, sets, lr=0.05, in_face="projected", in_face_steps=2, project=True)
        inface.sparse_compute_(model, opt, mode=own)
        for _ in range(7):
            opt.zero_grad()
            y = model(inputs)
            y.square().sum().backward()
            opt.step()
        assert copy.deepcopy(model)[0].__class__ is nn.Conv2d
        assert model[0](inputs).is_contiguous()
        found.append(model)
    assert_same(*found, tolerance=1e-9)


# ---------------------------------------------------------------------- gradients


def test_before_an_in_face_half_the_gradient_is_exact_where_weights_are_and_zero_elsewhere():
    model, opt, inputs = in_the_face()
    model(inputs).square().sum().backward()
    found = [model[i].weight.grad.clone() for i in (0, 2)]
    inface.sparse_compute_(model, opt, mode="dense")
    opt.zero_grad()
    model(inputs).square().sum().backward()
    for i, g in zip((0, 2), found, strict=True):
        weight = model[i].weight
        torch.testing.assert_close(g, torch.where(weight != 0, weight.grad, 0))
        assert (g == 0).any()


def test_before_a_first_half_the_gradient_is_whole():
    (model, opt), (other, _) = pair()
    for one in (model, other):
        one(data()[0]).square().sum().backward()
    torch.testing.assert_close(model[0].weight.grad, other[0].weight.grad)
    assert opt.param_groups[0]["compute"]["nonzeros"][0] < 400


def test_a_gradient_that_somebody_keeps_is_not_written_over():
    model, opt, inputs = in_the_face()
    model(inputs).square().sum().backward()
    kept = model[0].weight.grad
    before = kept.clone()
    opt.zero_grad()
    model(2 * inputs).square().sum().backward()
    assert torch.equal(kept, before)
    assert not torch.equal(model[0].weight.grad, before)


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_accumulate(to_none):
    model, opt, inputs = in_the_face()
    model(inputs).square().sum().backward()
    opt.zero_grad(set_to_none=to_none)
    model(inputs).square().sum().backward()
    once = model[0].weight.grad.clone()
    model(inputs).square().sum().backward()
    torch.testing.assert_close(model[0].weight.grad, 2 * once)


def test_what_others_write_into_a_gradient_does_not_stay():
    model, opt, inputs = in_the_face()
    model(inputs).square().sum().backward()
    before = model[0].weight.grad.clone()
    model[0].weight.grad.add_(1.0)
    opt.zero_grad()
    model(inputs).square().sum().backward()
    assert torch.equal(model[0].weight.grad, before)


def test_a_step_uses_the_gradient_as_others_left_it():
    (model, opt), (other, dense) = pair(in_face_steps=3)
    for one, own in ((model, opt), (other, dense)):
        train(one, own, 1)
        own.zero_grad()
        functional.cross_entropy(one(data()[0]), data()[1]).backward()
        nn.utils.clip_grad_value_(one.parameters(), 1e-3)
        own.step()
    assert_same(model, other)


@pytest.mark.parametrize("factor", [0.1, 0.0])
def test_a_step_uses_the_gradient_as_others_left_its_data(factor):
    (model, opt), (other, dense) = pair(in_face_steps=3)
    for one, own in ((model, opt), (other, dense)):
        train(one, own, 1)
        own.zero_grad()
        functional.cross_entropy(one(data()[0]), data()[1]).backward()
        for p in one.parameters():
            p.grad.data.mul_(factor)  # autograd does not see this
        own.step()
    assert_same(model, other)


def test_the_gap_over_a_data_set_sees_whole_gradients():
    (model, opt), (other, dense) = pair()
    for one, own in ((model, opt), (other, dense)):
        train(one, own, 1)
    found = [inface.modified_gap(m, functional.cross_entropy, [data()], o) for m, o in ((model, opt), (other, dense))]
    assert float(found[0].value) == pytest.approx(float(found[1].value), rel=1e-9)


def test_a_second_derivative_is_dense_or_a_clear_error():
    model, opt, inputs = in_the_face()
    with pytest.raises(RuntimeError, match=re.escape("inside of inface.dense_gradients()")):
        torch.autograd.grad(model(inputs).square().sum(), model[0].weight, create_graph=True)

    def penalty():
        (g,) = torch.autograd.grad(model(inputs).square().sum(), model[0].weight, create_graph=True)
        return torch.autograd.grad(g.square().sum(), [model[0].weight, model[2].weight, model[4].bias])

    with inface.dense_gradients():
        found = penalty()
    inface.sparse_compute_(model, opt, mode="dense")
    for one, other in zip(found, penalty(), strict=True):
        torch.testing.assert_close(one, other)


def test_batches_of_gradients_are_dense_or_a_clear_error():
    model, opt, inputs = in_the_face()

    def jacobian():
        return torch.autograd.functional.jacobian(model, inputs[:2], vectorize=True)

    with pytest.raises(RuntimeError, match=re.escape("inside of inface.dense_gradients()")):
        jacobian()
    with inface.dense_gradients():
        found = jacobian()
    inface.sparse_compute_(model, opt, mode="dense")
    torch.testing.assert_close(found, jacobian())


def test_a_nan_in_a_gradient_leaves_its_row_alone():
    model, opt, inputs = in_the_face()
    model(inputs).square().sum().backward()
    row, before = 3, model[0].weight.detach().clone()
    model[0].weight.grad[row] = torch.nan
    opt.step()
    assert torch.equal(model[0].weight[row], before[row])
    assert not torch.equal(model[0].weight, before)


# ---------------------------------------------------------------------- what everybody else sees


def test_a_layer_is_copied_and_saved_as_the_layer_that_it_was():
    model, _, inputs = in_the_face()
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    expected = model(inputs)
    pickled = pickle.loads(pickle.dumps(model))  # noqa: S301
    for other in (copy.deepcopy(model), pickled, torch.load(buffer, weights_only=False)):
        assert type(other[0]) is nn.Linear
        torch.testing.assert_close(other(inputs), expected)
    assert isinstance(model[0], nn.Linear)
    assert repr(model) == repr(network())
    assert list(model.state_dict()) == list(network().state_dict())


def test_hooks_are_called():
    model, _, inputs = in_the_face()
    seen = []
    model[2].register_forward_pre_hook(lambda *_: seen.append("before"))
    model[2].register_forward_hook(lambda *_: seen.append("after"))
    model[2].register_full_backward_hook(lambda *_: seen.append("backward"))
    model[2].weight.register_hook(lambda g: seen.append(tuple(g.shape)))
    model(inputs).sum().backward()
    assert sorted(map(str, seen)) == ["(20, 35)", "after", "backward", "before"]


@pytest.mark.parametrize("shape", [(40,), (1, 40), (2, 3, 40), (0, 40), (2, 0, 40), (65, 40)])
def test_batches_have_any_shape(shape):
    model, opt, _ = in_the_face()
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    y = model(x)
    (g,) = torch.autograd.grad(y.square().sum(), x)
    inface.sparse_compute_(model, opt, mode="dense")
    assert y.is_contiguous()
    torch.testing.assert_close(y, model(x))
    torch.testing.assert_close(g, torch.autograd.grad(model(x).square().sum(), x)[0])


@pytest.mark.parametrize("batch", [1, 15, 16, 17, 63, 64, 130])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_are_right_at_the_edges_of_vectors(batch, dtype):
    (model, opt), (other, dense) = pair(dtype=dtype)
    train(model, opt, 4, batch)
    train(other, dense, 4, batch)
    assert_same(model, other, tolerance=1e-5 if dtype is torch.float32 else 1e-11)


def test_inputs_need_not_be_contiguous():
    model, opt, inputs = in_the_face()
    strided = torch.randn(40, 77, dtype=torch.float64).t()
    wide = torch.randn(77, 80, dtype=torch.float64)[:, ::2]
    found = [model(x) for x in (strided, wide, inputs[:, :])]
    inface.sparse_compute_(model, opt, mode="dense")
    for y, x in zip(found, (strided, wide, inputs), strict=True):
        torch.testing.assert_close(y, model(x))


@pytest.mark.parametrize("shape", [(8, 40), (2, 4, 40)])
def test_outputs_can_be_changed_in_place(shape):
    model, opt, _ = in_the_face()
    found, x = [], torch.randn(shape, dtype=torch.float64)
    for mode in ("sparse", "dense"):
        inface.sparse_compute_(model, opt, mode=mode)
        y = functional.relu(model[0](x), inplace=True)
        found.append((y.detach(), torch.autograd.grad(y.square().sum(), model[0].bias)[0]))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("bias", [torch.randn(35, 2).double()[:, 0], torch.randn(1).double()])
def test_a_bias_that_the_kernels_do_not_take_is_added_all_the_same(bias):
    model, _, inputs = in_the_face()
    model[0].bias = nn.Parameter(bias)
    torch.testing.assert_close(model(inputs), copy.deepcopy(model)(inputs))


def test_evaluation_computes_the_same():
    model, _, inputs = in_the_face()
    expected = model(inputs).detach()
    with torch.no_grad():
        assert torch.equal(model(inputs), expected)
    with torch.inference_mode():
        assert torch.equal(model(inputs), expected)


def test_autocast_gives_the_dtype_that_it_gives():
    model, _, inputs = in_the_face(dtype=torch.float32)
    plain = copy.deepcopy(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, expected = model(inputs), plain(inputs)
    assert found.dtype is expected.dtype is torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)
    found.float().square().sum().backward()
    expected.float().square().sum().backward()
    g, h = model[0].weight.grad, plain[0].weight.grad
    assert g.dtype is torch.float32
    torch.testing.assert_close(g, torch.where(model[0].weight != 0, h, 0), rtol=0.1, atol=0.1 * float(h.abs().max()))


def test_compiled_and_traced_models_compute_densely():
    model, _, inputs = in_the_face()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(inputs), model(inputs))
    torch.testing.assert_close(torch.fx.symbolic_trace(model)(inputs), model(inputs))
    torch.testing.assert_close(torch.jit.script(model)(inputs), model(inputs))
    compiled(inputs).square().sum().backward()
    assert (model[0].weight.grad[model[0].weight == 0] != 0).any()


def test_function_transforms_compute_densely():
    model, opt, inputs = in_the_face()
    found = torch.func.vmap(torch.func.jacrev(model))(inputs[:3])
    inface.sparse_compute_(model, opt, mode="dense")
    torch.testing.assert_close(found, torch.func.vmap(torch.func.jacrev(model))(inputs[:3]))


def test_tied_layers_and_layers_that_are_used_twice_add_their_gradients():
    found = []
    for mode in ("sparse", "dense"):
        torch.manual_seed(0)
        first, second = nn.Linear(30, 30), nn.Linear(30, 30)
        second.weight = first.weight
        model = nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), first)
        with torch.no_grad():
            first.weight *= torch.rand(30, 30) < 0.2
        opt = inface.FrankWolfe(model, {"0.weight": L1}, lr=0.1, in_face="projected", in_face_steps=2, project=True)
        inface.sparse_compute_(model, opt, mode=mode)
        x = torch.randn(20, 30)
        for _ in range(6):
            opt.zero_grad()
            model(x).square().sum().backward()
            opt.step()
        found.append(model)
    assert_same(*found, tolerance=1e-5)


def test_frozen_weights_have_no_gradient():
    model, _, inputs = in_the_face()
    model[2].weight.requires_grad_(False)
    model(inputs).sum().backward()
    assert model[2].weight.grad is None
    assert model[0].weight.grad is not None


def test_a_weight_that_is_changed_by_others_is_seen():
    model, _, inputs = in_the_face()
    other = network(density=0.3, seed=5)
    model(inputs)
    model[0].weight.data.copy_(other[0].weight)  # autograd does not see this
    model[2].load_state_dict(other[2].state_dict())
    model[4].load_state_dict(other[4].state_dict())
    model[0].bias.data.copy_(other[0].bias)
    torch.testing.assert_close(model(inputs), other(inputs))


def test_a_weight_that_is_replaced_is_computed_with():
    model, _, inputs = in_the_face()
    model[0].weight = nn.Parameter(torch.ones(35, 40, dtype=torch.float64))
    plain = copy.deepcopy(model)
    torch.testing.assert_close(model(inputs), plain(inputs))


def test_without_kernels_and_without_the_optimizer_layers_compute_densely():
    model, opt, inputs = in_the_face()
    expected = model(inputs)
    with disabled():
        torch.testing.assert_close(model(inputs), expected)
    del opt
    torch.testing.assert_close(model(inputs), expected)


def test_two_threads_compute_what_one_computes():
    torch.manual_seed(0)
    layer = nn.Linear(600, 500)
    with torch.no_grad():
        layer.weight *= torch.rand(500, 600) < 0.2
    opt = inface.FrankWolfe(layer, {"weight": L1Ball(1.0)}, lr=0.1, in_face="projected", in_face_steps=9, project=True)
    inface.sparse_compute_(layer, opt, mode="sparse")
    layer(torch.randn(2, 600)).sum().backward()
    opt.step()
    x, found = torch.randn(128, 600, requires_grad=True), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            y = layer(x)
            found.append([y, *torch.autograd.grad(y.square().sum(), [x, layer.weight])])
        finally:
            torch.set_num_threads(1)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


# ---------------------------------------------------------------------- resuming


@pytest.mark.parametrize("mode", ["sparse", "auto"])
@pytest.mark.parametrize("at", [4, 5, 6])
def test_resuming_is_exact_in_every_phase(mode, at):
    def fresh():
        model = network(torch.float32)
        opt = optimizer(model, momentum=0.5)
        inface.sparse_compute_(model, opt, mode=mode)
        return model, opt

    model, opt = fresh()
    train(model, opt, at)
    buffer = io.BytesIO()
    torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, buffer)
    train(model, opt, 13)
    buffer.seek(0)
    saved = torch.load(buffer, weights_only=True)
    other, resumed = fresh()
    other.load_state_dict(saved["model"])
    resumed.load_state_dict(saved["opt"])
    if mode == "auto":
        assert resumed.param_groups[0]["compute"]["limits"]
    train(other, resumed, 13)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)


def test_states_with_and_without_it_load():
    (model, opt), (_, dense) = pair()
    train(model, opt, 2)
    dense.load_state_dict(opt.state_dict())
    assert "compute" not in dense.param_groups[0]
    opt.load_state_dict(dense.state_dict())
    assert opt.param_groups[0]["compute"]["mode"] == "sparse"
    damaged = opt.state_dict()
    damaged["param_groups"][0]["compute"] = {"nonzeros": []}
    with pytest.raises(ValueError, match="compute: wanted a dict with limits, and with nonzeros of 1 parameter"):
        opt.load_state_dict(damaged)


def test_evaluation_measures_nothing_that_training_knows():
    model = network(torch.float32)
    opt = optimizer(model)
    inface.sparse_compute_(model, opt)
    train(model, opt, 1)
    known = copy.deepcopy(opt.param_groups[0]["compute"]["limits"])
    with torch.no_grad():
        model(torch.randn(500, 40))
    assert opt.param_groups[0]["compute"]["limits"] == known


def test_measuring_takes_no_random_numbers_and_needs_no_graph():
    model = convolutional({"kernel_size": 3, "padding": 1})
    sets = {"0.weight": L1Ball(2.0), "2.weight": L1Ball(2.0), "4.weight": L1Ball(2.0)}
    opt = inface.FrankWolfe(model, sets, lr=0.05, in_face="projected", project=True)
    inface.sparse_compute_(model, opt)
    inputs = torch.randn(5, 6, 8, 7, dtype=torch.float64)
    before = torch.get_rng_state()
    with torch.inference_mode():
        model(inputs)
    model(inputs)
    assert len(opt.param_groups[0]["compute"]["limits"]) > 0
    assert torch.equal(torch.get_rng_state(), before)


def test_parts_of_a_model_can_be_asked_one_after_the_other():
    model = network()
    opt = inface.FrankWolfe(model, {"0.weight": L1, "2.weight": SIMPLEX}, lr=0.05, project=True)
    assert inface.sparse_compute_(model[0], opt, mode="sparse") == ["0.weight"]
    assert inface.sparse_compute_(model[2], opt, mode="sparse") == ["2.weight"]
    assert sum("compute" in group for group in opt.param_groups) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda model, opt: (opt, opt, "auto"), "model must be a torch.nn.Module, got FrankWolfe"),
        (lambda model, opt: (model, torch.optim.SGD(model.parameters()), "auto"), "must be a FrankWolfe, got SGD"),
        (lambda model, opt: (model, opt, "fast"), "mode must be one of 'auto', 'sparse', 'dense', got 'fast'"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    model = network()
    *two, mode = arguments(model, optimizer(model))
    with pytest.raises(ValueError, match=message):
        inface.sparse_compute_(*two, mode=mode)
