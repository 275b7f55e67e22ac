"""The benchmark: many methods at several densities, row by row."""

from __future__ import annotations

import json

import pytest

from helpers.datasets import write_mnist
from inface.cli.app import run as command
from inface.cli.reproduce import BENCHMARK
from inface.lab import settings_for
from inface.lab.paper.benchmark import _placed, _recorded, _run
from inface.lab.paper.benchmark_figure import draw_benchmark
from inface.lab.paper.benchmark_page import benchmark_page
from inface.lab.paper.benchmark_rows import DENSITIES, NETWORKS, ORDER, benchmark_rows
from inface.lab.paper.published import LENETS
from inface.lab.runs.setup import experiment_of, resolve
from inface.lab.sweeps.grids import applied


def cell(*accuracies, density=5.0, cut=None, balanced=None, diverged=()):
    cuts = {"cut": cut or {}, "balanced": balanced or {}}
    runs = [
        {"seed": seed, "accuracy": value, "density": density, "network_density": 6.0, "seconds": 30.0, **cuts}
        for seed, value in enumerate(accuracies)
    ]
    return {"settings": {"lr": 0.1}, "validation": 98.0, "runs": runs, "diverged": list(diverged)}


def row(told, method, cells, **changes):
    return {
        "told": told,
        "method": method,
        "cells": cells,
        "epochs": 25,
        "options": {},
        "grid": {"lr": [0.1]},
        "command": "inface reproduce benchmark",
        "versions": {"torch": "2"},
        **changes,
    }


def lines(page):
    return [line for line in page.splitlines() if line.startswith("| ")]


# ---------------------------------------------------------------------- which rows


@pytest.mark.parametrize("experiment", NETWORKS)
def test_every_setting_is_one_that_a_run_can_have(experiment):
    rows = benchmark_rows(experiment, DENSITIES, {"epochs": 7})
    for one in rows:
        base = settings_for(experiment, method=one.method, **one.given)
        for point in one.grid.points():
            settings = resolve(applied(base, point, len(experiment_of(base).sets)))
            assert (settings.epochs, settings.free) == (7, "adamw" if experiment == "vit" else "sgd")
            assert settings.schedule == ("constant" if one.method == "sfw-if" else "cosine")
            assert settings.momentum == (0.0 if one.method == "sfw-if" else settings.momentum)
    methods = list(dict.fromkeys(one.method for one in rows))
    assert methods == [method for method in ORDER if method != "sfw-if" or experiment_of(base).sets]


def test_all_methods_but_the_papers_try_the_same_learning_rates():
    for experiment, rates in (("resnet", [0.05, 0.1, 0.2]), ("vit", [0.001, 0.003, 0.01])):
        assert all(one.grid.axes["lr"] == rates for one in benchmark_rows(experiment, (5,), {}))


def test_the_command_line_knows_the_networks():
    assert BENCHMARK == NETWORKS


# ---------------------------------------------------------------------- what is recorded


def test_the_densities_of_a_network_that_is_cut_are_those_after_the_cut():
    layers = {
        "a": {"inputs": 10, "nodes": 10, "exact_percent": 30.0},
        "b": {"inputs": 10, "nodes": 30, "exact_percent": 10.0},
    }
    kept = dict.fromkeys(("100", "50", "25", "10", "5", "2", "1"), 90.0)
    final = {
        "seed": 0,
        "layers": layers,
        "network": {"exact_count": 160, "total": 500},
        "kept_together": kept | {"5": 80.0},
        "kept_balanced": kept | {"2": 85.0},
        "seconds": 3.0,
    }
    found = _run(final, 5, 5)  # 60 of 400 edges, 100 other parameters; 20 edges stay
    assert (found["accuracy"], found["density"], found["network_density"]) == (80.0, 5.0, 24.0)
    assert found["cut"] == {"2": 90.0, "1": 90.0}
    assert found["balanced"] == {"2": 85.0, "1": 90.0}
    found = _run(final, 25, 25)
    assert (found["density"], found["network_density"]) == (15.0, 32.0)


def test_a_density_of_its_own_is_added_to_a_row_made_in_the_same_way():
    old, new = (row("x", "proximal", {percent: cell(98.0)}) for percent in ("10", "5"))
    rows = {"proximal": old}
    _placed(rows, "proximal", new)
    assert list(rows["proximal"]["cells"]) == ["10", "5"]
    _placed(rows, "proximal", {**new, "grid": {"lr": [0.3]}})
    assert list(rows["proximal"]["cells"]) == ["5"]


def test_a_row_made_with_other_epochs_or_options_stands_beside_the_old_one():
    rows = {"sparse-5": row("inface", "sparse", {"5": cell(98.0)})}
    longer = row("inface", "sparse", {"5": cell(99.0)}, epochs=100, options={"samples": 10})
    for _ in range(2):
        _placed(rows, "sparse-5", longer)
    assert list(rows) == ["sparse-5", "sparse-5, 100 epochs, samples=10"]
    page = benchmark_page({"experiments": {"lenet-5": {"sgd": row("SGD", "sgd", {}), **rows}}})
    assert "| inface (100 epochs, samples=10) | **99.00** | 30 |" in lines(page)


def test_densities_need_not_be_those_of_the_cuts():
    rows = benchmark_rows("lenet-5", (1.5, 0.5), {})
    assert [row.name for row in rows if row.method == "sparse"] == ["sparse-1.5", "sparse-0.5"]
    assert not any(row.method == "proximal" for row in rows)
    page = benchmark_page({"experiments": {"lenet-5": {row.name: made(row) for row in rows if "-" in row.name}}})
    assert lines(page)[0] == "| method | 1.5 % | 0.5 % | seconds |"


def made(benchmarked):
    percent = benchmarked.name.rsplit("-", 1)[1]
    return row(benchmarked.told, benchmarked.method, {percent: cell(98.0, density=float(percent))})


# ---------------------------------------------------------------------- the page


def test_the_best_and_what_is_within_its_spread_is_bold():
    rows = {
        "sgd": row("SGD, dense", "sgd", {"100": cell(99.0, 99.2, density=100.0)}),
        "sparse-5": row("inface", "sparse", {"5": cell(98.0, 99.0)}),
        "gradual-5": row("gradual", "gradual", {"5": cell(97.8, 98.0)}),
        "set-5": row("SET", "set", {"5": cell(97.0, 97.2), "1": cell(90.0)}),
        "rigl-5": row("RigL", "rigl", {"5": cell(diverged=[0, 1]), "1": cell(91.0, diverged=[1], density=0.8)}),
    }
    page = benchmark_page({"experiments": {"lenet-5": rows, "lenet-300-100": rows}})
    assert page.index("## lenet-300-100") < page.index("## lenet-5")
    assert lines(page)[:6] == [
        "| method | dense | 5 % | 1 % | seconds |",
        "| SGD, dense | 99.10 ± 0.14 |  |  | 30 |",
        "| gradual |  | **97.90 ± 0.14** |  | 30 |",
        "| RigL |  | diverged | **91.00 (1 diverged)** | 30 |",
        "| SET |  | 97.10 ± 0.14 | 90.00 | 30 |",
        "| inface |  | **98.50 ± 0.71** |  | 30 |",
    ]
    assert "RigL at 1 %: 0.8 %; SET at 1 %: 5 %." in page
    assert "98.41 % at 1/12 of the weights (8.3 %;" in page
    assert "[benchmark-lenet-5.svg](benchmark-lenet-5.svg) shows accuracy against density" in page
    assert "Made by `inface reproduce benchmark`\nwith torch 2." in page
    assert set(LENETS) < set(NETWORKS)


def test_what_was_made_in_another_way_has_a_line_of_its_own():
    rows = {
        "sparse-5": row("inface", "sparse", {"5": cell(98.0)}),
        "sparse-2": row("inface", "sparse", {"2": cell(97.0, cut={"1": 50.0}, balanced={"1": 60.0})}),
        "sparse-1": row("inface", "sparse", {"1": cell(97.0)}, epochs=3, options={"samples": "9"}),
    }
    page = benchmark_page({"experiments": {"mnist-mlp": rows}})
    assert [line.partition(" |")[0] for line in lines(page)[1:3]] == ["| inface", "| inface (3 epochs, samples=9)"]
    assert "Densities are of its constrained layers, fc1.weight and fc2.weight" in page
    assert "| inface, trained to 2 % | 50.00 |\n| inface, trained to 2 %, balanced | 60.00 |" in page


def test_a_figure_is_drawn_of_whatever_is_there(tmp_path):
    for rows in (
        {"sgd": row("SGD, dense", "sgd", {"100": cell(99.0, density=100.0)})},
        {"sparse-5": row("inface", "sparse", {"5": cell(98.0, 97.0), "1": cell()})},
    ):
        draw_benchmark(rows, tmp_path / "benchmark.svg")
        assert next(iter(rows.values()))["told"] in (tmp_path / "benchmark.svg").read_text()


# ---------------------------------------------------------------------- the command


def test_a_quick_benchmark_is_made_row_by_row_and_made_again_without_training(tmp_path, capsys):
    write_mnist(tmp_path, train=120, test=40)
    folders = [f"--out={tmp_path / 'out'}", f"--results={tmp_path / 'results'}", f"--data={tmp_path}"]
    arguments = ["reproduce", "benchmark", "--quick", "--experiment", "mnist-mlp", "--epochs", "1", *folders]
    assert command([*arguments, "--only", "sparse", "--only", "sfw-if"]) == 0
    file = tmp_path / "results" / "benchmark-quick.json"
    first = json.loads(file.read_text())
    made = first["experiments"]["mnist-mlp"]
    assert list(made) == ["sparse-5", "sfw-if"]
    ours, paper = made["sparse-5"], made["sfw-if"]
    assert ours["command"] == "inface reproduce benchmark --quick --epochs 1 --seeds 1 --experiment mnist-mlp --jobs 1"
    assert (ours["epochs"], ours["options"], list(ours["cells"])) == (1, {}, ["5"])
    assert ours["cells"]["5"]["validation"] == max(trial["scores"]["100"] for trial in ours["trials"])
    assert paper["cells"]["5"]["validation"] == max(trial["scores"]["5"] for trial in paper["trials"])
    (run,) = ours["cells"]["5"]["runs"]
    assert run["seed"] == 0
    assert 4.5 < run["density"] <= 5.0 < run["network_density"] < 7
    assert (tmp_path / "results" / "benchmark-quick-mnist-mlp.svg").is_file()

    # what was trained once is judged at another density without training again
    count = len(list((tmp_path / "out").rglob("trials/*/summary.json")))
    assert command([*arguments, "--only", "sfw-if", "--density", "1%"]) == 0
    assert len(list((tmp_path / "out").rglob("trials/*/summary.json"))) == count
    assert list(json.loads(file.read_text())["experiments"]["mnist-mlp"]["sfw-if"]["cells"]) == ["5", "1"]

    file.unlink()
    capsys.readouterr()
    assert command([*arguments, "--only", "sparse", "--only", "sfw-if"]) == 0
    assert "running" not in capsys.readouterr().out.replace(" 0 running", "")
    assert json.loads(file.read_text()) == first


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            "--only sprase",
            "--only: wanted sgd, sparse, gradual, rigl, set, prune, proximal, sfw-if, got sprase; did you",
        ),
        ("--density 100%", "--density: wanted more than 0% and less than 100%, got 100%"),
        ("--density 3% --only proximal", "--density: proximal is cut at the end; wanted some of 50%, 25%, 10%, 5%"),
        ("--experiment resnet --only sfw-if", "--only: sfw-if needs an experiment with sets, got resnet"),
        ("--experiment digits", "--experiment: wanted lenet-300-100, lenet-5, cifar10, vit, mnist-mlp"),
        ("--experiment lenet-5 -o depth=8", "lenet-5 has no option depth"),
        ("--seeds 0", "--seeds: wanted a whole number >= 1, got 0"),
        ("--epochs 0", "--epochs: wanted a whole number >= 1, got 0"),
    ],
)
def test_a_wrong_argument_is_named_before_anything_is_trained(words, told, tmp_path, capsys):
    folders = [f"--out={tmp_path / 'out'}", f"--results={tmp_path / 'results'}"]
    assert command(["reproduce", "benchmark", *words.split(), *folders]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_sweep_without_a_winner_at_a_density_records_its_seeds():
    best = settings_for("mnist-mlp", method="gradual", keep=0.05).to_dict()
    end = {"theta": 100, "best": best, "validation": 97.0, "final": [], "diverged": [0, 1]}
    found = {**end, "also": [], "identity": {"grid": {"lr": [0.1]}}, "trials": []}
    assert _recorded(found)["cells"]["5"]["diverged"] == [0, 1]
