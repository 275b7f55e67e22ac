"""The paper's initialisation: sparse, and yet every node is connected."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .sets import NuclearBall, Set, Simplex, SpectralBall
from .sets.base import computable, spread

if TYPE_CHECKING:
    from .optimizer import FrankWolfe

__all__ = ["graph_init_"]

_Conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def graph_init_(
    model: nn.Module | FrankWolfe,
    groups: Iterable[dict[str, Any]] | FrankWolfe | None = None,
    *,
    generator: torch.Generator | None = None,
    example: Any = None,
    scale: float = 1.0,
) -> None:
    """Give each node of the constrained layers at least one incoming and one outgoing edge, in place.

    A layer gets as many edges as the larger of its numbers of inputs and outputs, placed at random so that every input
    and every output has one, of random sign and equal size, and each block is scaled to the radius of its set, on its
    boundary. In a convolution an edge is one random entry of a kernel, and a grouped convolution is connected group by
    group (which needs the model: an optimizer alone does not know). Free parameters are left as they are.

    Behind a ReLU a node whose only edge is negative never fires, and has no gradient to recover by: with an ``example``,
    layers that see no negative inputs get positive edges. And edges as large as the radius allows may make the first
    losses so large that the steps after them kill many nodes more: a smaller ``scale`` starts inside of the set.

    Args:
        model: the network, with ``groups``; or an optimizer, which knows its groups.
        groups: what :func:`inface.param_groups` returned, or an optimizer.
        generator: a CPU generator, for reproducibility on any device.
        example: a batch of inputs of the model, or a tuple of its arguments.
        scale: the size of the blocks, as a part of the radius; below 1 not for a simplex, which has no inside.

    Raises:
        ValueError: for a nuclear or spectral ball, whose points are not made of edges.

    >>> import torch, inface
    >>> from inface.sets import L1Ball
    >>> model = torch.nn.Linear(6, 3)
    >>> groups = inface.param_groups(model, {"weight": L1Ball(2.0)})
    >>> inface.graph_init_(model, groups, generator=torch.Generator().manual_seed(0))
    >>> model.weight.abs().sum(1), (model.weight != 0).sum(0)
    (tensor([2., 2., 2.], grad_fn=<SumBackward1>), tensor([1, 1, 1, 1, 1, 1]))
    """
    if not 0 < scale <= 1:
        raise ValueError(f"graph_init_: scale must be in (0, 1], got {scale!r}")
    if isinstance(model, nn.Module):
        if groups is None:
            raise TypeError("graph_init_: with a model, wanted groups from inface.param_groups, or an optimizer")
        channels = {
            id(p): module.groups
            for module in model.modules()
            if isinstance(module, _Conv)
            for p in module.parameters(recurse=False)
        }
    else:
        groups, channels = model, {}
    listed: Iterable[dict[str, Any]] = groups.param_groups if isinstance(groups, torch.optim.Optimizer) else groups
    members = [
        (p, group["set"], name)
        for group in listed
        if group.get("set") is not None
        for name, p in _named(group)
        if p.numel()
    ]
    for _, set_, name in members:
        if isinstance(set_, NuclearBall | SpectralBall):
            raise ValueError(
                f"graph_init_: {name} lives in {set_!r}, whose points are not made of edges; "
                f"start it from a random matrix with project=True"
            )
        if scale < 1 and isinstance(set_, Simplex):
            raise ValueError(f"graph_init_: {name} lives in {set_!r}, which has no smaller points, got scale {scale:g}")
    positive: set[int] = set()
    if example is not None:
        if not isinstance(model, nn.Module):
            raise TypeError("graph_init_: with an example, wanted the model that it goes through")
        positive = _behind_activations(model, example)
    with torch.no_grad():
        for p, set_, _ in members:
            start = _connected(p, set_, channels.get(id(p), 1), generator)
            p.copy_((start.abs() if id(p) in positive else start) * scale)


def _behind_activations(model: nn.Module, example: Any) -> set[int]:
    """The parameters of layers that see no negative number when the model runs on an example."""
    found: set[int] = set()

    def look(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        own = {id(p) for p in layer.parameters(recurse=False)}
        if all(isinstance(x, Tensor) and not bool((x < 0).any()) for x in inputs):
            found.update(own)
        else:
            negative.update(own)

    negative: set[int] = set()
    hooks = [module.register_forward_pre_hook(look) for module in model.modules()]
    training = {module: module.training for module in model.modules()}
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            model.eval()(*(example if isinstance(example, tuple) else (example,)))
    finally:
        for hook in hooks:
            hook.remove()
        for module, before in training.items():
            module.training = before
    return found - negative


def _named(group: dict[str, Any]) -> list[tuple[str, Tensor]]:
    """The parameters of a group, before or after it belongs to an optimizer, with what to call them."""
    members = group["params"]
    if members and isinstance(members[0], tuple):
        return [(f'parameter "{name}"', p) for name, p in members]
    names = group.get("param_names")
    return [
        (f'parameter "{names[i]}"' if names else f"a parameter of shape {tuple(p.shape)}", p)
        for i, p in enumerate(members)
    ]


def _connected(p: Tensor, set_: Set, channels: int, generator: torch.Generator | None) -> Tensor:
    rows, columns = (1, p.numel()) if p.ndim < 2 else (p.shape[0], p.shape[1])
    kernel = p.numel() // max(1, rows * columns)
    edges = torch.cat([_cover(rows // channels, columns, generator) for _ in range(channels)])
    positions = torch.randint(max(1, kernel), (rows, columns, 1), generator=generator)
    signs = torch.randint(2, (rows, columns), generator=generator) * 2.0 - 1
    if isinstance(set_, Simplex):
        signs = signs.abs()
    values = torch.zeros(rows, columns, kernel).scatter(2, positions, (signs * edges).unsqueeze(2))
    blocks = set_.to_blocks(computable(values.reshape(p.shape).to(p)))
    scaled = blocks * spread(set_.r(blocks) / set_.block_norm(blocks), blocks).to(blocks.dtype)
    return set_.from_blocks(scaled, p)


def _cover(rows: int, columns: int, generator: torch.Generator | None) -> Tensor:
    """A random 0/1 matrix with ``max(rows, columns)`` ones, at least one in every row and every column.

    >>> edges = _cover(3, 5, torch.Generator().manual_seed(0))
    >>> edges.sum(0).tolist(), sorted(edges.sum(1).tolist())
    ([1.0, 1.0, 1.0, 1.0, 1.0], [1.0, 2.0, 2.0])
    """
    if rows < columns:
        return _cover(columns, rows, generator).T
    turns = -(-rows // columns)
    targets = torch.cat([torch.randperm(columns, generator=generator) for _ in range(turns)])[:rows]
    edges = torch.zeros(rows, columns)
    edges[torch.randperm(rows, generator=generator), targets] = 1
    return edges
