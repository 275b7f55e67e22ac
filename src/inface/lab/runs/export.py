"""Export the network of a run to files, and report what each form costs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn

from inface import export
from inface.export.layers.factoring import factored
from inface.lab.errors import ArgumentError, LabError, suggestion
from inface.lab.experiments.experiment import Experiment, Split
from inface.lab.files import write_json, writing
from inface.sparsity import hard_threshold
from inface.types import Format

from .evaluation import rebuild
from .metrics import constrained, finite, score
from .run import Run
from .setup import isolated_torch, load_data, parts

__all__ = ["FORMAT", "Exported", "export_run"]

FORMAT = 3  # of export.json
FILES: dict[Format, str] = {
    "compact": "compact.safetensors",
    "sparse": "sparse.safetensors",
    "onnx": "model.onnx",
    "torch": "model.pt2",
}


@dataclass(frozen=True)
class Exported:
    """The result of an export.

    Attributes:
        files: the files, by format.
        costs: the cost of the network: dense, compact and sparse.
        told: the contents of ``export.json``, as plain data.
    """

    files: dict[Format, Path]
    costs: export.CostReport
    told: dict[str, Any]


def export_run(
    run: Run,
    out: Path | None = None,
    *,
    formats: Sequence[Format] = ("sparse",),
    keep: float | None = None,
    half: bool = False,
    data: str | Path | None = None,
    experiment: str | None = None,
    accept_changed_file: bool = False,
    seconds: float = 1.0,
) -> Exported:
    """Export the network of a run; measure its cost, and its metric before and after.

    Args:
        run: a finished run.
        out: the folder of the files; by default ``export`` in the run folder.
        formats: ``"compact"`` (safetensors, without the channels that zeros make superfluous), ``"sparse"`` (the same
            with sparse tensors stored in few bytes), ``"onnx"``, ``"torch"`` (torch.export).
        keep: the part of the edges of each constrained layer to keep, largest first; by default all non-zeros.
        half: round the values in the sparse file to float16.
        data: the data folder, if not the default.
        experiment: ``path/to/file.py:name``, if the file of the experiment has moved.
        accept_changed_file: import the file of the experiment although it has changed.
        seconds: how long to measure each form at each batch size.
    """
    for each in formats:
        if each not in (known := get_args(Format)):
            raise ArgumentError(f"format: wanted {', '.join(known)}, got {each}{suggestion(each, known)}")
    if keep is not None and not 0 < keep <= 1:
        raise ArgumentError(f"keep: wanted a part of the edges in (0, 1], got {keep:g}")
    settings, found, model = rebuild(run, experiment, accept_changed_file=accept_changed_file)
    names = constrained(model, found)
    if keep is not None and not names:
        raise ArgumentError(f"keep: {settings.experiment} has no constrained layers to prune")
    folder = out or run.path / "export"
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with isolated_torch(settings.threads):
        _, split = parts(settings, load_data(found, data))
        thin = model if keep is None else hard_threshold(model, keep, layers=names)
        example = split.inputs[:64]
        try:
            costs = export.cost_report(thin, example, seconds=seconds)
            files = _write(copy.deepcopy(thin).eval(), example, folder, formats, half=half)
            metric = _metrics(model, thin, found, split, files)
        except (ValueError, ImportError, OSError) as error:
            raise LabError(f"{run.path}: cannot be exported: {error}") from None
    unit = found.metric
    told = {
        "format": FORMAT,
        "keep": keep,
        "half": half,
        "metric": {"name": unit.name, "unit": unit.unit, "better": unit.better, **metric},
        "files": {name: {"file": file.name, "bytes": file.stat().st_size} for name, file in files.items()},
        "costs": costs.to_dict(),
    }
    write_json(folder / "export.json", told)
    return Exported(files, costs, told)


def _write(
    model: nn.Module, example: Tensor, folder: Path, formats: Sequence[Format], *, half: bool
) -> dict[Format, Path]:
    small = export.compact(model, example)
    thin = factored(export.compact(model, example, select="never"))  # unread inputs take no bytes in a sparse file
    writers: dict[Format, Callable[[Path], Any]] = {
        "compact": lambda file: export.save_dense(small, file),
        "sparse": lambda file: export.save_sparse(thin, file, values="float16" if half else "exact"),
        "onnx": lambda file: export.save_onnx(small, example, file),
        "torch": lambda file: export.save_program(small, example, file),
    }
    files: dict[Format, Path] = {}
    for name in dict.fromkeys(formats):
        files[name] = folder / FILES[name]
        writers[name](files[name])
    return files


def _metrics(
    model: nn.Module, thin: nn.Module, experiment: Experiment, split: Split, files: dict[Format, Path]
) -> dict[str, float | None]:
    """The metric of the trained network, of the pruned one, and of the network loaded from every file."""
    forms: dict[str, Callable[[], nn.Module]] = {"before": lambda: model, "kept": lambda: thin}
    readers: dict[Format, Callable[[Path], nn.Module]] = {
        "compact": export.load_network,
        "sparse": lambda file: export.sparsify(export.load_network(file)),
        "onnx": lambda file: _Called(export.onnx_runner(file)),
        "torch": lambda file: _Called(torch.export.load(file).module()),
    }
    forms |= {name: partial(readers[name], file) for name, file in files.items()}
    return {name: finite(score(form(), experiment, split).metric) for name, form in forms.items()}


class _Called(nn.Module):
    """A module that calls a function."""

    def __init__(self, call: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.call = (call,)  # in a tuple, to hide it from eval(): a torch.export program raises there

    def forward(self, inputs: Tensor) -> Tensor:
        return self.call[0](inputs)
