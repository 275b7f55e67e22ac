"""The figures of the supplement, small: the same files, the same course, fewer samples."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from filelock import FileLock

from helpers.processes import LISTENING
from inface.cli.app import run as command
from inface.lab import Run, Settings, train
from inface.lab.files import read_json
from inface.lab.paper.figure_pages import boxes_page
from inface.lab.paper.figures import Cell, CourseTask, Effort, boxes, cells, evolution, redraw, study_cell
from inface.lab.paper.tasks import Meter
from inface.lab.runs.setup import resolve

SMALL = Effort(rungs=(1, 3), trials=3, samples=2000, together=5, quick=True)
CELL = Cell("sigmoid", 10, 10.0, "sfw-if")
COMMAND = "inface reproduce figure1"


@pytest.fixture(scope="module")
def figure(tmp_path_factory):
    """Figure 1 of one kind of data, with two methods."""
    place = tmp_path_factory.mktemp("figure")
    seen = []
    page = boxes(
        "sigmoid",
        out=place / "out",
        results=place / "results",
        name="figure1",
        command=COMMAND,
        kinds=[replace(CELL, method="sgd"), CELL],
        effort=SMALL,
        show=lambda what, state: seen.append((what, state)),
    )
    return place, page, seen


def test_a_figure_has_all_kinds_of_data_with_all_methods():
    wanted = cells("relu")
    assert {(cell.edges, cell.snr) for cell in wanted} == {(m, snr) for m in (5, 10, 15) for snr in (1, 5, 10)}
    assert {cell.method for cell in wanted} == {"sfw-if", "sfw", "sgd"}
    assert len({cell.name for cell in wanted}) == 27


def test_a_figure_is_a_page_numbers_and_a_picture(figure):
    place, page, seen = figure
    text = page.read_text()
    assert (
        len([line for line in text.splitlines() if line.startswith(("| 10 | 10 | sgd |", "| 10 | 10 | sfw-if |"))]) == 2
    )
    assert "Medians over 3 trials" in text
    assert "| SFW-IF is sparser than SFW | layer 1 in 0 of 0 (0 of 0); layer 2 in 0 of 0 (0 of 0) |" in text
    told = read_json(place / "results" / "figure1.json")
    assert told["command"] == COMMAND
    assert set(told["versions"]) == {"inface", "torch", "numpy", "python"}
    assert told["seconds"] >= told["cells"][CELL.name]["seconds"] > 0
    assert told["cpu_seconds"] > 0
    assert list(told["cells"]) == ["sigmoid-10-10-sgd", "sigmoid-10-10-sfw-if"]
    picture = (place / "results" / "figure1.svg").read_text()
    assert picture.lstrip().startswith("<?xml")
    assert all(text in picture for text in ("Layer 1, m = 10", "Layer 2, m = 10", "MSE, m = 10", "SFW-IF", "SGD"))
    assert "radius" not in picture
    trials = told["cells"][CELL.name]["trials"]
    assert len({trial["mse"] for trial in trials}) == 3
    assert all(0 < edges <= 50 for trial in trials for edges in trial["edges"])
    assert seen[0][0] == "cells"
    assert (seen[-1][1].done, seen[-1][1].total, seen[-1][1].part) == (2, 2, 1)


def test_settings_are_chosen_on_validation_data_by_halving(figure):
    place, _, _ = figure
    cell = read_json(place / "out" / "figure1" / CELL.name / "result.json")
    assert [tried["epochs"] for tried in cell["tried"]] == [1] * 8 + [3] * 2
    last = [tried for tried in cell["tried"] if tried["epochs"] == 3]
    best = min(last, key=lambda tried: tried["mse"])
    assert (cell["best"]["lr"], cell["best"]["radius"]) == (best["lr"], best["radius"])
    assert cell["best"]["measured_on"] == "validation"
    config = Run(place / "out" / "figure1" / CELL.name / "trial-2").config
    assert (config["measured_on"], config["options"]["trial"]) == ("test", 2)


def test_the_first_trial_is_the_best_network_of_the_last_rung(figure, tmp_path):
    place, _, _ = figure
    folder = place / "out" / "figure1" / CELL.name
    first, second = (read_json(folder / f"trial-{trial}" / "summary.json") for trial in (0, 1))
    assert first["cost"] == {}
    assert second["cost"]["cpu_seconds"] > 0
    result = read_json(folder / "result.json")
    run = train(replace(Settings.from_dict(result["best"]), measured_on="test"), tmp_path / "alone")
    assert result["trials"][0]["mse"] == pytest.approx(run.summary["kept"]["100"], rel=1e-3)


def test_what_is_done_is_not_done_again(figure):
    place, _, _ = figure
    folder = place / "out" / "figure1"
    file = folder / CELL.name / "result.json"
    before = json.loads(file.read_bytes())
    file.unlink()
    rung, trial = folder / CELL.name / "rung-0-0.json", folder / CELL.name / "trial-1" / "summary.json"
    stamps = rung.stat().st_mtime_ns, trial.stat().st_mtime_ns
    assert study_cell(CELL, SMALL, folder) == before  # with what it cost
    more = study_cell(CELL, replace(SMALL, trials=4), folder)
    assert len(more["trials"]) == 4
    assert (more["best"], more["trials"][:3]) == (before["best"], before["trials"])
    assert more["cpu_seconds"] > before["cpu_seconds"]
    assert (rung.stat().st_mtime_ns, trial.stat().st_mtime_ns) == stamps
    study_cell(CELL, replace(SMALL, samples=1000), folder)
    assert rung.stat().st_mtime_ns != stamps[0]


def test_the_course_of_one_instance_is_drawn_and_told(figure):
    place, _, _ = figure
    seen = []
    for method in ("sfw", "sfw-if"):
        study_cell(replace(CELL, method=method), replace(SMALL, trials=0), place / "out" / "figure1")
    page = evolution(
        out=place / "out",
        results=place / "results",
        command="inface reproduce figure3",
        effort=SMALL,
        show=lambda what, state: seen.append((what, state.done)),
    )
    text = page.read_text()
    assert text.startswith("# Figures 3 and 4, reproduced")
    assert "SFW-IF is sparser than SFW all the way | layer 1 in" in text
    for name in ("figure3", "figure4"):
        assert f"[{name}.svg]({name}.svg)" in text
        assert "gradients" in (place / "results" / f"{name}.svg").read_text()
    told = read_json(place / "results" / "figure3.json")
    assert {"sfw", "sfw-if", "sfw-same"} == set(told["runs"])
    same, inner = (told["runs"][who]["settings"] for who in ("sfw-same", "sfw-if"))
    assert same == inner | {"method": "sfw"}
    (claims,) = [line for line in text.splitlines() if line.startswith("| its gap seems to fall faster |")]
    assert claims.count("it is the smaller one in") == 2
    assert told["cpu_seconds"] > 0
    assert ("settings", 2) in seen
    assert seen[-1] == ("runs", 3)


def test_other_settings_begin_the_course_again(figure):
    place, _, _ = figure
    settings = resolve(replace(CELL.settings(1000), epochs=1, measured_on="test"))
    for own in (settings, replace(settings, lr=0.01)):
        task = CourseTask("run", own, place / "course")
        assert not task.finished()
        task.carry_out(Meter(place / "course" / "progress.json"))
        assert task.finished()
        assert Run(place / "course").settings == own


def made_up(best, *trials):
    told = [None if trial is None else {"edges": list(trial[:2]), "mse": trial[2]} for trial in trials]
    return {"best": best, "trials": told}


def test_a_page_counts_what_the_paper_says_and_names_what_diverged():
    best = {"lr": 0.125, "radius": [1.0, 10.0]}
    wanted = [Cell("sigmoid", m, 10.0, method) for m in (5, 10, 15) for method in ("sfw-if", "sfw", "sgd")]
    found = [
        made_up(best, (5, 6, 0.5), (7, 8, 0.7), None), made_up(best, (8, 20, 1)), made_up(best, (50, 50, 1)),
        made_up(best, (9, 9, 2.0)), made_up(best, (8, 10, 0.5)), made_up(best, (50, 9, 1)),
        made_up(best, None, None), made_up(None), made_up(best, (50, 50, 1)),
    ]  # fmt: skip
    cells_ = {cell.name: result for cell, result in zip(wanted, found, strict=True)}
    told = {"command": "c", "versions": {"inface": "1"}, "seconds": 90.0, "cpu_seconds": 60.0, "cells": cells_}
    lines = boxes_page("figure1", told, wanted, None).splitlines()
    for line in (
        "| 5 | 10 | sfw-if | 4; 1, 10 | 2 of 3 | 6.0 | 7.0 | 0.6 |",
        "| 15 | 10 | sfw-if | 4; 1, 10 | 0 of 2: all diverged | | | |",
        "| 15 | 10 | sfw | all settings diverged | | | | |",
        "| 5 | 10 | 1 of 1, ratio 0.50, p = 1 | 0 of 1, ratio 1.00, p = 1 | 1 of 1, ratio 0.50, p = 1 |",
        "| 15 | 10 | - | - | - |",
        "| 10 | 10 | 0 of 1, ratio 1.12, p = 1 | 1 of 1, ratio 0.90, p = 1 |",
        "| SFW and SFW-IF are sparser than SGD | layer 1 in 2 of 2 (2 of 2); layer 2 in 1 of 2 (1 of 2) |",
        "| SFW-IF is sparser than SFW | layer 1 in 1 of 2 (1 of 2); layer 2 in 2 of 2 (2 of 2) |",
        "| its lead over SFW is larger in layer 2 | in 2 of 2 (2 of 2) |",
        (
            "| SFW and SFW-IF have about SGD's test error | median ratios of the cells: "
            "SFW-IF 0.50 to 2.00 times SGD's; SFW 0.50 to 1.00 times SGD's |"
        ),
        (
            "| for m = 10 and 15 it is lower than SGD's | "
            "SFW-IF in 0 of 1 (0 of 1); with p < 0.05 lower in 0 cells, higher in 0; "
            "SFW in 1 of 1 (1 of 1); with p < 0.05 lower in 0 cells, higher in 0 |"
        ),
        "It took 1.0 minutes of CPU time, 1.5 of wall-clock time, added up over single-threaded processes, with inface 1.",
    ):
        assert line in lines


def test_pictures_and_page_are_remade_from_the_json_file_alone(figure, tmp_path):
    place, _, _ = figure
    for name in ("figure1.json", "figure1.md", "figure1.svg"):
        shutil.copy(place / "results" / name, tmp_path)
    before = {file: (tmp_path / file).read_bytes() for file in ("figure1.md", "figure1.svg")}
    for file in before:
        (tmp_path / file).unlink()
    assert redraw(tmp_path / "figure1.json") == tmp_path / "figure1.md"
    assert {file: (tmp_path / file).read_bytes() for file in before} == before


def test_one_trial_is_called_one_and_has_no_boxes(tmp_path):
    effort = replace(SMALL, rungs=(1,), trials=1, samples=500)
    study_cell(replace(CELL, method="sgd"), effort, tmp_path / "out" / "figure1")
    places = {"out": tmp_path / "out", "results": tmp_path}
    page = boxes(
        "sigmoid", **places, name="figure1", command=COMMAND, kinds=[replace(CELL, method="sgd")], effort=effort
    )
    assert "do not edit. One trial: " in page.read_text()
    assert "svg" not in page.read_text()
    assert not (tmp_path / "figure1.svg").exists()


def test_an_interrupt_ends_the_workers_and_says_how_to_continue(tmp_path):
    arguments = ["reproduce", "figure1", "--quick", "--out", str(tmp_path / "out"), "--results", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-c", LISTENING, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    first, *_, last = (tmp_path / "out" / "quick" / "figure1-quick" / cell.name for cell in cells("sigmoid"))
    try:
        last.mkdir(parents=True)
        with FileLock(
            last / ".task"
        ):  # as if another machine were at it: the command waits, and cannot come to its end first
            while not (first / "progress.json").is_file():
                assert process.poll() is None
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "the same command continues" in told
    assert not (last / "result.json").is_file()
    with FileLock(first / ".task", timeout=0):
        pass


def test_wrong_numbers_are_named(tmp_path, capsys):
    assert command(["reproduce", "figure1", "--jobs", "0", "--out", str(tmp_path)]) == 2
    assert command(["reproduce", "figure2", "--trials", "0", "--out", str(tmp_path)]) == 2
    assert command(["reproduce", "figure4", "--jobs", "0", "--out", str(tmp_path)]) == 2
    assert command(["reproduce", "table1", "--experiment", "mnist-mpl"]) == 2
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "inface: --jobs: wanted a whole number >= 1, got 0"
    assert "did you mean mnist-mlp?" in told[3]
