"""Names from files and folders are shown with their control characters escaped."""

import json
import re

import pytest

from inface.cli import main
from inface.lab import LabError
from inface.text import printable

EVIL = "fc1\x1b]0;owned\x07\n\x9b2J\u202e[bold]weight"
UNFIT = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def command(capsys, *words):
    with pytest.raises(SystemExit) as caught:
        main([str(word) for word in words])
    return (caught.value.code or 0, *capsys.readouterr())


@pytest.fixture
def run(tmp_path, capsys):
    """A finished run whose folder, layers, metric and options have such names."""
    place = tmp_path / "run\x1b[2J\udcff"
    command(capsys, "train", "digits", "--out", place, "--epochs", "1", "--method", "sgd")
    summary, config = (json.loads((place / name).read_text()) for name in ("summary.json", "config.json"))
    summary["layers"] = {EVIL: summary["layers"]["fc1.weight"]}
    summary["metric"]["name"] = EVIL
    summary["kept"] = {**summary["kept"], EVIL: 1.0}
    (place / "summary.json").write_text(json.dumps(summary))
    (place / "config.json").write_text(json.dumps({**config, "versions": {EVIL: EVIL}}))
    return place


def test_what_is_printable_is_left_as_it_is_and_a_second_time_changes_nothing():
    assert printable("naïve / 层 \\ path") == "naïve / 层 \\ path"
    assert printable(printable(EVIL)) == printable(EVIL)
    assert printable(EVIL).isprintable()


def test_tables_show_no_control_character_of_a_file_and_obey_no_markup(run, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    code, out, err = command(capsys, "train", "--resume", "--out", run)
    assert (code, err) == (0, "")
    assert not UNFIT.search(out)
    assert "fc1\\x1b]0;owned\\x07\\n\\x9b2J\\u202e[bold]weight" in out
    assert "run\\x1b[2J\\udcff" in out


def test_errors_are_one_line_without_control_characters(run, capsys):
    (run / "summary.json").write_text("{")
    for words in (["report", run], ["report", f"{run}\x1b]"], ["train", "--out", run, f"--\x1b[2J{EVIL}"]):
        code, out, err = command(capsys, *words)
        assert (code > 0, out) == (True, "")
        assert err.count("\n") == 1
        assert not UNFIT.search(err)
    assert str(LabError(EVIL)) == printable(EVIL)


def test_the_report_shows_escapes_and_is_text(run, capsys, tmp_path):
    summary = json.loads((run / "summary.json").read_text())
    del summary["kept"][EVIL]  # which a report refuses
    (run / "summary.json").write_text(json.dumps(summary))
    run = run.rename(tmp_path / "run\x1b[2J")  # safetensors opens no file of a name that is not UTF-8
    page = tmp_path / "report.html"
    assert command(capsys, "report", run, "--out", page)[::2] == (0, "")
    assert not UNFIT.search(page.read_text())
    assert "\\x1b]0;owned" in page.read_text()
