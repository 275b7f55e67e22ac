"""For the ``Trainer`` of transformers: an optimizer by density or by sets, and a callback that logs what it does.

>>> import tempfile, torch
>>> from transformers import BertConfig, BertForSequenceClassification, PrinterCallback, Trainer, TrainingArguments
>>> sizes = dict(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
>>> model = BertForSequenceClassification(BertConfig(**sizes, max_position_embeddings=8))
>>> texts = [{"input_ids": torch.randint(50, (8,)), "labels": torch.tensor(i % 2)} for i in range(64)]
>>> with tempfile.TemporaryDirectory() as folder:
...     args = TrainingArguments(folder, num_train_epochs=3, learning_rate=1e-3, logging_steps=4, report_to=[], use_cpu=True,
...                              disable_tqdm=True, save_strategy="no", log_level="error")
...     trainer = Trainer(model, args, train_dataset=texts, optimizer_cls_and_kwargs=optimizer(args, density=0.1))
...     trainer.add_callback(FrankWolfeCallback())
...     trainer.remove_callback(PrinterCallback)
...     _ = trainer.train()
>>> logged = [entry for entry in trainer.state.log_history if "inface/density" in entry]
>>> logged[-1]["step"], round(logged[-1]["inface/density"], 2)
(24, 0.1)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from inface.groups import Constraints
from inface.optimizer import FrankWolfe
from inface.sparse import sparse_optimizer

from .watch import Watch, drive, frank_wolfe

try:
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState
except ImportError as error:
    raise ImportError("inface.integrations.transformers needs transformers: pip install transformers") from error

__all__ = ["FrankWolfeCallback", "optimizer"]


def optimizer(
    args: Any, *, density: float | Mapping[str, float] | None = None, sets: Constraints | None = None, **options: Any
) -> tuple[Any, dict[str, Any]]:
    """What ``Trainer(optimizer_cls_and_kwargs=...)`` takes, for :func:`inface.sparse_optimizer` or :class:`inface.FrankWolfe`.

    The trainer makes the optimizer itself, of its own model, after that was wrapped or moved to its device. Learning rate,
    and with ``density`` also weight decay, betas and eps of AdamW, come from the training arguments, unless they are given.

    Args:
        args: the ``TrainingArguments``.
        density: as of :func:`inface.sparse_optimizer`. ``steps`` need not be given if the trainer has a
            :class:`FrankWolfeCallback`, which knows them. ``free`` is ``"adamw"`` unless given.
        sets: instead of a density, names of parameters and their sets, as of :class:`inface.FrankWolfe`.
        options: further arguments of either.

    >>> from types import SimpleNamespace
    >>> from inface.sets import L1Ball
    >>> factory, options = optimizer(SimpleNamespace(learning_rate=0.1), sets={"weight": L1Ball(1.0)}, project=True)
    >>> factory()(nn.Linear(3, 2), **options).param_groups[0]["set"]
    L1Ball(radius=1.0, per='output')
    """
    if (density is None) == (sets is None):
        raise ValueError(f"optimizer: wanted either density or sets, got density={density!r} and sets={sets!r}")
    options = {"lr": args.learning_rate, **options}
    if sets is not None:
        return _factory(FrankWolfe), {"sets": sets, **options}
    usual = {
        "steps": "auto",
        "free": "adamw",
        "weight_decay": args.weight_decay,
        "betas": (args.adam_beta1, args.adam_beta2),
        "eps": args.adam_epsilon,
    }
    return _factory(sparse_optimizer), {"density": density, **usual, **options}


def _factory(make: Callable[..., FrankWolfe]) -> Callable[[], Callable[..., FrankWolfe]]:
    """What the trainer takes in place of a class: it is called, and then called with the model."""

    def build(model: nn.Module, **options: Any) -> FrankWolfe:
        return make(model, **options)

    return lambda: build


class FrankWolfeCallback(TrainerCallback, ExportableState):
    """Logs gap, density, drops and clamps with what the trainer logs, and takes density paths along.

    The names are ``inface/gap``, ``inface/density``, ``inface/density/NAME``, ``inface/path``, ``inface/drops`` and
    ``inface/clamps``; they are in ``trainer.state.log_history``. A trainer tells its own reporters (TensorBoard and so on)
    first: ``FrankWolfeCallback().add_to(trainer)`` puts it before them, so that they log these numbers too.

    A path of :func:`inface.sparse_optimizer` advances by itself, and gets its length from the trainer if it was made with
    ``steps="auto"``, as :func:`optimizer` makes it. Sets with a density and no path get one. A checkpoint of the trainer has
    the place on the path, and the counts, which go on with ``restore_callback_states_from_checkpoint=True``.

    Args:
        prefix: what comes before the names.
    """

    def __init__(self, prefix: str = "inface/") -> None:
        self.prefix = prefix
        self.counted: dict[str, int] = {}
        self._watch: Watch | None = None
        self._stop: Callable[[], None] = lambda: None
        self._found: dict[str, float] = {}
        self._latest: dict[str, int] = {}

    def add_to(self, trainer: Any) -> None:
        """Add it to a trainer, before the callbacks that report to others."""
        trainer.callback_handler.callbacks.insert(1, self)  # after the one that decides when to log

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        found = frank_wolfe(kwargs["optimizer"])
        if found is None:
            kind = type(kwargs["optimizer"]).__name__
            raise ValueError(f"FrankWolfeCallback: wanted an inface.FrankWolfe as the trainer's optimizer, got {kind}")
        self._watch = Watch(found)
        self._watch.load_state_dict(self.counted)
        self._stop = drive(found, state.max_steps)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._measure(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._measure(control)

    def _measure(self, control: Any) -> None:
        """Before the trainer logs or saves: here are all processes, which sharded parameters need."""
        if self._watch is None:
            return
        if control.should_log:
            self._found = {f"{self.prefix}{name}": value for name, value in self._watch.measure().items()}
        if control.should_save:
            self._latest = self._watch.state_dict()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        if self._found and logs is not None:
            logs.update(self._found)
            state.log_history[-1].update(self._found)
            self._found = {}

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._stop()

    def state(self) -> dict[str, Any]:
        """What was counted, for ``trainer_state.json``; the trainer asks in one process alone."""
        return {"args": {"prefix": self.prefix}, "attributes": {"counted": self._latest or self.counted}}
