"""inface train under torchrun: killed on two processes, resumed on three, it ends as on one."""

import os
import subprocess
import sys
import time

import pytest
import torch

from inface.lab.runs.run import Run

pytest.importorskip("lightning")  # a slow test of several processes: it runs where the frameworks are
# No decisions that rounding could change, and too few steps for it to grow.
METHOD = ["--method", "sgd", "--epochs", "12"]
TRAIN = ["inface.cli", "train", "digits", *METHOD, "--threads", "1"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def torchrun(count):
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count), "-m", "--"]


def test_killed_on_two_processes_and_resumed_on_three(tmp_path):
    out = ["--out", str(tmp_path / "several"), "--log", "tensorboard"]
    first = subprocess.Popen(
        [*torchrun(2), *TRAIN, *out, "--checkpoint-seconds", "0"],
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not (tmp_path / "several" / "checkpoint.safetensors").is_file():
        assert first.poll() is None
        time.sleep(0.05)
    time.sleep(0.3)
    first.terminate()  # torchrun ends its processes
    first.wait()
    assert not Run(tmp_path / "several").finished
    said = subprocess.run(
        [*torchrun(3), *TRAIN, *out, "--resume"], env=ENVIRONMENT, check=True, capture_output=True, text=True
    ).stdout
    assert said.count("continued after gradient") == 1
    assert said.count("written to") == 1
    subprocess.run(
        [sys.executable, "-m", *TRAIN, "--out", str(tmp_path / "one")],
        env=ENVIRONMENT,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    assert (
        len(list((tmp_path / "several" / "tensorboard").glob("events*"))) == 2
    )  # of the first process, killed and resumed
    one, several = Run(tmp_path / "one"), Run(tmp_path / "several")
    assert [record["step"] for record in one.records] == [record["step"] for record in several.records]
    for name, tensor in one.weights().items():
        torch.testing.assert_close(tensor, several.weights()[name], rtol=1e-3, atol=1e-4)


def test_an_error_is_said_once(tmp_path):
    (tmp_path / "config.json").write_text("[]")
    said = subprocess.run(
        [*torchrun(2), *TRAIN, "--out", str(tmp_path)], env=ENVIRONMENT, check=False, capture_output=True, text=True
    )
    assert said.returncode != 0
    assert said.stderr.count("already holds a run") == 1
