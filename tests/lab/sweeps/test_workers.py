"""Workers of a sweep that are killed, suspended or doubled: no setting is lost, none is counted twice."""

import os
import signal
import socket
import time
import traceback
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import optuna
import pytest

from inface.lab import LabError, Run, Settings, train
from inface.lab.runs import checkpoint as plain
from inface.lab.runs.lock import locked
from inface.lab.sweeps import Grid, Plan, sweep, trials
from inface.lab.sweeps.runner import _progress, _spent
from inface.lab.sweeps.study import Place, open_study
from inface.lab.sweeps.trials import (
    Agenda,
    audit,
    counted,
    hand_back,
    held,
    key_in,
    next_trial,
    ranked,
    revive,
    take,
    tell,
)
from inface.lab.sweeps.worker import tune, winner

# Digits, in a process that stops itself at a gradient, or kills itself, if its surroundings say so.
EXPERIMENT = """
import os
import signal
from dataclasses import replace

import torch
from torch.nn.functional import cross_entropy

from inface.lab.experiments.builtin import digits

gradients = 0


def loss(outputs, targets):
    global gradients
    gradients += 1
    for name, number in (("STOP_AT", signal.SIGSTOP), ("KILL_AT", signal.SIGKILL)):
        if gradients == int(os.environ.get(name, 0)):
            os.kill(os.getpid(), number)
    if "COUNT_IN" in os.environ and torch.is_grad_enabled():
        with open(os.environ["COUNT_IN"], "a") as file:
            file.write(".")
    return cross_entropy(outputs, targets)


def model():
    if "KILL_AT" in os.environ and os.environ["KILL_AT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    return digits().model()


mortal = replace(digits(), loss=loss, model=model)
"""


@pytest.fixture
def plan(tmp_path):
    """Three settings of a network whose process can be stopped or killed at a gradient."""
    file = tmp_path / "own.py"
    file.write_text(EXPERIMENT)
    base = Settings(f"{file}:mortal", method="sgd", epochs=20, batch_size=300, threads=1)
    folder = str(tmp_path / "sweep")
    return Plan(base, folder, folder, "mortal", Grid({"lr": [0.1, 0.2, 0.3]}), seeds=0, pruning=False)


def study_of(plan):
    return open_study(plan.tuning, plan.direction, plan.identity())


def forked(work, host=None, dead=trials.DEAD, **environment):
    """A process that does this, on another machine as far as it knows; it waits for nothing for long.

    It takes others for dead as late as any worker, unless it is told otherwise: how soon they give a sign of life is
    left to a busy machine.
    """
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        if host is not None:
            socket.gethostname = lambda: host
        os.environ.update(environment)
        trials.DEAD, trials.AGAIN, trials.PATIENCE = dead, 0.5, 0.1
        work()
        code = 0
    except Exception:  # noqa: BLE001 - there is nobody to catch it
        traceback.print_exc()
    finally:
        os._exit(code)


def ended(*pids):
    """The exit codes of processes, negative for signals."""
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def wait_for(condition, seconds=300):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def taken_by(study, **changes):
    """A trial that a worker took and never ended."""
    trial = take(study)
    trial.set_user_attr("worker", {**trials._myself(), "started": "1", **changes})
    return trial


# ---------------------------------------------------------------------- who is dead


@pytest.mark.parametrize(
    ("worker", "dead"),
    [
        ({"host": "elsewhere", "seen": 0.0}, True),
        ({"host": "elsewhere", "seen": float("inf")}, False),
        ({"started": "1"}, True),  # another process has its number
        ({"pid": 2**22 + 1}, True),
        ({"pid": 2**22 + 1, "boot": "of a machine with the same name"}, False),
        ({"pid": 2**22 + 1, "namespace": "of a container with the same name"}, False),
        ({"boot": "of a machine with the same name", "seen": 0.0}, True),
        ({"started": trials._started(os.getpid()), "seen": 0}, False),  # suspended, on this machine
    ],
)
def test_a_worker_is_dead_that_gives_no_signs_of_life_elsewhere_or_is_no_process_here(tmp_path, worker, dead):
    place = Place(str(tmp_path), "study")
    study = open_study(place, "maximize", {})
    audit(study, place, Agenda({"a": {"x": 1}}))
    trial = taken_by(study, **worker)
    assert revive(study) == dead
    assert study.trials[trial.number].state.name == ("FAIL" if dead else "RUNNING")


@pytest.mark.parametrize("zone", ["west+5", "east-5"])
@pytest.mark.parametrize("storage", ["{}", "sqlite:///{}/study.db"])
def test_a_trial_of_nobody_is_given_up_after_a_moment_whatever_the_time_zone_it_was_taken_in(
    tmp_path, monkeypatch, storage, zone
):
    place = Place(storage.format(tmp_path), "study")

    def take_and_die():
        time.tzset()
        open_study(place, "maximize", {}).ask()

    assert ended(forked(take_and_die, TZ=zone)) == [0]
    study = open_study(place, "maximize", {})
    monkeypatch.setattr(trials, "DEAD", 10 * 3600.0)
    assert revive(study) == 0  # it may have been taken within the hour
    monkeypatch.setattr(trials, "DEAD", 0.0)
    assert revive(study) == 1


def test_a_setting_whose_worker_died_on_another_machine_is_tried_again(plan):
    study = study_of(plan)
    audit(study, plan.tuning, plan.agenda)
    lost = taken_by(study, host="elsewhere", seen=0.0)
    tune(plan)
    assert Counter(map(key_in, counted(study))) == Counter(list(plan.points()))
    assert study.trials[lost.number].state.name == "FAIL"
    assert len(study.trials) == 4


# ---------------------------------------------------------------------- workers that wake


def test_nothing_that_a_woken_worker_does_to_its_trial_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(trials, "ALIVE", 0.01)
    place = Place(str(tmp_path), "study")
    study = open_study(place, "maximize", {})
    audit(study, place, Agenda({"a": {"x": 1}}))
    trial = taken_by(study, host="elsewhere", seen=0.0)
    lost = optuna.exceptions.UpdateFinishedTrialError
    assert revive(open_study(place, "maximize", {})) == 1  # while it sleeps: awake, it would give a sign of life
    with held(trial) as check, pytest.raises(lost):
        wait_for(lambda: check() or False)  # its signs of life are refused
    for attempt in (
        lambda: tell(study, trial, 1.0),
        lambda: tell(study, trial, state=optuna.trial.TrialState.PRUNED),
        lambda: tell(study, trial, state=optuna.trial.TrialState.FAIL),
        lambda: hand_back(study, trial),
    ):
        with pytest.raises(lost):
            attempt()
    assert [each.state.name for each in study.trials] == ["FAIL"]


def test_a_worker_that_was_suspended_drops_its_trial_and_nobody_fails(plan):
    """One machine is suspended in a run; another takes it for dead, finds its folder occupied, and waits."""
    study = study_of(plan)
    audit(study, plan.tuning, plan.agenda)
    suspended = forked(lambda: tune(plan), "a", STOP_AT="20")
    assert os.WIFSTOPPED(os.waitpid(suspended, os.WUNTRACED)[1])
    other = forked(lambda: tune(plan), "b", dead=1.0)
    wait_for(lambda: any("handed back" in trial.user_attrs for trial in study.trials))
    assert len(counted(study)) == 2  # the others were done before it was tried again
    os.kill(suspended, signal.SIGCONT)
    assert ended(suspended, other) == [0, 0]
    assert Counter(map(key_in, counted(study))) == Counter(list(plan.points()))
    assert {trial.state.name for trial in study.trials} == {"COMPLETE", "FAIL"}
    assert sum(trial.state.name == "COMPLETE" for trial in study.trials) == 3


def test_a_setting_whose_folder_is_occupied_is_tried_when_it_is_free(plan):
    study = study_of(plan)
    with locked(plan.folder(min(plan.points()))):
        worker = forked(lambda: tune(plan))
        wait_for(lambda: any("handed back" in trial.user_attrs for trial in study.trials))
    assert ended(worker) == [0]
    assert Counter(map(key_in, counted(study))) == Counter(list(plan.points()))


def test_a_setting_that_was_handed_back_waits_again_after_a_while(tmp_path, monkeypatch):
    place = Place(str(tmp_path), "study")
    study = open_study(place, "maximize", {})
    agenda = Agenda({"a": {"x": 1}})
    audit(study, place, agenda)
    hand_back(study, take(study))
    monkeypatch.setattr(trials, "AGAIN", float("inf"))
    audit(study, place, agenda)
    assert take(study) is None
    monkeypatch.setattr(trials, "AGAIN", 0.0)
    audit(study, place, agenda)
    assert key_in(take(study)) == "a"


# ---------------------------------------------------------------------- workers that are killed


def test_a_setting_of_a_search_whose_worker_died_is_tried_again_in_its_folder(plan):
    plan = replace(plan, grid=None, search=3)
    assert ended(forked(lambda: tune(plan), KILL_AT="100")) == [-signal.SIGKILL]
    study = study_of(plan)
    (dead,) = [trial for trial in study.trials if trial.state.name == "RUNNING"]
    tune(plan)
    again = [trial for trial in counted(study) if key_in(trial) == key_in(dead)]
    assert [trial.params for trial in again] == [dead.params]
    assert len(counted(study)) == len(list((plan.folder("x").parent).iterdir())) == 3
    assert _progress(study, plan.agenda, "settings", 1).total == 3


def test_settings_are_drawn_no_more_often_than_asked_for_by_any_number_of_workers(plan, tmp_path):
    plan = replace(plan, grid=None, search=5, storage=f"sqlite:///{tmp_path / 'study.db'}")
    plan = replace(plan, base=replace(plan.base, epochs=1))
    study = study_of(plan)
    workers = [forked(lambda: tune(plan)) for _ in range(3)]
    assert ended(*workers) == [0, 0, 0]
    assert len(counted(study)) == len({str(trial.params) for trial in counted(study)}) == 5
    assert sum(trial.state.name != "FAIL" for trial in study.trials) == 5


def test_the_rungs_that_a_killed_worker_reached_are_those_of_the_next(plan):
    plan = replace(plan, base=replace(plan.base, epochs=60), grid=Grid({"lr": [0.1]}), pruning=True)
    assert ended(forked(lambda: tune(plan), KILL_AT="250")) == [-signal.SIGKILL]
    study = study_of(plan)
    dead = study.trials[0]
    assert dead.last_step >= 45  # the rungs are after 5 and 20 epochs
    written = (plan.folder(key_in(dead)) / "metrics.jsonl").read_text().count('"kind": "epoch"')
    assert 20 < written < 50
    # Others do better meanwhile: it would not stand the first two rungs again.
    state = optuna.trial.TrialState.PRUNED
    for number in range(9):
        values = {5: 100.0, 20: 100.0}
        better = optuna.trial.create_trial(state=state, intermediate_values=values, user_attrs={"key": str(number)})
        study.add_trial(better)
    tune(plan)
    (again,) = plan.agenda.ended(study)
    assert again.state.name == "COMPLETE"
    assert again.intermediate_values == again.intermediate_values | dead.intermediate_values


def test_halving_keeps_a_quarter_and_eight_to_the_end_with_any_number_of_workers_and_after_kills(plan, tmp_path):
    rates = [0.3 * 0.7**power for power in range(36)]
    plan = replace(plan, grid=Grid({"lr": rates}), pruning=True)
    found = []
    for name, kills, workers in (("alone", (), 1), ("three", (), 3), ("killed", (40, 250, 700), 2)):
        this = replace(plan, out=str(tmp_path / name), storage=str(tmp_path / name))
        for gradient in kills:
            assert ended(forked(lambda this=this: tune(this), KILL_AT=str(gradient))) == [-signal.SIGKILL]
        assert set(ended(*(forked(lambda this=this: tune(this)) for _ in range(workers)))) == {0}
        trials_ = counted(study_of(this))
        assert len(trials_) == 36
        reached = {trial.params["lr"]: max(trial.intermediate_values) for trial in trials_}
        assert min(reached.values()) == 3  # no setting is stopped earlier
        assert sum(epoch > 3 for epoch in reached.values()) >= 36 / 4
        assert sum(trial.state.name == "COMPLETE" for trial in trials_) >= 8
        assert sum(epoch > 3 for epoch in reached.values()) < 36 / 2  # and yet most are
        found.append((reached, {trial.params["lr"]: trial.value for trial in trials_}))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("method", ["sgd", "sfw-if"])
@pytest.mark.parametrize(
    "batch", [300, 500]
)  # 4 or 3 gradients an epoch: a rung may be between the halves of an iteration
def test_a_setting_that_waited_has_the_same_values_as_one_that_did_not(plan, tmp_path, method, batch, monkeypatch):
    """Its run is continued where it was: no gradient is taken twice, and the losses of an epoch are its own."""
    base = replace(plan.base, method=method, batch_size=batch)
    plan = replace(plan, base=base, grid=Grid({"lr": [0.1, 0.2]}), pruning=True)
    never = replace(plan, pruning=False, out=str(tmp_path / "never"), storage=str(tmp_path / "never"))
    taken = []
    for each in (plan, never):
        monkeypatch.setenv("COUNT_IN", f"{each.out}-gradients")
        tune(each)
        taken.append(Path(os.environ["COUNT_IN"]).read_text())
    assert taken[0] == taken[1]
    for key in plan.points():
        waited, other = (Run(each.folder(key)) for each in (plan, never))
        records = [[{**record, "seconds": 0} for record in run.records] for run in (waited, other)]
        assert records[0] == records[1]
    assert sum("waits at" in trial.user_attrs for trial in study_of(plan).trials) >= 2
    assert not list(tmp_path.rglob("checkpoint.safetensors"))


def cut_off(plan):
    """The run of a setting whose worker died after five epochs, with a checkpoint."""
    key, point = min(plan.points().items())

    def leave(record):
        if record["kind"] == "epoch" and record["epoch"] == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(plan.settings(point), plan.folder(key), watch=leave, checkpoint_seconds=0)
    return Run(plan.folder(key))


@pytest.mark.parametrize(
    "damage",
    [
        lambda run: run.metrics_file.write_bytes(run.metrics_file.read_bytes()[:300]),
        lambda run: run.metrics_file.write_bytes(b"\0" * 20 + run.metrics_file.read_bytes()[20:]),
        lambda run: run.checkpoint_file.write_bytes(run.checkpoint_file.read_bytes()[:300]),
    ],
    ids=["few metrics", "metrics", "checkpoint"],
)
def test_a_run_that_cannot_be_continued_is_begun_again(plan, damage):
    run = cut_off(plan)
    damage(run)
    tune(plan)
    study = study_of(plan)
    assert Counter(map(key_in, counted(study))) == Counter(list(plan.points()))
    again = next(trial for trial in counted(study) if plan.folder(key_in(trial)) == run.path)
    assert [epoch["epoch"] for epoch in run.epochs] == list(range(1, 21))
    assert again.intermediate_values == {epoch["epoch"]: epoch["metric"] for epoch in run.epochs[:-1]}


def test_a_run_on_other_data_ends_the_sweep(plan):
    run = cut_off(plan)
    plain.save(run.checkpoint_file, plain.load(run.checkpoint_file) | {"data": 0})
    with pytest.raises(LabError, match="was trained on other data"):
        tune(plan)


def test_a_setting_that_kills_its_workers_ends_the_sweep_and_is_named(plan, monkeypatch, capfd):
    monkeypatch.setenv("KILL_AT", "0")
    plan = replace(plan, grid=Grid({"lr": [0.25], "momentum": [0.5]}))
    with pytest.raises(LabError) as caught:
        sweep(plan)
    told = str(caught.value)
    assert "a worker was killed by SIGKILL at lr 0.25, momentum 0.5, 3 times without progress" in told
    assert "\n" not in told
    line = "inface: a worker was killed by SIGKILL at lr 0.25, momentum 0.5; another one continues\n"
    assert capfd.readouterr().err == 2 * line
    monkeypatch.delenv("KILL_AT")
    tune(plan)  # it goes on
    assert len(counted(study_of(plan))) == 1


# ---------------------------------------------------------------------- settings that wait twice


def test_a_grid_that_two_machines_let_wait_is_tried_and_counted_once(plan, tmp_path):
    plan = replace(plan, storage=f"sqlite:///{tmp_path / 'study.db'}")
    study = study_of(plan)
    for _ in range(2):
        for key, parameters in plan.agenda.settings.items():
            study.enqueue_trial(parameters, user_attrs={"key": key})
    seen = []
    workers = [forked(lambda: tune(plan)) for _ in range(2)]
    wait_for(lambda: seen.append(_progress(study, plan.agenda, "settings", 2)) or seen[-1].done == seen[-1].total)
    assert ended(*workers) == [0, 0]
    assert all(state.total == 3 and state.done + state.running <= 3 for state in seen)
    assert Counter(map(key_in, counted(study))) == Counter(list(plan.points()))
    assert Counter(trial.state.name for trial in study.trials) == {"COMPLETE": 3, "FAIL": 3}
    assert winner(plan, study).settings.lr in (0.1, 0.2, 0.3)


def test_machines_may_begin_a_study_in_a_database_at_the_same_moment(plan, tmp_path):
    plan = replace(plan, storage=f"sqlite:///{tmp_path / 'study.db'}", base=replace(plan.base, epochs=1))

    def begin():
        audit(study_of(plan), plan.tuning, plan.agenda)
        tune(plan)

    assert ended(*[forked(begin) for _ in range(3)]) == [0, 0, 0]
    assert Counter(map(key_in, counted(study_of(plan)))) == Counter(list(plan.points()))


def test_a_trial_of_nothing_is_given_up(tmp_path):
    place = Place(str(tmp_path), "study")
    study = open_study(place, "maximize", {})
    study.enqueue_trial({"x": 1})
    assert take(study) is None
    assert next_trial(study, place, Agenda({})) is None
    assert [trial.state.name for trial in study.trials] == ["FAIL"]


def test_of_equal_settings_the_winner_does_not_depend_on_who_came_first():
    found = []
    for rates in ([0.1, 0.2], [0.2, 0.1]):
        study = optuna.create_study(direction="maximize")
        for rate in rates:
            distribution = {"lr": optuna.distributions.CategoricalDistribution([0.1, 0.2])}
            study.add_trial(
                optuna.create_trial(
                    params={"lr": rate}, distributions=distribution, value=98.1, user_attrs={"key": f"{rate}"}
                )
            )
        found.append(ranked(study)[0].parameters)
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("state", "marks", "hours"), [("FAIL", {}, 0), ("FAIL", {"waits at": 3}, 10), ("PRUNED", {}, 10)]
)
def test_the_time_until_a_death_is_found_out_is_no_training(state, marks, hours):
    trial = optuna.create_trial(state=optuna.trial.TrialState[state], user_attrs=marks)
    trial.datetime_start = trial.datetime_complete - timedelta(hours=10)
    assert _spent(trial) == 3600 * hours
