"""The report in a real browser: everything is there, nothing complains, nothing is asked for."""

import shutil
from contextlib import closing

import pytest

from helpers.run_folders import HOSTILE, make_run
from inface.lab.report import write_report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if CHROMIUM is None:
    pytest.skip("no Chromium on this machine; the report is not opened in a browser", allow_module_level=True)
sync_api = pytest.importorskip("playwright.sync_api")

# Without a graphics card, without asking Google for anything.
QUIET = (
    "disable-gpu",
    "disable-quic",
    "no-first-run",
    "disable-background-networking",
    "disable-component-update",
    "disable-sync",
)

# Relative luminance and contrast as WCAG defines them, of an element's text against what lies behind it.
CONTRAST = """element => {
  const numbers = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  let behind = element;
  const back = at => numbers(getComputedStyle(at).backgroundColor);
  while (behind.parentElement && (back(behind)[3] ?? 1) === 0) behind = behind.parentElement;
  const style = getComputedStyle(element);
  const ink = element instanceof SVGElement ? style.fill : style.color;
  const [a, b] = [light(numbers(ink)), light(back(behind))].sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05);
}"""
BACKGROUND = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        flags = ["--no-sandbox", *(f"--{flag}" for flag in QUIET)]
        with closing(playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=flags)) as found:
            yield found


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Two experiments: digits with trials and an unfinished run, and one with hostile names."""
    folder = tmp_path_factory.mktemp("report")
    runs = [make_run(folder / f"{m}{s}", m, seed=s) for m in ("sgd", "sfw", "sfw-if") for s in (0, 1)]
    runs.append(make_run(folder / "going", seed=2, finished=False))
    runs.append(
        make_run(
            folder / "<img src=x onerror=alert(1)>",
            experiment=HOSTILE,
            layers=(HOSTILE, "l" * 400),
            metric={"name": "median absolute error of the forecast, over all regions", "unit": "", "better": "lower"},
        )
    )
    return write_report(runs, folder / "report.html", title=f"Digits and {HOSTILE}")


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Two trials of each of several settings, whose numbers need as much room as numbers do."""
    folder = tmp_path_factory.mktemp("sweep")
    wide = {"momentum": 0.9, "schedule": "cosine"}
    settings = [{"lr": 0.125, **wide}, {"lr": 0.0625}, {"lr": 0.0625, "constrained_lr": 0.5, "radius": [2.5, 12.5]}]
    runs = [
        make_run(
            folder / f"{method}{index}{seed}",
            method,
            seed=seed,
            image=None,
            kept=dict.fromkeys(("100", "50", "25", "10", "5", "2", "1"), 100.0 - 23 * seed),
            summary={"gap": {"exact": 0.0159 + 0.00037 * seed}, "seconds": 1234.5 + 17 * seed},
            **chosen,
        )
        for method in ("sfw", "sfw-if")
        for index, chosen in enumerate(settings)
        for seed in (0, 1)
    ]
    return write_report(runs, folder / "sweep.html")


@pytest.fixture
def opened(browser, report):
    """Open a report; at the end nothing may have complained or asked for anything but the file."""
    noise, requests, contexts, files = [], [], [], []

    def open_(width=1200, scheme="light", media="screen", file=report):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: noise.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: noise.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (noise.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: requests.append(request.url))
        page.emulate_media(media=media, color_scheme=scheme)
        files.append(file.as_uri())
        page.goto(file.as_uri(), wait_until="load")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert noise == []
    assert {url for url in requests if not url.startswith("data:")} == set(files)


def test_every_figure_is_there_and_can_be_seen(opened):
    page = opened()
    figures = page.locator("figure")
    names = figures.evaluate_all("all => all.map(figure => figure.id)")
    expected = ["edges", "kept", "first-layer", "gap", "nonzeros", "progress", "trials"]
    assert [name for name in names if name.startswith("digits")] == [f"digits-{name}" for name in expected]
    assert len(names) == len(expected) + 6
    for index in range(figures.count()):
        figure = figures.nth(index)
        assert figure.is_visible()
        assert len(figure.locator("figcaption").inner_text()) > 60
        for plot in figure.locator("svg.plot").all():
            box = plot.bounding_box()
            assert box["width"] > 200
            assert box["height"] > 100
            assert plot.evaluate("svg => svg.getBBox().width") > 50, "something is drawn"


def test_the_table_has_a_row_for_each_method(opened):
    table = opened().locator("#digits table")
    assert table.locator("tbody th.method").all_inner_texts() == ["SGD 2 runs", "SFW 2 runs", "SFW-IF 2 runs"]
    assert table.locator("tbody strong").count() > 3


@pytest.mark.parametrize("width", [320, 390, 820, 1200])
def test_the_page_is_never_wider_than_the_screen(opened, width):
    page = opened(width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for figure in page.locator("figure").all():
        box = figure.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width


@pytest.mark.parametrize("width", [1000, 1200, 1600])
def test_on_a_desk_the_whole_table_is_seen_and_its_rows_are_low(opened, sweep, width):
    table = opened(width=width, file=sweep).locator("#digits .scroll")
    assert table.evaluate("box => box.scrollWidth - box.clientWidth") <= 0
    heights = table.locator("tbody tr").evaluate_all("all => all.map(row => row.getBoundingClientRect().height)")
    assert len(heights) == 6
    assert max(heights) < 100
    assert "± 16.3" in table.locator("tbody tr").first.inner_text().replace("\u2009", " ")


def test_on_a_phone_the_table_scrolls_in_its_box_and_names_stay(opened):
    page = opened(width=390)
    box = page.locator("#digits .scroll")
    assert box.evaluate("box => box.scrollWidth > box.clientWidth")
    name = box.locator("tbody th.method").first
    before = name.bounding_box()["x"]
    box.evaluate("box => { box.scrollLeft = 300 }")
    assert name.bounding_box()["x"] == pytest.approx(before, abs=1)


def test_letters_in_figures_are_legible_on_a_phone(opened):
    page = opened(width=390)
    heights = page.locator("svg.plot text").evaluate_all("all => all.map(text => text.getBoundingClientRect().height)")
    assert len(heights) > 50
    assert min(heights) >= 8


def test_nothing_in_a_figure_is_cut_off(opened):
    outside = (
        opened()
        .locator("svg.plot")
        .evaluate_all("""all => all.flatMap(svg => {
      const box = svg.getBoundingClientRect();
      return [...svg.querySelectorAll("text")].filter(text => {
        const own = text.getBoundingClientRect();
        return own.left < box.left - 2 || own.right > box.right + 2 || own.top < box.top - 2 || own.bottom > box.bottom + 2;
      }).map(text => svg.getAttribute("aria-label") + ": " + text.textContent);
    })""")
    )
    assert outside == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_background(opened, scheme):
    page = opened(scheme=scheme)
    dark = max(page.evaluate(BACKGROUND)) < 60
    assert dark == (scheme == "dark")
    for selector in (
        "h1",
        ".headline",
        ".guide",
        "td",
        "th",
        ".spread",
        "figcaption",
        ".legend li",
        "svg.plot text",
        "footer p",
    ):
        contrasts = page.locator(selector).evaluate_all(f"all => all.map({CONTRAST})")
        assert contrasts, selector
        assert min(contrasts) >= 4.5, selector


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_paper_is_white_and_no_figure_is_cut(opened, scheme):
    page = opened(width=700, scheme=scheme, media="print")
    assert page.evaluate(BACKGROUND) == [255, 255, 255]
    assert page.locator("h1").evaluate(CONTRAST) > 12
    assert page.locator("svg.plot text").first.evaluate(CONTRAST) > 12
    breaks = page.locator("figure").evaluate_all("all => all.map(figure => getComputedStyle(figure).breakInside)")
    assert set(breaks) == {"avoid"}
    assert page.locator("details pre").first.is_visible(), "paper cannot be clicked"
    assert page.pdf(format="A4").startswith(b"%PDF")


def test_the_weights_are_drawn_pixel_by_pixel(opened):
    images = opened().locator("#digits-first-layer svg image")
    assert images.count() >= 3
    rendering = images.evaluate_all("all => all.map(image => getComputedStyle(image).imageRendering)")
    assert set(rendering) == {"pixelated"}


def test_hostile_names_are_text(opened):
    page = opened()
    assert page.locator("script, img").count() == 0
    assert "<script>" in page.locator("h1").inner_text()
    page.locator("summary").last.click()
    assert "<img src=x onerror=alert(1)>" in page.locator(".runs").last.inner_text()
