"""sparse_optimizer: any network goes to its density, learns on the way, and resumes where it was."""

import copy
import gc
import io
import linecache
import math
import pickle
import subprocess
import sys
import warnings
import weakref
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.nn.utils import parametrizations, prune
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, OneCycleLR, ReduceLROnPlateau

import inface
from helpers.conv1d import Conv1D
from inface import kernels
from inface.density import announce
from inface.paths import abandon, cool_down
from inface.sparse import chosen_layers

STEPS = 60


class Residual(nn.Module):
    """Convolutions with batch normalisation around a sum."""

    def __init__(self):
        super().__init__()
        self.stem, self.conv = nn.Conv2d(2, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.first, self.second, self.head = nn.BatchNorm2d(8), nn.BatchNorm2d(8), nn.Linear(8, 3)

    def forward(self, x):
        x = torch.relu(self.first(self.stem(x)))
        return self.head((x + torch.relu(self.second(self.conv(x)))).mean((2, 3)))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.layer(self.embed(x)).mean(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(6, 16, batch_first=True), nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


class Tied(nn.Module):
    """A decoder tied to an embedding, and two linear layers that are one."""

    def __init__(self):
        super().__init__()
        self.embed, self.decoder = nn.Embedding(12, 16), nn.Linear(16, 12)
        self.first, self.second, self.head = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(12, 3)
        self.decoder.weight, self.second.weight = self.embed.weight, self.first.weight

    def forward(self, x):
        x = torch.relu(self.first(self.embed(x).mean(1)))
        return self.head(self.decoder(torch.relu(self.second(x))))


class Upward(nn.Module):
    """A transposed convolution, whole and in groups."""

    def __init__(self):
        super().__init__()
        self.up, self.grouped = nn.ConvTranspose2d(2, 16, 2, stride=2), nn.ConvTranspose2d(16, 16, 1, groups=2)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(torch.relu(self.grouped(torch.relu(self.up(x)))).mean((2, 3)))


class ZeroBranches(nn.Module):
    """Residual branches that end with zeros, and a zero head."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(10, 32), nn.Linear(32, 3)
        self.inner = nn.ModuleList([nn.Linear(32, 32) for _ in range(3)])
        self.outer = nn.ModuleList([nn.Linear(32, 32) for _ in range(3)])
        for layer in (*self.outer, self.head):
            nn.init.zeros_(layer.weight)

    def forward(self, x):
        x = self.stem(x)
        for inner, outer in zip(self.inner, self.outer, strict=True):
            x = x + outer(torch.relu(inner(x)))
        return self.head(x)


def mlp():
    return nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 3))


def images(n):
    x = torch.randn(n, 2, 6, 6)
    y = torch.randint(3, (n,))
    return x + torch.tensor([-4.0, 0.0, 4.0])[y].view(-1, 1, 1, 1), y


def points(n):
    x = torch.randn(n, 10)
    return x, x[:, :3].argmax(1)


def tokens(n):
    y = torch.randint(3, (n,))
    return torch.randint(4, (n, 5)) + 4 * y.view(-1, 1), y


def sequences(n):
    y = torch.randint(3, (n,))
    return torch.randn(n, 4, 6) + torch.tensor([-1.5, 0.0, 1.5])[y].view(-1, 1, 1), y


# model, data, and the layers that are to be sparse
NETWORKS = {
    "mlp": (mlp, points, ["0.weight", "2.weight", "4.weight"]),
    "residual": (Residual, images, ["stem.weight", "conv.weight", "head.weight"]),
    "transformer": (
        Transformer,
        tokens,
        [
            "layer.self_attn.in_proj_weight", "layer.self_attn.out_proj.weight", "layer.linear1.weight",
            "layer.linear2.weight", "head.weight",
        ],
    ),
    "lstm": (Recurrent, sequences, ["lstm.weight_ih_l0", "lstm.weight_hh_l0", "head.weight"]),
    "tied": (Tied, tokens, ["first.weight", "head.weight"]),
    "transposed": (Upward, images, ["up.weight", "grouped.weight", "head.weight"]),
}  # fmt: skip


ZERO = ["stem.weight", "head.weight", *(f"{place}.{i}.weight" for place in ("inner", "outer") for i in range(3))]


def make(name="mlp", *, dtype=torch.float32, seed=0, steps=STEPS, **options):
    build, data, _ = NETWORKS.get(name, (ZeroBranches, points, ZERO))
    torch.manual_seed(seed)
    model = build().to(dtype)
    torch.manual_seed(0)
    x, y = data(48)
    x = x.to(dtype) if x.dtype.is_floating_point else x
    options = {"density": 0.2, "lr": 0.1} | options
    return model, (x, y), inface.sparse_optimizer(model, steps=steps, **options)


def gradients(model, batch, scale=1.0):
    model.zero_grad()
    loss = nn.functional.cross_entropy(model(batch[0]).float(), batch[1]) * scale
    loss.backward()
    return loss.detach()


def train(model, batch, opt, steps=STEPS, scheduler=None):
    losses = []
    for _ in range(steps):
        losses.append(float(gradients(model, batch)))
        opt.step()
        if scheduler is not None:
            scheduler.step(*([losses[-1]] if isinstance(scheduler, ReduceLROnPlateau) else []))
    return losses


def layers(opt):
    return [p for group in opt.param_groups if group["set"] is not None for p in group["params"]]


def assert_sparse(opt, density):
    chosen = layers(opt)
    assert sum(int(p.count_nonzero()) for p in chosen) <= int(density * sum(p.numel() for p in chosen) + 1e-6)
    for p in chosen:
        assert p.count_nonzero() > 0
        assert torch.isfinite(p).all()


def values(model):
    return [p.detach().clone() for p in model.parameters()]


def assert_same(one, two):
    for p, q in zip(one, two, strict=True):
        assert torch.equal(p, q)


def through_file(data):
    file = io.BytesIO()
    torch.save(data, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def repickled(thing):
    return pickle.loads(pickle.dumps(thing))  # noqa: S301 - our own


# ---------------------------------------------------------------------- any network


@pytest.mark.parametrize("free", ["sgd", "adamw"])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_ends_at_its_density_and_has_learned(name, free):
    model, batch, opt = make(name, free=free, lr=0.1 if free == "sgd" else 0.01, density=0.15, steps=150)
    names = {id(p): name for name, p in model.named_parameters()}
    assert [names[id(p)] for p in layers(opt)] == NETWORKS[name][2]
    losses = train(model, batch, opt, 150)
    assert_sparse(opt, 0.15)
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes_end_at_their_density_and_learn(dtype):
    model, batch, opt = make(dtype=dtype, steps=150)
    losses = train(model, batch, opt, 150)
    assert_sparse(opt, 0.2)
    assert all(p.dtype is dtype for p in model.parameters())
    assert losses[-1] < 0.6 * losses[0]


def test_a_bfloat16_network_keeps_its_float32_weights_at_a_cut():
    model, batch, opt = make(dtype=torch.bfloat16)
    p = model[0].weight
    for _ in range(STEPS):
        gradients(model, batch)
        opt.step()
        master = opt.state[p]["master"]
        assert torch.equal(master == 0, p == 0)
        assert int((master.bfloat16().float() != master).sum()) > 0.5 * int((master != 0).sum())


@pytest.mark.parametrize("name", ["residual", "transposed"])
def test_channels_last_weights_go_the_same_way(name):
    model, batch, opt = make(name, lr=0.01)
    train(model, batch, opt)
    torch.manual_seed(0)
    other = NETWORKS[name][0]().to(memory_format=torch.channels_last)
    other_opt = inface.sparse_optimizer(other, density=0.2, lr=0.01, steps=STEPS)
    train(other, batch, other_opt)
    assert_sparse(other_opt, 0.2)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-4)


def test_a_pretrained_network_starts_as_it_is_and_keeps_what_it_knows():
    torch.manual_seed(0)
    model, batch = mlp(), points(48)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trained = train(model, batch, sgd, 150)[-1]
    before = values(model)
    opt = inface.sparse_optimizer(model, density=0.3, lr=0.05, steps=150)
    assert_same(before, values(model))
    losses = train(model, batch, opt, 150)
    assert losses[0] <= trained + 1e-6
    assert losses[-1] < 0.3
    assert_sparse(opt, 0.3)


def test_frozen_layers_stay_bit_for_bit_and_do_not_count():
    torch.manual_seed(0)
    model, batch = mlp(), points(48)
    model[2].requires_grad_(requires_grad=False)
    before = model[2].weight.clone()
    opt = inface.sparse_optimizer(model, density=0.2, lr=0.1, steps=STEPS)
    train(model, batch, opt)
    assert torch.equal(before, model[2].weight)
    assert len(layers(opt)) == 2
    assert_sparse(opt, 0.2)


def test_a_layer_without_gradients_in_some_steps_gets_sparse_with_the_others():
    model, batch, opt = make()
    for i in range(STEPS):
        gradients(model, batch)
        if i % 3 == 0 or i > 50:
            model[2].weight.grad = None
        opt.step()
    assert_sparse(opt, 0.2)


class Heads(nn.Module):
    """Two heads, of which one is used."""

    def __init__(self):
        super().__init__()
        self.body, self.unused, self.used = nn.Linear(10, 32), nn.Linear(32, 64), nn.Linear(32, 3)

    def forward(self, x):
        return self.used(torch.relu(self.body(x)))


@pytest.mark.parametrize("zero", [False, True], ids=["no gradient", "zero gradients"])
def test_a_layer_that_no_gradient_reaches_leaves_its_weights_to_the_others_and_a_warning_names_it(zero):
    torch.manual_seed(0)
    model, batch = Heads(), points(48)
    opt = inface.sparse_optimizer(model, density=0.1, lr=0.1, steps=STEPS)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(STEPS):
            gradients(model, batch)
            if zero:
                model.unused.weight.grad = torch.zeros_like(model.unused.weight)
            opt.step()
            kept = sum(int(p.count_nonzero()) for p in layers(opt))
            assert kept >= opt.param_groups[0]["path"]["density"] * 2464 - 60
    (one,) = told
    assert "no gradient reached unused.weight in 7 steps" in str(one.message)
    assert one.filename == __file__
    assert_sparse(opt, 0.1)
    assert int(model.unused.weight.count_nonzero()) < 20
    assert int(model.body.weight.count_nonzero() + model.used.weight.count_nonzero()) > 200


@pytest.mark.parametrize("since", [0, 20])
def test_a_layer_that_is_frozen_later_keeps_its_share_and_is_cut_with_the_others(since):
    model, batch, opt = make()
    for i in range(STEPS):
        if i == since:
            model[2].weight.requires_grad_(requires_grad=False)
        gradients(model, batch)
        opt.step()
    assert_sparse(opt, 0.2)
    assert int(model[2].weight.count_nonzero()) > 40


def test_a_network_that_is_sparse_in_one_layer_already_loses_no_more_than_it_must():
    torch.manual_seed(0)
    model, batch = mlp(), points(48)
    with torch.no_grad():
        model[0].weight[:, 1:] = 0
    opt = inface.sparse_optimizer(model, density=0.2, lr=0.1, steps=STEPS)
    for _ in range(STEPS):
        gradients(model, batch)
        opt.step()
        assert sum(int(p.count_nonzero()) for p in layers(opt)) >= 0.15 * sum(p.numel() for p in layers(opt))
    assert_sparse(opt, 0.2)


def test_every_layer_keeps_a_weight_where_there_is_one_for_each():
    model, batch, opt = make(density=3 / (320 + 512 + 48))
    train(model, batch, opt)
    assert [int(p.count_nonzero()) for p in layers(opt)] == [1, 1, 1]


@pytest.mark.parametrize(("free", "lr"), [("sgd", 0.03), ("adamw", 0.003)])
def test_layers_of_zeros_become_sparse_and_learn_with_the_others(free, lr):
    model, batch, opt = make("zero branches", free=free, lr=lr, density=0.15, steps=150)
    losses = train(model, batch, opt, 150)
    assert_sparse(opt, 0.15)
    assert losses[-1] < 0.1 * losses[0]


def test_layers_of_zeros_move_as_torch_moves_them_until_weights_leave():
    model, batch, opt = make("zero branches", dtype=torch.float64)
    p = model.head.weight
    copied = p.detach().clone().requires_grad_()
    torchs = torch.optim.SGD([copied], lr=0.1, momentum=0.9)
    for _ in range(STEPS // 10):
        gradients(model, batch)
        copied.grad = p.grad.clone()
        opt.step()
        torchs.step()
        torch.testing.assert_close(p, copied)
    average = 0.1 * torchs.state[copied]["momentum_buffer"]
    gradients(model, batch)
    average = 0.9 * average + 0.1 * p.grad
    opt.step()
    torch.testing.assert_close(opt.state[p]["momentum_buffer"][p != 0], average[p != 0])
    assert bool(torch.isfinite(opt.param_groups[1]["set"].radius).all())
    train(model, batch, opt)


@pytest.mark.filterwarnings("ignore:.*no gradient reached inner.1.weight")
@pytest.mark.parametrize("since", [20, 45, 55, 65])
def test_a_layer_of_zeros_that_is_used_late_ends_at_the_density_with_the_others(since):
    model, batch, opt = make("zero branches")
    for i in range(STEPS + 10):
        gradients(model, batch)
        if i < since:
            model.outer[1].weight.grad = None
        opt.step()
        if i >= STEPS - 1:
            chosen = layers(opt)
            assert sum(int(p.count_nonzero()) for p in chosen) <= 0.2 * sum(p.numel() for p in chosen)
    assert bool(model.outer[1].weight.any()) == (since < 48)


@pytest.mark.parametrize("free", ["sgd", "adamw"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("at", [0, 3, 6, 7, 31])
def test_a_network_with_layers_of_zeros_resumes_bit_for_bit(at, dtype, free):
    options = {"free": free, "lr": 0.03 if free == "sgd" else 0.005, "dtype": dtype}
    model, batch, opt = make("zero branches", **options)
    train(model, batch, opt, at)
    saved = through_file({"model": model.state_dict(), "optimizer": opt.state_dict()})
    train(model, batch, opt, STEPS - at)
    other, batch, live = make("zero branches", **options, seed=1)
    other.load_state_dict(saved["model"])
    live.load_state_dict(saved["optimizer"])
    assert "radius=inf" not in repr(live)
    assert float(inface.modified_gap(other, nn.functional.cross_entropy, [batch], live)) > 0
    train(other, batch, live, STEPS - at)
    assert_same(values(model), values(other))
    assert_sparse(live, 0.2)
    assert set(live.report().smoothness) == set(ZERO)


def test_a_network_that_starts_sparser_than_its_density_may_grow_to_it():
    torch.manual_seed(0)
    model, batch = mlp(), points(48)
    with torch.no_grad():
        for layer in (model[0], model[2], model[4]):
            layer.weight.mul_(torch.rand_like(layer.weight) < 0.1)
    opt = inface.sparse_optimizer(model, density=0.4, lr=0.1, steps=200)
    before = sum(int(p.count_nonzero()) for p in layers(opt))
    train(model, batch, opt, 200)
    assert sum(int(p.count_nonzero()) for p in layers(opt)) > 1.2 * before
    assert_sparse(opt, 0.4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("momentum", [0.9, 0.0])
@pytest.mark.parametrize("free", ["sgd", "adamw"])
@pytest.mark.parametrize("density", [0.5, 0.6, 0.8, 0.9, 0.97])
def test_large_densities_are_met_and_not_by_far_undercut(density, free, momentum, dtype):
    lr = 0.1 if free == "sgd" else 0.003
    model, _, opt = make(density=density, free=free, lr=lr, momentum=momentum, dtype=dtype, steps=300)
    x, y = points(400)
    batch = x.to(dtype), torch.where(torch.rand(400) < 0.3, torch.randint(3, (400,)), y)  # not all can be learned
    losses = train(model, batch, opt, 300)
    assert_sparse(opt, density)
    assert sum(int(p.count_nonzero()) for p in layers(opt)) >= (density - 0.1) * 880
    assert losses[-1] < 0.8 * losses[0]
    support = [p == 0 for p in layers(opt)]
    train(model, batch, opt, 20)
    for p, zeros in zip(layers(opt), support, strict=True):
        assert (p[zeros] == 0).all()


def test_a_layer_of_equal_weights_loses_no_more_of_them_than_it_must():
    torch.manual_seed(0)
    model = nn.Linear(20, 5)
    nn.init.constant_(model.weight, 0.1)
    opt = inface.sparse_optimizer(model, density=0.1, lr=1e-6, steps=20)
    for _ in range(20):
        model.weight.grad = torch.zeros_like(model.weight)
        opt.step()
    assert model.weight.count_nonzero() == 10


def test_no_cut_takes_more_than_a_tenth_of_all_weights():
    model, batch, opt = make(steps=200)
    found = []
    for _ in range(200):
        gradients(model, batch)
        opt.step()
        found.append(sum(int(p.count_nonzero()) for p in layers(opt)))
    total = sum(p.numel() for p in layers(opt))
    assert max(a - b for a, b in pairwise(found)) < 0.1 * total


@pytest.mark.parametrize("steps", [np.int64(STEPS), np.uint8(STEPS), torch.tensor(STEPS)], ids=lambda n: str(n.dtype))
def test_whole_numbers_of_any_type_are_steps_and_are_saved_as_plain_ones(steps):
    model, batch, opt = make(steps=steps)
    train(model, batch, opt)
    assert_sparse(opt, 0.2)
    assert type(opt.param_groups[0]["path"]["steps"]) is int
    through_file(opt.state_dict())


# ---------------------------------------------------------------------- more steps, and fewer


def test_more_steps_than_announced_keep_the_support():
    model, batch, opt = make()
    train(model, batch, opt)
    support = [p == 0 for p in layers(opt)]
    before = values(model)
    train(model, batch, opt, 50)
    for p, zeros in zip(layers(opt), support, strict=True):
        assert (p[zeros] == 0).all()
    assert any(not torch.equal(p, q) for p, q in zip(before, model.parameters(), strict=True))


def collected(opt_steps, *, then=lambda opt: opt, scheduler=None):
    """What is warned of when an optimizer goes after some steps."""
    model, batch, opt = make()
    schedule = None if scheduler is None else scheduler(opt)
    train(model, batch, opt, opt_steps, schedule)
    opt = then(opt)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        del opt, schedule
        gc.collect()
    return [str(one.message) for one in found]


@pytest.mark.parametrize("scheduler", [None, partial(CosineAnnealingLR, T_max=STEPS)])
def test_fewer_steps_are_one_warning_that_says_where_the_path_stood(scheduler):
    (said,) = collected(20, scheduler=scheduler)
    assert "stopped after 20 of the 60 steps" in said
    assert "on the way to 0.2" in said


@pytest.mark.parametrize("steps", [0, STEPS, STEPS + 5])
def test_a_path_that_has_ended_or_not_begun_is_no_warning(steps):
    assert collected(steps) == []


def test_the_warning_is_at_the_line_that_made_the_optimizer():
    torch.manual_seed(0)
    model, batch = mlp(), points(48)
    opt = inface.sparse_optimizer(model, density=0.2, lr=0.1, steps=STEPS)
    train(model, batch, opt, 20)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        del opt
        gc.collect()
    (one,) = found
    assert one.filename == __file__
    assert "opt = inface.sparse_optimizer(model" in linecache.getline(one.filename, one.lineno)


def test_one_skipped_gradient_of_many_is_no_warning_once_the_density_is_reached():
    assert collected(STEPS - 1) == []
    assert len(collected(STEPS - 9)) == 1


def test_a_loaded_optimizer_warns_of_where_it_is():
    def resumed_at_the_end(opt):
        state = through_file(opt.state_dict())
        for group in state["param_groups"]:
            if group["path"]:
                group["path"]["step"] = 61
        opt.load_state_dict(state)
        return opt

    def resumed_in_the_middle(opt):
        state = through_file(opt.state_dict())
        for group in state["param_groups"]:
            if group["path"]:
                group["path"].update(step=33, density=0.44)
        opt.load_state_dict(state)
        return opt

    assert collected(20, then=resumed_at_the_end) == []
    (said,) = collected(STEPS, then=resumed_in_the_middle)
    assert "stopped after 33 of the 60 steps" in said
    assert "density of 0.44" in said


def test_copies_do_not_warn():
    model, batch, opt = make()
    train(model, batch, opt, 20)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        copied = [copy.deepcopy(opt), repickled(opt)]
        del copied
        gc.collect()
    assert found == []
    train(model, batch, opt, STEPS - 20)


def test_an_optimizer_is_collected_without_waiting_for_cycles():
    _, _, opt = make()
    seen = []
    gc.disable()
    try:
        weakref.finalize(opt, seen.append, "gone")
        del opt
        assert seen == ["gone"]
    finally:
        gc.enable()


def test_the_end_of_a_process_is_one_warning_and_no_traceback():
    script = """
import torch, inface
model = torch.nn.Linear(8, 8)
opt = inface.sparse_optimizer(model, density=0.5, lr=0.1, steps=10)
for _ in range(3):
    model(torch.ones(1, 8)).sum().backward()
    opt.step()
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "Traceback" not in found.stderr
    assert found.stderr.count("stopped after 3 of the 10 steps") == 1


# ---------------------------------------------------------------------- which layers


def test_a_mapping_gives_every_pattern_its_own_density_and_1_leaves_dense():
    density = {"0.*": 0.1, "2.weight": 0.4, "4.weight": 1.0}
    model, batch, opt = make(density=density)
    train(model, batch, opt)
    assert int(model[0].weight.count_nonzero()) <= 32
    assert 32 < int(model[2].weight.count_nonzero()) <= 204
    assert int(model[4].weight.count_nonzero()) == 48


def test_the_last_pattern_that_matches_wins():
    model, batch, opt = make(density={"*": 0.1, "4.*": 1.0, "2.weight": 0.4})
    train(model, batch, opt)
    assert int(model[0].weight.count_nonzero()) <= 32
    assert 52 < int(model[2].weight.count_nonzero()) <= 204
    assert int(model[4].weight.count_nonzero()) == 48


def compiled():
    return torch.compile(mlp(), backend="eager")


def compiled_parts():
    return nn.Sequential(*[torch.compile(layer, backend="eager") for layer in mlp()])


def parallel():
    return nn.DataParallel(compiled())


@pytest.mark.parametrize("build", [compiled, compiled_parts, parallel])
@pytest.mark.parametrize("pattern", ["2.*", "2.weight"])
def test_patterns_do_not_name_what_compiling_and_parallel_wrappers_add(build, pattern):
    model = build()
    (name,) = [name for name, p in model.named_parameters() if p.shape == (16, 32)]
    assert name != "2.weight"
    for chosen in (pattern, name):
        opt = inface.sparse_optimizer(model, density={chosen: 0.2}, lr=0.1, steps=STEPS)
        assert [p.shape for p in layers(opt)] == [(16, 32)]
    with torch.compiler.set_stance("force_eager"):
        train(model, points(48), opt)
    assert_sparse(opt, 0.2)


def test_a_module_that_somebody_calls_module_keeps_its_name():
    model = nn.ModuleDict({"module": nn.Linear(4, 3), "other": nn.Linear(4, 3)})
    with pytest.raises(ValueError, match='pattern "weight" matches none'):
        inface.sparse_optimizer(model, density={"weight": 0.5}, lr=0.1, steps=10)


def test_a_tied_weight_is_found_under_each_of_its_names():
    _, _, opt = make("tied", density={"second.weight": 0.2})
    assert [group["param_names"] for group in opt.param_groups if group["set"] is not None] == [["first.weight"]]


def test_conv1d_of_transformers_becomes_sparse_per_output():
    torch.manual_seed(0)
    model, batch = nn.Sequential(Conv1D(32, 10), nn.ReLU(), Conv1D(3, 32)), points(48)
    opt = inface.sparse_optimizer(model, density=0.2, lr=0.1, steps=150)
    assert [group["set"].per for group in opt.param_groups if group["set"] is not None] == ["input", "input"]
    assert [len(group["set"].radius) for group in opt.param_groups if group["set"] is not None] == [32, 3]
    losses = train(model, batch, opt, 150)
    assert_sparse(opt, 0.2)
    assert losses[-1] < 0.7 * losses[0]


NORMALISED = {
    "weight norm": (parametrizations.weight_norm, ["original1"]),
    "weight norm of the whole": (partial(parametrizations.weight_norm, dim=None), ["original1"]),
    "older weight norm": (torch.nn.utils.weight_norm, ["weight_v"]),
    "spectral norm": (parametrizations.spectral_norm, ["original"]),
    "older spectral norm": (torch.nn.utils.spectral_norm, ["weight_orig"]),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")
@pytest.mark.parametrize("density", [0.12, {"*.weight": 0.12}])
@pytest.mark.parametrize("kind", NORMALISED)
def test_a_normalised_weight_becomes_sparse_through_the_parameter_behind_it(kind, density):
    normalise, names = NORMALISED[kind]
    torch.manual_seed(0)
    up = nn.Sequential(normalise(nn.ConvTranspose2d(2, 16, 2)), nn.ReLU(), normalise(nn.Conv2d(16, 16, 3)), nn.ReLU())
    model, batch = nn.Sequential(*up, nn.Flatten(), normalise(nn.Linear(16 * 25, 3))), images(48)
    opt = inface.sparse_optimizer(model, density=density, lr=0.03, steps=150)
    assert [group["param_names"][0].split(".")[-1] for group in opt.param_groups if group["set"]] == 3 * names
    losses = train(model, batch, opt, 150)
    assert_sparse(opt, 0.12)
    weights = [model[i].weight for i in (0, 2, 5)]
    assert sum(int(p.count_nonzero()) for p in weights) <= 0.12 * sum(p.numel() for p in weights)
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")
@pytest.mark.parametrize("kind", NORMALISED)
def test_normalised_recurrent_weights_become_sparse(kind):
    normalise, names = NORMALISED[kind]
    torch.manual_seed(0)
    model, batch = Recurrent(), sequences(48)
    normalise(model.lstm, "weight_hh_l0")
    opt = inface.sparse_optimizer(model, density=0.15, lr=0.1, steps=STEPS)
    found = [group["param_names"][0] for group in opt.param_groups if group["set"] is not None]
    assert sorted(name.split(".")[-1].replace("weight_hh_l0", "weight") for name in found) == sorted(
        ["weight_ih_l0", *names, "weight"]
    )
    train(model, batch, opt)
    assert_sparse(opt, 0.15)


def test_every_node_of_a_normalised_layer_keeps_a_weight_at_every_step():
    torch.manual_seed(0)
    model, batch = (
        nn.Sequential(nn.Linear(10, 32), nn.ReLU(), parametrizations.weight_norm(nn.Linear(32, 16))),
        points(48),
    )
    model.append(nn.ReLU()).append(nn.Linear(16, 3))
    opt = inface.sparse_optimizer(model, density=0.05, lr=0.1, steps=STEPS)
    for _ in range(STEPS + 20):
        train(model, batch, opt, 1)
        assert model[2].parametrizations.weight.original1.any(1).all()
        assert torch.isfinite(model[2].weight).all()
    assert_sparse(opt, 0.05)
    with pytest.raises(ValueError, match=r"a weight to each of 18 layers \(16 of them the nodes of normalised ones\)"):
        inface.sparse_optimizer(model, density=0.02, lr=0.1, steps=STEPS)


def orthogonal():
    model = mlp()
    parametrizations.orthogonal(model[2])
    return model


def pruned():
    model = mlp()
    prune.l1_unstructured(model[2], "weight", 0.5)
    return model


@pytest.mark.parametrize("build", [orthogonal, pruned])
def test_a_weight_whose_zeros_are_not_those_of_a_parameter_is_named(build):
    model = build()
    with pytest.warns(UserWarning, match=r"sparse_optimizer: 2.weight is computed from other .* stays dense") as told:
        opt = inface.sparse_optimizer(model, density=0.2, lr=0.1, steps=STEPS)
    assert len(told) == 1
    assert len(layers(opt)) == 2
    for wrong in ("2.*", "2.weight"):
        with pytest.raises(ValueError, match=r"2\.weight is computed from other parameters"):
            inface.sparse_optimizer(model, density={wrong: 0.2}, lr=0.1, steps=STEPS)


@pytest.mark.parametrize("density", [1.0, 1, {"*": 1.0}])
def test_a_density_of_1_is_sgd(density):
    model, batch, opt = make(density=density)
    other = copy.deepcopy(model)
    train(model, batch, opt)
    train(other, batch, torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9))
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layers_", ["2.*", ["2.weight"], ["2.*", "2.weight"]])
def test_only_the_layers_that_are_named_become_sparse(layers_):
    model, batch, opt = make(layers=layers_)
    train(model, batch, opt)
    assert [p is model[2].weight for p in layers(opt)] == [True]
    assert_sparse(opt, 0.2)
    assert model[0].weight.count_nonzero() == 320


def test_an_embedding_becomes_sparse_if_it_is_named():
    model, batch, opt = make("transformer", density={"embed.weight": 0.5})
    train(model, batch, opt)
    assert int(model.embed.weight.count_nonzero()) <= 96


def test_attention_bilinear_and_recurrent_cells_are_chosen_and_their_biases_are_not():
    model = nn.ModuleDict(
        {
            "attention": nn.MultiheadAttention(8, 2, add_bias_kv=True, kdim=6, vdim=4),
            "bilinear": nn.Bilinear(3, 4, 5),
            "cell": nn.GRUCell(3, 4),
            "norm": nn.LayerNorm([3, 4]),
            "bag": nn.EmbeddingBag(3, 4),
        }
    )
    assert list(chosen_layers(model)) == [
        "attention.q_proj_weight", "attention.k_proj_weight", "attention.v_proj_weight", "attention.out_proj.weight",
        "bilinear.weight", "cell.weight_ih", "cell.weight_hh",
    ]  # fmt: skip


def nan_layer():
    model = mlp()
    nn.init.constant_(model[2].weight, math.nan)
    return model


def frozen_layer():
    model = mlp()
    model[2].requires_grad_(requires_grad=False)
    return model


WRONG = [
    *((mlp, {"density": value}, "density") for value in (0, 0.0, -0.1, 1.5, math.nan, True, "5%", None, 1e-4)),
    (mlp, {"density": {"0.weight": 0.0}}, 'density for "0.weight"'),
    (mlp, {"density": {}}, "density"),
    (mlp, {"density": {3: 0.1}}, "density"),
    (mlp, {"density": {"first.*": 0.1}}, 'pattern "first'),
    (mlp, {"density": {"0.*": 0.1, "*.weight": 0.2}}, 'pattern "0.*" is left without a layer.*after "*.weight"'),
    (mlp, {"density": {"0.*": 0.1}, "layers": "0.*"}, "layers"),
    *((mlp, {"layers": value}, "layers") for value in ([], 3, [3], ["0.weight", None])),
    (mlp, {"layers": "7.*"}, 'pattern "7'),
    *((mlp, {"lr": value}, "lr") for value in (0, -1.0, math.nan, math.inf, "0.1", None, True, torch.ones(2))),
    *((mlp, {"steps": value}, "steps") for value in (0, -5, 1.5, True, None, "10", torch.ones(2).long())),
    *((mlp, {"steps": value}, "steps") for value in (np.float64(10), np.True_, torch.tensor(True), torch.tensor(10.0))),
    *((mlp, {"momentum": value}, "momentum") for value in (1, -0.1, math.nan, None)),
    *((mlp, {"weight_decay": value}, "weight_decay") for value in (-1, math.nan, "0")),
    *((mlp, {"free": value}, "free") for value in ("adam", None, 1)),
    (mlp, {"free": "adamw", "betas": (0.9, 1.5)}, "betas"),
    (mlp, {"free": "adamw", "eps": -1.0}, "eps"),
    (nan_layer, {}, 'parameter "2.weight" is not finite'),
    (frozen_layer, {"layers": "2.weight"}, 'parameter "2.weight" is frozen'),
    (lambda: mlp().to("meta"), {}, 'parameter "0.weight" is on the meta device'),
    (lambda: nn.Sequential(nn.LazyLinear(3)), {}, 'parameter "0.weight" has no shape yet'),
    (lambda: nn.Sequential(nn.Embedding(3, 4), nn.LayerNorm(4)), {}, "no linear, convolutional"),
    (lambda: [nn.Parameter(torch.ones(3))], {}, "model must be a torch.nn.Module"),
]


@pytest.mark.parametrize(
    ("build", "options", "told"), WRONG, ids=[f"{options}: {told}"[:60] for _, options, told in WRONG]
)
def test_bad_values_are_refused_by_name_before_anything_is_modified(build, options, told):
    torch.manual_seed(0)
    model = build()
    before = copy.deepcopy(model)
    with pytest.raises(
        ValueError,
        match="(sparse_optimizer|FrankWolfe): .*"
        + told.replace("[", r"\[").replace("0.*", r"0\.\*").replace('"*', r'"\*'),
    ):
        inface.sparse_optimizer(model, **({"density": 0.1, "lr": 0.1, "steps": 10} | options))
    if isinstance(model, nn.Module) and "Lazy" not in repr(model) and not next(model.parameters()).is_meta:
        for p, q in zip(model.parameters(), before.parameters(), strict=True):
            assert torch.equal(torch.nan_to_num(p), torch.nan_to_num(q))
            assert inface.registry.set_of(p) is None


def test_repr_names_what_is_sparse_how_much_of_it_stays_and_what_is_free():
    _, _, opt = make("transformer", density={"layer.*": 0.25, "head.weight": 0.5})
    shown = repr(opt)
    for name in [*NETWORKS["transformer"][2], "embed.weight", "layer.norm1.bias"]:
        assert name in shown
    assert "0.25 of" in shown
    assert "0.5 of 48 weights" in shown
    assert "tensor(" not in shown
    assert shown.index("head.weight") < shown.index("Free: ") < shown.index("embed.weight")


def test_repr_of_many_layers_says_their_options_once():
    model = nn.Sequential(*[nn.Linear(5, 5) for _ in range(40)])
    shown = repr(inface.sparse_optimizer(model, density=0.2, lr=0.1, steps=10))
    assert len(shown.split("\n")) < 100
    assert "Parameter Groups 0-39" in shown


# ---------------------------------------------------------------------- saving and resuming


@pytest.mark.parametrize("free", ["sgd", "adamw"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("at", [0, 1, 7, 23, 24, 31, 36, 48, 49, 60])
def test_a_fresh_optimizer_that_loads_a_state_goes_on_bit_for_bit(at, dtype, free):
    options = {"free": free, "lr": 0.1 if free == "sgd" else 0.005, "dtype": dtype}
    model, batch, opt = make(**options)
    train(model, batch, opt, at)
    saved = through_file({"model": model.state_dict(), "optimizer": opt.state_dict()})
    train(model, batch, opt, STEPS + 3 - at)
    other, batch, live = make(**options, seed=1)
    other.load_state_dict(saved["model"])
    live.load_state_dict(saved["optimizer"])
    train(other, batch, live, STEPS + 3 - at)
    assert_same(values(model), values(other))
    assert_sparse(live, 0.2)


def test_the_places_of_the_test_above_have_both_halves_and_a_cut():
    model, batch, opt = make()
    phases, densities = [], []
    for _ in range(STEPS):
        gradients(model, batch)
        opt.step()
        phases.append(opt.state[model[0].weight]["phase"])
        densities.append(opt.param_groups[0]["path"]["density"])
    assert 0 in phases
    assert len(set(densities)) > 10
    assert densities[-1] == 0.2


@pytest.mark.parametrize("at", [0, 20, 40, STEPS])
def test_a_path_goes_on_with_the_steps_of_the_optimizer_that_loads_it_and_a_warning_says_so(at):
    model, batch, opt = make()
    train(model, batch, opt, at)
    saved = through_file({"model": model.state_dict(), "optimizer": opt.state_dict()})
    train(model, batch, opt, STEPS - at)
    other, batch, live = make(seed=1, steps=2 * STEPS)
    other.load_state_dict(saved["model"])
    with pytest.warns(UserWarning, match=f"path of 60 steps, .* steps=120, .* step {at} of 120") as told:
        live.load_state_dict(saved["optimizer"])
    assert [one.filename for one in told] == [__file__]
    densities = [live.param_groups[0]["path"]["density"]]
    for _ in range(2 * STEPS - at):
        train(other, batch, live, 1)
        densities.append(live.param_groups[0]["path"]["density"])
    assert live.param_groups[0]["path"]["step"] == 2 * STEPS
    assert densities == sorted(densities, reverse=True)
    assert_sparse(live, 0.2)


def test_a_state_that_is_past_the_last_step_of_the_optimizer_is_refused_unless_it_is_sparse_enough():
    model, batch, opt = make()
    train(model, batch, opt, 30)
    early = through_file(opt.state_dict())
    train(model, batch, opt, STEPS - 30)
    late = through_file(opt.state_dict())
    _, _, short = make(steps=20)
    with pytest.raises(ValueError, match=r"0.weight\) was saved after 30 of 60 steps, at a density of 0.*got steps=20"):
        short.load_state_dict(early)
    assert short.param_groups[0]["path"]["step"] == 0
    with pytest.warns(UserWarning, match="60 steps"):
        short.load_state_dict(late)


def test_another_density_is_refused_by_name():
    _, _, opt = make()
    _, _, other = make(density=0.1)
    with pytest.raises(
        ValueError, match=r"group 0 was saved with set .*'density': 0.2.*the optimizer has .*'density': 0.1"
    ):
        other.load_state_dict(opt.state_dict())


def test_layers_that_share_their_weights_with_others_than_before_are_a_warning():
    model, batch, opt = make()
    train(model, batch, opt, 30)
    other, batch, live = make(density={"*": 0.2, "4.*": 0.2})
    other.load_state_dict(model.state_dict())
    with pytest.warns(
        UserWarning, match=r'"4.weight" was saved with the layers of "\*", .* with those of "4.\*"'
    ) as told:
        live.load_state_dict(opt.state_dict())
    assert len(told) == 1
    train(other, batch, live, 30)
    train(model, batch, opt, 30)
    assert int(other[4].weight.count_nonzero()) <= 9


@pytest.mark.parametrize("again", [copy.deepcopy, repickled], ids=["copy", "pickle"])
@pytest.mark.parametrize("free", ["sgd", "adamw"])
def test_copies_of_an_optimizer_follow_the_path_on(again, free):
    model, batch, opt = make(free=free, lr=0.1 if free == "sgd" else 0.005)
    train(model, batch, opt, 31)
    other, live = again((model, opt))
    train(model, batch, opt, STEPS - 31)
    train(other, batch, live, STEPS - 31)
    assert_same(values(model), values(other))
    assert_sparse(live, 0.2)


def test_a_state_dict_does_not_change_when_training_goes_on():
    model, batch, opt = make()
    train(model, batch, opt, 20)
    state = opt.state_dict()
    train(model, batch, opt, STEPS - 20)
    assert [group["path"]["step"] for group in state["param_groups"] if group["path"]] == [20, 20, 20]


def test_distributed_checkpoints_make_the_state_without_a_step_on_the_path():
    model, batch, opt = make()
    before = values(model)
    state = get_optimizer_state_dict(model, opt)
    assert_same(before, values(model))
    assert opt.param_groups[0]["path"]["step"] == 0
    assert len(state["state"]) == 6
    train(model, batch, opt)
    assert_sparse(opt, 0.2)


# ---------------------------------------------------------------------- under torch's schedulers


SCHEDULERS = {
    "cosine": lambda opt: CosineAnnealingLR(opt, STEPS),
    "one-cycle": lambda opt: OneCycleLR(opt, max_lr=0.1, total_steps=STEPS + 1),
    "linear": lambda opt: LinearLR(opt, 1e-3, total_iters=10),
    "from 0": lambda opt: LambdaLR(opt, lambda i: min(1.0, i / 10)),
    "plateau": lambda opt: ReduceLROnPlateau(opt, patience=1),
}


@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1)], ids=["number", "tensor"])
@pytest.mark.parametrize("free", ["sgd", "adamw"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_torchs_schedulers_change_nothing_about_the_density(name, free, lr):
    lr = lr if free == "sgd" else lr * 0.05
    model, batch, opt = make(lr=lr.clone() if isinstance(lr, torch.Tensor) else lr, free=free)
    losses = train(model, batch, opt, scheduler=SCHEDULERS[name](opt))
    assert_sparse(opt, 0.2)
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize(("free", "lr"), [("sgd", 0.1), ("adamw", 0.01)])
@pytest.mark.parametrize("density", [0.25, 0.1])
def test_the_signs_of_the_start_do_not_decide_those_of_the_end(density, free, lr):
    """Four of the five useful weights start with the wrong sign; the network has no others to use in their place."""
    x = torch.randn(600, 20, generator=torch.Generator().manual_seed(3))
    y = x[:, :5].argmax(1)
    torch.manual_seed(3)
    model = nn.Linear(20, 5)
    assert int((model.weight.diagonal() < 0).sum()) == 4
    opt = inface.sparse_optimizer(model, density=density, lr=lr, steps=240, free=free)
    schedule = CosineAnnealingLR(opt, 240)
    for _ in range(20):
        for rows in torch.randperm(600).split(50):
            opt.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            opt.step()
            schedule.step()
    assert_sparse(opt, density)
    assert (model.weight.diagonal() > 0).all()
    assert (model(x).argmax(1) == y).float().mean() > 0.75


@pytest.mark.parametrize(("free", "lr"), [("sgd", 0.1), ("sgd", 0.005), ("adamw", 0.01), ("adamw", 0.0005)])
def test_steps_end_short_at_a_constant_lr_and_are_those_of_a_schedule_where_there_is_one(free, lr):
    """A constant rate would end in noise; the bound is none for cosine and linear schedules, from any rate."""
    steps = 400
    data = torch.Generator().manual_seed(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
    opt = inface.sparse_optimizer(model, density=0.2, lr=lr, steps=steps, free=free)
    moved = []
    for _ in range(steps):
        before = model[0].weight.detach().clone()
        x = torch.randn(20, 32, generator=data)
        opt.zero_grad()
        nn.functional.cross_entropy(model(x), torch.randint(4, (20,), generator=data)).backward()
        opt.step()
        moved.append(float((model[0].weight.detach() - before).norm() / before.norm()))
    assert sum(moved[-10:]) < 0.2 * sum(moved[200:210])
    for schedule in (lambda t: (1 + math.cos(math.pi * t)) / 2, lambda t: 1 - t):
        factors = [schedule(step / steps) / cool_down({"step": step, "steps": steps}) for step in range(steps)]
        assert max(factors) <= 1


def test_a_training_whose_steps_are_announced_is_the_same_to_the_bit():
    found = []
    for announced in (False, True):
        model, batch, opt = make(steps="auto" if announced else 300)
        if announced:
            announce(opt, 300)
        train(model, batch, opt, 300, scheduler=CosineAnnealingLR(opt, 300))
        found.append((values(model), opt))
    (one, first), (other, second) = found
    assert_same(one, other)
    assert float(first.gap) == float(second.gap)
    assert [group["in_face_steps"] for group in first.param_groups] == [30] * len(first.param_groups)
    for group, same in zip(first.param_groups, second.param_groups, strict=True):
        assert {**group, "params": 0, "set": 0} == {**same, "params": 0, "set": 0}


@pytest.mark.parametrize("steps", [STEPS, "auto"])
def test_a_path_that_was_saved_without_its_length_goes_on_at_that_of_the_optimizer(steps):
    model, batch, opt = make()
    train(model, batch, opt, 30)
    saved = copy.deepcopy(opt.state_dict())
    for group in saved["param_groups"]:
        if group["path"] is not None:
            del group["path"]["length"]
    other, _, resumed = make(steps=steps)
    other.load_state_dict(model.state_dict())
    resumed.load_state_dict(saved)
    train(model, batch, opt, 30)
    train(other, batch, resumed, 30)
    assert_same(values(model), values(other))


def test_a_longer_training_that_goes_on_has_its_own_in_face_steps_and_the_rates_that_were_saved():
    model, batch, opt = make(steps=300)
    train(model, batch, opt, 30)
    _, _, longer = make(steps=600, lr=0.02)
    with pytest.warns(UserWarning, match="made with steps=600"):
        longer.load_state_dict(opt.state_dict())
    assert {group["in_face_steps"] for group in longer.param_groups} == {49}
    assert longer.param_groups[0]["path"]["length"] == opt.param_groups[0]["path"]["length"]
    abandon(opt)
    abandon(longer)


def test_a_step_with_lr_0_neither_moves_nor_takes_the_path_further():
    model, batch, opt = make()
    train(model, batch, opt, 30)
    before, path = values(model), dict(opt.param_groups[0]["path"])
    for group in opt.param_groups:
        group["lr"] = 0.0
    train(model, batch, opt, 5)
    assert_same(before, values(model))
    assert opt.param_groups[0]["path"] == path
    for group in opt.param_groups:
        group["lr"] = 0.1
    train(model, batch, opt, 30)
    assert opt.param_groups[0]["path"]["step"] == STEPS


def test_a_step_without_gradients_does_not_take_the_path_further():
    _, _, opt = make()
    opt.step()
    assert opt.param_groups[0]["path"]["step"] == 0


def test_a_schedule_that_ends_at_0_leaves_the_network_at_its_density():
    model, batch, opt = make()
    train(model, batch, opt, scheduler=LambdaLR(opt, lambda i: max(0.0, 1 - i / (STEPS - 2))))
    assert_sparse(opt, 0.2)


def test_steps_that_a_grad_scaler_skips_do_not_count():
    model, batch, opt = make()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for i in range(STEPS + 2):
        model.zero_grad()
        scaler.scale(nn.functional.cross_entropy(model(batch[0]), batch[1])).backward()
        if i in (5, 30):
            model[0].weight.grad[0, 0] = math.inf
        scaler.step(opt)
        scaler.update()
    assert opt.param_groups[0]["path"]["step"] == STEPS
    assert_sparse(opt, 0.2)


def test_a_closure_is_a_step_like_any_other():
    model, batch, opt = make()
    train(model, batch, opt)
    other, batch, live = make()
    for _ in range(STEPS):
        assert live.step(lambda: gradients(other, batch)) > 0
    assert_same(values(model), values(other))


# ---------------------------------------------------------------------- everything else


@pytest.mark.parametrize("free", ["sgd", "adamw"])
@pytest.mark.parametrize("name", ["mlp", "residual"])
def test_free_parameters_move_as_under_torchs_own_optimizer(name, free):
    lr, decay = (0.1, 0.0) if free == "sgd" else (0.01, 0.1)
    model, batch, opt = make(name, free=free, lr=lr, weight_decay=decay, dtype=torch.float64)
    chosen = {id(p) for p in layers(opt)}
    others = [p for p in model.parameters() if id(p) not in chosen]
    copies = [p.detach().clone().requires_grad_() for p in others]
    if free == "sgd":
        torchs = torch.optim.SGD(copies, lr=lr, momentum=0.9)
    else:
        torchs = torch.optim.AdamW(copies, lr=lr, weight_decay=decay)
    schedulers = [CosineAnnealingLR(one, STEPS) for one in (opt, torchs)]
    for _ in range(STEPS):
        gradients(model, batch)
        for p, q in zip(others, copies, strict=True):
            q.grad = p.grad.clone()
        opt.step()
        torchs.step()
        for scheduler in schedulers:
            scheduler.step()
    for p, q in zip(others, copies, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("free", ["sgd", "adamw"])
def test_kernels_and_torch_operations_go_the_same_path(free):
    options = {"free": free, "lr": 0.02 if free == "sgd" else 0.002}
    model, batch, opt = make(**options)
    other, batch, live = make(**options)
    for step in range(STEPS):
        for one, its in ((model, opt), (other, live)):
            gradients(one, batch)
            if its is live:
                with kernels.disabled():
                    its.step()
            else:
                its.step()
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            if step < 20:
                torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-5)
                assert torch.equal(p == 0, q == 0)
    assert_sparse(live, 0.2)


def test_gaps_reports_counts_and_averages_work_at_every_place_of_the_path():
    model, batch, opt = make()
    iterate = inface.RandomIterate(opt)
    known = 0
    for _ in range(STEPS):
        gradients(model, batch)
        opt.step()
        exact = inface.modified_gap(model, nn.functional.cross_entropy, [batch], opt)
        assert 0 < float(exact) < math.inf
        report = opt.report()
        assert set(report.smoothness) == set(NETWORKS["mlp"][2])
        assert all(0 < L < math.inf for L in report.smoothness.values())
        assert inface.theory.kappa(opt) >= 1
        if report.frank_wolfe:
            known += 1
            assert set(report.gap.blocks) == set(NETWORKS["mlp"][2])
            assert float(report.gap.constrained) > 0
            assert 0 < float(opt.gap) < math.inf
    assert known > 10
    assert 3 <= iterate.count <= STEPS
    counted = inface.sparsity.nonzeros(model, threshold=0.0)
    assert "0.weight" in str(counted)
    assert report.in_face > report.frank_wolfe > 0
    cut = inface.sparsity.hard_threshold(model, keep=0.1)
    assert sum(int(cut[i].weight.count_nonzero()) for i in (0, 2, 4)) <= 0.1 * 880 + 3


def test_compiled_steps_on_a_path_are_the_eager_ones_bit_for_bit():
    model, batch, opt = make()
    train(model, batch, opt)
    torch._dynamo.reset()
    other, batch, live = make()
    step = torch.compile(live.step, backend="eager")
    for _ in range(STEPS):
        gradients(other, batch)
        step()
    assert_same(values(model), values(other))


def test_steps_can_be_said_later_and_a_loaded_path_knows_its_own():
    torch.manual_seed(0)
    model = nn.Linear(100, 3)
    opt = inface.sparse_optimizer(model, density=0.1, lr=0.1, steps="auto")
    model(torch.ones(1, 100)).sum().backward()
    before = model.weight.detach().clone()
    with pytest.raises(ValueError, match="wanted the gradients in all before the first step"):
        opt.step()
    assert torch.equal(model.weight, before)
    announce(opt, 20)
    announce(opt, 30)  # too late: it is known
    for _ in range(10):
        opt.step()
    again = inface.sparse_optimizer(model, density=0.1, lr=0.1, steps="auto")
    again.load_state_dict(opt.state_dict())
    abandon(opt)
    for _ in range(10):
        again.step()
    assert int(model.weight.count_nonzero()) <= 30
    assert again.param_groups[0]["path"]["step"] == 20
