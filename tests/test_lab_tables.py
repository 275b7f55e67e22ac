"""The tables: the paper's numbers beside ours, and the second one with the rivals."""

from __future__ import annotations

import json

import pytest

from inface.cli.app import run as command
from inface.lab.building import settings_for
from inface.lab.paper import TABLE_1
from inface.lab.reproduction import beyond_page, beyond_rows, paper_page, paper_rows
from inface.lab.sweeps.grids import applied
from test_lab_data import write_mnist

FINAL = {
    "layers": {"a": {"percent": 9.0}, "b": {"percent": 1.5}},
    "kept": dict.fromkeys(("100", "50", "25", "10", "5", "2"), 97.0),
    "network": {"percent": 8.0},
    "seconds": 30.0,
}


def row(**changes):
    return {
        "told": "ours",
        "best": settings_for("mnist-mlp", lr=0.125, radius=[1.0, 10.0], momentum=0.99).to_dict(),
        "final": [FINAL, FINAL],
        "trials": [{"epochs": 25}, {"epochs": 2}],
        "trial_seconds": 60.0,
        "command": "inface reproduce table1",
        "versions": {"torch": "2"},
        "chosen_with": 5,
        "diverged": [],
        "grid": {"radius": [], "momentum": []},
        **changes,
    }


def test_the_table_has_the_papers_numbers_beside_ours():
    page = paper_page({"experiments": {"mnist-mlp": {"sfw-if": row()}}})
    line = next(line for line in page.splitlines() if line.startswith("| sfw-if"))
    assert line.startswith(
        "| sfw-if | 4; 1, 10 | 9.00 ± 0.00 [10.05] | 1.50 ± 0.00 [1.55] | 8.00 ± 0.00 | 97.00 ± 0.00 [96.88] |"
    )
    assert "2 settings were tried (27 epochs" in page
    assert "2 minutes of one thread" in page
    assert set(TABLE_1) == {"mnist-mlp", "mnist-conv", "cifar10"}
    assert all(len(reported.kept) == 5 for methods in TABLE_1.values() for reported in methods.values())


def test_the_second_table_says_what_was_chosen_and_how():
    page = beyond_page(
        {"experiments": {"mnist-mlp": {"sfw-if": row(), "sgd": row(told="gone", final=[FINAL], diverged=[0, 2])}}}
    )
    assert (
        "| ours | 5 % | radii 1, 10, momentum 0.99 | 9.00 ± 0.00 | 1.50 ± 0.00 | 8.00 ± 0.00 | 97.00 ± 0.00 |" in page
    )
    assert "| gone (2 of 3 seeds diverged) | 5 % | radii 1, 10, momentum 0.99 | 9.00 | 1.50 | 8.00 | 97.00 |" in page
    assert "| diverged |" in beyond_page({"experiments": {"cifar10": {"sgd": row(final=[])}}})


@pytest.mark.parametrize("experiment", TABLE_1)
def test_every_setting_of_the_second_table_is_one_that_a_run_can_have(experiment):
    for line in beyond_rows(experiment):
        base = settings_for(experiment, method=line.method, **line.given)
        for point in line.grid.points():
            settings = applied(base, point, 2)
            assert settings.epochs == 25
        assert not line.pruning


def test_the_coarse_grid_is_a_part_of_the_papers():
    for fine, coarse in zip(paper_rows("paper"), paper_rows("coarse"), strict=True):
        whole = fine.grid.points()
        assert all(point in whole for point in coarse.grid.points())


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    write_mnist(folder, train=600, test=200)
    return folder


@pytest.mark.parametrize(("table", "lines"), [("table1", ["sfw-if"]), ("table2", ["sgd", "prune-5"])])
def test_a_quick_table_is_made_and_made_again_without_training(table, lines, place, capsys):
    folders = [f"--{name}={place / table / name}" for name in ("out", "results")]
    only = [f"--only={name}" for name in lines]
    arguments = ["reproduce", table, "--quick", "--experiment", "mnist-mlp", *only, *folders, f"--data={place}"]
    assert command(arguments) == 0
    file = place / table / "results" / f"{table}-quick.json"
    first = json.loads(file.read_text())
    made = first["experiments"]["mnist-mlp"]
    assert list(made) == lines
    for found in made.values():
        assert len(found["final"]) == 1
        assert found["command"] == f"inface reproduce {table} --experiment mnist-mlp --quick --jobs 1"
        assert found["versions"]["torch"]
    file.unlink()
    capsys.readouterr()
    assert command(arguments) == 0
    assert "running" not in capsys.readouterr().out.replace(" 0 running", "")
    assert json.loads(file.read_text()) == first
    page = file.with_suffix(".md").read_text()
    assert page.count("\n| ") == len(made) + 1


@pytest.mark.parametrize("contents", ['{"format": 1}', '{"format": 3, "experiments": {"mnist-mlp": {"sgd": {}}}}'])
def test_a_table_that_cannot_be_continued_is_named_before_anything_is_trained(contents, place, tmp_path, capsys):
    file = tmp_path / "table1-quick.json"
    file.write_text(contents)
    folders = [f"--out={tmp_path / 'out'}", f"--results={tmp_path}", f"--data={place}"]
    assert command(["reproduce", "table1", "--quick", "--experiment", "mnist-mlp", "--only", "sgd", *folders]) == 1
    assert f"inface: {file}: is " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert file.read_text() == contents


def test_a_grid_that_is_not_there_is_named(capsys):
    assert command(["reproduce", "table1", "--grid", "coarser"]) == 2
    assert command(["reproduce", "table1", "--grid", "coarse", "--quick"]) == 2
    assert command(["reproduce", "table2", "--jobs", "0"]) == 2
    assert command(["reproduce", "table2", "--only", "sdg"]) == 2
    told = capsys.readouterr().err.splitlines()
    assert (
        "only: wanted sfw-if-5, sfw-if-2, sgd, prune-5, gradual-5, prune-2, gradual-2, proximal, got sdg; did you mean sgd?"
        in told[3]
    )
    assert told[0] == "inface: --grid: wanted paper or coarse, got coarser; did you mean coarse?"
