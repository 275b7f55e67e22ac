"""What the project says of itself in several places is the same in all of them."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def pins(file):
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def test_the_oldest_versions_are_the_floors_of_the_project():
    oldest = pins("constraints.txt") | pins("constraints-oldest.txt")
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    floors = {
        wanted.name: floor.version
        for wanted in (Requirement(line) for group in groups for line in group)
        for floor in wanted.specifier
    }
    assert {"torch", "numba", "numpy"} <= floors.keys()
    for name, floor in floors.items():
        assert oldest[name].startswith(f"{floor}."), name


def test_an_oldest_version_is_older():
    newest = pins("constraints.txt")
    for name, version in pins("constraints-oldest.txt").items():
        assert Version(version) < Version(newest[name]), name


def test_ci_runs_every_python_that_the_project_names():
    prefix = "Programming Language :: Python :: 3."
    named = [
        line.removeprefix("Programming Language :: Python :: ") for line in PROJECT["classifiers"] if prefix in line
    ]
    workflow = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    assert re.search(r"python: \[(.*)\]", workflow)[1] == ", ".join(f'"{version}"' for version in named)
    assert PROJECT["requires-python"] == f">={named[0]}"


def test_changelog_and_citation_have_the_version_of_the_project():
    version = re.escape(PROJECT["version"])
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(rf"^## \[{version}\] - (Unreleased|\d{{4}}-\d\d-\d\d)$", changelog, re.MULTILINE)
    assert re.search(rf"^version: {version}$", citation, re.MULTILINE)
