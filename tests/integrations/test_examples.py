"""The examples of frameworks run as they are."""

import runpy
from pathlib import Path

import pytest

from integrations import networks

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name):
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]()


def test_lightning():
    pytest.importorskip("lightning")
    trainer, model = run("lightning_digits")
    assert trainer.callback_metrics["accuracy"] > 0.85
    assert networks.nonzeros(model) <= 0.05 * 7400


def test_transformers():
    pytest.importorskip("transformers")
    trainer = run("transformers_text")
    logged = [entry for entry in trainer.state.log_history if "inface/density" in entry]
    assert logged[-1]["inface/density"] <= 0.25
    assert logged[-1]["loss"] < 1.0 < logged[0]["loss"]


def test_accelerate():
    pytest.importorskip("accelerate")
    model, accuracy = run("accelerate_digits")
    assert accuracy > 0.85
    assert (model[0].weight == 0).any()


def test_skorch():
    pytest.importorskip("skorch")
    assert run("skorch_digits") == {"optimizer__density": 0.1, "optimizer__radius": 5.0}


def test_loggers(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    monkeypatch.chdir(tmp_path)
    assert list(run("logged_run").glob("tensorboard/events*"))
