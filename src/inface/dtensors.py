"""Parameters that several processes hold together (``torch.distributed.tensor.DTensor``): their parts, and the whole.

Nothing here imports ``torch.distributed.tensor``, which takes a while: as long as nobody else has, there are no DTensors.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor

from .sets import blocks
from .sets.blocks import Per

__all__ = [
    "Holders", "agree", "as_first", "entries", "holders", "is_sharded", "keep", "local", "own_part", "sharding",
    "some_are_empty", "total", "whole", "whole_blocks", "wrap",
]  # fmt: skip

# What a tensor that stands for a part of a DTensor knows of the others: an attribute of it.
MARK = "_inface_holders"


@dataclass(frozen=True, eq=False)
class Holders:
    """The processes that hold the parts of a parameter.

    Attributes:
        groups: one process group for each dimension of the mesh that the parameter is cut along.
        entries: of the whole parameter.
        index: the numbers, in the whole parameter, of the blocks that this process holds.
        count: how many blocks the whole parameter has.
    """

    groups: tuple[Any, ...]
    entries: int
    index: Tensor
    count: int


def is_sharded(p: object) -> TypeGuard[Any]:
    """Whether it is a DTensor.

    >>> import torch
    >>> is_sharded(torch.zeros(2))
    False
    """
    known = sys.modules.get("torch.distributed.tensor")
    return known is not None and isinstance(p, known.DTensor)


def sharding(p: Any) -> dict[int, Any]:
    """The dimensions of a DTensor's mesh that it is cut along, with how; one process alone cuts nothing."""
    mesh = p.device_mesh
    return {
        i: placement for i, placement in enumerate(p.placements) if not placement.is_replicate() and mesh.size(i) > 1
    }


def whole_blocks(p: Any, per: Per) -> bool:
    """Whether every block of a DTensor lies whole on a process."""
    dimensions = {placement.dim % p.ndim for placement in sharding(p).values()}
    if not dimensions:
        return True
    return p.ndim >= 2 and dimensions == {"output": {0}, "input": {1}}.get(per)


def some_are_empty(p: Any) -> bool:
    """Whether some process may hold nothing of a DTensor that is cut along one of its dimensions."""
    cuts = [p.device_mesh.size(i) for i in sharding(p)]
    size = p.shape[next(iter(sharding(p).values())).dim]
    return any(_smallest(size, order) == 0 for order in (cuts, cuts[::-1]))


def _smallest(size: int, cuts: Sequence[int]) -> int:
    """The size of the smallest part, cut as torch.chunk does: all parts of one size, but the last ones.

    >>> _smallest(8, [2, 2]), _smallest(5, [4]), _smallest(5, [2, 3])
    (2, 0, 0)
    """
    if not cuts:
        return size
    part = -(-size // cuts[0])
    last = max(0, size - part * (cuts[0] - 1))
    return min(_smallest(part, cuts[1:]), _smallest(last, cuts[1:])) if last else 0


def holders(p: Any, per: Per | None) -> Holders:
    """Who holds the blocks of a DTensor that lie whole on processes; one without a set has none."""
    groups = tuple(p.device_mesh.get_group(i) for i in sharding(p))
    count = 0 if per is None else blocks.count(p.shape, per)
    index = torch.arange(count, device=local(p).device)
    return Holders(groups, p.numel(), own_part(index, p, along=True) if count else index, count)


def local(p: Any) -> Tensor:
    """The part of a DTensor that this process holds; it lies where the DTensor does."""
    with torch.no_grad():
        found = p.to_local()
    return found.wait() if hasattr(found, "wait") else found  # still on its way


@torch.no_grad()
def whole(x: Tensor) -> Tensor:
    """All of a DTensor, gathered from the processes that hold it; other tensors as they are.

    >>> import torch
    >>> whole(torch.zeros(2))
    tensor([0., 0.])
    """
    return x.full_tensor().contiguous() if is_sharded(x) else x.detach()


def own_part(full: Tensor, p: Any, *, along: bool = False) -> Tensor:
    """What this process holds of a tensor like a DTensor; or, ``along``, of one with a number for each of its blocks."""
    from torch.distributed.tensor import Shard, distribute_tensor  # noqa: PLC0415 - it is loaded, since p is there

    placements = list(p.placements)
    if along:
        for i, placement in enumerate(placements):
            if not placement.is_replicate():
                factor = getattr(placement, "split_factor", None)
                placements[i] = Shard(0) if factor is None else type(placement)(0, split_factor=factor)
    with torch.no_grad():
        return distribute_tensor(full, p.device_mesh, placements, src_data_rank=None).to_local()


def keep(p: Tensor, full: Tensor) -> None:
    """Make ``full`` the values of a parameter; of a DTensor every process keeps what it holds."""
    with torch.no_grad():
        if is_sharded(p):
            local(p).copy_(own_part(full, p))
        elif p is not full:
            p.copy_(full)


def wrap(part: Tensor, p: Any) -> Tensor:
    """A DTensor like ``p``, of the parts that the processes hold."""
    from torch.distributed.tensor import DTensor  # noqa: PLC0415

    return DTensor.from_local(part, p.device_mesh, p.placements, run_check=False, shape=p.shape, stride=p.stride())


def entries(p: Tensor) -> int:
    """How many entries a parameter has; of a tensor that stands for a part, those of the whole."""
    found: Holders | None = getattr(p, MARK, None)
    return p.numel() if found is None else found.entries


def total(p: Tensor, numbers: Tensor) -> Tensor:
    """The sum of numbers over the processes that hold other parts of ``p``, in an order that is the same for all.

    >>> import torch
    >>> total(torch.zeros(2), torch.tensor([1.0]))
    tensor([1.])
    """
    found: Holders | None = getattr(p, MARK, None)
    if found is None:
        return numbers
    from torch import distributed  # noqa: PLC0415 - it is loaded, since p is there

    for group in found.groups:
        size = distributed.get_world_size(group)
        # Not all_reduce: whether two processes add in the same order is up to its backend.
        gathered = numbers.new_empty(size * numbers.numel())
        distributed.all_gather_single(gathered, numbers.detach().contiguous().reshape(-1), group=group)
        numbers = gathered.view(size, *numbers.shape).sum(0)
    return numbers


def agree(params: Iterable[Tensor], generator: torch.Generator | None) -> torch.Generator | None:
    """A generator that draws the same for all processes that hold ``params`` together: the first one's.

    Other parameters leave a generator, or None for torch's own, as it is.
    """
    p = next((p for p in params if is_sharded(p)), None)
    if p is None:
        return generator
    own = torch.Generator("cpu") if generator is None else generator
    if generator is None:
        own.manual_seed(int(torch.randint(2**62, (), device="cpu")))
    own.set_state(as_first(p, own.get_state()))
    return own


def as_first(p: Tensor, numbers: Tensor) -> Tensor:
    """Numbers on a CPU as the first of the processes that hold ``p`` has them."""
    if not is_sharded(p):
        return numbers
    from torch import distributed  # noqa: PLC0415

    sent = numbers.to(local(p).device, copy=True)
    for i in range(p.device_mesh.ndim):
        group = p.device_mesh.get_group(i)
        distributed.broadcast(sent, distributed.get_global_rank(group, 0), group=group)
    return sent.cpu()
