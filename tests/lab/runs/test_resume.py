"""Runs in processes of their own, killed at any moment and continued: they end with the same weights."""

import itertools
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from inface.cli import main
from inface.cli.app import run as run_command
from inface.lab import ArgumentError, LabError, Run, Settings, settings_for, train
from inface.lab.errors import Broken
from inface.lab.runs import checkpoint as plain

IF = Settings(
    "digits",
    method="sfw-if",
    lr=0.1,
    constrained_lr=1.0,
    radius=(1.0, 5.0),
    momentum=0.9,
    schedule="cosine",
    epochs=12,
    batch_size=150,  # 10 gradients an epoch
    threads=1,
)
SGD = replace(IF, method="sgd", constrained_lr=None, radius=None, lr=0.05)
SPARSE = settings_for("digits", density=0.05, epochs=12, batch_size=150, threads=1)
EVERY = ("--checkpoint-seconds", "0")


def arguments(settings, place, *more):
    """The command line of a run."""
    given = {
        "method": settings.method,
        "lr": settings.lr,
        "constrained-lr": settings.constrained_lr,
        "momentum": settings.momentum,
        "schedule": settings.schedule,
        "epochs": settings.epochs,
        "batch-size": settings.batch_size,
        "threads": settings.threads,
        "density": settings.density,
    }
    options = [text for name, value in given.items() if value is not None for text in (f"--{name}", str(value))]
    radii = ["--radius", *map(str, settings.radius)] if settings.radius else []
    return ["train", settings.experiment, "--out", str(place), *radii, *options, *more]


def struck(words, *, gradient=0, write=0, number=signal.SIGKILL):
    """``inface`` in a process that gives itself a signal after a gradient, or before it opens or renames a file of its run.

    A process that is watched and killed from outside may have come to its end before its watcher wakes.
    """
    steps, writes, place = itertools.count(1), itertools.count(1), words[words.index("--out") + 1]

    def strike(event, details):
        ours = event in ("open", "os.rename") and str(details[0]).startswith(f"{place}{os.sep}")
        if ours and not str(details[0]).endswith(".lock") and next(writes) == write:
            os.kill(os.getpid(), number)

    sys.addaudithook(strike)
    register_optimizer_step_post_hook(lambda *_: os.kill(os.getpid(), number) if next(steps) == gradient else None)
    main(words)


@pytest.fixture(scope="module")
def start():
    """Starts ``inface`` in a process; torch is imported once, in the process that they are all forked from."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["inface.lab.runs.training", "inface.cli.app", "sklearn.datasets", "torch._dynamo"])
    children = []

    def begin(*words, target=struck, **moment):
        children.append(context.Process(target=target, args=(list(words),), kwargs=moment, daemon=True))
        children[-1].start()
        return children[-1]

    yield begin
    for child in children:
        if child.is_alive():
            child.kill()
        child.join()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The runs that nobody interrupts."""
    place = tmp_path_factory.mktemp("whole")
    return {settings.method: train(settings, place / settings.method) for settings in (IF, SGD, SPARSE)}


def lines(place):
    file = place / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.is_file() else 0


def was_killed(process):
    process.join()
    return process.exitcode == -signal.SIGKILL


def timeless(records):
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


def assert_same(run, expected):
    assert run.finished
    assert run.model_file.read_bytes() == expected.model_file.read_bytes()
    assert timeless(run.records) == timeless(expected.records)
    assert timeless([run.summary]) == timeless([expected.summary])
    assert not run.checkpoint_file.exists()


@pytest.fixture
def stopped(tmp_path):
    """A run that was interrupted after 5 epochs, with a checkpoint."""

    def leave(record):
        if record["kind"] == "epoch" and record["epoch"] == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(IF, tmp_path / "run", watch=leave, checkpoint_seconds=0)
    run = Run(tmp_path / "run")
    assert run.checkpoint_file.is_file()
    assert not run.finished
    return run


# ---------------------------------------------------------------------- killed and continued


@pytest.mark.parametrize("settings", [IF, SGD, SPARSE], ids=["sfw-if", "sgd", "sparse"])
def test_a_run_killed_again_and_again_ends_with_the_same_weights(tmp_path, start, whole, settings):
    """Of 120 gradients; each time goes on where the one before it had its last checkpoint."""
    place = tmp_path / "run"
    moments = [{"write": n} for n in (1, 2, 3, 5, 6, 7, 8, 9, 10)] + [{"gradient": n} for n in (1, 2, 3, 40, 41)]
    for moment in [*moments, {"write": 40}]:
        assert was_killed(start(*arguments(settings, place, "--resume", *EVERY), **moment))
        assert not (place / "summary.json").exists()
    process = start(*arguments(settings, place, "--resume", *EVERY))
    process.join()
    assert process.exitcode == 0
    assert_same(Run(place), whole[settings.method])


def test_the_command_itself_killed_and_continued_by_its_folder_alone(tmp_path, whole):
    place = tmp_path / "run"
    killed = f"from test_resume import struck; struck({arguments(IF, place, *EVERY)}, gradient=40)"
    paths = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])}
    process = subprocess.run(
        [sys.executable, "-c", killed], check=False, capture_output=True, env={**os.environ, **paths}
    )
    assert process.returncode == -signal.SIGKILL
    assert not Run(place).finished
    command = [sys.executable, "-m", "inface.cli", "train", "--out", str(place), "--resume"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "continued after gradient 39 of 120" in done.stdout
    assert_same(Run(place), whole["sfw-if"])


def test_a_run_killed_before_its_first_checkpoint_begins_again(tmp_path, start, whole):
    place = tmp_path / "run"
    assert was_killed(start(*arguments(IF, place, "--checkpoint-seconds", "1000"), gradient=118))
    assert lines(place) > 0  # what was written without a checkpoint must not come twice
    assert not Run(place).checkpoint_file.exists()
    assert_same(train(IF, place, resume=True), whole["sfw-if"])


def test_a_run_killed_after_its_weights_and_before_its_summary_is_finished(tmp_path, stopped, whole):
    stopped.model_file.write_bytes(b"half of the wei")
    assert_same(train(IF, stopped.path, resume=True), whole["sfw-if"])


def test_several_in_face_steps_and_their_gap_are_continued(tmp_path):
    settings = replace(IF, in_face="projected", in_face_steps=3, epochs=4)
    expected = train(settings, tmp_path / "expected")

    def leave(record):
        if record["kind"] == "step" and record["step"] == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(settings, tmp_path / "run", watch=leave, checkpoint_seconds=0)
    assert_same(train(settings, tmp_path / "run", resume=True), expected)


def test_a_line_cut_off_by_a_kill_is_written_again(stopped, whole):
    with stopped.metrics_file.open("ab") as file:
        file.write(b'{"kind": "step", "st')
    assert_same(train(IF, stopped.path, resume=True), whole["sfw-if"])


def test_a_run_may_be_resumed_where_there_is_none(tmp_path, whole):
    assert_same(train(IF, tmp_path / "run", resume=True), whole["sfw-if"])


def die_before_the_rename(words):
    """A command that is killed when its first checkpoint is about to take its place."""
    rename = os.replace

    def killed(old, new):
        if os.fspath(new).endswith("checkpoint.safetensors"):
            os.kill(os.getpid(), signal.SIGKILL)
        rename(old, new)

    os.replace = killed
    main(words)


def die_in_the_middle(words):
    """A command that the system ends in the middle of writing a file of more than 60,000 bytes."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
    main(words)


def visible(place):
    return {file.name for file in place.iterdir()} - {".lock"}


@pytest.mark.parametrize("way_on", ["--resume", "--overwrite"])
@pytest.mark.parametrize(
    ("death", "code"), [(die_before_the_rename, signal.SIGKILL), (die_in_the_middle, signal.SIGXFSZ)]
)
def test_what_a_killed_checkpoint_leaves_is_removed(tmp_path, start, death, code, way_on):
    place, settings = tmp_path / "run", replace(SGD, epochs=2)
    process = start(*arguments(settings, place, *EVERY), target=death)
    process.join()
    assert process.exitcode == -code
    (left,) = visible(place) - {"config.json", "metrics.jsonl"}
    assert left.startswith(".checkpoint.safetensors.")
    assert list((place / left).iterdir())
    whole = {"config.json", "metrics.jsonl", "model.safetensors", "summary.json"}
    assert run_command(arguments(settings, place, way_on)) == 0
    assert visible(place) == whole


@pytest.mark.parametrize("way_on", [{"resume": True}, {"overwrite": True}])
def test_what_safetensors_itself_left_is_removed_and_nothing_else_of_such_a_name(stopped, way_on):
    header = (64).to_bytes(8, "little") + b'{"a":'
    theirs = {".tmpAb3dE9": header, ".tmpzzzzzz": b"", ".tmp000000": bytes(500)}
    others = {".tmpnotes1": b"my notes", ".tmpAb3dE": header, ".tmpAb3dE9x": header, "tmpAb3dE9": header}
    for name, contents in {**theirs, **others}.items():
        (stopped.path / name).write_bytes(contents)
    (stopped.path / ".tmplinked").symlink_to("tmpAb3dE9")
    train(replace(IF, epochs=12), stopped.path, **way_on)
    files = {"config.json", "metrics.jsonl", "model.safetensors", "summary.json"}
    assert visible(stopped.path) == {*files, *others, ".tmplinked"}


def test_nothing_is_removed_from_a_folder_that_is_not_a_runs(tmp_path):
    (tmp_path / ".tmpAb3dE9").write_bytes(b"")
    (tmp_path / "config.json").write_text('{"name": "something else"}')
    with pytest.raises(ArgumentError, match="not a run folder"):
        train(SGD, tmp_path, overwrite=True)
    assert (tmp_path / ".tmpAb3dE9").exists()


# ---------------------------------------------------------------------- one process to a folder


def test_a_second_process_is_refused_while_the_first_one_trains(tmp_path, start, whole, capsys):
    place = tmp_path / "run"
    process = start(*arguments(IF, place, *EVERY), gradient=20, number=signal.SIGSTOP)
    stat = Path(f"/proc/{process.pid}/stat")
    while (
        stat.read_text().rpartition(")")[2].split()[0] != "T"
    ):  # it is there, and cannot finish before it was looked at
        time.sleep(0.01)
    for more in ((), ("--resume",), ("--overwrite",)):
        assert run_command(arguments(IF, place, *more)) == 2
        assert capsys.readouterr().err == f"inface: {place}: is locked: another process is training there\n"
    process.kill()
    assert was_killed(process)
    assert_same(train(IF, place, resume=True), whole["sfw-if"])


# ---------------------------------------------------------------------- damaged checkpoints


def damaged_in_its_data(file):
    state = plain.load(file)
    del state["step"]
    plain.save(file, state)


def of_another_network(file):
    state = plain.load(file)
    state["model"]["fc1.weight"] = torch.zeros(2, 2)
    plain.save(file, state)


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.write_bytes(file.read_bytes()[:-1]),
        lambda file: file.write_bytes(file.read_bytes()[:1000]),
        lambda file: file.write_bytes(file.read_bytes()[:4]),
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(b"garbage" * 1000),
        damaged_in_its_data,
        of_another_network,
    ],
    ids=["last byte", "most", "nearly all", "empty", "garbage", "no step", "other network"],
)
def test_a_damaged_checkpoint_is_named_and_nothing_is_lost(stopped, damage):
    damage(stopped.checkpoint_file)
    found = stopped.checkpoint_file.read_bytes()
    records = stopped.metrics_file.read_bytes()
    with pytest.raises(LabError) as error:
        train(IF, stopped.path, resume=True)
    assert str(error.value).startswith(f"{stopped.checkpoint_file}: ")
    assert error.value.exit_code == 1
    assert len(str(error.value).splitlines()) == 1
    assert stopped.checkpoint_file.read_bytes() == found
    assert stopped.metrics_file.read_bytes() == records


def test_records_that_are_fewer_than_the_checkpoint_continues_are_named_and_nothing_is_lost(stopped):
    """As when the power is lost and the last of them had not reached the disk."""
    records, found = stopped.metrics_file.read_bytes(), stopped.checkpoint_file.read_bytes()
    for left in (records[:200], None):
        stopped.metrics_file.unlink() if left is None else stopped.metrics_file.write_bytes(left)
        told = (
            f"{stopped.metrics_file}: has {len(left or '')} bytes, wanted at least [0-9]+: .*--overwrite starts again"
        )
        with pytest.raises(Broken, match=told):
            train(IF, stopped.path, resume=True)
        assert stopped.checkpoint_file.read_bytes() == found


def test_records_that_are_damaged_are_named_with_the_line_and_those_after_the_checkpoint_are_not_looked_at(stopped):
    records = stopped.metrics_file.read_bytes()
    lines = records.splitlines(keepends=True)
    stopped.metrics_file.write_bytes(b"".join([lines[0], b"\0" * len(lines[1]), *lines[2:]]))
    with pytest.raises(Broken, match=f"{stopped.metrics_file}: line 2 is not JSON: .*--overwrite starts again"):
        train(IF, stopped.path, resume=True)
    stopped.metrics_file.write_bytes(records + b"\0" * 100 + b"\n")
    assert train(IF, stopped.path, resume=True).finished


def test_records_are_on_the_disk_before_the_checkpoint_that_continues_them(tmp_path, monkeypatch):
    synced, fsync = [], os.fsync

    def spy(handle):
        name = os.path.basename(os.readlink(f"/proc/self/fd/{handle}"))  # noqa: PTH115, PTH119 - a name to look at
        synced.append((name.lstrip(".").partition(".")[0], os.fstat(handle).st_size))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", spy)
    run = train(replace(IF, epochs=2), tmp_path / "run", checkpoint_seconds=0)
    names = [name for name, _ in synced if name != "run"]  # the folder, after each file
    assert names == ["config", *["metrics", "checkpoint"] * 19, "metrics", "model", "summary"]
    assert synced[-5] == ("metrics", run.metrics_file.stat().st_size)


def test_the_command_line_ends_with_code_1_on_a_damaged_checkpoint_and_overwrite_helps(stopped, whole, capsys):
    stopped.checkpoint_file.write_bytes(b"garbage")
    assert run_command(["train", "--out", str(stopped.path), "--resume"]) == 1
    message = capsys.readouterr().err
    assert message.startswith(f"inface: {stopped.checkpoint_file}: ")
    assert len(message.splitlines()) == 1
    assert run_command(arguments(IF, stopped.path, "--overwrite")) == 0
    assert_same(Run(stopped.path), whole["sfw-if"])


# ---------------------------------------------------------------------- which run it is


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"lr": 0.2}, "lr 0.1, wanted 0.2"),
        ({"epochs": 13}, "epochs 12, wanted 13"),
        ({"seed": 1}, "seed 0, wanted 1"),
        ({"method": "sfw"}, "method sfw-if, wanted sfw"),
        ({"radius": (1.0, 6.0)}, "radius [1.0, 5.0], wanted [1.0, 6.0]"),
        ({"threads": 2}, "threads 1, wanted 2"),
        ({"measured_on": "validation"}, "measured_on test, wanted validation"),
    ],
    ids=str,
)
def test_a_run_is_not_continued_with_other_settings(stopped, changes, setting):
    before = stopped.checkpoint_file.read_bytes()
    with pytest.raises(ArgumentError) as error:
        train(replace(IF, **changes), stopped.path, resume=True)
    assert str(error.value) == f"{stopped.path}: was started with {setting}; --overwrite starts again"
    assert stopped.checkpoint_file.read_bytes() == before


def test_the_command_line_ends_with_code_2_on_other_settings(stopped, capsys):
    assert run_command(["train", "--out", str(stopped.path), "--resume", "--lr", "0.3"]) == 2
    assert "was started with lr 0.1, wanted 0.3" in capsys.readouterr().err


def test_threads_that_are_left_open_are_those_of_the_run(stopped, whole):
    assert_same(train(replace(IF, threads=None), stopped.path, resume=True), whole["sfw-if"])


def test_a_file_that_has_changed_since_is_another_experiment(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("from inface.lab.experiments.builtin import digits\nmine = digits()\n")
    settings = replace(IF, experiment=f"{file}:mine", epochs=1)

    def leave(record):
        if record["kind"] == "step":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(settings, tmp_path / "run", watch=leave)
    file.write_text("from inface.lab.experiments.builtin import digits\nmine = digits()  # otherwise\n")
    with pytest.raises(ArgumentError, match=f"{file}: has changed since .*run was started; --overwrite starts again, "):
        train(settings, tmp_path / "run", resume=True)


def test_resuming_a_finished_run_does_nothing(tmp_path):
    settings = replace(IF, epochs=1)
    run = train(settings, tmp_path / "run")
    before = {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in run.path.glob("[!.]*")}
    seen = []
    again = train(settings, run.path, resume=True, watch=seen.append)
    assert seen == []
    assert before == {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in run.path.glob("[!.]*")}
    assert again.summary == run.summary


def test_a_run_is_only_thrown_away_when_asked(tmp_path, stopped, capsys):
    settings = replace(IF, epochs=1)
    run = train(settings, tmp_path / "finished")
    for place in (run.path, stopped.path):
        files = {file.name: file.read_bytes() for file in place.glob("[!.]*")}
        weights = Run(place).weights() if Run(place).finished else {}
        assert run_command(arguments(settings, place)) == 2
        expected = f"inface: {place}: already holds a run; --resume continues it, --overwrite deletes it\n"
        assert capsys.readouterr().err == expected
        assert files == {file.name: file.read_bytes() for file in place.glob("[!.]*")}
        other = train(replace(settings, seed=1), place, overwrite=True)
        assert other.config["seed"] == 1
        assert len(other.epochs) == 1
        assert not other.checkpoint_file.exists()
        assert not any(torch.equal(w, other.weights()[name]) for name, w in weights.items())
