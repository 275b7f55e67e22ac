"""The distributions as a stranger gets them: built, put into environments of their own, used away from the sources."""

import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
STEM = f"inface-{PROJECT['version']}"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with the sdist, what is in it, and the wheel that is built from that alone."""
    folder = tmp_path_factory.mktemp("dist")
    _hatchling(ROOT, "sdist", folder)
    with tarfile.open(folder / f"{STEM}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    _hatchling(folder / STEM, "wheel", folder)
    return folder


@pytest.fixture(scope="module")
def library(built, tmp_path_factory):
    """The Python of an environment like that of ``pip install inface``: its dependencies and theirs, nothing else."""
    folder = tmp_path_factory.mktemp("library")
    packages = _installed(built, folder)
    for name in _closure(PROJECT["dependencies"]):
        found = distribution(name)
        for part in {file.parts[0] for file in found.files} - {"..", "__pycache__", "inface"}:
            if not (packages / part).exists():
                (packages / part).symlink_to(found.locate_file(part))
    return folder / "bin/python"


@pytest.fixture(scope="module")
def lab(built, tmp_path_factory):
    """The Python of an environment with the wheel and everything that is installed here."""
    folder = tmp_path_factory.mktemp("lab")
    packages = _installed(built, folder)
    # These come behind its own packages, and their .pth files, such as that of an editable inface, are not read.
    (packages / "here.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    return folder / "bin/python"


def _hatchling(source, target, folder):
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", target, "-d", folder], cwd=source, check=True)


def _installed(built, folder):
    """Make an environment with the wheel in it, and return its site-packages."""
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    with zipfile.ZipFile(built / f"{STEM}-py3-none-any.whl") as wheel:
        wheel.extractall(packages)  # noqa: S202 - a zip file that was made above
    return packages


def _closure(requirements):
    """The names of all distributions that requirements need."""
    names, todo = set(), list(requirements)
    while todo:
        wanted = Requirement(todo.pop())
        if wanted.name not in names and (wanted.marker is None or wanted.marker.evaluate({"extra": ""})):
            names.add(wanted.name)
            todo += distribution(wanted.name).requires or []
    return names


def _run(python, *arguments):
    """What Python prints in an empty folder; -I keeps it from the present folder and from PYTHONPATH."""
    folder = python.parent.parent / "empty"
    folder.mkdir(exist_ok=True)
    done = subprocess.run([python, "-I", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(built):
    files = (path for path in (ROOT / "src").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    sources = {path.relative_to(ROOT / "src").as_posix() for path in files}
    with zipfile.ZipFile(built / f"{STEM}-py3-none-any.whl") as wheel:
        held = {name for name in wheel.namelist() if not name.startswith(f"{STEM}.dist-info/")}
    assert held == sources
    assert "inface/py.typed" in held
    assert any(name.endswith(".jinja") for name in held)


def test_the_sdist_holds_what_the_build_and_the_tests_need(built):
    wanted = [
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "Makefile",
        "constraints.txt",
        "tests/conftest.py",
    ]
    assert [name for name in wanted if not (built / STEM / name).is_file()] == []


def test_the_wheel_has_the_version_of_the_project(library):
    version, file = _run(library, "-c", "import inface; print(inface.__version__); print(inface.__file__)")
    assert version == PROJECT["version"]
    assert Path(file).is_relative_to(library.parent.parent)


def test_the_library_trains_with_nothing_installed_but_its_dependencies(library):
    code = """if True:
        import inface, inface.kernels.rows, torch
        model = torch.nn.Linear(3, 2)
        opt = inface.FrankWolfe(model, {"weight": inface.sets.L1Ball(1.0)}, lr=0.1, fused=False, project=True)
        model(torch.ones(1, 3)).sum().backward()
        opt.step()
        print(opt.param_groups[0]["set"].contains(model.weight).all().item())
        print([name for name in inface.__all__ if not hasattr(inface, name)])
        """
    assert _run(library, "-c", code) == ["True", "[]"]


def test_the_command_without_the_laboratory_says_what_to_install(library):
    code = "import inface.cli\ntry: inface.cli.main(['--version'])\nexcept SystemExit as end: print(end)"
    assert _run(library, "-c", code) == ['inface: the command line needs the laboratory: pip install "inface[lab]"']


def test_the_command_of_the_wheel_lists_the_experiments(lab):
    command = "-c", "from importlib.metadata import entry_points as found; found(name='inface')['inface'].load()()"
    assert _run(lab, *command, "--version") == [f"inface {PROJECT['version']}"]
    assert "mnist-mlp" in " ".join(_run(lab, *command, "experiments"))
