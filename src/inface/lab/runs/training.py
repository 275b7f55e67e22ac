"""A training run. It can be killed at any moment and resumed; the final weights are the same."""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO, overload

import torch
from torch import Tensor

import inface
from inface import FrankWolfe
from inface.lab.errors import Broken, Diverged, LabError, Paused
from inface.lab.experiments.experiment import Data, Experiment
from inface.lab.files import read_lines, write_json, write_tensors, writing
from inface.paths import abandon

from . import checkpoint
from .evaluation import measure, summarise
from .gradient import Gradient
from .lock import clear, config, locked, previous_run
from .metrics import constrained, edges_per_node, finite, kept, score, sparsity
from .processes import ALONE, Processes
from .run import Run
from .settings import Settings
from .setup import (
    experiment_of,
    fingerprint,
    isolated_torch,
    load_data,
    make_model,
    make_optimizer,
    parts,
    rate_factor,
    resolve,
    sample_order,
)

__all__ = ["Record", "train"]

Record = dict[str, Any]

POINTS = 20  # points per epoch in the series over gradients
MOST_POINTS = 2000  # points per run
MEMORY = 1 - 1 / POINTS  # decay of the smoothed gap: it averages over about an epoch


@overload
def train(
    settings: Settings,
    out: str | Path,
    *,
    data: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    accept_changed_file: bool = False,
    watch: Callable[[Record], None] | None = None,
    checkpoint_seconds: float = 10.0,
    samples: Data | None = None,
    theta: int = 100,
) -> Run: ...


@overload
def train(
    settings: Settings,
    out: str | Path,
    *,
    data: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    accept_changed_file: bool = False,
    watch: Callable[[Record], None] | None = None,
    checkpoint_seconds: float = 10.0,
    samples: Data | None = None,
    theta: int = 100,
    processes: Processes,
) -> Run | None: ...


def train(
    settings: Settings,
    out: str | Path,
    *,
    data: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    accept_changed_file: bool = False,
    watch: Callable[[Record], None] | None = None,
    checkpoint_seconds: float = 10.0,
    samples: Data | None = None,
    theta: int = 100,
    processes: Processes = ALONE,
) -> Run | None:
    """Train a network, measure it, and write everything into a folder.

    Args:
        settings: what to train, and how.
        out: the folder of the run; it is created if it does not exist.
        data: the data folder, if not the default.
        resume: continue the run in the folder, if there is one; it must have the same settings.
        overwrite: delete the run in the folder, if there is one.
        accept_changed_file: continue a run although the file of its experiment has changed since.
        watch: called with every record that is written to ``metrics.jsonl``, and first with ``{"kind": "start", ...}``.
            At the end of an epoch it may raise ``Paused``: a checkpoint is saved, and the same call continues.
        checkpoint_seconds: seconds between two checkpoints; a kill loses at most that much work.
        samples: the data, if it is already loaded.
        theta: also record, after each epoch, the metric with this percentage of the edges (``"judged"``).
        processes: those that compute each batch together, from :func:`inface.lab.runs.processes.joined`; all of them call
            this. The first one alone uses the folder and calls ``watch``; the others return None.

    Raises:
        ArgumentError: the settings contradict each other, or the folder holds another run.
        Broken: the run in the folder cannot be continued, because its files are damaged.
        Diverged: the loss is no longer finite; the message says what to try.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = train(Settings("digits", epochs=2, radius=(2.0, 5.0), lr=0.5, threads=1), folder)
    ...     sorted(file.name for file in run.path.glob("[!.]*")), run.summary["steps"]
    (['config.json', 'metrics.jsonl', 'model.safetensors', 'summary.json'], 12)
    """
    settings = resolve(settings)
    path = Path(out)

    def decide() -> dict[str, Any]:
        previous, known = previous_run(
            path, settings, resume=resume, overwrite=overwrite, accept_changed_file=accept_changed_file
        )
        if previous and previous.finished:
            previous.checkpoint_file.unlink(missing_ok=True)
        return {
            "settings": known.to_dict(),
            "finished": bool(previous and previous.finished),
            "fresh": previous is None,
        }

    with _first_locks(path, processes):
        decided = processes.first_does(decide)
        if not decided["finished"]:
            known = Settings.from_dict(decided["settings"])
            with isolated_torch(known.threads):
                known = replace(known, threads=torch.get_num_threads())
                experiment = experiment_of(known)
                samples = samples or load_data(experiment, data)
                trainer = _Trainer(known, experiment, path, samples, theta, processes)
                trainer.begin(fresh=decided["fresh"], watch=watch or (lambda _: None))
                trainer.run(checkpoint_seconds)
    return Run(path) if processes.first else None


@contextmanager
def _first_locks(path: Path, processes: Processes) -> Iterator[None]:
    """Lock the folder, in the first process; if it cannot, all stop."""
    with ExitStack() as stack:
        processes.first_does(lambda: stack.enter_context(locked(path)) if processes.first else None)
        yield


class _Trainer:
    """A run in progress: what a checkpoint holds, and what is rebuilt from the settings."""

    def __init__(
        self, settings: Settings, experiment: Experiment, path: Path, data: Data, theta: int, processes: Processes
    ) -> None:
        self.theta, self.processes = theta, processes
        self.settings, self.experiment, self.path = settings, experiment, path
        self.image = data.image
        self.train, self.split = parts(settings, data)
        self.fingerprint = fingerprint(self.train)
        self.model = make_model(settings, experiment, self.train.inputs).to(processes.device)
        self.gradient = Gradient(settings, experiment, self.train, self.model, processes)
        parameters = dict(self.model.named_parameters())
        self.layers = {name: parameters[name] for name in constrained(self.model, experiment)}

        self.epoch_steps = -(-len(self.train) // settings.batch_size)
        self.total = settings.epochs * self.epoch_steps
        self.optimizer = make_optimizer(settings, experiment, self.model, self.total)
        self._compute()
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        # Even: the series holds points after whole iterations, not between the two halves of one.
        self.stride = 2 * math.ceil(max(self.epoch_steps / POINTS, self.total / MOST_POINTS) / 2)
        self.step = 0
        self.loss_sum = 0.0
        self.gap = self.smoothed = self.found = math.nan
        self.points = 0
        self.seconds = 0.0

    def _compute(self) -> None:
        """Let layers leave out their zeros, and measure where that is faster, before the first checkpoint can be written."""
        settings = self.settings
        if settings.compute == "dense" or not isinstance(self.optimizer, FrankWolfe):
            return
        inface.sparse_compute_(self.model, self.optimizer, mode=settings.compute)
        if settings.compute == "auto":
            self.model.eval()
            with torch.random.fork_rng(devices=[]), torch.enable_grad():
                for size in {min(settings.batch_size, len(self.train)), len(self.train) % settings.batch_size} - {0}:
                    self.model(self.train.inputs[:size].to(self.processes.device))

    # ------------------------------------------------------------------ start and resume

    def begin(self, *, fresh: bool, watch: Callable[[Record], None]) -> None:
        self.watch = watch
        saved = self.path / "checkpoint.safetensors"

        def prepare() -> bool:
            if fresh:
                clear(self.path)
                write_json(self.path / "config.json", config(self.settings))
            self.folder = Run(self.path)
            return saved.is_file()

        restored = self.processes.first_does(prepare)
        self.processes.first_does(lambda: self._open(self._restore(saved) if restored else 0))
        if restored and self.processes.size > 1:
            self._receive(saved)

    def _open(self, offset: int) -> None:
        """Open the records where the checkpoint left them."""
        file = self.folder.metrics_file
        size = file.stat().st_size if file.is_file() else 0
        if size < offset:
            raise Broken(
                f"{file}: has {size} bytes, wanted at least {offset}: "
                f"it does not belong to this run's checkpoint; --overwrite starts again"
            )
        if offset:
            with _continuing():
                read_lines(file, offset)
        self.metrics: TextIO = file.open("a", encoding="utf-8")
        self.metrics.truncate(offset)
        self.metrics.seek(offset)
        self.watch(
            {
                "kind": "start",
                "step": self.step,
                "steps": self.total,
                "epochs": self.settings.epochs,
                "layers": list(self.layers),
                "metric": self.experiment.metric,
            }
        )

    def _receive(self, saved: Path) -> None:
        """Send the checkpoint to the other processes, which may be on machines that do not have it."""
        data = self.processes.send(saved.read_bytes() if self.processes.first else b"")
        if not self.processes.first:
            with tempfile.TemporaryDirectory() as folder:
                copy = Path(folder, saved.name)
                copy.write_bytes(data)
                self._restore(copy)

    def _restore(self, file: Path) -> int:
        with _continuing():
            state = checkpoint.load(file)
        if isinstance(state, dict) and state.get("data") != self.fingerprint:
            raise LabError(f"{file}: was trained on other data than the data folder holds; --overwrite starts again")
        try:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.step, self.loss_sum, self.seconds = state["step"], state["loss_sum"], state["seconds"]
            self.gap, self.smoothed, self.points = state["gap"], state["smoothed"], state["points"]
            self.found = state.get("found", math.nan)  # checkpoints without one were written after whole iterations
            torch.set_rng_state(state["random"])
            return int(state["offset"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            raise Broken(f"{file}: does not fit this run: {reason}; --overwrite starts again") from None

    def _save(self) -> None:
        self._sync()  # first: a checkpoint needs the records before it, also after a power loss
        checkpoint.save(
            self.folder.checkpoint_file,
            {
                "data": self.fingerprint,
                "model": dict(self.model.state_dict()),
                "optimizer": self.optimizer.state_dict(),
                "step": self.step,
                "loss_sum": self.loss_sum,
                "gap": self.gap,
                "smoothed": self.smoothed,
                "points": self.points,
                "found": self._last_gap(),
                "seconds": self.seconds,
                "random": torch.get_rng_state(),
                "offset": self.metrics.tell(),
            },
        )

    # ------------------------------------------------------------------ the loop

    def run(self, checkpoint_seconds: float) -> None:
        saved = begun = time.perf_counter()
        before = self.seconds
        self.model.train()
        try:
            while self.step < self.total:
                epoch = self.step // self.epoch_steps
                order = sample_order(self.settings, epoch, len(self.train))
                for number in range(self.step % self.epoch_steps, self.epoch_steps):
                    rows = order[number * self.settings.batch_size : (number + 1) * self.settings.batch_size]
                    self._take(rows)
                    now = time.perf_counter()
                    self.seconds = before + now - begun
                    if self.step % self.epoch_steps == 0:
                        self.processes.first_does(partial(self._end_of_epoch, epoch + 1))
                        self.loss_sum = 0.0
                    due = self.processes.first and now - saved >= checkpoint_seconds
                    if due and self.step < self.total:
                        self._save()
                        saved = time.perf_counter()
            self.seconds = before + time.perf_counter() - begun
            self.processes.first_does(self._finish)
        except Paused:
            self.loss_sum = 0.0  # it comes at the end of an epoch
            self._save()
            raise
        finally:
            abandon(self.optimizer)  # a run that stops here can be continued
            if self.processes.first:
                with writing(self.folder.metrics_file):
                    self.metrics.close()

    def _take(self, rows: Tensor) -> None:
        """Compute one gradient and take one step."""
        factor = rate_factor(self.settings, self.step, self.total)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor
        self.optimizer.zero_grad()
        value = self.gradient(rows, self.step)
        if not math.isfinite(value):
            raise Diverged(self._advice(value))
        self.optimizer.step()
        self.step += 1
        self.loss_sum += value
        if self.step % self.stride == 0 and self.processes.first:
            self._measure_gap()
            edges = {name: edges_per_node(weight) for name, weight in self.layers.items()}
            self._record({"kind": "step", "step": self.step, "loss": value, **self._gaps(), "nonzeros": edges})

    def _measure_gap(self) -> None:
        """Read the gap of the last Frank-Wolfe half, and update its moving average over the points of the series.

        The sets of the method sparse change during training, so that its gaps are not of one series.
        """
        if self.settings.frank_wolfe:
            self.gap = self._last_gap()
            self.points += 1
            # An exponential moving average with Adam's bias correction: the first value is the first gap.
            weight = (1 - MEMORY) / (1 - MEMORY**self.points)
            self.smoothed = self.gap if self.points == 1 else self.smoothed + weight * (self.gap - self.smoothed)

    def _last_gap(self) -> float:
        """The gap of the last Frank-Wolfe half, also if that was before the checkpoint that this run goes on from."""
        gap = float(self.optimizer.gap) if isinstance(self.optimizer, FrankWolfe) else math.nan
        return self.found if math.isnan(gap) else gap

    def _gaps(self) -> Record:
        return {"gap": finite(self.gap), "smoothed_gap": finite(self.smoothed)}

    def _end_of_epoch(self, epoch: int) -> None:
        measured = score(self.model, self.experiment, self.split)
        if not math.isfinite(measured.loss):
            raise Diverged(self._advice(measured.loss))
        layers, _ = sparsity(self.model, self.experiment)
        names = ("percent", "exact_percent", "edges")
        self._record(
            {
                "kind": "epoch",
                "epoch": epoch,
                "step": self.step,
                "train_loss": self.loss_sum / self.epoch_steps,
                "loss": finite(measured.loss),
                "metric": finite(measured.metric),
                **self._judged(),
                **self._gaps(),
                "nonzeros": {layer: {name: counted[name] for name in names} for layer, counted in layers.items()},
                "seconds": round(self.seconds, 3),
            }
        )

    def _judged(self) -> Record:
        if self.theta == 100:
            return {}
        return {"judged": finite(kept(self.model, self.experiment, self.split, (self.theta,))[str(self.theta)])}

    def _record(self, record: Record) -> None:
        with writing(self.folder.metrics_file):
            self.metrics.write(json.dumps(record, allow_nan=False) + "\n")
        self.watch(record)

    def _sync(self) -> None:
        """Flush the records to the disk."""
        with writing(self.folder.metrics_file):
            self.metrics.flush()
            os.fsync(self.metrics.fileno())

    def _finish(self) -> None:
        self._sync()
        if math.isnan(self.gap):  # the run was too short for a point of the series
            self._measure_gap()
        run = self.folder
        measured = measure(self.model, self.experiment, self.train, self.split, self.optimizer)
        summary = summarise(self.settings, measured, self.image, self.total, self.seconds)
        if summary["gap"] is not None:
            summary["gap"] = {"stochastic": finite(self.gap), "smoothed": finite(self.smoothed), **summary["gap"]}
        write_tensors(run.model_file, dict(self.model.state_dict()))
        write_json(run.summary_file, summary)
        run.checkpoint_file.unlink(missing_ok=True)

    def _advice(self, value: float) -> str:
        s = self.settings
        tries = [f"a smaller --lr than {s.lr:g}"]
        if s.constrained_lr is not None and s.frank_wolfe:
            rates = s.constrained_rates
            tries.append(f"{'a smaller' if len(rates) == 1 else 'smaller'} --constrained-lr than {_listed(rates)}")
        if s.frank_wolfe:
            tries.append(f"smaller radii{'' if s.radius is None else f' than {_listed(s.radius)}'}")
        if s.momentum:
            tries.append(f"less --momentum than {s.momentum:g}")
        where = f"after gradient {self.step} of {self.total}"
        return f"{self.path}: the loss became {value} {where}; try {', or '.join(tries)}"


@contextmanager
def _continuing() -> Iterator[None]:
    """Turn the error of a damaged file into one that says how to start again."""
    try:
        yield
    except LabError as error:
        raise Broken(f"{error}; --overwrite starts again") from None


def _listed(numbers: tuple[float, ...]) -> str:
    return " ".join(f"{number:g}" for number in numbers)
