"""The cost of a laboratory run relative to a bare loop: evaluation, gap, non-zeros, records, checkpoints."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from inface.lab import Data, Experiment, Settings, Split, train
from inface.lab.experiments.models import perceptron
from inface.lab.runs.settings import Method
from inface.lab.runs.training import Record
from inface.sets import L1Ball

__all__ = ["epoch_ratio", "experiment"]

BATCH = 250


def samples(folder: Path | None = None) -> Data:  # noqa: ARG001 - what every experiment is given
    """Random samples in the shape of MNIST; the time does not depend on their contents."""
    generator = torch.Generator().manual_seed(0)

    def split(count: int) -> Split:
        inputs = torch.rand(count, 1, 28, 28, generator=generator)
        return Split(inputs, torch.randint(10, (count,), generator=generator))

    return Data(train=split(60_000), test=split(10_000))


experiment = Experiment(
    data=samples,
    model=lambda: perceptron(784, 512, 512, 10),
    sets={"fc1.weight": L1Ball(1.0), "fc2.weight": L1Ball(10.0)},
)


def epoch_ratio(method: Method, momentum: float, epochs: int = 8) -> float:
    """The time of an epoch of ``inface train``, with evaluation and logging, relative to a bare loop with SGD.

    Both run in one process and in turns: a bare epoch runs after each epoch of the run, outside its measured time.
    """
    bare = _Bare(momentum)
    times: list[float] = []
    before = 0.0

    def watch(record: Record) -> None:
        nonlocal before
        if record["kind"] == "epoch":
            times.append(time.perf_counter() - before)
            bare.epoch()
        if record["kind"] in ("start", "epoch"):
            before = time.perf_counter()

    name = f"{Path(__file__).resolve()}:experiment"
    settings = Settings(name, method=method, momentum=momentum, epochs=epochs, batch_size=BATCH, threads=1)
    with tempfile.TemporaryDirectory() as folder:
        train(settings, folder, watch=watch)
    return sum(times[1:]) / sum(bare.times[1:])


class _Bare:
    """The ordinary loop on the same tensors."""

    def __init__(self, momentum: float) -> None:
        self.data = samples().train
        self.model = experiment.model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=momentum, foreach=True)
        self.times: list[float] = []

    def epoch(self) -> None:
        start = time.perf_counter()
        for rows in torch.randperm(len(self.data)).split(BATCH):
            self.optimizer.zero_grad()
            inputs, targets = self.data.inputs.index_select(0, rows), self.data.targets.index_select(0, rows)
            nn.functional.cross_entropy(self.model(inputs), targets).backward()
            self.optimizer.step()
        self.times.append(time.perf_counter() - start)
