"""The page about the laboratory shows what is there."""

import re
from pathlib import Path

import pytest

from inface.lab import Settings, train
from inface.lab.experiments.builtin import BUILT_IN
from inface.lab.runs.run import Run

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "laboratory.md").read_text(encoding="utf-8")


def test_the_page_shows_the_example_as_it_is():
    code = (ROOT / "examples" / "own_experiment.py").read_text(encoding="utf-8")
    assert f"```python\n{code}```" in PAGE


def test_the_example_leaves_measurements_out_and_still_tells_tumours(tmp_path):
    name = f"{ROOT / 'examples' / 'own_experiment.py'}:tumours"
    settings = {"lr": 0.1, "constrained_lr": 20.0, "momentum": 0.9, "schedule": "cosine"}
    run = train(Settings(name, epochs=100, batch_size=50, threads=1, **settings), tmp_path)
    used = run.weights()["0.weight"].abs().sum(0).count_nonzero()
    assert used < 20  # of 30
    assert run.summary["kept"]["100"] > 94


@pytest.mark.parametrize("name", re.findall(r"inface train ([a-z][\w-]*) ", PAGE))
def test_experiments_on_the_page_exist(name):
    assert name in BUILT_IN


def test_the_files_on_the_page_are_those_of_a_run(tmp_path):
    run = train(Settings("digits", epochs=1, threads=1), tmp_path)
    files = [run.config_file, run.metrics_file, run.model_file, run.summary_file, Run(tmp_path).checkpoint_file]
    assert re.findall(r"^\| `([\w.]+\.[a-z]+)` \|", PAGE, re.MULTILINE) == [file.name for file in files]
