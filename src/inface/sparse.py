"""Say how sparse: one call makes the optimizer that takes a network to a density."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from numbers import Real
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .density import attach, checked_steps
from .dtensors import whole
from .layers import Layers, chosen_layers, pools
from .optimizer import FrankWolfe
from .paths import in_face_steps_for, room, unfinished
from .relative import LENGTH
from .sets import L1Ball
from .sets.base import computable
from .types import Free
from .warning import Place, here, warn_at

__all__ = ["Free", "chosen_layers", "sparse_optimizer"]

# At these learning rates and above, steps have their full length. Below, it goes with the root of lr: relative steps know the
# size of gradients, so they need less of the correction that lr is.
FAST_LR: dict[Free, float] = {"sgd": 0.1, "adamw": 0.01}


def sparse_optimizer(
    model: nn.Module,
    *,
    density: float | Mapping[str, float],
    lr: float | Tensor,
    steps: int | Literal["auto"],
    layers: str | list[str] | None = None,
    free: Free = "sgd",
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
) -> FrankWolfe:
    """An optimizer that trains a network and makes it sparse on the way: after ``steps`` gradients it has ``density``.

    The model starts as it is, from PyTorch's initialisation or pretrained. Its layers live in l1 balls whose radii follow from
    their own weights and the density that a path has reached; edges leave between a tenth and eight tenths of the steps.
    Everything else moves as under SGD or AdamW. There is no radius and no second learning rate to choose, any of torch's
    schedulers works, and the state, with the place on the path, is in ``state_dict()``.

    Args:
        model: the network.
        density: the share of weights that stay, in (0, 1], of all chosen layers together: which layer keeps more is found
            during training. Or a mapping from patterns of parameter names to densities: then only what they match becomes
            sparse, each pattern to its own density; 1 leaves its layers dense. Of several patterns that match a layer, the
            last one wins: ``{"*": 0.05, "head.*": 1.0}``.
        lr: the learning rate that you would give SGD, or AdamW.
        steps: how many gradients the training has: ``epochs * len(loader)``. ``"auto"``: :func:`inface.density.announce`
            says it before the first step, as the callbacks of :mod:`inface.integrations` do.
        layers: names or patterns of the parameters to make sparse. By default the weights of linear layers, convolutions,
            attention projections and recurrent layers. Embeddings, norms and biases stay dense. Names are those of the
            model before ``torch.compile`` or a parallel wrapper, or with what these put before them.
            A weight with weight or spectral normalisation is sparse through the parameter behind it; another weight that
            is computed stays dense, with a warning.
        free: how all other parameters move: ``"sgd"`` with momentum, as :class:`torch.optim.SGD`, or ``"adamw"``, as
            :class:`torch.optim.AdamW`; with it the sparse layers' gradients are scaled as Adam scales them.
        momentum: of SGD, and of the sparse layers.
        weight_decay: decoupled, of the other parameters; sparse layers are bounded by their balls instead.
        betas: of AdamW.
        eps: of AdamW.

    Raises:
        ValueError: naming the argument, the value and what was wanted.

    >>> import torch, inface
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 100), torch.nn.ReLU(), torch.nn.Linear(100, 10))
    >>> x = torch.randn(500, 64)
    >>> y = (x[:, :10] + 0.1 * torch.randn(500, 10)).argmax(1)
    >>> opt = inface.sparse_optimizer(model, density=0.05, lr=0.1, steps=300)
    >>> for _ in range(300):
    ...     opt.zero_grad()
    ...     torch.nn.functional.cross_entropy(model(x), y).backward()
    ...     opt.step()
    >>> sum(int(layer.weight.count_nonzero()) for layer in (model[0], model[2])) <= 0.05 * 7400
    True
    >>> bool((model(x).argmax(1) == y).float().mean() > 0.9)
    True
    """
    _check(model, lr, free, momentum, weight_decay)
    steps = 0 if isinstance(steps, str) and steps == "auto" else checked_steps(steps, "sparse_optimizer")
    _check_parameters(model)
    found = pools(model, density, layers)
    names = {name for pool in found.values() for name in pool[1]}
    groups: list[dict[str, Any]] = []
    shared, every_node = [], []
    length = LENGTH[free] * min(1.0, math.sqrt(float(lr) / FAST_LR[free]))
    for pool, (share, members) in found.items():
        _check_members(share, members)
        for name, layer in members.items():
            ball = _ball(layer.param, layer.per, share)
            groups.append({"params": [(name, layer.param)], "set": ball, "relative": length / float(lr)})
            shared.append(pool)
            every_node.append(layer.every_node)
    rest = [(name, p) for name, p in model.named_parameters() if name not in names]
    adaptive = free == "adamw"
    opt = FrankWolfe(
        [*groups, {"params": rest, "set": None}] if rest else groups,
        lr=lr,
        in_face="projected",
        in_face_steps=in_face_steps_for(steps),
        momentum=momentum,
        dampening=None if adaptive else 0.0,
        norm="adaptive" if adaptive else "l2",
        betas=betas,
        eps=eps,
        weight_decay=weight_decay,
        every_gradient=True,
        precondition=adaptive,
        project=True,
    )
    walking = opt.param_groups[: len(groups)]
    attach(opt, walking, shared, steps=steps, by_itself=True, every_block=every_node, length=length)
    _watch(opt)
    return opt


def _ball(p: Tensor, per: Literal["output", "input"], density: float) -> L1Ball:
    """The ball in which a path to a density begins: as large as a dense layer of this length can need.

    A layer of zeros, as residual branches often end with, moves freely until weights leave: relative steps need a length.
    """
    dense = L1Ball(density=1.0, per=per)
    x = dense.to_blocks(computable(whole(p)))
    if not bool(x.any()):
        return L1Ball(torch.full(x.shape[:1], math.inf, dtype=x.dtype, device=x.device), per=per, density=density)
    return L1Ball(dense.sized_for(x).radius, per=per, density=density)


def _check(model: object, lr: Any, free: object, momentum: Any, weight_decay: Any) -> None:
    if not isinstance(model, nn.Module):
        raise ValueError(f"sparse_optimizer: model must be a torch.nn.Module, got {type(model).__name__}")
    for name, value, wanted in (
        ("lr", lr.item() if isinstance(lr, Tensor) and lr.numel() == 1 else lr, "> 0"),
        ("momentum", momentum, "in [0, 1)"),
        ("weight_decay", weight_decay, ">= 0"),
    ):
        number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value) and float(value) >= 0
        if not number or (name == "lr" and not value) or (name == "momentum" and value >= 1):
            raise ValueError(f"sparse_optimizer: {name} must be {wanted} and finite, got {value!r}")
    if free not in get_args(Free):
        raise ValueError(f"sparse_optimizer: free must be 'sgd' or 'adamw', got {free!r}")


def _check_parameters(model: nn.Module) -> None:
    """Raise a ValueError if a parameter has no numbers yet."""
    for name, p in model.named_parameters():
        if isinstance(p, nn.parameter.UninitializedParameter):
            raise ValueError(f'sparse_optimizer: parameter "{name}" has no shape yet, wanted one forward pass before')
        if p.is_meta:
            raise ValueError(
                f'sparse_optimizer: parameter "{name}" is on the meta device, wanted weights to start from '
                f"(model.to_empty, then an initialisation or a checkpoint)"
            )


def _check_members(density: float, members: Layers) -> None:
    """Raise a ValueError if parameters cannot become sparse, or if there is not a weight for each."""
    for name, layer in members.items():
        if not layer.param.requires_grad:
            raise ValueError(f'sparse_optimizer: parameter "{name}" is frozen, wanted requires_grad=True')
        if not bool(torch.isfinite(whole(layer.param)).all()):
            raise ValueError(f'sparse_optimizer: parameter "{name}" is not finite; wanted weights to start from')
    total = sum(layer.param.numel() for layer in members.values())
    nodes = sum(layer.param.shape[layer.per == "input"] for layer in members.values() if layer.every_node)
    needed = nodes + sum(not layer.every_node for layer in members.values())
    if room(density, total) < needed:
        wanted = f" ({nodes} of them the nodes of normalised ones)" if nodes else ""
        raise ValueError(
            f"sparse_optimizer: density must leave a weight to each of {needed} layers{wanted}, got {density!r}, which leaves "
            f"{room(density, total)} of {total} ({', '.join([*members][:3])}{', ...' if len(members) > 3 else ''})"
        )


def _watch(opt: FrankWolfe) -> None:
    """Warn when an optimizer goes before its path has ended, at the line that made it."""
    groups = [opt.param_groups]  # another list after a state was loaded

    def follow(loaded: Optimizer) -> None:
        groups[0] = loaded.param_groups

    opt.register_load_state_dict_post_hook(follow)
    weakref.finalize(opt, _warn_if_unfinished, groups, here())


def _warn_if_unfinished(groups: list[list[dict[str, Any]]], made: Place) -> None:
    said = unfinished(groups[0])
    if said is not None:
        warn_at(made, f"sparse_optimizer: training {said}")
