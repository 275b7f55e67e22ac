"""A callback for Lightning: it logs what the optimizer does, and takes density paths to their ends.

>>> import warnings, torch, inface
>>> warnings.simplefilter("ignore")
>>> from lightning.pytorch import LightningModule, Trainer
>>> class Network(LightningModule):
...     def __init__(self):
...         super().__init__()
...         self.layer = torch.nn.Linear(20, 3)
...     def training_step(self, batch, _):
...         inputs, target = batch
...         return torch.nn.functional.mse_loss(self.layer(inputs), target)
...     def configure_optimizers(self):
...         return inface.sparse_optimizer(self, density=0.2, lr=0.1, steps="auto")
>>> data = torch.utils.data.TensorDataset(torch.randn(64, 20), torch.randn(64, 3))
>>> model = Network()
>>> trainer = Trainer(max_epochs=5, accelerator="cpu", logger=False, enable_checkpointing=False, log_every_n_steps=1,
...                   enable_progress_bar=False, enable_model_summary=False, callbacks=[FrankWolfeCallback()])
>>> trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=8))
>>> round(float(trainer.callback_metrics["inface/density"]), 2), int(model.layer.weight.count_nonzero())
(0.2, 12)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from inface.density import DensityScheduler
from inface.optimizer import FrankWolfe

from .watch import Watch, drive, frank_wolfe, needs_steps

try:
    from lightning.pytorch import Callback
except ImportError:
    try:
        from pytorch_lightning import Callback
    except ImportError as error:
        raise ImportError("inface.integrations.lightning needs Lightning: pip install lightning") from error

__all__ = ["FrankWolfeCallback"]


class FrankWolfeCallback(Callback):
    """Logs gap, density, drops and clamps, and takes density paths along.

    Every ``log_every_n_steps`` of the trainer it logs ``inface/gap``, ``inface/density`` of all constrained layers,
    ``inface/density/NAME`` of each, ``inface/path``, and ``inface/drops`` and ``inface/clamps`` since the training began. With
    several optimizers their numbers stand before the names: ``inface/1/gap``.

    A path of :func:`inface.sparse_optimizer` advances by itself; made with ``steps="auto"`` it gets its length from the
    trainer. Sets with a density and no path (``L1Ball(density=0.1)`` in a :class:`inface.FrankWolfe`) get a path that goes
    one further with every step of the optimizer. So does a :class:`inface.DensityScheduler` that
    ``configure_optimizers`` has made, unless it is one of the schedulers that Lightning steps.

    A checkpoint of the trainer has all that is needed to resume: the place on a path is in the optimizer's state, and this
    callback adds what it has counted.

    Args:
        steps: gradients in all, where a path needs them; by default what the trainer expects
            (``trainer.estimated_stepping_batches``).
        every: steps between two measurements; by default the trainer's ``log_every_n_steps``.
        prefix: what comes before the names.
    """

    def __init__(self, steps: int | None = None, *, every: int | None = None, prefix: str = "inface/") -> None:
        super().__init__()
        if every is not None and every < 1:
            raise ValueError(f"FrankWolfeCallback: every must be None or >= 1, got {every!r}")
        self.steps, self.every, self.prefix = steps, every, prefix
        self._watches: list[Watch] = []
        self._saved: list[dict[str, int]] = []
        self._stops: list[Callable[[], None]] = []
        self._measured = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        found = [opt for opt in map(frank_wolfe, trainer.optimizers) if opt is not None]
        if not found:
            kinds = ", ".join(type(opt).__name__ for opt in trainer.optimizers) or "none"
            raise ValueError(f"FrankWolfeCallback: wanted an inface.FrankWolfe among the optimizers, got {kinds}")
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        stepped = [frank_wolfe(one.optimizer) for one in schedulers if isinstance(one, DensityScheduler)]
        self._watches = [Watch(opt) for opt in found]
        for watch, saved in zip(self._watches, self._saved, strict=False):
            watch.load_state_dict(saved)
        self._stops = [drive(opt, self._steps(trainer, opt)) for opt in found if not any(opt is s for s in stepped)]

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        every, step = self.every or trainer.log_every_n_steps, trainer.global_step
        if every and step % every == 0 and step != self._measured:  # several batches may make one step
            self._measured = step
            pl_module.log_dict(self.measure(), on_step=True, on_epoch=False)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._stop()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._stop()

    def measure(self) -> dict[str, float]:
        """The measurements now, under the names that are logged."""
        several = len(self._watches) > 1
        return {
            f"{self.prefix}{f'{number}/' if several else ''}{name}": float(value)
            for number, watch in enumerate(self._watches)
            for name, value in watch.measure().items()
        }

    def state_dict(self) -> dict[str, Any]:
        """What was counted, for a checkpoint of the trainer."""
        return {"counted": [watch.state_dict() for watch in self._watches] or self._saved}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Called by the trainer when it resumes, before the training starts."""
        self._saved = list(state_dict["counted"])

    def _steps(self, trainer: Any, opt: FrankWolfe) -> int | None:
        if self.steps is not None or not needs_steps(opt):
            return self.steps
        expected = trainer.estimated_stepping_batches
        if not math.isfinite(expected):
            raise ValueError(
                f"FrankWolfeCallback: a density path needs its length, the trainer expects {expected} steps; wanted "
                f"max_steps or max_epochs of the Trainer, or FrankWolfeCallback(steps=...)"
            )
        return int(expected)

    def _stop(self) -> None:
        for stop in self._stops:
            stop()
        self._stops = []
