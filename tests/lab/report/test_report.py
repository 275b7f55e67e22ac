"""The report, of run folders written by hand in the documented format."""

import base64
import html
import io
import json
import math
import re
import shlex
import tracemalloc
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import matplotlib as mpl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from PIL import Image

from helpers.run_folders import HOSTILE, make_run
from inface.lab.errors import ArgumentError, LabError
from inface.lab.report import Spread, columns, compare, headline, write_report
from inface.lab.report.edges import edges_left
from inface.lab.report.figures import settled
from inface.lab.report.groups import grouped, measure
from inface.lab.report.page import command
from inface.lab.report.palette import look
from inface.lab.report.series import MOST, Thinned, course
from inface.lab.report.svg import plain
from inface.lab.runs.run import Run
from inface.lab.runs.settings import METHODS


def three(folder, **more):
    return [make_run(folder / method, method, **more) for method in ("sgd", "sfw", "sfw-if")]


class Page(HTMLParser):
    """Elements, their attributes, and the text outside of styles."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.text, self.inside = [], "", []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self.inside.append(tag)

    def handle_endtag(self, tag):
        self.inside.append("/" + tag)

    def handle_data(self, data):
        if not self.inside or self.inside[-1] != "style":
            self.text += data

    def all(self, tag):
        return [attributes for found, attributes in self.elements if found == tag]

    @property
    def words(self):
        return " ".join(self.text.replace("\xa0", " ").split())


def read(path):
    return Page(path.read_text(encoding="utf-8"))


def figure_ids(page):
    return [attributes["id"] for attributes in page.all("figure")]


# ---------------------------------------------------------------------------------------------------- the comparison


def test_rows_hold_the_numbers_of_the_summary(tmp_path):
    sgd, _, best = compare(three(tmp_path))
    assert (sgd.method, best.method, best.name, best.count) == ("sgd", "sfw-if", "SFW-IF", 1)
    assert best.kept[5] == Spread(97.1, 0.0)
    assert best.layers == {"fc1.weight": Spread(12.5, 0.0), "fc2.weight": Spread(12.5, 0.0)}
    assert best.network == Spread(30.0, 0.0)
    assert (best.gap, sgd.gap) == (Spread(0.3, 0.0), None)
    assert best.settings == "lr 0.125, constrained lr 4, radius 1 10"
    assert sgd.settings == "lr 0.125"
    assert (best.text("kept:5"), sgd.text("gap")) == ("97.1", "-")


def test_runs_that_differ_only_in_seed_or_trial_are_one_row(tmp_path):
    runs = [make_run(tmp_path / str(seed), seed=seed, options={"trial": seed}) for seed in (0, 2)]
    (row,) = compare(runs)
    assert row.count == 2
    assert row.kept[5] == Spread(pytest.approx(98.1), pytest.approx(math.sqrt(2)))
    assert row.text("kept:5") == "98.1 ± 1.4"


@pytest.mark.parametrize(
    "change",
    [
        {"lr": 0.5},
        {"radius": [2.0, 10.0]},
        {"momentum": 0.9},
        {"epochs": 4},
        {"schedule": "cosine"},
        {"in_face": "pairwise"},
        {"free_momentum": 0.0},
    ],
)
def test_runs_of_different_settings_are_different_rows_that_say_so(tmp_path, change):
    rows = compare([make_run(tmp_path / "a"), make_run(tmp_path / "b", **change)])
    assert len(rows) == 2
    assert rows[0].label != rows[1].label
    assert rows[0].label.startswith("SFW-IF, ")


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("sgd", {"radius": [2.0], "constrained_lr": 1.0, "in_face": "pairwise", "every_gradient": True}),
        ("sgd", {"free_momentum": 0.0}),
        ("sfw", {"in_face": "pairwise", "every_gradient": True}),
        ("sfw-if", {"threads": 2, "source": "ab" * 32}),
    ],
)
def test_settings_that_mean_nothing_to_a_method_neither_split_its_runs_nor_are_mentioned(tmp_path, method, changes):
    for key, value in changes.items():
        (row,) = compare(
            [make_run(tmp_path / key / "a", method), make_run(tmp_path / key / "b", method, seed=1, **{key: value})]
        )
        assert (row.count, row.label) == (2, row.name)
        (alone,) = compare([make_run(tmp_path / key / "c", method, **{key: value})])
        assert alone.settings == row.settings


def test_a_run_from_before_a_setting_is_one_row_with_runs_that_have_its_default(tmp_path):
    runs = [make_run(tmp_path / "old"), make_run(tmp_path / "new", seed=1, warmup=0.0, in_face_steps=1)]
    (row,) = compare(runs)
    assert (row.count, row.label) == (2, "SFW-IF")


def test_every_method_has_a_colour_and_a_marker_of_its_own(tmp_path):
    groups = grouped([make_run(tmp_path / method, method) for method in METHODS])
    looks = [look(group, groups) for group in groups]
    assert len({each.colour for each in looks}) == len({each.marker for each in looks}) == len(METHODS)
    assert [group.label for group in groups] == list(METHODS.values())


def test_runs_of_different_options_do_not_compete(tmp_path):
    options = [{"edges": edges, "snr": 1.0, "activation": "relu"} for edges in (10, 5)]
    runs = [
        run
        for index, each in enumerate(options)
        for run in three(tmp_path / str(index), experiment="synthetic", options=each)
    ]
    rows = compare(runs)
    assert [row.problem for row in rows[::3]] == [
        f"edges {edges}, snr 1, activation relu, samples 100000" for edges in (5, 10)
    ]
    assert [("kept:5" in row.best) for row in rows] == [False, False, True] * 2


def test_options_that_are_not_given_are_the_experiments_own(tmp_path):
    given = make_run(tmp_path / "a", experiment="synthetic", options={"edges": 10, "trial": 1})
    default = make_run(tmp_path / "b", experiment="synthetic", seed=1)
    assert [row.count for row in compare([given, default])] == [2]


def test_the_best_of_each_column_is_marked(tmp_path):
    rows = compare(three(tmp_path))
    assert [("kept:5" in row.best, "layer:fc1.weight" in row.best) for row in rows] == [(False, False)] * 2 + [
        (True, True)
    ]
    assert not any("kept:100" in row.best for row in rows), "nobody wins where all are equal"


def test_lower_is_better_where_the_metric_says_so(tmp_path):
    mse = {"name": "MSE", "unit": "", "better": "lower"}
    runs = [
        make_run(tmp_path / method, method, metric=mse, kept={"100": 0.1, "5": value})
        for method, value in (("sgd", 0.5), ("sfw", 0.123456))
    ]
    sgd, sfw = compare(runs)
    assert ("kept:5" in sgd.best, "kept:5" in sfw.best) == (False, True)
    assert sfw.text("kept:5") == "0.123"
    assert headline([sgd, sfw]).startswith(
        "SFW (run sfw) rises to 0.123 MSE with 5 % of its edges (0.1 with all); dense SGD (run sgd) rises to 0.5"
    )


def test_gaps_of_different_sets_are_not_ranked(tmp_path):
    same = compare([make_run(tmp_path / "a"), make_run(tmp_path / "b", "sfw", summary={"gap": {"exact": 0.9}})])
    other = compare(
        [make_run(tmp_path / "c"), make_run(tmp_path / "d", "sfw", radius=[9.0], summary={"gap": {"exact": 0.9}})]
    )
    assert [("gap" in row.best) for row in same] == [False, True]
    assert not any("gap" in row.best for row in other)


def test_columns_are_those_of_the_table(tmp_path):
    keys = [column.key for column in columns(compare(three(tmp_path)))]
    assert keys[:5] == ["layer:fc1.weight", "exact:fc1.weight", "layer:fc2.weight", "exact:fc2.weight", "network"]
    assert keys[5:] == [f"kept:{theta}" for theta in (100, 50, 25, 10, 5, 2, 1)] + ["gap", "seconds"]
    assert "gap" not in [column.key for column in columns(compare([make_run(tmp_path / "only", "sgd")]))]


def test_the_headline_says_who_keeps_and_who_falls(tmp_path):
    text = headline(compare(three(tmp_path)))
    assert text.startswith(
        "SFW-IF (run sfw-if) keeps 97.1 % accuracy with 5 % of its edges (98.0 % with all); SFW (run sfw) falls to 93.0 %"
    )
    assert "dense SGD (run sgd) falls to 81.2 %" in text
    assert "Edges of at least 0.001 in the constrained layers: SFW-IF 12.5 % and 12.5 %" in text


def test_the_headline_is_honest_when_the_dense_network_wins(tmp_path):
    runs = [make_run(tmp_path / m, m, kept={"100": 98.0, "5": v}) for m, v in (("sgd", 97.5), ("sfw-if", 60.0))]
    assert headline(compare(runs)).startswith(
        "Dense SGD (run sgd) keeps 97.5 % accuracy with 5 % of its edges (98.0 % with all); SFW-IF (run sfw-if) falls to 60.0 %"
    )


def test_the_headline_quotes_each_method_by_its_best_run_with_that_share_of_the_edges(tmp_path):
    pruned = {"prune-10": (0.1, 98.5, 60.0), "prune-5": (0.05, 98.2, 98.1)}
    runs = [make_run(tmp_path / n, "prune", keep=k, kept={"100": w, "5": v}) for n, (k, w, v) in pruned.items()]
    text = headline(compare([*runs, make_run(tmp_path / "ours")]))
    assert text.startswith(
        "Pruning (run prune-5) keeps 98.1 % accuracy with 5 % of its edges (98.2 % with all); SFW-IF (run ours) keeps 97.1 %"
    )
    assert "60.0" not in text
    assert "With all edges, the best of each method: pruning 98.5 % (run prune-10); SFW-IF 98.0 %" in text


def test_the_headline_names_runs_of_the_same_folder_name_by_their_parents(tmp_path):
    runs = [make_run(tmp_path / f"{method}/{seed}", method, seed=seed) for method in ("sgd", "sfw") for seed in (0, 1)]
    text = headline(compare(runs))
    assert text.startswith("SFW (runs sfw/0 and sfw/1) falls to 93.5 ± 0.7 % accuracy")
    assert "runs a0 and 3 more" in headline(compare([make_run(tmp_path / f"a{seed}", seed=seed) for seed in range(4)]))


def test_no_method_wins_a_problem_where_two_print_the_same_number(tmp_path):
    values = {"a": (90.0, 80.0), "b": (80.04, 80.0), "c": (80.0, 80.04)}
    runs = [
        make_run(tmp_path / name / method, method, options={"name": name}, kept={"100": 98.0, "5": value})
        for name, pair in values.items()
        for method, value in zip(("sgd", "sfw"), pair, strict=True)
    ]
    assert "SGD has the best accuracy in 1 of 3 problems, no method alone in 2." in headline(compare(runs))
    assert "no method alone has the best accuracy in 2 of 2 problems" in headline(compare(runs[2:]))


def test_the_headline_counts_wins_over_several_problems(tmp_path):
    runs = []
    for index, (sgd, sfw) in enumerate(((90.0, 80.0), (70.0, 80.0), (70.0, 80.0))):
        options = {"snr": float(index)}
        runs += [make_run(tmp_path / f"{index}a", "sgd", options=options, kept={"100": 98.0, "5": sgd})]
        runs += [make_run(tmp_path / f"{index}b", "sfw", options=options, kept={"100": 98.0, "5": sfw})]
    assert "SFW has the best accuracy in 2 of 3 problems, SGD in 1" in headline(compare(runs))


def test_values_that_are_missing_are_hyphens(tmp_path):
    kept = {"100": 98.0, "50": None}
    (row,) = compare([make_run(tmp_path / "a", kept=kept, summary={"gap": {"exact": None}})])
    assert [row.text(key) for key in ("kept:50", "kept:1", "gap")] == ["-"] * 3


@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        ({"kept": {"5": "many"}}, "kept.5: wanted int or float or NoneType, got 'many'"),
        ({"kept": 5}, "kept: wanted a mapping, got 5"),
        ({"layers": None}, "layers: wanted a mapping, got None"),
        ({"layers": {"fc": {"percent": 3.0}}}, "layers.fc.exact_percent: is missing"),
        ({"metric": "x"}, "metric: wanted a mapping, got 'x'"),
        ({"network": {}}, "network.percent: is missing"),
        ({"gap": 3}, "gap: wanted dict or NoneType, got 3"),
        ({"gap": {"exact": "x"}}, "gap.exact: wanted int or float or NoneType, got 'x'"),
        ({"loss": "x"}, "loss: wanted int or float or NoneType, got 'x'"),
        ({"steps": True}, "steps: wanted int, got True"),
        ({"seconds": "x"}, "seconds: wanted int or float, got 'x'"),
    ],
)
def test_a_summary_that_is_not_one_is_named_with_the_place(tmp_path, wrong, place):
    run = make_run(tmp_path / "a", summary=wrong)
    with pytest.raises(LabError, match=re.escape(f"{run.summary_file}: {place}")):
        write_report([run], tmp_path / "r.html")


@given(st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6), st.just(math.nan), st.just(math.inf)), max_size=9))
def test_a_spread_is_of_the_finite_numbers(values):
    finite = [value for value in values if value is not None and math.isfinite(value)]
    found = Spread.of(values)
    assert (found is None) == (not finite)
    if found:
        assert min(finite) - 1e-6 <= found.mean <= max(finite) + 1e-6
        assert 0 <= found.deviation <= max(finite) - min(finite) + 1e-6


def test_a_run_given_twice_counts_once(tmp_path):
    run = make_run(tmp_path / "a")
    assert [row.count for row in compare([run, Run(tmp_path / "a" / ".." / "a")])] == [1]


# ---------------------------------------------------------------------------------------------------------- the page


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The report of three runs, with its pictures, made once for the tests that only look at it."""
    folder = tmp_path_factory.mktemp("written")
    before = dict(mpl.rcParams)
    out = write_report(three(folder / "runs"), folder / "r.html", figures=folder / "figures", formats=("svg", "png"))
    assert dict(mpl.rcParams) == before, "drawing leaves matplotlib as it was"
    return out


def test_the_page_has_its_table_its_figures_and_its_captions(written):
    page = read(written)
    names = ("edges", "kept", "first-layer", "gap", "nonzeros", "progress")
    assert figure_ids(page) == [f"digits-{name}" for name in names]
    assert len(page.all("figcaption")) == 6
    assert "SFW-IF (run sfw-if) keeps 97.1 % accuracy with 5 % of its edges" in page.words
    assert "SGD has no gap" in page.words
    assert "the running median of the gap over 21 points, about one epoch, and the gap of each" in page.words
    assert "How to read this." in page.words
    assert "inface 0.1.0, torch 2.7.0" in page.words
    assert len(page.all("tr")) == 2 + 3
    for plot in (svg for svg in page.all("svg") if svg["class"] == "plot"):
        assert plot["role"] == "img"
        assert len(plot["aria-label"]) > 20


def test_the_page_asks_for_nothing_else(written):
    text = written.read_text()
    page = Page(text)
    assert not page.all("script")
    assert "default-src 'none'" in next(m["content"] for m in page.all("meta") if "http-equiv" in m)
    addresses = [
        value
        for _, attributes in page.elements
        for key, value in attributes.items()
        if key in {"href", "src", "xlink:href"}
    ]
    assert all(address.startswith(("#", "data:")) for address in addresses)
    assert not re.search(r"url\((?!#)|@import", text)


def test_no_two_elements_share_an_id_and_every_reference_has_its_target(tmp_path):
    runs = [
        *three(tmp_path / "a"),
        *three(tmp_path / "b", experiment="mnist-mlp"),
        make_run(tmp_path / "c", seed=1, steps=3),
    ]
    text = write_report(runs, tmp_path / "report.html").read_text()
    ids = [attributes["id"] for _, attributes in Page(text).elements if attributes.get("id")]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"url\(#([^)]*)\)", text)) <= set(ids)
    assert set(re.findall(r'href="#([^"]*)"', text)) <= set(ids)


def test_figures_take_the_colour_of_the_text(written):
    text = written.read_text()
    assert "#010203" not in text
    assert text.count("currentColor") > 100


def test_the_same_runs_give_the_same_bytes_whatever_the_users_style_is(written, tmp_path):
    runs = [Run(written.parent / "runs" / method) for method in ("sgd", "sfw", "sfw-if")]
    with mpl.rc_context({"axes.facecolor": "red", "font.size": 30, "lines.linewidth": 9}):
        again = write_report(runs, tmp_path / "r.html", figures=tmp_path / "figures", formats=("svg", "png"))
    assert again.read_bytes() == written.read_bytes()
    before, after = (
        {path.name: path.read_bytes() for path in (page.parent / "figures").iterdir()} for page in (written, again)
    )
    assert before == after


def test_pictures_are_files_of_the_formats_asked_for(written):
    folder = written.parent / "figures"
    names = ("edges", "first-layer", "gap", "kept", "nonzeros", "progress")
    assert sorted(path.name for path in folder.iterdir()) == [
        f"digits-{name}.{kind}" for name in names for kind in ("png", "svg")
    ]
    for name in names:
        assert (folder / f"digits-{name}.png").read_bytes().startswith(b"\x89PNG")
        assert ET.parse(folder / f"digits-{name}.svg").getroot().tag.endswith("svg")  # noqa: S314 - written here


def test_a_report_that_fails_leaves_the_old_one(tmp_path):
    out = tmp_path / "report.html"
    out.write_text("old")
    run = make_run(tmp_path / "a")
    (run.path / "model.safetensors").write_bytes(b"\x08damaged")
    with pytest.raises(LabError, match=re.escape(f"{run.path / 'model.safetensors'}: is not a safetensors file")):
        write_report([run], out)
    assert out.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "report.html"]


@pytest.mark.parametrize(
    ("name", "contents", "message"),
    [
        ("config.json", "{", "is not JSON"),
        ("config.json", '{"format": 1, "experiment": "digits"}', 'wanted a text as "method"'),
        ("summary.json", '{"format": 2}', "has format 2"),
        ("metrics.jsonl", "nonsense\n", "line 1 is not JSON"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, name, contents, message):
    run = make_run(tmp_path / "a")
    (run.path / name).write_text(contents)
    with pytest.raises(LabError, match=f"{re.escape(str(run.path / name))}: {message}"):
        write_report([Run(run.path)], tmp_path / "r.html")


def test_arguments_that_cannot_be_are_refused(tmp_path):
    run = make_run(tmp_path / "a")
    with pytest.raises(ArgumentError, match="at least one run"):
        write_report([], tmp_path / "r.html")
    with pytest.raises(ArgumentError, match="format: wanted svg or png, got pgn; did you mean png"):
        write_report([run], tmp_path / "r.html", formats=("pgn",))
    with pytest.raises(ArgumentError, match="is a folder"):
        write_report([run], tmp_path)


def test_hostile_names_are_inert(tmp_path):
    runs = [
        make_run(
            tmp_path / f"<b>{index}" / "$run$",
            method,
            experiment=HOSTILE,
            layers=(HOSTILE, "l" * 500),
            seed=seed,
            options={HOSTILE: HOSTILE},
            metric={"name": HOSTILE, "unit": HOSTILE, "better": "higher"},
            versions={HOSTILE: HOSTILE},
            in_face=HOSTILE,
        )
        for index, (method, seed) in enumerate((("sgd", 0), (HOSTILE, 0), (HOSTILE, 1)))
    ]
    text = write_report(
        runs, tmp_path / "r.html", figures=tmp_path / "p", formats=("svg", "png"), title=HOSTILE
    ).read_text()
    page = Page(text)
    assert not page.all("script")
    assert HOSTILE.replace("\x07", r"\x07") in page.text
    assert all(path.stem.startswith("script-alert-x-y-script-7-7-frac-") for path in (tmp_path / "p").iterdir())
    for svg in (tmp_path / "p").glob("*.svg"):
        ET.parse(svg)  # noqa: S314 - written here
    for fragment in re.findall(r'<svg class="plot".*?</svg>', text, flags=re.DOTALL):
        ET.fromstring(fragment.replace("xlink:href", "href"))  # noqa: S314


def test_a_style_cannot_be_ended_by_a_name(tmp_path):
    run = make_run(
        tmp_path / "a", experiment="</style></svg><img src=x onerror=alert(1)>", layers=("</title><img>", "-->")
    )
    page = read(write_report([run], tmp_path / "r.html"))
    assert not page.all("img")


def test_one_run_alone_makes_a_report(tmp_path):
    page = read(write_report([make_run(tmp_path / "a", "sgd", image=None)], tmp_path / "r.html"))
    assert figure_ids(page) == ["digits-edges", "digits-kept", "digits-nonzeros", "digits-progress"]
    assert "Run it again" in page.words


def test_settings_stand_under_the_table_once_for_each_method(tmp_path):
    runs = [make_run(tmp_path / f"{lr}{seed}", lr=lr, seed=seed, momentum=0.9) for lr in (0.1, 0.2) for seed in (0, 1)]
    runs.append(make_run(tmp_path / "sgd", "sgd", momentum=0.5))
    page = read(write_report(runs, tmp_path / "r.html"))
    assert "SGD lr 0.125, momentum 0.5 SFW-IF always constrained lr 4, radius 1 10, momentum 0.9" in page.words
    assert page.words.count(", momentum 0.9") == 1


def test_unfinished_runs_are_drawn_but_not_compared(tmp_path):
    runs = [make_run(tmp_path / "done", "sgd"), make_run(tmp_path / "going", finished=False)]
    page = read(write_report(runs, tmp_path / "r.html"))
    assert "Unfinished runs, which are in the figures but not in the table: going" in page.words
    assert len(page.all("tr")) == 2 + 1
    assert "digits-gap" in figure_ids(page)


def test_a_run_that_has_just_started_is_only_mentioned(tmp_path):
    run = make_run(tmp_path / "going", finished=False)
    run.metrics_file.unlink()
    page = read(write_report([run], tmp_path / "r.html"))
    assert "No run is finished." in page.words
    assert not page.all("figure")
    assert not page.all("table")


def test_each_experiment_has_its_section(tmp_path):
    runs = [*three(tmp_path / "a"), *three(tmp_path / "b", experiment="my/nets.py:deep")]
    page = read(write_report(runs, tmp_path / "r.html"))
    assert [section["id"] for section in page.all("section")] == ["digits", "deep"]
    assert len(page.all("table")) == 2
    assert "deep-kept" in figure_ids(page)


def test_the_title_is_the_name_of_the_experiment_and_not_its_path(tmp_path):
    def title(*experiments):
        runs = [make_run(tmp_path / name.replace("/", "-"), "sgd", experiment=name) for name in experiments]
        text = write_report(runs, tmp_path / "r.html").read_text()
        return re.search("<title>(.*)</title>", text)[1], re.search("<h1>(.*)</h1>", text)[1]

    assert title("/home/me/nets.py:deep") == ("Sparse training: deep",) * 2
    assert title("/home/me/old/nets.py:net", "/home/me/new/nets.py:net", "digits")[0] == (
        "Sparse training: old/nets.py:net, new/nets.py:net, digits"
    )


def test_nulls_everywhere_do_not_break_a_page(tmp_path):
    summary = {**dict.fromkeys(("loss", "gap", "image")), "kept": {"100": None}, "layers": {}}
    run = make_run(tmp_path / "a", summary=summary)
    nulls = [{"kind": "step", "step": 1, "gap": None, "nonzeros": None}, {"kind": "epoch", "epoch": 1, "metric": None}]
    run.metrics_file.write_text("".join(json.dumps(line) + "\n" for line in nulls))
    page = read(write_report([run, make_run(tmp_path / "b", "sgd")], tmp_path / "r.html"))
    assert "Some runs have no results." in page.words
    alone = read(write_report([run], tmp_path / "r.html"))
    assert not alone.all("figure")


def test_losses_and_gaps_of_zero_do_not_break_a_logarithmic_axis(tmp_path):
    run = make_run(tmp_path / "a")
    lines = [
        {"kind": "step", "step": s, "gap": 0.0, "smoothed_gap": 0.0, "nonzeros": {"fc1.weight": 0.0}} for s in (1, 2)
    ]
    lines += [{"kind": "epoch", "epoch": e, "train_loss": 0.0, "metric": 100.0} for e in (1, 2)]
    run.metrics_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = read(write_report([run], tmp_path / "r.html"))
    assert "digits-gap" not in figure_ids(page)
    assert "digits-progress" in figure_ids(page)


def test_trials_are_drawn_as_boxes(tmp_path):
    runs = [make_run(tmp_path / f"{m}{s}", m, seed=s, image=None) for m in ("sgd", "sfw-if") for s in range(3)]
    page = read(write_report(runs, tmp_path / "r.html"))
    assert figure_ids(page)[-1] == "digits-trials"
    assert "Results of 3 trials" in page.words
    assert "SFW-IF 3 runs" in page.words
    assert "± 1.0" in page.words


def test_every_constrained_layer_has_its_boxes_its_curve_and_its_columns(tmp_path):
    layers = [f"fc{index}.weight" for index in range(1, 6)]
    runs = [make_run(tmp_path / f"{s}", seed=s, layers=layers, image=None) for s in range(2)]
    labels = [svg.get("aria-label", "") for svg in read(write_report(runs, tmp_path / "r.html")).all("svg")]
    for index in range(1, 6):
        assert sum(label.startswith(f"non-zero edges per node, layer {index}: box plots") for label in labels) == 1
        assert sum(f"into a node of layer {index} against gradients" in label for label in labels) == 1
    keys = [column.key for column in columns(compare(runs))]
    assert [key for key in keys if key.startswith("layer:")] == [f"layer:{name}" for name in layers]


SYNTHETIC = {
    "experiment": "synthetic",
    "image": None,
    "metric": {"name": "MSE", "unit": "", "better": "lower"},
    "steps": 5,
}


def test_sixty_runs_of_the_synthetic_experiment_make_one_page(tmp_path):
    runs = [
        make_run(tmp_path / f"{m}-{snr}-{t}-{method}", method, options={"edges": m, "snr": snr, "trial": t}, seed=t, **SYNTHETIC)
        for m in (5, 15) for snr in (1.0, 5.0) for t in range(5) for method in ("sgd", "sfw", "sfw-if")
    ]  # fmt: skip
    assert len(runs) == 60
    out = write_report(runs, tmp_path / "r.html")
    page = read(out)
    boxes = [svg["aria-label"] for svg in page.all("svg") if "box plots" in svg.get("aria-label", "")]
    assert len(boxes) == 2 * 3, "a row for each quantity, a column for each m"
    assert "m is the number of true edges into a node" in page.words
    assert out.stat().st_size < 5_000_000


def test_errors_of_another_magnitude_have_an_axis_of_their_own(tmp_path):
    runs = [
        make_run(tmp_path / f"{snr}-{t}", options={"edges": 5, "snr": snr, "trial": t}, seed=t,
                 kept={"100": error + t / 100}, **SYNTHETIC)
        for snr, error in ((1.0, 2.0), (5.0, 0.6), (10.0, 0.5)) for t in range(3)
    ]  # fmt: skip
    page = read(write_report(runs, tmp_path / "r.html"))
    labels = [svg["aria-label"] for svg in page.all("svg") if "box plots" in svg.get("aria-label", "")]
    errors = [label for label in labels if label.startswith("MSE")]
    assert ["SNR 1," in label for label in errors] == [True, False]
    assert "SNR 5 and 10," in errors[1]
    assert not any("SNR 1," in label for label in labels if label not in errors), "edges share one axis"


def test_the_first_gaps_and_a_spike_do_not_set_the_axis():
    late = [0.1, 0.2, 0.4] * 130
    low, high = settled([[1000.0] * 20 + late, [*late[:200], 50.0, *late[200:]]])
    assert 0.08 < low < 0.1
    assert 0.4 < high < 0.5
    assert settled([[3.0, 1.0]])[1] > 3.0, "a short line is shown whole"
    assert settled([[math.nan, 0.0], []]) is None


def test_activations_of_the_synthetic_experiment_have_a_figure_of_boxes_each(tmp_path):
    runs = [
        make_run(tmp_path / f"{a}{t}", options={"activation": a, "trial": t}, seed=t, **SYNTHETIC)
        for a in ("relu", "sigmoid")
        for t in (0, 1)
    ]
    page = read(write_report(runs, tmp_path / "r.html"))
    assert figure_ids(page)[:2] == ["synthetic-trials", "synthetic-trials-2"]


def test_a_sweep_of_many_settings_has_a_short_legend(tmp_path):
    runs = [make_run(tmp_path / str(i), lr=0.01 * (i + 1), image=None) for i in range(12)]
    page = read(write_report(runs, tmp_path / "r.html"))
    assert len(page.all("li")) < 12 + 4 * 2
    assert "each method's best setting with that share" in page.words


# ------------------------------------------------------------------------------------------------------- the series


@given(st.integers(0, 300), st.integers(2, 20))
def test_a_thinned_stream_is_evenly_spaced_and_keeps_its_ends(count, most):
    thinned = Thinned(most)
    for item in range(count):
        thinned.add(item)
    items = thinned.items
    assert items[:1] == list(range(count))[:1]
    assert items[-1:] == list(range(count))[-1:]
    assert len(items) <= most + 1
    assert len(items) >= min(count, most // 2)
    assert items[:-1] == list(range(0, count, thinned.stride))[: max(0, len(items) - 1)]


def test_a_long_series_is_thinned_and_a_short_one_is_whole(tmp_path):
    long, short = (course(make_run(tmp_path / str(steps), steps=steps)) for steps in (3 * MOST, MOST))
    assert (long.thinned, short.thinned) == (True, False)
    assert short.gap[0].tolist() == list(range(1, MOST + 1))
    assert len(long.gap[0]) <= MOST + 1
    assert (long.gap[0][0], long.gap[0][-1]) == (1, 3 * MOST)
    assert long.metric[0].tolist() == [1, 2, 3], "all epochs"
    page = read(write_report([Run(tmp_path / str(3 * MOST))], tmp_path / "r.html"))
    assert "Of series of more than 2,000 points, evenly spaced ones." in page.words
    assert "about one epoch" not in page.words


def test_long_records_are_read_in_the_memory_of_a_picture(tmp_path):
    run = make_run(tmp_path / "a", steps=20_000)
    course(run)
    tracemalloc.start()
    course(run)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert run.metrics_file.stat().st_size > 3_000_000
    assert peak < 3_500_000
    make_run(tmp_path / "b", steps=40_000)
    tracemalloc.start()
    course(Run(tmp_path / "b"))
    twice = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert twice < 1.5 * peak, "twice the records need no more memory"


def test_a_last_line_that_a_kill_cut_off_does_not_count(tmp_path):
    run = make_run(tmp_path / "a")
    with run.metrics_file.open("ab") as file:
        file.write(b'{"kind": "step", "step": 31, "ga\xc3')
    assert course(run).gap[0][-1] == 30
    run.metrics_file.write_bytes(run.metrics_file.read_bytes() + b"\n")
    with pytest.raises(LabError, match=r"metrics.jsonl: line 34 is not UTF-8 text"):
        course(run)


# ------------------------------------------------------------------------------------------- the edges that are left


def drawn(path):
    """What the picture of the edges that are left shows: its points and its lines, each a list of (edges in %, metric)."""
    groups = grouped(runs := [Run(folder) for folder in sorted(path.iterdir())])
    axes = Figure().add_subplot()
    edges_left(groups, measure(runs)).panels[0].draw(axes)
    lines = [[(round(x, 6), y) for x, y in line.get_xydata().tolist()] for line in axes.lines]
    marked = [artist.get_marker() != "None" for artist in axes.lines]
    points = [line[0] for line, marker in zip(lines, marked, strict=True) if marker]
    return sorted(points), [line for line, marker in zip(lines, marked, strict=True) if not marker]


def layers(**parts):
    """Two layers of 100 and 300 edges with so many per cent that are not zero."""
    sizes = {"fc1.weight": (10, 10), "fc2.weight": (30, 10)}
    return {
        name: {"percent": 0.0, "exact_percent": parts[name[:3]], "edges": 1.0, "inputs": inputs, "nodes": nodes}
        for name, (inputs, nodes) in sizes.items()
    }


def test_every_run_is_a_point_at_the_edges_that_are_not_zero(tmp_path):
    for seed, (first, second) in enumerate(((100.0, 100.0), (8.0, 4.0), (2.0, 2.0))):
        summary = {"layers": layers(fc1=first, fc2=second)}
        make_run(tmp_path / str(seed), seed=seed, kept={"100": 98.0 - seed}, summary=summary)
    make_run(tmp_path / "going", seed=9, finished=False)
    points, _ = drawn(tmp_path)
    assert points == [(2.0, 96.0), (5.0, 97.0), (100.0, 98.0)]


def test_a_cut_that_takes_no_edges_is_not_on_the_line(tmp_path):
    kept = {"100": 98.0, "50": 97.0, "25": 97.0, "10": 98.0, "5": 96.0, "2": None, "1": 20.0}
    make_run(tmp_path / "a", kept=kept, summary={"layers": layers(fc1=8.0, fc2=4.0)})
    _, lines = drawn(tmp_path)
    assert lines == [[(5.0, 98.0), ((100 * 5 + 300 * 4) / 400, 96.0), (1.0, 20.0)]]


def test_the_edges_that_are_left_are_told_in_words_and_by_method(tmp_path):
    runs = [
        make_run(tmp_path / f"{method}{lr}", method, lr=lr)
        for method in ("sgd", "prune", "sfw-if")
        for lr in (0.1, 0.2)
    ]
    text = write_report(runs, tmp_path / "r.html").read_text()
    figure = text[text.index('id="digits-edges"') : text.index('id="digits-kept"')]
    words = Page(figure).all("svg")[-1]["aria-label"]
    assert words.startswith(
        "accuracy, % against the percentage of edges left, a point for each run: SGD, lr 0.1 98.0 % with 100 %"
    )
    legend = re.search(r'<ul class="legend".*?</ul>', figure, flags=re.DOTALL)[0]
    assert Page(legend).words == "SGD pruning SFW-IF"


def test_a_network_without_edges_is_no_point_on_a_logarithmic_axis(tmp_path):
    runs = [make_run(tmp_path / "a", image=None, summary={"layers": layers(fc1=0.0, fc2=0.0)})]
    assert "digits-edges" not in figure_ids(read(write_report(runs, tmp_path / "r.html")))
    runs += [make_run(tmp_path / "b", seed=1)]
    assert "digits-edges" in figure_ids(read(write_report(runs, tmp_path / "r.html")))


# --------------------------------------------------------------------------------------------------- the first layer


def image_of(path):
    data = re.findall(r'href="data:image/png;base64,([^"]*)"', path.read_text(), flags=re.DOTALL)
    return [Image.open(io.BytesIO(base64.b64decode(part))).convert("RGBA") for part in data]


def test_exact_zeros_of_the_first_layer_are_empty_and_everything_else_is_not(tmp_path):
    weight = torch.zeros(9, 16)
    weight[0, 5], weight[0, 6], weight[1, 0] = 1.0, -1.0, 1e-6
    tensors = {"fc1.weight": weight, "fc2.weight": torch.ones(9, 9)}
    out = write_report([make_run(tmp_path / "a", weights=tensors)], tmp_path / "r.html")
    mosaic = image_of(out)[0]
    assert mosaic.size == (3 * 5 - 1, 3 * 5 - 1)
    shown = {(x, y): mosaic.getpixel((x, y)) for x in range(14) for y in range(14) if mosaic.getpixel((x, y))[3]}
    assert set(shown) == {(1, 1), (2, 1), (5, 0)} or set(shown) == {(x, 13 - y) for x, y in ((1, 1), (2, 1), (5, 0))}
    reds = sorted(pixel[0] > pixel[2] for pixel in shown.values())
    assert reds == [False, True, True], "two positive weights, one negative"


def test_the_constrained_layer_of_the_right_shape_is_drawn(tmp_path):
    torch.manual_seed(0)
    tensors = {"a.weight": torch.randn(5, 16), "fc1.weight": torch.zeros(9, 16), "fc2.weight": torch.randn(9, 9)}
    tensors["fc1.weight"][:, 0] = 1.0
    page = read(write_report([make_run(tmp_path / "a", weights=tensors)], tmp_path / "r.html"))
    assert any("1 of 16 edges per node" in svg.get("aria-label", "") for svg in page.all("svg"))


def test_edges_of_the_first_layer_are_counted_as_in_the_table(tmp_path):
    weight = torch.full((9, 16), 0.0009)
    weight[:, :3] = 0.5
    weight[0, 3], weight[:, 8:] = -0.001, 0.0
    run = make_run(tmp_path / "a", weights={"fc1.weight": weight, "fc2.weight": torch.ones(9, 9)})
    out = write_report([run], tmp_path / "r.html")
    page = read(out)
    assert "SFW-IF: 3.1 of 16 edges per node" in out.read_text()
    assert "Edges with |w| ≥ 0.001 are counted" in page.words
    mosaic = image_of(out)[0]
    alphas = sorted({mosaic.getpixel((x, y))[3] for x in range(14) for y in range(14)})
    assert alphas[0] == 0
    assert alphas[1] < 50 < alphas[2] < alphas[3], "nothing, faint, a small edge that counts, a large one"


def test_the_first_layer_is_of_the_setting_that_the_headline_speaks_of(tmp_path):
    few, many = torch.zeros(9, 16), torch.ones(9, 16)
    few[:, 0] = 1.0
    runs = [
        make_run(
            tmp_path / f"{lr}",
            lr=lr,
            kept={"100": whole, "5": left},
            weights={"fc1.weight": weight, "fc2.weight": torch.ones(9, 9)},
        )
        for lr, whole, left, weight in ((0.1, 99.0, 50.0, many), (0.2, 95.0, 60.0, few), (0.4, 80.0, 40.0, many))
    ]
    runs.append(make_run(tmp_path / "sgd", "sgd"))
    page = read(write_report(runs, tmp_path / "r.html"))
    assert "(95.0 % with all)" in page.words
    pictures = [svg["aria-label"] for svg in page.all("svg") if "as images" in svg.get("aria-label", "")]
    assert [label.partition(", weights")[0] for label in pictures] == [
        "SGD: 15.9 of 16 edges per node",
        "SFW-IF, lr 0.2: 1 of 16 edges per node",
    ]
    assert "the setting of each method that is best with 5 % of its edges" in page.words


def test_filters_of_a_convolution_are_drawn_where_no_layer_sees_the_whole_image(tmp_path):
    tensors = {
        "conv1.weight": torch.randn(6, 3, 5, 5),
        "conv2.weight": torch.randn(8, 6, 5, 5),
        "fc1.weight": torch.randn(9, 16),
    }
    page = read(write_report([make_run(tmp_path / "a", image=(3, 32, 32), weights=tensors)], tmp_path / "r.html"))
    assert "summed over the channels" in page.words
    assert "not constrained in any of the methods" in page.words


def test_a_network_without_a_layer_that_sees_the_image_has_no_picture(tmp_path):
    run = make_run(tmp_path / "a", image=(1, 7, 7))
    missing = make_run(tmp_path / "b", "sgd")
    missing.model_file.unlink()
    page = read(write_report([run, missing], tmp_path / "r.html"))
    assert "digits-first-layer" not in figure_ids(page)


# --------------------------------------------------------------------------------------------------------- the rest


def test_the_command_line_says_everything_needed_to_run_it_again(tmp_path):
    run = make_run(
        tmp_path / "a run",
        experiment="my file.py:net",
        options={"edges": 5},
        every_gradient=True,
        measured_on="validation",
        lr=1e-05,
    )
    words = shlex.split(command(run))
    assert words[:5] == ["inface", "train", "my file.py:net", "--out", "a run-again"]
    text = " ".join(words)
    for part in (
        "--method sfw-if",
        "--lr 1e-05",
        "--constrained-lr 4",
        "--radius 1 10",
        "--seed 0",
        "--every-gradient",
        "--validate",
        "--option edges=5",
    ):
        assert part in text
    assert command(run) in html.unescape(write_report([run], tmp_path / "r.html").read_text())


@given(st.text(max_size=200), st.integers(2, 80))
def test_a_text_that_is_drawn_is_one_short_printable_line(text, most):
    assert len(plain(text, most)) <= most
    assert plain(text, most).isprintable()
