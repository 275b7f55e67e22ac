"""The paper's initialisation: sparse, and yet every node is connected."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from .dtensors import agree, as_first, is_sharded, keep, whole
from .sets import Set
from .sets.base import computable, spread
from .state import rounded
from .units import Unit, units

if TYPE_CHECKING:
    from .optimizer import FrankWolfe

__all__ = ["graph_init_"]

_Transposed = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_Conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d, *_Transposed)

ALIVE = 0.3  # of the radius: where blocks start that are to be alive


def graph_init_(
    model: nn.Module | FrankWolfe,
    groups: Iterable[dict[str, Any]] | FrankWolfe | None = None,
    *,
    generator: torch.Generator | None = None,
    edges: int = 1,
    alive: bool = False,
    example: Any = None,
    scale: float | None = None,
) -> None:
    """Give each node of the constrained layers at least one incoming and one outgoing edge, in place.

    A layer gets as many edges as the larger of its numbers of inputs and outputs, placed at random so that every input
    and every output has one, of random sign and equal size, and each block is scaled to the radius of its set, on its
    boundary. In a convolution an edge is one random entry of a kernel, and a grouped convolution is connected group by
    group (which needs the model: an optimizer alone does not know). Free parameters are left as they are.

    Behind a ReLU a node whose only edge is negative never fires, and has no gradient to recover by: half of the nodes of a
    square layer start dead. There are two ways out. With ``edges=2`` or more every node has edges of both signs. With
    ``alive=True`` layers that see no negative inputs in an ``example`` get positive edges, and blocks start well inside of
    their sets: edges as large as the radius allows may make the first losses so large that the steps after them kill
    many nodes more.

    Args:
        model: the network, with ``groups``; or an optimizer, which knows its groups.
        groups: what :func:`inface.param_groups` returned, or an optimizer.
        generator: a CPU generator, for reproducibility on any device. Processes that hold sharded parameters together all
            draw as the first of them does.
        edges: how many edges enter a node at least. With more than one, half of them are of each sign (of an odd number
            one more of a random sign; in a simplex, or in layers that ``example`` shows to see no negative inputs, all are
            positive). In a convolution they are different entries of the node's filter.
        alive: start with nodes that fire: needs an ``example``, and ``scale`` is 0.3 unless it is given (1 in a simplex).
        example: a batch of inputs of the model, or a tuple of its arguments: layers that see no negative inputs in it get
            positive edges.
        scale: the size of the blocks, as a part of the radius, by default 1; below 1 not for a simplex, which has no
            inside.

    Raises:
        ValueError: for a nuclear or spectral ball, whose points are not made of edges; or if ``edges`` is not a whole
            number from 1 to the fan-in of each layer.

    >>> import torch, inface
    >>> from inface.sets import L1Ball
    >>> model = torch.nn.Linear(6, 3)
    >>> groups = inface.param_groups(model, {"weight": L1Ball(2.0)})
    >>> inface.graph_init_(model, groups, generator=torch.Generator().manual_seed(0))
    >>> model.weight.abs().sum(1), (model.weight != 0).sum(0)
    (tensor([2., 2., 2.], grad_fn=<SumBackward1>), tensor([1, 1, 1, 1, 1, 1]))
    >>> inface.graph_init_(model, groups, edges=4)
    >>> (model.weight > 0).sum(1), (model.weight < 0).sum(1)
    (tensor([2, 2, 2]), tensor([2, 2, 2]))
    """
    _check_options(edges, scale, example if alive else True)
    if isinstance(model, nn.Module):
        if groups is None:
            raise TypeError("graph_init_: with a model, wanted groups from inface.param_groups, or an optimizer")
        convolutions = {
            id(module._parameters.get("weight")): module  # noqa: SLF001 (a parametrised weight is none)
            for module in model.modules()
            if isinstance(module, _Conv)
        }
    else:
        groups, convolutions = model, {}
    listed: Iterable[dict[str, Any]] = groups.param_groups if isinstance(groups, torch.optim.Optimizer) else groups
    constrained = [(group["set"], _named(group)) for group in listed if group.get("set") is not None]
    layouts = {
        id(p): _Layout.of(p, convolutions.get(id(p))) for _, members in constrained for _, p in members if p.numel()
    }
    for set_, members in constrained:
        _check(set_, [(name, layouts[id(p)]) for name, p in members if id(p) in layouts], edges, scale)
    members_ = [p for _, members in constrained for _, p in members]
    positive: set[int] = set()
    if example is not None:
        if not isinstance(model, nn.Module):
            raise TypeError("graph_init_: with an example, wanted the model that it goes through")
        positive = _agreed(members_, _behind_activations(model, example))
    generator = agree(members_, generator)
    with torch.no_grad(), torch.device("cpu"):  # whatever the default device is: that of the generator
        for set_, members in constrained:
            size = scale if scale is not None else ALIVE if alive and set_.has_inside else 1.0
            for unit in units({"params": [p for _, p in members], "set": set_}, 0):
                patterns = [_pattern(layouts[id(p)], int(edges), generator).reshape(p.shape) for p in unit.params]
                one_sign = [not set_.signed or id(p) in positive for p in unit.params]
                patterns = [x.abs() if one else x for x, one in zip(patterns, one_sign, strict=True)]
                params, unit = unit.params, unit._replace(params=[whole(p) for p in unit.params])  # noqa: PLW2901
                for p, start in zip(params, _scaled(unit, patterns, size), strict=True):
                    keep(p, start)


def _agreed(params: list[Tensor], positive: set[int]) -> set[int]:
    """The parameters of layers without negative inputs, as the first process that holds them has found them."""
    p = next((p for p in params if is_sharded(p)), None)
    if p is None:
        return positive
    found = as_first(p, torch.tensor([id(own) in positive for own in params], device="cpu"))
    return {id(own) for own, yes in zip(params, found.tolist(), strict=True) if yes}


def _check_options(edges: int, scale: float | None, example: Any) -> None:
    if scale is not None and not 0 < scale <= 1:
        raise ValueError(f"graph_init_: scale must be in (0, 1], got {scale!r}")
    if isinstance(edges, bool) or not isinstance(edges, Integral) or edges < 1:
        raise ValueError(f"graph_init_: edges must be a whole number >= 1, got {edges!r}")
    if example is None:
        raise TypeError("graph_init_: with alive=True, wanted an example, a batch of inputs of the model")


def _check(set_: Set, members: list[tuple[str, _Layout]], edges: int, scale: float | None) -> None:
    """Refuse what parameters cannot start from."""
    for name, layout in members:
        if not set_.has_edges:
            raise ValueError(
                f"graph_init_: {name} lives in {set_!r}, whose points are not made of edges; "
                f"start it from a random matrix with project=True"
            )
        if scale is not None and scale < 1 and not set_.has_inside:
            raise ValueError(f"graph_init_: {name} lives in {set_!r}, which has no smaller points, got scale {scale:g}")
        if edges > layout.fan_in:
            raise ValueError(f"graph_init_: {name} has a fan-in of {layout.fan_in}, got edges {edges}")


def _behind_activations(model: nn.Module, example: Any) -> set[int]:
    """The parameters of layers that see no negative number when the model runs on an example."""
    found: set[int] = set()

    # Before anything runs: in a forward pass fully_shard puts other parameters there.
    ids = {module: {id(p) for p in module.parameters(recurse=False)} for module in model.modules()}

    def look(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        own = ids[layer]
        if all(isinstance(x, Tensor) and not bool((whole(x) < 0).any()) for x in inputs):
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


class _Layout(NamedTuple):
    """A parameter as edges from inputs to outputs; each group of a convolution by itself.

    Attributes:
        groups: how many groups.
        rows: of each group, along the first dimension.
        columns: of each group, along the second.
        kernel: the entries of a kernel: 1 but in a convolution.
        transposed: whether outputs are columns, not rows.
    """

    groups: int
    rows: int
    columns: int
    kernel: int
    transposed: bool

    @staticmethod
    def of(p: Tensor, convolution: nn.Module | None) -> _Layout:
        groups = int(getattr(convolution, "groups", 1))
        rows, columns = (1, p.numel()) if p.ndim < 2 else (p.shape[0], p.shape[1])
        kernel = p.numel() // (rows * columns)
        return _Layout(groups, rows // groups, columns, kernel, isinstance(convolution, _Transposed))

    @property
    def fan_in(self) -> int:
        return (self.rows if self.transposed else self.columns) * self.kernel


def _pattern(layout: _Layout, edges: int, generator: torch.Generator | None) -> Tensor:
    return _single(layout, generator) if edges == 1 else _several(layout, edges, generator)


def _scaled(unit: Unit, patterns: list[Tensor], size: float) -> list[Tensor]:
    """Patterns scaled to this part of the radius, block by block; free blocks as they are in the parameters."""
    set_ = unit.set
    x = unit.blocks([pattern.to(computable(p.detach())) for pattern, p in zip(patterns, unit.params, strict=True)])
    start = x * spread(set_.r(x) / set_.block_norm(x), x).to(x.dtype) * size
    if set_.free is not None:
        start = torch.where(spread(set_.free.to(x.device), x), unit.blocks([computable(p) for p in unit.params]), start)
    return rounded(unit, unit.tensors(start))


def _single(layout: _Layout, generator: torch.Generator | None) -> Tensor:
    """As few edges as connect everything, each 1 or -1."""
    groups, rows, columns, kernel, _ = layout
    edges = torch.cat([_cover(rows, columns, generator) for _ in range(groups)])
    positions = torch.randint(kernel, (groups * rows, columns, 1), generator=generator)
    signs = torch.randint(2, (groups * rows, columns), generator=generator) * 2.0 - 1
    return torch.zeros(groups * rows, columns, kernel).scatter(2, positions, (signs * edges).unsqueeze(2))


def _several(layout: _Layout, edges: int, generator: torch.Generator | None) -> Tensor:
    """At least so many edges into each output and one out of each input; each 1 or -1, and as many of the one as can be."""
    groups, rows, columns, kernel, transposed = layout
    outputs, inputs = (columns, rows) if transposed else (rows, columns)
    parts = []
    for _ in range(groups):
        cover = _cover(outputs, inputs, generator).unsqueeze(2)
        positions = torch.randint(kernel, (outputs, inputs, 1), generator=generator)
        first = torch.zeros(outputs, inputs, kernel).scatter(2, positions, cover).flatten(1)
        preferred = (2 * first + torch.rand(first.shape, generator=generator)).topk(edges).indices
        chosen = first.scatter(1, preferred, 1.0)
        chosen[chosen != 0] = _halved(chosen.nonzero()[:, 0], generator)
        part = chosen.view(outputs, inputs, kernel)
        parts.append(part.transpose(0, 1) if transposed else part)
    return torch.cat(parts)


def _halved(nodes: Tensor, generator: torch.Generator | None) -> Tensor:
    """A sign for each edge, whose nodes are given in order: half of each node's edges get each, in random places.

    >>> signs = _halved(torch.tensor([0, 0, 0, 0, 1, 1]), None)
    >>> signs[:4].sum(), signs[4:].sum()
    (tensor(0.), tensor(0.))
    """
    shuffled = (nodes + torch.rand(len(nodes), dtype=torch.float64, generator=generator)).argsort()
    first = torch.randint(2, (int(nodes[-1]) + 1,), generator=generator)
    signs = torch.empty(len(nodes))
    signs[shuffled] = 1 - 2.0 * ((torch.arange(len(nodes)) + first[nodes]) % 2)
    return signs


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
