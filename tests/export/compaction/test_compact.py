"""Compaction: the same outputs from fewer numbers, everything dead gone, everything else listed."""

import copy
import operator
import pickle
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, prune

import inface
from inface.export import Select, compact, sparsify
from inface.export.compaction.compact import Compaction
from inface.sets import L1Ball

ACTIVATIONS = [nn.ReLU, nn.Sigmoid, nn.Tanh, nn.GELU, nn.LeakyReLU, nn.Softplus, nn.PReLU, nn.SiLU, nn.Identity]


# ---- what holds for every network


def check(model, x, *, select="smaller", understood=True):
    """The contract of compact; returns the smaller network."""
    before = copy.deepcopy(model.state_dict())
    example = x.clone()
    small = compact(model, x, select=select)
    identical(model.state_dict(), before)
    assert torch.equal(x, example), "the example changed"
    assert type(small) is type(model)
    assert count(small) <= count(model)
    assert (small.compaction.before, small.compaction.after) == (count(model), count(small))
    assert [each.training for each in model.modules()] == [
        small.get_submodule(name).training for name, _ in model.named_modules()
    ]
    for batch in (x.shape[0], 1, 5):
        same(model, small, torch.randn(batch, *x.shape[1:], dtype=x.dtype))
    again = compact(small, x, select=select)
    assert shapes(again) == shapes(small), "a second time finds more"
    identical(again.state_dict(), small.state_dict())
    if understood:
        assert not [each for each in small.compaction.left if not each.nodes], str(small.compaction)
    return small


def same(model, small, x):
    one, other = copy.deepcopy(model).eval(), copy.deepcopy(small).eval()
    with torch.no_grad():
        expected, found = one(x.clone()), other(x.clone())
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    scale = max(1.0, expected.abs().max().item())
    torch.testing.assert_close(found, expected, rtol=0, atol=1e4 * torch.finfo(x.dtype).eps * scale)


def identical(one, other):
    assert list(one) == list(other)
    for name, value in one.items():
        assert value.dtype == other[name].dtype
        assert torch.equal(value, other[name]), name


def count(model):
    return sum(p.numel() for p in model.parameters())


def shapes(model):
    return {name: tuple(value.shape) for name, value in model.state_dict().items()}


def thin(model, density, generator=None):
    """Set all but a part of the weights to zero, and some whole rows and columns."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
            weight = module.weight.data
            weight.mul_(torch.rand(weight.shape, generator=generator) < density)
            weight[torch.rand(weight.shape[0], generator=generator) < 0.2] = 0
            weight[:, torch.rand(weight.shape[1], generator=generator) < 0.2] = 0
        elif isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            if module.running_mean is not None:
                module.running_mean.copy_(torch.randn(module.num_features, generator=generator))
                module.running_var.copy_(torch.rand(module.num_features, generator=generator) + 0.5)
            if module.affine:
                module.weight.data.copy_(torch.randn(module.num_features, generator=generator))
                module.weight.data[torch.rand(module.num_features, generator=generator) < 0.2] = 0
                module.bias.data.copy_(torch.randn(module.num_features, generator=generator))
    return model


def perceptron(widths, activations, biases):
    layers = []
    for (inputs, outputs), activation, bias in zip(pairwise(widths), activations, biases, strict=True):
        layers += [nn.Linear(inputs, outputs, bias=bias), activation()]
    return nn.Sequential(*layers[:-1])


@st.composite
def perceptrons(draw):
    widths = draw(st.lists(st.integers(1, 9), min_size=2, max_size=6))
    layers = len(widths) - 1
    activations = draw(st.lists(st.sampled_from(ACTIVATIONS), min_size=layers, max_size=layers))
    biases = draw(st.lists(st.booleans(), min_size=layers, max_size=layers))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    model = thin(perceptron(widths, activations, biases), draw(st.sampled_from([0.0, 0.1, 0.3, 0.6, 1.0])), generator)
    return model, widths


def paths(model):
    """Of each width of a perceptron, how many nodes are on a path from an input to an output."""
    weights = [each.weight.detach() != 0 for each in model if isinstance(each, nn.Linear)]
    reached = [torch.ones(weights[0].shape[1], dtype=torch.bool)]
    for weight in weights:
        reached.append((weight & reached[-1]).any(1))
    needed = [torch.ones(weights[-1].shape[0], dtype=torch.bool)]
    for weight, here in zip(reversed(weights), reversed(reached[:-1]), strict=True):
        needed.insert(0, (weight & needed[0][:, None]).any(0) & here)
    return [int((one & other).sum()) for one, other in zip(reached[1:-1], needed[1:-1], strict=True)]


@settings(max_examples=40)
@given(perceptrons(), st.sampled_from([torch.float64, torch.float32]), st.sampled_from(["faster", "smaller", "never"]))
def test_a_perceptron_keeps_its_outputs_and_exactly_the_nodes_on_a_path(drawn, dtype, select):
    model, widths = drawn
    small = check(model.to(dtype), torch.randn(3, widths[0], dtype=dtype), select=select)
    left = [each.after[0] for each in small.compaction.layers if each.kind == "Linear"][:-1]
    assert left == [max(1, each) for each in paths(model)]


class Net(nn.Module):
    """Convolutions with and without batch normalisation, pooling and residuals."""

    def __init__(self, blocks, head, image):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.head = head
        with torch.no_grad():
            features = self.eval().features(torch.zeros(1, *image)).shape
        self.train().out = nn.Linear(features[1], 3)

    def features(self, x):
        for each in self.blocks:
            x = each(x)
        if self.head == "flatten":
            return torch.flatten(x, 1)
        if self.head == "view":
            return x.view(x.size(0), -1)
        if self.head == "mean":
            return x.mean(dim=(2, 3))
        return functional.adaptive_avg_pool2d(x, 1).flatten(1)

    def forward(self, x):
        return self.out(self.features(x))


class Residual(nn.Module):
    def __init__(self, one, other, how):
        super().__init__()
        self.one, self.other, self.how = one, other, how

    def forward(self, x):
        one = self.one(x)
        if self.how == "cat":
            return torch.cat([one, self.other(x)], dim=1)
        if self.how == "iadd":
            one += self.other(x)
            return one
        return one + self.other(x)


@st.composite
def stages(draw, inputs, outputs, size, *, keep_size=False):
    """Convolution, maybe batch normalisation, activation and pooling."""
    shrinks = size > 5 and not keep_size
    kernel, stride = draw(st.sampled_from([1, 3] if size > 2 else [1])), draw(st.integers(1, 1 + shrinks))
    padding = kernel // 2 if not shrinks else draw(st.integers(0, kernel // 2))
    mode = draw(st.sampled_from(["zeros", "zeros", "reflect", "circular", "replicate"]))
    divisors = [each for each in (1, 2, 3, inputs) if inputs % each == 0 and outputs % each == 0]
    groups = draw(st.sampled_from([1, *divisors]))
    bias = draw(st.booleans())
    layers = [nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=bias, padding_mode=mode)]
    if draw(st.booleans()):
        running = size <= 5 or draw(st.integers(0, 4)) > 0
        layers.append(nn.BatchNorm2d(outputs, affine=draw(st.booleans()), track_running_stats=running))
    layers.append(draw(st.sampled_from(ACTIVATIONS))())
    if isinstance(layers[-1], nn.PReLU) and draw(st.booleans()):
        layers[-1] = nn.PReLU(outputs)
    pools = [
        nn.Identity(),
        nn.Dropout2d(),
        nn.MaxPool2d(3, 1, padding=1),
        nn.AvgPool2d(3, 1, padding=1),
        nn.AvgPool2d(3, 1, padding=1, count_include_pad=False),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.AvgPool2d(2, ceil_mode=True),
        nn.AvgPool2d(2, divisor_override=3),
        nn.AdaptiveMaxPool2d(4),
        nn.Upsample(scale_factor=2),
    ]
    if not keep_size:
        layers.append(draw(st.sampled_from(pools if shrinks else pools[:5])))
    return nn.Sequential(*layers)


@st.composite
def conv_nets(draw):
    inputs = first = draw(st.integers(1, 3))
    size = 12
    blocks = []
    for _ in range(draw(st.integers(1, 3))):
        outputs = draw(st.integers(1, 6))
        blocks.append(draw(stages(inputs, outputs, size)))
        size = blocks[-1].eval()(torch.zeros(2, inputs, size, size)).shape[2]
        inputs = outputs
        how = draw(st.sampled_from(["none", "add", "iadd", "cat", "projection"]))
        if how == "projection":
            width = draw(st.integers(1, 6))
            one, other = (draw(stages(inputs, width, size, keep_size=True)) for _ in range(2))
            blocks.append(Residual(one, other, "add"))
            inputs = width
        elif how != "none":
            middle = draw(st.integers(1, 6))
            one = draw(stages(inputs, middle, size, keep_size=True))
            one = nn.Sequential(one, draw(stages(middle, inputs, size, keep_size=True)))
            blocks.append(Residual(one, nn.Identity(), how))
            inputs *= 2 if how == "cat" else 1
    model = Net(blocks, draw(st.sampled_from(["flatten", "view", "mean", "pool"])), (first, 12, 12))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    return thin(model, draw(st.sampled_from([0.05, 0.2, 0.5])), generator), (first, 12, 12)


@settings(max_examples=40)
@given(conv_nets(), st.sampled_from(["faster", "smaller"]))
def test_a_conv_net_keeps_its_outputs(drawn, select):
    model, image = drawn
    check(model.double(), torch.randn(2, *image, dtype=torch.float64), select=select)


# ---- what goes


def left(small):
    return {each.name: each.reason for each in small.compaction.left}


def widths(small):
    return {each.name: each.after[0] for each in small.compaction.layers}


def test_dead_filters_go_with_their_channels_through_normalisation_pooling_and_flatten():
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 3, 3), nn.Tanh(), nn.Flatten()
    )
    model.append(nn.Linear(3 * 2 * 2, 2))
    thin(model[1], 1)
    with torch.no_grad():
        model[1].weight.fill_(1.5)
        model[1].bias.fill_(20)  # what is constant is not zero
        model[0].weight[1] = 0  # constant
        model[4].weight[:, 2] = 0  # not read
        model[4].weight[0] = 0  # constant, and four inputs of the last layer with it
    small = check(model.double(), torch.randn(2, 1, 10, 10, dtype=torch.float64))
    assert widths(small) == {"0": 2, "1": 2, "4": 2, "7": 2}
    assert small[7].in_features == 8
    assert [each.folded for each in small.compaction.layers] == [0, 0, 1, 4]


def test_what_only_dead_nodes_need_goes_too():
    model = perceptron([3, 3, 3, 3, 2], [nn.ReLU] * 4, [True] * 4)
    with torch.no_grad():
        model[6].weight[:, 1:] = 0
        model[4].weight[0, 1:] = 0
        model[2].weight[0, 1:] = 0
    assert list(widths(check(model, torch.randn(2, 3))).values()) == [1, 1, 1, 2]


@pytest.mark.parametrize(
    ("padding", "mode", "bias", "goes"),
    [(0, "zeros", 1, True), (1, "zeros", 1, False), (1, "zeros", -1, True), (1, "circular", 1, True), ("same", "zeros", 1, False), ("valid", "zeros", 1, True)],
)  # fmt: skip
def test_a_constant_channel_goes_unless_a_border_of_zeros_makes_it_vary(padding, mode, bias, goes):
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 2, 3, padding=padding, padding_mode=mode))
    with torch.no_grad():
        model[0].weight[1] = 0
        model[0].bias[1] = bias  # -1: relu makes it zero, like the border
    small = check(model.double(), torch.randn(2, 1, 8, 8, dtype=torch.float64))
    assert widths(small)["0"] == 3 - goes
    assert goes or left(small) == {"0": "constant nodes stay: 2 pads with zeros"}


class Added(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.out(torch.tanh(self.a(x) + self.b(x)))


def test_added_nodes_go_together_and_their_constants_add_up():
    model = Added()
    with torch.no_grad():
        model.a.weight[:2] = 0  # 0 and 1 constant here, but 1 not there
        model.b.weight[0] = 0
        model.out.weight[:, 3] = 0  # not read
    small = check(model, torch.randn(2, 3))
    assert widths(small) == {"a": 2, "b": 2, "out": 2}
    assert small.compaction.layers[2].folded == 1
    assert left(small) == {"a": "constant nodes stay: they go only together with nodes that stay"}


class Stream(nn.Module):
    """A residual stream, whose nodes are read only to be written again."""

    def __init__(self):
        super().__init__()
        self.first, self.up, self.down, self.out = nn.Linear(3, 4), nn.Linear(4, 5), nn.Linear(5, 4), nn.Linear(4, 2)

    def forward(self, x):
        x = self.first(x)
        x = x + self.down(torch.relu(self.up(x)))
        return self.out(x)


def test_a_residual_stream_that_only_feeds_itself_goes():
    model = Stream()
    with torch.no_grad():
        model.out.weight[:, 2:] = 0
        model.up.weight[:3, 2:] = 0
        model.up.weight[3:, :2] = 0
        model.down.weight[:2, 3:] = 0
    assert widths(check(model, torch.randn(2, 3))) == {"first": 2, "up": 3, "down": 2, "out": 2}


def test_the_network_s_input_keeps_what_is_added_to_it():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 2)

        def forward(self, x):
            return self.b(x + self.a(x))

    model = Net()
    model.a.weight.data[0] = 0
    assert left(check(model, torch.randn(2, 3))) == {"a": "constant nodes stay: tied to the network's input"}


@pytest.mark.parametrize(("groups", "after"), [(4, 3), (2, 4), (1, 3)])
def test_groups_of_a_convolution_go_as_a_whole(groups, after):
    model = nn.Sequential(
        nn.Conv2d(2, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=groups), nn.ReLU(), nn.Conv2d(4, 1, 1)
    )
    model[4].weight.data[:, 1] = 0
    small = check(model, torch.randn(2, 2, 6, 6))
    assert widths(small)["2"] == after
    assert small[2].groups == (3 if groups == 4 else groups)


def test_a_whole_group_goes():
    model = nn.Sequential(nn.Conv2d(2, 4, 1), nn.ReLU(), nn.Conv2d(4, 6, 3, groups=2), nn.ReLU(), nn.Conv2d(6, 1, 1))
    model[4].weight.data[:, :3] = 0
    small = check(model, torch.randn(2, 2, 6, 6))
    assert (small[0].out_channels, small[2].groups, small[2].out_channels, small[4].in_channels) == (2, 1, 3, 3)


def test_constants_and_dead_channels_go_through_concatenation():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.out = nn.Conv2d(1, 2, 3), nn.Conv2d(1, 3, 3), nn.Conv2d(6, 2, 1)

        def forward(self, x):
            return self.out(torch.cat([self.a(x), self.b(x), x[:, :, 2:, 2:]], 1))

    model = Net()
    with torch.no_grad():
        model.a.weight[1] = 0
        model.out.weight[:, 2] = 0
    small = check(model, torch.randn(2, 1, 5, 5))
    assert widths(small) == {"a": 1, "b": 2, "out": 2}
    assert small.out.in_channels == 4


def test_a_gate_that_is_zero_closes_a_channel():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.gate, self.out = nn.Conv2d(1, 3, 3), nn.Conv2d(3, 3, 1), nn.Conv2d(3, 2, 3, padding=1)

        def forward(self, x):
            x = self.a(x)
            return self.out(x * torch.relu(self.gate(functional.adaptive_avg_pool2d(x, 1))))

    model = Net()
    with torch.no_grad():
        model.gate.weight[0] = 0
        model.gate.bias[0] = -1
        model.gate.weight[:, 0] = 0
    assert widths(check(model, torch.randn(2, 1, 5, 5))) == {"a": 2, "gate": 2, "out": 2}


def test_inputs_that_are_not_read_are_left_out_by_a_selection():
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 10))
    model[1].weight.data[:, :500] = 0
    small = check(model, torch.randn(2, 1, 28, 28), select="faster")
    assert isinstance(small[1], nn.Sequential)
    assert small[1].select.index.tolist() == list(range(500, 784))
    assert (small[1].layer.in_features, small.compaction.layers[0].selected) == (284, 284)
    never = check(model, torch.randn(2, 1, 28, 28), select="never")
    assert (never[1].in_features, never.compaction.left[0].nodes) == (784, 500)


def test_a_selection_that_would_cost_more_than_it_saves_is_not_made():
    model = nn.Sequential(nn.Linear(20, 5), nn.ReLU(), nn.Linear(5, 2))
    model[0].weight.data[:, :10] = 0
    assert check(model, torch.randn(2, 20), select="faster")[0].in_features == 20
    assert check(model, torch.randn(2, 20), select="smaller")[0].layer.in_features == 10


def test_single_positions_of_a_flattened_image_are_left_out_by_a_selection():
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 16, 20))
    with torch.no_grad():
        model[3].weight[:, 16:32] = 0  # a channel, which goes
        model[3].weight[:, 33:40] = 0  # a part of another
    small = check(model, torch.randn(2, 1, 6, 6))
    assert small[0].out_channels == 2
    assert small[3].select.index.tolist() == [*range(17), *range(24, 32)]


def test_a_selection_shrinks_when_more_inputs_die():
    model = nn.Sequential(nn.Linear(20, 5), nn.ReLU(), nn.Linear(5, 2))
    model[0].weight.data[:, :10] = 0
    small = compact(model, torch.randn(2, 20), select="smaller")
    small[0].layer.weight.data[:, 3] = 0
    again = check(small, torch.randn(2, 20))
    assert again[0].select.index.tolist() == [10, 11, 12, *range(14, 20)]
    assert again[0].layer.in_features == again[0].select.count == 9


def test_a_bias_is_made_where_a_constant_needs_one():
    model = nn.Sequential(nn.Linear(3, 4), nn.Sigmoid(), nn.Linear(4, 2, bias=False))
    model[0].weight.data[1] = 0
    small = check(model, torch.randn(2, 3))
    assert small[2].bias is not None


ACTIVATION_MODULES = [
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid, nn.Tanh, nn.Softplus,
    nn.Softsign, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.LogSigmoid, nn.Tanhshrink, nn.Hardshrink, nn.Softshrink,
    nn.PReLU, nn.Identity, nn.Dropout,
]  # fmt: skip
ACTIVATION_FUNCTIONS = [
    functional.relu, torch.relu, torch.sigmoid, torch.tanh, functional.gelu, functional.silu, functional.leaky_relu,
    torch.square, torch.exp, operator.neg, lambda x: x * 2 + 1, lambda x: 1 - x / 3, lambda x: x**2, lambda x: x.clamp(min=0.3),
    lambda x: x.relu(), lambda x: functional.dropout(x, training=False), lambda x: functional.relu(x, inplace=True),
    lambda x: x.float().double(), lambda x: torch.maximum(x, x.neg()), lambda x: x.contiguous().tanh_(),
]  # fmt: skip


class Through(nn.Module):
    def __init__(self, step):
        super().__init__()
        self.one, self.step, self.two = nn.Linear(3, 4), step, nn.Linear(4, 2)

    def forward(self, x):
        return self.two(self.step(self.one(x)))


@pytest.mark.parametrize("bias", [-0.7, 0.6])
@pytest.mark.parametrize("step", [*ACTIVATION_MODULES, *ACTIVATION_FUNCTIONS])
def test_constants_go_through_every_activation(step, bias):
    model = Through(step() if isinstance(step, type) else step).double()
    with torch.no_grad():
        model.one.weight[2] = 0
        model.one.bias[2] = bias
    small = check(model, torch.randn(2, 3, dtype=torch.float64))
    assert widths(small) == {"one": 3, "two": 2}


@pytest.mark.parametrize(
    "step",
    [
        nn.MaxPool2d(2),
        nn.MaxPool2d(3, 2, padding=1, ceil_mode=True),
        nn.AvgPool2d(2, ceil_mode=True),
        nn.AvgPool2d(3, 1, 1, count_include_pad=False),
        nn.AdaptiveAvgPool2d(3),
        nn.AdaptiveMaxPool2d(2),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        lambda x: functional.max_pool2d(x, 2),
        lambda x: functional.avg_pool2d(x, 2, 2),
        lambda x: functional.adaptive_avg_pool2d(x, (2, 2)),
        lambda x: x.mean([2, 3], keepdim=True),
        lambda x: torch.amax(x, dim=(-1, -2), keepdim=True),
        lambda x: x.permute(0, 2, 3, 1).relu().permute(0, 3, 1, 2),
        lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
        lambda x: x.unsqueeze(1).squeeze(1),
    ],
)
def test_constants_go_through_pooling(step):
    model = Through(step).double()
    model.one, model.two = nn.Conv2d(1, 4, 3).double(), nn.Conv2d(4, 2, 1).double()
    model.one.weight.data[2] = 0
    small = check(model, torch.randn(2, 1, 10, 10, dtype=torch.float64))
    assert widths(small) == {"one": 3, "two": 2}


@pytest.mark.parametrize(
    "step", [nn.AvgPool2d(3, 1, 1), nn.AvgPool2d(2, divisor_override=3), lambda x: functional.avg_pool2d(x, 3, 1, 1)]
)
def test_pooling_over_a_border_makes_a_constant_vary(step):
    model = Through(step).double()
    model.one, model.two = nn.Conv2d(1, 4, 3).double(), nn.Conv2d(4, 2, 1).double()
    model.one.weight.data[2:] = 0
    model.one.bias.data[3] = 0
    small = check(model, torch.randn(2, 1, 10, 10, dtype=torch.float64))
    assert widths(small) == {"one": 3, "two": 2}
    name, why = ("avg_pool2d" if callable(step) and not isinstance(step, nn.Module) else "step"), "border of zeros"
    if getattr(step, "divisor_override", None):
        why = "divides by another number"
    assert left(small)["one"].startswith(f"constant nodes stay: {name} ")
    assert why in left(small)["one"]


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_convolutions_of_every_dimension_and_unbatched(dims):
    kind, norm = getattr(nn, f"Conv{dims}d"), getattr(nn, f"BatchNorm{dims}d")
    model = nn.Sequential(
        kind(2, 4, 3), norm(4), nn.ReLU(), kind(4, 3, 1), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 3**dims, 2)
    )
    model[0].weight.data[0] = 0
    model[3].weight.data[:, 1] = 0
    small = check(model, torch.randn(2, 2, *[5] * dims))
    assert [each.after[0] for each in small.compaction.layers] == [2, 2, 3, 2]
    unbatched = nn.Sequential(kind(2, 4, 3), nn.ReLU(), kind(4, 1, 1))
    unbatched[0].weight.data[0] = 0
    assert compact(unbatched, torch.randn(2, *[5] * dims))[0].out_channels == 3


def test_dense_layers_on_sequences():
    model = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2), nn.Flatten(), nn.Linear(10, 2))
    with torch.no_grad():
        model[0].weight[1] = 0
        model[4].weight[:, ::2] = 0
    assert list(widths(check(model, torch.randn(2, 5, 3))).values()) == [3, 1, 2]


# ---- the ends


def test_a_constant_network_keeps_one_node_in_each_layer():
    model = perceptron([4, 5, 6, 3], [nn.ReLU] * 3, [True, False, True])
    model[4].weight.data.zero_()
    small = check(model, torch.randn(2, 4))
    assert list(widths(small).values()) == [1, 1, 3]
    conv = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(36, 2)
    )
    for p in conv.parameters():
        p.data.zero_()
    assert list(widths(check(conv, torch.randn(2, 1, 7, 7))).values()) == [1, 1, 1, 2]


@pytest.mark.parametrize("zero", [0, 2, 4])
def test_a_layer_of_zeros_leaves_a_network(zero):
    model = perceptron([4, 5, 6, 3], [nn.Sigmoid] * 3, [True] * 3)
    model[zero].weight.data.zero_()
    check(model, torch.randn(2, 4))


def test_a_network_of_one_layer():
    model = nn.Sequential(nn.Linear(3, 2))
    model[0].weight.data[0] = 0
    small = check(model, torch.randn(2, 3))
    assert left(small) == {"0": "constant nodes stay: an output of the network"}
    alone = compact(model[0], torch.randn(2, 3))
    assert (type(alone), alone.weight.shape, alone.training) == (nn.Linear, (2, 3), True)
    assert isinstance(alone.compaction, Compaction)
    model[0].weight.data[:, 1:] = 0
    selecting = compact(model[0], torch.randn(2, 3), select="smaller")
    assert isinstance(selecting[0], Select)
    assert [each.name for each in (*selecting.compaction.layers, *selecting.compaction.left)] == ["Linear"] * 2


def test_inference_mode_makes_no_difference():
    def make():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2))
        model[0].weight.data[0] = 0
        return model

    model = make()
    expected = compact(model, torch.zeros(2, 4))
    with torch.inference_mode():
        for each in (model, make()):
            small = compact(each, torch.zeros(2, 4))
            identical(small.state_dict(), expected.state_dict())
            assert small.compaction == expected.compaction
    assert not any(p.is_inference() for p in small.parameters())


def test_a_network_without_zeros_stays_bit_for_bit():
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 2))
    small = check(model, torch.randn(2, 1, 5, 5))
    identical(small.state_dict(), model.state_dict())
    assert small.compaction.left == ()


def test_a_network_without_layers():
    assert compact(nn.Sequential(nn.ReLU()), torch.zeros(2, 3)).compaction.layers == ()


# ---- what stays, and is listed


class Two(nn.Module):
    """Layers of four nodes, of which one is constant and one is not read, with something between the last two."""

    def __init__(self, between=None):
        super().__init__()
        self.zero, self.one, self.two, self.three = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.between = between
        with torch.no_grad():
            for before, after in pairwise([self.zero, self.one, self.two, self.three]):
                before.weight[0] = 0
                before.bias[0] = 0.5
                after.weight[:, 1] = 0

    def forward(self, x):
        x = self.one(self.zero(x).relu()).relu()
        return self.three(self.step(self.two(x)))

    def step(self, x):
        return self.between(x)


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Linear(4, 4)

    def forward(self, x):
        return self.scale(x) if x.sum() > 0 else x


class Counting(Two):
    def step(self, x):
        return x / x.shape[1]


class Slicing(Two):
    def step(self, x):
        return torch.cat([x[:, 2:], x[:, :2]], 1)


class Joining(Two):
    def step(self, x):
        return torch.cat([x, x], 0)[: x.size(0)]


class Normal(Two):
    def step(self, x):
        return functional.normalize(x)


class Direct(Two):
    def step(self, x):
        return functional.linear(x, self.two.weight)


class Squeezing(Two):
    def step(self, x):
        return x.unsqueeze(2).squeeze()


class Overwriting(Two):
    def step(self, x):
        y = x * 2
        x.relu_()
        return y + x


class Twice(Two):
    def step(self, x):
        return self.two(x.relu())


class Hooked(Two):
    def __init__(self):
        super().__init__(nn.ReLU())
        self.two.register_forward_hook(lambda module, args, output: output * 2)


class Parametrized(Two):
    def __init__(self):
        super().__init__(nn.ReLU())
        self.two.weight.data[0] = 1
        parametrizations.weight_norm(self.two)


class Tied(Two):
    def __init__(self):
        super().__init__()
        self.between = nn.Linear(4, 4)
        self.between.weight = self.two.weight


@pytest.mark.parametrize(
    ("model", "name", "reason"),
    [
        (Two(nn.LayerNorm(4)), "between", "LayerNorm is not understood"),
        (Two(nn.Softmax(1)), "between", "Softmax is not understood"),
        (Two(nn.GroupNorm(2, 4)), "between", "GroupNorm is not understood"),
        (Two(Branching()), "between", "Branching cannot be traced"),
        (Two(nn.Bilinear(4, 4, 4)), None, None),
        (Counting(), "getattr_1", "forward uses the number of channels"),
        (Slicing(), "getitem", "it takes a part of a tensor"),
        (Joining(), "cat", "it joins along another dimension"),
        (Normal(), "normalize", "normalize is not understood"),
        (Direct(), "two", "forward uses its weights directly"),
        (Squeezing(), "squeeze", "its dimensions are not written as numbers"),
        (Twice(), "two", "it is used 2 times"),
        (Hooked(), "two", "it has hooks"),
        (Parametrized(), "two", "ParametrizedLinear is not understood"),
        (Tied(), "two", "its weights are also those of another layer"),
    ],
)
def test_a_part_that_is_not_understood_stays_and_is_listed(model, name, reason):
    if name is None:  # a part that no step uses
        model.step = torch.relu
        name, reason = "between", "forward does not use it"
    model.eval()
    small = check(model, torch.randn(3, 3), understood=False)
    assert reason in left(small)[name]
    assert count(small) < count(model), "what does not touch it still goes"


class Own(nn.Linear):
    pass


class Block(nn.Module):
    """A parameter beside layers, and a step that is not understood."""

    def __init__(self):
        super().__init__()
        self.fc, self.scale = nn.Linear(4, 4), nn.Parameter(torch.ones(4))

    def forward(self, x):
        return functional.normalize(self.fc(x) * self.scale)


class Held(nn.Module):
    """Weights without layers."""

    def __init__(self):
        super().__init__()
        self.w, self.single, self.fc = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.ones(())), nn.Linear(4, 2)
        self.register_buffer("fixed", torch.randn(4, 4))

    def forward(self, x):
        return self.fc(functional.linear(functional.linear(x, self.w), self.fixed) * self.single)


def test_weights_without_a_layer_that_is_understood_are_listed_by_the_names_that_the_user_gave():
    first = compact(nn.Sequential(Own(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(2, 3))
    assert left(first) == {"0": "Own is not understood"}
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), Own(4, 2))
    model[0].weight.data[1] = 0
    last = compact(model, torch.randn(2, 3))
    assert left(last) == {"2": "Own is not understood", "0": "constant nodes stay: read by 2"}
    assert left(compact(Held(), torch.randn(2, 3))) == {
        "w": "forward uses it directly",
        "fixed": "linear is not understood",
    }
    sparse = sparsify(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), above=0.0)
    assert left(compact(sparse, torch.randn(2, 3))) == {"0": "SparseLinear is not understood"}


def test_steps_inside_a_module_are_named_after_it():
    model = nn.Sequential(nn.Linear(3, 4), Block(), nn.Linear(4, 2))
    model[1].fc.weight.data[1] = 0
    assert left(compact(model, torch.randn(2, 3))) == {
        "1": "forward uses scale directly",
        "1.normalize": "normalize is not understood",
        "1.fc": "constant nodes stay: tied to 1",
    }
    tied = Added()
    tied.a, tied.b = nn.Linear(4, 4), nn.Sequential(nn.LayerNorm(4))
    tied.a.weight.data[0] = 0
    assert left(compact(tied, torch.randn(2, 4))) == {
        "b.0": "LayerNorm is not understood",
        "a": "constant nodes stay: tied to b.0",
    }


def test_what_is_overwritten_while_others_read_it_stays():
    small = check(Overwriting(), torch.randn(3, 3))
    assert widths(small) == {"zero": 2, "one": 2, "two": 4, "three": 2}


def test_attention_stays():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.attention, self.two = (
                nn.Linear(3, 4),
                nn.MultiheadAttention(4, 2, batch_first=True),
                nn.Linear(4, 2),
            )

        def forward(self, x):
            x = self.one(x)
            return self.two(self.attention(x, x, x)[0])

    model = Net()
    model.one.weight.data[0] = 0
    small = check(model, torch.randn(2, 5, 3), understood=False)
    assert left(small)["attention"] == "MultiheadAttention is not understood"
    assert left(small)["one"] == "constant nodes stay: read by attention"


class Undecided(Two):
    def forward(self, x):
        return super().forward(x) if x.sum() > 100 else self.three(self.two(self.one(self.zero(x))))


class Scaling(Two):
    def step(self, x):
        return x / self.three.in_features


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            Undecided(nn.ReLU()),
            "everything stays: forward cannot be traced: symbolically traced variables cannot be used as inputs to control flow",
        ),
        (Scaling(), "everything stays: forward uses the width of a layer as a number (truediv)"),
    ],
)
def test_a_network_that_cannot_be_followed_stays_as_it_is(model, reason):
    small = check(model, torch.randn(3, 3), understood=False)
    identical(small.state_dict(), model.state_dict())
    assert [(each.name, each.reason) for each in small.compaction.left] == [(type(model).__name__, reason)]


def test_a_network_with_hooks_stays_as_it_is():
    model = Two(nn.ReLU())
    model.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    small = check(model, torch.randn(3, 3), understood=False)
    assert left(small) == {"Two": "everything stays: the network has hooks"}


class Lenet(nn.Module):
    """As tutorials write it."""

    def __init__(self, number=None):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 5), nn.Conv2d(4, 6, 5)
        self.drop = nn.Dropout2d()
        self.fc1, self.fc2 = nn.Linear(6 * 16, 20), nn.Linear(20, 10)
        self.number = number

    def forward(self, x):
        x = functional.relu(functional.max_pool2d(self.conv1(x), 2))
        x = functional.relu(functional.max_pool2d(self.drop(self.conv2(x)), 2))
        x = x.view(-1, self.fc1.in_features if self.number is None else self.number)
        x = functional.relu(self.fc1(x))
        x = functional.dropout(x, training=self.training)
        return functional.log_softmax(self.fc2(x), dim=1)


@pytest.mark.parametrize(("number", "conv2"), [(None, 4), (96, 6)])
def test_a_width_that_forward_writes_as_a_number_stays(number, conv2):
    model = Lenet(number)
    with torch.no_grad():
        model.conv1.weight[2] = 0
        model.conv2.weight[:2] = 0
        model.fc2.weight[:, 3:7] = 0
    small = check(model, torch.randn(2, 1, 28, 28), select="faster", understood=number is None)
    assert widths(small) == {"conv1": 3, "conv2": conv2, "fc1": 16, "fc2": 10}
    assert ("view" in left(small)) == (number is not None)
    if number is not None:
        assert left(small)["view"] == "forward writes the width as a number, where flatten(1) would follow it"
        assert left(small)["conv2"] == "constant nodes stay: read by view"


def test_a_selection_does_not_hide_a_layer_that_forward_looks_at():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Linear(8, 4)

        def forward(self, x):
            return self.one(x.view(-1, self.one.in_features))

    model = Net()
    model.one.weight.data[:, 4:] = 0
    assert type(check(model, torch.randn(2, 2, 4), select="smaller").one) is nn.Linear


class ByType(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(784, 256), nn.Linear(256, 4)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            if isinstance(layer, nn.Linear):
                x = torch.tanh(x)
        return x


def test_a_selection_does_not_hide_a_layer_whose_type_forward_asks_for():
    model = ByType()
    with torch.no_grad():
        model.layers[0].weight[:, :384] = 0
        model.layers[1].weight[:, :9] = 0
    small = check(model, torch.randn(2, 784), select="faster")
    assert widths(small) == {"layers.0": 247, "layers.1": 4}
    assert left(small) == {
        "layers.0": "inputs that it does not need stay: forward looks at a layer that a selection would hide"
    }


# ---- where rounding decides


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    "step", [nn.Hardshrink(0.1), nn.Threshold(0.1, 5.0), lambda x: functional.threshold(x, 0.3, 2)]
)
def test_a_constant_at_a_jump_falls_on_the_side_that_the_network_s_dtype_says(step, dtype):
    model = Through(step).to(dtype)
    with torch.no_grad():
        model.one.weight[:2] = 0
        model.one.bias[:2] = torch.tensor([0.1, 0.3])
    x = torch.randn(5, model.one.in_features, dtype=dtype)
    small = compact(model, x)
    same(model, small, x)
    assert small.one.out_features == model.one.out_features - 2


def test_a_network_whose_outputs_are_rounding_alone_stays_as_it_is():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].bias.copy_(torch.tensor([100.1, 2000.3, 777.7]))
        model[2].weight.copy_(torch.tensor([[0.3, 0.7, 0.1], [0.4, -0.6, 0.9]]))
        model[2].bias.sub_(model(torch.zeros(4)))
    small = check(model, torch.randn(2, 4), understood=False)
    identical(small.state_dict(), model.state_dict())
    assert left(small)["Sequential"].startswith(
        "everything stays: the smaller network gives other outputs on the example ("
    )


@pytest.mark.parametrize(("bias", "nodes"), [(0.0, 2), (1.5, 2), (1.2345e5, 3)])
def test_a_large_constant_stays_before_a_normalisation_by_its_own_mean(bias, nodes):
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False), nn.Linear(3, 2))
    with torch.no_grad():
        model[0].weight[0] = 0
        model[0].bias[0] = bias
    small = compact(model, torch.randn(7, 4))
    assert widths(small) == {"0": nodes, "1": nodes, "2": 2}
    same(model, small, torch.randn(7, 4))
    if nodes == 3:
        assert left(small) == {"0": "constant nodes stay: 1 normalises them by their own mean, which is not exact"}


# ---- an ordinary network


def test_the_result_can_be_copied_pickled_saved_and_traced():
    model = nn.Sequential(nn.Linear(20, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 2)).eval()
    with torch.no_grad():
        model[0].weight[:4] = 0
        model[0].weight[:, 3:9] = 0
    small = compact(model, torch.randn(2, 20), select="smaller")
    x = torch.randn(5, 20)
    expected = small(x)
    for again in (copy.deepcopy(small), pickle.loads(pickle.dumps(small))):  # noqa: S301 (our own)
        assert torch.equal(again(x), expected)
        assert again.compaction == small.compaction
    other = compact(model, torch.randn(2, 20), select="smaller")
    for p in other.parameters():
        p.data.zero_()
    other.load_state_dict(small.state_dict())
    assert torch.equal(other(x), expected)
    assert torch.equal(fx.symbolic_trace(small)(x), expected)


def test_gradients_dtype_training_and_order_of_memory_are_kept():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.Flatten(), nn.Linear(45, 2)
    )
    model = model.to(torch.float64).to(memory_format=torch.channels_last)
    model[0].weight.requires_grad_(False)
    model[1].eval()
    with torch.no_grad():
        model[0].weight[1] = 0
        model[3].weight[:2] = 0
    small = check(model, torch.randn(2, 3, 7, 7, dtype=torch.float64))
    assert [p.requires_grad for p in small.parameters()] == [p.requires_grad for p in model.parameters()]
    assert {p.dtype for p in small.parameters()} == {torch.float64}
    assert [each.training for each in small] == [True, False, True, True, True, True]
    assert small[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert not small[0].weight.is_contiguous()
    assert small[5].weight.is_contiguous()
    small(torch.randn(2, 3, 7, 7, dtype=torch.float64)).sum().backward()
    assert small[3].weight.grad.shape == (3, 3, 3, 3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    model = nn.Sequential(nn.Linear(6, 8), nn.Sigmoid(), nn.Linear(8, 3)).to(dtype)
    model[0].weight.data[:3] = 0
    small = compact(model, torch.randn(2, 6, dtype=dtype))
    assert {p.dtype for p in small.parameters()} == {dtype}
    x = torch.randn(4, 6, dtype=dtype)
    torch.testing.assert_close(small(x), model(x), rtol=0.02, atol=0.02)


def test_several_inputs_and_outputs_and_arguments_with_defaults():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.out = nn.Linear(2, 4), nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x, y, flag, mask=None, *, scale=2.0):
            hidden = self.a(x) + self.b(y) if flag else self.a(x)
            if mask is not None:
                hidden = hidden * mask
            return {"out": self.out(torch.relu(hidden) * scale), "other": [hidden.sum(1), None]}

    model = Net()
    with torch.no_grad():
        model.a.weight[0] = 0
        model.out.weight[:, 1] = 0
    x, y = torch.randn(2, 2), torch.randn(2, 3)
    small = compact(model, (x, y, False))
    assert left(small)["b"] == "forward does not use it"
    assert left(small)["sum_1"] == "sum is not understood"
    small = compact(model, (x, y, True))
    torch.testing.assert_close(small(x, y, True), model(x, y, True))


def test_a_dictionary_of_inputs():
    class Net(Two):
        def forward(self, inputs):
            return super().forward(inputs["x"])

    model, x = Net(nn.ReLU()), {"x": torch.randn(2, 3)}
    small = compact(model, x)
    assert widths(small) == {"zero": 2, "one": 2, "two": 2, "three": 2}
    torch.testing.assert_close(small(x), model(x))
    with torch.inference_mode():
        assert widths(compact(model, {"x": torch.randn(2, 3)})) == widths(small)


def test_shared_activations_are_no_obstacle():
    act = nn.ReLU()
    model = nn.Sequential(nn.Linear(3, 4), act, nn.Linear(4, 4), act, nn.Linear(4, 2))
    model[0].weight.data[0] = 0
    model[4].weight.data[:, 1] = 0
    assert list(widths(check(model, torch.randn(2, 3))).values()) == [3, 3, 2]


def test_constrained_layers_stay_constrained():
    model = nn.Sequential(nn.Linear(30, 8), nn.ReLU(), nn.Linear(8, 2))
    inface.FrankWolfe(model, {"0.weight": L1Ball(100.0)}, lr=0.1, fused=False)
    with torch.no_grad():
        model[0].weight[:4] = 0
        model[0].weight[:, 10:] = 0
    small = compact(model, torch.randn(2, 30), select="smaller")
    assert inface.sparsity.nonzeros(small).layers["0.layer.weight"].exact_percent == 100


def test_a_trained_network_gets_smaller():
    torch.manual_seed(0)
    x = torch.randn(64, 20)
    y = (x[:, :1] * x[:, 1:2]).relu()
    model = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 1))
    optimizer = inface.FrankWolfe(model, {"0.weight": L1Ball(2.0)}, lr=0.05, in_face="away", project=True, fused=False)
    for _ in range(20):
        optimizer.zero_grad()
        functional.mse_loss(model(x), y).backward()
        optimizer.step()
    sparse = inface.sparsity.hard_threshold(model, keep=0.05)
    small = check(sparse, x, select="smaller")
    assert count(small) < 0.75 * count(model)


def test_the_listing_reads_well():
    model = Two(nn.LayerNorm(4))
    assert str(compact(model, torch.zeros(2, 3)).compaction) == (
        "layer  kind    before  after  removed  folded\n"
        "zero   Linear  4x3     2x3    2        0\n"
        "one    Linear  4x4     2x2    2        1\n"
        "two    Linear  4x4     4x2    0        1\n"
        "three  Linear  2x4     2x4    0        0\n"
        "parameters: 74 -> 44\n"
        "left: between: LayerNorm is not understood\n"
        "left: two (1): constant nodes stay: read by between\n"
        "left: three (1): inputs that it does not need stay: picking out the others would not be faster"
    )


# ---- errors


def test_wrong_arguments_are_refused():
    model = nn.Sequential(nn.Linear(3, 2))
    with pytest.raises(ValueError, match=r"compact: model must be a torch.nn.Module, got int"):
        compact(3, torch.zeros(1, 3))
    with pytest.raises(ValueError, match=r"compact: select must be one of faster, smaller, never, got 'often'"):
        compact(model, torch.zeros(1, 3), select="often")
    with pytest.raises(ValueError, match=r"compact: Sequential does not run on the example input: mat1 and mat2"):
        compact(model, torch.zeros(1, 4))
    prune.l1_unstructured(model[0], "weight", 3)
    with pytest.raises(
        ValueError, match=r"compact: Sequential cannot be copied \(prune.remove.*: Only Tensors created"
    ):
        compact(model, torch.zeros(1, 3))


def test_a_fault_of_ours_leaves_the_network_as_it_is(monkeypatch):
    from inface.export.compaction import plan  # noqa: PLC0415

    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    model[0].weight.data[1] = 0
    model[0].bias.data[1] = 5
    for wrong, why in (
        (_careless(plan.shrink), "the smaller network gives other outputs on the example ("),
        (_failing, "ZeroDivisionError: division by zero"),
    ):
        monkeypatch.setattr(plan, "shrink", wrong)
        small = compact(model, torch.zeros(1, 3))
        identical(small.state_dict(), model.state_dict())
        assert left(small)["Sequential"].startswith(f"everything stays: {why}")
        assert small.training


def _careless(shrink):
    def forgets_constants(module, layer, rows, columns):
        return shrink(module, replace(layer, folds=torch.zeros_like(layer.folds)), rows, columns)

    return forgets_constants


def _failing(*_):
    return 1 / 0
