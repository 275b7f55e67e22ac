"""Budgets: how large the balls of a layer are on its path of densities, and how its blocks share them."""

from __future__ import annotations

import torch
from torch import Tensor

from .descent import momentum_weight
from .dtensors import is_sharded, keep, whole
from .paths import PathLayer
from .registry import constrain
from .state import write
from .units import units

__all__ = ["budget_of", "enter", "grow", "share"]

# The length of a node as PyTorch initialises it: uniform in +-1 / sqrt(n). Layers that start shorter, as heads and
# transformers often do, may grow to it.
USUAL = 3**-0.5

# A layer that fills this part of its budget, and whose averaged gradient points outwards by more than this cosine, has
# learnt all that its ball lets it: the ball grows, at most by this factor for each hundredth of the path.
FULL, OUTWARDS, GROWTH = 0.9, 0.3, 1.3


def budget_of(sizes: Tensor, target: float) -> float:
    """The sum of the radii of all blocks at a density of one.

    Where less than a half has to leave, there is more room: at a density of one a ball would bound nothing.
    """
    length = torch.linalg.vector_norm(sizes, dim=1).clamp(min=USUAL)
    room = max(1.0, 0.5 / max(1 - target, 0.01))
    return room * float(length.sum()) * sizes.shape[1] ** 0.5


def enter(layer: PathLayer, *, last: bool) -> bool:
    """Bound a layer that started at zero and moved freely, once it has weights; at the end of a path, whatever it has."""
    group, sizes = layer.group, layer.sizes
    if not (last or bool(sizes.any())):
        return False
    group["path"]["budget"] = budget_of(sizes, group["path"]["target"])
    group["set"] = group["set"].with_radius(group["path"]["budget"] / len(sizes))
    for p in group["params"]:
        state = layer.optimizer.state.get(p, {})
        state.pop("exp_avg", None)
        if state.get("momentum_buffer") is not None:
            state["momentum_buffer"] /= momentum_weight(group)  # constrained layers keep the average
    return True


def grow(layer: PathLayer, density: float) -> None:
    """Give a layer a larger budget if nothing but its ball bounds it.

    Its averaged gradient, where the layer has weights, is then nearly a multiple of the layer itself. Such is the last
    layer of a classifier, whose length says how certain its outputs are. The others keep the pressure to leave edges out.
    """
    path, x = layer.group["path"], layer.x
    buffers = [layer.optimizer.state.get(p, {}).get("momentum_buffer", p.grad) for p in layer.params]
    if any(buffer is None for buffer in buffers):
        return
    m = layer.unit.blocks([whole(buffer) for buffer in buffers]).to(x.dtype)
    used = layer.unit.set.in_use(x)
    known = torch.isfinite(m) if used is None else torch.isfinite(m) & used
    m = torch.where(known, m, 0)
    outwards = -_cosine(m, x)
    full = float(layer.unit.set.block_norm(x).sum()) > FULL * path["budget"] * density**0.5
    if full and outwards > OUTWARDS:
        hundredths = 100 * path["every"] / (path["steps"] * (path["end"] - path["begin"]))
        path["budget"] *= GROWTH ** (min(1.0, hundredths) * (outwards - OUTWARDS) / (1 - OUTWARDS))


def _cosine(m: Tensor, x: Tensor) -> float:
    """Of two tensors whose squares may be too small for a number: deep networks have such gradients."""
    m, x = (each.flatten() / each.abs().max().clamp(min=torch.finfo(each.dtype).tiny) for each in (m, x))
    return float(torch.nn.functional.cosine_similarity(m, x, dim=0))


def share(layer: PathLayer, density: float, *, shrink: bool = True) -> None:
    """Give the blocks of a layer radii that share its budget in proportion to their norms; shrink what is over it.

    The weights are written after their set is known: half precision is rounded into it.
    """
    group, unit = layer.group, layer.unit
    norms = unit.set.block_norm(layer.x)
    total = float(norms.sum())
    if total > 0:
        scale = group["path"]["budget"] * density**0.5 / total
        if scale < 1 and not shrink:
            scale = 1.0
        radii = (norms * scale).clamp(min=1e-12 * total * scale)
        group["set"] = group["set"].with_radius(radii if len(radii) > 1 else float(radii[0]))
        for p in group["params"]:
            constrain(p, group["set"])
        (fresh,) = units(group, 0)
        unit = fresh._replace(params=unit.params)
    if shrink:
        x = layer.x * scale if total > 0 and scale < 1 else layer.x
        write(unit, layer.states, unit.tensors(x))
        for p, own, state in zip(layer.params, unit.params, layer.states, strict=True):
            if is_sharded(p):
                keep(p, own)
                if "master" in state:
                    keep(layer.optimizer.state[p]["master"], state["master"])
