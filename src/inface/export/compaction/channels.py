"""The channels of a network: which are tied together, which are constant, and which are not needed.

A *channel* is a node of a dense layer or a filter of a convolution, followed through activations, pooling and so on. It
can be removed if nothing reads it, or if it is constant and all its readers can fold the constant into a bias.
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
        ids: the class of each channel.
        value: the value of each channel if it is the same everywhere and for every input; else NaN.
    """

    axis: int
    ids: Tensor
    value: Tensor


@dataclass(frozen=True, eq=False)
class Layer:
    """A step whose tensors get smaller when channels are removed.

    Attributes:
        name: the name of the module.
        module: the module.
        reads: its input.
        gives: its output.
        edges: for each output and input channel, whether the one depends on the other; None if the two are always
            removed together (batch normalisation).
        folds: which input channels are constants that its bias can absorb.
        positions: the number of positions in its output for one input: the size of the image.
    """

    name: str
    module: nn.Module
    reads: Flow
    gives: Flow
    edges: Tensor | None
    folds: Tensor
    positions: int


class Classes:
    """Classes of channels that can only be removed together, and the reasons why some must stay.

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
        """Add channels, each in its own class."""
        start = len(self._parents)
        self._parents.extend(range(start, start + count))
        return torch.arange(start, start + count)

    def tie(self, one: Tensor, other: Tensor) -> None:
        """Tie each channel of one to the same channel of the other: both stay, or both are removed."""
        for a, b in zip(one.tolist(), other.tolist(), strict=True):
            first, last = sorted((self._root(a), self._root(b)))
            self._parents[last] = first
            if last in self._pins:
                self._pins.setdefault(first, self._pins.pop(last))

    def pin(self, ids: Tensor, reason: str) -> None:
        """Keep these channels."""
        for each in ids.tolist():
            self._pins.setdefault(self._root(each), reason)

    def roots(self) -> Tensor:
        """The first channel of the class of each channel."""
        return torch.tensor([self._root(each) for each in range(len(self._parents))], dtype=torch.long)

    def pins(self) -> dict[int, str]:
        """The first channel of each class that must stay, and the reason."""
        return dict(self._pins)

    def _root(self, each: int) -> int:
        while self._parents[each] != each:
            self._parents[each] = self._parents[self._parents[each]]
            each = self._parents[each]
        return each


def alive(classes: Classes, layers: Sequence[Layer], flows: Iterable[Flow]) -> tuple[Tensor, Tensor]:
    """For each channel: whether it stays, and whether it stays only because a layer needs at least one.

    A channel is needed if it is pinned, or if a needed channel depends on it and cannot fold it as a constant.
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
        _spread(stays, roots, choosers)  # a selection needs all that it selects; a layer with weights does not
    return stays[roots], (stays & ~needed)[roots]


def _spread(needed: Tensor, roots: Tensor, layers: Sequence[Layer]) -> None:
    """Mark all channels on which marked channels depend, until nothing changes."""
    count = -1
    while count != int(needed.sum()):
        count = int(needed.sum())
        for layer in reversed(layers):
            if layer.edges is not None:
                read = layer.edges[needed[roots[layer.gives.ids]]].any(0) & ~layer.folds
                needed[roots[layer.reads.ids[read]]] = True
