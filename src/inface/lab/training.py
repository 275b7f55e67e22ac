"""A training run: it can be killed at any moment and continued, and ends with the same weights."""

from __future__ import annotations

import hashlib
import json
import math
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor

from inface import FrankWolfe

from . import plain
from .building import experiment_of, load_data, make_model, make_optimizer, resolve, surroundings
from .errors import ArgumentError, Diverged, LabError
from .evaluation import measure
from .experiment import Experiment
from .files import write_json, write_tensors
from .measuring import constrained, edges_per_node, finite, score, sparsity
from .run import FORMAT, Run
from .settings import Settings

__all__ = ["Record", "train"]

Record = dict[str, Any]

POINTS = 500  # of the series over gradients, at most
MEMORY = 0.95  # of the smoothed gap: it looks back about 20 points of the series


def train(
    settings: Settings,
    out: str | Path,
    *,
    data: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    watch: Callable[[Record], None] | None = None,
    checkpoint_seconds: float = 10.0,
) -> Run:
    """Train a network and measure it, with everything written into a folder.

    Args:
        settings: what to train, and how.
        out: the folder of the run, made if it is not there.
        data: the data folder, if it is not the usual one.
        resume: continue the run that is there, if there is one; its settings must be these.
        overwrite: throw away the run that is there, if there is one.
        watch: is called with every record that goes into ``metrics.jsonl``, first with ``{"kind": "start", ...}``.
        checkpoint_seconds: how much work a kill may cost.

    Raises:
        ArgumentError: the settings make no sense together, or the folder holds another run.
        Diverged: the loss is not finite any more; the message says what to try.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = train(Settings("digits", epochs=2, radius=(2.0, 5.0), lr=0.5, threads=1), folder)
    ...     sorted(file.name for file in run.path.glob("[!.]*")), run.summary["steps"]
    (['config.json', 'metrics.jsonl', 'model.safetensors', 'summary.json'], 12)
    """
    settings = resolve(settings)
    experiment = experiment_of(settings)
    path = Path(out)
    with _locked(path):
        previous = Run(path) if (path / "config.json").is_file() else None
        if previous and not (resume or overwrite):
            raise ArgumentError(f"{path}: already holds a run; --resume continues it, --overwrite throws it away")
        if previous and not overwrite:
            settings = _same(settings, previous)
            if previous.finished:
                previous.checkpoint_file.unlink(missing_ok=True)
                return previous
        with surroundings(settings.threads):
            settings = replace(settings, threads=torch.get_num_threads())
            trainer = _Trainer(settings, experiment, path, data)
            trainer.begin(fresh=previous is None or overwrite, watch=watch or (lambda _: None))
            trainer.run(checkpoint_seconds)
    return Run(path)


class _Trainer:
    """A run in progress: everything that a checkpoint holds, and what can be made again from the settings."""

    def __init__(self, settings: Settings, experiment: Experiment, path: Path, folder: str | Path | None) -> None:
        self.settings, self.experiment, self.path = settings, experiment, path
        data = load_data(experiment, folder)
        self.image = data.image
        self.train, self.split = data.parts(settings.measured_on)
        self.model = make_model(settings, experiment)
        self.optimizer = make_optimizer(settings, experiment, self.model)
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        parameters = dict(self.model.named_parameters())
        self.layers = {name: parameters[name] for name in constrained(self.model, experiment)}

        self.epoch_steps = -(-len(self.train) // settings.batch_size)
        self.total = settings.epochs * self.epoch_steps
        # Even, so that the series shows the points between iterations, never those between the halves of one.
        self.stride = 2 * -(-self.total // (2 * POINTS))
        self.step = 0
        self.loss_sum = 0.0
        self.gap = self.smoothed = math.nan
        self.seconds = 0.0

    # ------------------------------------------------------------------ beginning, and continuing

    def begin(self, *, fresh: bool, watch: Callable[[Record], None]) -> None:
        self.watch = watch
        if fresh:
            _clear(self.path)
            write_json(self.path / "config.json", _config(self.settings))
        self.folder = Run(self.path)
        checkpoint = self.folder.checkpoint_file
        offset = self._restore(checkpoint) if checkpoint.is_file() else 0
        self.metrics: TextIO = self.folder.metrics_file.open("a", encoding="utf-8")
        if self.metrics.tell() < offset:
            raise LabError(
                f"{self.folder.metrics_file}: has {self.metrics.tell()} bytes, wanted at least {offset}: "
                f"it is not the one of this run's checkpoint; --overwrite starts it again"
            )
        self.metrics.truncate(offset)
        self.metrics.seek(offset)
        watch(
            {
                "kind": "start",
                "step": self.step,
                "steps": self.total,
                "epochs": self.settings.epochs,
                "layers": list(self.layers),
                "metric": self.experiment.metric,
            }
        )

    def _restore(self, file: Path) -> int:
        state = plain.load(file)
        try:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.step, self.loss_sum, self.seconds = state["step"], state["loss_sum"], state["seconds"]
            self.gap, self.smoothed = state["gap"], state["smoothed"]
            torch.set_rng_state(state["random"])
            return int(state["offset"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            raise LabError(f"{file}: does not fit this run: {reason}; --overwrite starts it again") from None

    def _save(self) -> None:
        self.metrics.flush()
        plain.save(
            self.folder.checkpoint_file,
            {
                "model": dict(self.model.state_dict()),
                "optimizer": self.optimizer.state_dict(),
                "step": self.step,
                "loss_sum": self.loss_sum,
                "gap": self.gap,
                "smoothed": self.smoothed,
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
                order = self._order(epoch)
                for number in range(self.step % self.epoch_steps, self.epoch_steps):
                    rows = order[number * self.settings.batch_size : (number + 1) * self.settings.batch_size]
                    self._take(rows)
                    now = time.perf_counter()
                    self.seconds = before + now - begun
                    if self.step % self.epoch_steps == 0:
                        self._end_of_epoch(epoch + 1)
                    # Between iterations, not between the halves of one: the optimizer knows the gap of the last first half.
                    if now - saved >= checkpoint_seconds and self.step % 2 == 0 and self.step < self.total:
                        self._save()
                        saved = time.perf_counter()
            self.seconds = before + time.perf_counter() - begun
            self._finish()
        finally:
            self.metrics.close()

    def _order(self, epoch: int) -> Tensor:
        """The samples of an epoch in an order of its own, whatever happened before."""
        generator = torch.Generator().manual_seed(self.settings.seed * 1_000_003 + epoch)
        return torch.randperm(len(self.train), generator=generator)

    def _take(self, rows: Tensor) -> None:
        """One gradient, one step."""
        if self.settings.schedule == "cosine":
            factor = (1 + math.cos(math.pi * self.step / self.total)) / 2
            for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
                group["lr"] = rate * factor
        self.optimizer.zero_grad()
        inputs, targets = self.train.inputs.index_select(0, rows), self.train.targets.index_select(0, rows)
        loss = self.experiment.loss(self.model(inputs), targets)
        loss.backward()
        value = loss.item()
        if not math.isfinite(value):
            raise Diverged(self._advice(value))
        self.optimizer.step()
        self.step += 1
        self.loss_sum += value
        if self.step % self.stride == 0:
            self._measure_gap()
            edges = {name: edges_per_node(weight) for name, weight in self.layers.items()}
            self._record({"kind": "step", "step": self.step, "loss": value, **self._gaps(), "nonzeros": edges})

    def _measure_gap(self) -> None:
        """The gap at the last first half, and its moving average over the points of the series."""
        if isinstance(self.optimizer, FrankWolfe):
            self.gap = float(self.optimizer.gap)
            average = MEMORY * self.smoothed + (1 - MEMORY) * self.gap
            self.smoothed = self.gap if math.isnan(self.smoothed) else average

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
                **self._gaps(),
                "nonzeros": {layer: {name: counted[name] for name in names} for layer, counted in layers.items()},
                "seconds": round(self.seconds, 3),
            }
        )
        self.loss_sum = 0.0

    def _record(self, record: Record) -> None:
        self.metrics.write(json.dumps(record, allow_nan=False) + "\n")
        self.watch(record)

    def _finish(self) -> None:
        self.metrics.flush()
        if math.isnan(self.gap):  # of a run too short for its series
            self._measure_gap()
        run = self.folder
        summary = {
            "format": FORMAT,
            "experiment": self.settings.experiment,
            "options": dict(self.settings.options),
            "method": self.settings.method,
            **measure(self.model, self.experiment, self.train, self.split, self.optimizer),
            "image": self.image,
            "steps": self.total,
            "epochs": self.settings.epochs,
            "seconds": round(self.seconds, 3),
        }
        if summary["gap"] is not None:
            summary["gap"] = {"stochastic": finite(self.gap), "smoothed": finite(self.smoothed), **summary["gap"]}
        write_tensors(run.model_file, dict(self.model.state_dict()))
        write_json(run.summary_file, summary)
        run.checkpoint_file.unlink(missing_ok=True)

    def _advice(self, value: float) -> str:
        s = self.settings
        tries = [f"a smaller --lr than {s.lr:g}"]
        if s.constrained_lr is not None and s.method != "sgd":
            tries.append(f"a smaller --constrained-lr than {s.constrained_lr:g}")
        if s.method != "sgd":
            tries.append(f"smaller radii{'' if s.radius is None else f' than {_listed(s.radius)}'}")
        if s.momentum:
            tries.append(f"less --momentum than {s.momentum:g}")
        where = f"after gradient {self.step} of {self.total}"
        return f"{self.path}: the loss became {value} {where}; try {', or '.join(tries)}"


def _config(settings: Settings) -> dict[str, Any]:
    return {
        "format": FORMAT,
        **settings.to_dict(),
        "source": _digest(settings.experiment),
        "versions": {
            "inface": version("inface"),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
        },
    }


def _digest(experiment: str) -> str | None:
    """The SHA-256 of the file that an experiment of one's own is written in."""
    file = Path(experiment.rpartition(":")[0])
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.suffix == ".py" and file.is_file() else None


def _same(settings: Settings, previous: Run) -> Settings:
    """The settings of the run that is there, if they are those asked for."""
    wanted = settings.to_dict()
    for name, value in wanted.items():
        found = previous.config.get(name)
        if found != value and not (name == "threads" and value is None):
            raise ArgumentError(
                f"{previous.path}: was begun with {name} {found}, wanted {value}; --overwrite starts it again"
            )
    if previous.config.get("source") != _digest(settings.experiment):
        file = settings.experiment.rpartition(":")[0]
        raise ArgumentError(f"{file}: has changed since {previous.path} was begun; --overwrite starts it again")
    return previous.settings


def _listed(numbers: tuple[float, ...]) -> str:
    return " ".join(f"{number:g}" for number in numbers)


def _clear(path: Path) -> None:
    """Throw away what an earlier run left; its settings last, so that a kill meanwhile leaves a run and not its ruins."""
    for pattern in (
        "summary.json",
        "model.safetensors",
        "checkpoint.safetensors",
        ".*.part",
        "metrics.jsonl",
        "config.json",
    ):
        for file in path.glob(pattern):
            file.unlink(missing_ok=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    from filelock import FileLock, Timeout

    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(f"{path}: cannot be the folder of a run: {error.strerror}") from None
    lock = FileLock(path / ".lock", timeout=0)
    try:
        with lock:
            yield
    except Timeout:
        raise ArgumentError(f"{path}: another process is training there") from None
