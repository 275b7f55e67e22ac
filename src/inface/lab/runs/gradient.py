"""The gradient of a batch, computed by one process or by several."""

from __future__ import annotations

import zlib

import torch
from torch import Tensor, nn

from inface.lab.experiments.experiment import Experiment, Split

from .processes import Processes, share_statistics
from .settings import Settings
from .setup import augmenting

__all__ = ["Gradient"]


class Gradient:
    """Computes the gradient of the mean loss over a batch into the ``grad`` of a network's parameters.

    Args:
        settings: of the run: its seed and its precision.
        experiment: has the loss and the augmentation.
        train: the training samples.
        model: the network, on the device of this process.
        processes: each computes a part of the batch, and all get the whole gradient.

    >>> from inface.lab.runs.setup import experiment_of, load_data, make_model
    >>> settings = Settings("digits", method="sgd")
    >>> experiment = experiment_of(settings)
    >>> model = make_model(settings, experiment)
    >>> gradient = Gradient(settings, experiment, load_data(experiment, None).train, model, Processes())
    >>> round(gradient(torch.arange(10), step=0), 1), model.fc1.weight.grad.shape
    (2.3, torch.Size([256, 64]))
    """

    def __init__(
        self, settings: Settings, experiment: Experiment, train: Split, model: nn.Module, processes: Processes
    ) -> None:
        self.settings, self.experiment, self.train = settings, experiment, train
        self.model, self.processes = model, processes
        self.shared = share_statistics(model, processes)

    def __call__(self, rows: Tensor, step: int) -> float:
        """Of the samples with these numbers, at a step of the training; returns the mean loss."""
        processes = self.processes
        inputs, own = self._inputs(rows, step)
        if not len(own) and not self.shared:
            return processes.add_up(self.model.parameters(), None)
        if processes.seeds_steps:  # each process draws numbers of its own, such as those of dropout
            torch.manual_seed(zlib.crc32(f"forward {self.settings.seed} {step} {processes.rank}".encode()))
        half = self.settings.precision == "bfloat16"
        with torch.autocast(processes.device.type, torch.bfloat16, enabled=half):
            outputs = self.model(inputs.to(processes.device))
        if not len(own):  # the statistics of the others' parts are computed together with this empty one
            outputs.sum().mul(0).backward()
            return processes.add_up(self.model.parameters(), None)
        targets = self.train.targets.index_select(0, own).to(processes.device)
        loss = self.experiment.loss(outputs.float() if half else outputs, targets)
        if processes.size > 1:
            loss = loss * (len(own) / len(rows))
        loss.backward()
        return processes.add_up(self.model.parameters(), loss)

    def _inputs(self, rows: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """The inputs that this process computes with, and the numbers of their samples."""
        own, augment = self.processes.rows(rows), self.experiment.augment
        if augment is None:
            return self.train.inputs.index_select(0, own), own
        # Of the whole batch, so that every process draws the same.
        whole = augment(self.train.inputs.index_select(0, rows), augmenting(self.settings, step))
        return self.processes.rows(whole), own
