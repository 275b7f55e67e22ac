"""``inface export``: files that do what the network did, and an account of what they cost."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from inface.cli.app import run as command
from inface.export import CostReport, LayerReport, SparseLinear, Variant, cost_report, load_network, load_sparse
from inface.export.cost.measure import latencies, uses
from inface.export.cost.timing import Timing, measurable, timing
from inface.lab import Run, Settings, train
from inface.lab.report import write_report
from inface.lab.runs.evaluation import rebuild
from inface.sparsity import hard_threshold


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("trained") / "digits"
    train(Settings("digits", epochs=3, batch_size=50, radius=(2.0, 5.0), lr=0.5, threads=1), path)
    return path


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):
    """The run with everything exported, and what was printed."""
    path = tmp_path_factory.mktemp("exported") / "digits"
    shutil.copytree(trained, path)
    formats = [word for name in ("compact", "sparse", "onnx", "torch") for word in ("--format", name)]
    assert command(["export", str(path), *formats, "--keep", "1%"]) == 0
    return path


def test_every_file_holds_the_network_with_the_edges_that_were_kept(exported):
    _, experiment, model = rebuild(Run(exported))
    thin = hard_threshold(model, 0.01, layers=list(experiment.sets)).eval()
    inputs = torch.randn(5, 1, 8, 8)
    wanted = thin(inputs)
    folder = exported / "export"
    for name in ("compact", "sparse"):
        found = load_network(folder / f"{name}.safetensors")
        torch.testing.assert_close(found(inputs), wanted)
    small = load_network(folder / "compact.safetensors").state_dict()
    assert all(torch.equal(load_file(folder / "compact.safetensors")[key], small[key]) for key in small)
    program = torch.export.load(folder / "model.pt2").module()
    torch.testing.assert_close(program(inputs), wanted)


def test_the_account_is_written_and_says_that_nothing_was_lost(exported):
    told = json.loads((exported / "export" / "export.json").read_text())
    metric = told["metric"]
    assert metric["before"] == Run(exported).summary["kept"]["100"]
    assert metric["kept"] == Run(exported).summary["kept"]["1"]
    assert {metric[name] for name in ("compact", "sparse", "onnx", "torch")} == {metric["kept"]}
    costs = CostReport.from_dict(told["costs"])
    assert costs.to_dict() == told["costs"]
    assert costs.sparse.file < told["files"]["sparse"]["bytes"] < costs.compact.file  # with the architecture in it
    assert costs.compact.parameters < costs.dense.parameters
    assert costs.sparse.nonzeros <= costs.compact.nonzeros
    assert costs.sparse.operations <= costs.compact.operations < costs.dense.operations
    assert set(costs.dense.seconds) == set(costs.onnxruntime) == {1, 64}
    for text in ("fc1", "parameters", "latency, batch 64", "in onnxruntime", "gzip of the dense file"):
        assert text in str(costs)


def test_the_page_has_what_was_exported(exported, trained, tmp_path):
    page = write_report([Run(exported)], tmp_path / "report.html").read_text()
    assert "Exported: digits" in page
    assert "1 % of the edges of each constrained layer" in page.replace("\N{NO-BREAK SPACE}", " ")
    assert "sparse.safetensors" in page
    assert "Exported" not in write_report([Run(trained)], tmp_path / "other.html").read_text()


def test_a_damaged_account_is_named(exported, tmp_path, capsys):
    path = tmp_path / "digits"
    shutil.copytree(exported, path)
    file = path / "export" / "export.json"
    told = json.loads(file.read_text())
    del told["costs"]["dense"]["file"]
    file.write_text(json.dumps(told))
    assert command(["report", str(path), "--out", str(tmp_path / "report.html")]) == 1
    assert f"{file}: is damaged" in capsys.readouterr().err


def test_an_account_of_another_version_is_named(exported, tmp_path, capsys):
    path = tmp_path / "digits"
    shutil.copytree(exported, path)
    file = path / "export" / "export.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": 1}))
    assert command(["report", str(path), "--out", str(tmp_path / "report.html")]) == 1
    assert f"{file}: wanted format 3, got 1; export the run again" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_named_before_anything_is_measured(trained, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert command(["export", str(trained), "--out", str(tmp_path / "file")]) == 1
    assert f"{tmp_path / 'file'}: cannot be written" in capsys.readouterr().err


def test_exporting_with_all_edges_and_half_the_bytes(trained, tmp_path, capsys):
    assert command(["export", str(trained), "--half", "--out", str(tmp_path / "out"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["keep"], told["half"]) == (None, True)
    assert [file.name for file in (tmp_path / "out").iterdir() if "sparse" in file.name] == ["sparse.safetensors"]
    assert not (trained / "export").exists()
    state = load_sparse(tmp_path / "out" / "sparse.safetensors")
    assert all(torch.equal(each, each.half().float()) for each in state.values() if each.is_floating_point())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--format", "sparce"], "format: wanted compact, sparse, onnx, torch, got sparce; did you mean sparse?"),
        (["--keep", "0"], "keep: wanted a part of the edges in (0, 1], got 0"),
        (["--keep", "500%"], "keep: wanted a part of the edges in (0, 1], got 5"),
        (["--keep", "many"], "wanted a number, such as 0.05 or 5%, got many"),
    ],
)
def test_wrong_options_are_named_and_nothing_is_written(trained, tmp_path, capsys, arguments, told):
    assert command(["export", str(trained), "--out", str(tmp_path / "out"), *arguments]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# ---------------------------------------------------------------------- the measurements


def test_operations_are_counted_for_one_sample():
    layers = nn.Conv2d(2, 3, 3, padding=1), nn.Flatten(), nn.Linear(3 * 25, 4), SparseLinear.from_linear(first_of(5, 4))
    found = uses(nn.Sequential(*layers), torch.randn(7, 2, 5, 5))
    assert [found[name].operations for name in "0123"] == [2 * 25 * 3 * 2 * 9, 0, 2 * 75 * 4, 2 * 4]
    transposed = nn.ConvTranspose2d(4, 2, 3, stride=2, groups=2)
    assert uses(nn.Sequential(transposed), torch.randn(3, 4, 5, 5))["0"].operations == 2 * 25 * 4 * 9
    assert uses(nn.Sequential(nn.Embedding(10, 4)), torch.zeros(3, 2, dtype=torch.long))["0"].operations == 0


def first_of(outputs, inputs):
    """A layer whose first node alone has weights."""
    layer = nn.Linear(inputs, outputs)
    with torch.no_grad():
        layer.weight[1:] = 0
    return layer


def test_the_sparse_form_is_what_was_measured_layer_by_layer():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 300), nn.ReLU(), nn.Linear(300, 10))
    with torch.no_grad():
        model[2].weight.mul_(torch.rand(300, 144) < 0.02)  # faster without its zeros, on any machine
        model[0].weight.mul_(torch.rand(4, 1, 3, 3) < 0.5)  # there are no sparse convolutions
    report = cost_report(model, torch.randn(4, 1, 8, 8), seconds=0.05)
    convolution, sparse, last = report.layers
    assert [layer.name for layer in report.layers] == ["0", "2", "4"]
    assert (convolution.form, convolution.sparse.operations) == ("dense", convolution.dense.operations)
    count = int(model[2].weight.count_nonzero())
    assert sparse.dense.parameters == 300 * 144 + 300
    if sparse.form == "sparse":
        assert sparse.sparse.operations <= 2 * count
        assert sparse.sparse.parameters <= count + 300
    assert sparse.sparse.file < sparse.dense.file / 8
    for name in ("dense", "compact", "sparse"):
        whole, parts = getattr(report, name), [getattr(layer, name) for layer in report.layers]
        assert whole.parameters == sum(part.parameters for part in parts)
        assert whole.operations == sum(part.operations for part in parts)
        assert whole.memory == sum(part.memory for part in parts)
        assert 0 < whole.file - sum(part.file for part in parts) < 2000  # the header
        assert all(set(part.seconds) == {1, 64} for part in parts)
    assert last.dense.nonzeros == last.dense.parameters
    assert "dense" in str(report)
    assert " > " in str(report)


def test_a_layer_of_low_rank_is_small_in_memory_and_in_the_file():
    layer = nn.Linear(60, 60, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(60, 1) @ torch.randn(1, 60))
    report = cost_report(nn.Sequential(layer), torch.randn(4, 60), seconds=0.01)
    (found,) = report.layers
    assert found.form == "low-rank"
    assert found.sparse.parameters == found.sparse.nonzeros == 120
    assert found.sparse.operations == 240
    assert found.sparse.file == found.sparse.memory == 480


def test_shared_weights_are_counted_once_and_can_be_measured():
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    model[2].weight = model[0].weight
    report = cost_report(model, torch.randn(4, 6), seconds=0.01)
    assert report.dense.parameters == 36 + 12
    attention = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    report = cost_report(attention, torch.randn(4, 3, 8), seconds=0.01)
    assert report.dense.parameters == sum(p.numel() for p in attention.parameters())
    assert report.dense.parameters == sum(layer.dense.parameters for layer in report.layers)


@pytest.mark.parametrize("example", [(torch.ones(2, 3),), torch.ones(0, 3), torch.tensor(1.0)])
def test_an_example_that_is_no_batch_is_refused(example):
    with pytest.raises(ValueError, match="example_input: wanted a batch of inputs as a tensor"):
        cost_report(nn.Sequential(nn.Linear(3, 2)), example)


def test_a_network_that_onnx_does_not_know_is_measured_without_it():
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 3)

        def forward(self, x):
            return self.linear(x) if x.sum() > 0 else -self.linear(x)

    report = cost_report(Odd(), torch.randn(4, 6), batches=(2,), seconds=0.01)
    assert report.onnxruntime == {}
    assert any("onnxruntime" in each for each in report.left)
    assert report.compact.parameters == report.dense.parameters


def test_the_slower_of_two_is_found_slower():
    a, b = torch.randn(400, 400), torch.randn(40, 40)
    found = latencies({"large": lambda: a @ a, "small": lambda: b @ b}, seconds=0.05)
    assert found["large"].median > found["small"].median


def test_a_difference_counts_where_it_is_larger_than_the_spread_of_both():
    quiet, busy = timing([1.0, 1.01, 1.02, 1.0, 1.01]), timing([1.0, 3.2, 3.2, 1.0, 3.2])
    assert (quiet.median, round(quiet.spread, 9)) == (1.01, 0.01)
    assert (busy.median, busy.spread) == (3.2, 2.2)
    assert not measurable(quiet, busy)  # 3.2 times as fast, says the median of a machine that was busy half of the time
    assert not measurable(busy, quiet)
    assert measurable(quiet, timing([0.5, 0.51, 0.52, 0.5, 0.51]))
    assert not measurable(quiet, quiet)
    # One layer twice beside three busy processes: most rounds of one were disturbed, few of the other.
    assert not measurable(Timing(12.4e-6, 84.3e-6), Timing(138.5e-6, 80.0e-6))
    assert not measurable(Timing(68.5e-6, 30.4e-6), Timing(12.4e-6, 41.4e-6))
    with pytest.raises(ValueError, match="wanted at least 2 rounds, got 1"):
        timing([1.0])


def test_the_tables_say_where_nothing_can_be_measured_and_show_the_spread():
    def variant(first, second):
        return Variant(10, 10, 20, 40, 8, 40, {1: Timing(*first), 64: Timing(*second)})

    dense, compact = variant((4e-4, 3e-4), (2e-3, 1e-5)), variant((1.25e-4, 2.8e-4), (1.9e-3, 2e-5))
    sparse = variant((0.5e-4, 1e-6), (1e-3, 1e-5))
    layer = LayerReport("fc", "Linear", (2, 5), "sparse", dense, compact, sparse)
    there = {1: Timing(3e-4, 1e-6), 64: Timing(1e-3, 1e-6)}
    report = CostReport((layer,), dense, compact, sparse, 9, there, (), 1)
    rows = {name: cells for name, *cells in report.rows()}
    assert rows["latency, batch 1"] == [
        "400.0 us +- 300.0 (1.00)",
        "125.0 us +- 280.0 (not measurable here)",
        "50.0 us +- 1.0 (0.12)",
    ]
    assert rows["latency, batch 64"] == ["2.00 ms +- 0.01 (1.00)", "1.90 ms +- 0.02 (0.95)", "1.00 ms +- 0.01 (0.50)"]
    noisy = CostReport((replace(layer, sparse=compact),), dense, compact, compact, 9, {}, (), 1)
    assert "400.0 ~ 125.0" in noisy.layer_rows()[0]
    assert "2000.0 > 1900.0" in noisy.layer_rows()[0]
    assert "~: not measurable here" in str(noisy)
    assert "~" not in str(report)
    assert CostReport.from_dict(report.to_dict()) == report
