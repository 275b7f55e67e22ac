"""The figures of the supplement, small: the same files, the same course, fewer samples."""

import json
from dataclasses import replace

import pytest

from inface.cli.app import run as command
from inface.lab import Run
from inface.lab.files import read_json
from inface.lab.supplement import Cell, Effort, boxes, cells, evolution, study_cell

SMALL = Effort(rungs=(1, 3), trials=3, samples=2000, together=5, quick=True)


@pytest.fixture(scope="module")
def figure(tmp_path_factory):
    """Figure 1 of one kind of data, with two methods."""
    place = tmp_path_factory.mktemp("figure")
    kinds = [Cell("sigmoid", 10, 10.0, "sgd"), Cell("sigmoid", 10, 10.0, "sfw-if")]
    page = boxes("sigmoid", out=place / "out", results=place / "results", name="figure1", kinds=kinds, effort=SMALL)
    return place, page


def test_a_figure_has_all_kinds_of_data_with_all_methods():
    wanted = cells("relu")
    assert {(cell.edges, cell.snr) for cell in wanted} == {(m, snr) for m in (5, 10, 15) for snr in (1, 5, 10)}
    assert {cell.method for cell in wanted} == {"sfw-if", "sfw", "sgd"}
    assert len({cell.name for cell in wanted}) == 27


def test_a_figure_is_a_table_numbers_and_a_picture(figure):
    place, page = figure
    rows = [line for line in page.read_text().splitlines() if line.startswith("| 10 | 10 |")]
    assert len(rows) == 2
    told = read_json(place / "results" / "figure1.json")
    assert list(told["cells"]) == ["sigmoid-10-10-sgd", "sigmoid-10-10-sfw-if"]
    assert (place / "results" / "figure1.svg").read_text().lstrip().startswith("<?xml")
    trials = told["cells"]["sigmoid-10-10-sfw-if"]["trials"]
    assert len({trial["mse"] for trial in trials}) == 3
    assert all(0 < edges <= 50 for trial in trials for edges in trial["edges"])


def test_settings_are_chosen_on_validation_data_by_halving(figure):
    place, _ = figure
    cell = read_json(place / "out" / "figure1" / "sigmoid-10-10-sfw-if" / "result.json")
    assert [tried["epochs"] for tried in cell["tried"]] == [1] * 8 + [3] * 2
    last = [tried for tried in cell["tried"] if tried["epochs"] == 3]
    best = min(last, key=lambda tried: tried["mse"])
    assert (cell["best"]["lr"], cell["best"]["radius"]) == (best["lr"], best["radius"])
    assert cell["best"]["measured_on"] == "validation"
    config = Run(place / "out" / "figure1" / "sigmoid-10-10-sfw-if" / "trial-2").config
    assert (config["measured_on"], config["options"]["trial"]) == ("test", 2)


def test_what_is_done_is_not_done_again(figure):
    place, _ = figure
    folder = place / "out" / "figure1"
    cell = Cell("sigmoid", 10, 10.0, "sfw-if")
    file = folder / cell.name / "result.json"
    before = file.read_bytes()
    file.unlink()
    rung = folder / cell.name / "rung-0-0.json"
    stamp = rung.stat().st_mtime_ns
    study_cell(cell, SMALL, folder)
    assert rung.stat().st_mtime_ns == stamp
    assert {**json.loads(file.read_bytes()), "trials": None} == {**json.loads(before), "trials": None}
    more = study_cell(cell, replace(SMALL, trials=4), folder)
    assert len(more["trials"]) == 4
    assert more["best"] == json.loads(before)["best"]
    assert rung.stat().st_mtime_ns == stamp
    study_cell(cell, replace(SMALL, samples=1000), folder)
    assert rung.stat().st_mtime_ns != stamp


def test_the_course_of_one_instance_is_drawn(figure):
    place, _ = figure
    pictures = evolution(out=place / "out", results=place / "results", effort=SMALL)
    assert [picture.name for picture in pictures] == ["figure3.svg", "figure4.svg"]
    assert all("gradients" in picture.read_text() for picture in pictures)


def test_wrong_numbers_are_named(tmp_path, capsys):
    assert command(["reproduce", "figure1", "--jobs", "0", "--out", str(tmp_path)]) == 2
    assert command(["reproduce", "figure2", "--trials", "0", "--out", str(tmp_path)]) == 2
    assert command(["reproduce", "table1", "--experiment", "mnist-mpl"]) == 2
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "inface: --jobs: wanted a whole number >= 1, got 0"
    assert "did you mean mnist-mlp?" in told[2]
