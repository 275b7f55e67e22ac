"""The first layer drawn as images: what each node looks at, dense against sparse."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from inface.lab.run import Run

from .drawing import Drawing, Panel, plain
from .groups import Group, mapping, method_name
from .palette import NEGATIVE, POSITIVE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

__all__ = ["first_layer"]

COUNTED = 1e-3  # smaller edges count as zero in the tables, and are the faintest here

_SIDE = 8  # at most so many nodes in a row, and rows


def first_layer(groups: Sequence[Group]) -> Drawing | None:
    """One panel for each method: the same number of nodes, each the image of its weights."""
    found: dict[str, tuple[Run, str, Tensor]] = {}
    for group in groups:
        for run in group.finished:
            if group.method not in found and (layer := _layer(run)) is not None:
                found[group.method] = (run, *layer)
    if not found:
        return None
    nodes = min(len(images) for _, _, images in found.values())
    columns = min(_SIDE, math.ceil(math.sqrt(nodes)))
    nodes = min(nodes, columns * min(_SIDE, max(1, nodes // columns)))
    panels = [_panel(method, name, images, nodes, columns) for method, (_, name, images) in found.items()]
    constrained = any(name in (mapping(run.summary.get("layers"))) for run, name, _ in found.values())
    channels = max(images.shape[1] for _, _, images in found.values())
    caption = (
        f"Each tile is one node of the first layer ({nodes} of them, the first ones), each pixel the weight of the edge "
        "from that pixel of the input: orange positive, blue negative, stronger where larger, up to the ends of the scale; "
        "where an edge is exactly zero "
        "the tile is empty."
        + (" Weights are summed over the channels of the input." if channels > 1 else "")
        + ("" if constrained else " This layer is not constrained in any of the methods.")
    )
    return Drawing("first-layer", "What the first layer looks at", caption, panels, (), len(panels))


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


def _panel(method: str, name: str, images: Tensor, nodes: int, columns: int) -> Panel:
    shown = images[:nodes]
    edges = shown[0].numel()
    used = float((images != 0).flatten(1).sum(1).float().mean())
    title = f"{method_name(method)}: {used:.3g} of {edges} edges per node"
    width = 4.0
    rows = -(-nodes // columns)
    height = width * (rows * (shown.shape[2] + 1)) / (columns * (shown.shape[3] + 1)) + 0.64

    def draw(axes: Axes) -> None:
        _mosaic(axes, shown.sum(1), columns)
        axes.set_title(plain(title, 42))

    words = f"{title}, weights of {nodes} nodes of {name} as images"
    return Panel(draw, words, (width, height))


def _mosaic(axes: Axes, images: Tensor, columns: int) -> None:
    import numpy as np
    from matplotlib.patches import Rectangle

    nodes, height, width = images.shape
    rows = -(-nodes // columns)
    gap = max(1, round(width / 14))
    tall, wide = height + gap, width + gap
    values = np.nan_to_num(images.numpy())
    found = np.abs(values[np.abs(values) >= COUNTED])
    scale = float(min(found.max(), 3 * np.median(found))) if found.size else 1.0  # a few large weights hide none
    canvas = np.zeros((rows * tall - gap, columns * wide - gap, 4))
    for node in range(nodes):
        top, left = node // columns * tall, node % columns * wide
        canvas[top : top + height, left : left + width] = _shades(values[node] / scale)
        corner = (left - 0.5, top - 0.5)
        axes.add_patch(Rectangle(corner, width, height, facecolor=_ink(), alpha=0.05, linewidth=0, zorder=0))
    axes.imshow(canvas, interpolation="none", zorder=1)
    axes.set_axis_off()
    bar = axes.inset_axes((0.2, -0.055, 0.6, 0.022))
    bar.imshow(_shades(np.linspace(-1, 1, 256))[None], interpolation="none", aspect="auto", extent=(-1, 1, 0, 1))
    bar.set_xticks([-1, 0, 1], [f"\N{MINUS SIGN}{scale:.2g}", "weight 0", f"{scale:.2g}"])
    bar.set_yticks([])
    bar.tick_params(length=0)
    bar.spines[:].set_visible(False)
    bar.grid(visible=False)


def _shades(values: NDArray[Any]) -> NDArray[Any]:
    """Numbers in [-1, 1] as two colours that fade towards zero but not into nothing: only an exact zero shows the page."""
    import numpy as np
    from matplotlib.colors import to_rgb

    colours = np.where(values[..., None] > 0, to_rgb(POSITIVE), to_rgb(NEGATIVE))
    strength = np.where(values == 0, 0, 0.2 + 0.8 * np.abs(values).clip(max=1) ** 0.7)
    return np.concatenate([colours, strength[..., None]], axis=-1)


def _ink() -> str:
    import matplotlib as mpl

    return str(mpl.rcParams["text.color"])
