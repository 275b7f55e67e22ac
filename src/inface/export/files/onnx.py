"""Networks for other runtimes: ONNX, checked in onnxruntime, and torch.export."""

from __future__ import annotations

import copy
import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from inface.atomic import replacing

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.onnx import ONNXProgram

__all__ = ["check_example", "onnx_runner", "save_onnx", "save_program"]

# The largest allowed difference of a file's outputs from the network's, relative to the largest output.
LEAST = 1e-4
ULPS = 16


def save_onnx(model: nn.Module, example_input: Tensor, path: str | os.PathLike[str]) -> float:
    """Write a network as an ONNX file, for batches of any size, and check it in onnxruntime.

    Args:
        model: a network of dense layers, as :func:`~inface.export.compact` gives them.
        example_input: a batch of inputs.
        path: the file; it is written only if the check succeeds.

    Returns:
        The largest difference of its outputs on the example from the network's, relative to the largest output.

    Raises:
        ValueError: the network cannot be exported, or the file gives other outputs.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_onnx(nn.Sequential(nn.Linear(3, 2), nn.ReLU()), torch.randn(4, 3), Path(folder, "model.onnx")) < 1e-5
    True
    """
    check_example(example_input)
    with replacing(path) as partial, _quiet(), torch.inference_mode(mode=False):
        evaluated = copy.deepcopy(model).eval()
        program = _program(evaluated, example_input)
        try:
            exported = cast("ONNXProgram", torch.onnx.export(program, verbose=False))  # None only with a file's name
            exported.save(str(partial))
        except (torch.onnx.errors.OnnxExporterError, RuntimeError, TypeError) as error:
            raise ValueError(f"{type(model).__name__}: cannot be written as ONNX: {_first_line(error)}") from error
        if list(partial.parent.iterdir()) != [partial]:
            size = sum(p.numel() * p.itemsize for p in evaluated.parameters())
            raise ValueError(
                f"{type(model).__name__}: cannot be written as ONNX: its weights take {size:,} bytes, "
                "wanted at most 1.5 GiB, the limit of one file; save_program has no limit"
            )
        return _checked(partial, evaluated, example_input)


def save_program(model: nn.Module, example_input: Tensor, path: str | os.PathLike[str]) -> None:
    """Write a network as a ``.pt2`` file of torch.export, for batches of any size; ``torch.export.load`` reads it.

    Args:
        model: the network.
        example_input: a batch of inputs.
        path: the file.

    Raises:
        ValueError: torch.export cannot trace the network.

    >>> import tempfile
    >>> model = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_program(model, torch.randn(4, 3), Path(folder, "model.pt2"))
    ...     again = torch.export.load(Path(folder, "model.pt2")).module()
    >>> bool((again(torch.ones(7, 3)) - model(torch.ones(7, 3))).abs().max() < 1e-5)
    True
    """
    check_example(example_input)
    with replacing(path) as partial, _quiet(), torch.inference_mode(mode=False):
        contents = io.BytesIO()  # a file would contain its temporary name
        torch.export.save(_program(copy.deepcopy(model).eval(), example_input), contents)
        partial.write_bytes(contents.getbuffer())


def check_example(example_input: Tensor) -> None:
    """Raise an error unless this is a batch of inputs.

    >>> check_example(torch.ones(0, 3))
    Traceback (most recent call last):
    ValueError: example_input: wanted a batch of inputs as a tensor, got a tensor of shape (0, 3)
    """
    if not isinstance(example_input, Tensor) or not example_input.ndim or not len(example_input):
        shape = f"a tensor of shape {tuple(example_input.shape)}" if isinstance(example_input, Tensor) else None
        found = shape or type(example_input).__name__
        raise ValueError(f"example_input: wanted a batch of inputs as a tensor, got {found}")


def _program(model: nn.Module, example_input: Tensor) -> ExportedProgram:
    """The network as a torch.export program: any batch size, without the example and without paths of this machine."""
    two = example_input[[0, -1]]  # a batch of 1 would be taken for a constant
    try:
        program = torch.export.export(model, (two,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    except Exception as error:
        raise ValueError(f"{type(model).__name__}: torch.export cannot trace it: {_first_line(error)}") from error
    program.example_inputs = None
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)
    return program


def onnx_runner(path: str | os.PathLike[str]) -> Callable[[Tensor], Tensor]:
    """The network in an ONNX file as a function, run by onnxruntime on the CPU with as many threads as torch has.

    Args:
        path: the file.

    Raises:
        ValueError: it is not an ONNX file, or onnxruntime cannot run it.

    >>> onnx_runner("README.md")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: README.md: onnxruntime cannot run it: ...
    """
    import onnxruntime  # type: ignore[import-untyped]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = torch.get_num_threads()
    try:
        session = onnxruntime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the errors of onnxruntime have no common class
        raise ValueError(f"{path}: onnxruntime cannot run it: {_first_line(error)}") from error
    name = session.get_inputs()[0].name
    return lambda inputs: torch.from_numpy(session.run(None, {name: inputs.numpy()})[0])


@torch.no_grad()
def _checked(file: Path, model: nn.Module, inputs: Tensor) -> float:
    """The difference of a file's outputs from the network's."""
    wanted: Any = model(inputs)
    if not isinstance(wanted, Tensor):
        raise ValueError(f"{type(model).__name__}: wanted a network with one tensor as its output, got {wanted!r:.60}")
    found = onnx_runner(file)(inputs.cpu())
    scale = float(wanted.abs().max()) or 1.0
    difference = float((found - wanted.cpu()).abs().max()) / scale
    if not difference < max(LEAST, ULPS * torch.finfo(wanted.dtype).eps):
        raise ValueError(
            f"{type(model).__name__}: its ONNX file gives other outputs: they differ by {difference:.1e} of the largest"
        )
    return difference


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's warnings about its own code and about packages that are not installed."""
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
