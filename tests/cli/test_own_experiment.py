"""A user's own network and data from a file, through every command."""

import hashlib
import importlib.util
import json
import os
import py_compile
import signal
import subprocess
import sys
from typing import NamedTuple

import pytest

from inface.cli import main
from inface.lab import ArgumentError
from inface.lab.experiments.sources import load

MINE = """
import os
import signal

import torch
from beside import FEATURES
from torch import nn

from inface.lab import Data, Experiment, Metric, Split
from inface.sets import GroupL1Ball, L1Ball


def data(folder):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(240, FEATURES, generator=generator)
    y = x[:, :1] - 2 * x[:, 1:2]
    return Data(train=Split(x[:200], y[:200]), test=Split(x[200:], y[200:]), held_out=20)


class Network(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(FEATURES, width)
        self.outer = nn.Linear(width, 1)

    def forward(self, x):
        return self.outer(self.inner(x).tanh())


calls = 0


def loss(outputs, targets):
    global calls
    calls += 1
    if str(calls) == os.environ.get("KILLED_AT"):
        os.kill(os.getpid(), signal.SIGKILL)
    return nn.functional.mse_loss(outputs, targets)


def within_one(outputs, targets):
    return ((outputs - targets).abs() < 1).sum()


def build(width):
    return Experiment(
        data=data,
        model=lambda: Network(width),
        sets={"inner.weight": GroupL1Ball(4.0, groups="input"), "outer.weight": L1Ball(5.0)},
        loss=loss,
        metric=Metric("within one", within_one, unit="%", scale=100.0),
        defaults={"epochs": 4, "batch_size": 20, "lr": 0.05},
    )


mine = build(8)


def wide(width: int = 16):
    return build(width)


def needy(width: int):
    return build(width)


def wrong():
    return "an experiment"


number = 5
"""


class Result(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def inface(capsys, monkeypatch):
    """Runs a command in this process."""
    monkeypatch.setenv("COLUMNS", "250")

    def call(*arguments):
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        return Result(caught.value.code or 0, *capsys.readouterr())

    return call


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A user's folder with the file, and another file that it imports."""
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "work"
    place.mkdir()
    (place / "beside.py").write_text("FEATURES = 12\n")
    (place / "my_file.py").write_text(MINE)
    yield place / "my_file.py"
    sys.modules.pop("beside", None)


def refused(result, code, *wanted):
    assert result.code == code, result
    assert result.err.count("\n") == 1
    for text in wanted:
        assert str(text) in result.err


def read(run, name="summary.json"):
    return json.loads((run / name).read_text())


def process(*arguments, cwd, **environment):
    return subprocess.run(
        [sys.executable, "-m", "inface.cli", *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_an_experiment_of_ones_own_is_trained_measured_and_reported_from_anywhere(inface, file, tmp_path, monkeypatch):
    monkeypatch.chdir(file.parent)
    run = tmp_path / "run"
    trained = inface("train", "my_file.py:mine", "--out", run)
    assert (trained.code, trained.err) == (0, "")
    assert "within one" in trained.out
    assert "inner.weight" in trained.out
    config, summary = read(run, "config.json"), read(run)
    assert config["experiment"] == f"{file.resolve()}:mine"
    assert (config["epochs"], config["batch_size"], config["lr"], config["radius"]) == (4, 20, 0.05, [4.0, 5.0])
    assert list(summary["layers"]) == ["inner.weight", "outer.weight"]
    assert summary["metric"] == {"name": "within one", "unit": "%", "better": "higher"}
    assert 0 <= summary["kept"]["100"] <= 100
    assert summary["steps"] == 40

    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    measured = json.loads(inface("evaluate", run, "--experiment", f"{file}:mine", "--json").out)
    assert measured["kept"] == summary["kept"]
    assert measured["layers"] == summary["layers"]
    report = inface("report", run)
    assert (report.code, report.err) == (0, "")
    page = (tmp_path / "elsewhere" / "report.html").read_text()
    assert "within one" in page
    assert "inner.weight" in page
    refused(inface("train", "my_file.py:mine", "--out", tmp_path / "other"), 2, "my_file.py: there is no such file")


def test_settings_of_the_command_line_come_before_the_files(inface, file, tmp_path):
    run = tmp_path / "run"
    inface(
        "train", f"{file}:mine", "--out", run, "--epochs", "1", "--radius", "1", "2", "--validate", "--method", "sfw"
    )
    config = read(run, "config.json")
    assert (config["epochs"], config["batch_size"], config["radius"]) == (1, 20, [1.0, 2.0])
    assert read(run)["steps"] == 9  # of 180 samples: 20 are held out


def test_a_function_takes_options(inface, file, tmp_path):
    run = tmp_path / "run"
    assert inface("train", f"{file}:wide", "--out", run, "--epochs", "1", "-o", "width=4").code == 0
    assert read(run, "config.json")["options"] == {"width": 4}
    assert read(run)["layers"]["inner.weight"]["nodes"] == 4
    assert inface("evaluate", run).code == 0


@pytest.mark.parametrize(
    ("name", "options", "wanted"),
    [
        ("mien", [], "did you mean mine?"),
        ("frobnicate", [], "it has mine"),
        ("number", [], "has no experiment number"),
        ("Network", [], "has no experiment Network"),
        ("wrong", [], "wanted an Experiment, got str"),
        ("needy", [], "option width must be given"),
        ("wide", ["-o", "widht=4"], "did you mean width?"),
        ("wide", ["-o", "width=broad"], "wanted a whole number, got broad"),
        ("mine", ["-o", "width=4"], "has no options"),
        ("mine", ["--radius", "1", "2", "3"], "wanted 1 or 2 numbers (for inner.weight, outer.weight), got 3"),
    ],
)
def test_what_the_file_does_not_have_is_one_line(inface, file, tmp_path, name, options, wanted):
    refused(inface("train", f"{file}:{name}", "--out", tmp_path / "run", *options), 2, wanted)


def test_a_killed_run_is_continued_from_another_folder_to_the_same_weights(inface, file, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    inface("train", f"{file}:mine", "--out", whole)
    dead = process(
        "train", "my_file.py:mine", "--out", killed, "--checkpoint-seconds", "0", "--threads", "1",
        cwd=file.parent, KILLED_AT="37",
    )  # fmt: skip
    assert dead.returncode == -signal.SIGKILL, dead.stderr
    assert not (killed / "summary.json").exists()
    refused(inface("evaluate", killed), 2, killed, "is not finished")
    result = inface("train", "--out", killed, "--resume")
    assert result.code == 0
    assert "continued after gradient" in result.out
    assert (killed / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    same = {"kept", "layers", "network", "loss", "train_loss", "gap", "metric", "steps"}
    assert {name: read(killed)[name] for name in same} == {name: read(whole)[name] for name in same}


def test_a_file_that_changed_since_the_run_began_is_refused(inface, file, tmp_path):
    run = tmp_path / "run"
    inface("train", f"{file}:mine", "--out", run, "--epochs", "1")
    assert inface("evaluate", run).code == 0
    file.write_text(MINE + '\nopen("imported", "w").close()\n')
    for words in (["train", "--out", run, "--resume"], ["evaluate", run], ["export", run]):
        refused(inface(*words), 2, file, "has changed", "FILE:NAME", "--accept-changed-file")
    named = ["train", f"{file}:mine", "--out", run, "--resume"]
    before = (run / "config.json").read_bytes()
    assert not (tmp_path / "imported").exists()
    refused(inface(*named), 2, file, "has changed", "--overwrite", "--accept-changed-file")
    assert (run / "config.json").read_bytes() == before
    file.write_text(MINE)
    assert inface("train", "--out", run, "--resume").code == 0


def test_a_changed_file_is_measured_where_it_is_named_or_accepted(inface, file, tmp_path):
    run = tmp_path / "run"
    inface("train", f"{file}:mine", "--out", run, "--epochs", "1")
    summary = read(run)
    file.write_text(MINE + "\n# a thought\n")
    for words in (["--experiment", f"{file}:mine"], ["--accept-changed-file"]):
        assert json.loads(inface("evaluate", run, "--json", *words).out)["kept"] == summary["kept"]
    assert inface("train", "--out", run, "--resume", "--accept-changed-file").code == 0
    assert "earlier_sources" not in read(run, "config.json")  # it was finished before


def test_a_run_continued_with_a_changed_file_keeps_what_the_earlier_ones_were(inface, file, tmp_path):
    run = tmp_path / "run"
    file.write_text(MINE.replace("calls += 1", "calls += 1\n    if calls == 15: raise SystemExit"))
    inface("train", f"{file}:mine", "--out", run, "--checkpoint-seconds", "0")
    begun = read(run, "config.json")["source"]
    file.write_text(MINE)
    refused(inface("train", "--out", run, "--resume"), 2, "has changed")
    config = read(run, "config.json")
    (run / "config.json").write_text(json.dumps({**config, "earlier_sources": 5}))
    refused(
        inface("train", "--out", run, "--resume", "--accept-changed-file"), 1, "earlier_sources: wanted a list, got 5"
    )
    (run / "config.json").write_text(json.dumps(config))
    continued = inface("train", "--out", run, "--resume", "--accept-changed-file")
    assert (continued.code, "continued after gradient" in continued.out) == (0, True)
    config = read(run, "config.json")
    assert config["source"] == hashlib.sha256(MINE.encode()).hexdigest()
    assert config["earlier_sources"] == [begun]
    assert inface("evaluate", run).code == 0
    assert inface("report", run).code == 0


EVIL = "open('executed', 'w').close()\nfrom inface.lab.experiments.builtin import digits\nmine = digits()\n"


@pytest.fixture
def foreign(inface, tmp_path, monkeypatch):
    """A finished run from somebody else, and what makes it name a file of a SHA-256."""
    run = tmp_path / "work" / "run"
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    inface("train", "digits", "--out", run, "--epochs", "1", "--method", "sgd")

    def name(experiment, source):
        config = read(run, "config.json")
        (run / "config.json").write_text(json.dumps({**config, "experiment": str(experiment), "source": source}))
        return run

    return name


def outside(place):
    return place.parent / "evil.py"


def behind_a_link(place):
    (place / "linked.py").symlink_to(place.parent / "evil.py")
    return place / "linked.py"


def behind_a_linked_folder(place):
    (place / "linked").symlink_to(place.parent)
    return place / "linked" / "evil.py"


@pytest.mark.parametrize(
    ("where", "told"),
    [
        (outside, "outside the working directory"),
        (lambda place: place / "run" / ".." / ".." / "evil.py", "outside the working directory"),
        (lambda _: "../evil.py", "outside the working directory"),
        (behind_a_link, "outside the working directory"),
        (behind_a_linked_folder, "outside the working directory"),
        (lambda place: place / "run" / "evil.py", "lies in the run folder"),
        (lambda _: "linked\0.py", "cannot be found"),
    ],
    ids=["outside", "dots", "relative", "link", "linked folder", "in the run", "no name"],
)
def test_a_file_that_only_a_folder_names_is_not_imported_from_elsewhere(inface, foreign, tmp_path, where, told):
    for folder in (tmp_path, tmp_path / "work" / "run"):
        (folder / "evil.py").write_text(EVIL)
    run = foreign(f"{where(tmp_path / 'work')}:mine", hashlib.sha256(EVIL.encode()).hexdigest())
    for words in (["evaluate", run], ["export", run], ["train", "--resume", "--out", run]):
        for more in ([], ["--accept-changed-file"]):
            refused(inface(*words, *more), 2, told)
    assert inface("report", run).code == 0
    assert not list(tmp_path.rglob("executed"))
    assert inface("evaluate", run, "--experiment", f"{tmp_path / 'evil.py'}:mine").code == 0
    assert (tmp_path / "work" / "executed").exists()


@pytest.mark.parametrize("source", [None, "", "00" * 32])
def test_a_file_of_another_or_of_no_sha256_is_not_imported(inface, foreign, tmp_path, source):
    (tmp_path / "work" / "evil.py").write_text(EVIL)
    run = foreign("evil.py:mine", source)
    refused(inface("evaluate", run), 2, "evil.py: has changed since", "--experiment FILE:NAME", "--accept-changed-file")
    assert not (tmp_path / "work" / "executed").exists()


def test_what_is_executed_is_what_was_compared_not_a_file_that_python_cached(tmp_path):
    """A cached file that is never checked against its source is what Python's own import would run."""
    good, evil = tmp_path / "mine.py", tmp_path / "evil.py"
    good.write_text("found = 'the file'\n")
    evil.write_text("found = 'the cache'\n")
    py_compile.compile(
        str(evil),
        cfile=importlib.util.cache_from_source(str(good)),
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    assert load(good, hashlib.sha256(good.read_bytes()).hexdigest()).found == "the file"
    with pytest.raises(ArgumentError, match="has changed: its SHA-256 is"):
        load(good, hashlib.sha256(b"").hexdigest())


def test_what_a_file_has_imported_is_not_called(inface, file, tmp_path):
    """Or a folder could have any function of a known file called, with arguments of its own."""
    file.write_text(MINE + "\nfrom shutil import rmtree\n")
    words = ["train", f"{file}:rmtree", "--out", tmp_path / "run", "-o", f"path={file.parent}"]
    refused(inface(*words), 2, "has no experiment rmtree")
    assert file.exists()


def test_a_file_that_is_gone_is_named(inface, file, tmp_path):
    run = tmp_path / "run"
    inface("train", f"{file}:mine", "--out", run, "--epochs", "1")
    file.unlink()
    for arguments in (["evaluate", run], ["train", "--out", run, "--resume"]):
        refused(inface(*arguments), 2, f"{file}: there is no such file")
    assert inface("report", run, "--out", tmp_path / "report.html").code == 0


def test_a_network_without_the_named_layer_is_one_line_that_names_both(inface, file, tmp_path):
    file.write_text(MINE.replace('"outer.weight": L1Ball', '"middle.weight": L1Ball'))
    refused(inface("train", f"{file}:mine", "--out", tmp_path / "run"), 2, file, "middle.weight", "outer.weight")


def test_validation_that_the_data_does_not_have_is_refused(inface, file, tmp_path):
    file.write_text(MINE.replace(", held_out=20", ""))
    refused(inface("train", f"{file}:mine", "--out", tmp_path / "run", "--validate"), 2, "held_out")


MISTAKES = {
    "at the top": ("calls = 0", "calls = 0 / 0", "ZeroDivisionError"),
    "in the syntax": ("calls = 0", "calls = = 0", "SyntaxError"),
    "in an import": ("from beside import FEATURES", "from nearby import FEATURES", "ModuleNotFoundError"),
    "in the data": ("y = x[:, :1]", "y = open('no-such-file')", "FileNotFoundError"),
    "in the network": ("self.inner(x).tanh()", "self.inner(x).tahn()", "AttributeError"),
    "in the metric": ("(outputs - targets).abs() < 1", "{}[outputs] < 1", "KeyError"),
}


@pytest.mark.parametrize(("right", "mistake", "error"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_the_file_is_not_swallowed(file, tmp_path, right, mistake, error):
    assert right in MINE
    file.write_text(MINE.replace(right, mistake))
    with pytest.raises((ArithmeticError, SyntaxError, ImportError, OSError, AttributeError, LookupError)) as caught:
        main(["train", f"{file}:mine", "--out", str(tmp_path / "run"), "--epochs", "1"])
    assert caught.type.__name__ == error
    assert error == "SyntaxError" or str(file) in {str(entry.path) for entry in caught.traceback}


def test_the_traceback_of_a_mistake_shows_the_users_line(file, tmp_path):
    file.write_text(MINE.replace("self.inner(x).tanh()", "self.inner(x).tahn()"))
    result = process("train", "my_file.py:mine", "--out", tmp_path / "run", cwd=file.parent)
    assert result.returncode == 1
    assert "Traceback" in result.stderr
    assert "return self.outer(self.inner(x).tahn())" in result.stderr
    assert "has no attribute 'tahn'" in result.stderr.splitlines()[-1]
