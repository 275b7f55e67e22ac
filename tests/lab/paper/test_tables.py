"""The tables: the paper's numbers beside ours, and the second one with the baselines."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from filelock import FileLock

import inface
from helpers.datasets import write_mnist
from inface.cli.app import run as command
from inface.lab.paper import beyond_page, beyond_rows, paper_page, paper_rows
from inface.lab.paper.published import TABLE_1
from inface.lab.paper.tables import Table
from inface.lab.runs.setup import settings_for
from inface.lab.sweeps import Grid, Plan
from inface.lab.sweeps.grids import applied
from inface.sets import L1Ball


def final(shift=0.0):
    return {
        "layers": {"a": {"percent": 9.0 + shift}, "b": {"percent": 1.5 + shift}},
        "kept": dict.fromkeys(("100", "50", "25", "10", "5", "2"), 97.0 + shift),
        "kept_together": dict.fromkeys(("100", "50", "25", "10", "5", "2"), 96.0 + shift),
        "network": {"percent": 8.0, "exact_percent": 12.0 + shift},
        "seconds": 30.0,
    }


def end(**changes):
    return {
        "best": settings_for("mnist-mlp", lr=0.125, radius=[1.0, 10.0], momentum=0.99).to_dict(),
        "final": [final(-1.0), final(1.0)],
        "chosen_with": [5],
        "diverged": [],
        **changes,
    }


def row(*winners, **changes):
    return {
        "told": "ours",
        "winners": list(winners) or [end()],
        "trials": [{"epochs": 25}, {"epochs": 2}],
        "trial_seconds": 60.0,
        "command": "inface reproduce table1",
        "versions": {"torch": "2"},
        "grid": {"radius": [], "momentum": []},
        "part": "paper",
        "jobs": 2,
        **changes,
    }


def test_the_table_has_the_papers_numbers_beside_ours():
    page = paper_page({"experiments": {"mnist-mlp": {"sfw-if": row()}}})
    line = next(line for line in page.splitlines() if line.startswith("| sfw-if"))
    assert line.startswith(
        "| sfw-if | 2 | 4; 1, 10 | 9.00 ± 1.41 [10.05] | 1.50 ± 1.41 [1.55] | 12.00 ± 1.41 | 97.00 ± 1.41 [96.88] |"
    )
    assert "\n| sfw-if, together |  |  |  |  |  | 96.00 ± 1.41 [96.88] |" in page
    assert "2 settings were tried (27 epochs" in page
    assert "2 at once. This took 2 minutes" in page
    assert page.startswith("# Table 1, reproduced\n")
    assert set(TABLE_1) == {"mnist-mlp", "mnist-conv", "cifar10"}
    assert all(len(reported.kept) == 5 for methods in TABLE_1.values() for reported in methods.values())


def test_the_free_layers_of_sfw_if_move_in_both_ways():
    rows = {line.name: line for line in paper_rows("paper")}
    assert list(rows) == ["sfw-if", "sfw-if-every", "sfw", "sgd"]
    once, every = (settings_for("mnist-mlp", method=rows[name].method, **rows[name].given) for name in list(rows)[:2])
    assert (once.every_gradient, every) == (False, replace(once, every_gradient=True))
    assert rows["sfw-if"].grid == rows["sfw-if-every"].grid
    page = paper_page({"experiments": {"mnist-mlp": {"sfw-if-every": row(), "sfw-if": row()}}})
    assert page.index("| sfw-if | 2 |") < page.index("| sfw-if-every | 2 | 4; 1, 10 | 9.00 ± 1.41 [10.05] |")


def test_both_ways_are_the_same_for_sfw_and_differ_for_sfw_if():
    def weights(every, in_face):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
        groups = inface.param_groups(model, {"0.weight": L1Ball(1.0)})
        opt = inface.FrankWolfe(groups, lr=0.1, in_face=in_face, every_gradient=every, project=True)
        x = torch.randn(8, 4)
        for _ in range(4):
            opt.zero_grad()
            model(x).square().sum().backward()
            opt.step()
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    assert torch.equal(weights(True, None), weights(False, None))
    assert not torch.equal(weights(True, "away"), weights(False, "away"))


def test_runs_of_older_versions_have_one_reading_of_the_largest_edges():
    old = {name: value for name, value in final().items() if name != "kept_together"}
    page = paper_page({"experiments": {"mnist-mlp": {"sfw-if": row(end(final=[old, final()]))}}})
    assert "| sfw-if | 2 |" in page
    assert "| sfw-if, together |" not in page


def test_a_setting_that_was_tried_with_several_seeds_counts_once():
    tried = row(grid={"lr": [1.0, 2.0], "seed": [0, 1]}, trials=[{"epochs": 25}] * 4, part="coarse")
    page = paper_page({"experiments": {"mnist-mlp": {"sgd": tried}}})
    assert "| sgd | 2, 2 seeds each (coarse) |" in page
    assert "2 settings were tried (100 epochs" in page


def test_a_table_says_that_it_is_of_a_part_of_the_grid_or_quick():
    quick = end(best=settings_for("mnist-mlp", epochs=3, radius=[1.0, 10.0]).to_dict())
    page = paper_page({"experiments": {"mnist-mlp": {"sfw": row(quick, part="coarse")}}})
    assert "| sfw | 2 (coarse) |" in page
    assert page.startswith("# Table 1, reproduced (quick: 3 epochs, to see it work)\n")


def test_the_second_table_says_what_was_chosen_and_how():
    gone = row(end(final=[final()], diverged=[0, 2], chosen_with=[5, 2]), told="gone")
    page = beyond_page({"experiments": {"mnist-mlp": {"sgd": gone, "sfw-if-5": row()}}})
    ours = (
        "| ours | 5 % | 2 | radii 1 and 10, momentum 0.99 | 9.00 ± 1.41 | 1.50 ± 1.41 | 12.00 ± 1.41 | 97.00 ± 1.41 |"
    )
    theirs = "| gone (2 of 3 seeds diverged) | 5 % and 2 % | 2 | radii 1 and 10, momentum 0.99 | 9.00 | 1.50 | 12.00 |"
    assert page.index(ours) < page.index(theirs)  # in the order of the rows, not of their ends
    assert "\n| ours, together |  |  |  |  |  |  | 96.00 ± 1.41 |" in page
    assert "| diverged |" in beyond_page({"experiments": {"cifar10": {"sgd": row(end(final=[]))}}})


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


@pytest.mark.parametrize(
    ("table", "lines", "thetas"), [("table1", ["sfw-if"], [100]), ("table2", ["sgd", "prune-5"], [100, 5, 2, 5])]
)
def test_a_quick_table_is_made_and_made_again_without_training(table, lines, thetas, place, capsys):
    folders = [f"--{name}={place / table / name}" for name in ("out", "results")]
    only = [f"--only={name}" for name in lines]
    arguments = ["reproduce", table, "--quick", "--experiment", "mnist-mlp", *only, *folders, f"--data={place}"]
    assert command(arguments) == 0
    file = place / table / "results" / f"{table}-quick.json"
    first = json.loads(file.read_text())
    made = first["experiments"]["mnist-mlp"]
    assert list(made) == lines
    for found in made.values():
        assert all(len(winner["final"]) == 1 for winner in found["winners"])
        assert found["command"] == f"inface reproduce {table} --quick --experiment mnist-mlp --jobs 1"
        assert found["versions"]["torch"]
        for winner in found["winners"]:  # what it was chosen by can be looked up, for every percentage
            for theta, value in zip(winner["chosen_with"], winner["validation"], strict=True):
                assert value == max(trial["kept"][str(theta)] for trial in found["trials"])
    file.unlink()
    capsys.readouterr()
    assert command(arguments) == 0
    assert "running" not in capsys.readouterr().out.replace(" 0 running", "")
    assert json.loads(file.read_text()) == first
    page = file.with_suffix(".md").read_text()
    readings = 2  # of "the largest edges": in each layer, or in both together
    assert page.count("\n| ") == readings * sum(len(found["winners"]) for found in made.values()) + 1
    assert [
        theta for found in made.values() for winner in found["winners"] for theta in winner["chosen_with"]
    ] == thetas


def test_commands_that_fill_one_table_write_it_one_after_the_other(place, capsys):
    file, out = place / "both" / "table1-quick.json", place / "both" / "out"
    folders = [f"--out={out}", f"--results={file.parent}", f"--data={place}"]
    arguments = ["reproduce", "table1", "--quick", "--experiment", "mnist-mlp", "--only", "sgd", *folders]
    assert command(arguments) == 0
    found = file.read_text()
    file.unlink()
    (lock,) = out.rglob("table1-quick/.lock")
    waiting = threading.Thread(target=command, args=[arguments])
    with FileLock(lock):
        waiting.start()
        waiting.join(4)
        assert waiting.is_alive()
        assert not file.exists()
    waiting.join(60)
    assert file.read_text() == found


@pytest.mark.parametrize("contents", ['{"format": 1}', '{"format": 4, "experiments": {"mnist-mlp": {"sgd": {}}}}'])
def test_a_table_that_cannot_be_continued_is_named_before_anything_is_trained(contents, place, tmp_path, capsys):
    file = tmp_path / "table1-quick.json"
    file.write_text(contents)
    folders = [f"--out={tmp_path / 'out'}", f"--results={tmp_path}", f"--data={place}"]
    assert command(["reproduce", "table1", "--quick", "--experiment", "mnist-mlp", "--only", "sgd", *folders]) == 1
    assert f"inface: {file}: " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert file.read_text() == contents


def test_a_row_of_another_grid_is_not_replaced(place, tmp_path, capsys):
    file = tmp_path / "table1-quick.json"
    file.write_text(json.dumps({"format": 4, "experiments": {"mnist-mlp": {"sgd": row(grid={"lr": [1.0]})}}}))
    folders = [f"--out={tmp_path / 'out'}", f"--results={tmp_path}", f"--data={place}"]
    assert command(["reproduce", "table1", "--quick", *folders]) == 2
    assert (
        f"{file}: already has sgd of mnist-mlp, with another grid; choose another --results" in capsys.readouterr().err
    )
    assert not (tmp_path / "out").exists()


UNLUCKY = """
from dataclasses import replace
import torch
from inface.lab.experiments import builtin

def unlucky():
    digits = builtin.digits()

    def model():
        network = digits.model()
        if torch.initial_seed() == 1:
            torch.nn.init.constant_(network.fc1.weight, float("inf"))
        return network

    return replace(digits, model=model)
"""


def test_a_seed_that_diverges_in_the_end_is_replaced(tmp_path):
    (tmp_path / "mine.py").write_text(UNLUCKY)
    base = settings_for(f"{tmp_path}/mine.py:unlucky", method="sgd", epochs=1, threads=1)
    plan = Plan(base, str(tmp_path), str(tmp_path), "study", Grid({"lr": [0.1]}))
    table = Table("table1", paper_page, tmp_path, tmp_path, 1, None, None)
    found = table._swept(plan, "unlucky")
    assert ([final["seed"] for final in found["final"]], found["diverged"]) == ([0, 2, 3], [1])


@pytest.mark.parametrize(("name", "page"), [("table1", paper_page), ("table2", beyond_page)])
def test_every_final_run_of_the_stored_tables_has_its_seed(name, page):
    folder = Path(__file__).parents[3] / "results"
    table = json.loads((folder / f"{name}.json").read_text())
    ends = [end for rows in table["experiments"].values() for row in rows.values() for end in row["winners"]]
    for end in ends:
        seeds = [final["seed"] for final in end["final"]]
        assert sorted([*seeds, *end["diverged"]]) == list(range(len(seeds) + len(end["diverged"])))
    assert page(table) == (folder / f"{name}.md").read_text()
    for end in ends:
        for run in end["final"]:
            del run["seed"]
    assert page(table) == (folder / f"{name}.md").read_text(), "older tables, without seeds, are read too"


def test_a_grid_that_is_not_there_is_named(capsys):
    assert command(["reproduce", "table1", "--grid", "coarser"]) == 2
    assert command(["reproduce", "table1", "--grid", "coarse", "--quick"]) == 2
    assert command(["reproduce", "table2", "--jobs", "0"]) == 2
    assert command(["reproduce", "table2", "--only", "sdg"]) == 2
    told = capsys.readouterr().err.splitlines()
    assert (
        "--only: wanted sfw-if-5, sgd, prune-5, gradual-5, sparse-5, prune-2, gradual-2, sparse-2, proximal, sfw-if-100, got sdg; did you mean sgd?"
        in told[3]
    )
    assert told[0] == "inface: --grid: wanted paper or coarse, got coarser; did you mean coarse?"
