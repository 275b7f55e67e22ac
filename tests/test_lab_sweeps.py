"""Sweeps: every setting once, whoever is killed when; the winner is chosen on validation data."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from inface.cli.app import run as command
from inface.lab import ArgumentError, LabError, Run, Settings, settings_for
from inface.lab.paper import TABLE_1
from inface.lab.reproduction import table_page
from inface.lab.sweeps import Grid, Plan, Progress, load_grid, paper_grid, quick_grid, sweep
from inface.lab.sweeps.grids import applied
from inface.lab.sweeps.plan import key_of
from inface.lab.sweeps.running import _progress
from inface.lab.sweeps.study import Place, audit, counted, open_study, revive, take
from inface.lab.sweeps.worker import finish, queue, tune, winner

BASE = Settings("digits", method="sfw", epochs=3, batch_size=300, threads=1)
SMALL = Grid({"lr": [0.05, 0.5], "radius 1": [1.0, 5.0], "radius 2": [5.0]})


def plan_in(folder, **changes):
    plan = Plan(base=BASE, out=str(folder), storage=str(folder), study="digits sfw", grid=SMALL, seeds=1, pruning=False)
    return replace(plan, **changes)


def study_of(plan):
    return open_study(plan.tuning, plan.direction, plan.identity())


# ---------------------------------------------------------------------- grids


def test_the_papers_grid_is_every_smoothness_with_every_pair_of_radii():
    points = paper_grid("sfw-if", 2).points()
    assert len(points) == len({key_of(point) for point in points}) == 200
    assert {point["smoothness"] for point in points} == {0.25, 1, 4, 16, 64, 256, 1024, 4096}
    assert {point["radius 1"] for point in points} == {point["radius 2"] for point in points} == {1, 5, 10, 50, 100}
    assert [set(point) for point in paper_grid("sgd", 2).points()] == [{"smoothness"}] * 8


def test_a_point_gives_the_settings_that_it_says():
    settings = applied(BASE, {"smoothness": 4, "radius 2": 10.0, "radius 1": 1.0, "momentum": 0.9}, 2)
    assert settings == replace(BASE, lr=0.125, radius=(1.0, 10.0), momentum=0.9)
    assert applied(BASE, {"radius": [1, 2]}, 2).radius == (1.0, 2.0)
    assert applied(BASE, {"radius": 3}, 2).radius == (3.0,)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("lr: [0.1]\nmomentun: [0.9]\n", 2, "there is no setting momentun; did you mean momentum?"),
        ("lr: [0.1]\n\nmomentum: []\n", 3, "momentum: wanted a list of at least one value"),
        ("lr: 0.1\n", 1, "lr: wanted a list of at least one value"),
        ("momentum:\n  - 0.5\n  - 1.5\n", 3, "momentum: wanted a number in [0, 1), got 1.5"),
        ("lr: [0.1, -1]\n", 1, "lr: wanted a number > 0, got -1"),
        ("smoothness: [0]\n", 1, "smoothness: wanted a number > 0, got 0"),
        ("lr: [0.1]\nlr: [0.2]\n", 2, "lr is there twice"),
        ("lr: [0.1, 0.1]\n", 1, "lr: 0.1 is there twice"),
        ("lr: [0.1]\nradius: [[1, 2, 3]]\n", 2, "radius: wanted 1 or 2 numbers"),
        ("radius 1: [1]\nradius 3: [2]\n", 2, "there is no setting radius 3"),
        ("schedule: [cosin]\n", 1, "schedule: wanted constant or cosine, got cosin; did you mean cosine?"),
        ("radius: [[1, a]]\n", 1, "radius: wanted numbers"),
    ],
)
def test_a_wrong_grid_file_is_refused_with_the_line(tmp_path, text, line, words):
    file = tmp_path / "grid.yaml"
    file.write_text(text)
    with pytest.raises(ArgumentError) as caught:
        load_grid(file, BASE, 2)
    assert f"{file}:{line}: " in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("[1, 2]\n", "is empty; wanted lists of values"),
        ("lr: [0.1\n", "is not YAML"),
        ("lr: [0.1]\nsmoothness: [4]\n", "say the same thing"),
        ("radius 1: [1]\n", "wanted radius 1, radius 2: one for each constrained layer"),
        ("lr: [!!python/object/apply:os.getcwd []]\n", "YAML"),
    ],
)
def test_a_grid_file_that_is_none_is_refused(tmp_path, text, words):
    file = tmp_path / "grid.yaml"
    file.write_text(text)
    with pytest.raises(ArgumentError, match=words):
        load_grid(file, BASE, 2)


def test_nothing_is_tried_when_the_grid_is_wrong(tmp_path, capsys):
    (tmp_path / "grid.yaml").write_text("lr: [0.1]\nmomentun: [0.9]\n")
    arguments = ["sweep", "digits", "--out", str(tmp_path / "sweep"), "--grid", str(tmp_path / "grid.yaml")]
    assert command(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "sweep").exists()


# ---------------------------------------------------------------------- the study


def test_a_study_made_for_something_else_is_not_continued(tmp_path):
    study_of(plan_in(tmp_path))
    for changed, words in (
        ({"base": replace(BASE, epochs=4)}, "base"),
        ({"theta": 5}, r"\(theta 100, wanted 5\)"),
        ({"grid": Grid({"lr": [0.1]})}, "grid"),
    ):
        with pytest.raises(ArgumentError, match=f"was made for something else .*{words}"):
            study_of(plan_in(tmp_path, **changed))
    study_of(plan_in(tmp_path, seeds=5, out=str(tmp_path / "elsewhere")))


def test_a_study_of_another_version_is_not_continued(tmp_path):
    plan = plan_in(tmp_path)
    open_study(plan.tuning, plan.direction, {**plan.identity(), "inface": "0.0.1"})
    with pytest.raises(ArgumentError, match=r"\(inface '0.0.1', wanted "):
        study_of(plan)


def test_every_setting_waits_once_however_often_it_is_asked_for(tmp_path):
    place = Place(str(tmp_path), "study")
    study = open_study(place, "maximize", {})
    settings = {str(number): {"x": number} for number in range(5)}
    for _ in range(3):
        audit(study, place, settings)
    taken = [take(study).user_attrs["key"] for _ in range(5)]
    assert sorted(taken) == sorted(settings)
    assert take(study) is None
    audit(study, place, settings)
    assert take(study) is None
    assert revive(study) == 0  # this process, which took them, is alive


def test_a_setting_whose_worker_died_waits_again_and_is_counted_once(tmp_path):
    place = Place(str(tmp_path), "study")
    study = open_study(place, "maximize", {})
    settings = {"a": {"x": 1}, "b": {"x": 2}}
    audit(study, place, settings)
    program = (
        "import os, signal\n"
        "from inface.lab.sweeps.study import Place, open_study, take\n"
        f"take(open_study(Place({str(tmp_path)!r}, 'study'), 'maximize', {{}}))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -signal.SIGKILL
    other = take(study)
    assert take(study) is None
    assert revive(study) == 1
    assert revive(study) == 0
    audit(study, place, settings)
    again = take(study)
    assert {other.user_attrs["key"], again.user_attrs["key"]} == {"a", "b"}
    for trial in (other, again):
        study.tell(trial, 1.0)
    assert [trial.user_attrs["key"] for trial in counted(study)].count("a") == 1
    assert len(counted(study)) == 2


# ---------------------------------------------------------------------- a sweep


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A sweep, done in this process: its plan and its study."""
    plan = plan_in(tmp_path_factory.mktemp("sweep"))
    study = study_of(plan)
    audit(study, plan.tuning, queue(plan))
    tune(plan)
    finish(plan, winner(plan, study))
    return plan, study


def test_every_setting_is_tried_once_on_validation_data(swept):
    plan, study = swept
    trials = counted(study)
    assert sorted(trial.user_attrs["key"] for trial in trials) == sorted(plan.points())
    assert all(trial.state.name == "COMPLETE" for trial in study.trials)
    for trial in trials:
        config = json.loads((plan.folder(trial.user_attrs["key"]) / "config.json").read_text())
        assert config["measured_on"] == "validation"
        assert config["lr"] == trial.params["lr"]
        assert config["radius"] == [trial.params["radius 1"], trial.params["radius 2"]]
        assert trial.value == trial.user_attrs["summary"]["kept"]["100"]


def test_the_winner_is_the_best_on_validation_data_and_is_measured_on_test_data(swept):
    plan, study = swept
    best = winner(plan, study)
    ranked = sorted(counted(study), key=lambda trial: -trial.value)
    assert best.lr == ranked[0].params["lr"]
    config = json.loads(Path(plan.out, "final", "0", "config.json").read_text())
    assert config["measured_on"] == "test"
    assert (config["lr"], config["radius"]) == (best.lr, list(best.radius))


def test_a_finished_sweep_does_nothing_again(swept):
    plan, study = swept
    before = len(study.trials)
    tune(plan)
    finish(plan, winner(plan, study))
    assert len(study.trials) == before
    assert _progress(study, "settings", 4, 2) == Progress(
        "settings", 4, 4, 0, 0, max(trial.value for trial in study.trials), 0.0
    )


def test_bad_settings_are_stopped_early_and_what_diverges_is_said_so(tmp_path):
    grid = Grid({"lr": [0.5, 1e-4, 2e-4, 3e-4, 1e30]})
    plan = plan_in(tmp_path, base=replace(BASE, method="sgd", epochs=13), grid=grid, pruning=True)
    study = study_of(plan)
    audit(study, plan.tuning, queue(plan))
    tune(plan)
    states = {trial.params["lr"]: trial for trial in counted(study)}
    assert states[0.5].state.name == "COMPLETE"
    assert sum(trial.state.name == "PRUNED" for trial in states.values()) >= 2
    assert sum(len(trial.intermediate_values) for trial in states.values()) < 4 * 12
    assert "diverged" in states[1e30].user_attrs
    assert winner(plan, study).lr == 0.5


def test_the_first_rung_may_be_said_and_is_then_part_of_what_a_study_was_made_for(tmp_path):
    grid = Grid({"lr": [0.5, 1e-4, 2e-4, 3e-4]})
    plan = plan_in(tmp_path, base=replace(BASE, method="sgd", epochs=13), grid=grid, pruning=True, first_rung=5)
    assert plan.identity() == {**replace(plan, first_rung=None).identity(), "first_rung": 5}
    assert "first_rung" not in replace(plan, first_rung=None).identity()
    study = study_of(plan)
    audit(study, plan.tuning, queue(plan))
    tune(plan)
    reached = Counter(max(trial.intermediate_values) for trial in counted(study))
    assert set(reached) == {5, 12}  # stopped at the rung, or not at all: the last epoch is not reported


def test_settings_are_judged_with_the_edges_that_are_to_stay(tmp_path):
    plan = plan_in(tmp_path, theta=5)
    study = study_of(plan)
    audit(study, plan.tuning, queue(plan))
    tune(plan)
    for trial in counted(study):
        assert trial.value == trial.user_attrs["summary"]["kept"]["5"]
        judged = [epoch["judged"] for epoch in Run(plan.folder(trial.user_attrs["key"])).epochs]
        assert list(trial.intermediate_values.values()) == judged[:-1]
        assert judged[-1] == trial.value


def test_a_setting_given_up_and_not_yet_waiting_again_is_not_lost(tmp_path):
    plan = plan_in(tmp_path)
    study = study_of(plan)
    audit(study, plan.tuning, queue(plan))
    study.tell(take(study), state=optuna.trial.TrialState.FAIL)  # as a worker does that dies before the setting waits
    tune(plan)
    assert len(counted(study)) == 4


def test_a_study_may_be_in_a_database(tmp_path):
    plan = plan_in(tmp_path / "runs", storage=f"sqlite:///{tmp_path / 'study.db'}", grid=Grid({"lr": [0.1, 0.2]}))
    study = study_of(plan)
    audit(study, plan.tuning, queue(plan))
    tune(plan)
    assert len(counted(study)) == 2


def test_a_database_that_cannot_be_opened_is_one_line(tmp_path):
    with pytest.raises(LabError, match="the study cannot be opened"):
        study_of(plan_in(tmp_path, storage=f"sqlite:///{tmp_path}/no/such/folder/x.db"))
    assert Place("postgresql://me:secret@host/db", "x").shown == "postgresql://me:***@host/db"


def test_a_search_tries_as_many_settings_as_asked_for(tmp_path):
    plan = plan_in(tmp_path, grid=None, search=4)
    tune(plan)
    tune(plan)
    study = study_of(plan)
    assert len(counted(study)) == len(study.trials) == 4
    assert set(study.trials[0].params) == {"lr", "constrained_lr", "radius 1", "radius 2", "1 - momentum"}
    assert 0 <= winner(plan, study).momentum < 1


def test_a_sweep_in_which_everything_diverges_says_so(tmp_path):
    plan = plan_in(tmp_path, base=replace(BASE, method="sgd"), grid=Grid({"lr": [1e30]}), seeds=0)
    with pytest.raises(LabError, match="no setting came to its end"):
        sweep(plan)


# ---------------------------------------------------------------------- processes that are killed


# A process that was started with SIGINT ignored, as in the background of a script, is to hear it all the same.
LISTENING = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from inface.cli import main
main()
"""


def started(folder, *more):
    words = ["sweep", "digits", "--out", str(folder), "--method", "sfw", "--epochs", "60", "--batch-size", "100"]
    grid = folder.parent / "grid.yaml"
    grid.write_text("lr: [0.05, 0.1, 0.2, 0.5]\nradius: [1, 2, 5]\n")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", LISTENING, *words, "--grid", str(grid), "--seeds", "1", "--no-pruning", *more],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_sweep_whose_processes_are_killed_again_and_again_loses_and_repeats_nothing(tmp_path):
    """All of it twice, by SIGKILL to everybody at once, then interrupted, then by two commands that share the study."""
    folder = tmp_path / "sweep"

    def done():
        return len(list(folder.glob("trials/*/summary.json")))

    for wanted in (2, 4):
        process = started(folder, "--jobs", "2")
        wait_for(lambda: done() >= wanted or process.poll() is not None)  # noqa: B023 - waited for here
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    before = done()
    process = started(folder)
    wait_for(lambda: done() > before or process.poll() is not None)
    os.killpg(process.pid, signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command goes on where it was" in told
    assert "Traceback" not in told
    for process in [started(folder), started(folder)]:
        out, told = process.communicate(timeout=120)
        assert process.returncode == 0, told
        assert "12/12" in out

    ended = Counter(
        record["trial_id"]
        for record in map(json.loads, (folder / "study.journal").read_text().splitlines())
        if record.get("op_code") == 6 and record.get("state") in (1, 2)  # a trial that is complete, or pruned
    )
    assert set(ended.values()) == {1}
    assert len(ended) == 13  # twelve settings and one final run: nothing was done twice
    results = json.loads((folder / "results.json").read_text())
    tried = Counter(json.dumps(trial["settings"], sort_keys=True) for trial in results["trials"])
    assert len(tried) == 12
    assert set(tried.values()) == {1}
    plan = json.loads((folder / "study.journal").read_text().splitlines()[0])
    assert plan["study_name"] == "digits sfw"
    assert len(results["final"]) == 1


def test_sweeping_from_the_command_line(tmp_path, capsys):
    arguments = ["sweep", "digits", "--out", str(tmp_path), "--method", "sgd", "--grid", "quick", "--epochs", "1"]
    assert command([*arguments, "--seeds", "2"]) == 0
    out = capsys.readouterr().out
    assert "settings 2/2" in out
    assert "final run 1, on the test data" in out
    assert command([*arguments, "--grid", "quick", "--search", "3"]) == 2
    assert command([*arguments, "--jobs", "0"]) == 2
    assert command([*arguments, "--theta", "5"]) == 2  # another study


# ---------------------------------------------------------------------- the table


def test_the_table_has_the_papers_numbers_beside_ours():
    final = {
        "layers": {"a": {"percent": 9.0}, "b": {"percent": 1.5}},
        "kept": dict.fromkeys(("100", "50", "25", "10", "5", "2"), 97.0),
        "network": {"percent": 8.0},
    }
    found = {
        "best": settings_for("mnist-mlp", lr=0.125, radius=[1.0, 10.0]).to_dict(),
        "final": [final, final],
        "trials": [{"epochs": 25}],
        "trial_seconds": 60.0,
    }
    page = table_page({"command": "inface reproduce table1", "sweeps": {"mnist-mlp": {"sfw-if": found}}})
    row = next(line for line in page.splitlines() if line.startswith("| sfw-if"))
    assert "| 4; 1, 10 | 9.00 ± 0.00 [10.05] | 1.50 ± 0.00 [1.55] | 97.00 ± 0.00 [96.88]" in row
    assert set(TABLE_1) == {"mnist-mlp", "mnist-conv", "cifar10"}
    assert all(len(reported.kept) == 5 for methods in TABLE_1.values() for reported in methods.values())


def test_the_quick_grid_is_quick():
    assert len(quick_grid("sfw-if", 2).points()) <= 12
