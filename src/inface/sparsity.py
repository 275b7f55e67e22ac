"""How sparse a network is, and what is left of it when only its largest edges stay."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

import torch
from torch import Tensor, nn

from .cuts import lamp
from .dtensors import keep as keep_whole
from .dtensors import whole
from .layers import chosen_layers
from .registry import set_of
from .units import constrained_places

__all__ = ["LayerNonzeros", "Nonzeros", "hard_threshold", "nonzeros"]


@dataclass(frozen=True)
class LayerNonzeros:
    """The non-zero edges of one layer; a node is an output, its edges are what enters it. Free nodes are not counted.

    Attributes:
        percent: of the edges into a node, how many are not zero, averaged over the nodes.
        edges: the same as a number of edges.
        exact_percent: of the edges into a node, how many are not exactly zero.
    """

    percent: float
    edges: float
    exact_percent: float


@dataclass(frozen=True)
class Nonzeros:
    """The non-zeros of a network.

    Attributes:
        layers: of each layer that was asked for.
        percent: of all parameters of the network, free ones and biases included, how many are not zero.
        count: the same as a number of parameters.
        total: the number of parameters.

    >>> import torch, inface
    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
    >>> inface.sparsity.nonzeros(model, layers="weight")
    Nonzeros(layers={'weight': LayerNonzeros(percent=25.0, edges=0.5, exact_percent=25.0)}, percent=25.0, count=1, total=4)
    """

    layers: dict[str, LayerNonzeros]
    percent: float
    count: int
    total: int


def nonzeros(
    model: nn.Module, threshold: float = 1e-3, *, layers: str | Iterable[str] | torch.optim.Optimizer | None = None
) -> Nonzeros:
    """Count the edges that matter, as the paper does per layer and as the literature does for the whole network.

    Args:
        model: the network.
        threshold: an entry counts as zero if its magnitude is below this.
        layers: globs on parameter names, or an optimizer, whose constrained parameters are meant; by default the
            parameters of this model that a :class:`inface.FrankWolfe` constrains, or of the model that it is a copy of
            (``copy.deepcopy``, ``torch.optim.swa_utils.AveragedModel``) or wraps (``torch.compile``).

    >>> import torch, inface
    >>> from inface.sets import L1Ball
    >>> model = torch.nn.Linear(4, 2)
    >>> _ = model.weight.data.copy_(torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 1e-5]]))
    >>> layer = inface.sparsity.nonzeros(model, layers="weight").layers["weight"]
    >>> layer.percent, layer.edges, layer.exact_percent
    (37.5, 1.5, 50.0)
    """
    if not threshold >= 0:
        raise ValueError(f"nonzeros: threshold must be >= 0, got {threshold!r}")
    chosen = _chosen(model, layers)
    everything = list(model.parameters())
    count, total = sum(_count(whole(p), threshold) for p in everything), sum(p.numel() for p in everything)
    return Nonzeros(
        {name: _layer(p, threshold) for name, p in chosen.items()}, 100 * count / max(1, total), count, total
    )


def hard_threshold(
    model: nn.Module,
    keep: float = 0.05,
    *,
    layers: str | Iterable[str] | torch.optim.Optimizer | None = None,
    scope: Literal["layer", "global", "balanced"] = "layer",
    inplace: bool = False,
) -> nn.Module:
    """A copy of the network with only the largest edges of its constrained layers.

    ``scope="balanced"`` is the one for a network that was trained by :func:`inface.sparse_optimizer` and should become
    smaller without more training. It ranks edges as the training did, by their LAMP scores (:mod:`inface.cuts`), and
    multiplies what is left of a layer by ``sqrt(a b)``, where ``a`` and ``b`` are the numbers that would restore its l1 and
    its l2 norm. Outputs of a node shrink by ``1 / b`` if its inputs are independent, by ``1 / a`` if they are all alike, and
    by something between for real ones. Statistics of batch normalisation are another matter:
    :func:`torch.optim.swa_utils.update_bn` measures them again. A weight behind weight normalisation has the length that
    the normalisation gives it.

    Each node of a layer with weight normalisation keeps its largest edge, also where ``keep`` leaves fewer edges than nodes:
    what it is divided by would be zero. Layers that share edges with such a one keep one at least.

    Args:
        model: the network, which is not changed unless ``inplace`` says so.
        keep: the part of the edges to keep, in (0, 1]; of equal ones, those of lower index.
        layers: as in :func:`nonzeros`.
        scope: ``"layer"``: this part of every layer; ``"global"``: this part of all of them together, by magnitude;
            ``"balanced"``: this part of all of them together, by LAMP scores, and what is left grows.
        inplace: change the network itself, and return it: the way for models under ``fully_shard``, which cannot be copied.

    >>> import torch, inface
    >>> model = torch.nn.Linear(4, 1)
    >>> _ = model.weight.data.copy_(torch.tensor([[0.1, -0.4, 0.3, 0.2]]))
    >>> inface.sparsity.hard_threshold(model, keep=0.5, layers="weight").weight
    Parameter containing:
    tensor([[ 0.0000, -0.4000,  0.3000,  0.0000]], requires_grad=True)
    >>> inface.sparsity.hard_threshold(model, keep=0.5, layers="weight", scope="balanced").weight
    Parameter containing:
    tensor([[ 0.0000, -0.5004,  0.3753,  0.0000]], requires_grad=True)
    """
    if not 0 < keep <= 1:
        raise ValueError(f"hard_threshold: keep must be in (0, 1], got {keep!r}")
    if scope not in ("layer", "global", "balanced"):
        raise ValueError(f"hard_threshold: scope must be 'layer', 'global' or 'balanced', got {scope!r}")
    names = list(_chosen(model, layers))
    kept = model if inplace else _copied(model)
    parameters = dict(kept.named_parameters())
    chosen = [parameters[name] for name in names]
    layers_of = chosen_layers(kept, frozen=True).values()
    nodes = {id(each.param): int(each.per == "input") for each in layers_of if each.every_node}
    parts = [[p] for p in chosen] if scope == "layer" else [chosen]
    for together in parts:
        _keep_largest(together, keep, nodes, balanced=scope == "balanced")
    return kept


def _copied(model: nn.Module) -> nn.Module:
    """A copy of a model; FSDP2 refuses to make one."""
    known = sys.modules.get("torch.distributed.fsdp")
    if known is not None and any(isinstance(module, known.FSDPModule) for module in model.modules()):
        raise ValueError("hard_threshold: a model under fully_shard cannot be copied, wanted inplace=True")
    return copy.deepcopy(model)


@torch.no_grad()
def _keep_largest(params: list[nn.Parameter], keep: float, nodes: dict[int, int], *, balanced: bool) -> None:
    """``nodes`` has the dimension of the nodes of parameters whose nodes all keep an edge, by their ids."""
    all_ = [whole(p) for p in params]
    places = [constrained_places(set_of(p), x) for p, x in zip(params, all_, strict=True)]
    parts = [x if at is None else x.index_select(*at) for x, at in zip(all_, places, strict=True)]
    sizes = [part.abs().flatten().cpu() for part in parts]
    scores = [_scores(size) if balanced else size.clone() for size in sizes]
    for p, part, score in zip(params, parts, scores, strict=True):
        if id(p) in nodes:
            _protect(score, part.shape, nodes[id(p)])
        elif len(score) and nodes.keys() & {id(other) for other in params}:
            score[score.argmax()] = math.inf  # what nodes need may be all there is
    ranked = torch.cat(scores)
    order = ranked.sort(descending=True, stable=True).indices
    mask = torch.zeros_like(ranked, dtype=torch.bool)
    mask[order[: max(1, round(keep * ranked.numel()), int(ranked.isinf().sum()))]] = True
    masks = mask.split([size.numel() for size in sizes])
    for p, x, at, part, size, kept in zip(params, all_, places, parts, sizes, masks, strict=True):
        part.masked_fill_(~kept.reshape(part.shape).to(x.device), 0)
        if balanced:
            part.mul_(_regained(size, kept))
        keep_whole(p, part if at is None else x.index_copy(*at, part))


def _protect(scores: Tensor, shape: torch.Size, dim: int) -> None:
    """Give the largest edge of each node the highest score; nodes are along ``dim``."""
    places = torch.arange(scores.numel()).view(shape).movedim(dim, 0).flatten(1)
    scores[places.gather(1, scores[places].argmax(1, keepdim=True))] = math.inf


def _scores(sizes: Tensor) -> Tensor:
    """The LAMP score of every edge of a layer, in the layer's order."""
    ordered, places = sizes.sort(stable=True, descending=True)
    scores = lamp(ordered.flip(0)).flip(0)
    return torch.empty_like(scores).index_copy_(0, places, scores)


def _regained(sizes: Tensor, kept: Tensor) -> float:
    """What a layer that has lost edges is multiplied by: the geometric mean of what restores its l1 and its l2 norm."""
    left, factor = sizes[kept].double(), 1.0
    for p in (1, 2):
        norm = float(torch.linalg.vector_norm(left, p))
        factor *= float(torch.linalg.vector_norm(sizes.double(), p)) / norm if norm else 1.0
    return math.sqrt(factor)


def _chosen(model: nn.Module, layers: str | Iterable[str] | torch.optim.Optimizer | None) -> dict[str, nn.Parameter]:
    parameters = dict(model.named_parameters())
    if layers is None:
        found = {name: p for name, p in parameters.items() if set_of(p) is not None}
        if not found:
            raise ValueError(
                'no parameter of this model is constrained by a FrankWolfe optimizer; say which with layers=["fc1.weight", ...]'
            )
        return found
    if isinstance(layers, torch.optim.Optimizer):
        members = {id(p) for group in layers.param_groups if group.get("set") is not None for p in group["params"]}
        found = {name: p for name, p in parameters.items() if id(p) in members}
        if not found:
            raise ValueError(
                "layers: the optimizer constrains no parameter of this model; wanted the model's own optimizer"
            )
        return found
    patterns = [layers] if isinstance(layers, str) else list(layers)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in parameters):
            raise ValueError(f'layers: "{pattern}" matches no parameter; the model has {", ".join(parameters)}')
    return {name: p for name, p in parameters.items() if any(fnmatchcase(name, pattern) for pattern in patterns)}


def _layer(p: Tensor, threshold: float) -> LayerNonzeros:
    set_, p = set_of(p), whole(p)
    places = constrained_places(set_, p)
    p = p if places is None else p.index_select(*places)
    nodes = p.shape[0] if p.ndim > 1 else 1
    inputs = max(1, p.numel() // max(1, nodes))
    edges = _count(p, threshold) / max(1, nodes)
    return LayerNonzeros(100 * edges / inputs, edges, 100 * int(p.count_nonzero()) / max(1, p.numel()))


def _count(p: Tensor, threshold: float) -> int:
    return int((~(p.abs() < threshold)).sum()) if threshold > 0 else int(p.count_nonzero())
