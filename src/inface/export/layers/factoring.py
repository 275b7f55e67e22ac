"""Low-rank layers in files."""

from __future__ import annotations

from torch import nn

from .sparsify import layer_choices, sparsify

__all__ = ["factored"]


def factored(model: nn.Module) -> nn.Module:
    """A copy of the network in which low-rank layers are two thin ones, if that takes fewer bytes than the non-zeros.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(20, 30, bias=False))
    >>> _ = model[0].weight.data.copy_(torch.outer(torch.ones(30), torch.ones(20)))
    >>> sorted(factored(model).state_dict())
    ['0.0.weight', '0.1.weight']
    """
    low = {name: each for name, each in layer_choices(model, above=1.0).items() if each.kind == "low-rank"}
    return sparsify(
        model, choices={name: each for name, each in low.items() if each.bytes["low-rank"] < each.bytes["sparse"]}
    )
