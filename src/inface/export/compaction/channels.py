"""Which channels of a network go together, which are constant, and which nobody needs.

A *channel* is a node of a dense layer or a filter of a convolution, followed through activations, pooling and so on. Two
things make it removable: it is constant and everybody who reads it can put the constant into a bias, or nobody reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .select import Select

__all__ = ["Classes", "Flow", "Layer", "alive"]


@dataclass(frozen=True, eq=False)
class Flow:
    """A tensor between two steps, as channels.

    Attributes:
        axis: the dimension of the channels.
        ids: of each channel, the class that it belongs to.
        value: of each channel, the number that it is everywhere and for every input; nan if it varies.
    """

    axis: int
    ids: Tensor
    value: Tensor


@dataclass(frozen=True, eq=False)
class Layer:
    """A step with tensors that get smaller when channels go.

    Attributes:
        name: of the module.
        module: the module.
        reads: its input.
        gives: its output.
        edges: for each channel that it gives and each that it reads, whether the one depends on the other; None if the
            two always go together (batch normalisation).
        folds: of the channels that it reads, which are constants that its bias can take over.
        positions: how often it is computed for one input: the size of the image that it gives.
    """

    name: str
    module: nn.Module
    reads: Flow
    gives: Flow
    edges: Tensor | None
    folds: Tensor
    positions: int


class Classes:
    """Channels that only go together, and the reasons why some cannot go.

    >>> classes = Classes()
    >>> one, other = classes.new(3), classes.new(3)
    >>> classes.tie(one, other)
    >>> classes.pin(other[:1], "an output of the network")
    >>> classes.roots().tolist(), classes.pins()
    ([0, 1, 2, 0, 1, 2], {0: 'an output of the network'})
    """

    def __init__(self) -> None:
        self._parents: list[int] = []
        self._pins: dict[int, str] = {}

    def new(self, count: int) -> Tensor:
        """Channels of their own."""
        start = len(self._parents)
        self._parents.extend(range(start, start + count))
        return torch.arange(start, start + count)

    def tie(self, one: Tensor, other: Tensor) -> None:
        """Each channel of one only goes together with the same channel of the other."""
        for a, b in zip(one.tolist(), other.tolist(), strict=True):
            first, last = sorted((self._root(a), self._root(b)))
            self._parents[last] = first
            if last in self._pins:
                self._pins.setdefault(first, self._pins.pop(last))

    def pin(self, ids: Tensor, reason: str) -> None:
        """These channels stay."""
        for each in ids.tolist():
            self._pins.setdefault(self._root(each), reason)

    def roots(self) -> Tensor:
        """Of each channel, the first of its class."""
        return torch.tensor([self._root(each) for each in range(len(self._parents))], dtype=torch.long)

    def pins(self) -> dict[int, str]:
        """The first channel of each class that stays, and why it does."""
        return dict(self._pins)

    def _root(self, each: int) -> int:
        while self._parents[each] != each:
            self._parents[each] = self._parents[self._parents[each]]
            each = self._parents[each]
        return each


def alive(classes: Classes, layers: Sequence[Layer], flows: Iterable[Flow]) -> tuple[Tensor, Tensor]:
    """Of each channel, whether it stays, and whether only because a layer must have one.

    A channel is needed if it is pinned, or if a channel that is needed depends on it and cannot take it over as a constant.
    """
    roots = classes.roots()
    needed = torch.zeros(len(roots), dtype=torch.bool)
    needed[list(classes.pins())] = True
    _spread(needed, roots, layers)
    stays = needed.clone()
    choosers = [layer for layer in layers if isinstance(layer.module, Select)]
    flows = [flow for flow in flows if len(flow.ids)]
    while empty := [flow for flow in flows if not stays[roots[flow.ids]].any()]:
        stays[roots[empty[0].ids[0]]] = True
        _spread(stays, roots, choosers)  # a selection cannot leave out what it selects, a layer with weights can
    return stays[roots], (stays & ~needed)[roots]


def _spread(needed: Tensor, roots: Tensor, layers: Sequence[Layer]) -> None:
    """Mark what the marked channels depend on, until nothing changes."""
    count = -1
    while count != int(needed.sum()):
        count = int(needed.sum())
        for layer in reversed(layers):
            if layer.edges is not None:
                read = layer.edges[needed[roots[layer.gives.ids]]].any(0) & ~layer.folds
                needed[roots[layer.reads.ids[read]]] = True
