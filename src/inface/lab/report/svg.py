"""Draw figures with matplotlib: as SVG in a page, in the page's colours, or as files."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from inface.lab.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["MARKERS", "Drawing", "Key", "Marker", "Panel", "dashes", "inline", "logarithmic", "plain", "save"]

Marker = Literal["circle", "square", "triangle", "diamond", "wedge", "hexagon", "plus", "pentagon", "star"]

# Matplotlib's names of the markers; the page draws the same shapes in its legends.
MARKERS: dict[str, str] = {
    "circle": "o",
    "square": "s",
    "triangle": "^",
    "diamond": "D",
    "wedge": "v",
    "hexagon": "h",
    "plus": "P",
    "pentagon": "p",
    "star": "*",
}

# A placeholder colour, which is replaced by the page's text colour.
_SENTINEL = "#010203"
_STYLE: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.labelsize": 9,
    "axes.linewidth": 0.7,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.unicode_minus": True,
    "figure.facecolor": "none",
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "grid.alpha": 0.14,
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "lines.solid_capstyle": "round",
    "path.simplify": True,
    "savefig.facecolor": "none",
    "svg.fonttype": "none",
    "svg.image_inline": True,
    "text.parse_math": False,  # names may contain dollars
    "xtick.labelsize": 8.5,
    "xtick.major.width": 0.7,
    "xtick.minor.width": 0.5,
    "ytick.labelsize": 8.5,
    "ytick.major.width": 0.7,
    "ytick.minor.width": 0.5,
}


@dataclass(frozen=True)
class Key:
    """A line of the legend: its label and style."""

    label: str
    colour: str
    dash: str = ""
    marker: Marker | Literal[""] = ""
    kind: Literal["line", "thin", "box", "point"] = "line"


@dataclass(frozen=True)
class Panel:
    """One pair of axes: a function that draws on them, a description in words, and the size in inches."""

    draw: Callable[[Axes], None]
    words: str
    size: tuple[float, float] = (4.6, 3.1)


@dataclass(frozen=True)
class Drawing:
    """A figure of the report.

    Attributes:
        name: the name of the figure, also of its file.
        title: the title.
        caption: what the figure shows, and how it was measured.
        panels: the panels.
        keys: the lines of the legend.
        columns: the largest number of panels in a row.
    """

    name: str
    title: str
    caption: str
    panels: Sequence[Panel]
    keys: Sequence[Key] = field(default=())
    columns: int = 2


def inline(drawing: Drawing) -> list[str]:
    """Each panel as an SVG element for an HTML page, in the page's text colour."""
    found = []
    for index, panel in enumerate(drawing.panels):
        name = f"{drawing.name}-{index}"
        with _style(_SENTINEL, name):
            figure = _figure(panel.size)
            axes = figure.add_subplot()
            panel.draw(axes)
            _fit(axes, *panel.size)
            found.append(_element(_svg(figure), panel.words))
    return found


def save(drawing: Drawing, folder: Path, formats: Sequence[str]) -> list[Path]:
    """Write the figure with its legend, dark on white, to one file per format."""
    columns = min(drawing.columns, len(drawing.panels))
    rows = -(-len(drawing.panels) // columns)
    width, height = drawing.panels[0].size
    handles = [_handle(key) for key in drawing.keys]
    across = max(
        1, min(len(handles), int(columns * width * 11) // max([len(k.label) + 6 for k in drawing.keys], default=1))
    )
    legend = 0.25 * -(-len(handles) // across) + 0.1 if handles else 0.0
    paths = []
    for kind in formats:
        with _style("#1d1f23", drawing.name):
            figure = _figure((columns * width, rows * height + legend), fitted=True)
            for index, panel in enumerate(drawing.panels):
                panel.draw(figure.add_subplot(rows, columns, index + 1))
            if handles:
                figure.legend(
                    handles=[_handle(key) for key in drawing.keys], loc="outside upper left", ncols=across, fontsize=9
                )
            path = folder / f"{drawing.name}.{kind}"
            with replacing(path) as partial, _quiet():
                no_date = {"Date": None} if kind == "svg" else {"Software": None}
                figure.savefig(partial, format=kind, dpi=200, facecolor="white", metadata=no_date)
            paths.append(path)
    return paths


def plain(text: str, most: int = 60) -> str:
    """The text as one line of printable characters, shortened.

    >>> plain("a\\nb\\x00" + "c" * 100, most=10)
    'a b ccccc…'
    """
    clean = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return clean if len(clean) <= most else clean[: most - 1] + "…"


def _figure(size: tuple[float, float], *, fitted: bool = False) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08) if fitted else None
    figure = Figure(figsize=size, layout=layout)
    FigureCanvasAgg(figure)
    return figure


def _fit(axes: Axes, width: float, height: float) -> None:
    """Compute the margins from the labels. Matplotlib's own layout takes longer than all the drawing."""
    left, right, bottom, top = 0.05, 0.05, 0.32, 0.32
    if axes.axison:
        letters = max((len(label.get_text()) for label in axes.get_yticklabels()), default=0)
        left = 0.16 + 0.075 * letters + (0.22 if axes.get_ylabel() else 0)
        right, bottom, top = 0.12, 0.48, 0.32 if axes.get_title("left") else 0.12
    top += 0.17 * axes.get_title("left").count("\n")
    axes.set_position((left / width, bottom / height, 1 - (left + right) / width, 1 - (bottom + top) / height))


@contextmanager
def _style(ink: str, salt: str) -> Iterator[None]:
    import matplotlib as mpl

    colours = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "grid.color")
    defaults: dict[Any, Any] = {
        key: value for key, value in mpl.rcParamsDefault.items() if not key.startswith("backend")
    }
    settings = {**defaults, **_STYLE, **dict.fromkeys(colours, ink), "svg.hashsalt": salt}
    with mpl.rc_context(settings):
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence warnings about missing glyphs: a PNG shows a box, in an SVG the browser's own font is used."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*Glyph.*missing from.*")
        yield


def _svg(figure: Figure) -> str:
    file = io.StringIO()
    with _quiet():
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", metadata=nothing, transparent=True)
    return file.getvalue()


def _element(svg: str, words: str) -> str:
    from markupsafe import escape

    body = svg[svg.index("<svg") :].replace(_SENTINEL, "currentColor")
    opening, body = body.split(">", 1)
    box = re.search(r'viewBox="([^"]*)"', opening)
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r"<style[^>]*>.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r'<g id="[^"]*"', "<g", body)  # numbered within one SVG: no two in a page may be the same
    size = box[1] if box else "0 0 1 1"
    return f'<svg class="plot" viewBox="{size}" role="img" aria-label="{escape(plain(words, 400))}">{body.strip()}'


def _handle(key: Key) -> Any:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    label = plain(key.label)
    if key.kind == "box":
        return Patch(facecolor=(key.colour, 0.3), edgecolor=key.colour, label=label)
    thin = key.kind == "thin"
    return Line2D(
        [],
        [],
        color=key.colour,
        linewidth=0.8 if thin else 2,
        alpha=0.5 if thin else 1,
        linestyle="" if key.kind == "point" else dashes(key.dash),
        marker=MARKERS.get(key.marker, ""),
        markersize=6 if key.kind == "point" else 4.5,
        label=label,
    )


def dashes(dash: str) -> Any:
    """Matplotlib's form of an SVG dash pattern."""
    return (0, tuple(float(part) for part in dash.split())) if dash else "-"


def logarithmic(axes: Axes) -> None:
    """Make the vertical axis logarithmic, with as many labelled ticks as fit."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    decades = math.log10(high / low)
    subs = (1.0,) if decades > 3 else (1.0, 2.0, 5.0) if decades > 0.7 else tuple(float(part) for part in range(1, 10))
    axes.yaxis.set_major_locator(LogLocator(subs=subs, numticks=12))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
