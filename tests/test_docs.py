"""The pages show what is there."""

import ast
import importlib
import re
import runpy
import shlex
from pathlib import Path

import pytest
import typer

import inface
from inface.cli.app import app, spread
from inface.lab import Settings, train
from inface.lab.experiments.builtin import BUILT_IN
from inface.lab.runs.run import Run

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGE = (DOCS / "laboratory.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
PAGES += [
    page
    for folder in ("api", "concepts", "howto", "reference", "tutorials")
    for page in sorted((DOCS / folder).glob("*.md"))
]
COMMANDS = sorted({
    re.split(r"\s+#", line)[0]
    for page in PAGES
    for block in re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    for line in block.splitlines()
    if line.startswith("inface ")
})  # fmt: skip


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


def test_the_readme_fits_on_a_screen():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 65


def test_there_are_commands_on_the_pages():
    assert len(COMMANDS) > 15


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_on_a_page_has_the_options_that_it_shows(line):
    command, arguments = typer.main.get_command(app), spread(shlex.split(line)[1:])
    while hasattr(command, "commands"):
        assert arguments[0] in command.commands
        command, arguments = command.commands[arguments[0]], arguments[1:]
    command.make_context(line, arguments)  # an unknown option is an error here; nothing runs


def test_the_page_of_decisions_names_every_test_of_a_decision_in_its_section():
    sections = re.split(r"^## (\d+)\. ", (DOCS / "decisions.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    told = {number: re.findall(r"^- `(test_\w+)`$", text, re.MULTILINE) for number, text in zip(sections[::2], sections[1::2], strict=True)}  # fmt: skip
    parts = re.split(r"^# (\d+)\. ", (ROOT / "tests" / "test_decisions.py").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]  # fmt: skip
    fixed = {number: re.findall(r"^def (test_\w+)", text, re.MULTILINE) for number, text in zip(parts[::2], parts[1::2], strict=True)}  # fmt: skip
    assert told == fixed


@pytest.mark.parametrize(
    "module", ["density", "relative", "sets", "sparsity", "theory", "batches", "testing", "export", "lab"]
)
def test_the_reference_has_every_module_that_is_public(module):
    assert importlib.import_module(f"inface.{module}").__all__
    assert f".. automodule:: inface.{module}\n   :members:" in (DOCS / "api" / f"{module}.md").read_text(
        encoding="utf-8"
    )


def test_the_reference_has_every_name_of_the_package():
    page = (DOCS / "api" / "inface.md").read_text(encoding="utf-8")
    names = set(re.findall(r"^\.\. (?:autoclass|autofunction|data):: (\w+)", page, re.MULTILINE))
    modules = {name for name in inface.__all__ if (DOCS / "api" / f"{name}.md").exists()}
    assert names | modules == set(inface.__all__)


def test_the_plain_algorithm_on_its_page_starts_where_the_page_says():
    page = (DOCS / "api" / "reference.md").read_text(encoding="utf-8")
    start = re.search(r":start-at: (.*)", page)[1]
    names = [node.name for node in ast.parse((ROOT / "src/inface/reference.py").read_text(encoding="utf-8")).body if hasattr(node, "name")]  # fmt: skip
    assert start == f"def {names[0]}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_from_a_page_lead_to_files(page):
    gathered = runpy.run_path(str(DOCS / "pages.py"))["PAGES"]
    made = {DOCS / target: ROOT / source for source, target in gathered.items()}
    for address in re.findall(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)", page.read_text(encoding="utf-8")):
        if "://" not in address:
            file = (page.parent / address).resolve()
            file = made.get(file, ROOT / "results" / file.name if file.parent == DOCS / "results" else file)
            assert file.is_file(), address
