"""Networks for other runtimes: ONNX, checked in onnxruntime, and torch.export."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from .writing import replacing

if TYPE_CHECKING:
    from torch.export import ExportedProgram

__all__ = ["onnx_runner", "save_onnx", "save_program"]


def save_onnx(model: nn.Module, example_input: Tensor, path: str | os.PathLike[str]) -> float:
    """Write a network as an ONNX file, for batches of any size, and check it in onnxruntime.

    Args:
        model: a network of dense layers, as :func:`~inface.export.compact` gives them.
        example_input: a batch of inputs.
        path: the file; it is put in its place once it has been checked.

    Returns:
        The largest difference of its outputs on the example from the network's, as a fraction of the largest output.

    Raises:
        ValueError: the network cannot be exported, or its file gives other outputs; the reason is told.
    """
    with replacing(path) as partial, _quiet():
        program = program_of(model, example_input)
        try:
            exported = torch.onnx.export(program, verbose=False)
            assert exported is not None  # noqa: S101 - for the type checker: it was not written to a file
            exported.save(str(partial))
        except (torch.onnx.errors.OnnxExporterError, RuntimeError, TypeError) as error:
            raise ValueError(f"{type(model).__name__}: cannot be written as ONNX: {_first_line(error)}") from error
        return _checked(partial, model, example_input)


def save_program(model: nn.Module, example_input: Tensor, path: str | os.PathLike[str]) -> None:
    """Write a network as a ``.pt2`` file of torch.export, for batches of any size; ``torch.export.load`` reads it.

    Args:
        model: the network.
        example_input: a batch of inputs.
        path: the file.
    """
    with replacing(path) as partial, _quiet():
        torch.export.save(program_of(model, example_input), partial)


def program_of(model: nn.Module, example_input: Tensor) -> ExportedProgram:
    """The network as torch.export sees it, in evaluation mode, its first dimension free."""
    if not example_input.ndim or not len(example_input):
        raise ValueError(f"example_input: wanted a batch of inputs, got one of shape {tuple(example_input.shape)}")
    two = example_input[[0, -1]]  # a program keeps its example, and a batch of 1 would be taken for a constant
    training = model.training
    try:
        return torch.export.export(model.eval(), (two,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    except Exception as error:
        raise ValueError(f"{type(model).__name__}: torch.export cannot follow it: {_first_line(error)}") from error
    finally:
        model.train(training)


def onnx_runner(path: str | os.PathLike[str]) -> Callable[[Tensor], Tensor]:
    """The network in an ONNX file as a function, run by onnxruntime on the CPU with as many threads as torch has.

    Args:
        path: the file.
    """
    import onnxruntime  # type: ignore[import-untyped]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda inputs: torch.from_numpy(session.run(None, {name: inputs.numpy()})[0])


@torch.no_grad()
def _checked(file: Path, model: nn.Module, inputs: Tensor) -> float:
    """How far the outputs of a file are from the network's."""
    training = model.training
    wanted = model.eval()(inputs)
    model.train(training)
    found = onnx_runner(file)(inputs.cpu())
    scale = float(wanted.abs().max()) or 1.0
    difference = float((found - wanted.cpu()).abs().max()) / scale
    if not difference < 1e-4:
        raise ValueError(
            f"{type(model).__name__}: its ONNX file gives other outputs: they differ by {difference:.1e} of the largest"
        )
    return difference


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch says about its own code, and about packages that are not there."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            for kind in (FutureWarning, DeprecationWarning, UserWarning):
                warnings.simplefilter("ignore", kind)
            yield
    finally:
        logger.setLevel(before)


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
