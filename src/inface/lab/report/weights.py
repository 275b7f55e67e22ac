"""The weights of the first layer as images, dense against sparse."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from torch import Tensor

from inface.lab.runs.metrics import THRESHOLD, edges_per_node
from inface.lab.runs.run import Run

from .comparison import Comparison, best_first, share
from .groups import mapping
from .palette import NEGATIVE, POSITIVE
from .svg import Drawing, Panel, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

__all__ = ["first_layer"]

_SIDE = 8  # the largest number of rows and columns of nodes


@dataclass(frozen=True)
class _Picture:
    row: Comparison
    layer: str
    images: Tensor  # nodes, channels, height, width


def first_layer(rows: Sequence[Comparison]) -> Drawing | None:
    """One panel per method, for the setting in the headline: an image of the weights of each node."""
    methods = dict.fromkeys(row.method for row in rows)
    theta = share(rows) or 100
    pictures = [found for method in methods if (found := _picture([r for r in rows if r.method == method], theta))]
    if not pictures:
        return None
    nodes = min(len(picture.images) for picture in pictures)
    columns = min(_SIDE, math.ceil(math.sqrt(nodes)))
    nodes = min(nodes, columns * min(_SIDE, max(1, nodes // columns)))
    names = [_name(picture.row, rows) for picture in pictures]
    separate = any(name != picture.row.name for name, picture in zip(names, pictures, strict=True))
    chosen = len(rows) > len({(row.method, row.problem) for row in rows})
    lines = max(len(_wrapped(name)) for name in names) if separate else 0
    panels = [_panel(picture, name, nodes, columns, lines) for picture, name in zip(pictures, names, strict=True)]
    caption = (
        f"Each tile is one node of the first layer (the first {nodes} nodes). Each pixel is the weight of the edge "
        "from that pixel of the input: orange is positive, blue negative, and stronger colour is a larger weight. "
        "Edges with |w| ≥ 0.001 are counted, on average over all nodes of the layer. Smaller ones are drawn faintly; "
        "an edge that is exactly zero is not drawn."
        + (
            " The figure shows the setting of each method that is best with "
            f"{'all' if theta == 100 else f'{theta} % of'} its edges."
            if chosen
            else ""
        )
        + (" Of several runs, the first is drawn." if any(picture.row.count > 1 for picture in pictures) else "")
        + (
            " Weights are summed over the channels of the input."
            if any(p.images.shape[1] > 1 for p in pictures)
            else ""
        )
        + (
            ""
            if any(picture.layer in picture.row.layers for picture in pictures)
            else " This layer is not constrained in any of the methods."
        )
    )
    return Drawing("first-layer", "What the first layer looks at", caption, panels, (), len(panels))


def _picture(rows: Sequence[Comparison], theta: int) -> _Picture | None:
    """The images of the row of the first problem that is best with theta % of its edges; None if it has none."""
    for problem in dict.fromkeys(row.problem for row in rows):
        for row in best_first([row for row in rows if row.problem == problem], theta):
            for run in row.runs:
                if (layer := _layer(run)) is not None:
                    return _Picture(row, *layer)
    return None


def _name(row: Comparison, rows: Sequence[Comparison]) -> str:
    """The method, with its setting and problem if there are several."""
    several = len({other.problem for other in rows}) > 1
    return ", ".join(filter(None, (row.label, row.problem if several else "")))


def _layer(run: Run) -> tuple[str, Tensor] | None:
    """The name and the weights (nodes, channels, height, width) of the layer that sees the image."""
    image = run.summary.get("image")
    if not (isinstance(image, list) and len(image) == 3 and run.model_file.is_file()):
        return None
    channels, height, width = (int(size) for size in image)
    weights = run.weights()
    constrained = list(mapping(run.summary.get("layers")))
    names = [name for name in constrained if name in weights] + [name for name in weights if name not in constrained]
    for name in names:
        weight = weights[name]
        if weight.ndim == 2 and weight.shape[1] == channels * height * width:
            return name, weight.float().reshape(-1, channels, height, width)
    for name in names:
        weight = weights[name]
        if weight.ndim == 4 and weight.shape[1] == channels and min(weight.shape[2:]) > 1:
            return name, weight.float()
    return None


def _panel(picture: _Picture, name: str, nodes: int, columns: int, lines: int) -> Panel:
    """One panel. All panels reserve the same number of title lines, so that their tiles are aligned."""
    shown = picture.images[:nodes]
    used = f"{edges_per_node(picture.images):.1f}".removesuffix(".0")
    counted = f"{used} of {shown[0].numel()} edges per node"
    title = [*_wrapped(name), counted] if lines else [plain(f"{name}: {counted}", 46)]
    width = 4.0
    rows = -(-nodes // columns)
    height = width * (rows * (shown.shape[2] + 1)) / (columns * (shown.shape[3] + 1)) + 0.64 + 0.17 * lines

    def draw(axes: Axes) -> None:
        _mosaic(axes, shown.sum(1), columns)
        axes.set_title("\n" * (lines + 1 - len(title)) + "\n".join(title))

    words = f"{name}: {counted}, weights of {nodes} nodes of {picture.layer} as images"
    return Panel(draw, words, (width, height))


def _wrapped(name: str) -> list[str]:
    return wrap(plain(name, 200), 44, max_lines=3, placeholder=" …")


def _mosaic(axes: Axes, images: Tensor, columns: int) -> None:
    import numpy as np
    from matplotlib.patches import Rectangle

    nodes, height, width = images.shape
    rows = -(-nodes // columns)
    gap = max(1, round(width / 14))
    tall, wide = height + gap, width + gap
    values = np.nan_to_num(images.numpy())
    found = np.abs(values[np.abs(values) >= THRESHOLD])
    scale = float(min(found.max(), 3 * np.median(found))) if found.size else 1.0  # a few large weights hide none
    canvas = np.zeros((rows * tall - gap, columns * wide - gap, 4))
    for node in range(nodes):
        top, left = node // columns * tall, node % columns * wide
        canvas[top : top + height, left : left + width] = _shades(values[node], scale)
        corner = (left - 0.5, top - 0.5)
        axes.add_patch(Rectangle(corner, width, height, facecolor=_ink(), alpha=0.05, linewidth=0, zorder=0))
    axes.imshow(canvas, interpolation="none", zorder=1)
    axes.set_axis_off()
    bar = axes.inset_axes((0.2, -0.055, 0.6, 0.022))
    bar.imshow(
        _shades(np.linspace(-scale, scale, 256), scale)[None], interpolation="none", aspect="auto", extent=(-1, 1, 0, 1)
    )
    bar.set_xticks([-1, 0, 1], [f"\N{MINUS SIGN}{scale:.2g}", "weight 0", f"{scale:.2g}"])
    bar.set_yticks([])
    bar.tick_params(length=0)
    bar.spines[:].set_visible(False)
    bar.grid(visible=False)


def _shades(values: NDArray[Any], scale: float) -> NDArray[Any]:
    """Weights as two colours that fade towards zero; below the threshold faint, at exactly zero transparent."""
    import numpy as np
    from matplotlib.colors import to_rgb

    colours = np.where(values[..., None] > 0, to_rgb(POSITIVE), to_rgb(NEGATIVE))
    size = np.abs(values)
    strength = np.where(size < THRESHOLD, 0.18, 0.3 + 0.7 * (size / scale).clip(max=1) ** 0.7) * (size > 0)
    return np.concatenate([colours, strength[..., None]], axis=-1)


def _ink() -> str:
    import matplotlib as mpl

    return str(mpl.rcParams["text.color"])
