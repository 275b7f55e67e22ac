"""Sparse and low-rank layers say what the dense ones say, whoever holds, saves, moves or traces them."""

import copy
import gc
import io
import itertools
import multiprocessing
import os
import pickle
import re
import subprocess
import sys
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

import inface
from inface.export import LayerChoice, SparseLinear, layer_choices, sparsify
from inface.export.layers.low_rank import factors, thin_layers
from inface.sets import NuclearBall

DTYPES = [torch.float32, torch.float64]


def linear(inputs, outputs, density, *, dtype=torch.float32, bias=True, seed=0, pattern="random"):
    """A Linear layer with zeros: at random, or with whole rows and columns of them, as trained networks have."""
    generator = torch.Generator().manual_seed(seed)
    layer = nn.Linear(inputs, outputs, bias=bias, dtype=dtype)
    used = torch.rand(outputs, inputs, generator=generator) < density
    if pattern == "uneven":
        used = torch.rand(outputs, inputs, generator=generator) < density
        used &= (torch.rand(outputs, 1, generator=generator) < 0.5) & (torch.rand(1, inputs, generator=generator) < 0.5)
        used[outputs // 2] = True
    with torch.no_grad():
        layer.weight.copy_(torch.randn(outputs, inputs, generator=generator, dtype=dtype) * used)
        if bias:
            layer.bias.copy_(torch.randn(outputs, generator=generator, dtype=dtype))
    return layer


def perceptron(*sizes, density=0.05, **options):
    layers = []
    for k, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        last = k == len(sizes) - 2
        layers += [linear(inputs, outputs, 1.0 if last else density, seed=k, **options), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def samples(*shape, dtype=torch.float32, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def assert_same(got, expected, layer, x):
    """Equal to a few roundings of the sum of the magnitudes, which is what a sum in another order can differ by."""
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    sizes = x.abs() @ layer.weight.detach().abs().mT + (0 if layer.bias is None else layer.bias.detach().abs())
    tol = 2 * (layer.in_features + 2) * torch.finfo(x.dtype).eps * sizes
    assert ((got - expected).abs() <= tol).all()


# ---------------------------------------------------------------------- the product


@given(
    inputs=st.integers(0, 70),
    outputs=st.integers(0, 70),
    batch=st.lists(st.integers(0, 7), max_size=3),
    density=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
    pattern=st.sampled_from(["random", "uneven"]),
    bias=st.booleans(),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 10),
)
@settings(max_examples=300)
def test_outputs_are_the_dense_layers_for_any_pattern_and_batch(
    inputs, outputs, batch, density, pattern, bias, dtype, seed
):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch on tensors without elements
        layer = linear(inputs, max(outputs, 1), density, dtype=dtype, bias=bias, seed=seed, pattern=pattern)
    x = samples(*batch, inputs, dtype=dtype, seed=seed)
    sparse = SparseLinear.from_linear(layer)
    assert_same(sparse(x).detach(), layer(x).detach(), layer, x)
    with torch.no_grad():
        assert_same(sparse(x), layer(x), layer, x)
    assert torch.equal(sparse.weight, layer.weight)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100])
@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (40, 1), (8, 16), (16, 8), (33, 47), (64, 32)])
def test_every_size_of_batch_has_its_own_way_to_the_same_numbers(shape, batch, dtype):
    layer = linear(*shape, 0.3, dtype=dtype)
    x = samples(batch, shape[0], dtype=dtype)
    with torch.no_grad():
        assert_same(SparseLinear.from_linear(layer)(x), layer(x), layer, x)


@pytest.mark.parametrize("inputs", [32768, 32769, 70000])
@pytest.mark.parametrize("batch", [1, 9])
def test_columns_beyond_two_bytes_are_found(inputs, batch):
    layer = linear(inputs, 3, 0.01)
    with torch.no_grad():
        layer.weight[0, -1] = 5.0
        sparse = SparseLinear.from_linear(layer)
        assert sparse.columns.dtype == (torch.int16 if inputs <= 32768 else torch.int32)
        x = samples(batch, inputs)
        assert_same(sparse(x), layer(x), layer, x)


@pytest.mark.parametrize("batch", [4, 40])
def test_strides_of_the_input_do_not_matter(batch):
    layer = linear(24, 10, 0.2)
    sparse = SparseLinear.from_linear(layer)
    x = samples(batch, 24)
    views = [
        x.T.contiguous().T,
        samples(batch, 48)[:, ::2],
        samples(2 * batch, 24)[::2],
        x[:1].expand(batch, 24),
        samples(24, 3, batch).permute(2, 1, 0),
        torch.complex(x, -x).conj().imag,
    ]
    with torch.no_grad():
        for view in views:
            assert_same(sparse(view), layer(view), layer, view)
            assert sparse(view).is_contiguous()


@pytest.mark.parametrize("batch", [1, 2, 5, 40])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_a_number_spreads_where_a_weight_is_not_zero_and_nowhere_else(batch, dtype):
    layer = linear(40, 30, 0.3, dtype=dtype)
    sparse = SparseLinear.from_linear(layer)
    for strange in (float("nan"), float("inf"), -float("inf")):
        x = samples(batch, 40, dtype=dtype)
        x[-1, 7] = strange
        with torch.no_grad():
            got, expected = sparse(x), layer(x)
            touched = layer.weight[:, 7] != 0
            torch.testing.assert_close(got[-1, touched], expected[-1, touched], equal_nan=True)
            assert expected[-1, ~touched].isnan().all()
            without = x.clone()
            without[-1, 7] = 0
            torch.testing.assert_close(got[-1, ~touched], layer(without)[-1, ~touched])
            torch.testing.assert_close(got[:-1], expected[:-1])


def test_weights_that_are_not_numbers_are_kept():
    layer = linear(6, 3, 0.5)
    with torch.no_grad():
        layer.weight[1, 2], layer.weight[0, 1] = float("nan"), float("inf")
        x = samples(4, 6)
        torch.testing.assert_close(SparseLinear.from_linear(layer)(x)[:, 1:], layer(x)[:, 1:], equal_nan=True)
        assert SparseLinear.from_linear(layer).weight.isnan().sum() == 1


@pytest.mark.parametrize("batch", [1, 16, 100])
def test_threads_share_the_work_and_change_nothing(batch):
    layer = linear(1500, 3000, 0.5)
    sparse = SparseLinear.from_linear(layer)
    x = samples(batch, 1500)
    with torch.no_grad():
        alone = sparse(x)
        torch.set_num_threads(3)
        try:
            together = sparse(x)
        finally:
            torch.set_num_threads(1)
    torch.testing.assert_close(together, alone)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_takes_the_dense_way(dtype):
    layer = linear(30, 20, 0.2).to(dtype)
    x = samples(4, 30).to(dtype)
    torch.testing.assert_close(SparseLinear.from_linear(layer)(x), layer(x))


def test_autocast_leaves_the_layer_in_its_own_precision():
    model = nn.Sequential(linear(30, 20, 1.0), SparseLinear.from_linear(linear(20, 10, 0.2)))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert model(samples(4, 30)).dtype == torch.float32


def test_a_wrong_input_is_named():
    sparse = SparseLinear.from_linear(linear(5, 3, 0.5))
    with pytest.raises(
        ValueError, match=r"^SparseLinear: the last dimension of the input must be 5, got shape \(2, 4\)$"
    ):
        sparse(torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"last dimension of the input must be 5, got shape \(\)$"):
        sparse(torch.tensor(1.0))
    with pytest.raises(
        ValueError, match=r"^SparseLinear: the input must be torch.float32 like the layer, got torch.float64$"
    ):
        sparse(torch.zeros(2, 5, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"^SparseLinear: in_features must be >= 0, got -1$"):
        SparseLinear(-1, 2)


# ---------------------------------------------------------------------- gradients, and those who watch


@pytest.mark.parametrize("shape", [(6,), (1, 6), (3, 6), (2, 5, 6), (0, 6)])
def test_gradients_are_the_dense_layers_on_the_non_zeros(shape):
    layer = linear(6, 4, 0.4, dtype=torch.float64)
    sparse = SparseLinear.from_linear(layer)
    results = []
    for each in (layer, sparse):
        x = samples(*shape, dtype=torch.float64).requires_grad_()
        each(x).square().sum().backward()
        results.append(x.grad)
    torch.testing.assert_close(results[0], results[1])
    torch.testing.assert_close(sparse.values.grad, layer.weight.grad[layer.weight != 0])
    torch.testing.assert_close(sparse.bias.grad, layer.bias.grad)


def test_gradients_of_any_order_pass_torchs_own_check():
    sparse = SparseLinear.from_linear(linear(5, 4, 0.5, dtype=torch.float64))
    x = samples(3, 5, dtype=torch.float64).requires_grad_()

    def run(x, values, bias):
        return torch.func.functional_call(sparse, {"values": values, "bias": bias}, (x,))

    arguments = (x, sparse.values, sparse.bias)
    assert torch.autograd.gradcheck(run, arguments)
    assert torch.autograd.gradgradcheck(run, arguments)


def test_frozen_layers_stay_frozen_and_pass_the_gradient_on():
    layer = linear(6, 4, 0.4).requires_grad_(False)
    sparse = SparseLinear.from_linear(layer)
    assert not any(p.requires_grad for p in sparse.parameters())
    assert not sparse(samples(2, 6)).requires_grad
    x = samples(2, 6).requires_grad_()
    sparse(x).sum().backward()
    torch.testing.assert_close(x.grad, layer.weight.sum(0).expand(2, 6))


def test_torchs_checks_of_operators_pass():
    sparse = SparseLinear.from_linear(linear(6, 4, 0.4))
    for x in (samples(6), samples(2, 3, 6).requires_grad_()):
        arguments = (x, sparse.values, sparse.columns, sparse.rows, sparse.bias, 6)
        torch.library.opcheck(torch.ops.inface.csr_linear.default, arguments)


def test_compiled_exported_and_traced_models_keep_the_layer_as_one_operator():
    model = sparsify(perceptron(12, 10, 6, density=0.2), above=0.5).eval()
    x = samples(4, 12)
    expected = model(x)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), expected)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), expected)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.testing.assert_close(program.module()(samples(7, 12)), model(samples(7, 12)))
    graph = torch.fx.symbolic_trace(model)
    torch.testing.assert_close(graph(x), expected)
    with pytest.raises(ValueError, match="last dimension of the input must be 12"):
        graph(samples(4, 11))
    for traced in (program.graph, graph.graph):
        assert sum("csr_linear" in str(node.target) for node in traced.nodes) == 1
    with torch.no_grad():
        other = samples(4, 12, seed=5)
        torch.testing.assert_close(make_fx(model)(x)(other), model(other))


def test_functional_transforms_see_through_the_layer():
    layer = linear(6, 4, 0.4)
    sparse = SparseLinear.from_linear(layer).requires_grad_(False)
    x = samples(5, 3, 6)
    torch.testing.assert_close(torch.func.vmap(sparse)(x), layer(x))
    torch.testing.assert_close(torch.func.vmap(sparse, in_dims=1)(x), layer(x).transpose(0, 1))
    got, expected = (torch.func.grad(lambda x, each=each: each(x).square().sum())(x) for each in (sparse, layer))
    torch.testing.assert_close(got, expected)
    stacked = {name: torch.stack([t, 2 * t]) for name, t in sparse.named_parameters()}
    both = torch.func.vmap(lambda tensors: torch.func.functional_call(sparse, tensors, (x,)))(stacked)
    torch.testing.assert_close(both, torch.stack([layer(x), 2 * layer(x)]))
    with forward_ad.dual_level(), torch.no_grad():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        tangent = forward_ad.unpack_dual(sparse(dual)).tangent
    torch.testing.assert_close(tangent, layer.weight.sum(1).expand(5, 3, 4))


# ---------------------------------------------------------------------- a module like others


def test_a_state_dict_goes_round_through_a_file_into_an_empty_layer(tmp_path):
    sparse = SparseLinear.from_linear(linear(20, 10, 0.2))
    torch.save(sparse.state_dict(), tmp_path / "weights.pt")
    state = torch.load(tmp_path / "weights.pt", weights_only=True)
    for assign in (False, True):
        empty = SparseLinear(20, 10)
        assert empty.values.numel() == 0
        empty.load_state_dict(state, assign=assign)
        assert torch.equal(empty.weight, sparse.weight)
        x = samples(3, 20)
        assert torch.equal(empty(x), sparse(x))


def test_loading_takes_indices_of_any_integer_type_and_another_number_of_non_zeros():
    few, many = (SparseLinear.from_linear(linear(20, 10, density)) for density in (0.1, 0.6))
    state = {name: t.long() if name in ("columns", "rows") else t for name, t in many.state_dict().items()}
    for assign in (False, True):
        layer = copy.deepcopy(few)
        layer.load_state_dict(state, assign=assign)
        assert (layer.columns.dtype, layer.rows.dtype) == (torch.int16, torch.int32)
        assert torch.equal(layer.weight, many.weight)
        torch.testing.assert_close(layer(samples(2, 20)), many(samples(2, 20)))


def test_tensors_that_are_put_in_by_hand_may_lie_in_memory_as_they_like():
    layer = linear(20, 10, 0.2)
    for batch in (1, 30):
        x = samples(batch, 20)
        sparse = SparseLinear.from_linear(layer)
        for name, tensor in sparse.state_dict().items():
            apart = torch.stack([tensor, tensor], 1)[:, 0]
            assert not apart.is_contiguous()
            holder = sparse._parameters if name in ("values", "bias") else sparse._buffers
            holder[name] = nn.Parameter(apart) if name in ("values", "bias") else apart
        torch.testing.assert_close(sparse(x), layer(x))
        sparse.bias = nn.Parameter(layer.bias.detach().half())
        with pytest.raises(RuntimeError, match="dtype"):
            sparse(x)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("columns", lambda t: t + 20, "columns must be in 0 to 19, got"),
        ("columns", lambda t: t - 20, "columns must be in 0 to 19, got"),
        ("columns", lambda t: t.float(), "columns must be integers, got torch.float32"),
        ("columns", lambda t: t[:-1], "columns must be as many as values"),
        ("rows", lambda t: t[:-1], "rows must have 11 entries, got 10"),
        ("rows", lambda t: t * 2, "rows must grow from 0 to"),
        ("rows", lambda t: t.flip(0), "rows must grow from 0 to"),
        ("rows", lambda t: t - 1, "rows must grow from 0 to"),
        ("values", lambda t: t[:, None], "values must be a tensor of one dimension"),
        ("values", lambda t: "values", "values must be a tensor of one dimension, got str"),
    ],
)
@pytest.mark.parametrize("alone", [False, True])
def test_a_state_dict_that_is_no_matrix_is_refused_and_changes_nothing(name, change, message, alone):
    model = nn.Sequential(SparseLinear.from_linear(linear(20, 10, 0.2)))
    before = copy.deepcopy(model.state_dict())
    state = {f"0.{name}": before[f"0.{name}"]} if alone else dict(before)
    state[f"0.{name}"] = change(state[f"0.{name}"])
    with pytest.raises(RuntimeError, match=f'"0": {message}'):
        model.load_state_dict(state, strict=False)
    assert all(torch.equal(t, before[key]) for key, t in model.state_dict().items())


def test_indices_that_are_what_was_in_memory_are_refused_by_the_first_call():
    model = sparsify(perceptron(40, 30, 10), above=0.8)
    state = copy.deepcopy(model.state_dict())
    x = samples(3, 40)
    expected = model(x)
    model.to("meta").to_empty(device="cpu")
    for buffer in model.buffers():  # what was in memory may be zeros by chance
        buffer.fill_(20000)
    for call in (model, lambda x: torch.export.export(model, (x,)).module()(x)):
        with pytest.raises(ValueError, match=r"^SparseLinear: rows must grow from 0 to 73 \(after to_empty"):
            call(x)
    model.load_state_dict(state)
    assert torch.equal(model(x), expected)


@pytest.mark.parametrize("inference", [False, True])
def test_indices_that_are_put_in_by_hand_are_looked_at(inference):
    with torch.inference_mode(inference):
        layer = SparseLinear.from_linear(linear(20, 10, 0.2))
        x = samples(3, 20)
        expected = layer(x)
        good = {name: getattr(layer, name) for name in ("columns", "rows", "values")}
        for name, wrong in (
            ("columns", good["columns"] + 20),
            ("rows", good["rows"] * 2),
            ("values", nn.Parameter(good["values"][:-5].detach().clone())),
        ):
            setattr(layer, name, wrong)
            with pytest.raises(ValueError, match=r"^SparseLinear: (columns|rows) must"):
                layer(x)
            setattr(layer, name, good[name])
            assert torch.equal(layer(x), expected)
        layer.bias = nn.Parameter(torch.zeros(3))
        with pytest.raises(RuntimeError, match="size"):
            layer(x)
    if not inference:  # inference tensors do not count who writes
        layer = SparseLinear.from_linear(linear(20, 10, 0.2))
        layer(x)
        layer.columns[0] = 20
        with pytest.raises(ValueError, match=r"^SparseLinear: columns must be in 0 to 19, got"):
            layer(x)


def test_what_was_checked_is_forgotten_with_the_layer():
    from inface.export.layers import sparse_linear  # noqa: PLC0415

    before = len(sparse_linear._checked)
    layer = SparseLinear.from_linear(linear(20, 10, 0.2))
    layer(samples(1, 20))
    assert len(sparse_linear._checked) == before + 1
    del layer
    gc.collect()
    assert len(sparse_linear._checked) <= before


def test_it_is_called_as_a_linear_layer_is():
    layer = linear(20, 10, 0.2)
    x = samples(3, 20)
    torch.testing.assert_close(SparseLinear.from_linear(layer)(input=x), layer(input=x))
    for wrong, name in ((nn.Conv2d(1, 1, 1), "Conv2d"), (nn.Bilinear(2, 2, 2), "Bilinear"), (3, "3")):
        with pytest.raises(ValueError, match=rf"^SparseLinear: from_linear takes a torch.nn.Linear, got {name}$"):
            SparseLinear.from_linear(wrong)


def test_copies_and_casts_compute_the_same():
    layer = linear(30, 20, 0.1, dtype=torch.float64)
    sparse = SparseLinear.from_linear(layer)
    x = samples(5, 30, dtype=torch.float64)
    copied = copy.deepcopy(sparse)
    assert torch.equal(copied(x), sparse(x))
    assert copied.values.data_ptr() != sparse.values.data_ptr()
    single = copy.deepcopy(sparse).to(torch.float32)
    assert (single.values.dtype, single.columns.dtype) == (torch.float32, torch.int16)
    torch.testing.assert_close(single(x.float()), layer(x).float())
    torch.testing.assert_close(single.double()(x), layer(x), rtol=1e-6, atol=1e-6)
    meta = copy.deepcopy(sparse).to("meta")
    assert meta(torch.zeros(3, 30, dtype=torch.float64, device="meta")).shape == (3, 20)
    assert not sparse.eval().training
    assert sparse.train().training


def test_a_pickled_model_computes_the_same():
    model = sparsify(perceptron(40, 30, 10), above=0.8)
    x = samples(6, 40)
    assert torch.equal(pickle.loads(pickle.dumps(model))(x), model(x))  # noqa: S301 - our own
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(x), model(x))


def in_another_process(model, x, results):
    torch.set_num_threads(1)
    with torch.no_grad():
        results.put(model(x).numpy())


def test_a_model_crosses_into_a_spawned_process():
    model = sparsify(perceptron(40, 30, 10), above=0.8).requires_grad_(False)
    x = samples(6, 40)
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=in_another_process, args=(model, x, results))
    process.start()
    got = results.get(timeout=120)
    process.join(timeout=60)
    assert process.exitcode == 0
    assert torch.equal(torch.from_numpy(got), model(x))


def test_the_library_does_not_import_numba_before_the_first_product():
    code = (
        "import sys, inface.export; inface.export.sparsify; inface.export.SparseLinear; print('numba' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_without_a_compiler_the_layer_is_slow_right_and_says_so_once():
    code = """
import warnings, torch
from inface.export import SparseLinear
layer = torch.nn.Linear(5, 4)
layer.weight.data[:, 2] = 0
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for x in torch.randn(3, 2, 5):
        torch.testing.assert_close(SparseLinear.from_linear(layer)(x), layer(x))
print([str(each.message)[:65] for each in caught])
"""
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert found.stdout.strip() == "['inface: the sparse kernel is not available, sparse layers use the']"


# ---------------------------------------------------------------------- whole networks


@given(
    sizes=st.lists(st.integers(1, 50), min_size=2, max_size=4),
    density=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    pattern=st.sampled_from(["random", "uneven"]),
    above=st.sampled_from([0.0, 0.5, 0.9]),
    batch=st.integers(0, 40),
)
@settings(max_examples=60)
def test_a_sparsified_network_says_what_the_network_says_and_leaves_it_alone(sizes, density, pattern, above, batch):
    model = perceptron(*sizes, density=density, pattern=pattern).double()
    before = copy.deepcopy(model.state_dict())
    x = samples(batch, sizes[0], dtype=torch.float64)
    fast = sparsify(model, above=above)
    torch.testing.assert_close(fast(x), model(x))
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    for old, new in zip(model, fast, strict=True):
        assert old is not new
        if isinstance(new, nn.Linear):
            assert torch.equal(old.weight, new.weight)
            assert torch.equal(old.bias, new.bias)


def test_the_choice_is_measured_and_says_so():
    model = perceptron(784, 512, 10, density=0.02)
    choices = layer_choices(model, batch=[1, 64])
    assert list(choices) == ["0", "2"]
    assert choices["0"].kind == "sparse"
    assert choices["2"].kind == "dense"
    assert choices["2"].reason == "0.0 % of the weights are zero: the sparse form would not be smaller"
    assert set(choices["0"].seconds) == {1, 64}
    for taken in choices["0"].seconds.values():
        assert 0 < taken["sparse"] <= taken["dense"]
    assert choices["0"].bytes["sparse"] < choices["0"].bytes["dense"] == 4 * 784 * 512
    fast = sparsify(model, choices=choices)
    assert [type(layer) for layer in fast] == [SparseLinear, nn.ReLU, nn.Linear]
    x = samples(8, 784)
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)


def test_a_layer_that_is_faster_dense_stays_dense():
    # Without its zeros it is a little smaller, but each weight that is left costs several times as much.
    choice = layer_choices(nn.Sequential(linear(512, 512, 0.6)), batch=1)["0"]
    assert choice.bytes["sparse"] < choice.bytes["dense"]
    assert choice.seconds[1]["sparse"] > choice.seconds[1]["dense"]
    assert choice.kind == "dense"
    assert "the sparse kernel runs at 0." in choice.reason


def test_the_network_itself_may_be_a_layer():
    assert isinstance(sparsify(linear(50, 40, 0.05), above=0.5), SparseLinear)


def test_modes_flags_and_shared_modules_survive():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = linear(16, 16, 0.1)
            self.second = self.first
            self.held = [self.first]

        def forward(self, x):
            return self.second(self.first(x)) + self.held[0](x)

    model = Twice().eval()
    model.first.bias.requires_grad_(False)
    fast = sparsify(model, above=0.5)
    assert isinstance(fast.first, SparseLinear)
    assert fast.first is fast.second is fast.held[0]
    assert not fast.training
    assert not fast.first.training
    assert [fast.first.values.requires_grad, fast.first.bias.requires_grad] == [True, False]
    torch.testing.assert_close(fast(samples(3, 16)), model(samples(3, 16)))


def test_what_is_not_safe_to_replace_stays_with_its_reason():
    class Own(nn.Linear):
        def forward(self, x):
            return super().forward(x) + 1

    model = nn.ModuleDict(
        {
            "own": Own(8, 8),
            "hooked": linear(8, 8, 0.0),
            "bfloat": linear(8, 8, 0.0).to(torch.bfloat16),
            "tied": linear(8, 8, 0.0),
            "embedding": nn.Embedding(8, 8),
            "attention": nn.MultiheadAttention(8, 2),
            "encoder": nn.TransformerEncoderLayer(8, 2, 8),
            "meta": nn.Linear(8, 8, device="meta"),
            "fine": linear(8, 8, 0.0),
        }
    )
    model["hooked"].register_forward_hook(lambda *_: None)
    model["tied"].weight = model["embedding"].weight
    reasons = {
        name: choice.reason for name, choice in layer_choices(model, above=0.0).items() if choice.kind == "dense"
    }
    assert reasons == {
        "own": "Own is not exactly a Linear",
        "hooked": "it has hooks",
        "bfloat": "its weight is torch.bfloat16, not float32 or float64",
        "tied": "its parameters are shared with another module",
        "attention.out_proj": "NonDynamicallyQuantizableLinear is not exactly a Linear",
        "encoder.self_attn.out_proj": "NonDynamicallyQuantizableLinear is not exactly a Linear",
        "encoder.linear1": "torch's TransformerEncoderLayer reads its weights",
        "encoder.linear2": "torch's TransformerEncoderLayer reads its weights",
        "meta": "its weight is a Parameter on meta, not a Parameter on the CPU",
    }


def test_wrong_arguments_are_named():
    model = nn.Sequential(linear(8, 8, 0.1))
    for wrong in (0, 1.0, True, None, "ab", [1, -2], [1.5], [True]):
        with pytest.raises(ValueError, match=r"^batch: sizes must be integers >= 1, got"):
            sparsify(model, batch=wrong)
    with pytest.raises(ValueError, match=r"^batch: wanted at least one size, got none$"):
        sparsify(model, batch=[])
    for wrong in (5, -0.1, float("nan"), "x", True, [0.5]):
        with pytest.raises(ValueError, match=rf"^above must be a number in \[0, 1\], got {re.escape(repr(wrong))}$"):
            sparsify(model, above=wrong)
    for function in (sparsify, layer_choices):
        with pytest.raises(ValueError, match=r"^sparsify: model must be a torch.nn.Module, got 'a'$"):
            function("a")
    with pytest.raises(ValueError, match=r"^sparsify: choices must be a result of layer_choices, got 'sparse'$"):
        sparsify(model, choices="sparse")
    for wrong in ("sparse", LayerChoice("thick", "", 0, 0)):
        with pytest.raises(ValueError, match=r'^sparsify: choices\["0"\] must be a LayerChoice of kind dense, sparse'):
            sparsify(model, choices={"0": wrong})
    with pytest.raises(ValueError, match=r'^sparsify: choices must name Linear layers of the model, got "1"$'):
        sparsify(model, choices={"1": LayerChoice("sparse", "", 0, 0)})
    with pytest.raises(ValueError, match=r"^sparsify: the choice is low-rank, but .* does not have a low rank$"):
        sparsify(nn.Sequential(linear(8, 8, 1.0)), choices={"0": LayerChoice("low-rank", "", 64, 64)})


# ---------------------------------------------------------------------- low rank


@given(
    outputs=st.integers(1, 60),
    inputs=st.integers(1, 60),
    rank=st.integers(1, 60),
    scale=st.sampled_from([1e-20, 1.0, 1e15]),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 10),
)
@settings(max_examples=150)
def test_two_thin_layers_are_made_exactly_when_they_are_smaller(outputs, inputs, rank, scale, dtype, seed):
    rank = min(rank, outputs, inputs)
    generator = torch.Generator().manual_seed(seed)
    layer = nn.Linear(inputs, outputs, dtype=dtype)
    u, _ = torch.linalg.qr(torch.randn(outputs, rank, generator=generator, dtype=torch.float64))
    v, _ = torch.linalg.qr(torch.randn(inputs, rank, generator=generator, dtype=torch.float64))
    with torch.no_grad():
        layer.weight.copy_(scale * (u * torch.linspace(1, 2, rank, dtype=torch.float64)) @ v.mT)
    thin = thin_layers(layer)
    smaller = rank * (inputs + outputs) < inputs * outputs
    assert (thin is not None) == smaller
    if thin is not None:
        assert [tuple(each.weight.shape) for each in thin] == [(rank, inputs), (outputs, rank)]
        product = thin[1].weight.double() @ thin[0].weight.double()
        error = (product - layer.weight.double()).norm() / layer.weight.double().norm()
        assert error <= 32 * torch.finfo(dtype).eps
        x = samples(5, inputs, dtype=dtype)
        assert torch.equal(thin[1].bias, layer.bias)
        torch.testing.assert_close(thin(x), layer(x), rtol=0, atol=1e3 * torch.finfo(dtype).eps * (1 + scale))


def test_a_layer_trained_in_a_nuclear_ball_becomes_two_thin_ones():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(60, 50), nn.ReLU(), nn.Linear(50, 10))
    nn.init.zeros_(model[0].weight)
    optimizer = inface.FrankWolfe(model, {"0.weight": NuclearBall(3.0)}, lr=0.1, in_face="away")
    inputs, target = samples(256, 60), samples(256, 60)[:, :10].argmax(1)
    for _ in range(20):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), target).backward()
        optimizer.step()
    choice = layer_choices(model, above=0.9)["0"]
    assert choice.kind == "low-rank"
    assert choice.bytes["low-rank"] < choice.bytes["dense"]
    fast = sparsify(model, above=0.9)
    rank = fast[0][0].out_features
    assert rank <= 20
    assert choice.reason == f"rank {rank}: {4 * rank * 110} bytes instead of 12000"
    torch.testing.assert_close(fast(inputs), model(inputs), rtol=1e-4, atol=1e-5)


def test_low_rank_must_be_smaller_than_the_sparse_layer_too():
    layer = nn.Linear(40, 40)
    with torch.no_grad():
        layer.weight.zero_()
        layer.weight[3], layer.weight[5, :20] = 1.0, 2.0
    # Rank 2 takes 160 numbers; 60 non-zeros with their columns take less.
    assert isinstance(sparsify(layer, above=0.9), SparseLinear)
    assert isinstance(sparsify(layer, above=1.0), nn.Sequential)


def test_matrices_without_factors_are_told_apart():
    assert factors(torch.zeros(10, 10), 100) is None
    assert factors(torch.full((10, 10), float("nan")), 100) is None
    assert factors(torch.eye(100), 10_000) is None
    assert factors(torch.ones(10, 10), 20) is None
    assert factors(torch.ones(10, 10), 21) is not None
