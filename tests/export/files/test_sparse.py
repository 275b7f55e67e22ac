"""Files: every tensor comes back as it was, in few bytes; what is damaged or malicious is named and runs nothing."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import warnings
import zipfile

import onnxruntime
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

from inface.export import load_network, load_sparse, save_dense, save_onnx, save_program, save_sparse
from inface.export.files.coding import decode, encode
from inface.sparsity import hard_threshold


def perceptron():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )


class Residual(nn.Module):
    """Convolutions with a shortcut, and functions between its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.block = nn.Sequential(nn.Conv2d(6, 6, 3, padding=1), nn.LeakyReLU(0.2))
        self.last = nn.Linear(6 * 4 * 4, 5)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        x = nn.functional.max_pool2d(x + self.block(x), 2)
        return self.last(x.view(x.size(0), -1))


# ---------------------------------------------------------------------- positions


@given(st.lists(st.booleans(), max_size=200), st.integers(1, 400))
def test_positions_come_back(pattern, stretch):
    mask = torch.zeros(len(pattern) * stretch, dtype=torch.bool)
    mask[::stretch] = torch.tensor(pattern, dtype=torch.bool)
    coding, code = encode(mask)
    assert torch.equal(decode(coding, code, len(mask)), mask.nonzero().flatten())
    bits = -(-len(mask) // 8)
    assert code.nbytes <= bits


@pytest.mark.parametrize(("part", "coding"), [(0.5, "bitmap"), (0.05, "gaps8"), (0.0005, "gaps16")])
def test_the_coding_is_the_smallest(part, coding):
    torch.manual_seed(0)
    mask = torch.rand(400_000) < part
    found, code = encode(mask)
    assert found == coding
    assert code.nbytes <= min(50_000, 2 * int(mask.sum()) * (1.02 if coding == "gaps16" else 1))


# ---------------------------------------------------------------------- files


SHAPES = st.lists(st.integers(0, 5), max_size=4)
KINDS = st.sampled_from(
    [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.uint8, torch.bool]
)


@given(shape=SHAPES, kind=KINDS, part=st.sampled_from([0.0, 0.1, 0.9, 1.0]), seed=st.integers(0, 1000))
def test_every_tensor_comes_back_as_it_was(tmp_path_factory, shape, kind, part, seed):
    generator = torch.Generator().manual_seed(seed)
    tensor = (100 * torch.randn(shape, generator=generator) * (torch.rand(shape, generator=generator) < part)).to(kind)
    file = tmp_path_factory.mktemp("files") / "model.safetensors"
    assert save_sparse({"some.name": tensor, "ä:positions": tensor}, file) == file.stat().st_size
    loaded = load_sparse(file)
    assert list(loaded) == ["some.name", "ä:positions"]
    for found in loaded.values():
        assert found.dtype == kind
        assert found.shape == tensor.shape
        assert torch.equal(found, tensor)


def test_infinities_and_not_a_number_come_back(tmp_path):
    tensor = torch.tensor([0.0, float("nan"), float("inf"), -float("inf"), 1e-40, 1.1] + [0.0] * 100)
    save_sparse({"x": tensor}, tmp_path / "x")
    assert torch.equal(load_sparse(tmp_path / "x")["x"], tensor) is False  # NaN is not equal to itself
    assert torch.equal(load_sparse(tmp_path / "x")["x"].nan_to_num(7), tensor.nan_to_num(7))


def test_the_sign_of_a_zero_is_the_only_thing_that_may_be_lost(tmp_path):
    tensor = torch.tensor([-0.0, 1.5, -3.25, 1e-30] + [-0.0] * 100)
    save_sparse({"x": tensor}, tmp_path / "x")
    again = load_sparse(tmp_path / "x")["x"]
    assert torch.equal(again, tensor)
    assert again.signbit().tolist()[1:4] == [False, True, False]


def test_a_tensor_that_float16_cannot_hold_is_not_rounded(tmp_path):
    norm = nn.BatchNorm1d(3)
    norm.running_var.fill_(1e5)
    norm.weight.data = torch.tensor([0.1, float("inf"), float("nan")])
    norm.running_mean.copy_(torch.tensor([1e-9, -4e-5, 0.0]))
    norm.bias.data = torch.tensor([65504.0, 6e-8, 1 / 3])
    save_sparse(norm, tmp_path / "x", values="float16", architecture=False)
    again = load_sparse(tmp_path / "x")
    assert torch.equal(again["running_var"], norm.running_var)
    assert torch.equal(again["running_mean"], norm.running_mean)
    assert torch.equal(again["bias"], norm.bias.data.half().float())
    assert torch.equal(again["num_batches_tracked"], norm.num_batches_tracked)
    assert torch.equal(again["weight"].nan_to_num(7), norm.weight.data.half().float().nan_to_num(7))


def test_a_tiny_number_beside_others_is_rounded_and_does_not_vanish(tmp_path):
    save_sparse({"x": torch.tensor([1e-9, -1e-9, 1 / 3, 0.0])}, tmp_path / "x", values="float16")
    assert load_sparse(tmp_path / "x")["x"].tolist() == [2**-24, -(2**-24), torch.tensor(1 / 3).half().item(), 0.0]


@given(
    numbers=st.lists(st.floats(width=32), max_size=30),
    zeros=st.integers(0, 300),
    kind=st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
)
def test_rounding_makes_nothing_infinite_and_no_number_zero(tmp_path_factory, numbers, zeros, kind):
    tensor = torch.tensor([*numbers] + [0.0] * zeros, dtype=torch.float64).to(kind)
    file = tmp_path_factory.mktemp("files") / "x"
    save_sparse({"x": tensor}, file, values="float16")
    again = load_sparse(file)["x"]
    assert torch.equal(again.isfinite(), tensor.isfinite())
    assert torch.equal(again == 0, tensor == 0)
    assert torch.equal(again.isnan(), tensor.isnan())
    finite = tensor.isfinite()
    lost = (again - tensor)[finite].double().abs()
    assert not finite.any() or lost.max() <= 2**-10 * tensor[finite].double().abs().max()


def test_a_tensor_of_two_names_is_written_once(tmp_path):
    tensor, part = torch.randn(1000), torch.randn(10)
    state = {"a": tensor, "b": tensor.detach(), "c": tensor[:10], "d": part, "e": part.view(2, 5), "f": torch.zeros(0)}
    assert save_sparse(state, tmp_path / "x") < 4 * 1000 + 1500
    again = load_sparse(tmp_path / "x")
    assert list(again) == list(state)
    assert all(torch.equal(again[name], each) for name, each in state.items())
    assert again["a"] is again["b"]


def test_a_perceptron_with_5_percent_of_its_edges_takes_a_twelfth_of_the_bytes(tmp_path):
    dense = perceptron()
    save_file(dense.state_dict(), tmp_path / "dense.safetensors")
    sparse = hard_threshold(dense, 0.05, layers=["1.weight", "3.weight"])
    bytes_ = (tmp_path / "dense.safetensors").stat().st_size
    assert save_sparse(sparse, tmp_path / "sparse.safetensors") <= bytes_ / 12
    assert save_sparse(sparse, tmp_path / "half.safetensors", values="float16") <= bytes_ / 20
    again = load_sparse(tmp_path / "sparse.safetensors")
    assert all(torch.equal(again[name], tensor) for name, tensor in sparse.state_dict().items())
    half = load_sparse(tmp_path / "half.safetensors")
    for name, tensor in sparse.state_dict().items():
        assert torch.equal(half[name], tensor.half().float())


def test_another_process_runs_the_network_without_its_class(tmp_path):
    torch.manual_seed(0)
    model = Residual().eval()
    model.norm.running_mean.uniform_(-1, 1)
    inputs = torch.randn(2, 3, 8, 8)
    save_sparse(model, tmp_path / "model.safetensors")
    save_file({"inputs": inputs, "outputs": model(inputs).detach()}, tmp_path / "wanted.safetensors")
    program = """
import sys, torch
from safetensors.torch import load_file
from inface.export import load_network
wanted = load_file(sys.argv[2])
model = load_network(sys.argv[1])
assert not model.training
torch.testing.assert_close(model(wanted["inputs"]), wanted["outputs"])
print("the same")
"""
    arguments = [
        sys.executable,
        "-c",
        program,
        str(tmp_path / "model.safetensors"),
        str(tmp_path / "wanted.safetensors"),
    ]
    assert subprocess.run(arguments, check=True, capture_output=True, text=True).stdout == "the same\n"


def test_a_network_that_cannot_be_told_is_named_and_its_tensors_can_be_saved(tmp_path):
    model = nn.Sequential(nn.Linear(2, 2), nn.Bilinear(2, 2, 2))
    with pytest.raises(ValueError, match="1: is a Bilinear, wanted one of"):
        save_sparse(model, tmp_path / "model")
    assert not list(tmp_path.iterdir())
    save_sparse(model, tmp_path / "model", architecture=False)
    with pytest.raises(ValueError, match="has no architecture; load_sparse"):
        load_network(tmp_path / "model")
    assert torch.equal(load_sparse(tmp_path / "model")["0.weight"], model[0].weight)


def test_wrong_arguments_write_nothing(tmp_path):
    with pytest.raises(ValueError, match="values: wanted exact or float16, got float8"):
        save_sparse(perceptron(), tmp_path / "x", values="float8")
    with pytest.raises(ValueError, match=r"z: is torch\.complex64"):
        save_sparse({"z": torch.zeros(1, dtype=torch.complex64)}, tmp_path / "x")
    assert not list(tmp_path.iterdir())


class Counting(nn.Module):
    """A module with state that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        return self.layer(x)

    def get_extra_state(self):
        return {"calls": 3}

    def set_extra_state(self, state):
        pass


@pytest.mark.parametrize(
    ("model", "error", "reason"),
    [
        ("abc", TypeError, "model: wanted a network or a state dict, got a str"),
        (None, TypeError, "model: wanted a network or a state dict, got a NoneType"),
        ({"a": 3}, ValueError, "a: has the type int, wanted a tensor"),
        ({3: torch.ones(1)}, ValueError, "3: wanted a string as the name of a tensor, got a int"),
        (
            {"a": torch.ones(1).to_sparse()},
            ValueError,
            r"a: is torch.float32 \(torch.sparse_coo\), wanted a dense tensor",
        ),
        ({"a": torch.ones(1, device="meta")}, ValueError, "a: has no values yet"),
        (nn.Sequential(nn.LazyLinear(3)), ValueError, "0.weight: has no values yet"),
        (Counting(), ValueError, r"_extra_state: has the type dict \(extra state of a module\), wanted a tensor"),
    ],
)
def test_what_holds_no_tensors_is_named(tmp_path, model, error, reason):
    with pytest.raises(error, match=reason):
        save_sparse(model, tmp_path / "x", architecture=False)
    with pytest.raises((TypeError, ValueError), match="wanted"):
        save_dense(model, tmp_path / "x")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("save", [save_sparse, save_dense])
def test_a_place_that_cannot_be_written_is_named(tmp_path, save):
    model = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(FileNotFoundError, match=r"cannot be written: No such file or directory: '.*/nothing/model'"):
        save(model, tmp_path / "nothing" / "model")
    with pytest.raises(OSError, match=f"cannot be written: Is a directory: '{tmp_path}'"):
        save(model, tmp_path)
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------------- damage and malice


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("file") / "model.safetensors"
    save_sparse(
        hard_threshold(nn.Sequential(nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 3)), 0.1, layers="*.weight"), path
    )
    return path


@given(data=st.data())
def test_a_damaged_file_raises_a_clear_error_or_reads_as_numbers(file, tmp_path_factory, data):
    contents = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        kind = data.draw(st.sampled_from(["change", "cut", "insert"]))
        place = data.draw(st.integers(0, max(0, len(contents) - 1)))
        if kind == "change":
            contents[place : place + 1] = data.draw(st.binary(min_size=1, max_size=1))
        elif kind == "cut":
            del contents[place:]
        else:
            contents[place:place] = data.draw(st.binary(min_size=1, max_size=9))
    damaged = tmp_path_factory.mktemp("damaged") / "damaged.safetensors"
    damaged.write_bytes(contents)
    for load in (load_sparse, load_network):
        told = None
        try:
            load(damaged, limit=1 << 20)
        except ValueError as error:
            told = str(error)
        assert told is None or (told.startswith(f"{damaged}: ") and "\n" not in told)


def crafted(path, tensors, metadata):
    save_file(tensors, path, {"inface.sparse": "1", **{key: json.dumps(value) for key, value in metadata.items()}})
    return path


NUMBER = torch.ones(1)


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"w": {"shape": [1 << 40], "dtype": "float32", "coding": "gaps8"}}, "would take 4,398,046,511,104 bytes"),
        ({"w": {"shape": [-1], "dtype": "float32"}}, r"w: shape \[-1\], wanted at most 16 whole numbers"),
        ({"w": {"shape": [True], "dtype": "float32"}}, "wanted at most 16 whole numbers"),
        ({"w": {"shape": [1], "dtype": "object"}}, "w: dtype object"),
        ({"w": {"shape": [2], "dtype": "float32"}}, "w: 1 values, wanted 2"),
        ({"w": {"shape": [1], "dtype": "int64"}}, "of torch.float32, wanted a list of torch.int64"),
        ({"w": {"shape": [9], "dtype": "float32", "coding": "zip"}}, "coding 'zip'"),
        ({"w": {"shape": [2], "dtype": "float32", "coding": "gaps8"}}, "gaps that end after the last of 2"),
        ({"w": {"shape": [9], "dtype": "float32", "coding": "bitmap"}}, "a bitmap of 1 bytes, wanted 2"),
        ({"v": {"shape": [1], "dtype": "float32"}}, "values:v"),
        ({"w": {"shape": [1] * 17, "dtype": "float32"}}, "wanted at most 16 whole numbers"),
        ({"w": {"shape": [0, 10**30], "dtype": "float32"}}, "wanted at most 16 whole numbers below 2 to the 63"),
        ({"w": {"shape": [0, 1 << 40], "dtype": "float32"}}, "would take 4,398,046,511,104 bytes"),
        (
            {"w": {"shape": [1 << 62] * 16, "dtype": "float32"}},
            r"bytes, wanted at most 67,108,864 .*; limit=\d+ allows",
        ),
        ({"w": {"same": "w"}}, "w: the same as w, wanted a tensor of the file"),
        ({"w": {"same": "v"}}, "w: the same as v, wanted a tensor of the file"),
        ({"w": {"same": []}}, "damaged"),
        ({"w": 3}, "w: wanted an object, got int"),
        ([], "wanted an object, got list"),
    ],
)
def test_a_file_that_lies_is_refused(tmp_path, told, reason):
    code = torch.tensor([7], dtype=torch.uint8)
    path = crafted(tmp_path / "w", {"values:w": NUMBER, "positions:w": code}, {"tensors": told})
    with pytest.raises(ValueError, match=reason):
        load_sparse(path)


@pytest.mark.parametrize("coding", ["bitmap", "gaps8", "gaps16"])
@pytest.mark.parametrize(
    "code",
    [
        torch.tensor([5, -100]),
        torch.tensor([5, -3]),
        torch.tensor([5, 3], dtype=torch.int8),
        torch.tensor([float("nan"), 1.0]),
        torch.tensor([[5, 3]], dtype=torch.uint8),
        torch.tensor([[5, 3]], dtype=torch.uint16),
        torch.tensor(5, dtype=torch.uint8),
        torch.tensor([True, False]),
    ],
)
def test_positions_of_another_kind_are_refused(tmp_path, coding, code):
    told = {"w": {"shape": [16], "dtype": "float32", "coding": coding}}
    path = crafted(tmp_path / "w", {"values:w": torch.ones(2), "positions:w": code}, {"tensors": told})
    with pytest.raises(ValueError, match=r"positions of torch\..* dimensions, wanted a list of torch.uint"):
        load_sparse(path)


def test_a_name_that_is_there_twice_is_refused(tmp_path):
    one = '{"shape":[1],"dtype":"float32"}'
    save_file({"values:w": NUMBER}, tmp_path / "x", {"inface.sparse": "1", "tensors": f'{{"w":{one},"w":{one}}}'})
    with pytest.raises(ValueError, match=r"x: is damaged: 'w' is there twice"):
        load_sparse(tmp_path / "x")
    entry = '{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
    header = f'{{"__metadata__":{{}},"x":{entry},"__metadata__":{{"inface.sparse":"1"}}}}'.encode()
    (tmp_path / "y").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    with pytest.raises(ValueError, match="y: is damaged or not a safetensors file: "):
        load_sparse(tmp_path / "y")


def test_what_is_no_regular_file_is_not_read(tmp_path):
    for path in ("/dev/zero", tmp_path):
        with pytest.raises(ValueError, match="cannot be read: is not a regular file"):
            load_sparse(path)


def test_the_limit_is_a_thousand_times_the_file_or_64_mib_and_more_if_it_is_said(tmp_path):
    assert save_sparse({"w": torch.zeros(1_000_000)}, tmp_path / "small") < 300
    assert load_sparse(tmp_path / "small")["w"].count_nonzero() == 0

    def zeros(name, noise):
        told = {"w": {"shape": [9_000_000], "dtype": "float64", "coding": "gaps8"}}
        stored = {"values:w": torch.zeros(0).double(), "positions:w": torch.zeros(0, dtype=torch.uint8)}
        stored["noise"] = noise
        return crafted(tmp_path / name, stored, {"tensors": told})

    wanted = "would take 72,000,000 bytes, wanted at most 67,108,864 .*1,000 times the file.*; limit=72000000 allows"
    with pytest.raises(ValueError, match=wanted):
        load_sparse(zeros("sparse", torch.rand(100)))
    assert load_sparse(tmp_path / "sparse", limit=72_000_000)["w"].shape == (9_000_000,)
    with pytest.raises(ValueError, match=r"wanted at most 71,999,999 \(limit\)"):
        load_sparse(tmp_path / "sparse", limit=71_999_999)
    assert load_sparse(zeros("larger", torch.rand(18_000)))["w"].shape == (9_000_000,)


HOSTILE = """
import json, resource, sys
import torch
from safetensors.torch import save_file
from inface.export import Network, load_network, load_sparse

path = sys.argv[1]
tensor = {"dtype": "float32", "coding": "gaps8"}
nothing = {"values:w": torch.zeros(0), "positions:w": torch.zeros(0, dtype=torch.uint8)}


def written(shape, architecture=None):
    told = {"inface.sparse": "1", "tensors": json.dumps({"w": {**tensor, "shape": shape}})}
    if architecture is not None:
        told["architecture"] = json.dumps(architecture)
    save_file(nothing, path, told)


def made(steps, layers=()):
    return {"layers": dict(layers), "steps": steps, "output": {"value": len(steps)}, "unused": ["w"]}


def refused(what, *wanted):
    try:
        what()
    except ValueError as error:
        assert all(each in str(error) for each in wanted) and chr(10) not in str(error), error
    else:
        raise AssertionError(f"not refused, wanted {wanted}")


def operation(name, *of, **given):
    return {"operation": name, "of": list(of), "with": given}


x, image = {"value": 0}, torch.zeros(1, 1, 8, 8)
chains = {
    "cat": [operation("cat", [{"value": k}] * 2) for k in range(60)],
    "stack": [operation("stack", [{"value": k}] * 100) for k in range(6)],
    "add": [
        step
        for k in range(0, 60, 3)
        for step in (
            operation("flatten", {"value": k}),
            operation("unsqueeze", {"value": k + 1}, 1),
            operation("add", {"value": k + 1}, {"value": k + 2}),
        )
    ],
    "pad": [operation("pad", x, {"tuple": [1 << 20] * 4})],
    "interpolate": [operation("interpolate", x, scale_factor=10_000)],
    "adaptive_avg_pool2d": [operation("adaptive_avg_pool2d", x, 1_000_000)],
    "max_pool2d": [operation("pad", x, {"tuple": [1000] * 4}), operation("max_pool2d", {"value": 1}, 1000, stride=1)],
    "avg_pool2d": [operation("pad", x, {"tuple": [1000] * 4}), operation("avg_pool2d", {"value": 1}, 1000, 1)],
    "split": [operation("pad", x, {"tuple": [0, 1 << 20]}), operation("split", {"value": 1}, 1, 3)],
    "pow": [operation("pow", 10**9, 10**9)],
    "mul": [operation("mul", "a", 1 << 40)],
    "tuple": [operation("mul", {"tuple": [1]}, 1 << 40)],
    "square": [operation("mul", {"value": k}, {"value": k}) for k in range(1, 90)],
}
chains["square"].insert(0, operation("shape", x, 2))
kinds = {
    "ZeroPad2d": {"padding": 1 << 20},
    "Upsample": {"scale_factor": 10000},
    "AdaptiveMaxPool2d": {"output_size": 1 << 20},
    "ReplicationPad2d": {"padding": [1 << 16] * 4},
}
written([4], made([]))
free = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (free + (320 << 20),) * 2)
used = resource.getrusage(resource.RUSAGE_SELF).ru_utime
resource.setrlimit(resource.RLIMIT_CPU, (int(used) + 60,) * 2)

written([1 << 31])
refused(lambda: load_sparse(path), path, "would take 8,589,934,592 bytes, wanted at most 67,108,864")
refused(lambda: load_network(path), path, "would take 8,589,934,592 bytes")
written([16_000_000])
assert load_sparse(path)["w"].numel() == 16_000_000
for name, steps in chains.items():
    written([4], made(steps))
    refused(lambda: load_network(path)(image), "step ")
for kind, given in kinds.items():
    written([4], made([{"layer": "a", "of": [x]}], {"a": {"kind": kind, **given}}))
    refused(lambda: load_network(path)(image), "step 0, a: ")
written([4], made([operation("relu", x)]))
assert load_network(path)(image).shape == image.shape

# A convolution of zeros, which take no bytes: 3,000 by 3,000 positions of 1,000 by 1,000 products each.
layer = {"kind": "Conv2d", "in_channels": 1, "out_channels": 1, "kernel_size": 1000, "padding": 2000, "bias": False}
network = made([{"layer": "a", "of": [x]}], {"a": layer}) | {"unused": []}
told = {"a.weight": {**tensor, "shape": [1, 1, 1000, 1000]}}
stored = {key.replace(":w", ":a.weight"): value for key, value in nothing.items()}
save_file(stored, path, {"inface.sparse": "1", "tensors": json.dumps(told), "architecture": json.dumps(network)})
refused(lambda: load_network(path)(image), "step 0, a: ", "operations", "wanted at most", "work=")
print("all refused")
"""


def test_a_small_file_takes_little_memory_and_time_whatever_it_says(tmp_path):
    arguments = [sys.executable, "-c", HOSTILE, str(tmp_path / "hostile.safetensors")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(arguments, check=False, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout) == (0, "all refused\n"), done.stderr


def test_work_that_was_asked_for_is_done(tmp_path):
    model = nn.Sequential(nn.Upsample(scale_factor=3000))
    save_sparse(model, tmp_path / "x")
    inputs = torch.rand(1, 1, 2, 2)
    with pytest.raises(
        ValueError, match=r"step 0, 0: for inputs of the shape \(1, 1, 2, 2\) .* work=2304000000 allows"
    ):
        load_network(tmp_path / "x")(inputs)
    assert load_network(tmp_path / "x", work=2304000000)(inputs).shape == (1, 1, 6000, 6000)


def test_counting_what_a_pass_takes_calls_no_hook_and_changes_no_statistics(tmp_path):
    save_sparse(nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3)), tmp_path / "x")
    network = load_network(tmp_path / "x").train()
    calls = []
    network.get_submodule("0").register_forward_hook(lambda *_: calls.append("called"))
    for _ in range(2):
        network(torch.randn(2, 1, 8, 8))
    assert calls == ["called"] * 2
    assert network.get_submodule("1").num_batches_tracked == 2


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16])
def test_a_loaded_network_takes_half_precision_under_autocast_as_the_original_does(tmp_path, kind):
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.out = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Linear(108, 2)

        def forward(self, x):
            return self.out(self.norm(self.conv(x)).half().flatten(1))

    model = Mixed().eval()
    save_dense(model, tmp_path / "x")
    inputs = torch.randn(2, 1, 8, 8).to(kind)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(load_network(tmp_path / "x")(inputs), model(inputs))


def test_torch_jit_traces_a_loaded_network(tmp_path):
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU())
    save_dense(model, tmp_path / "x")
    inputs = torch.randn(2, 1, 8, 8)
    with warnings.catch_warnings(action="ignore"):  # torch.jit is deprecated
        traced = torch.jit.trace(load_network(tmp_path / "x"), inputs)
    assert torch.equal(traced(inputs), model(inputs))
    assert "meta" not in str(traced.graph)


ODD = st.sampled_from(
    [None, True, -1, 0, 1, 3, 255, 10**30, 0.5, "", "w", "v", "float32", "bool", "gaps8", "bitmap", [], {}]
)
TOLD = st.dictionaries(
    st.sampled_from(["w", "v", "u"]),
    st.fixed_dictionaries(
        {"shape": st.lists(st.sampled_from([0, 1, 2, 3, 16, 1 << 40, 1 << 62, -1]), max_size=3) | ODD},
        optional={
            "dtype": st.sampled_from(["float32", "float64", "int64", "bool", "uint8"]) | ODD,
            "coding": st.sampled_from(["bitmap", "gaps8", "gaps16"]) | ODD,
            "same": ODD,
        },
    )
    | ODD,
)
STORED = st.sampled_from([torch.uint8, torch.uint16, torch.int64, torch.float32, torch.float16, torch.bool])


@given(data=st.data(), told=TOLD)
def test_a_crafted_file_is_read_or_refused(tmp_path_factory, data, told):
    tensors = {}
    for name in ("values:w", "positions:w", "values:v", "positions:v"):
        numbers = data.draw(st.lists(st.sampled_from([0, 1, 2, 7, 255]), max_size=3))
        tensors[name] = torch.tensor(numbers).to(data.draw(STORED))
    path = crafted(tmp_path_factory.mktemp("crafted") / "w", tensors, {"tensors": told})
    try:
        for name, tensor in load_sparse(path, limit=1 << 20).items():
            each = told[told[name].get("same", name)]
            assert list(tensor.shape) == each["shape"]
            assert str(tensor.dtype) == f"torch.{each['dtype']}"
    except ValueError as error:
        assert str(error).startswith(f"{path}: ")  # noqa: PT017 (reading is right too)


def test_a_header_that_says_nothing_is_read_as_one_without_metadata(tmp_path):
    header = json.dumps({"__metadata__": None, "x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "x").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    with pytest.raises(ValueError, match="is not a file of save_sparse"):
        load_sparse(tmp_path / "x")
    with pytest.raises(ValueError, match="has no architecture"):
        load_network(tmp_path / "x")


LINEAR = {"kind": "Linear", "in_features": 1, "out_features": 1, "bias": False}


@pytest.mark.parametrize(
    ("layer", "tensors", "more", "reason"),
    [
        ({}, {"a.weight": torch.ones(1, 1), "b": NUMBER}, {}, "tensors that the architecture does not name: b"),
        ({}, {"a.weight": torch.ones(1, 1)}, {"unused": ["b"]}, "tensors that the architecture does not name: b"),
        ({}, {"a.weight": torch.ones(1, 1)}, {"unused": 3}, "not iterable"),
        ({}, {"a.weight": torch.ones(1, 1)}, {"unused": [[]]}, "unhashable"),
        ({}, {"a.weight": torch.ones(1, 2)}, {}, r"a.weight: is torch.float32 of the shape \(1, 2\), wanted"),
        ({}, {"a.weight": torch.ones(1, 1).to(torch.int64)}, {}, "a.weight: is torch.int64"),
        ({}, {}, {}, "a.weight: is missing"),
        ({}, {"a.weight": torch.ones(1, 1), "a.mask": NUMBER}, {"unused": ["a.mask"]}, "a.mask: is a tensor that its"),
        ({"device": "cpu", "in_features": 20000}, {}, {}, "'device', wanted one of in_features"),
        ({"device": "cuda"}, {}, {}, "'device', wanted one of in_features"),
    ],
)
def test_a_network_that_does_not_fit_its_tensors_is_refused(tmp_path, layer, tensors, more, reason):
    architecture = {"layers": {"a": {**LINEAR, **layer}}, "steps": [], "output": {"value": 0}, **more}
    save_file(tensors or {"b": NUMBER}, tmp_path / "x", {"architecture": json.dumps(architecture)})
    with pytest.raises(ValueError, match=reason):
        load_network(tmp_path / "x")


def test_other_files_are_named(tmp_path):
    save_file({"x": NUMBER}, tmp_path / "plain")
    with pytest.raises(ValueError, match="is not a file of save_sparse"):
        load_sparse(tmp_path / "plain")
    torch.save({"x": NUMBER}, tmp_path / "pickle")
    with pytest.raises(ValueError, match="damaged or not a safetensors file"):
        load_sparse(tmp_path / "pickle")
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        load_sparse(tmp_path / "nothing")
    (tmp_path / "long").write_bytes(struct.pack("<Q", 1 << 62) + b"{}")
    with pytest.raises(ValueError, match="damaged or not a safetensors file"):
        load_sparse(tmp_path / "long")


# ---------------------------------------------------------------------- other runtimes


def test_onnxruntime_and_torch_export_give_the_same_outputs_for_any_batch(tmp_path):
    torch.manual_seed(0)
    model = Residual().train()
    inputs = torch.randn(1, 3, 8, 8)
    assert save_onnx(model, inputs, tmp_path / "model.onnx") < 1e-5
    assert model.training
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    more = torch.randn(7, 3, 8, 8)
    model.eval()
    found = session.run(None, {session.get_inputs()[0].name: more.numpy()})[0]
    torch.testing.assert_close(torch.from_numpy(found), model(more).detach(), rtol=1e-4, atol=1e-5)
    save_program(model, inputs, tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    torch.testing.assert_close(program(more), model(more))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "model.pt2"]


def test_a_program_does_not_carry_the_data_that_its_example_is_a_part_of(tmp_path):
    data = torch.randn(100_000, 784)
    save_program(nn.Linear(784, 2), data[:64], tmp_path / "model.pt2")
    assert (tmp_path / "model.pt2").stat().st_size < 40_000
    with zipfile.ZipFile(tmp_path / "model.pt2") as archive:
        assert not [name for name in archive.namelist() if name.endswith((".pkl", ".pickle"))]
        assert archive.getinfo("archive/data/sample_inputs/model.pt").file_size == 0


def test_files_for_others_do_not_tell_the_paths_of_this_machine(tmp_path):
    model = Residual()
    save_program(model, torch.randn(2, 3, 8, 8), tmp_path / "model.pt2")
    save_onnx(model, torch.randn(2, 3, 8, 8), tmp_path / "model.onnx")
    with zipfile.ZipFile(tmp_path / "model.pt2") as archive:
        texts = [archive.read(name) for name in archive.namelist()]
    for text in (*texts, (tmp_path / "model.onnx").read_bytes()):
        assert b".py" not in text
        assert str(tmp_path).encode() not in text


def test_exporting_leaves_the_modes_of_the_network_alone(tmp_path):
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    model[1].eval()
    save_onnx(model, torch.randn(2, 4), tmp_path / "model.onnx")
    save_program(model, torch.randn(2, 4), tmp_path / "model.pt2")
    assert [module.training for module in model.modules()] == [True, True, False, True]


def test_half_precision_is_checked_by_its_own_rounding(tmp_path):
    assert (
        save_onnx(nn.Sequential(nn.Linear(300, 50)).half(), torch.randn(8, 300).half(), tmp_path / "half.onnx") < 0.01
    )


def test_a_network_whose_weights_onnx_puts_into_a_file_of_their_own_is_refused(tmp_path, monkeypatch):
    program = pytest.importorskip("torch.onnx._internal.exporter._onnx_program")
    monkeypatch.setattr(program, "_LARGE_MODEL_THRESHOLD", 0)  # 1.5 GiB
    with pytest.raises(
        ValueError, match="Linear: cannot be written as ONNX: its weights take 32 bytes, wanted at most"
    ):
        save_onnx(nn.Linear(3, 2), torch.randn(4, 3), tmp_path / "x.onnx")
    assert not list(tmp_path.iterdir())


def test_a_network_with_two_outputs_is_refused_by_onnx(tmp_path):
    class Two(nn.Module):
        def forward(self, x):
            return x, -x

    with pytest.raises(ValueError, match="Two: wanted a network with one tensor as its output"):
        save_onnx(Two(), torch.randn(2, 4), tmp_path / "two.onnx")


def test_a_network_that_cannot_be_described_is_named_with_what_can_be_done(tmp_path):
    wanted = r"Linear: is a single layer, wanted a network: nn.Sequential\(layer\); with architecture=False"
    with pytest.raises(ValueError, match=wanted):
        save_sparse(nn.Linear(4, 2), tmp_path / "model.safetensors")
    assert not list(tmp_path.iterdir())


def test_others_may_read_the_files_as_they_may_read_any_new_file(tmp_path):
    save_sparse(nn.Linear(4, 2), tmp_path / "model.safetensors", architecture=False)
    (tmp_path / "any").touch()
    modes = {path.stat().st_mode for path in tmp_path.iterdir()}
    assert len(modes) == 1


def test_what_cannot_be_exported_is_named(tmp_path):
    class Undecided(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(ValueError, match=r"Undecided: torch\.export cannot trace it"):
        save_onnx(Undecided(), torch.ones(2, 2), tmp_path / "x.onnx")
    with pytest.raises(ValueError, match="example_input: wanted a batch of inputs"):
        save_program(perceptron(), torch.ones(0, 784), tmp_path / "x.pt2")
    assert not list(tmp_path.iterdir())
