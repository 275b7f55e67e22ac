"""A run on several processes, or on another device: who computes which part of a batch, and how the parts are added up.

``torchrun`` starts the processes. Each computes the gradient of its rows of every batch, all get the sum, and all take the
same step. The first one alone reads and writes the run folder, measures, and decides; the others wait for what it says.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from inface.lab.errors import ArgumentError, LabError

__all__ = ["ALONE", "Device", "Processes", "Stopped", "joined", "share_statistics"]

Device = Literal["cpu", "cuda", "mps", "auto"]
T = TypeVar("T")

# The others wait that long while the first process measures.
PATIENCE = timedelta(days=1)


class Stopped(LabError):  # noqa: N818 - what it is
    """The first process has stopped, and says why; this is what the others raise."""


@dataclass(frozen=True)
class Processes:
    """Where a process is among those of a run, and the device that it computes on.

    >>> alone = Processes()
    >>> alone.first, alone.rows(torch.arange(5)).tolist(), alone.first_does(lambda: {"answer": 42})
    (True, [0, 1, 2, 3, 4], {'answer': 42})
    >>> Processes(rank=1, size=2).rows(torch.arange(5)).tolist()
    [3, 4]
    """

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def first(self) -> bool:
        """Whether this process writes and measures."""
        return self.rank == 0

    @property
    def seeds_steps(self) -> bool:
        """Whether random numbers are drawn anew for each step: a checkpoint has the state of one process's CPU alone.

        >>> Processes().seeds_steps, Processes(rank=1, size=2).seeds_steps, Processes(device=torch.device("cuda")).seeds_steps
        (False, True, True)
        """
        return self.size > 1 or self.device.type != "cpu"

    def rows(self, batch: Tensor) -> Tensor:
        """The rows of a batch that this process computes; there may be none."""
        return batch if self.size == 1 else batch.tensor_split(self.size)[self.rank]

    def add_up(self, parameters: Iterable[nn.Parameter], loss: Tensor | None) -> float:
        """Replace gradients by their sums over all processes, and return the sum of the losses.

        What no process has a gradient of keeps none.
        """
        if self.size == 1:
            return 0.0 if loss is None else loss.item()
        from torch import distributed

        members = [p for p in parameters if p.requires_grad]
        there = [0.0 if loss is None else loss.item(), *(float(p.grad is not None) for p in members)]
        numbers = torch.tensor(there, dtype=torch.float64, device=self._place)
        distributed.all_reduce(numbers)
        value, *counts = numbers.tolist()
        moving = [p for p, count in zip(members, counts, strict=True) if count]
        for dtype in dict.fromkeys(p.dtype for p in moving):
            own = [p for p in moving if p.dtype == dtype]
            parts = [p.detach().new_zeros(p.numel()) if p.grad is None else p.grad.reshape(-1) for p in own]
            flat = torch.cat(parts).to(self._place)
            distributed.all_reduce(flat)
            for p, total in zip(own, flat.to(self.device).split([p.numel() for p in own]), strict=True):
                p.grad = total.view_as(p)
        return float(value)

    def first_does(self, work: Callable[[], T]) -> T:
        """What the first process makes of some work, as plain data, for all; if it fails there, all stop."""
        if self.size == 1:
            return work()
        error: LabError | None = None
        found: Any = None
        if self.first:
            try:
                found = work()
            except LabError as raised:
                error = raised
        told = json.loads(self.send(json.dumps([error is None, found]).encode() if self.first else b""))
        if error is not None:
            raise error
        if not told[0]:
            raise Stopped(f"process {self.rank}: the first process has stopped")
        return told[1]

    def send(self, data: bytes) -> bytes:
        """Bytes of the first process, for all; what others give is not looked at."""
        if self.size == 1:
            return data
        from torch import distributed

        length = torch.tensor([len(data)], device=self._place)
        distributed.broadcast(length, 0)
        sent = torch.zeros(int(length), dtype=torch.uint8)
        if self.first and data:
            sent = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        sent = sent.to(self._place)
        distributed.broadcast(sent, 0)
        return sent.cpu().numpy().tobytes()

    @property
    def _place(self) -> torch.device:
        """Where what is sent has to be: NCCL sends from GPUs, Gloo from memory."""
        return self.device if self.device.type == "cuda" else torch.device("cpu")


ALONE = Processes()


@contextmanager
def joined(device: str = "cpu", *, environment: Any = os.environ) -> Iterator[Processes]:
    """The processes that torchrun has started, or this one alone, each with its device.

    Args:
        device: a :data:`Device`; ``"auto"`` is a GPU if there is one, and the CPU otherwise. Of several GPUs of a machine each process
            takes its own.
        environment: what torchrun has told this process.

    Raises:
        ArgumentError: there is no such device, or the environment lacks a part of what torchrun tells.

    >>> with joined("auto", environment={}) as processes:
    ...     processes.size
    1
    """
    size, rank, local = (
        _told(environment, *each) for each in (("WORLD_SIZE", "1"), ("RANK", "0"), ("LOCAL_RANK", "0"))
    )
    chosen = _device(device, local)
    if size == 1:
        yield Processes(device=chosen)
        return
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        if name not in environment:
            raise ArgumentError(
                f"WORLD_SIZE is {size}, but {name} is not set; torchrun sets all of them, and one process alone needs none"
            )
    from torch import distributed

    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    distributed.init_process_group("nccl" if chosen.type == "cuda" else "gloo", timeout=PATIENCE)
    try:
        yield Processes(rank, size, chosen)
    finally:
        distributed.destroy_process_group()


def _told(environment: Any, name: str, usual: str) -> int:
    value = environment.get(name, usual)
    if not value.isdecimal():
        raise ArgumentError(f"{name}: wanted a whole number in the environment, got {value!r}")
    return int(value)


def _device(name: str, local: int) -> torch.device:
    if name not in get_args(Device):
        raise ArgumentError(f"device: wanted {', '.join(get_args(Device))}, got {name}")
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    kind = next(kind for kind, found in there.items() if found) if name == "auto" else name
    if not there[kind]:
        raise ArgumentError(f"device: {kind} is not available here; wanted {' or '.join(k for k in there if there[k])}")
    if kind != "cuda":
        return torch.device(kind)
    if local >= torch.cuda.device_count():
        raise ArgumentError(
            f"device: wanted a GPU for each process of a machine, got process {local} and "
            f"{torch.cuda.device_count()} GPUs; torchrun --nproc-per-node says how many processes there are"
        )
    return torch.device("cuda", local)


def share_statistics(model: nn.Module, processes: Processes) -> bool:
    """Make batch normalisation use the statistics of whole batches, not of a process's part; whether there is any.

    >>> share_statistics(nn.Sequential(nn.BatchNorm1d(3)), Processes())
    False
    """
    found = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    if processes.size == 1:
        return False
    for module in found:
        # A class, not a function of the instance: copies of the model must use their own statistics.
        module.__class__ = type(f"Shared{type(module).__name__}", (_Shared, type(module)), {})
    return bool(found)


class _Shared(_BatchNorm):
    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        from torch.distributed.nn.functional import all_reduce

        self._check_input_dim(x)  # type: ignore[no-untyped-call]
        dims = [0, *range(2, x.ndim)]
        shape = [1, -1, *(1 for _ in range(2, x.ndim))]
        wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
        count = torch.full((1,), float(x.numel() // x.shape[1]), dtype=wide.dtype, device=x.device)
        total = all_reduce(torch.cat([count, wide.sum(dims)]))
        samples, mean = total[0].detach(), total[1:] / total[0].detach()
        away = wide - mean.view(shape)
        variance = all_reduce(away.square().sum(dims)) / samples
        self._remember(mean.detach(), variance.detach() * samples / (samples - 1))
        scaled = away * (variance + self.eps).rsqrt().view(shape)
        if self.affine:
            scaled = scaled * self.weight.view(shape) + self.bias.view(shape)
        return scaled.to(x.dtype)

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        if not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        momentum = self.momentum
        if momentum is None:
            momentum = 1 / float(self.num_batches_tracked or 1)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        self.running_var.lerp_(variance.to(self.running_var.dtype), momentum)
