"""From a model and ``{parameter name: set}`` to the groups of an optimizer."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn

from .layers import holds_inputs_first, unwrapped
from .sets import Set

__all__ = ["Constraints", "param_groups"]

# What a group may say, beside its parameters.
OPTIONS = frozenset(
    {
        "set",
        "lr",
        "in_face",
        "in_face_steps",
        "momentum",
        "dampening",
        "relative",
        "precondition",
        "norm",
        "betas",
        "eps",
        "gradient_bound",
        "every_gradient",
        "weight_decay",
        "maximize",
        "fused",
        "capturable",
        "project",
    }
)

TURNED = {"output": "input", "input": "output"}

Constraints = Mapping[str, Set | dict[str, Any]]


def param_groups(model: nn.Module, constraints: Constraints) -> list[dict[str, Any]]:
    """The parameters of ``model`` in groups: one per pattern, with its set, and one for everything else, which is free.

    Args:
        model: the network.
        constraints: from a parameter name, or a glob on parameter names (``*`` matches dots too), to the set its
            parameters must live in, or to ``dict(set=..., lr=..., ...)`` with further options of the group;
            ``set=None`` makes a free group with options of its own. A 1-D parameter (a bias) is reached by its exact
            name only. Of a compiled or parallel model the names of the model inside mean the same. For the Conv1D of
            transformers, whose weights are (inputs, outputs), ``per="output"`` means its nodes too: such layers are in a
            group of their own, with the set that is that in their shape.

    Raises:
        ValueError: a pattern that matches nothing, or a parameter that two patterns match.

    >>> import torch, inface
    >>> from inface.sets import L1Ball
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    >>> for group in inface.param_groups(model, {"0.*": dict(set=L1Ball(1.0), lr=8.0)}):
    ...     print(group["set"], [name for name, _ in group["params"]])
    L1Ball(radius=1.0, per='output') ['0.weight']
    None ['0.bias', '2.weight', '2.bias']
    """
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None and any(isinstance(module, fsdp.FullyShardedDataParallel) for module in model.modules()):
        raise ValueError(
            "param_groups: FullyShardedDataParallel flattens parameters, so that no set can see its blocks; wanted "
            "fully_shard (FSDP2)"
        )
    parameters = dict(model.named_parameters())
    aliases: dict[int, list[str]] = {id(p): [] for p in parameters.values()}
    for name, p in model.named_parameters(remove_duplicate=False):
        aliases[id(p)] += [name, unwrapped(model, name)]

    turned = holds_inputs_first(model)
    owner: dict[str, str] = {}
    groups: list[dict[str, Any]] = []
    for pattern, value in constraints.items():
        matched = []
        for name, p in parameters.items():
            known = aliases[id(p)]
            if pattern not in known and (p.ndim < 2 or not any(fnmatchcase(alias, pattern) for alias in known)):
                continue
            if name in owner:
                raise ValueError(
                    f'parameter "{name}" is matched by two patterns, "{owner[name]}" and "{pattern}"; wanted one'
                )
            owner[name] = pattern
            matched.append((name, p))
        if not matched:
            raise ValueError(_nothing(pattern, list(parameters)))
        groups += _groups(matched, _options(pattern, value), turned)

    free = [(name, p) for name, p in parameters.items() if name not in owner]
    if free:
        groups.append({"params": free, "set": None})
    return groups


def _groups(matched: Sequence[tuple[str, Tensor]], options: dict[str, Any], turned: set[int]) -> list[dict[str, Any]]:
    """One group, or two if some of its weights hold their inputs first."""
    set_: Set | None = options["set"]
    others = [(name, p) for name, p in matched if id(p) in turned]
    if not others or set_ is None or set_.per == "group" or not {set_.per, getattr(set_, "groups", None)} & set(TURNED):
        return [{"params": matched, **options}]
    plain = [(name, p) for name, p in matched if id(p) not in turned]
    data = set_.to_dict()
    told = {key: TURNED[data[key]] for key in ("per", "groups") if data.get(key) in TURNED}
    second = {"params": others, **options, "set": Set.from_dict({**data, **told})}
    return [{"params": plain, **options}, second] if plain else [second]


def _options(pattern: str, value: object) -> dict[str, Any]:
    if isinstance(value, Set):
        return {"set": value}
    if isinstance(value, dict) and "set" in value and (value["set"] is None or isinstance(value["set"], Set)):
        for option in value:
            if option not in OPTIONS:
                raise ValueError(
                    f'pattern "{pattern}": {option!r} is no option of a group; wanted {", ".join(sorted(OPTIONS))}'
                )
        return dict(value)
    raise ValueError(f'pattern "{pattern}": wanted a set or dict(set=..., ...), got {value!r}')


def _nothing(pattern: str, names: list[str]) -> str:
    biases = [name for name in names if fnmatchcase(name, pattern)]
    if biases:
        return (
            f'pattern "{pattern}" matches only parameters of fewer than two dimensions ({", ".join(biases)}); '
            f"wanted: their exact names, if they are to be constrained"
        )
    return f'pattern "{pattern}" matches no parameter; the model has {", ".join(names) or "none"}'
