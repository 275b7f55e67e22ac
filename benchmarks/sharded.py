"""What a step on shards costs beside SGD's, and what it sends: ``python -m benchmarks.sharded``.

Two processes hold a 4096x4096 layer under FSDP2, with a thread each. SGD and Frank-Wolfe take turns on the same shards. As in
the other benchmarks the least of many times counts, here of the slower process. Ordinary tensors of as many rows show what
the kernel costs without shards.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Literal

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed import FileStore  # type: ignore[attr-defined]
from torch.multiprocessing.spawn import spawn

import inface
from inface.sets import InFace, L1Ball

WORLD, SIZE, ROUNDS = 2, 4096, 40
KINDS: tuple[tuple[str, Literal["output", "tensor"]], ...] = (
    ("ordinary rows", "output"),
    ("shards", "output"),
    ("shards", "tensor"),
)


def main() -> None:
    """Measure on two processes, and print."""
    with tempfile.TemporaryDirectory() as folder:
        spawn(work, (folder,), nprocs=WORLD)


def work(rank: int, folder: str) -> None:
    """What one process does."""
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415 - in the processes alone
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415

    torch.set_num_threads(1)
    store = FileStore(str(Path(folder) / "store"), WORLD)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD, timeout=timedelta(minutes=10))
    mesh = init_device_mesh("cpu", (WORLD,))
    strategy: InFace = "away"
    for momentum in (0.0, 0.9):
        for kind, per in KINDS:
            rows = SIZE // WORLD if kind == "ordinary rows" else SIZE  # as many as a shard has
            model = nn.Linear(SIZE, rows, bias=False)
            if kind == "shards":
                fully_shard(model, mesh=mesh)
            opt = inface.FrankWolfe(
                model, {"weight": L1Ball(30.0, per)}, lr=0.1, in_face=strategy, momentum=momentum, project=True
            )
            sgd = torch.optim.SGD(model.parameters(), lr=1e-9, momentum=momentum, dampening=momentum)
            model(torch.randn(8, SIZE)).square().mean().backward()
            (ours, theirs), sent = compared(opt.step, sgd.step)
            if rank == 0:
                print(
                    f"{kind}, L1Ball per {per}, away, momentum {momentum}: {1e3 * ours:.2f} ms, SGD {1e3 * theirs:.2f} ms, "
                    f"ratio {ours / theirs:.2f}; {sent} bytes sent in a step"
                )
    dist.destroy_process_group()


def compared(ours: Callable[[], object], theirs: Callable[[], object]) -> tuple[tuple[float, float], int]:
    """The times of two steps on the slower process, and what the first one sends."""
    for _ in range(6):
        ours()
        theirs()
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for step, own in zip((ours, theirs), taken, strict=True):
            dist.barrier()
            start = time.perf_counter()
            step()
            own.append(time.perf_counter() - start)
    least = torch.tensor([_halves(taken[0]), min(taken[1])], dtype=torch.float64)
    dist.all_reduce(least, dist.ReduceOp.MAX)
    return (float(least[0]), float(least[1])), bytes_sent(ours)


def _halves(taken: list[float]) -> float:
    """The mean of the least times of first and second halves, which take turns."""
    return (min(taken[::2]) + min(taken[1::2])) / 2


def bytes_sent(step: Callable[[], object]) -> int:
    """What a process gives to collectives in a step, in bytes."""
    from torch.utils._python_dispatch import TorchDispatchMode  # noqa: PLC0415
    from torch.utils._pytree import tree_leaves  # noqa: PLC0415

    class Counting(TorchDispatchMode):
        total = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN204
            if func.namespace in ("c10d", "_c10d_functional") and not any(
                word in str(func) for word in ("wait", "wrap")
            ):
                self.total += sum(x.nbytes for x in tree_leaves(args) if isinstance(x, torch.Tensor))
            return func(*args, **(kwargs or {}))

    with Counting() as mode:  # type: ignore[no-untyped-call]
        step()
    return mode.total


if __name__ == "__main__":
    main()
