"""A trained run as files that others can use, with the account of what they cost."""

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
from .setup import load_data, parts, surroundings

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
    """What an export wrote.

    Attributes:
        files: the files, by format.
        costs: what the network costs, dense, compact and sparse.
        told: everything as plain data, as in ``export.json``.
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
    """Write the network of a run for others, and measure what it costs and whether it still does what it did.

    Args:
        run: a finished run.
        out: the folder of the files; by default ``export`` in the run's own.
        formats: ``"compact"`` (safetensors, without what the zeros make superfluous), ``"sparse"`` (the same with its sparse
            tensors in few bytes), ``"onnx"``, ``"torch"`` (torch.export).
        keep: the part of the edges of each constrained layer to keep, the largest; by default all that are not zero.
        half: whether values in the sparse file are rounded to float16.
        data: the data folder, if it is not the usual one.
        experiment: where the experiment is to be found, if its file has moved since.
        accept_changed_file: import the file that the run names although it has changed.
        seconds: how long every form is measured for each size of batch.
    """
    for each in formats:
        if each not in (known := get_args(Format)):
            raise ArgumentError(f"format: wanted {', '.join(known)}, got {each}{suggestion(each, known)}")
    if keep is not None and not 0 < keep <= 1:
        raise ArgumentError(f"keep: wanted a part of the edges in (0, 1], got {keep:g}")
    settings, found, model = rebuild(run, experiment, accept_changed_file=accept_changed_file)
    names = constrained(model, found)
    if keep is not None and not names:
        raise ArgumentError(f"keep: {settings.experiment} has no constrained layers whose edges could be kept")
    folder = out or run.path / "export"
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with surroundings(settings.threads):
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
    """The metric of the trained network, of the thinned one, and of every file as its users read it."""
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
    """Something that can be called, as a network."""

    def __init__(self, call: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.call = (call,)  # in a tuple: a program of torch.export has no evaluation mode, and must not be told of one

    def forward(self, inputs: Tensor) -> Tensor:
        return self.call[0](inputs)
