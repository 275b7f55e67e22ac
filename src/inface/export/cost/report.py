"""The cost report of a network before and after export, as data and as tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .timing import Timing, measurable

__all__ = ["CostReport", "LayerReport", "Variant"]


@dataclass(frozen=True)
class Variant:
    """The cost of one form of a network or a layer.

    Attributes:
        parameters: the number of stored values; for a layer in CSR form, its non-zeros.
        nonzeros: the number of non-zeros.
        operations: multiply-adds for one sample.
        memory: the bytes of its weights in memory, including indices.
        activations: the largest number of bytes of one layer's inputs and outputs, for the largest batch.
        file: the bytes of its file; the sparse form as written by :func:`inface.export.save_sparse`. For a layer, the
            bytes of its tensors there.
        seconds: the time of a forward pass and its spread, by batch size; empty for a layer that is not called.

    >>> Variant(100, 5, 10, 60, 400, 50, {1: Timing(1e-5, 1e-7)}).seconds[1].median
    1e-05
    """

    parameters: int
    nonzeros: int
    operations: int
    memory: int
    activations: int
    file: int
    seconds: dict[int, Timing]


@dataclass(frozen=True)
class LayerReport:
    """The cost of one layer, in the three forms of the network.

    Attributes:
        name: the name of the layer.
        kind: its class.
        shape: the shape of its weights.
        form: its form in the sparse network: ``"dense"``, ``"sparse"`` or ``"low-rank"``.
        dense: the original layer.
        compact: without superfluous channels.
        sparse: in its form.

    >>> import torch
    >>> from torch import nn
    >>> from inface.export import cost_report
    >>> layer = cost_report(nn.Sequential(nn.Linear(20, 2)), torch.randn(4, 20), seconds=0.01).layers[0]
    >>> layer.name, layer.kind, layer.shape, layer.form, layer.dense.parameters
    ('0', 'Linear', (2, 20), 'dense', 42)
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    form: str
    dense: Variant
    compact: Variant
    sparse: Variant


@dataclass(frozen=True)
class CostReport:
    """The cost of a network before and after export.

    Attributes:
        layers: the cost of each layer.
        dense: the original network, including its zeros.
        compact: without superfluous channels.
        sparse: with sparse layers where they are faster.
        gzip: the bytes of the dense file after gzip.
        onnxruntime: the time of the dense network in onnxruntime and its spread, by batch size; empty if it cannot be
            exported.
        left: what could not be made smaller or faster, and why.
        threads: the number of threads of torch and onnxruntime.

    >>> import torch
    >>> from torch import nn
    >>> from inface.export import cost_report
    >>> report = cost_report(nn.Sequential(nn.Linear(20, 2)), torch.randn(4, 20), seconds=0.01)
    >>> str(report).split()[:5]
    ['layer', 'kind', 'weights', 'form', 'parameters']
    """

    layers: tuple[LayerReport, ...]
    dense: Variant
    compact: Variant
    sparse: Variant
    gzip: int
    onnxruntime: dict[int, Timing]
    left: tuple[str, ...]
    threads: int

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data for JSON.

        >>> import torch
        >>> from torch import nn
        >>> from inface.export import cost_report
        >>> report = cost_report(nn.Sequential(nn.Linear(20, 2)), torch.randn(4, 20), seconds=0.01)
        >>> report.to_dict()["dense"]["parameters"], CostReport.from_dict(report.to_dict()) == report
        (42, True)
        """
        found: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return found

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> CostReport:
        """A report from the data of :meth:`to_dict`.

        Raises:
            ValueError: the data is not a cost report.

        >>> CostReport.from_dict({})
        Traceback (most recent call last):
        ValueError: is not a report of costs: KeyError('layers')
        """
        try:
            layers = tuple(
                LayerReport(**{**each, **_forms(each), "shape": tuple(each["shape"])}) for each in data["layers"]
            )
            rest = {"left": tuple(data["left"]), "onnxruntime": _by_batch(data["onnxruntime"])}
            return CostReport(**{**data, **_forms(data), **rest, "layers": layers})
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"is not a report of costs: {error!r}") from None

    def __str__(self) -> str:
        lines = [_table(self.layer_heading(), self.layer_rows(), left=4)]
        if any(" ~ " in cell for row in self.layer_rows() for cell in row):
            lines += ["~: not measurable here, the times vary by more than they differ"]
        lines += ["", _table(("", "dense", "compact", "sparse"), self.rows())]
        lines += [f"gzip of the dense file: {_bytes(self.gzip)}"]
        lines += [f"left: {each}" for each in self.left]
        return "\n".join(lines)

    def layer_heading(self) -> tuple[str, ...]:
        """The headings of the columns of :meth:`layer_rows`.

        >>> import torch
        >>> from torch import nn
        >>> from inface.export import cost_report
        >>> cost_report(nn.Sequential(nn.Linear(20, 2)), torch.randn(4, 20), seconds=0.01).layer_heading()[:3]
        ('layer', 'kind', 'weights')
        """
        times = tuple(f"us, batch {batch}" for batch in self.dense.seconds)
        return ("layer", "kind", "weights", "form", "parameters", "non-zero", "MFLOP", "kB", "kB in file", *times)

    def layer_rows(self) -> list[tuple[str, ...]]:
        """The table of the layers: the value of the dense layer, and that of its sparse form if it differs.

        A ``~`` between two times means that they vary by more than they differ.

        >>> import torch
        >>> from torch import nn
        >>> from inface.export import cost_report
        >>> cost_report(nn.Sequential(nn.Linear(20, 2)), torch.randn(4, 20), seconds=0.01).layer_rows()[0][:5]
        ('0', 'Linear', '2x20', 'dense', '42')
        """
        rows: list[tuple[str, ...]] = []
        for each in self.layers:
            old, new = each.dense, each.sparse
            cells = [_pair(f"{old.parameters:,}", f"{new.parameters:,}")]
            cells += [f"{100 * old.nonzeros / max(1, old.parameters):.1f} %"]
            cells += [_pair(f"{old.operations / 1e6:.3g}", f"{new.operations / 1e6:.3g}")]
            cells += [_pair(f"{old.memory / 1e3:.1f}", f"{new.memory / 1e3:.1f}")]
            cells += [_pair(f"{old.file / 1e3:.1f}", f"{new.file / 1e3:.1f}")]
            for batch in self.dense.seconds:
                times = [form.seconds[batch] for form in (old, new) if batch in form.seconds]
                between = " > " if len(times) == 2 and measurable(*times) else " ~ "
                cells.append(between.join(f"{1e6 * each.median:.1f}" for each in times) if len(times) == 2 else "-")
            rows.append((each.name, each.kind, "x".join(map(str, each.shape)), each.form, *cells))
        return rows

    def rows(self) -> list[tuple[str, ...]]:
        """The table of the three forms: a quantity and its value in each form, with the ratio to dense in brackets.

        Times are medians with their spread; the brackets say so if they vary by more than they differ.

        >>> import torch
        >>> from torch import nn
        >>> from inface.export import cost_report
        >>> cost_report(nn.Sequential(nn.Linear(20, 2)), torch.randn(4, 20), seconds=0.01).rows()[0]
        ('parameters', '42', '42', '42')
        """
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
            others = [_compared(each.seconds[batch], whole) for each in (self.compact, self.sparse)]
            cells = [f"{_time(whole)} (1.00)", *others]
            rows.append((f"latency, batch {batch}", *cells))
            if batch in self.onnxruntime:
                rows.append(("  in onnxruntime", _compared(self.onnxruntime[batch], whole), "", ""))
        return rows


def _forms(data: Mapping[str, Any]) -> dict[str, Variant]:
    return {
        name: Variant(**{**data[name], "seconds": _by_batch(data[name]["seconds"])})
        for name in ("dense", "compact", "sparse")
    }


def _by_batch(times: Mapping[str, Any]) -> dict[int, Timing]:
    return {int(batch): Timing(float(each["median"]), float(each["spread"])) for batch, each in times.items()}


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """The rows as aligned columns; the first ones are left-aligned."""
    widths = [max(map(len, column)) for column in zip(heading, *rows, strict=True)]
    lines = []
    for row in (heading, *rows):
        cells = [
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _pair(before: str, after: str) -> str:
    return before if before == after else f"{before} > {after}"


def _bytes(count: int) -> str:
    return f"{count / 1e6:.2f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"


def _time(taken: Timing) -> str:
    """A median with its spread, in one unit."""
    factor, unit, digits = (1e3, "ms", 2) if taken.median >= 1e-3 else (1e6, "us", 1)
    return f"{factor * taken.median:.{digits}f} {unit} +- {factor * taken.spread:.{digits}f}"


def _compared(taken: Timing, whole: Timing) -> str:
    """A time, and its ratio to another one if they differ by more than they vary."""
    if not measurable(taken, whole):
        return f"{_time(taken)} (not measurable here)"
    return f"{_time(taken)} {_ratio(taken.median, whole.median)}"


def _ratio(value: float, whole: float) -> str:
    return f"({value / whole:.2f})" if whole else ""
