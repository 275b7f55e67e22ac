"""Runs to a density: ``inface train EXPERIMENT --density 5%``."""

import gc
import json
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import inface
from inface.cli.app import run as command
from inface.lab import ArgumentError, Experiment, Run, evaluate, settings_for, train, write_report
from inface.lab.experiments.builtin import find
from inface.lab.report.page import command as command_of
from inface.lab.runs.export import export_run
from inface.lab.runs.setup import make_optimizer, resolve

SMALL = settings_for("digits", density=0.05, epochs=4, batch_size=100, threads=1)  # 15 gradients an epoch

OWN = """
import torch
from torch import nn
from inface.lab import Data, Experiment, Split
from inface.lab.experiments.data import digits

def images(folder):
    data = digits()
    return Data(train=data.train[:300], test=data.test, held_out=60)

def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 30), nn.LayerNorm(30), nn.ReLU(), nn.Linear(30, 10))

def without_biases():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 30, bias=False), nn.ReLU(), nn.Linear(30, 10, bias=False))

plain = Experiment(data=images, model=network)
bare = Experiment(data=images, model=without_biases, sets={})
usual = Experiment(data=images, model=network, defaults={"density": 0.1, "lr": 0.05, "epochs": 2})
nothing = Experiment(data=images, model=lambda: nn.Sequential(nn.Flatten(), nn.LayerNorm(64)))
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "mine.py"
    path.write_text(OWN)
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train(SMALL, tmp_path_factory.mktemp("runs") / "whole")


def edges(run, *names):
    """Non-zeros and the number of edges in some layers."""
    layers = [run.weights()[name] for name in names]
    return sum(int(w.count_nonzero()) for w in layers), sum(w.numel() for w in layers)


# ---------------------------------------------------------------------- settings


def test_a_density_alone_means_the_method_sparse_and_its_defaults():
    settings = settings_for("digits", density=0.05)
    assert (settings.method, settings.lr, settings.momentum, settings.schedule) == ("sparse", 0.1, 0.9, "cosine")
    assert settings_for("digits", density=0.05, free="adamw").lr == 0.003
    given = settings_for("digits", density=0.05, lr=0.3, momentum=0.0, schedule="constant")
    assert (given.lr, given.momentum, given.schedule) == (0.3, 0.0, "constant")


def test_other_methods_have_the_defaults_that_they_had():
    settings = settings_for("digits", method="sgd", density=0.05)
    assert (settings.method, settings.lr, settings.momentum, settings.schedule) == ("sgd", 0.125, 0.0, "constant")
    assert resolve(settings).density is None
    assert settings_for("digits").method == "sfw-if"
    assert settings_for("digits", method="sgd", free="adamw").lr == 0.003


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"method": "sparse"}, r"density: the method sparse needs it; wanted a number in \(0, 1\], such as 0.05 or 5%"),
        ({"density": 5.0}, r"density: wanted a number in \(0, 1\], such as 0.05 or 5%, got 5"),
        ({"density": 0.0}, "density: wanted"),
        ({"density": 0.1, "free": "adam"}, "free: wanted sgd or adamw, got adam; did you mean adamw?"),
    ],
)
def test_a_wrong_setting_is_named_with_what_was_wanted(given, words):
    with pytest.raises(ArgumentError, match=words):
        settings_for("digits", **given)


def test_the_command_line_takes_a_density_in_percent(tmp_path, capsys):
    arguments = ["train", "digits", "--out", str(tmp_path / "run"), "--epochs", "1", "--threads", "1"]
    assert command([*arguments, "--density", "5%", "--radius", "1"]) == 2
    assert command([*arguments, "--density", "5%", "--method", "sgd"]) == 2
    assert command([*arguments, "--method", "sparse"]) == 2
    assert command([*arguments, "--free", "adamw"]) == 2
    assert command([*arguments, "--density", "5"]) == 2
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "inface: --method sparse does not use --radius"
    assert told[1] == "inface: --method sgd does not use --density"
    assert told[2].startswith("inface: density: the method sparse needs it")
    assert told[3] == "inface: --method sfw-if does not use --free"
    assert told[4] == "inface: density: wanted a number in (0, 1], such as 0.05 or 5%, got 5.0"
    assert command([*arguments, "--density", "5%", "--free", "adamw"]) == 0
    settings = Run(tmp_path / "run").settings
    assert (settings.method, settings.density, settings.lr, settings.free) == ("sparse", 0.05, 0.003, "adamw")
    assert capsys.readouterr().err == ""


def test_the_command_in_a_report_repeats_the_run(whole):
    words = command_of(whole).split()
    assert words[words.index("--density") + 1] == "0.05"
    assert words[words.index("--method") + 1] == "sparse"
    assert "--radius" not in words


# ---------------------------------------------------------------------- the run


def test_a_run_ends_at_its_density_counted_over_the_constrained_layers_together(whole):
    left, total = edges(whole, "fc1.weight", "fc2.weight")
    assert 0.045 * total < left <= 0.05 * total
    assert edges(whole, "fc3.weight")[0] == edges(whole, "fc3.weight")[1]
    assert whole.summary["kept"]["100"] > 80


def test_the_loop_is_that_of_anybody_who_calls_sparse_optimizer(whole):
    data = find("digits").data(None).train
    torch.manual_seed(SMALL.seed)
    model = find("digits").model()
    total = SMALL.epochs * math.ceil(len(data) / SMALL.batch_size)
    layers = ["fc1.weight", "fc2.weight"]
    optimizer = inface.sparse_optimizer(model, density=0.05, lr=0.1, steps=total, layers=layers)
    rates = [group["lr"] for group in optimizer.param_groups]
    step = 0
    for epoch in range(SMALL.epochs):
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(epoch))
        for rows in order.split(SMALL.batch_size):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * (1 + math.cos(math.pi * step / total)) / 2
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(data.inputs[rows]), data.targets[rows]).backward()
            optimizer.step()
            step += 1
    for name, weight in whole.weights().items():
        torch.testing.assert_close(weight, model.state_dict()[name])


def test_an_experiment_without_sets_has_the_layers_that_the_optimizer_chooses(tmp_path, own):
    run = train(settings_for(f"{own}:plain", density=0.1, epochs=3, batch_size=20, threads=1), tmp_path / "run")
    left, total = edges(run, "1.weight", "4.weight")
    assert left <= 0.1 * total
    assert list(run.summary["layers"]) == ["1.weight", "4.weight"]
    assert evaluate(run, experiment=f"{own}:plain")["kept"] == run.summary["kept"]


def test_an_experiment_may_have_a_density_of_its_own(own):
    settings = settings_for(f"{own}:usual")
    assert (settings.method, settings.density, settings.lr, settings.schedule) == ("sparse", 0.1, 0.05, "cosine")
    assert settings_for(f"{own}:usual", method="sgd").schedule == "constant"


def test_a_network_without_a_layer_to_make_sparse_is_named(tmp_path, own):
    settings = settings_for(f"{own}:nothing", density=0.1, epochs=1, threads=1)
    with pytest.raises(ArgumentError, match=r"mine\.py:nothing: sparse_optimizer: the model has no linear"):
        train(settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_cannot_be_made_sparse_is_named_with_its_experiment():
    model = nn.Sequential(nn.Linear(4, 3))
    nn.init.constant_(model[0].weight, math.nan)
    experiment = Experiment(data=find("digits").data, model=lambda: model)
    with pytest.raises(ArgumentError, match=r'digits: sparse_optimizer: parameter "0\.weight" is not finite'):
        make_optimizer(SMALL, experiment, model, 10)


# ---------------------------------------------------------------------- metrics, reports, export


def strict(text):
    def refuse(name):
        raise ValueError(name)

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("name", ["plain", "bare"])
def test_files_are_strict_json_also_where_there_is_no_gap(tmp_path, own, name):
    """A network without biases has no gap at all while no Frank-Wolfe half was taken."""
    run = train(settings_for(f"{own}:{name}", density=0.2, epochs=2, batch_size=100, threads=1), tmp_path / "run")
    records = [strict(line) for line in run.metrics_file.read_text().splitlines()]
    assert all(record["gap"] is None and record["smoothed_gap"] is None for record in records)
    assert strict(run.summary_file.read_text())["gap"]["exact"] > 0


def test_the_density_falls_in_the_series(whole):
    shares = [record["nonzeros"]["fc1.weight"] for record in whole.steps]
    assert shares[0] > 50
    assert shares[-1] < 6
    assert shares[-1] == whole.summary["layers"]["fc1.weight"]["edges"]


def test_evaluating_measures_the_same_network_without_changing_it(whole):
    found, summary = evaluate(whole), whole.summary
    for key in ("kept", "kept_together", "layers", "network", "loss", "train_loss"):
        assert found[key] == summary[key]
    assert found["gap"] is None


def test_a_report_shows_it_beside_dense_sgd(tmp_path, whole):
    settings = resolve(replace(SMALL, method="sgd", momentum=0.9, epochs=1))
    page = write_report([train(settings, tmp_path / "sgd"), whole], tmp_path / "report.html").read_text()
    assert "inface" in page
    assert "--density 0.05" in page
    assert "nan" not in page.lower().split()


def test_an_export_has_its_edges_and_its_accuracy(tmp_path, whole):
    exported = export_run(whole, tmp_path / "export", seconds=0.01)
    metric = exported.told["metric"]
    assert metric["sparse"] == pytest.approx(metric["before"], abs=0.5)
    assert exported.files["sparse"].stat().st_size < whole.model_file.stat().st_size / 3


# ---------------------------------------------------------------------- killed and continued


def stop_at(step):
    def watch(record):
        if record["kind"] == "step" and record["step"] == step:
            raise KeyboardInterrupt

    return watch


@pytest.mark.parametrize("free", ["sgd", "adamw"])
def test_a_run_stopped_anywhere_on_its_path_ends_with_the_same_weights(tmp_path, free):
    """Of 60 gradients: before edges leave, while they do, with Frank-Wolfe halves and without, and after the last left."""
    settings = settings_for("digits", density=0.05, free=free, epochs=4, batch_size=100, threads=1)
    whole = train(settings, tmp_path / "whole")
    for step in (4, 8, 16, 22, 30, 36, 46, 50, 56):
        with pytest.raises(KeyboardInterrupt):
            train(settings, tmp_path / "run", resume=True, watch=stop_at(step), checkpoint_seconds=0)
        gc.collect()  # an optimizer that goes before the end of its path would warn
    run = train(settings, tmp_path / "run", resume=True)
    assert run.model_file.read_bytes() == whole.model_file.read_bytes()
    assert run.summary["gap"] == whole.summary["gap"]
    assert [record.get("nonzeros") for record in run.records] == [record.get("nonzeros") for record in whole.records]


@pytest.mark.parametrize("compute", ["sparse", "auto"])
def test_runs_that_leave_out_zeros_resume_exactly(tmp_path, whole, compute):
    settings = replace(SMALL, compute=compute)

    def leave(record):
        if record["kind"] == "epoch" and record["epoch"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(settings, tmp_path / "run", watch=leave, checkpoint_seconds=0)
    resumed = train(settings, tmp_path / "run", resume=True)
    assert edges(resumed, "fc1.weight", "fc2.weight") == edges(whole, "fc1.weight", "fc2.weight")
    assert resumed.summary["kept"]["100"] == pytest.approx(whole.summary["kept"]["100"], abs=3)
    if compute == "sparse":  # auto may measure otherwise
        straight = train(settings, tmp_path / "straight").weights()
        assert all(torch.equal(weight, straight[name]) for name, weight in resumed.weights().items())


def test_the_command_says_how_layers_compute(tmp_path):
    words = ["--density", "10%", "--epochs", "1", "--threads", "1", "--compute"]
    assert command(["train", "digits", "--out", str(tmp_path / "run"), *words, "sparse"]) == 0
    assert json.loads((tmp_path / "run" / "config.json").read_text())["compute"] == "sparse"
    assert command(["train", "digits", "--out", str(tmp_path / "other"), *words, "quick"]) == 2
