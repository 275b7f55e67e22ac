"""inface train --log: the loggers hold the numbers of metrics.jsonl, also of a run that was killed and resumed."""

import json
import subprocess
import sys
import time

import pytest

from inface.integrations.loggers import flat
from inface.lab.files import read_lines

pytest.importorskip("mlflow")
TRAIN = [sys.executable, "-m", "inface.cli", "train", "digits", "--density", "5%", "--threads", "1", "--epochs", "60"]
NAMES = ("tensorboard", "wandb", "mlflow")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that logs to all of them, killed on the way and resumed."""
    out = tmp_path_factory.mktemp("runs") / "digits"
    logs = [word for name in NAMES for word in ("--log", name)]
    command = [*TRAIN, *logs, "--out", str(out), "--checkpoint-seconds", "0"]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (out / "checkpoint.safetensors").is_file():
        assert first.poll() is None
        time.sleep(0.05)
    time.sleep(1)
    first.kill()
    first.wait()
    subprocess.run([*command, "--resume"], check=True, stdout=subprocess.DEVNULL)
    return out


def wanted(out):
    """By name: the numbers of metrics.jsonl, by step."""
    found = {}
    for record in read_lines(out / "metrics.jsonl"):
        for name, value in flat(record).items():
            found.setdefault(name, {})[record["step"]] = value
    return found


def test_tensorboard(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: PLC0415

    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    assert "epoch/metric" in wanted(run)
    for name, numbers in wanted(run).items():
        assert {event.step: event.value for event in events.Scalars(name)} == pytest.approx(numbers, rel=1e-6), name
    summary = json.loads((run / "summary.json").read_text())
    assert events.Scalars("summary/kept/100")[-1].value == pytest.approx(summary["kept"]["100"])


def test_mlflow(run):
    from mlflow import MlflowClient  # noqa: PLC0415

    client = MlflowClient(tracking_uri=f"sqlite:///{run / 'mlflow' / 'mlflow.db'}")
    (experiment,) = [one for one in client.search_experiments() if one.name == "inface"]
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.params["density"] == "0.05"
    for name, numbers in wanted(run).items():
        history = client.get_metric_history(found.info.run_id, name)
        assert {metric.step: metric.value for metric in history} == numbers, name


def test_wandb(run):
    kept = sorted((run / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(kept) == 2  # before the kill and after it
    number = json.loads((run / "wandb" / "run.json").read_text())["id"]
    assert {file.stem for file in kept} == {f"run-{number}"}
    assert b"epoch/metric" in kept[-1].read_bytes()
