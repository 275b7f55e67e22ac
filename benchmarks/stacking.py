"""The gain of training networks together: the time of an epoch alone, relative to the share of one in a stack."""

from __future__ import annotations

import tempfile
import time
from itertools import cycle, islice

from inface.lab import Data, Settings, train
from inface.lab.experiments import Activation
from inface.lab.experiments.data import synthetic
from inface.lab.runs.settings import Method
from inface.lab.runs.stacking import Stack
from inface.lab.runs.training import Record
from inface.lab.sweeps import paper_grid
from inface.lab.sweeps.grids import applied

__all__ = ["gain"]

LAYERS = 2  # constrained layers
STABLE = 64.0  # the smoothness from which on no network diverges
SAMPLES = (100_000, 250, 250)  # few test samples, because only training is measured


def gain(method: Method, activation: Activation, networks: int, rounds: int = 4) -> float:
    """How many times faster a network trains in a stack than alone, on one thread, with settings of the paper's grid.

    Both are runs of the laboratory, in one process and in turns; the fastest epoch of each counts.
    """
    data = synthetic(activation=activation, samples=SAMPLES).data
    base = Settings("synthetic", options={"activation": activation}, method=method, epochs=1, threads=1)
    points = [point for point in paper_grid(method, LAYERS).points() if point["smoothness"] >= STABLE]
    settings = [applied(base, point, LAYERS) for point in islice(cycle(points), networks)]
    alone, together = [], []
    for _ in range(rounds):
        together.append(_together(settings, data) / networks)
        alone += [_alone(settings[-1], data) for _ in range(2)]
    return min(alone) / min(together)


def _alone(settings: Settings, data: Data) -> float:
    """The seconds of an epoch of a separate run."""
    times: dict[str, float] = {}

    def watch(record: Record) -> None:
        times[record["kind"]] = time.process_time()

    with tempfile.TemporaryDirectory() as folder:
        train(settings, folder, samples=data, watch=watch)
    return times["epoch"] - times["start"]


def _together(settings: list[Settings], data: Data) -> float:
    """The seconds of an epoch of the whole stack."""
    stack = Stack(settings, samples=data)
    begun = time.process_time()
    stack.train()
    return time.process_time() - begun
