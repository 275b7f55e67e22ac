"""The command line: its help, its exit codes, what it writes and how it shows itself."""

import fcntl
import json
import os
import pty
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import termios
from typing import NamedTuple

import pytest
import typer.main

from helpers.datasets import cifar_contents, tar_of, write_archive, write_batches, write_file, write_mnist
from inface.cli import main
from inface.cli.app import app, spread
from inface.lab.experiments import EXPERIMENTS
from inface.lab.report.page import command as command_of
from inface.lab.runs.run import Run

PNG = b"\x89PNG\r\n\x1a\n"
COMMANDS = {
    "": typer.main.get_command(app),
    **typer.main.get_command(app).commands,
    **{f"data {name}": command for name, command in typer.main.get_command(app).commands["data"].commands.items()},
}


class Result(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def inface(capsys, monkeypatch, tmp_path):
    """Runs a command in this process, with an empty data folder and a wide page."""
    monkeypatch.setenv("INFACE_DATA", str(tmp_path / "no-data"))
    monkeypatch.setenv("COLUMNS", "250")

    def call(*arguments):
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        return Result(caught.value.code or 0, *capsys.readouterr())

    return call


def process(*arguments, **environment):
    """Runs a command in a process of its own, which does not know of this terminal."""
    return subprocess.run(
        [sys.executable, "-m", "inface.cli", *map(str, arguments)],
        env=surroundings(**environment),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def surroundings(**environment):
    told = {"FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"}
    kept = {name: value for name, value in os.environ.items() if name not in told}
    return {**kept, "OMP_NUM_THREADS": "1", **environment}


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A finished run, to be copied or read."""
    out = tmp_path_factory.mktemp("finished") / "run"
    with pytest.raises(SystemExit) as caught:
        main(["train", "digits", "--out", str(out), "--epochs", "2"])
    assert not caught.value.code
    return out


def refused(result, code, *wanted):
    """The command ended with this code and one line, which says all that is wanted."""
    assert result.code == code, result
    assert re.fullmatch(r"inface: [^\n]+\n", result.err), result.err
    for text in wanted:
        assert str(text) in result.err


def config(path):
    return json.loads((path / "config.json").read_text())


# Help


def examples():
    for name, command in COMMANDS.items():
        for line in (command.help or "").splitlines():
            if line.strip().startswith("$ "):
                yield name, line.strip()[2:]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(inface, name):
    result = inface(*name.split(), "--help")
    assert (result.code, result.err) == (0, "")
    assert result.out.split()[:2] == ["Usage:", "inface"]
    assert inface(*name.split(), "-h") == result
    for option in COMMANDS[name].params:
        if option.param_type_name == "option" and not option.hidden:
            assert option.opts[0] in result.out


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if not hasattr(command, "commands")])
def test_every_command_shows_its_examples(inface, name):
    page = inface(*name.split(), "--help").out
    shown = [line for owner, line in examples() if owner == name]
    assert shown
    for line in shown:
        assert f"$ {line}" in page
        assert line.startswith(f"inface {name}")


@pytest.mark.parametrize(("name", "line"), list(examples()))
def test_every_example_of_the_help_pages_is_understood(name, line):
    words = shlex.split(line.partition(" | ")[0])
    rest = spread(words)[1 + len(name.split()) :]
    COMMANDS[name].make_context(name, rest)  # raises for an unknown option, a missing argument, a wrong number


@pytest.mark.parametrize("line", [line for _, line in examples() if "train mnist" in line])
def test_the_settings_of_the_examples_are_possible(inface, tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    refused(inface(*shlex.split(line)[1:]), 1, "inface data fetch mnist")


def test_without_arguments_there_is_the_help(inface):
    for group in ([], ["data"]):
        bare = inface(*group)
        assert bare.out.strip() == inface(*group, "--help").out.strip()
        assert bare.err == ""


def test_the_first_page_names_every_command_and_where_to_start(inface):
    page = inface("--help").out
    assert all(name in page for name in COMMANDS[""].commands)
    assert "inface demo" in page


def test_help_completion_and_wrong_arguments_do_not_wait_for_torch():
    script = """
import sys
from inface.cli import main
for arguments in (["--help"], ["train", "--help"], ["trian"], ["train", "digits"], ["--version"]):
    try:
        main(arguments)
    except SystemExit:
        pass
assert not {"torch", "numpy", "matplotlib", "sklearn", "numba"} & set(sys.modules), sorted(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, env=surroundings())


@pytest.mark.parametrize(
    ("room", "command", "file"),
    [
        (3000, "train digits --epochs 20 --checkpoint-seconds 999", "metrics.jsonl"),
        (60_000, "train digits --epochs 2 --checkpoint-seconds 999", "model.safetensors"),
        (900, "sweep digits --grid quick --epochs 2", "study.journal"),
        (3000, "sweep digits --grid quick --epochs 2", "study.journal"),
    ],
)
def test_a_full_disk_is_one_line_that_names_the_file(tmp_path, room, command, file):
    """Files that cannot grow any more are the nearest thing to it that needs no disk."""
    script = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({room},) * 2); from inface.cli import main; main()"
    command = [sys.executable, "-c", script, *command.split(), "--out", str(tmp_path / "out")]
    result = subprocess.run(command, env=surroundings(), capture_output=True, text=True, check=False, timeout=300)
    assert result.returncode == 1
    told = [line for line in result.stderr.splitlines() if line.startswith("inface: ")]
    assert "Traceback" not in result.stderr
    assert re.search(rf"{file}: cannot be written: .*File too large", told[0])
    assert told[1:] in ([], ["inface: a worker failed; its error is above"])


def test_the_version_is_the_packages(inface):
    assert re.fullmatch(r"inface \d+\.\d+\.\d+\S*\n", inface("--version").out)


def test_every_experiment_is_listed_with_its_options(inface):
    result = inface("experiments")
    assert [line.split()[0] for line in result.out.splitlines()[1:]] == list(EXPERIMENTS)
    assert "edges=10  snr=10.0  activation=sigmoid  trial=0" in result.out


# Wrong arguments: exit code 2 and one line


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ("trian", "'train'"),
        ("data fech", "'fetch'"),
        ("frobnicate", "frobnicate"),
        ("--frobnicate", "--frobnicate"),
        ("train digits --out run --epoch 3", "--epochs"),
        ("train digits --out run --frobnicate", "--frobnicate"),
        ("train digits", "--out"),
        ("train --out run", "EXPERIMENT"),
        ("train --out run --resume", "run: holds no run"),
        ("train digits more --out run", "more"),
        ("train digit --out run", "did you mean digits?"),
        ("train minst-mlp --out run", "did you mean mnist-mlp?"),
        (
            "train frobnicate --out run",
            "wanted mnist-mlp, mnist-conv, cifar10, synthetic, digits, lenet-300-100, lenet-5, resnet, vit, or",
        ),
        ("train nowhere.py:mine --out run", "nowhere.py"),
        ("train digits --out run --method sfwif", "did you mean sfw-if?"),
        (
            "train digits --out run --method adam",
            "wanted sfw-if or sfw or sgd or prune or gradual or rigl or set or proximal or sparse, got adam",
        ),
        ("train digits --out run --schedule cosin", "did you mean cosine?"),
        ("train digits --out run --in-face awy", "did you mean away?"),
        ("train digits --out run --lr 1 --smoothness 2", "--smoothness"),
        ("train digits --out run --resume --overwrite", "--overwrite"),
        ("train digits --out run --radius 1 2 3", "wanted 1 or 2 numbers (for fc1.weight, fc2.weight), got 3"),
        ("train digits --out run --radius", "--radius"),
        ("train digits --out run --radius 1 nan", "got nan"),
        ("train digits --out run --radius 1 -2", "got 1 -2"),
        ("train digits --out run -o edges=5", "digits has no option edges"),
        ("train synthetic --out run -o edge=5", "did you mean edges?"),
        ("train synthetic --out run -o edges=many", "wanted a whole number, got many"),
        ("train synthetic --out run -o edges=51", "51"),
        ("train synthetic --out run -o snr=nan", "nan"),
        ("train synthetic --out run -o activation=rellu", "did you mean relu?"),
        ("train synthetic --out run -o edges", "wanted NAME=VALUE, got edges"),
        ("train synthetic --out run -o =5", "wanted NAME=VALUE, got =5"),
        ("data fetch mnst", "did you mean mnist?"),
        ("data fetch imagenet", "imagenet"),
        ("evaluate", "RUN"),
        ("evaluate nowhere", "nowhere: holds no run"),
        ("report", "RUN"),
        ("report nowhere", "nowhere: holds no run"),
        ("demo --trials 0", "--trials"),
    ],
)
def test_a_wrong_argument_is_one_line_and_exit_code_2(inface, tmp_path, monkeypatch, arguments, wanted):
    monkeypatch.chdir(tmp_path)
    refused(inface(*arguments.split()), 2, wanted)
    assert not (tmp_path / "run" / "config.json").exists()


@pytest.mark.parametrize("value", ["-1", "0", "nan", "inf", "text", ""])
@pytest.mark.parametrize("option", ["lr", "constrained-lr", "smoothness", "radius", "epochs", "batch-size", "threads"])
def test_a_number_that_makes_no_sense_is_refused(inface, tmp_path, option, value):
    result = inface("train", "digits", "--out", tmp_path / "run", f"--{option}", value)
    refused(result, 2)
    assert option in result.err or option == "smoothness"


@pytest.mark.parametrize(
    ("option", "value"),
    [("momentum", "1"), ("momentum", "-0.1"), ("momentum", "nan"), ("seed", "-1"), ("seed", "1.5"), ("seed", "2147483648"),
     ("checkpoint-seconds", "-1"), ("checkpoint-seconds", "nan")],
)  # fmt: skip
def test_numbers_have_their_ranges(inface, tmp_path, option, value):
    refused(inface("train", "digits", "--out", tmp_path / "run", f"--{option}", value), 2, option)


def test_a_run_is_neither_overwritten_nor_continued_with_other_settings_by_accident(inface, digits):
    before = {file.name: file.read_bytes() for file in digits.iterdir()}
    refused(inface("train", "digits", "--out", digits), 2, digits, "--resume", "--overwrite")
    refused(inface("train", "--out", digits, "--resume", "--epochs", "3"), 2, "epochs 2, wanted 3")
    assert {file.name: file.read_bytes() for file in digits.iterdir()} == before


def test_a_report_refuses_unknown_formats_and_folders_as_files(inface, digits, tmp_path):
    out = tmp_path / "report.html"
    refused(inface("report", digits, "--out", out, "--format", "jpeg"), 2, "svg or png, got jpeg")
    refused(inface("report", digits, "--out", out, "--format", "pngg"), 2, "did you mean png?")
    refused(inface("report", digits, "--out", tmp_path), 2, tmp_path)
    refused(inface("report", digits, tmp_path, "--out", out), 2, f"{tmp_path}: holds no run")
    assert not out.exists()


# Damaged files: exit code 1 and one line that names the file


def damaged_mnist(place):
    write_mnist(place)
    packed = place / "mnist" / "train-images-idx3-ubyte.gz"
    packed.write_bytes(packed.read_bytes()[:-20])
    return "mnist-mlp", packed


def mnist_of_another_magic(place):
    write_mnist(place)
    return "mnist-conv", write_file(place, "t10k-labels-idx1-ubyte", b"\x00\x00\x08\x07" + bytes(9))


def mnist_with_a_label_out_of_range(place):
    write_mnist(place)
    return "mnist-mlp", write_file(place, "train-labels-idx1-ubyte", struct.pack(">2I", 0x801, 12) + bytes([10] * 12))


def cifar_batch_of_a_wrong_size(place):
    where = write_batches(place, cifar_contents())
    with (where / "data_batch_3.bin").open("ab") as file:
        file.write(b"x")
    return "cifar10", where / "data_batch_3.bin"


def cifar_archive_that_is_cut_off(place):
    return "cifar10", write_archive(place, tar_of(cifar_contents())[:-5000])


@pytest.mark.parametrize("by", ["option", "environment"])
@pytest.mark.parametrize(
    "damage",
    [
        damaged_mnist,
        mnist_of_another_magic,
        mnist_with_a_label_out_of_range,
        cifar_batch_of_a_wrong_size,
        cifar_archive_that_is_cut_off,
    ],
)
def test_a_damaged_data_file_is_named(inface, monkeypatch, tmp_path, damage, by):
    experiment, file = damage(tmp_path)
    if by == "environment":
        monkeypatch.setenv("INFACE_DATA", str(tmp_path))
    place = ["--data", tmp_path] if by == "option" else []
    refused(inface("train", experiment, "--out", tmp_path / "run", *place), 1, file)
    status = inface("data", "status", *place)
    assert (status.code, status.err) == (1, "")
    assert re.search(r"(mnist|cifar10) +damaged", status.out)
    assert file.name in status.out


@pytest.mark.parametrize(
    ("experiment", "data"), [("mnist-mlp", "mnist"), ("mnist-conv", "mnist"), ("cifar10", "cifar10")]
)
def test_missing_data_says_how_to_get_it(inface, tmp_path, experiment, data):
    place = tmp_path / "empty"
    refused(
        inface("train", experiment, "--out", tmp_path / "run", "--data", place), 1, place, f"inface data fetch {data}"
    )


@pytest.mark.parametrize("contents", [b"", b"\xff\xfe\x00nonsense", b"[1]\n", b'{"format": 2}\n', b'{"cut": '])
@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("evaluate", "config.json"),
        ("evaluate", "model.safetensors"),
        ("report", "config.json"),
        ("report", "summary.json"),
        ("report", "model.safetensors"),
        ("train", "config.json"),
        ("train", "summary.json"),
    ],
)
def test_a_damaged_file_of_a_run_is_named(inface, digits, tmp_path, command, name, contents):
    run = shutil.copytree(digits, tmp_path / "run")
    (run / name).write_bytes(contents)
    out = ["--out", tmp_path / "report.html"] if command == "report" else []
    arguments = ["--out", run, "--resume"] if command == "train" else [run, *out]
    refused(inface(command, *arguments), 1, run / name)
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("line", ["nonsense", "[1]", "\0"])
def test_a_damaged_line_of_the_metrics_is_named_by_its_number(inface, digits, tmp_path, line):
    run = shutil.copytree(digits, tmp_path / "run")
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join([*lines[:2], line, *lines[2:], ""]))
    refused(inface("report", run, "--out", tmp_path / "report.html"), 1, run / "metrics.jsonl", "line 3")


def test_weights_of_another_network_do_not_fit(inface, digits, tmp_path):
    run = shutil.copytree(digits, tmp_path / "run")
    (run / "config.json").write_text(json.dumps({**config(run), "experiment": "mnist-mlp"}))
    refused(inface("evaluate", run), 1, run / "model.safetensors", "mnist-mlp")


def test_a_missing_network_is_named(inface, digits, tmp_path):
    run = shutil.copytree(digits, tmp_path / "run")
    (run / "model.safetensors").unlink()
    refused(inface("evaluate", run), 1, run / "model.safetensors")


# Divergence: exit code 3


@pytest.mark.parametrize(
    ("arguments", "tries"),
    [
        ("--method sgd --lr 1e30 --momentum 0.5", ["a smaller --lr than 1e+30", "less --momentum than 0.5"]),
        ("--method sfw --lr 1e38 --constrained-lr 2 --radius 1e30", ["--lr", "--constrained-lr than 2", "radii"]),
    ],
)
def test_a_run_that_diverges_says_what_to_try(inface, tmp_path, arguments, tries):
    result = inface("train", "digits", "--out", tmp_path / "run", "--epochs", "2", *arguments.split())
    refused(result, 3, tmp_path / "run", "loss became", *tries)
    assert not (tmp_path / "run" / "summary.json").exists()


# Training


def test_radii_may_follow_one_option_or_each_have_their_own(inface, tmp_path):
    for name, radii in (("a", "--radius 1 10"), ("b", "--radius 1 --radius 10"), ("c", "--radius 1 --radius=10")):
        arguments = [*radii.split(), "--out", tmp_path / name, "--epochs", "1"]
        assert inface("train", "digits", *arguments).code == 0
    assert config(tmp_path / "a")["radius"] == [1.0, 10.0]
    assert config(tmp_path / "a") == config(tmp_path / "b") == config(tmp_path / "c")
    weights = {(tmp_path / name / "model.safetensors").read_bytes() for name in "abc"}
    assert len(weights) == 1


@pytest.mark.parametrize(
    ("words", "spread_out"),
    [
        ("--radius 1 10 digits", "--radius 1 --radius 10 digits"),
        ("--radius 1e-2 .5 -3 --lr 2", "--radius 1e-2 --radius .5 --radius -3 --lr 2"),
        ("--radius 1 --lr 2 3", "--radius 1 --lr 2 3"),
        ("--radius x 2", "--radius x --radius 2"),
        ("--seed 1 2", "--seed 1 2"),
        ("--constrained-lr 8 2 --seed 1", "--constrained-lr 8 --constrained-lr 2 --seed 1"),
        ("--radius=1 10 --constrained-lr 8 2", "--radius=1 --radius 10 --constrained-lr 8 --constrained-lr 2"),
        ("--radius 1 10 --constrained-lr 3 out", "--radius 1 --radius 10 --constrained-lr 3 out"),
    ],
)
def test_only_numbers_after_an_option_of_several_are_its_values(words, spread_out):
    assert spread(words.split()) == spread_out.split()


def test_smoothness_is_the_papers_constant_of_the_learning_rate(inface, tmp_path):
    inface("train", "digits", "--out", tmp_path / "L", "--epochs", "1", "--smoothness", "4")
    inface("train", "digits", "--out", tmp_path / "lr", "--epochs", "1", "--lr", "0.125")
    assert config(tmp_path / "L")["lr"] == 0.125
    assert config(tmp_path / "L") == config(tmp_path / "lr")


def test_every_option_arrives_in_the_config(inface, tmp_path):
    given = "--method sfw-if --lr 0.2 --constrained-lr 4 --radius 0.3 20 --momentum 0.99 --free-momentum 0.5 --in-face pairwise"
    more = "--every-gradient --schedule cosine --epochs 1 --batch-size 700 --seed 7 --validate --threads 1"
    assert inface("train", "digits", "--out", tmp_path, *given.split(), *more.split()).code == 0
    wanted = {
        "format": 1, "experiment": "digits", "options": {}, "method": "sfw-if", "lr": 0.2, "constrained_lr": 4.0,
        "radius": [0.3, 20.0], "momentum": 0.99, "free_momentum": 0.5, "schedule": "cosine", "in_face": "pairwise", "every_gradient": True,
        "epochs": 1, "batch_size": 700, "seed": 7, "measured_on": "validation", "threads": 1,
    }  # fmt: skip
    found = config(tmp_path)
    assert {name: found[name] for name in wanted} == wanted


def test_each_constrained_layer_may_have_a_learning_rate_of_its_own(inface, tmp_path):
    for name, rates in (("two", "8 2"), ("same", "8 8"), ("one", "8")):
        arguments = ["--out", tmp_path / name, "--epochs", "1", "--constrained-lr", *rates.split()]
        assert inface("train", "digits", *arguments).code == 0
    assert config(tmp_path / "two")["constrained_lr"] == [8.0, 2.0]
    assert config(tmp_path / "same") == config(tmp_path / "one")
    assert inface("train", "--out", tmp_path / "two", "--resume", "--constrained-lr", "8", "2").code == 0
    refused(
        inface("train", "--out", tmp_path / "two", "--resume", "--constrained-lr", "8"), 2, "[8.0, 2.0], wanted 8.0"
    )
    refused(
        inface("train", "digits", "--out", tmp_path / "three", "--constrained-lr", "1", "2", "3"),
        2, "constrained-lr: wanted 1 or 2 numbers (for fc1.weight, fc2.weight), got 3",
    )  # fmt: skip
    assert not (tmp_path / "three" / "config.json").exists()


@pytest.mark.parametrize(
    ("method", "given"),
    [
        ("sfw-if", "--constrained-lr 8 2 --init alive --every-gradient --free-momentum 0.9 --in-face pairwise"),
        ("sfw", "--radius 2 --validate"),
        ("sgd", "--weight-decay 0.001"),
        ("prune", "--keep 0.05"),
        ("gradual", "--keep 0.1 --momentum 0.9 --schedule cosine"),
        ("gradual", "--keep 0.1 --distribution global"),
        ("rigl", "--keep 0.1 --distribution uniform --warmup 0.5"),
        ("set", "--keep 0.1 --seed 3"),
        ("proximal", "--shrinkage 1e-4"),
    ],
)
def test_the_command_in_a_report_trains_the_same_run_again(inface, tmp_path, monkeypatch, method, given):
    monkeypatch.chdir(tmp_path)
    assert inface("train", "digits", "--out", "run", "--method", method, "--epochs", "2", *given.split()).code == 0
    program, *words = shlex.split(command_of(Run(tmp_path / "run")))
    assert program == "inface"
    assert inface(*words).code == 0
    assert config(tmp_path / "run-again") == config(tmp_path / "run")
    assert Run(tmp_path / "run-again").model_file.read_bytes() == Run(tmp_path / "run").model_file.read_bytes()


def test_options_of_an_experiment_arrive_as_values_of_their_kinds(inface, tmp_path):
    options = ["-o", "edges=5", "-o", "snr=1", "--option", "activation=relu", "-o", "trial=2", "-o", "samples=500"]
    arguments = ["--out", tmp_path / "run", "--epochs", "1", *options]
    assert inface("train", "synthetic", *arguments).code == 0
    found = config(tmp_path / "run")
    assert found["options"] == {"edges": 5, "snr": 1.0, "activation": "relu", "trial": 2, "samples": 500}
    assert isinstance(found["options"]["snr"], float)
    assert found["radius"] == [5.0, 5.0]


def test_validation_trains_on_less_and_measures_elsewhere(inface, tmp_path):
    for name, option in (("validation", "--validate"), ("test", "--seed=0")):
        inface("train", "digits", "--out", tmp_path / name, "--epochs", "1", "--batch-size", "100", option)
    steps = [json.loads((tmp_path / name / "summary.json").read_text())["steps"] for name in ("validation", "test")]
    assert steps[0] < steps[1] == 15


def test_a_run_that_is_finished_is_shown_again_by_resume(inface, digits):
    weights = (digits / "model.safetensors").stat()
    result = inface("train", "--out", digits, "--resume")
    assert result.code == 0
    assert "58 gradients" in result.out
    assert (digits / "model.safetensors").stat().st_mtime_ns == weights.st_mtime_ns


def test_small_mnist_files_that_are_there_are_trained_on_as_they_are(inface, monkeypatch, tmp_path):
    write_mnist(tmp_path)
    monkeypatch.setenv("INFACE_DATA", str(tmp_path))
    arguments = ["train", "mnist-mlp", "--epochs", "1", "--batch-size", "6", "--out", tmp_path / "run"]
    assert inface(*arguments).code == 0
    again = inface("evaluate", tmp_path / "run", "--data", tmp_path, "--json")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["steps"] == 2
    assert json.loads(again.out)["kept"] == summary["kept"]


# The display

LINE = r"epoch {}/2  loss [\d.]+  accuracy [\d.]+ %  gap [\d.]+  non-zeros [\d.]+ / [\d.]+ %  [\d.]+ s(, \d+ s left)?"


def test_without_a_terminal_there_are_plain_lines(tmp_path):
    result = process("train", "digits", "--out", tmp_path / "run", "--epochs", "2")
    assert (result.returncode, result.stderr) == (0, "")
    assert "\x1b" not in result.stdout
    assert "\r" not in result.stdout
    lines = result.stdout.splitlines()
    assert re.fullmatch(LINE.format(1), lines[0])
    assert re.fullmatch(LINE.format(2), lines[1])
    assert lines[2].split()[0] == "layer"
    assert lines[-1].endswith(f"written to {tmp_path / 'run'}")


# A process that was started with SIGINT ignored, as in the background of a script, is to hear it all the same.
# At gradient WAIT_AT it waits for it, so that it cannot come to its end first.
SCRIPT = """
import itertools, os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from torch.optim.optimizer import register_optimizer_step_post_hook
from inface.cli import main
steps = itertools.count(1)
register_optimizer_step_post_hook(lambda *_: time.sleep(next(steps) == int(os.environ.get("WAIT_AT", 0)) and 10_000))
main(sys.argv[1:])
"""


def in_a_terminal(*arguments, interrupt_when=lambda: False, **environment):
    """The exit code of a command in a terminal, and everything that the terminal was sent."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
    command = [sys.executable, "-c", SCRIPT, *map(str, arguments)]
    environment = surroundings(TERM="xterm", **environment)
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=theirs, env=environment) as running:
        os.close(theirs)
        sent, interrupted = b"", False
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # how Linux says that nobody holds the other end
                break
            if not piece:
                break
            sent += piece
            if not interrupted and interrupt_when():
                running.send_signal(signal.SIGINT)
                interrupted = True
        os.close(ours)
    return running.returncode, sent.decode()


def test_in_a_terminal_the_display_is_live_and_ends_cleanly(tmp_path):
    code, sent = in_a_terminal("train", "digits", "--out", tmp_path / "run", "--epochs", "2")
    assert code == 0
    live, shown, after = sent.rpartition("\x1b[?25h")  # the cursor is shown again
    assert shown
    assert live.count("\x1b[?25l") == 1
    assert "\x1b[2K" in live  # lines are drawn over
    last = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", live).rstrip().rpartition("\r")[2]
    assert re.fullmatch(r"loss [\d.]+  accuracy [\d.]+ %  gap [\d.]+  non-zeros [\d.]+ / [\d.]+ %", last.strip())
    assert re.search(r"epoch 2/2 ━+ \d:\d\d:\d\d", re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", live))
    assert "58 gradients" in after
    assert "\x1b[2K" not in after


def test_an_interrupted_run_gives_the_cursor_back_says_nothing_and_can_be_continued(inface, tmp_path):
    run = tmp_path / "run"
    arguments = ["train", "digits", "--out", run, "--epochs", "2", "--checkpoint-seconds", "0"]
    code, sent = in_a_terminal(*arguments, interrupt_when=(run / "checkpoint.safetensors").exists, WAIT_AT="20")
    assert code == 130
    assert sent.rpartition("\x1b[?25h")[2].strip() == ""
    assert "Traceback" not in sent
    result = inface("train", "--out", run, "--resume", "--threads", "1")
    assert result.code == 0
    assert "continued after gradient" in result.out


# Data


def test_the_status_of_data_is_that_of_the_files(inface, monkeypatch, tmp_path):
    place = tmp_path / "data"
    place.mkdir()
    nothing = inface("data", "status", "--data", place)
    assert nothing.code == 0
    states = re.findall(r"^(\w+) +(bundled|generated|missing|ready|damaged)", nothing.out, re.MULTILINE)
    assert dict(states) == {"digits": "bundled", "synthetic": "generated", "mnist": "missing", "cifar10": "missing"}
    assert str(place) in nothing.out
    write_mnist(place)
    write_batches(place, cifar_contents())
    full = inface("data", "status", "--data", place)
    assert re.search(r"mnist +ready +12 train, 5 test; not the published contents", full.out)
    assert re.search(r"cifar10 +ready +20 train, 4 test; not the published contents", full.out)
    monkeypatch.setenv("INFACE_DATA", str(place))
    assert inface("data", "status") == full
    assert "missing" in inface("data", "status", "--data", tmp_path / "elsewhere").out


# Measuring again


def test_evaluation_prints_what_training_printed(inface, digits):
    trained = inface("train", "--out", digits, "--resume").out
    again = inface("evaluate", digits)
    assert again.code == 0
    assert trained.startswith(again.out)
    summary = json.loads((digits / "summary.json").read_text())
    assert f"{summary['kept']['100']:.2f}" in again.out
    (together,) = (line for line in again.out.splitlines() if line.startswith("of these layers together"))
    assert together.split()[4:] == [f"{value:.2f}" for value in summary["kept_together"].values()]
    assert f"{summary['layers']['fc1.weight']['percent']:.2f}" in again.out


def test_evaluation_as_json_is_the_summary(inface, digits):
    measured = json.loads(inface("evaluate", digits, "--json").out)
    summary = json.loads((digits / "summary.json").read_text())
    assert measured["gap"]["exact"] == summary["gap"]["exact"]
    same = set(measured) - {"gap"}
    assert {"kept", "layers", "network", "loss", "train_loss", "metric"} <= same
    assert {name: measured[name] for name in same} == {name: summary[name] for name in same}


# The report, and the demonstration


def test_a_report_of_several_runs_is_a_page_and_pictures(inface, digits, tmp_path):
    inface("train", "digits", "--method", "sgd", "--out", tmp_path / "dense", "--epochs", "2")
    page, pictures = tmp_path / "pages" / "comparison.html", tmp_path / "pictures"
    arguments = [
        "--out",
        page,
        "--figures",
        pictures,
        "--format",
        "png",
        "--format",
        "svg",
        "--title",
        "Digits & <more>",
    ]
    result = inface("report", digits, tmp_path / "dense", *arguments)
    assert (result.code, result.err) == (0, "")
    assert str(page) in result.out
    assert str(pictures) in result.out
    html = page.read_text()
    assert "Digits &amp; &lt;more&gt;" in html
    assert "SFW-IF" in html
    assert "SGD" in html
    names = {kind: {file.stem for file in pictures.glob(f"*.{kind}")} for kind in ("png", "svg")}
    assert names["png"] == names["svg"] != set()
    assert all(file.read_bytes().startswith(PNG) for file in pictures.glob("*.png"))
    assert all("<svg" in file.read_text() for file in pictures.glob("*.svg"))


def test_a_report_goes_where_one_stands_and_leaves_pictures_to_those_who_ask(inface, digits, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert inface("report", digits).out == "written: report.html\n"
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_the_demonstration_trains_three_methods_shows_them_and_can_be_shown_again(inface, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    first = inface("demo", "--trials", "1")
    assert (first.code, first.err) == (0, "")
    place = tmp_path / "inface-demo"
    runs = [place / f"{method}-0" for method in ("sgd", "sfw-if", "sparse")]
    assert all((run / "summary.json").is_file() for run in runs)
    assert (place / "report.html").is_file()
    assert any(file.read_bytes().startswith(PNG) for file in (place / "figures").glob("*.png"))
    table = first.out.partition("\n\n")[2]
    rows = {line.split()[0]: line.split() for line in table.splitlines() if line.startswith(("S", "inface"))}
    assert list(rows) == ["SGD", "SFW-IF", "inface"]
    assert rows["SGD"][1] == "100.00"
    assert 4.9 <= float(rows["inface"][1]) <= 5.0
    assert f"{json.loads((runs[2] / 'summary.json').read_text())['kept']['100']:.2f}" in rows["inface"]
    assert first.out.rstrip().endswith(str(place / "report.html"))

    written = {run: (run / "model.safetensors").stat().st_mtime_ns for run in runs}
    second = inface("demo", "--trials", "1")
    assert second.code == 0
    assert table.strip() == second.out.strip()
    assert {run: (run / "model.safetensors").stat().st_mtime_ns for run in runs} == written


# Completion


def completed(*words):
    result = subprocess.run(
        [sys.executable, "-m", "inface.cli"],
        env=surroundings(
            _INFACE_COMPLETE="complete_bash", COMP_WORDS=" ".join(("inface", *words)), COMP_CWORD=str(len(words))
        ),
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stderr == ""
    return result.stdout.split()


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["tr"], ["train"]),
        (["train", "mn"], ["mnist-mlp", "mnist-conv"]),
        (["train", "digits", "--sch"], ["--schedule"]),
        (["train", "digits", "--method", "sf"], ["sfw-if", "sfw"]),
        (["train", "digits", "--in-face", "p"], ["pairwise", "projected"]),
        (["train", "digits", "--radius", "1", "10", "--schedule", "cos"], ["cosine"]),
        (["data", "f"], ["fetch"]),
    ],
)
def test_words_are_completed(words, wanted):
    assert completed(*words) == wanted


@pytest.mark.parametrize(
    ("method", "option"),
    [
        ("sgd", ["--radius", "1", "2"]),
        ("sgd", ["--constrained-lr", "1"]),
        ("sgd", ["--free-momentum", "0"]),
        ("sgd", ["--every-gradient"]),
        ("sfw", ["--in-face", "away"]),
        ("sfw", ["--every-gradient"]),
    ],
)
def test_an_option_that_means_nothing_to_the_method_is_refused(inface, tmp_path, method, option):
    result = inface("train", "digits", "--out", tmp_path / "run", "--method", method, *option)
    refused(result, 2, f"--method {method} does not use {option[0]}")


def test_a_report_takes_a_folder_of_runs(inface, tmp_path):
    for method in ("sgd", "sfw-if"):
        inface("train", "digits", "--out", tmp_path / "runs" / method, "--method", method, "--epochs", "1")
    assert inface("report", tmp_path / "runs", "--out", tmp_path / "report.html").code == 0
    page = (tmp_path / "report.html").read_text()
    assert "SFW-IF" in page
    assert "SGD" in page


def test_an_experiment_of_a_file_without_a_name_is_asked_for(inface, tmp_path):
    (tmp_path / "own.py").write_text("from inface.lab.experiments.builtin import digits\nmine = digits()\n")
    result = inface("train", tmp_path / "own.py", "--out", tmp_path / "run")
    refused(result, 2, "own.py: wanted the name of an experiment", "it has mine")


def test_nobody_needs_to_read_the_lines_of_a_run(tmp_path):
    """As in ``inface train ... | head -1``."""
    run = tmp_path / "run"
    command = f'"{sys.executable}" -m inface.cli train digits --out "{run}" --epochs 4 --batch-size 20 | head -1'
    subprocess.run(["sh", "-c", command], check=True, capture_output=True)  # noqa: S607 - a shell
    assert (run / "summary.json").exists()


def test_data_that_is_damaged_is_not_called_fetched(inface, tmp_path):
    write_mnist(tmp_path)
    file = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:-20])
    refused(inface("data", "fetch", "mnist", "--data", tmp_path), 1, file.name, "delete it and fetch again")
