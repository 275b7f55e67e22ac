"""Records of a run, sent on to TensorBoard, Weights & Biases or MLflow: what ``inface train --log`` uses.

Everything is written into the folder of the run, and nothing is sent anywhere, unless the environment asks for it
(``WANDB_MODE=online``, ``MLFLOW_TRACKING_URI``). A run that is resumed goes on with the same log.

=============  =======================================  ==========================================
name           what it writes                           to look at it
=============  =======================================  ==========================================
tensorboard    event files in ``tensorboard``           ``tensorboard --logdir RUNS``
wandb          an offline run in ``wandb``              ``wandb sync RUN/wandb/offline-run-*``
mlflow         a database, ``mlflow/mlflow.db``         ``mlflow ui --backend-store-uri sqlite:///...``
=============  =======================================  ==========================================
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from inface.atomic import replacing

__all__ = ["LOGGERS", "Logger", "check_installed", "flat", "open_logger", "recording"]

LOGGERS = ("tensorboard", "wandb", "mlflow")
PACKAGES = {"mlflow": "mlflow-skinny"}

Record = Mapping[str, Any]


class Logger(Protocol):
    """What takes the numbers of a run."""

    def log(self, values: dict[str, float], step: int) -> None:
        """Take numbers by name, after a number of gradients."""

    def close(self, *, finished: bool) -> None:
        """End, with the run or before it."""


def flat(record: Record) -> dict[str, float]:
    """The numbers of a record, each under one name; what is not a finite number is left out.

    >>> flat({"kind": "step", "step": 8, "loss": 0.5, "gap": None, "nonzeros": {"fc1.weight": 3.5}})
    {'step/loss': 0.5, 'step/nonzeros/fc1.weight': 3.5}
    """
    kind = record["kind"]
    return dict(_numbers(f"{kind}/", {key: value for key, value in record.items() if key not in ("kind", "step")}))


def _numbers(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _numbers(f"{prefix}{name}/", value)
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            yield f"{prefix}{name}", float(value)


@contextmanager
def recording(
    names: Sequence[str], folder: Path, settings: Mapping[str, Any]
) -> Iterator[tuple[Callable[[Record], None], Callable[[Mapping[str, Any]], None]]]:
    """Two functions: one for ``inface.lab.train(watch=...)``, one that takes the summary at the end.

    Nothing is opened before the record with which a run starts.

    Args:
        names: of :data:`LOGGERS`.
        folder: of the run.
        settings: of the run, which the loggers show.

    >>> with recording([], Path("run"), {}) as (watch, finish):
    ...     watch({"kind": "start", "step": 0})
    """
    loggers: list[Logger] = []
    last = [0]
    ended = False

    def watch(record: Record) -> None:
        if record["kind"] == "start":
            for name in names:
                loggers.append(logger := open_logger(name, folder, settings, record["step"]))
                stack.callback(close, logger)
            return
        last[0] = record["step"]
        values = flat(record)
        for logger in loggers:
            logger.log(values, record["step"])

    def close(logger: Logger) -> None:
        logger.close(finished=ended)

    def finish(summary: Mapping[str, Any]) -> None:
        nonlocal ended
        ended = True
        values = dict(_numbers("summary/", summary))
        for logger in loggers:
            logger.log(values, last[0])

    with ExitStack() as stack:
        yield watch, finish


def check_installed(names: Sequence[str]) -> None:
    """Raise an error if there is no such logger, or if its package is missing, before a run starts.

    Raises:
        ValueError: there is no such logger.
        ImportError: its package is not installed.

    >>> check_installed(["visdom"])
    Traceback (most recent call last):
    ValueError: wanted tensorboard, wandb, mlflow, got visdom
    """
    for name in names:
        if name not in LOGGERS:
            raise ValueError(f"wanted {', '.join(LOGGERS)}, got {name}")
        found = find_spec(name)
        if found is None or found.origin is None:  # a folder of this name is no package
            raise ImportError(f"{name} is not installed: pip install {PACKAGES.get(name, name)}")


def open_logger(name: str, folder: Path, settings: Mapping[str, Any], step: int = 0) -> Logger:
    """A logger of a run that starts, or goes on, after ``step`` gradients.

    Raises:
        ValueError: there is no such logger.
        ImportError: its package is not installed.
    """
    check_installed([name])
    makers: dict[str, Callable[[Path, Mapping[str, Any], int], Logger]] = {
        "tensorboard": _TensorBoard,
        "wandb": _Wandb,
        "mlflow": _MLflow,
    }
    own = folder / name
    if not step and own.is_dir():
        shutil.rmtree(own)  # of a run that was overwritten
    return makers[name](own, settings, step)


class _TensorBoard:
    def __init__(self, folder: Path, settings: Mapping[str, Any], step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415

        # What was written after the last checkpoint comes again.
        self.writer = SummaryWriter(str(folder), purge_step=step + 1 if step else None)
        if not step:
            self.writer.add_text("settings", f"```\n{json.dumps(settings, indent=1)}\n```")

    def log(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self, *, finished: bool) -> None:
        self.writer.close()


class _Wandb:
    def __init__(self, folder: Path, settings: Mapping[str, Any], step: int) -> None:
        import wandb  # noqa: PLC0415

        folder.mkdir(parents=True, exist_ok=True)
        known = _known(folder)
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "inface"),
            name=folder.parent.name,
            id=known,
            resume="allow" if step and known else None,
            dir=str(folder.parent),
            config=dict(settings),
            mode=os.environ.get("WANDB_MODE", "offline"),
            settings=wandb.Settings(console="off", silent=True),
        )
        _remember(folder, self.run.id)

    def log(self, values: dict[str, float], step: int) -> None:
        self.run.log(values, step=step)

    def close(self, *, finished: bool) -> None:
        self.run.finish(exit_code=0 if finished else 1)


class _MLflow:
    def __init__(self, folder: Path, settings: Mapping[str, Any], step: int) -> None:
        from mlflow import MlflowClient  # noqa: PLC0415

        folder.mkdir(parents=True, exist_ok=True)
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(folder / 'mlflow.db').resolve()}"
        self.client = MlflowClient(tracking_uri=uri)
        self.id = _known(folder) if step else None
        if self.id is None:
            title = os.environ.get("MLFLOW_EXPERIMENT_NAME", "inface")
            found = self.client.get_experiment_by_name(title)
            place = (folder / "artifacts").resolve().as_uri()
            experiment = self.client.create_experiment(title, place) if found is None else found.experiment_id
            self.id = self.client.create_run(experiment, run_name=folder.parent.name).info.run_id
            for name, value in settings.items():
                self.client.log_param(self.id, name, value)
            _remember(folder, self.id)

    def log(self, values: dict[str, float], step: int) -> None:
        from mlflow.entities import Metric  # noqa: PLC0415

        now = time.time_ns() // 1_000_000
        metrics = [Metric(name, value, now, step) for name, value in values.items()]
        for begin in range(0, len(metrics), 1000):  # as many as one call takes
            self.client.log_batch(self.id, metrics=metrics[begin : begin + 1000])

    def close(self, *, finished: bool) -> None:
        self.client.set_terminated(self.id, "FINISHED" if finished else "KILLED")


def _known(folder: Path) -> str | None:
    """The number of the run that a logger's folder holds."""
    file = folder / "run.json"
    return str(json.loads(file.read_text(encoding="utf-8"))["id"]) if file.is_file() else None


def _remember(folder: Path, number: str) -> None:
    with replacing(folder / "run.json") as partial:
        partial.write_text(json.dumps({"id": number}), encoding="utf-8")
