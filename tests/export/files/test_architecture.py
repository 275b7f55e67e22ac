"""Architectures: a network that is saved is read back as the same network, or is refused by name when it is saved."""

from __future__ import annotations

import copy
import itertools
import json
import operator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import prune

from inface.export import SparseLinear, compact, load_network, load_sparse, save_dense, save_sparse
from inface.export.compaction.plan import RULES
from inface.export.files.architecture import Network, describe
from inface.export.files.vocabulary import BINARY, DROPOUTS, KNOWN, LAYERS, OPERATIONS, arguments


def network(forward, **layers):
    """A network with these layers and this forward."""

    class Written(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, layer in layers.items():
                setattr(self, name, layer)

    Written.forward = forward
    return Written()


def linear():
    return nn.Linear(4, 4)


def same(one, other):
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, int):
        return one == other
    return type(one) is type(other) and all(same(*pair) for pair in zip(one, other, strict=True))


def check(model, folder, inputs=None):
    """Save a network both ways; what is read gives the same outputs and has the names of the tensors in use."""
    inputs = torch.randn(2, 4) if inputs is None else inputs
    expected = copy.deepcopy(model).eval()(inputs.clone())
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    attributes = list(vars(model))
    for save in (save_sparse, save_dense):
        save(model, folder / "model.safetensors")
        again = load_network(folder / "model.safetensors")
        assert not any(module.training for module in again.modules())
        assert same(again(inputs.clone()), expected)
        names = [name for name in state if name not in describe(model)["unused"]]
        assert sorted(again.state_dict()) == sorted(names)
    assert list(load_sparse_names(model, folder)) == list(state)
    assert modes == [module.training for module in model.modules()]
    assert attributes == list(vars(model))
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def load_sparse_names(model, folder):
    save_sparse(model, folder / "sparse.safetensors")
    return load_sparse(folder / "sparse.safetensors")


def refused(model, reason, folder):
    for save in (save_sparse, save_dense):
        with pytest.raises(ValueError, match=reason):
            save(model, folder / "model.safetensors")
    assert not list(folder.iterdir())


# ---------------------------------------------------------------------- drawn networks

LAYER_KINDS = (
    nn.ReLU,
    nn.ReLU6,
    nn.Hardswish,
    nn.PReLU,
    nn.Softplus,
    nn.SELU,
    nn.Mish,
    nn.Hardtanh,
    nn.Tanh,
    nn.Dropout,
)
FUNCTION_KINDS = (
    torch.relu,
    torch.tanh,
    functional.leaky_relu,
    functional.elu,
    lambda x: functional.relu(x, inplace=True),
    lambda x: functional.dropout(x, training=False),
    lambda x: x.clamp(-1, 1).sigmoid(),
    lambda x: (-x).pow(2) / 3 - 1,
    lambda x: 2 * x.transpose(0, 1).contiguous().transpose(0, 1),
    lambda x: x.unsqueeze(1).squeeze(1),
    lambda x: torch.cat([x[:, :1], x[:, 1:]], dim=1),
    operator.neg,
    abs,
)


class Drawn(nn.Module):
    """A perceptron or a convolutional network of blocks; a block may be followed by a shortcut, and may be another again."""

    def __init__(self, blocks, *, images, flat) -> None:
        super().__init__()
        self.images = images
        self.flat = flat
        self.blocks = nn.ModuleDict()
        self.plan = []
        for number, (kind, shortcut) in enumerate(blocks):
            weighted = nn.Conv2d(3, 3, 3, padding=1) if images else nn.Linear(3, 3)
            norm = nn.BatchNorm2d(3) if images else nn.BatchNorm1d(3)
            norm.running_mean.uniform_(-1, 1)
            made = {"weighted": weighted, "norm": norm, "again": next(iter(self.blocks.values()), weighted)}
            module = made[kind] if kind in made else kind() if kind in LAYER_KINDS else None
            if module is not None:
                self.blocks[f"steps{number}"] = module
            self.plan.append((kind if module is None else f"steps{number}", shortcut))
        self.output = nn.Linear(12 if images else 3, 2, bias=False)

    def forward(self, x, scale=1.0):
        for block, shortcut in self.plan:
            h = (self.blocks[block] if isinstance(block, str) else block)(x + 0)
            x = x + h if shortcut else h
        if self.images:
            x = functional.max_pool2d(x, 2)
        x = x.view(x.size(0), -1) if self.flat else torch.flatten(x, 1)
        return functional.log_softmax(self.output(x) * scale, dim=1)


BLOCKS = st.lists(
    st.tuples(st.sampled_from(["weighted", "norm", "again", *LAYER_KINDS, *FUNCTION_KINDS]), st.booleans()), max_size=6
)


@settings(max_examples=40)
@given(blocks=BLOCKS, images=st.booleans(), flat=st.booleans(), training=st.booleans())
def test_a_drawn_network_comes_back(tmp_path_factory, blocks, images, flat, training):
    torch.manual_seed(0)
    model = Drawn(blocks, images=images, flat=flat).train(training)
    check(model, tmp_path_factory.mktemp("drawn"), torch.randn(2, 3, 4, 4) if images else torch.randn(2, 3))


@settings(max_examples=20)
@given(sizes=st.lists(st.integers(1, 5), min_size=2, max_size=5), data=st.data())
def test_a_drawn_sequential_comes_back(tmp_path_factory, sizes, data):
    torch.manual_seed(0)
    layers = [nn.Flatten()]
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs, bias=data.draw(st.booleans())), data.draw(st.sampled_from(LAYER_KINDS))()]
    check(nn.Sequential(*layers), tmp_path_factory.mktemp("drawn"), torch.randn(3, sizes[0], 1))


def test_a_network_in_the_style_of_the_mnist_example_comes_back(tmp_path):
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(1, 4, 3, 1)
            self.conv2 = nn.Conv2d(4, 6, 3, 1)
            self.dropout1 = nn.Dropout(0.25)
            self.fc1 = nn.Linear(6 * 12 * 12, 16)
            self.fc2 = nn.Linear(16, 10)

        def forward(self, x):
            x = functional.relu(self.conv1(x))
            x = functional.relu(self.conv2(x))
            x = functional.max_pool2d(x, 2)
            x = self.dropout1(x)
            x = torch.flatten(x, 1)
            x = functional.relu(self.fc1(x))
            x = functional.dropout(x, training=self.training)
            return functional.log_softmax(self.fc2(x), dim=1)

    check(Net(), tmp_path, torch.randn(2, 1, 28, 28))


# ---------------------------------------------------------------------- layers and operations

OPTIONS = {
    "AdaptiveAvgPool": [{"output_size": 2}, {"output_size": 1}],
    "AdaptiveMaxPool": [{"output_size": 2}],
    "AvgPool": [{"kernel_size": 2, "stride": 1, "padding": 1, "count_include_pad": False}],
    "BatchNorm": [{"num_features": 4, "eps": 0.1}, {"num_features": 4, "affine": False}],
    "CircularPad": [{"padding": 1}],
    "ConstantPad": [{"padding": 1, "value": 0.5}],
    "Conv": [{"in_channels": 4, "out_channels": 6, "kernel_size": 2, "groups": 2, "padding_mode": "circular"}],
    "ConvTranspose": [{"in_channels": 4, "out_channels": 2, "kernel_size": 3, "stride": 2}],
    "GroupNorm": [{"num_groups": 2, "num_channels": 4}],
    "Hardtanh": [{"min_val": -0.1, "max_val": 0.2}],
    "InstanceNorm": [{"num_features": 4, "affine": True}],
    "LayerNorm": [{"normalized_shape": 4}, {"normalized_shape": (4, 4), "bias": False}],
    "Linear": [{"in_features": 4, "out_features": 2, "bias": False}],
    "LogSoftmax": [{"dim": 1}],
    "MaxPool": [{"kernel_size": 2, "ceil_mode": True}],
    "PReLU": [{"num_parameters": 4, "init": 0.1}],
    "RMSNorm": [{"normalized_shape": 4, "eps": 0.1}],
    "ReflectionPad": [{"padding": 1}],
    "ReplicationPad": [{"padding": 1}],
    "Select": [{"count": 2, "dim": 1}],
    "Softmax": [{"dim": 1}],
    "Softmin": [{"dim": 1}],
    "Threshold": [{"threshold": 0.1, "value": 2.0}],
    "Upsample": [{"scale_factor": 2}, {"size": 3}],
    "ZeroPad": [{"padding": 1}],
}


@pytest.mark.parametrize("kind", LAYERS)
def test_every_layer_comes_back(tmp_path, kind):
    torch.manual_seed(0)
    plain = kind[:-2] if kind[-2:] in ("1d", "2d", "3d") else kind
    positions = int(kind[-2]) if plain != kind else 2
    for options in OPTIONS.get(plain if kind != "Softmax2d" else kind, [{}]):
        layer = LAYERS[kind](**options)
        assert set(options) <= set(arguments(kind))
        check(nn.Sequential(layer), tmp_path, torch.randn(2, 4, *[4] * positions))


STEPS = {
    "permute": lambda x: x.permute(0, 2, 1) + torch.permute(x, (0, 2, 1)) + x.permute([0, 2, 1]),
    "transpose": lambda x: torch.transpose(x, 1, 2) - x.transpose(1, 2).sub(0.5),
    "squeeze": lambda x: x.unsqueeze(1).squeeze(1) + torch.unsqueeze(x, -1).squeeze(),
    "division": lambda x: 1 / x + x / 2 + torch.div(x, 3) + x.div(4),
    "powers": lambda x: x**2 + torch.pow(x, 3) + x.pow(exponent=2) + x.square(),
    "reductions": lambda x: x.amax(dim=1) + torch.amax(x, 2) + x.mean((1,)) + x.sum(dim=1) + x.max(dim=2)[0],
    "clamp": lambda x: x.clamp(min=0) + torch.clamp(x, -1, 1) + x.clamp(max=0.5),
    "softmax": lambda x: (
        x.softmax(-1) + torch.softmax(x, 1) + torch.log_softmax(x, dim=2) + functional.softmax(x, dim=1)
    ),
    "activations": lambda x: (
        functional.leaky_relu(x, 0.3) + functional.elu(x, 0.5) + functional.gelu(x, approximate="tanh")
    ),
    "sizes": lambda x: x.view(x.shape[0], x.size(1) * x.size(2)).reshape(-1, x.shape[-1]),
    "index with a tuple": lambda x: x[0, 1],
    "index with a list": lambda x: x[[0, 1]],
    "index with slices": lambda x: x[..., None, 1:3, : x.size(1) - 2],
    "pooling": lambda x: (
        functional.max_pool1d(x, 2) + functional.avg_pool1d(x, 2) + functional.adaptive_max_pool1d(x, 2)
    ),
    "padding": lambda x: functional.pad(functional.interpolate(x, scale_factor=2), (1, 0)),
    "chunks": lambda x: torch.stack([x.chunk(2, dim=1)[1], x.split(2, 1)[0]]),
    "by name": lambda x: torch.flatten(input=torch.add(input=x, other=2), start_dim=1),
    "types": lambda x: x.double().float() + x.detach().clone(),
    "several outputs": lambda x: (x + 1, [x, x * 2], None or x),
    "nothing": lambda x: x,
}


@pytest.mark.parametrize("name", STEPS)
def test_every_kind_of_step_comes_back(tmp_path, name):
    torch.manual_seed(0)
    check(network(lambda self, x: STEPS[name](self.a(x)), a=linear()), tmp_path, torch.randn(2, 4, 4))


def test_all_that_is_taken_for_an_operation_does_the_same():
    arguments_of = {"threshold": (0.5, 2.0), "clamp": (0.4, 0.6), "permute": ((0, 2, 1),), "transpose": (1, 2)}
    arguments_of |= dict.fromkeys(("reshape", "view"), ((-1, 2),))
    arguments_of |= dict.fromkeys(("softmax", "log_softmax", "unsqueeze", "split", "chunk"), (1,))
    arguments_of |= {"getitem": (0,), "pad": ((1, 1),), "interpolate": (3,), "softmin": (1,)}
    for target, (name, _) in KNOWN.items():
        function = getattr(Tensor, target) if isinstance(target, str) else target
        tensor = torch.rand(2, 4, 4, generator=torch.Generator().manual_seed(0))
        args = (tensor, *arguments_of.get(name, ()))
        if name in BINARY:
            args = (tensor, tensor.clone())
        elif "pool" in name:
            args = (tensor if name.endswith("1d") else tensor.expand([2] * (int(name[-2]) - 1) + [2, 4, 4]), 2)
        elif name in ("cat", "stack"):
            args = ([tensor, tensor],)
        again = copy.deepcopy(args)
        assert same(OPERATIONS[name](*again), function(*args)), target


def test_what_compact_understands_can_be_saved():
    assert {*RULES.layers, *RULES.modules} <= set(LAYERS.values())
    assert {each for each in RULES.functions if each not in (getattr, len)} <= {*KNOWN, *DROPOUTS}
    assert {each for each in RULES.methods if hasattr(Tensor, each)} <= {*KNOWN}


# ---------------------------------------------------------------------- in place, hooks, modes


def test_a_step_in_place_on_a_tensor_that_is_read_again_is_refused(tmp_path):
    def layer(self, x):
        h = self.a(x)
        return h + self.relu(h)

    def added(self, x):
        h = self.a(x)
        y = h
        y += 1
        return h * y

    def method(self, x):
        h = self.a(x)
        h.relu_()
        return h

    def view(self, x):
        h = self.a(x)
        flat = h.view(-1)
        return functional.relu(h, inplace=True).sum() + flat.sum()

    def through(self, x):
        h = self.a(x)
        y = self.drop(h.flatten(1))
        y *= 2
        return h, y

    layers = {"a": linear(), "relu": nn.ReLU(inplace=True), "drop": nn.Dropout(inplace=True)}
    for forward, step in ((layer, "relu"), (added, "iadd"), (method, "relu_"), (view, "relu"), (through, "imul")):
        refused(network(forward, **layers), f"{step}: works in place on what .* reads again", tmp_path)


def test_a_step_in_place_on_a_tensor_that_nobody_reads_again_comes_back(tmp_path):
    def forward(self, x):
        identity = x
        h = self.relu(self.norm(self.a(x)))
        h = self.b(h)
        count = h.size(0)
        h += identity
        h = self.relu(h)
        h *= 2
        rows, columns = h.shape
        rows *= columns
        return functional.relu(h.relu_(), inplace=True).view(count, columns).view(rows)

    layers = {"a": linear(), "b": linear(), "norm": nn.BatchNorm1d(4), "relu": nn.ReLU(inplace=True)}
    check(network(forward, **layers), tmp_path)


def test_hooks_are_refused_by_name(tmp_path):
    def double(module, inputs, output):
        return output * 2

    model = nn.Sequential(linear())
    handle = model[0].register_forward_hook(double)
    refused(model, r"0: has a hook \(double\)", tmp_path)
    handle.remove()
    model.register_forward_pre_hook(lambda module, inputs: None)
    refused(model, "Sequential: has a hook", tmp_path)
    model = nn.Sequential(linear())
    model[0].forward = lambda x: x
    refused(model, "0: its forward has been replaced", tmp_path)


def test_masks_of_prune_are_refused_until_they_are_removed(tmp_path):
    model = nn.Sequential(linear())
    prune.l1_unstructured(model[0], "weight", 0.5)
    refused(model, r"0: has a mask of torch.nn.utils.prune, wanted prune.remove\(layer, 'weight'\) first", tmp_path)
    prune.remove(model[0], "weight")
    check(model, tmp_path)


def test_a_network_in_training_is_saved_as_it_is_evaluated(tmp_path):
    model = network(lambda self, x: self.a(x) * 2 if self.training else self.a(x), a=linear())
    model.train()
    check(model, tmp_path)


def test_dropout_that_never_ends_is_refused(tmp_path):
    refused(network(lambda self, x: functional.dropout(self.a(x)), a=linear()), "drops even after eval", tmp_path)


# ---------------------------------------------------------------------- names, unused and tied layers


@pytest.mark.parametrize("name", ["output", "steps", "layers", "inputs", "_put", "unused", "value", "ä b"])
def test_a_layer_may_have_any_name(tmp_path, name):
    model = network(lambda self, x: getattr(self, name)(x), **{name: linear()})
    check(model, tmp_path)
    check(nn.Sequential(model, nn.ReLU()), tmp_path)


def test_tensors_that_forward_does_not_use_are_in_the_file_and_not_in_the_network(tmp_path):
    model = network(lambda self, x: self.a(x), head=nn.Bilinear(2, 2, 2), a=linear(), scale=nn.Parameter(torch.ones(2)))
    check(model, tmp_path)
    assert describe(model)["unused"] == ["scale", "head.weight", "head.bias"]
    assert torch.equal(load_sparse(tmp_path / "sparse.safetensors")["head.weight"], model.head.weight)


def test_a_layer_used_twice_is_written_once_and_is_one_again(tmp_path):
    layer = nn.Linear(100, 100)
    once, twice = nn.Sequential(layer, nn.ReLU()), nn.Sequential(layer, nn.ReLU(), layer)
    check(twice, tmp_path, torch.randn(2, 100))
    assert save_sparse(twice, tmp_path / "twice") < save_sparse(once, tmp_path / "once") + 1000
    again = load_network(tmp_path / "twice")
    assert again.get_submodule("0") is again.get_submodule("2")


def test_a_weight_of_two_layers_is_one_parameter_again(tmp_path):
    model = nn.Sequential(linear(), linear())
    model[1].weight = model[0].weight
    check(model, tmp_path)
    save_sparse(model, tmp_path / "model")
    again = load_network(tmp_path / "model")
    assert again.get_submodule("0").weight is again.get_submodule("1").weight
    assert again.get_submodule("0").bias is not again.get_submodule("1").bias


def test_inputs_may_have_names_and_optional_ones_their_defaults(tmp_path):
    check(network(lambda self, x: self.a(input=x), a=linear()), tmp_path)
    model = network(lambda self, x, mask=None, *, scale=2.0: (self.a(x) if mask is None else mask) * scale, a=linear())
    check(model, tmp_path)
    refused_by = network(lambda self, x, y: self.a(x) + y, a=linear())
    with pytest.raises(ValueError, match=r"takes several inputs \(x, y\), wanted one"):
        describe(refused_by)


def test_numbers_of_numpy_are_numbers(tmp_path):
    check(nn.Sequential(nn.Linear(np.prod([2, 2]), np.int64(3)), nn.LeakyReLU(np.float32(0.5))), tmp_path)


# ---------------------------------------------------------------------- what is refused


def test_what_cannot_be_told_is_refused_by_name(tmp_path):
    def autocast(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.a(x)

    weight = nn.Parameter(torch.ones(4, 4))
    refused(network(lambda self, x: self.a(x) @ self.w, a=linear(), w=weight), "uses w outside of a layer", tmp_path)
    constant = network(lambda self, x: self.a(x) + torch.ones(4), a=linear())
    refused(constant, "uses a tensor of its own outside of a layer", tmp_path)
    assert not [name for name in vars(constant) if "constant" in name]
    refused(network(lambda self, x: x.cumsum(0), a=linear()), "does cumsum, wanted one of", tmp_path)
    refused(network(lambda self, x: x.T, a=linear()), "asks for T of a tensor", tmp_path)
    refused(network(lambda self, x: torch.add(x, x, alpha=2), a=linear()), "does add with alpha", tmp_path)
    refused(network(lambda self, x: {"x": x}, a=linear()), "the output: has the value .*, wanted numbers", tmp_path)
    refused(network(lambda self, x: None, a=linear()), "returns None", tmp_path)
    refused(network(autocast, a=linear()), "uses torch.autocast", tmp_path)
    refused(nn.Sequential(SparseLinear.from_linear(linear())), "0: is a SparseLinear; .* before sparsify", tmp_path)


def test_a_layer_that_is_not_what_it_says_is_refused(tmp_path):
    model = nn.Sequential(linear())
    model[0].in_features = 7
    refused(
        model, r"0.weight: is torch.float32 of the shape \(4, 4\), wanted torch.float32 of the shape \(4, 7\)", tmp_path
    )
    model = nn.Sequential(nn.BatchNorm1d(4))
    model[0].track_running_stats = False
    refused(model, "0.running_mean: is a tensor that its layer BatchNorm1d", tmp_path)
    model = nn.Sequential(linear())
    model[0].more = nn.ReLU()
    check(model, tmp_path)
    inner = network(lambda self, x: self.a.more(self.a(x)), a=model[0])
    with pytest.raises(ValueError, match="'a' cannot be a layer and hold others"):
        describe(inner)


LINEAR = {"kind": "Linear", "in_features": 1, "out_features": 1}
STEP = {"layer": "a", "of": [{"value": 0}]}


@pytest.mark.parametrize(
    ("architecture", "reason"),
    [
        ({"layers": {"a": {"kind": "__import__"}}, "steps": [], "output": {"value": 0}}, "kind '__import__'"),
        (
            {"layers": {"a": {**LINEAR, "device": {}}}, "steps": [], "output": {"value": 0}},
            "'device', wanted one of in_features",
        ),
        (
            {"layers": {"a": {**LINEAR, "spam": 1}}, "steps": [], "output": {"value": 0}},
            "'spam', wanted one of in_features, out_features, bias",
        ),
        ({"layers": {"": LINEAR}, "steps": [], "output": {"value": 0}}, "layer ''"),
        ({"layers": {"forward": LINEAR}, "steps": [], "output": {"value": 0}}, "layer 'forward'"),
        ({"layers": {}, "steps": [STEP], "output": {"value": 0}}, "'a', wanted a layer that is there"),
        ({"layers": {}, "steps": [{"operation": "eval", "of": ["1"]}], "output": {"value": 0}}, "'eval', wanted"),
        (
            {"layers": {"a": LINEAR}, "steps": [{**STEP, "of": [{"value": 1}]}], "output": {"value": 0}},
            "value from 0 to 0",
        ),
        ({"layers": {"a": LINEAR}, "steps": [STEP], "output": {"value": 2}}, "value from 0 to 1"),
        ({"layers": {"a": LINEAR}, "steps": [STEP]}, "output: wanted a value, got None"),
        ({"layers": {"a": {**LINEAR, "out_features": -1}}, "steps": [], "output": {"value": 0}}, "layer 'a'"),
        ([], "layers: wanted a dict"),
    ],
)
def test_an_architecture_that_is_none_is_refused(architecture, reason):
    with pytest.raises(ValueError, match=reason):
        Network(architecture)


def test_a_huge_architecture_allocates_nothing():
    layers = {"a": {"kind": "Linear", "in_features": 10**6, "out_features": 10**6}}
    network = Network({"layers": layers, "steps": [STEP], "output": {"value": 1}})
    assert network.get_submodule("a").weight.is_meta


def test_what_is_read_can_be_made_smaller_and_saved_again(tmp_path):
    torch.manual_seed(0)
    model = Drawn([("weighted", False), (nn.ReLU, False), ("weighted", False)], images=True, flat=True).eval()
    model.blocks["steps0"].weight.data[1] = 0
    model.blocks["steps0"].bias.data[1] = 0
    inputs = torch.randn(2, 3, 4, 4)
    save_sparse(model, tmp_path / "model")
    small = compact(load_network(tmp_path / "model"), inputs)
    assert small.get_submodule("blocks.steps0").out_channels == 2
    check(small, tmp_path, inputs)
    torch.testing.assert_close(small(inputs), model(inputs))


def test_describing_a_described_network_changes_nothing():
    model = Drawn([("weighted", True), ("norm", False), ("again", True), (nn.PReLU, False)], images=True, flat=True)
    architecture = json.loads(json.dumps(describe(model)))
    again = Network(architecture)
    assert list(again.state_dict()) == list(model.state_dict())
    assert describe(again) == architecture


def test_a_layer_is_told_by_the_arguments_that_make_it():
    norm = {"kind": "BatchNorm1d", "num_features": 3, "affine": False}
    assert describe(nn.Sequential(nn.BatchNorm1d(3, affine=False)))["layers"]["0"] == norm
    assert describe(nn.Sequential(nn.Conv2d(1, 2, (3, 5), padding="same", bias=False)))["layers"]["0"] == {
        "kind": "Conv2d",
        "in_channels": 1,
        "out_channels": 2,
        "kernel_size": [3, 5],
        "stride": [1, 1],
        "padding": "same",
        "dilation": [1, 1],
        "bias": False,
    }


@pytest.mark.parametrize("names", [["."], ["a..b"], [".a"], ["a."], ["a.b", "a"], ["a", "a.b"], [".".join("a" * 1000)]])
def test_layers_that_cannot_be_named_so_are_refused(names):
    with pytest.raises(ValueError, match="architecture: layer"):
        Network({"layers": dict.fromkeys(names, LINEAR), "steps": [], "output": {"value": 0}})


def test_modules_that_only_hold_others_count_too(monkeypatch):
    monkeypatch.setattr("inface.export.files.network.MOST_LAYERS", 7)
    layers = {"a.b.c": {"kind": "ReLU"}, "a.b.d": {"kind": "ReLU"}, "e.f.g": {"kind": "ReLU"}}
    Network({"layers": layers, "steps": [], "output": {"value": 0}})
    with pytest.raises(ValueError, match="layer 'h': wanted at most 7 modules"):
        Network({"layers": {**layers, "h": {"kind": "ReLU"}}, "steps": [], "output": {"value": 0}})


@pytest.mark.parametrize(
    "layer",
    [
        {**LINEAR, "device": "cpu"},
        {**LINEAR, "device": "cuda"},
        {**LINEAR, "dtype": "float64"},
        {"kind": "ReLU", "inplace": True},
        {**LINEAR, "in_features": 10**30},
        {**LINEAR, "in_features": 1 << 31},
        {"kind": "Linear", "in_features": 2**31 - 1, "out_features": 2**31 - 1},
        {"kind": "Conv3d", "in_channels": 10**9, "out_channels": 10**9, "kernel_size": 10**9},
        {**LINEAR, "in_features": "1"},
        {**LINEAR, "in_features": [1]},
        {"kind": "LayerNorm", "normalized_shape": [[1]]},
        {"same": "a"},
        {"same": "b"},
        {"same": 3},
    ],
)
def test_a_layer_that_should_not_be_made_is_refused(layer):
    with pytest.raises(ValueError, match="architecture: layer 'a': "):
        Network({"layers": {"a": layer}, "steps": [], "output": {"value": 0}})


@pytest.mark.parametrize(
    "step",
    [
        {"layer": "a", "of": []},
        {"layer": "a", "of": [{"value": 0}], "with": {"input": 1}},
        {"operation": "relu", "of": [{"value": 0}], "with": {"inplace": True}},
        {"operation": "relu", "of": [{"value": 0}], "with": {"out": {"value": 0}}},
        {"operation": "relu", "of": [{"value": True}]},
        {"operation": "relu", "of": [{"value": 0, "tuple": []}]},
        {"operation": "relu", "of": [{}]},
        {"operation": "relu", "of": [{"tuple": 3}]},
        {"operation": "getitem", "of": [{"value": 0}, {"slice": [1, 2]}]},
        {"operation": "getitem", "of": [{"value": 0}, {"ellipsis": [1]}]},
        {"operation": "getitem", "of": [{"value": 0}, [[[[[[1]]]]]]]},
        {"operation": ["relu"], "of": [{"value": 0}]},
        {"operation": "reshape", "of": [{"value": 0}, 1 << 63]},
        {"operation": "pad", "of": [{"value": 0}, {"tuple": [-(10**30)]}]},
        {"layer": "a", "operation": "relu", "of": [{"value": 0}]},
        3,
    ],
)
def test_a_step_that_is_none_is_refused(step):
    with pytest.raises(ValueError, match="architecture: step 0"):
        Network({"layers": {"a": LINEAR}, "steps": [step], "output": {"value": 1}})


ARCHITECTURE = json.dumps(
    describe(
        network(lambda self, x: (self.a(x)[:, 0], self.b(x).relu().mean(dim=(1,))), a=linear(), b=nn.Conv1d(1, 2, 3))
    )
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.just(10**30)
    | st.floats()
    | st.sampled_from(["", ".", "a", "ReLU"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["value", "tuple", "slice", "kind", "of", "a.b", "device"]), inner, max_size=2
        )
    ),
    max_leaves=4,
)


def places(structure, path=()):
    """The paths to everything in nested lists and objects."""
    yield path
    children = (
        structure.items()
        if isinstance(structure, dict)
        else enumerate(structure)
        if isinstance(structure, list)
        else ()
    )
    for key, inside in children:
        yield from places(inside, (*path, key))


@settings(max_examples=150)
@given(data=st.data())
def test_an_architecture_with_anything_in_it_is_read_or_refused(data):
    architecture = {"all": json.loads(ARCHITECTURE)}
    for _ in range(data.draw(st.integers(1, 2))):
        *path, last = data.draw(st.sampled_from([place for place in places(architecture) if place]))
        at = architecture
        for key in path:
            at = at[key]
        if isinstance(at, dict) and data.draw(st.booleans()):
            at[data.draw(st.sampled_from(["a", "a.b", "..", "steps", "same", "device", "inplace"]))] = at.pop(last)
        else:
            at[last] = data.draw(JSON)
    told = None
    try:
        Network(architecture.get("all"))
    except ValueError as error:
        told = str(error)
    assert told is None or (told.startswith("architecture: ") and "\n" not in told)
