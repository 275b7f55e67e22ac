"""The ablations: the baseline of Table 1, and each change alone."""

import json
from pathlib import Path

import pytest
import torch

from helpers.datasets import write_mnist
from inface.cli.app import run as command
from inface.lab import find
from inface.lab.experiments.data import synthetic
from inface.lab.experiments.experiment import Data, Split
from inface.lab.paper.ablations import NETWORKS, ablation_rows
from inface.lab.runs.setup import experiment_of, make_model, settings_for
from inface.lab.sweeps.grids import applied

STORED = Path(__file__).parents[3] / "results" / "table1.json"


@pytest.mark.parametrize("experiment", NETWORKS)
def test_every_line_differs_from_the_baseline_in_one_thing(experiment):
    found = []
    for row in ablation_rows(experiment, STORED):
        base = settings_for(experiment, method=row.method, **row.given)
        (point,) = row.grid.points()
        settings = applied(base, point, len(experiment_of(base).sets))
        make_model(settings, experiment_of(settings))
        found.append((row.name, settings.to_dict()))
    (first, baseline), *others = found
    assert first == "baseline"
    for name, settings in others:
        changed = {key for key in {*settings, *baseline} if settings.get(key) != baseline.get(key)}
        if name.startswith("sfw-16"):
            assert {"method"} <= changed <= {"method", "lr", "radius"}
        elif name == "one-layer":
            assert changed == {"options", "radius"}
        else:
            assert len(changed) == 1, name


def test_the_baseline_is_the_winner_of_table_1():
    winner = json.loads(STORED.read_text())["experiments"]["mnist-conv"]["sfw-if"]["winners"][0]["best"]
    (point,) = ablation_rows("mnist-conv", STORED)[0].grid.points()
    assert (1 / (2 * point["smoothness"]), point["radius"]) == (winner["lr"], winner["radius"])


def test_a_node_starts_with_as_many_edges_as_asked_for():
    settings = settings_for("digits", start_edges=2)
    model = make_model(settings, experiment_of(settings))
    assert int((model.fc1.weight != 0).sum(1).min()) == 2
    assert torch.allclose(model.fc1.weight.abs().sum(1), torch.ones(256))


@pytest.mark.parametrize("held", ["last", "first", "random"])
def test_what_is_held_out_is_not_trained_on(held):
    x = torch.arange(50.0).unsqueeze(1)
    data = Data(Split(x, x), Split(x, x), held_out=10, held=held)
    train, validation = (split.inputs.flatten().tolist() for split in data.parts("validation"))
    assert sorted(train + validation) == list(range(50))
    assert len(validation) == 10
    assert (validation == list(range(10)), validation == list(range(40, 50))) == (held == "first", held == "last")
    assert len(data.parts("test")[0]) == 50


def test_the_synthetic_data_varies_as_its_options_say():
    plain = synthetic(edges=5, samples=(20, 5, 20))
    signs = synthetic(edges=5, samples=(20, 5, 20), last="signs")
    assert signs.truth[2].abs().unique().tolist() == [1.0]
    assert torch.equal(signs.truth[0], plain.truth[0])
    scaled = synthetic(edges=5, samples=(20, 5, 20), normalised=True)
    assert torch.allclose(scaled.data.test.inputs.norm(dim=1), torch.ones(20))
    assert find("synthetic", {"start": "signs"}).model().fc3.weight.abs().unique().tolist() == [1.0]
    assert list(find("mnist-conv", {"layers": "1"}).sets) == ["fc1.weight"]


def test_the_ablations_are_made_and_made_again_without_training(tmp_path, capsys):
    write_mnist(tmp_path, train=600, test=200)
    folders = [f"--out={tmp_path / 'out'}", f"--results={tmp_path}", f"--data={tmp_path}"]
    arguments = ["reproduce", "ablations", "--quick", "--only=baseline", "--only=edges-2", *folders]
    assert command(arguments) == 0
    file = tmp_path / "ablations-quick.json"
    first = json.loads(file.read_text())
    assert list(first["experiments"]["mnist-mlp"]) == ["baseline", "edges-2"]
    page = file.with_suffix(".md").read_text()
    assert page.index("| baseline: sfw-if | 4; 1, 10 | 2 |") < page.index(
        "| two edges per node at the start | 4; 1, 10 |"
    )
    file.unlink()
    capsys.readouterr()
    assert command(arguments) == 0
    assert "running" not in capsys.readouterr().out.replace(" 0 running", "")
    assert json.loads(file.read_text()) == first


def test_one_constrained_layer_has_a_line_too(tmp_path):
    write_mnist(tmp_path, train=600, test=200)
    folders = [f"--out={tmp_path / 'out'}", f"--results={tmp_path}", f"--data={tmp_path}"]
    arguments = ["reproduce", "ablations", "--quick", "--experiment=mnist-conv", "--only=one-layer", "--epochs=1"]
    assert command([*arguments, *folders]) == 0
    page = (tmp_path / "ablations-quick.md").read_text()
    (found,) = (row for row in page.splitlines() if row.startswith("| one constrained layer | 4; 1 | 1 |"))
    assert found.split("|")[5].strip() == ""
