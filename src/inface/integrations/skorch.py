"""skorch's networks with sets and densities as parameters, which scikit-learn can search.

>>> import numpy as np, torch
>>> from sklearn.model_selection import GridSearchCV
>>> class Network(torch.nn.Module):
...     def __init__(self):
...         super().__init__()
...         self.first, self.second = torch.nn.Linear(20, 16), torch.nn.Linear(16, 2)
...     def forward(self, x):
...         return self.second(torch.relu(self.first(x)))
>>> _ = torch.manual_seed(0)
>>> x = np.random.default_rng(0).standard_normal((200, 20)).astype("float32")
>>> y = (x[:, 0] > x[:, 1]).astype("int64")
>>> net = NeuralNetClassifier(Network, criterion=torch.nn.CrossEntropyLoss, lr=0.1, max_epochs=10, batch_size=20, verbose=0,
...                           optimizer__density=0.1)
>>> search = GridSearchCV(net, {"optimizer__density": [0.05, 0.2]}, cv=2, scoring="accuracy").fit(x, y)
>>> bool(search.best_score_ > 0.8)
True
>>> weights = [p for p in search.best_estimator_.module_.parameters() if p.ndim == 2]
>>> sum(int(p.count_nonzero()) for p in weights) <= search.best_params_["optimizer__density"] * 352
True
"""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from torch import nn

from inface.groups import param_groups
from inface.optimizer import FrankWolfe
from inface.sets import Set
from inface.sparse import sparse_optimizer

from .watch import Watch, drive, frank_wolfe, needs_steps

try:
    import skorch
    from skorch.callbacks import Callback
except ImportError as error:
    raise ImportError("inface.integrations.skorch needs skorch: pip install skorch") from error

__all__ = ["FrankWolfeCallback", "FrankWolfeMixin", "NeuralNet", "NeuralNetClassifier", "NeuralNetRegressor"]

# Optimizers whose paths advance with every step; an unpickled one is another one.
DRIVEN: WeakSet[FrankWolfe] = WeakSet()


class FrankWolfeMixin:
    """Lets a skorch network take ``optimizer__sets``, ``optimizer__radius`` and ``optimizer__density``.

    With ``optimizer=inface.FrankWolfe``, which is the default of the networks here:

    - ``optimizer__sets={"first.weight": L1Ball(1.0)}``: sets by the names of the module's parameters, as of
      :func:`inface.param_groups`; ``optimizer__radius=2.0`` gives all of them another radius, and
      ``optimizer__radius={"first.weight": 2.0}`` some.
    - ``optimizer__density=0.05``: :func:`inface.sparse_optimizer`, with its own options (``optimizer__free="adamw"``). Its
      steps are those of all epochs, unless ``optimizer__steps`` says otherwise.

    Other options of either optimizer are given in the same way, and ``lr`` is the network's. It comes first among the bases:
    ``class MyNet(FrankWolfeMixin, skorch.NeuralNet)``.
    """

    def initialize_optimizer(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Called by skorch."""
        _, options = self.get_params_for_optimizer("optimizer", self.get_all_learnable_params())
        sets, density, radius = (options.pop(name, None) for name in ("sets", "density", "radius"))
        if self.optimizer is not FrankWolfe or (sets is None and density is None):
            if radius is not None:
                raise ValueError(f"optimizer__radius={radius!r}: wanted optimizer__sets, whose radii it replaces")
            return super().initialize_optimizer(*args, **kwargs)  # type: ignore[misc]
        if sets is not None and density is not None:
            raise ValueError("wanted either optimizer__sets or optimizer__density, got both")
        module: nn.Module = self.module_
        if sets is not None:
            if radius is not None:
                sets = _resized(sets, radius)
            self.optimizer_ = FrankWolfe(param_groups(module, sets), **options)
        else:
            if radius is not None:
                raise ValueError(f"optimizer__radius={radius!r}: optimizer__density finds radii itself, wanted None")
            self.optimizer_ = sparse_optimizer(module, density=density, **{"steps": "auto", **options})
        known = {id(p) for group in self.optimizer_.param_groups for p in group["params"]}
        others = [(name, p) for name, p in self.get_all_learnable_params() if id(p) not in known]
        if others:
            self.optimizer_.add_param_group({"params": others, "set": None})
        return self

    def fit_loop(self: Any, X: Any, y: Any = None, epochs: int | None = None, **kwargs: Any) -> Any:
        """Called by skorch."""
        self.path_epochs_ = self.max_epochs if epochs is None else epochs
        return super().fit_loop(X, y, epochs, **kwargs)  # type: ignore[misc]

    def run_single_epoch(self: Any, iterator: Any, *args: Any, training: bool, **kwargs: Any) -> Any:
        """Called by skorch."""
        opt = frank_wolfe(self.optimizer_)
        if training and opt is not None and opt not in DRIVEN:
            drive(opt, self.path_epochs_ * _batches(iterator) if needs_steps(opt) else None)
            DRIVEN.add(opt)
        return super().run_single_epoch(iterator, *args, training=training, **kwargs)  # type: ignore[misc]


def _batches(iterator: Any) -> int:
    try:
        return len(iterator)
    except TypeError:
        raise ValueError("optimizer__density: the data has no length; wanted optimizer__steps") from None


def _resized(sets: dict[str, Any], radius: Any) -> dict[str, Any]:
    """Sets with other radii: one for all, or some by the pattern of their set."""
    radii = radius if isinstance(radius, dict) else dict.fromkeys(sets, radius)
    for pattern in radii:
        if pattern not in sets:
            raise ValueError(f'optimizer__radius: "{pattern}" is no pattern of optimizer__sets ({", ".join(sets)})')
    return {pattern: _with_radius(value, radii.get(pattern)) for pattern, value in sets.items()}


def _with_radius(value: Any, radius: Any) -> Any:
    if radius is None:
        return value
    if isinstance(value, Set):
        return value.with_radius(radius)
    return {**value, "set": value["set"].with_radius(radius)}


class NeuralNet(FrankWolfeMixin, skorch.NeuralNet):
    """``skorch.NeuralNet`` with :class:`FrankWolfeMixin`; its optimizer is :class:`inface.FrankWolfe`."""

    def __init__(self, module: Any, *args: Any, optimizer: Any = FrankWolfe, **kwargs: Any) -> None:
        super().__init__(module, *args, optimizer=optimizer, **kwargs)


class NeuralNetClassifier(FrankWolfeMixin, skorch.NeuralNetClassifier):
    """``skorch.NeuralNetClassifier`` with :class:`FrankWolfeMixin`; its optimizer is :class:`inface.FrankWolfe`.

    >>> import torch
    >>> from inface.sets import L1Ball
    >>> ball = {"weight": L1Ball(1.0)}
    >>> net = NeuralNetClassifier(torch.nn.Linear(4, 2), optimizer__sets=ball, optimizer__radius=2.0, optimizer__project=True)
    >>> net.initialize().optimizer_.param_groups[0]["set"]
    L1Ball(radius=2.0, per='output')
    """

    def __init__(self, module: Any, *args: Any, optimizer: Any = FrankWolfe, **kwargs: Any) -> None:
        super().__init__(module, *args, optimizer=optimizer, **kwargs)


class NeuralNetRegressor(FrankWolfeMixin, skorch.NeuralNetRegressor):
    """``skorch.NeuralNetRegressor`` with :class:`FrankWolfeMixin`; its optimizer is :class:`inface.FrankWolfe`."""

    def __init__(self, module: Any, *args: Any, optimizer: Any = FrankWolfe, **kwargs: Any) -> None:
        super().__init__(module, *args, optimizer=optimizer, **kwargs)


class FrankWolfeCallback(Callback):
    """Writes gap and density into the history of a skorch network after each epoch: ``net.history[:, "density"]``.

    Args:
        layers: whether each layer's density is written too, as ``"density/NAME"``.
    """

    def __init__(self, *, layers: bool = False) -> None:
        self.layers = layers

    def on_epoch_end(self, net: Any, **_: Any) -> None:
        opt = frank_wolfe(net.optimizer_)
        for name, value in ({} if opt is None else Watch(opt).measure()).items():
            if self.layers or "/" not in name:
                net.history.record(name, value)
