"""An optimizer in words: what is sparse, what is free, and the options of groups that have the same, once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .units import names_of

__all__ = ["shown"]

# What has a line of its own, or differs between groups that are otherwise alike.
APART = ("params", "param_names", "path", "compute")


def shown(kind: str, groups: Sequence[dict[str, Any]]) -> str:
    """What ``repr`` of an optimizer prints.

    >>> import torch, inface
    >>> model = torch.nn.Sequential(torch.nn.Linear(20, 10), torch.nn.Linear(10, 2))
    >>> opt = inface.sparse_optimizer(model, density=0.1, lr=0.1, steps=100)
    >>> print("\\n".join(shown("FrankWolfe", opt.param_groups).split("\\n")[2:6]))
        0.weight (10, 20)
        1.weight (2, 10)
    Free: 0.bias, 1.bias
    Parameter Groups 0, 1
    """
    lines = [f"{kind} (", *_sparse(groups)]
    for members in _alike(groups).values():
        title = f"Parameter Group{'s' if len(members) > 1 else ''} {_ranges(members)}"
        lines += [title, *(f"    {key}: {value}" for key, value in _options([groups[i] for i in members]).items())]
    return "\n".join([*lines, ")"])


def _sparse(groups: Sequence[dict[str, Any]]) -> list[str]:
    """The layers that are on a path, and everything else."""
    pools: dict[str, list[int]] = {}
    for i, group in enumerate(groups):
        if group["path"] is not None:
            pools.setdefault(group["path"]["pool"], []).append(i)
    lines = []
    for members in pools.values():
        path = groups[members[0]]["path"]
        last = min(path["steps"], -int(-path["end"] * path["steps"] // 1))
        entries = sum(p.numel() for i in members for p in groups[i]["params"])
        lines.append(
            f"Sparse: {path['target']:g} of {entries} weights after {last} of {path['steps']} steps; "
            f"at step {path['step']}, {path['density']:.4g}"
        )
        for i in members:
            names, params = names_of(groups[i], i), groups[i]["params"]
            lines += [f"    {name} {tuple(p.shape)}" for name, p in zip(names, params, strict=True)]
    free = [name for i, group in enumerate(groups) if group["set"] is None for name in names_of(group, i)]
    return [*lines, f"Free: {', '.join(free)}"] if lines and free else lines


def _alike(groups: Sequence[dict[str, Any]]) -> dict[str, list[int]]:
    """The numbers of groups that say the same, apart from the radii that a path gives them."""
    found: dict[str, list[int]] = {}
    for i, group in enumerate(groups):
        mark = repr(_options([group])) if group["path"] is not None else str(i)
        found.setdefault(mark, []).append(i)
    return found


def _options(groups: Sequence[dict[str, Any]]) -> dict[str, Any]:
    first = groups[0]
    found = {key: first[key] for key in sorted(first) if key not in APART}
    if "param_names" in first and first["path"] is None:
        found["param_names"] = first["param_names"]
    if first["path"] is not None:
        found["set"] = f"{type(first['set']).__name__}(density={first['set'].density}, per={first['set'].per!r})"
    return {key: _value(value) for key, value in found.items()}


def _value(value: object) -> object:
    """Not the numbers of a long tensor."""
    if isinstance(value, Tensor) and value.numel() > 3:
        low, high = torch.aminmax(value.detach())
        return f"<{value.numel()} values, {float(low):g} to {float(high):g}>"
    return value


def _ranges(numbers: Sequence[int]) -> str:
    """Whole numbers in rising order, with what follows each other as a range.

    >>> _ranges([0, 1, 2, 3, 5, 7, 8])
    '0-3, 5, 7, 8'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
