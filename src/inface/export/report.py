"""Why a sparse network is smaller and faster, or why not: the whole account of one, in numbers of this machine."""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .compaction import Compaction, compact
from .files import save_sparse
from .measuring import LayerCost, activation_bytes, gzip_bytes, latencies, layer_costs, weight_bytes
from .onnx import onnx_runner, save_onnx
from .sparsifying import layer_choices, sparsify

__all__ = ["CostReport", "Variant", "cost_report"]


@dataclass(frozen=True)
class Variant:
    """One form of the network.

    Attributes:
        parameters: numbers that it stores.
        nonzeros: how many of them are not zero.
        operations: multiplications and additions for one sample.
        memory: bytes of its weights in memory.
        activations: the most bytes that one layer's inputs and outputs take, for the largest batch.
        file: bytes of its file.
        seconds: the median time of a forward pass, for each size of batch.
    """

    parameters: int
    nonzeros: int
    operations: int
    memory: int
    activations: int
    file: int
    seconds: dict[int, float]


@dataclass(frozen=True)
class CostReport:
    """A network before, and what export makes of it.

    Attributes:
        layers: what each layer costs.
        dense: the network as it is, zeros and all.
        compact: without what the zeros make superfluous.
        sparse: its sparse layers, where they are faster, in their own format.
        gzip: bytes of the dense file, compressed.
        onnxruntime: the median time of the dense network there, for each size of batch; empty if it cannot be exported.
        left: what could not be made smaller or faster, and why.
        threads: of torch and of onnxruntime.
    """

    layers: tuple[LayerCost, ...]
    dense: Variant
    compact: Variant
    sparse: Variant
    gzip: int
    onnxruntime: dict[int, float]
    left: tuple[str, ...]
    threads: int

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data, as JSON has it."""
        found: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return found

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> CostReport:
        """A report from what :meth:`to_dict` gave.

        Raises:
            ValueError: it is something else.
        """
        try:
            layers = tuple(LayerCost(**{**each, "shape": tuple(each["shape"])}) for each in data["layers"])
            forms = {
                name: Variant(**{**data[name], "seconds": _by_batch(data[name]["seconds"])})
                for name in ("dense", "compact", "sparse")
            }
            rest = {"left": tuple(data["left"]), "onnxruntime": _by_batch(data["onnxruntime"])}
            return CostReport(**{**data, **forms, **rest, "layers": layers})
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"is not a report of costs: {error!r}") from None

    def __str__(self) -> str:
        lines = [_table(("layer", "kind", "weights", "parameters", "non-zero", "%", "MFLOP", "sparse"), self._layers())]
        lines += ["", _table(("", "dense", "compact", "sparse"), self.rows())]
        lines += [f"gzip of the dense file: {_bytes(self.gzip)}"]
        lines += [f"left: {each}" for each in self.left]
        return "\n".join(lines)

    def _layers(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = []
        for each in self.layers:
            share = 100 * each.nonzeros / max(1, each.parameters)
            shape = "x".join(map(str, each.shape))
            flops = (f"{each.operations / 1e6:.3g}", f"{each.sparse_operations / 1e6:.3g}")
            rows.append(
                (each.name, each.kind, shape, f"{each.parameters:,}", f"{each.nonzeros:,}", f"{share:.1f}", *flops)
            )
        return rows

    def rows(self) -> list[tuple[str, ...]]:
        """The table of the three forms: what is measured, and each form's value, in brackets to the dense one's."""
        variants = (self.dense, self.compact, self.sparse)
        rows: list[tuple[str, ...]] = [
            ("parameters", *(f"{each.parameters:,}" for each in variants)),
            ("non-zero", *(f"{each.nonzeros:,}" for each in variants)),
            ("MFLOP a sample", *(f"{each.operations / 1e6:.3g}" for each in variants)),
            ("weights in memory", *(_bytes(each.memory) for each in variants)),
            ("activations", *(_bytes(each.activations) for each in variants)),
            ("file", *(f"{_bytes(each.file)} {_ratio(each.file, self.dense.file)}" for each in variants)),
        ]
        for batch in self.dense.seconds:
            whole = self.dense.seconds[batch]
            cells = [f"{_time(each.seconds[batch])} {_ratio(each.seconds[batch], whole)}" for each in variants]
            rows.append((f"latency, batch {batch}", *cells))
            if batch in self.onnxruntime:
                there = self.onnxruntime[batch]
                rows.append(("  in onnxruntime", f"{_time(there)} {_ratio(there, whole)}", "", ""))
        return rows


def cost_report(
    model: nn.Module, example_input: Tensor, *, batches: Sequence[int] = (1, 64), seconds: float = 1.0
) -> CostReport:
    """Measure a network with zeros: as it is, compact, and with sparse layers; all in one run, in turns.

    Args:
        model: the network, which is not changed.
        example_input: a batch of inputs; batches of the sizes that are measured are made of them.
        batches: those sizes.
        seconds: how long every form is measured for each of them.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 2))
    >>> report = cost_report(model, torch.randn(4, 20), seconds=0.01)
    >>> report.dense.parameters, report.dense.operations
    (692, 1320)
    """
    dense = copy.deepcopy(model).eval()
    inputs = {batch: _batch(example_input, batch) for batch in batches}
    small = compact(dense, example_input)
    whole = compact(dense, example_input, select="never")  # an input that a sparse layer does not read costs it nothing
    choices = layer_choices(whole, batch=batches)
    fast = sparsify(whole, choices=choices)
    forms = {"dense": dense, "compact": small, "sparse": fast}
    times: dict[str, dict[int, float]] = {name: {} for name in (*forms, "onnxruntime")}
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        there, reason = _onnxruntime(dense, example_input, Path(folder, "dense.onnx"))
        for batch, x in inputs.items():
            runs: dict[str, Callable[[], Any]] = {name: _running(form, x) for name, form in forms.items()}
            if there is not None:
                runs["onnxruntime"] = _running(there, x)
            for name, found in latencies(runs, seconds=seconds).items():
                times[name][batch] = found
        files, compressed = _files(dense, small, whole, Path(folder))
    costs = layer_costs(dense, example_input)
    largest = inputs[max(batches)]
    shrunk, sparse = layer_costs(small, example_input), layer_costs(whole, example_input)
    variants = {
        "dense": (dense, costs, sum(each.operations for each in costs)),
        "compact": (small, shrunk, sum(each.operations for each in shrunk)),
        "sparse": (fast, sparse, sum(each.sparse_operations for each in sparse)),
    }
    made = {
        name: Variant(
            parameters=sum(each.nonzeros if name == "sparse" else each.parameters for each in of),
            nonzeros=sum(each.nonzeros for each in of),
            operations=operations,
            memory=weight_bytes(form),
            activations=activation_bytes(form, largest),
            file=files[name],
            seconds=times[name],
        )
        for name, (form, of, operations) in variants.items()
    }
    told: Compaction = small.compaction  # type: ignore[assignment]
    left = [f"{each.name}: {each.reason}" for each in told.left]
    left += [f"{name}: stays dense: {choice.reason}" for name, choice in choices.items() if choice.kind == "dense"]
    left += [reason] if reason else []
    threads = torch.get_num_threads()
    return CostReport(
        tuple(costs), **made, gzip=compressed, onnxruntime=times["onnxruntime"], left=tuple(left), threads=threads
    )


def _by_batch(times: Mapping[str, float]) -> dict[int, float]:
    return {int(batch): float(seconds) for batch, seconds in times.items()}


def _batch(example: Tensor, size: int) -> Tensor:
    return example[torch.arange(size) % len(example)].contiguous()


def _running(form: Callable[[Any], Any], x: Any) -> Callable[[], Any]:
    return lambda: form(x)


def _onnxruntime(model: nn.Module, example: Tensor, file: Path) -> tuple[Callable[[Tensor], Tensor] | None, str | None]:
    """The network in onnxruntime; or why not."""
    try:
        with torch.inference_mode(mode=False):
            save_onnx(model, example, file)
        return onnx_runner(file), None
    except (ImportError, ValueError) as error:
        return None, f"not measured in onnxruntime: {error}"


def _files(dense: nn.Module, small: nn.Module, thin: nn.Module, folder: Path) -> tuple[dict[str, int], int]:
    """The bytes of each form's file; and of the dense one, compressed."""
    from safetensors.torch import save

    whole = save({name: tensor.contiguous() for name, tensor in dense.state_dict().items()})
    less = save({name: tensor.contiguous() for name, tensor in small.state_dict().items()})
    sparse = save_sparse(thin.state_dict(), folder / "sparse.safetensors")
    return {"dense": len(whole), "compact": len(less), "sparse": sparse}, gzip_bytes(whole)


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns that stand under each other, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(heading, *rows, strict=True)]
    left = {0, 1, 2} if "kind" in heading else {0}
    lines = []
    for row in (heading, *rows):
        cells = [
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _bytes(count: int) -> str:
    return f"{count / 1e6:.2f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:.2f} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.1f} us"


def _ratio(value: float, whole: float) -> str:
    return f"({value / whole:.2f})"
