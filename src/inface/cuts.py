"""Cuts: which atoms leave a network on its path of densities, and which come back.

What is kept is decided by the LAMP score (J. Lee et al., "Layer-adaptive sparsity for the magnitude-based pruning", 2021):
the square of an atom over the sum of squares of all atoms of its layer that are at least as large. It does not change when a
layer is rescaled, and the largest atom of a layer always stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .descent import gradient
from .dtensors import keep, whole
from .halves import forget
from .paths import Path, PathLayer, caller, room
from .sets.base import can_look, spread, wide
from .state import unit_weights, write
from .units import Unit, names_of
from .warning import warn

__all__ = ["cut", "keeping_blocks", "lamp", "returned", "warn_of_unreached"]

# Above a density of a half, edges that met zero return on its other side, of this size, relative to the mean.
RETURN = 1e-3


def cut(layers: Sequence[PathLayer], density: float) -> Iterator[PathLayer]:
    """The layers with the atoms of the highest scores alone: at most this share of all."""
    sizes = [layer.sizes for layer in layers]
    safe = [_safe(layer, size) for layer, size in zip(layers, sizes, strict=True)]
    ordered = [_ordered(torch.where(stays, 0, size).flatten()) for size, stays in zip(sizes, safe, strict=True)]
    scores = []
    for layer, size, stays, values in zip(layers, sizes, safe, ordered, strict=True):
        found = lamp(values, size[stays])
        scores.append(found if _is_reached(layer) else _first_to_go(found))
    kept = sum(int(stays.sum()) for stays in safe)
    surplus = sum(score.numel() for score in scores) - (room(density, sum(size.numel() for size in sizes)) - kept)
    if surplus <= 0:
        yield from layers
        return
    threshold = torch.cat(scores).kthvalue(surplus).values
    for layer, size, stays, values, score in zip(layers, sizes, safe, ordered, scores, strict=True):
        gone = int((score <= threshold).sum())
        keep = size > 0
        if gone:
            keep = _largest(torch.where(stays, 0, size).flatten(), values, len(values) - gone).view(size.shape) | stays
        cut = layer._replace(x=layer.unit.set.keep_atoms(layer.x, keep))
        if gone and layer.group["in_face"] == "projected":
            _forget(layer, cut.x)
        yield cut


def _safe(layer: PathLayer, sizes: Tensor) -> Tensor:
    """The atoms that no cut takes: the largest of each block, where every block has to keep one."""
    stays = torch.zeros_like(sizes, dtype=torch.bool)
    if layer.group["path"]["every_block"]:
        stays.scatter_(1, sizes.argmax(1, keepdim=True), value=True)
    return stays


@contextmanager
def keeping_blocks(
    group: dict[str, Any], found: Sequence[Unit], states: Mapping[Tensor, dict[str, Any]]
) -> Iterator[None]:
    """Within it, blocks that must keep an atom do not vanish: a step that would leave them none is not taken."""
    if group["path"] is None or not group["path"]["every_block"]:
        yield
        return
    before = [unit.blocks(unit_weights(unit, [states[p] for p in unit.params])).clone() for unit in found]
    yield
    for unit, old in zip(found, before, strict=True):
        own = [states[p] for p in unit.params]
        x = unit.blocks(unit_weights(unit, own))
        gone = ~x.flatten(1).any(1)
        if not can_look(x) or bool(gone.any()):
            write(unit, own, unit.tensors(torch.where(spread(gone, x), old, x)))


def returned(layers: Sequence[PathLayer], density: float) -> Iterator[PathLayer]:
    """The layers with edges back that in-face steps left at zero, as many as the density has room for.

    A step in a face changes no sign: what crosses zero stays there. Those that are pulled most, relative to their layer,
    go on to the side that they are pulled to.
    """
    sizes = [layer.sizes for layer in layers]
    missing = room(density, sum(size.numel() for size in sizes)) - sum(int(size.count_nonzero()) for size in sizes)
    pulls = [_pull(layer) for layer in layers]
    strengths = [torch.where(size > 0, 0, pull.abs()) for size, pull in zip(sizes, pulls, strict=True)]
    places = torch.cat([strength.flatten() for strength in strengths])
    chosen = places > 0
    if missing < int(chosen.sum()):
        chosen = torch.zeros_like(chosen)
        chosen[places.topk(max(missing, 0)).indices] = True
    parts = chosen.split([size.numel() for size in sizes])
    for layer, size, pull, part in zip(layers, sizes, pulls, parts, strict=True):
        small = RETURN * size.sum() / size.count_nonzero().clamp(min=1)
        new = torch.where(part.view(size.shape), pull.sign() * small, 0).view(layer.x.shape).to(layer.x.dtype)
        yield layer._replace(x=layer.x + new)


def _pull(layer: PathLayer) -> Tensor:
    """Where the averaged gradient of each edge pulls it, relative to the layer; 0 if nothing is known."""
    states = [layer.optimizer.state.get(p, {}) for p in layer.params]
    if layer.unit.set.all_free or any(p.grad is None for p in layer.params):
        return torch.zeros_like(layer.sizes)
    found = []
    for p, state in zip(layer.params, states, strict=True):
        g = gradient(layer.group, p)
        m = state.get("momentum_buffer", g)  # which has nothing of what in-face steps did not look at
        found.append(whole(torch.where(torch.isnan(m), g, m)))
    g = layer.unit.blocks(found).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    g = g.view(layer.sizes.shape).to(layer.sizes.dtype)
    return -g / g.abs().mean().clamp(min=1e-30)


def warn_of_unreached(layers: Sequence[PathLayer]) -> None:
    names = [name for layer in layers if not _is_reached(layer) for name in names_of(layer.group, 0)]
    if names and len(names) < len(layers):
        path: Path = layers[0].group["path"]
        warn(
            f"{caller(path['by_itself'])}: no gradient reached {', '.join(names[:3])}"
            f"{f' and {len(names) - 3} more' if len(names) > 3 else ''} in {path['step']} steps; weights leave there before "
            f"they leave layers that are used"
        )


def _is_reached(layer: PathLayer) -> bool:
    """Whether gradients have reached a layer, or it was frozen: what is frozen may serve, what has no gradient does not."""
    if layer.group["relative"] is None or layer.unit.set.all_free:
        return True  # nothing is known of its gradients
    states = [layer.optimizer.state.get(p, {}) for p in layer.params]
    sizes = [max(float(state.get(key, 0.0)) for key in ("gradient_size", "gradient_norm")) for state in states]
    return any(size > 0 or not p.requires_grad for size, p in zip(sizes, layer.params, strict=True))


def _first_to_go(scores: Tensor) -> Tensor:
    """Scores below those of all other layers, but for the largest atom, which stays."""
    return torch.where(scores < 1, scores - 1, scores)


def _forget(layer: PathLayer, cut: Tensor) -> None:
    """What leaves has no momentum any more: projected steps do not look at its gradients."""
    used = layer.unit.set.in_use(layer.x)
    buffers = [layer.optimizer.state.get(p, {}).get("momentum_buffer") for p in layer.params]
    if used is None or any(buffer is None for buffer in buffers):
        return
    m = forget(layer.unit.set, used, cut, layer.unit.blocks([whole(buffer) for buffer in buffers]))
    for buffer, rest in zip(buffers, layer.unit.tensors(m), strict=True):
        keep(buffer, rest)


def _ordered(sizes: Tensor) -> Tensor:
    """What is not zero, in rising order."""
    if sizes.is_cpu:
        # Many times as fast as torch's sort, which keeps the places too.
        ordered = torch.from_numpy(np.sort(sizes.numpy()))
        return ordered[int(torch.searchsorted(ordered, 0.0, right=True)) :]
    return sizes[sizes > 0].sort().values


def lamp(ordered: Tensor, others: Tensor | None = None) -> Tensor:
    """The LAMP scores of sizes in rising order, in a layer that may have others, which stay: they rise too.

    >>> import torch
    >>> lamp(torch.tensor([1.0, 2.0]))
    tensor([0.2000, 1.0000], dtype=torch.float64)
    """
    squares = ordered.to(wide(ordered)).square()
    larger = squares.flip(0).cumsum(0).flip(0)
    if others is not None and others.numel():
        larger = larger + others.to(larger.dtype).square().sum()
    return squares / larger.clamp(min=torch.finfo(squares.dtype).tiny)


def _largest(sizes: Tensor, ordered: Tensor, count: int) -> Tensor:
    """Where the ``count`` largest are; of equal ones, those of lower index."""
    if not count:
        return torch.zeros_like(sizes, dtype=torch.bool)
    least = ordered[len(ordered) - count]
    keep = sizes >= least
    surplus = int(keep.sum()) - count
    if surplus:
        keep[(sizes == least).nonzero().flatten()[-surplus:]] = False
    return keep
