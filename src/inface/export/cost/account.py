"""Measure the cost of a network on this machine: dense, compact and with sparse layers."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from inface.export.compaction.compact import Compaction, compact
from inface.export.files.onnx import check_example, onnx_runner, save_onnx
from inface.export.files.sparse import save_sparse
from inface.export.layers.factoring import factored
from inface.export.layers.sparsify import layer_choices, sparsify

from .measure import Use, counts, gzip_bytes, latencies, uses, weight_bytes
from .report import CostReport, LayerReport, Variant
from .timing import Timing

__all__ = ["cost_report"]


def cost_report(
    model: nn.Module, example_input: Tensor, *, batches: Sequence[int] = (1, 64), seconds: float = 1.0
) -> CostReport:
    """Measure a network with zeros in three forms, in one run and in turns: dense, compact, and with sparse layers.

    Args:
        model: the network; it is not changed.
        example_input: a batch of inputs; the measured batches are made from it.
        batches: the batch sizes to measure.
        seconds: how long to measure each form at each batch size; each layer takes a twentieth of it.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 2))
    >>> report = cost_report(model, torch.randn(4, 20), seconds=0.01)
    >>> report.dense.parameters, report.dense.operations
    (692, 1320)
    """
    check_example(example_input)
    dense = copy.deepcopy(model).eval()
    small = compact(dense, example_input)
    whole = compact(dense, example_input, select="never")  # an unread input costs a sparse layer nothing
    choices = layer_choices(whole, batch=batches)
    inputs = {batch: _batch(example_input, batch) for batch in batches}
    forms = {
        "dense": _Form.of(dense, inputs),
        "compact": _Form.of(small, inputs),
        "sparse": _Form.of(sparsify(whole, choices=choices), inputs, written=factored(whole)),
    }
    times: dict[str, dict[int, Timing]] = {name: {} for name in (*forms, "onnxruntime")}
    with tempfile.TemporaryDirectory() as folder:
        there, reason = _onnxruntime(dense, example_input, Path(folder, "dense.onnx"))
        for batch, x in inputs.items():
            runs: dict[str, Callable[[], Any]] = {name: _calling(form.model, x) for name, form in forms.items()}
            if there is not None:
                runs["onnxruntime"] = _calling(there, x)
            for name, found in _timed(runs, seconds).items():
                times[name][batch] = found
    layers = [
        _layer(name, module, choices[name].kind if name in choices else "dense", forms, seconds / 20)
        for name, module in dense.named_modules()
        if list(module.parameters(recurse=False))
    ]
    told: Compaction = small.compaction  # type: ignore[assignment]
    left = [f"{each.name}: {each.reason}" for each in told.left]
    left += [f"{name}: stays dense: {choice.reason}" for name, choice in choices.items() if choice.kind == "dense"]
    left += [reason] if reason else []
    return CostReport(
        layers=tuple(layers),
        **{name: form.whole(times[name]) for name, form in forms.items()},
        gzip=gzip_bytes(_dense_file(dense)),
        onnxruntime=times["onnxruntime"],
        left=tuple(left),
        threads=torch.get_num_threads(),
    )


@dataclass(frozen=True)
class _Form:
    """One form of the network.

    Attributes:
        model: the network.
        used: the use of its modules, for each batch size.
        written: the form whose sparse file is counted; None for the dense file of the model.
    """

    model: nn.Module
    used: Mapping[int, Mapping[str, Use]]
    written: nn.Module | None

    @staticmethod
    def of(model: nn.Module, inputs: Mapping[int, Tensor], written: nn.Module | None = None) -> _Form:
        return _Form(model, {batch: uses(model, x) for batch, x in inputs.items()}, written)

    @property
    def most(self) -> Mapping[str, Use]:
        """The use of its modules in the largest batch."""
        return self.used[max(self.used)]

    def whole(self, seconds: dict[int, Timing]) -> Variant:
        """The cost of the network."""
        leaves = [name for name, module in self.model.named_modules() if not list(module.children())]
        return Variant(
            *counts(self.model),
            operations=sum(use.operations for use in self.most.values()),
            memory=weight_bytes(self.model),
            activations=max((self.most[name].activations for name in leaves if name in self.most), default=0),
            file=len(_dense_file(self.model)) if self.written is None else sum(_sparse_file(self.written)),
            seconds=seconds,
        )

    def layer(self, name: str, seconds: dict[int, Timing], *, alone: bool) -> Variant:
        """The cost of one layer or its replacement; ``alone`` if its submodules are counted separately."""
        module = self.model.get_submodule(name)
        within = [each for each in self.most if each == name or (not alone and each.startswith(f"{name}."))]
        called = self.most.get(name)
        written = module if self.written is None else self.written.get_submodule(name)
        file = (
            weight_bytes(written, recurse=not alone) if self.written is None else _sparse_file(written, alone=alone)[1]
        )
        return Variant(
            *counts(module, recurse=not alone),
            operations=sum(self.most[each].operations for each in within),
            memory=weight_bytes(module, recurse=not alone),
            activations=called.activations if called else 0,
            file=file,
            seconds=seconds,
        )


def _layer(name: str, module: nn.Module, kind: str, forms: Mapping[str, _Form], seconds: float) -> LayerReport:
    times: dict[str, dict[int, Timing]] = {form: {} for form in forms}
    for batch in forms["dense"].used:
        calls = {form: each.used[batch].get(name) for form, each in forms.items()}
        runs = {
            form: _calling(forms[form].model.get_submodule(name), *use.positional, **use.named)
            for form, use in calls.items()
            if use is not None
        }
        for form, found in _timed(runs, seconds).items():
            times[form][batch] = found
    alone = bool(list(module.children()))
    weight = getattr(module, "weight", None)
    shape = tuple(weight.shape) if isinstance(weight, Tensor) else ()
    made = {form: each.layer(name, times[form], alone=alone) for form, each in forms.items()}
    return LayerReport(name, type(module).__name__, shape, kind, **made)


def _batch(example: Tensor, size: int) -> Tensor:
    return example[torch.arange(size) % len(example)].contiguous()


def _calling(call: Callable[..., Any], *arguments: Any, **named: Any) -> Callable[[], Any]:
    return lambda: call(*arguments, **named)


def _timed(runs: Mapping[str, Callable[[], Any]], seconds: float) -> dict[str, Timing]:
    with torch.inference_mode():
        return latencies(runs, seconds=seconds) if runs else {}


def _onnxruntime(model: nn.Module, example: Tensor, file: Path) -> tuple[Callable[[Tensor], Tensor] | None, str | None]:
    """The network in onnxruntime, or the reason why it cannot run there."""
    try:
        save_onnx(model, example, file)
        return onnx_runner(file), None
    except (ImportError, ValueError) as error:
        return None, f"not measured in onnxruntime: {error}"


def _dense_file(model: nn.Module) -> bytes:
    from safetensors.torch import save

    return save({name: tensor.detach().contiguous().clone() for name, tensor in model.state_dict().items()})


def _sparse_file(module: nn.Module, *, alone: bool = False) -> tuple[int, int]:
    """The bytes of the header and of the tensors in a sparse file."""
    state = module.state_dict()
    if alone:
        state = {name: tensor for name, tensor in state.items() if "." not in name}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "sparse.safetensors")
        size = save_sparse(state, file)
        header = 8 + int.from_bytes(file.read_bytes()[:8], "little")
    return header, size - header
