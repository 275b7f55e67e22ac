"""Make a network smaller by removing the channels that zeros make superfluous; the outputs stay the same."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any, get_args

import torch
from torch import Tensor, nn

from .graph import Untraceable, copied, differences, follow, tensors, trace
from .plan import RULES, LayerChange, Left, Plan, Selection, build, make_plan, merge

__all__ = ["Compaction", "LayerChange", "Left", "Selection", "compact"]


@dataclass(frozen=True)
class Compaction:
    """The changes made by :func:`compact`; the attribute ``compaction`` of the network that it returns.

    Attributes:
        layers: the changes of the layers with weights, in the order in which the network uses them.
        left: the parts that were left unchanged, and why.
        before: the number of parameters before.
        after: the number of parameters after.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> _ = model[2].weight.data.copy_(torch.tensor([[1.0, 0.0, 2.0]]))
    >>> compaction = compact(model, torch.zeros(1, 2)).compaction
    >>> compaction.before, compaction.after, compaction.left
    (13, 9, ())
    >>> print(compaction)
    layer  kind    before  after  removed  folded
    0      Linear  3x2     2x2    1        0
    2      Linear  1x3     1x2    0        0
    parameters: 13 -> 9
    """

    layers: tuple[LayerChange, ...]
    left: tuple[Left, ...]
    before: int
    after: int

    def __str__(self) -> str:
        rows = [("layer", "kind", "before", "after", "removed", "folded")]
        for each in self.layers:
            after = _by(each.after) + (" selected" if each.selected is not None else "")
            rows.append((each.name, each.kind, _by(each.before), after, str(each.removed), str(each.folded)))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        left = [f"left: {each.name}{f' ({each.nodes})' if each.nodes else ''}: {each.reason}" for each in self.left]
        return "\n".join([*table, f"parameters: {self.before:,} -> {self.after:,}", *left])


def compact(model: nn.Module, example_input: Any, *, select: Selection = "faster") -> nn.Module:
    """A smaller network with the same outputs.

    It removes channels (nodes and filters) that nothing reads, and channels without incoming edges. The latter are
    constant, also behind activations, batch normalisation and pooling; the constant is folded into the next bias. Then
    it removes what only these channels needed, and so on, and the inputs that a layer does not read. Channels that are
    added to each other are removed together or not at all. The inputs and outputs of the network keep their shapes, and
    every layer keeps at least one node.

    The result is a copy of the network, of the same class and with the same names. In eval mode its outputs are the
    same up to rounding, for any batch size. Its attribute ``compaction``, a :class:`Compaction`, lists the changes, and
    the parts that were left unchanged with the reason: unknown operations, weights that are used twice, constants next
    to zero padding. Nothing is changed if ``forward`` cannot be traced, or if the outputs on the example or on random
    numbers differ by more than rounding. Only exact zeros count; :func:`inface.sparsity.hard_threshold` makes them.

    Args:
        model: the network; it is not changed.
        example_input: an input, or a tuple of inputs.
        select: whether to put an :class:`inface.export.Select` in front of a layer that does not read all of its input,
            if the input itself cannot get smaller (the network's input). The layer becomes
            ``Sequential(select, layer)``. ``"faster"``: if that saves time; ``"smaller"``: also if it only saves
            memory; ``"never"``: the layer keeps those inputs.

    Raises:
        ValueError: the network does not run on the example, or an argument is wrong.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> with torch.no_grad():
    ...     _ = model[0].weight[0].zero_()  # a node without incoming edges: the constant relu(bias)
    ...     _ = model[0].bias[0].fill_(0.5)
    ...     _ = model[2].weight[:, 1].zero_()  # a node without outgoing edges
    >>> small = compact(model, torch.zeros(1, 4))
    >>> small
    Sequential(
      (0): Linear(in_features=4, out_features=1, bias=True)
      (1): ReLU()
      (2): Linear(in_features=1, out_features=2, bias=True)
    )
    >>> print(small.compaction)
    layer  kind    before  after  removed  folded
    0      Linear  3x4     1x4    2        0
    2      Linear  2x3     2x1    0        1
    parameters: 23 -> 9
    >>> x = torch.randn(5, 4)
    >>> torch.allclose(small(x), model(x), atol=1e-6)
    True
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"compact: model must be a torch.nn.Module, got {type(model).__name__}")
    if select not in get_args(Selection):
        raise ValueError(f"compact: select must be one of {', '.join(get_args(Selection))}, got {select!r}")
    example = example_input if isinstance(example_input, tuple) else (example_input,)
    with torch.inference_mode(False):  # in inference mode, writes to tensors are not counted
        if type(model) in RULES.layers or type(model) in RULES.modules:  # a layer is a step only inside a network
            return _alone(model, example, select)
        return _compact(model, example, select)


def _compact(model: nn.Module, example: tuple[Any, ...], select: Selection) -> nn.Module:
    whole = _copied(model).eval()
    expected = _outputs(whole, example)
    try:
        small, changes, left = _smaller(model, whole, example, expected, select)
    except Exception as error:  # noqa: BLE001 (the unchanged network is a valid result: an export must not fail)
        why = error if isinstance(error, Untraceable) else f"{type(error).__name__}: {_line(error)}"
        small, changes, left = copy.deepcopy(model), [], [Left(type(model).__name__, f"everything stays: {why}")]
    else:
        for name, module in model.named_modules():
            for each in small.get_submodule(name).modules():
                each.training = module.training
    before, after = (sum(p.numel() for p in each.parameters()) for each in (model, small))
    small.compaction = Compaction(tuple(changes), tuple(left), before, after)  # type: ignore[assignment]
    return small


def _alone(model: nn.Module, example: tuple[Any, ...], select: Selection) -> nn.Module:
    """A network that is a single layer: only its inputs can be removed."""
    network: Any = _compact(nn.Sequential(model), example, select)
    small: nn.Module = network[0]
    told, name = network.compaction, type(model).__name__
    layers, left = (tuple(replace(each, name=name) for each in listed) for listed in (told.layers, told.left))
    small.compaction = replace(told, layers=layers, left=left)
    return small


def _smaller(
    model: nn.Module, whole: nn.Module, example: tuple[Any, ...], expected: Any, select: Selection
) -> tuple[nn.Module, list[LayerChange], list[Left]]:
    """The smaller network, the changes of its layers, and what was left; Untraceable if its outputs differ."""
    if model._forward_hooks or model._forward_pre_hooks:  # noqa: SLF001 (nothing else tells)
        raise Untraceable("the network has hooks")
    earlier: list[LayerChange] = []
    while not (plan := _plan(model, example, expected)).is_last:
        model, changes, _ = build(model, plan, "never")
        earlier = merge(earlier, changes)
    small, changes, left = build(model, plan, select)
    wrong = _difference(whole, small, example)
    if wrong and any(change.selected is not None for change in changes):
        small, changes, left = build(model, plan, "never", "forward looks at a layer that a selection would hide")
        wrong = _difference(whole, small, example)
    if wrong:
        raise Untraceable(wrong)
    return small, merge(earlier, changes), [*plan.left, *left]


def _plan(model: nn.Module, example: tuple[Any, ...], expected: Any) -> Plan:
    """What to remove; Untraceable unless ``forward`` takes the same steps in the smaller network."""
    graph = trace(copy.deepcopy(model).eval(), example)
    if _distance(graph.result, expected, model) is not None:
        raise Untraceable("what forward does cannot be told from its trace")
    distrusted: frozenset[str] = frozenset()
    while True:
        plan = make_plan(graph, distrusted)
        small, _, _ = build(model, plan, "never")
        wrong, why = differences(graph, follow(small, example), plan.widths)
        if why is not None:
            raise Untraceable(why)
        if not wrong:
            return plan
        distrusted |= wrong


def _copied(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except RuntimeError as error:
        why = f"(prune.remove and the like make its weights parameters again): {_line(error)}"
        raise ValueError(f"compact: {type(model).__name__} cannot be copied {why}") from error


def _outputs(model: nn.Module, example: tuple[Any, ...]) -> Any:
    """The outputs of a network, with a fixed seed."""
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            return model(*copied(example))
    except Exception as error:
        raise ValueError(
            f"compact: {type(model).__name__} does not run on the example input: {_line(error)}"
        ) from error


def _difference(whole: nn.Module, small: nn.Module, example: tuple[Any, ...]) -> str | None:
    """How the outputs of two networks differ, on the example or on random numbers of its shape; None if they agree."""
    numbers = torch.Generator().manual_seed(0)
    random = tuple(
        torch.randn(each.shape, generator=numbers).to(each)
        if isinstance(each, Tensor) and each.is_floating_point()
        else each
        for each in example
    )
    for inputs, name in ((example, "the example"), (random, "random numbers")):
        try:
            expected = _outputs(whole, inputs)
        except ValueError:  # random numbers may not be a valid input
            continue
        try:
            found = _outputs(copy.deepcopy(small), inputs)
        except ValueError as error:
            return f"the smaller network does not run on {name}: {_line(error.__cause__ or error)}"
        distance = _distance(found, expected, whole)
        if distance is not None:
            return f"the smaller network gives other outputs on {name} ({distance})"
    return None


def _distance(found: Any, expected: Any, model: nn.Module) -> str | None:
    """The difference of outputs where they are finite, in words; None if it is only rounding."""
    pairs = list(zip(tensors(found), tensors(expected), strict=False))
    if len(pairs) != len(list(tensors(expected))):
        return "not as many"
    kinds = {each.dtype for each in [*model.parameters(), *tensors(expected)] if each.is_floating_point()}
    tolerance = max((torch.finfo(kind).eps for kind in kinds), default=0.0) ** 0.5
    for one, other in pairs:
        if one.shape != other.shape:
            return f"{_by(one.shape)} instead of {_by(other.shape)}"
        finite = other.isfinite()
        if other.is_floating_point() and finite.any():
            size = float(other[finite].abs().max())
            apart = float((one - other)[finite].abs().max())
            if not apart <= tolerance * size:
                return f"{apart:.1g} apart, where they are up to {size:.1g}"
    return None


def _by(shape: tuple[int, ...]) -> str:
    return "x".join(str(each) for each in shape)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())
