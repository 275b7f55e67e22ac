"""Sweeps: every setting once, whoever is killed when; the winner is chosen on validation data."""

import json
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from helpers.processes import LISTENING
from inface.cli.app import run as command
from inface.cli.sweep import _tried
from inface.lab import ArgumentError, LabError, Run, Settings
from inface.lab.sweeps import Grid, Plan, Progress, load_grid, paper_grid, quick_grid, sweep
from inface.lab.sweeps.grids import applied
from inface.lab.sweeps.halving import Halving
from inface.lab.sweeps.plan import key_of
from inface.lab.sweeps.runner import _progress
from inface.lab.sweeps.study import Place, open_study
from inface.lab.sweeps.trials import Agenda, Judged, audit, counted, ranked, revive, take
from inface.lab.sweeps.worker import final_identity, finish, tune, winner

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
        ("smoothness: [true]\n", 1, "smoothness: wanted a number > 0, got True"),
        ("lr: [0.1]\nlr: [0.2]\n", 2, "lr is there twice"),
        ("lr: [0.1, 0.1]\n", 1, "lr: 0.1 is there twice"),
        ("lr: [0.1]\nradius: [[1, 2, 3]]\n", 2, "radius: wanted 1 or 2 numbers"),
        ("radius 1: [1]\nradius 3: [2]\n", 2, "there is no setting radius 3"),
        ("schedule: [cosin]\n", 1, "schedule: wanted constant or cosine, got cosin; did you mean cosine?"),
        ("radius: [[1, a]]\n", 1, "radius: wanted numbers"),
        ("constrained_lr: [8, [8, 2]]\nlr: [0]\n", 2, "lr: wanted a number > 0, got 0"),
        ("constrained_lr: [[8, 2, 1]]\n", 1, "constrained-lr: wanted 1 or 2 numbers"),
        ("lr: [1]\nconstrained_lr: [8, [8, 8]]\n", 2, "constrained_lr: [8, 8] is the same as 8"),
        ("constrained_lr: [[8, a]]\n", 1, "constrained-lr: wanted numbers"),
        ("lr: [1]\nradius: [[1e-1, two]]\n", 2, "radius: wanted numbers > 0, got [0.1, 'two']"),
        ("constrained_lr: [[]]\n", 1, "constrained-lr: wanted numbers"),
        ("lr: [0.1]\nradius 1: [1]\n", 2, "wanted radius 1, radius 2: one per constrained layer"),
        ("\n[1, 2]\n", 2, "wanted lists of values, such as smoothness: [1, 4, 16]; got a list without a name"),
        ("paper\n", 1, "wanted lists of values, such as smoothness: [1, 4, 16]; got a value without a name"),
        ("lr: [0.1]\nradius: [5, 2, [5, 5]]\n", 2, "radius: [5, 5] is the same as 5; wanted one of them"),
        ("lr: [0.1]\nsmoothness: [4]\n", 2, "lr and smoothness set the same thing, lr = 1 / (2 L); wanted one"),
        ("radius 1: [1]\nradius 2: [1]\nradius: [5]\n", 3, "radius 1 and radius set the same thing; wanted one"),
        ("lr: [0.1]\nin_face: [away, pairwise]\n", 2, "--method sfw does not use in_face"),
        ("keep: [0.1]\n", 1, "--method sfw does not use keep"),
        ("? [a, b]\n: [1]\n", 1, "wanted the name of a setting"),
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
        ("", "is empty; wanted lists of values"),
        ("{}\n", "is empty; wanted lists of values"),
        ("lr: [0.1\n", "is not YAML"),
        ("lr: [!!python/object/apply:os.getcwd []]\n", "YAML"),
    ],
)
def test_a_grid_file_that_is_none_is_refused(tmp_path, text, words):
    file = tmp_path / "grid.yaml"
    file.write_text(text)
    with pytest.raises(ArgumentError, match=words):
        load_grid(file, BASE, 2)


def laughs(levels):
    """Lists of two of the list before: so many lines of text, 2 to so many values."""
    lists = "".join(f", &a{level} [*a{level - 1}, *a{level - 1}]" for level in range(1, levels))
    return f"lr: [1, &a0 [1, 2]{lists}]\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (laughs(2), r":1: lists in lists, 2 values here; wanted lists of numbers"),
        ("lr: &a [*a]\n", r":1: \*a: contains itself"),
        ("lr: [&b [1, *b]]\n", r":1: \*b: contains itself"),
        ("lr: &x [1, 2]\nradius: [*x, [*x, *x]]\n", ":2: lists in lists, 2 values here"),
        ("lr: " + "[" * 5000 + "1" + "]" * 5000, ":1: lists in lists, 4 deep or more; wanted at most 3"),
        ("lr:\n " + "[" * 90_000, ":2: lists in lists, 4 deep or more"),
        ("{a: {b: {c: {d: 1}}}}", ":1: lists in lists, 4 deep or more"),
        ("lr: [" + "9" * 5000 + "]\n", ":1: lr: is not plain YAML"),
        ("lr: [0x" + "f" * 5000 + "]\n", ":1: lr: is not plain YAML"),
        ("lr: [1" + "0" * 400 + "]\n", ":1: lr: wanted a number > 0, got 1000"),
        ("lr: [2001-99-99]\n", ":1: lr: is not plain YAML"),
        ("# " + "x" * 200_000, r"has 200,002 bytes; wanted a grid file of at most 200,000"),
        (
            "lr: &x [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]\nmomentum: *x\nepochs: *x\nseed: *x\nbatch_size: [1, 2]",
            r"a grid of 20,000 settings; wanted at most 10,000",
        ),
        (
            "\n".join(f"s{axis}: &x{axis} [{', '.join('1' * 50)}]" for axis in range(30)),
            f"a grid of {50**30:,} settings; wanted at most 10,000",
        ),
    ],
    ids=[
        "twice",
        "itself",
        "in itself",
        "alias",
        "deep",
        "unclosed",
        "maps",
        "digits",
        "hex",
        "float",
        "date",
        "size",
        "many",
        "huge",
    ],
)
def test_a_grid_file_that_unfolds_to_too_much_is_refused_with_how_much_it_would_be(tmp_path, text, words):
    file = tmp_path / "grid.yaml"
    file.write_text(text)
    with pytest.raises(ArgumentError, match=f"^{file}:.*{words.removeprefix(chr(58))}"):
        load_grid(file, BASE, 2)


def test_a_thousand_lists_of_two_lists_each_are_refused_at_the_first(tmp_path):
    (tmp_path / "grid.yaml").write_text(laughs(1000))
    with pytest.raises(ArgumentError, match="lists in lists"):
        load_grid(tmp_path / "grid.yaml", BASE, 2)


def test_a_list_may_be_said_once_and_meant_twice(tmp_path):
    (tmp_path / "grid.yaml").write_text("radius 1: &r [1, 5]\nradius 2: *r\nconstrained_lr: [&c [8, 2], 4]\n")
    assert len(load_grid(tmp_path / "grid.yaml", BASE, 2).points()) == 8


def test_no_sweep_tries_more_settings_than_it_can_hold(tmp_path):
    with pytest.raises(ArgumentError, match=f"a grid of {8 * 5**7:,} settings; wanted at most 10,000"):
        paper_grid("sfw", 7)
    for name in ("search", "seeds"):
        with pytest.raises(ArgumentError, match=f"{name}: wanted at most 10,000, got 1,000,000,000"):
            plan_in(tmp_path, **{name: 10**9})


def test_nothing_is_tried_when_the_grid_is_wrong(tmp_path, capsys):
    (tmp_path / "grid.yaml").write_text("lr: [0.1]\nmomentun: [0.9]\n")
    arguments = ["sweep", "digits", "--out", str(tmp_path / "sweep"), "--grid", str(tmp_path / "grid.yaml")]
    assert command(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "sweep").exists()


def test_a_study_that_somebody_else_wrote_decides_nothing_but_what_a_sweep_tries():
    for name in ("experiment", "options", "source", "threads", "measured_on", "radius 3", "radius x"):
        with pytest.raises(ArgumentError, match=f"a sweep cannot try {name}"):
            applied(BASE, {"lr": 0.1, name: "evil.py:mine"}, 2)


# ---------------------------------------------------------------------- the study


def test_a_study_made_for_something_else_is_not_continued(tmp_path):
    study_of(plan_in(tmp_path))
    for changed, words in (
        ({"base": replace(BASE, epochs=4)}, "base"),
        ({"theta": 5}, r"\(theta 100, wanted 5\)"),
        ({"grid": Grid({"lr": [0.1]})}, "grid"),
    ):
        with pytest.raises(ArgumentError, match=f"belongs to another sweep .*{words}"):
            study_of(plan_in(tmp_path, **changed))
    study_of(plan_in(tmp_path, seeds=5, out=str(tmp_path / "elsewhere")))


def test_a_study_of_another_version_is_not_continued(tmp_path):
    plan = plan_in(tmp_path)
    open_study(plan.tuning, plan.direction, {**plan.identity(), "inface": "0.0.1"})
    with pytest.raises(ArgumentError, match=r"\(inface '0.0.1', wanted "):
        study_of(plan)


@pytest.mark.parametrize("lost", [1, 25])
def test_a_study_whose_last_line_was_cut_off_goes_on(tmp_path, lost):
    """As by a full disk, or when the power is lost."""
    plan = plan_in(tmp_path)
    audit(study_of(plan), plan.tuning, plan.agenda)
    journal = tmp_path / "study.journal"
    journal.write_bytes(journal.read_bytes()[:-lost])
    tune(plan)
    tune(plan)
    assert len(counted(study_of(plan))) == 4
    assert all(json.loads(line) for line in journal.read_text().splitlines())


def test_a_study_that_is_damaged_in_its_middle_is_named_with_the_line(tmp_path):
    plan = plan_in(tmp_path)
    study = study_of(plan)
    journal = tmp_path / "study.journal"
    first, *others = journal.read_text().splitlines()
    journal.write_text("\n".join([first, "{" + others[0], *others]) + "\n")
    with pytest.raises(LabError, match=f"^{journal}: line 2 is not JSON: Expecting"):
        study_of(plan)
    journal.write_text("\n".join([first, *others, "{", first]) + "\n")
    with pytest.raises(LabError, match=f"^{journal}: line {len(others) + 2} is not JSON: Expecting"):
        study.get_trials()


def test_every_setting_waits_once_however_often_it_is_asked_for(tmp_path):
    place = Place(str(tmp_path), "study")
    study = open_study(place, "maximize", {})
    settings = {str(number): {"x": number} for number in range(5)}
    for _ in range(3):
        audit(study, place, Agenda(settings))
    taken = [take(study).user_attrs["key"] for _ in range(5)]
    assert sorted(taken) == sorted(settings)
    assert take(study) is None
    audit(study, place, Agenda(settings))
    assert take(study) is None
    assert revive(study) == 0  # this process, which took them, is alive


def test_a_setting_whose_worker_died_waits_again_and_is_counted_once(tmp_path):
    place = Place(str(tmp_path), "study")
    study = open_study(place, "maximize", {})
    settings = {"a": {"x": 1}, "b": {"x": 2}}
    audit(study, place, Agenda(settings))
    program = (
        "import os, signal\n"
        "from inface.lab.sweeps.study import Place, open_study\n"
        "from inface.lab.sweeps.trials import take\n"
        f"take(open_study(Place({str(tmp_path)!r}, 'study'), 'maximize', {{}}))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -signal.SIGKILL
    other = take(study)
    assert take(study) is None
    assert revive(study) == 1
    assert revive(study) == 0
    audit(study, place, Agenda(settings))
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
    audit(study, plan.tuning, plan.agenda)
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
    best = winner(plan, study).settings
    ranked = sorted(counted(study), key=lambda trial: -trial.value)
    assert best.lr == ranked[0].params["lr"]
    config = json.loads(Path(plan.out, "final", winner(plan, study).key, "0", "config.json").read_text())
    assert config["measured_on"] == "test"
    assert (config["lr"], config["radius"]) == (best.lr, list(best.radius))


def test_a_finished_sweep_does_nothing_again(swept):
    plan, study = swept
    before = len(study.trials)
    tune(plan)
    finish(plan, winner(plan, study))
    assert len(study.trials) == before
    assert _progress(study, plan.agenda, "settings", 2) == Progress(
        "settings", 4, 4, 0, 0, max(trial.value for trial in study.trials), 0.0
    )


def test_of_final_runs_no_best_is_shown(swept):
    plan, study = swept
    best = winner(plan, study)
    last = open_study(plan.final(best.key), plan.direction, final_identity(plan, best))
    assert _progress(last, plan.final_agenda, "final runs", 2) == Progress("final runs", 1, 1, 0, 0, None, 0.0)


def test_where_less_is_better_the_least_is_chosen_and_what_is_worse_is_stopped(tmp_path):
    base = Settings("synthetic", {"samples": 100, "edges": 3}, "sgd", epochs=12, batch_size=20, threads=1)
    grid = Grid({"lr": [*(1e-5 * number for number in range(1, 11)), 0.05, 1e9]})
    plan = plan_in(tmp_path, base=base, grid=grid, pruning=True)
    assert plan.direction == "minimize"
    tune(plan)
    study = study_of(plan)
    errors = {trial.params["lr"]: trial for trial in counted(study)}
    assert len(errors) == 12
    complete = [trial.value for trial in errors.values() if trial.state.name == "COMPLETE"]
    assert errors[0.05].value == min(complete)
    assert winner(plan, study).settings.lr == ranked(study)[0].parameters["lr"] == 0.05
    assert _progress(study, plan.agenda, "settings", 1).best == min(complete)
    assert [errors[lr].state.name for lr in grid.axes["lr"]] == ["PRUNED"] * 3 + ["COMPLETE"] * 8 + ["PRUNED"]
    assert "diverged" in errors[1e9].user_attrs


def test_bad_settings_are_stopped_early_and_what_diverges_is_said_so(tmp_path):
    grid = Grid({"lr": [0.5, *(1e-4 * number for number in range(1, 12)), 1e30]})
    plan = plan_in(tmp_path, base=replace(BASE, method="sgd", epochs=13), grid=grid, pruning=True)
    study = study_of(plan)
    audit(study, plan.tuning, plan.agenda)
    tune(plan)
    states = {trial.params["lr"]: trial for trial in counted(study)}
    assert states[0.5].state.name == "COMPLETE"
    reached = Counter(len(trial.intermediate_values) for trial in states.values())
    assert set(reached) == {0, 3, 12}  # diverged, stopped at the first rung, trained to the end
    assert reached[12] >= 8
    assert "diverged" in states[1e30].user_attrs
    assert winner(plan, study).settings.lr == 0.5


def test_the_first_rung_may_be_said_and_is_then_part_of_what_a_study_was_made_for(tmp_path):
    grid = Grid({"lr": [0.5, *(10.0**-power for power in range(4, 14))]})
    plan = plan_in(tmp_path, base=replace(BASE, method="sgd", epochs=13), grid=grid, pruning=True, first_rung=5)
    assert plan.identity() == {**replace(plan, first_rung=None).identity(), "first_rung": 5}
    assert "first_rung" not in replace(plan, first_rung=None).identity()
    study = study_of(plan)
    audit(study, plan.tuning, plan.agenda)
    tune(plan)
    reached = Counter(max(trial.intermediate_values) for trial in counted(study))
    assert set(reached) == {5, 12}  # stopped at the rung, or not at all: the last epoch is not reported


def test_settings_are_judged_with_the_edges_that_are_to_stay(tmp_path):
    plan = plan_in(tmp_path, theta=5)
    study = study_of(plan)
    audit(study, plan.tuning, plan.agenda)
    tune(plan)
    for trial in counted(study):
        assert trial.value == trial.user_attrs["summary"]["kept"]["5"]
        judged = [epoch["judged"] for epoch in Run(plan.folder(trial.user_attrs["key"])).epochs]
        assert list(trial.intermediate_values.values()) == judged[:-1]
        assert judged[-1] == trial.value


def test_a_setting_given_up_and_not_yet_waiting_again_is_not_lost(tmp_path):
    plan = plan_in(tmp_path)
    study = study_of(plan)
    audit(study, plan.tuning, plan.agenda)
    study.tell(take(study), state=optuna.trial.TrialState.FAIL)  # as a worker does that dies before the setting waits
    tune(plan)
    assert len(counted(study)) == 4


def test_a_study_may_be_in_a_database(tmp_path):
    plan = plan_in(tmp_path / "runs", storage=f"sqlite:///{tmp_path / 'study.db'}", grid=Grid({"lr": [0.1, 0.2]}))
    study = study_of(plan)
    audit(study, plan.tuning, plan.agenda)
    tune(plan)
    assert len(counted(study)) == 2


def test_a_study_is_made_once_also_where_a_kill_left_its_table_without_an_index(tmp_path):
    file = tmp_path / "study.db"
    plan = plan_in(tmp_path / "runs", storage=f"sqlite:///{file}", grid=Grid({"lr": [0.1]}))
    study_of(plan_in(tmp_path / "other", storage=f"sqlite:///{file}", grid=Grid({"lr": [0.1]}), study="another"))
    with closing(sqlite3.connect(file)) as database:
        database.execute("DROP INDEX ix_studies_study_name")
        database.commit()
    for _ in range(2):
        study_of(plan)
    with closing(sqlite3.connect(file)) as database:
        assert database.execute("SELECT count(*) FROM studies").fetchone() == (2,)


def test_a_database_that_cannot_be_opened_is_one_line(tmp_path):
    with pytest.raises(LabError, match="the study cannot be opened"):
        study_of(plan_in(tmp_path, storage=f"sqlite:///{tmp_path}/no/such/folder/x.db"))
    assert Place("postgresql://me:secret@host/db", "x").shown == "postgresql://me:***@host/db"


def test_a_database_without_its_driver_names_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pymysql", None)  # as if it were not installed
    with pytest.raises(LabError, match=r"^mysql\+pymysql:// needs a Python package that is not installed: pymysql$"):
        study_of(plan_in(tmp_path, storage="mysql+pymysql://me:secret@host/db"))


def test_a_search_tries_as_many_settings_as_asked_for(tmp_path):
    plan = plan_in(tmp_path, grid=None, search=4)
    tune(plan)
    tune(plan)
    study = study_of(plan)
    assert len(counted(study)) == len(study.trials) == 4
    assert set(study.trials[0].params) == {"lr", "constrained_lr", "radius 1", "radius 2", "1 - momentum"}
    assert 0 <= winner(plan, study).settings.momentum < 1


def test_a_search_can_be_made_longer_and_finishes_whoever_wins(tmp_path):
    plan = plan_in(tmp_path, grid=None, search=2)
    results = [sweep(replace(plan, search=count)) for count in (2, 4, 6)]
    assert [len(found["trials"]) for found in results] == [2, 4, 6]
    for found in results:
        best = max(trial["value"] for trial in found["trials"])
        assert (found["validation"], len(found["final"])) == (best, 1)


def test_winners_for_several_percentages_are_chosen_among_the_same_runs(tmp_path):
    plan = plan_in(tmp_path, also=(5, 1))
    found = sweep(plan)
    study = study_of(plan)
    assert len(study.trials) == len(plan.points())
    for end, theta in zip([found, *found["also"]], (100, 5, 1), strict=True):
        values = [trial.user_attrs["summary"]["kept"][str(theta)] for trial in counted(study)]
        assert (end["theta"], end["validation"]) == (theta, max(values))
        config = {**end["best"], "measured_on": "test"}
        key = winner(plan, study, theta).key
        assert json.loads(Path(plan.out, "final", key, "0", "config.json").read_text()).items() >= config.items()
        assert len(end["final"]) == 1


def test_settings_tried_with_several_seeds_are_judged_by_their_mean(tmp_path):
    grid = Grid({"lr": [0.02, 0.1, 1e30], "seed": [0, 3, 4]})
    plan = plan_in(tmp_path, base=replace(BASE, method="sgd"), grid=grid)
    found = sweep(plan)
    values = {(trial["settings"]["lr"], trial["settings"]["seed"]): trial["value"] for trial in found["trials"]}
    assert len(values) == 9
    means = {lr: statistics.fmean(values[lr, seed] for seed in (0, 3, 4)) for lr in (0.02, 0.1)}
    assert found["validation"] == pytest.approx(max(means.values()))
    assert found["best"]["lr"] == max(means, key=means.get)
    seeds = {json.loads(file.read_text())["seed"] for file in Path(plan.out, "trials").glob("*/config.json")}
    assert seeds == {0, 3, 4}
    finals = [file.name for file in Path(plan.out, "final").glob("*/*")]
    assert finals == ["0"]  # of one winner, whatever its seeds were


def test_a_setting_that_did_not_end_with_every_seed_is_not_chosen():
    study = optuna.create_study(direction="maximize")
    ended = {
        ("[1, 10]", 0): 98.0,
        ("[1, 10]", 1): None,
        ("[5, 10]", 0): 97.0,
        ("[5, 10]", 1): 91.0,
        ("[9, 10]", 0): 95.0,
        ("[9, 10]", 1): 94.0,
    }
    for number, ((radius, seed), value) in enumerate(ended.items()):
        study.enqueue_trial({"radius": radius, "seed": seed}, user_attrs={"key": str(number)})
        trial = study.ask()
        trial.suggest_categorical("radius", ["[1, 10]", "[5, 10]", "[9, 10]"])
        trial.suggest_categorical("seed", [0, 1])
        study.tell(trial, value, state=optuna.trial.TrialState.PRUNED if value is None else None)
    assert ranked(study) == [Judged({"radius": "[9, 10]"}, 94.5), Judged({"radius": "[5, 10]"}, 94.0)]


def test_seeds_are_not_tried_with_halving(tmp_path, capsys):
    grid = tmp_path / "grid.yaml"
    grid.write_text("lr: [0.1, 0.2]\nseed: [0, 1]\n")
    arguments = ["sweep", "digits", "--method", "sgd", "--epochs", "1", "--seeds", "0", f"--grid={grid}"]
    assert command([*arguments, f"--out={tmp_path / 'sweep'}"]) == 2
    assert "seed: a grid with several seeds needs --no-pruning" in capsys.readouterr().err
    assert not (tmp_path / "sweep").exists()
    assert command([*arguments, f"--out={tmp_path / 'sweep'}", "--no-pruning"]) == 0
    lines = capsys.readouterr().out.split("settings \n")[-1].splitlines()
    assert sum(line.strip().endswith(("lr 0.1", "lr 0.2")) for line in lines) == 2  # settings, not runs


def trial_of(key, state, **reported):
    values = {int(name.removeprefix("epoch")): value for name, value in reported.items()}
    return optuna.trial.create_trial(
        state=getattr(optuna.trial.TrialState, state),
        value=1.0 if state == "COMPLETE" else None,
        user_attrs={"key": key},
        intermediate_values=values,
    )


def test_a_setting_whose_worker_died_takes_one_place_among_the_best(tmp_path):
    study = open_study(Place(str(tmp_path), "study"), "maximize", {})
    for number in range(7):
        study.add_trial(trial_of(str(number), "PRUNED", epoch2=float(number)))
    study.add_trial(trial_of("best", "FAIL", epoch2=9.0))
    study.add_trial(trial_of("best", "COMPLETE", epoch2=9.0))
    study.add_trial(trial_of("none", "FAIL", epoch2=float("nan")))
    study.add_trial(trial_of("last", "FAIL", epoch2=-1.0))
    halving = Halving(2)
    assert halving.decide(study, "0", 2) == "continue"  # with the best one counted once, seven are better
    assert halving.decide(study, "last", 2) == "stop"
    assert halving.decide(study, "none", 2) == "stop"
    assert halving.decide(study, "last", 3) == "continue"  # no rung: they are at 2, 8, 32, ...
    study.add_trial(trial_of("last", "FAIL", epoch2=-1.0, epoch3=0.0))
    assert halving.decide(study, "last", 2) == "continue"  # it has passed before


def test_a_setting_of_a_grid_waits_until_all_have_reached_the_rung(tmp_path):
    study = open_study(Place(str(tmp_path), "study"), "maximize", {})
    keys = [str(number) for number in range(12)]
    for number, key in enumerate(keys[:-1]):
        study.add_trial(trial_of(key, "FAIL", epoch2=float(number)))
    halving = Halving(2, keys)
    assert {halving.decide(study, key, 2) for key in keys[:-1]} == {"wait"}
    study.add_trial(trial_of(keys[-1], "FAIL", epoch2=-1.0))
    assert [halving.decide(study, key, 2) for key in keys] == ["stop"] * 3 + ["continue"] * 8 + ["stop"]


def test_a_search_draws_the_same_settings_in_another_folder(tmp_path):
    """The first ten are random, the others are chosen by what came out of those before."""

    def drawn(folder, **changes):
        plan = plan_in(tmp_path / folder, grid=None, search=13, base=replace(BASE, method="sgd", epochs=1), **changes)
        tune(plan)
        return [trial.params for trial in study_of(plan).trials]

    first = drawn("first")
    assert len({str(point) for point in first}) == 13
    assert drawn("second") == first
    assert not any(point in first for point in drawn("third", study="another"))


def test_a_sweep_in_which_everything_diverges_says_so(tmp_path):
    plan = plan_in(tmp_path, base=replace(BASE, method="sgd"), grid=Grid({"lr": [1e30]}), seeds=0)
    tune(plan)
    with pytest.raises(LabError, match="no setting finished"):
        winner(plan, study_of(plan))


# ---------------------------------------------------------------------- processes that are killed


# Digits, in a sweep that begins no more settings once so many are done as a file says: none comes to its end before it is killed.
GATED = """
import time
from dataclasses import replace
from pathlib import Path
from inface.lab.experiments.builtin import digits

HERE = Path(__file__).parent


def model():
    while (HERE / "most").exists() and len(list(HERE.glob("sweep/trials/*/summary.json"))) >= int((HERE / "most").read_text()):
        time.sleep(0.01)
    return digits().model()


gated = replace(digits(), model=model)
"""


def started(folder, *more):
    file, grid = folder.parent / "own.py", folder.parent / "grid.yaml"
    file.write_text(GATED)
    grid.write_text("lr: [0.05, 0.1, 0.2, 0.5]\nradius: [1, 2, 5]\n")
    words = ["sweep", f"{file}:gated", "--out", folder, "--method", "sfw", "--epochs", "3", "--batch-size", "100"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", LISTENING, *words, "--grid", str(grid), "--seeds", "1", "--no-pruning", *more],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(condition, seconds=300):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_sweep_whose_processes_are_killed_again_and_again_loses_and_repeats_nothing(tmp_path):
    """By SIGKILL to everybody at once, then interrupted, then by two commands that share the study."""
    folder = tmp_path / "sweep"

    def begin(most, *more):
        (tmp_path / "most").write_text(str(most))
        process = started(folder, *more)
        wait_for(lambda: len(list(folder.glob("trials/*/summary.json"))) >= most)
        return process

    process = begin(3, "--jobs", "2")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    process = begin(6)
    os.killpg(process.pid, signal.SIGINT)
    _, told = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "the same command continues" in told
    assert "Traceback" not in told
    (tmp_path / "most").unlink()
    for process in [started(folder), started(folder)]:
        out, told = process.communicate(timeout=300)
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
    assert plan["study_name"] == "own.py:gated sfw"
    assert len(results["final"]) == 1


# ---------------------------------------------------------------------- the command line


def test_sweeping_from_the_command_line(tmp_path, capsys):
    storage = f"sqlite:///{tmp_path / 'studies.db'}"
    words = ["sweep", "digits", "--storage", storage, "--study", "mine", "--grid", "quick", "--epochs", "1"]
    words += ["--method", "gradual", "--keep", "0.5", "--momentum", "0.5"]
    first = [*words, "--out", str(tmp_path / "first")]
    assert command([*first, "--seeds", "2"]) == 0
    told = capsys.readouterr().out
    assert "settings 2/2" in told
    assert not any("final runs" in line and "best" in line for line in told.splitlines())
    assert "final run of seed 1, on the test data" in told
    found = json.loads((tmp_path / "first" / "results.json").read_text())
    assert (found["best"]["method"], found["best"]["keep"], found["best"]["momentum"]) == ("gradual", 0.5, 0.5)
    assert (len(found["trials"]), len(found["final"])) == (2, 2)

    assert command([*first, "--seeds", "1"]) == 0  # all of it is done
    told = capsys.readouterr().out
    assert "final runs 1/1" in told
    assert "final run of seed 1" not in told
    assert command([*first, "--seeds", "0"]) == 0
    told = capsys.readouterr().out
    assert "validation" in told
    assert "final" not in told
    assert json.loads((tmp_path / "first" / "results.json").read_text())["final"] == []

    refusals = {
        "belongs to another sweep (theta 100, wanted 5); choose another --out or --study": [*first, "--theta", "5"],
        "first: is the folder of the sweep mine; choose another --out for other": [*first, "--study", "other"],
    }
    for words, arguments in refusals.items():
        assert command(arguments) == 2
        assert words in capsys.readouterr().err
    optuna.create_study(storage=storage, study_name="other")  # a place for several
    last = f"mine final {key_of(found['trials'][0]['settings'])}"  # the only one of its grid
    assert {"mine", last, "other"} == set(optuna.get_all_study_names(storage))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--search 3 --momentum 0.9", "wanted --momentum or --search, which tries momentum; got both"),
        ("--search 3 --constrained-lr 2", "wanted --constrained-lr or --search, which tries constrained_lr; got both"),
        ("--search 3 --radius 1 2", "wanted --radius or --search, which tries radius 1; got both"),
        ("--lr 0.1", "wanted --lr or --grid paper, which tries smoothness; got both"),
        ("--grid quick --smoothness 4", "wanted --smoothness or --grid quick, which tries smoothness; got both"),
        ("--radius 1", "wanted --radius or --grid paper, which tries radius 1; got both"),
        ("--constrained-lr 1 2 3", "constrained-lr: wanted 1 or 2 numbers (for fc1.weight, fc2.weight), got 3"),
        ("--grid FILE --constrained-lr 1 2 3", "constrained-lr: wanted 1 or 2 numbers"),
        ("--grid FILE --epochs 5", "wanted --epochs or --grid FILE, which tries epochs; got both"),
        ("--grid FILE --keep 0.5 --method prune", "wanted --keep or --grid FILE, which tries keep; got both"),
        ("--method sgd --in-face away", "--method sgd does not use --in-face"),
        ("--method prune", "keep: the method prune needs it; wanted a number in (0, 1], such as 0.05 or 5%, got None"),
        ("--method proximal --search 3", "shrinkage: the method proximal needs it; wanted a number > 0"),
        ("--method proximal --grid OTHER", "shrinkage: the method proximal needs it; wanted a number > 0"),
        ("--method prun", "did you mean prune?"),
        ("--grid quick --search 3", "wanted --grid or --search, got both"),
        ("--grid papr", "--grid: there is no file papr; did you mean paper?"),
        ("--grid no.yaml", "--grid: there is no file no.yaml; wanted paper, quick, or a YAML file of lists"),
        ("--search 0", "--search: wanted a whole number >= 1, got 0"),
        ("--jobs 0", "--jobs: wanted a whole number >= 1, got 0"),
        ("--theta 3", "--theta: wanted one of"),
        ("--out .", "--out: wanted the folder of the sweep, got nothing"),
    ],
)
def test_what_would_be_ignored_or_makes_no_sense_is_refused_in_one_line(tmp_path, monkeypatch, capsys, words, told):
    monkeypatch.chdir(tmp_path)
    keep = "keep: [0.1, 0.2]" if "prune" in words else "batch_size: [50]"
    Path("FILE").write_text(f"{keep}\nepochs: [3]\n")
    Path("OTHER").write_text("lr: [0.1]\n")
    assert command(["sweep", "digits", "--out", "sweep", *words.split()]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
    assert not Path("sweep").exists()


@pytest.mark.parametrize("words", ["--out FILE", "--out FILE/below", "--out sweep --storage FILE", "--out /proc/foo"])
def test_a_place_that_cannot_be_a_folder_is_named_in_one_line(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    Path("FILE").touch()
    assert command(["sweep", "digits", *words.split()]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"inface: {words.split()[-1]}: cannot be used as a study folder: ")
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == [tmp_path / "FILE"]


def test_missing_data_is_named_once_and_nothing_is_begun(tmp_path, capfd):
    words = ["sweep", "mnist-mlp", "--data", str(tmp_path / "nowhere"), "--out", str(tmp_path / "sweep"), "--jobs", "2"]
    assert command(words) == 1
    missing = tmp_path / "nowhere" / "mnist" / "train-images-idx3-ubyte.gz"
    assert capfd.readouterr().err == f"inface: {missing}: is missing; inface data fetch mnist downloads it\n"
    assert list(tmp_path.iterdir()) == []


def test_an_experiment_without_validation_data_is_refused_and_nothing_is_begun(tmp_path, capfd):
    file = tmp_path / "own.py"
    file.write_text(
        "from dataclasses import replace\n"
        "from inface.lab.experiments.builtin import digits\n"
        "own = replace(digits(), data=lambda folder: replace(digits().data(folder), held_out=0))\n"
    )
    assert command(["sweep", f"{file}:own", "--out", str(tmp_path / "sweep")]) == 2
    assert "own.py:own: has no validation data" in capfd.readouterr().err
    assert not (tmp_path / "sweep").exists()


def test_a_sweep_that_is_done_needs_no_data(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(
        "from dataclasses import replace\n"
        "from inface.lab.experiments.builtin import digits\n"
        "def data(folder):\n"
        "    (folder / 'here').read_text()\n"
        "    return digits().data(folder)\n"
        "own = replace(digits(), data=data)\n"
    )
    (tmp_path / "here").touch()
    base = replace(BASE, experiment=f"{file}:own", epochs=1)
    plan = plan_in(tmp_path / "sweep", base=base, grid=Grid({"lr": [0.1]}), data=str(tmp_path))
    found = sweep(plan)
    (tmp_path / "here").unlink()
    assert sweep(plan)["final"] == found["final"]


def test_a_grid_may_list_what_the_method_needs(tmp_path):
    (tmp_path / "grid.yaml").write_text("lr: [0.1]\nshrinkage: [0.001, 0.0001]\n")
    base, grid = _tried("digits", {"method": "proximal"}, str(tmp_path / "grid.yaml"))
    assert [applied(base, point, 2).shrinkage for point in grid.points()] == [0.001, 0.0001]


def test_a_grid_may_list_parts_in_percent(tmp_path):
    (tmp_path / "grid.yaml").write_text("keep: [5%, 0.1]\n")
    _, grid = _tried("digits", {"method": "prune"}, str(tmp_path / "grid.yaml"))
    assert grid.axes == {"keep": [0.05, 0.1]}
    (tmp_path / "grid.yaml").write_text("lr: [5%]\n")
    with pytest.raises(ArgumentError, match="lr: wanted a number > 0, got 5%"):
        _tried("digits", {"method": "sgd"}, str(tmp_path / "grid.yaml"))


def test_a_sweep_to_a_density_tries_learning_rates(tmp_path, capsys):
    words = [
        "--density",
        "10%",
        "--grid",
        "quick",
        "--epochs",
        "1",
        "--batch-size",
        "300",
        "--theta",
        "10",
        "--seeds",
        "1",
        "--no-pruning",
    ]
    assert command(["sweep", "digits", "--out", str(tmp_path), *words]) == 0
    assert capsys.readouterr().err == ""
    results = json.loads((tmp_path / "results.json").read_text())
    assert sorted(one["settings"]["lr"] for one in results["ranking"]) == [0.05, 0.1, 0.2]
    (final,) = results["final"]
    assert final["method"] == "sparse"
    left = [(layer["inputs"] * layer["nodes"], layer["exact_percent"]) for layer in final["layers"].values()]
    assert sum(size * part for size, part in left) <= 10 * sum(size for size, _ in left)


def test_the_quick_grid_is_quick():
    assert len(quick_grid("sfw-if", 2).points()) <= 12
