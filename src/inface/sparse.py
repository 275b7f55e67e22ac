"""Say how sparse: one call makes the optimizer that takes a network to a density."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from numbers import Real
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .density import attach, checked_steps, room, unfinished
from .optimizer import FrankWolfe
from .relative import LONGEST
from .sets import L1Ball
from .sets.base import computable
from .types import Free
from .warning import Place, here, warn_at

__all__ = ["Free", "chosen_layers", "sparse_optimizer"]

# The learning rates at which constrained layers move by 3 % of their own length in a step. Below, the length falls with the
# root of lr: relative steps know the size of gradients already, so they need less of the correction that lr is.
USUAL_LR: dict[str, float] = {"sgd": 0.1, "adamw": 0.003}


# One gradient in ten brings back edges, the others train those that are there.
IN_FACE_STEPS = 9


def sparse_optimizer(
    model: nn.Module,
    *,
    density: float | Mapping[str, float],
    lr: float | Tensor,
    steps: int,
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
            sparse, each pattern to its own density; 1 leaves its layers dense.
        lr: the learning rate that you would give SGD, or AdamW.
        steps: how many gradients the training has: ``epochs * len(loader)``.
        layers: names or patterns of the parameters to make sparse. By default the weights of linear layers, convolutions,
            attention projections and recurrent layers. Embeddings, norms and biases stay dense.
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
    steps = checked_steps(steps, "sparse_optimizer")
    _check_parameters(model)
    pools = _pools(model, density, layers)
    names = {name for pool in pools.values() for name in pool[1]}
    groups: list[dict[str, Any]] = []
    shared, relative = [], min(LONGEST, LONGEST * math.sqrt(float(lr) / USUAL_LR[free])) / float(lr)
    for pool, (share, members) in pools.items():
        _check_members(share, members)
        for name, (p, per) in members.items():
            groups.append({"params": [(name, p)], "set": _ball(p, per, share), "relative": relative})
            shared.append(pool)
    rest = [(name, p) for name, p in model.named_parameters() if name not in names]
    adaptive = free == "adamw"
    opt = FrankWolfe(
        [*groups, {"params": rest, "set": None}] if rest else groups,
        lr=lr,
        in_face="projected",
        in_face_steps=IN_FACE_STEPS,
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
    attach(opt, opt.param_groups[: len(groups)], shared, steps=steps, by_itself=True)
    _watch(opt)
    return opt


def _ball(p: Tensor, per: Literal["output", "input"], density: float) -> L1Ball:
    """The ball in which a path to a density begins: as large as a dense layer of this length can need."""
    dense = L1Ball(density=1.0, per=per)
    return L1Ball(dense.sized_for(dense.to_blocks(computable(p.detach()))).radius, per=per, density=density)


def chosen_layers(model: nn.Module) -> dict[str, tuple[Tensor, Literal["output", "input"]]]:
    """The parameters that are made sparse where nobody says which, by name, and what its nodes are.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Embedding(5, 4), nn.LayerNorm(4), nn.Linear(4, 3), nn.LSTM(4, 3))
    >>> list(chosen_layers(model))
    ['2.weight', '3.weight_ih_l0', '3.weight_hh_l0']
    """
    dense = {id(p) for module in model.modules() if isinstance(module, DENSE) for p in module.parameters(recurse=False)}
    names = {id(p): name for name, p in model.named_parameters()}
    found: dict[str, tuple[Tensor, Literal["output", "input"]]] = {}
    for module in model.modules():
        for p, per in _weights(module):
            if id(p) in names and id(p) not in dense and p.requires_grad and _has_shape(p):
                found.setdefault(names[id(p)], (p, per))
    order = list(names.values())
    return dict(sorted(found.items(), key=lambda item: order.index(item[0])))


def _has_shape(p: Tensor) -> bool:
    """Whether a parameter has entries: lazy ones have none yet."""
    return not isinstance(p, nn.parameter.UninitializedParameter) and bool(p.numel())


DENSE = (nn.Embedding, nn.EmbeddingBag)
SUMS = (nn.Linear, nn.Bilinear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
SEVERAL = (nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase)


def _weights(module: nn.Module) -> Iterator[tuple[Tensor, Literal["output", "input"]]]:
    """The weights of a layer that are sums over inputs, of two dimensions or more."""
    if isinstance(module, SUMS):
        yield module.weight, "output"
    elif isinstance(module, TRANSPOSED):
        yield module.weight, "input" if module.groups == 1 else "output"
    elif isinstance(module, SEVERAL):
        for p in module.parameters(recurse=False):
            if p.ndim >= 2 and (p.shape[0] > 1 or not isinstance(module, nn.MultiheadAttention)):
                yield p, "output"


Members = dict[str, tuple[Tensor, Literal["output", "input"]]]


def _pools(
    model: nn.Module, density: float | Mapping[str, float], layers: str | list[str] | None
) -> dict[str, tuple[float, Members]]:
    """The parameters that become sparse, in pools of one density each."""
    usual = chosen_layers(model)
    everything: Members = {
        name: usual.get(name, (p, "output")) for name, p in model.named_parameters() if _has_shape(p) and p.ndim >= 2
    }
    if isinstance(density, Mapping):
        if layers is not None:
            raise ValueError(f"sparse_optimizer: a mapping of densities names the layers itself, got layers={layers!r}")
        return _mapped(density, everything, usual)
    share = _density(density, "")
    patterns = _patterns(layers)
    if not usual and layers is None:
        raise ValueError(
            "sparse_optimizer: the model has no linear, convolutional, attention or recurrent layer; say which layers"
        )
    members: Members = {}
    for pattern in patterns:
        members.update(_matching(pattern, everything, usual))
    return {"": (share, members)} if share < 1 else {}


def _patterns(layers: object) -> list[str]:
    found = ["*"] if layers is None else [layers] if isinstance(layers, str) else layers
    if not isinstance(found, list | tuple) or not found or not all(isinstance(one, str) for one in found):
        raise ValueError(f"sparse_optimizer: layers must be None, a name or pattern, or a list of them, got {layers!r}")
    return list(found)


def _mapped(density: Mapping[str, float], everything: Members, usual: Members) -> dict[str, tuple[float, Members]]:
    """The pools of a mapping from patterns to densities; what is to stay dense is in none."""
    if not density:
        raise ValueError("sparse_optimizer: wanted a density, or a mapping from patterns to densities, got {}")
    pools, owner = {}, dict[str, str]()
    for pattern, share in density.items():
        if not isinstance(pattern, str):
            raise ValueError(f"sparse_optimizer: density must have names or patterns as keys, got {pattern!r}")
        members = _matching(pattern, everything, usual)
        for name in members:
            if name in owner:
                raise ValueError(
                    f'sparse_optimizer: parameter "{name}" is matched by two patterns, "{owner[name]}" and '
                    f'"{pattern}"; wanted one'
                )
            owner[name] = pattern
        if _density(share, f' for "{pattern}"') < 1:
            pools[pattern] = (float(share), members)
    return pools


def _matching(pattern: str, everything: Members, usual: Members) -> Members:
    """The parameters that a pattern means: one by its very name, or of the usual ones all that match."""
    if pattern in everything:
        return {pattern: everything[pattern]}
    found = {name: member for name, member in usual.items() if fnmatchcase(name, pattern)}
    found = found or {name: member for name, member in everything.items() if fnmatchcase(name, pattern)}
    if not found:
        raise ValueError(
            f'sparse_optimizer: pattern "{pattern}" matches none of the layers {", ".join(usual) or "(none)"}'
        )
    return found


def _density(density: object, where: str) -> float:
    if isinstance(density, bool) or not isinstance(density, Real) or not 0 < float(density) <= 1:
        raise ValueError(f"sparse_optimizer: density{where} must be in (0, 1], got {density!r}")
    return float(density)


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


def _check_members(density: float, members: Members) -> None:
    """Raise a ValueError if parameters cannot become sparse, or if there is not a weight for each."""
    for name, (p, _) in members.items():
        if not p.requires_grad:
            raise ValueError(f'sparse_optimizer: parameter "{name}" is frozen, wanted requires_grad=True')
        if not bool(torch.isfinite(p.detach()).all()):
            raise ValueError(f'sparse_optimizer: parameter "{name}" is not finite; wanted weights to start from')
        if not bool((p.detach() != 0).any()):
            raise ValueError(f'sparse_optimizer: parameter "{name}" is all zero; wanted weights to start from')
    total = sum(p.numel() for p, _ in members.values())
    if room(density, total) < len(members):
        raise ValueError(
            f"sparse_optimizer: density must leave a weight to each of {len(members)} layers, got {density!r}, which leaves "
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
