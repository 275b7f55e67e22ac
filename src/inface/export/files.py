"""Weights in few bytes: a safetensors file in which a sparse tensor is its non-zero values and where they are."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .architecture import Network, describe
from .coding import CODINGS, decode, encode
from .writing import replacing

__all__ = ["load_network", "load_sparse", "save_dense", "save_sparse"]

FORMAT = "1"
LIMIT = 1 << 33  # bytes of all tensors once they are dense
DTYPES = {
    str(kind).removeprefix("torch."): kind for kind in (torch.float64, torch.float32, torch.float16, torch.bfloat16)
}
DTYPES |= {
    str(kind).removeprefix("torch."): kind for kind in (torch.int64, torch.int32, torch.int16, torch.uint8, torch.bool)
}

Values = Literal["exact", "float16"]


def save_sparse(
    model: nn.Module | Mapping[str, Tensor],
    path: str | os.PathLike[str],
    *,
    values: Values = "exact",
    architecture: bool = True,
) -> int:
    """Write weights into a safetensors file, every tensor in the fewest bytes; returns how many the file has.

    A tensor is written as it is, or as its non-zero values and their positions: a bit for every entry, or the gaps between
    the non-zeros in bytes or pairs of bytes, whichever is smallest. Values that float16 holds exactly are written so.

    Args:
        model: a network, or its state dict.
        path: the file; it is written beside it first and then put in its place.
        values: ``"exact"``, or ``"float16"`` to round all floating-point values to it: half the bytes.
        architecture: whether the file says how the network is built, so that :func:`load_network` needs no Python class.
            A state dict has no architecture.

    Raises:
        ValueError: a tensor cannot be written, or the network has no architecture that can be told.

    >>> import tempfile
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(1000, 100, bias=False))
    >>> _ = model[0].weight.data.mul_(torch.rand(100, 1000) < 0.05)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_sparse(model, Path(folder, "model.safetensors")) < 4 * 100 * 1000 / 12
    True
    """
    if values not in ("exact", "float16"):
        raise ValueError(f"values: wanted exact or float16, got {values}")
    state = model.state_dict() if isinstance(model, nn.Module) else model
    told: dict[str, Any] = {}
    parts: dict[str, Tensor] = {}
    for name, tensor in state.items():
        told[name], stored = _packed(name, tensor, values)
        parts |= {f"{kind}:{name}": part for kind, part in stored.items()}
    metadata = {"inface.sparse": FORMAT, "tensors": json.dumps(told, separators=(",", ":"))}
    if architecture and isinstance(model, nn.Module):
        try:
            metadata["architecture"] = json.dumps(describe(model), separators=(",", ":"))
        except ValueError as error:
            raise ValueError(f"{error}; with architecture=False its weights can be written") from error
    return _write(Path(path), parts, metadata)


def save_dense(model: nn.Module, path: str | os.PathLike[str]) -> int:
    """Write a network as an ordinary safetensors file that also says how it is built; returns how many bytes it has.

    Every reader of safetensors gives its tensors; :func:`load_network` gives the network.

    Args:
        model: the network.
        path: the file; it is written beside it first and then put in its place.

    Raises:
        ValueError: the network has no architecture that can be told.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = save_dense(nn.Sequential(nn.Linear(3, 2)), Path(folder, "model.safetensors"))
    ...     load_network(Path(folder, "model.safetensors")).get_submodule("0")
    Linear(in_features=3, out_features=2, bias=True)
    """
    told = json.dumps(describe(model), separators=(",", ":"))
    parts = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.state_dict().items()}
    return _write(Path(path), parts, {"architecture": told})


def load_sparse(path: str | os.PathLike[str], *, limit: int = LIMIT) -> dict[str, Tensor]:
    """The state dict in a file that :func:`save_sparse` wrote, dense again.

    Args:
        path: the file.
        limit: bytes that its tensors may take once they are dense: a small file can claim to be a large network.

    Raises:
        ValueError: the file is damaged or is something else; nothing in it is executed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "model.safetensors")
    ...     _ = save_sparse({"weight": torch.tensor([[0.0, 0.5], [0.0, 0.0]])}, file)
    ...     load_sparse(file)
    {'weight': tensor([[0.0000, 0.5000],
            [0.0000, 0.0000]])}
    """
    state, _, sparse = _read(Path(path), limit)
    if not sparse:
        raise ValueError(f"{path}: is not a file of save_sparse; safetensors.torch.load_file gives its tensors")
    return state


def load_network(path: str | os.PathLike[str], *, limit: int = LIMIT) -> Network:
    """The network in a file of :func:`save_sparse` or :func:`save_dense`; its Python class is not needed.

    Args:
        path: the file.
        limit: as in :func:`load_sparse`.

    Raises:
        ValueError: the file is damaged, is something else, or has no architecture; nothing in it is executed.

    >>> import tempfile
    >>> model = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = save_sparse(model, Path(folder, "model.safetensors"))
    ...     again = load_network(Path(folder, "model.safetensors"))
    >>> torch.equal(again(torch.ones(3)), model(torch.ones(3)))
    True
    """
    state, architecture, _ = _read(Path(path), limit)
    if architecture is None:
        raise ValueError(f"{path}: has no architecture; load_sparse gives its tensors")
    try:
        network = Network(architecture)
        network.load_state_dict(state, assign=True)
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from None
    return network.eval()


def _write(target: Path, parts: dict[str, Tensor], metadata: dict[str, str]) -> int:
    """Write a file beside its place, then put it there."""
    from safetensors.torch import save_file

    with replacing(target) as partial:
        save_file(parts, partial, metadata)
    return target.stat().st_size


def _packed(name: str, tensor: Tensor, values: Values) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What the file says of a tensor, and the parts that it is stored as."""
    kind = str(tensor.dtype).removeprefix("torch.")
    if kind not in DTYPES or tensor.layout != torch.strided:
        raise ValueError(f"{name}: is {tensor.dtype} ({tensor.layout}), wanted a dense tensor of {', '.join(DTYPES)}")
    flat = tensor.detach().cpu().contiguous().flatten()
    flat = flat.view(torch.uint8) if flat.dtype == torch.bool else flat
    flat = _narrow(flat, values)
    mask = flat != 0
    coding, positions = encode(mask)
    told: dict[str, Any] = {"shape": list(tensor.shape), "dtype": kind}
    if positions.nbytes + int(mask.sum()) * flat.itemsize < flat.nbytes:
        return {**told, "coding": coding}, {"values": flat[mask], "positions": positions}
    return told, {"values": flat}


def _narrow(flat: Tensor, values: Values) -> Tensor:
    """The values as float16, if they are to be or if nothing is lost."""
    if not flat.is_floating_point() or flat.dtype == torch.bfloat16:
        return flat.clone()  # safetensors refuses tensors that share memory
    narrow = flat.to(torch.float16, copy=True)
    return narrow if values == "float16" or torch.equal(narrow.to(flat.dtype), flat) else flat.clone()


def _read(path: Path, limit: int) -> tuple[dict[str, Tensor], Any, bool]:
    """The tensors of a file, its architecture, and whether it is one of :func:`save_sparse`."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        contents = path.read_bytes()
        stored = load(contents)
        header = json.loads(contents[8 : 8 + int.from_bytes(contents[:8], "little")])
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from None
    except (SafetensorError, ValueError, RecursionError, RuntimeError, KeyError, OverflowError) as error:
        raise ValueError(f"{path}: is damaged or not a safetensors file: {' '.join(str(error).split())}") from None
    metadata = header.get("__metadata__", {})
    version = metadata.get("inface.sparse")
    if version not in (None, FORMAT):
        raise ValueError(f"{path}: is of the format {version!r}, wanted {FORMAT}")
    try:
        architecture = json.loads(metadata["architecture"]) if "architecture" in metadata else None
        if version is None:
            return stored, architecture, False
        told = json.loads(metadata["tensors"])
        _check(told, limit)
        return {name: _unpacked(each, stored, name) for name, each in told.items()}, architecture, True
    except (ValueError, KeyError, TypeError, RecursionError, RuntimeError) as error:
        raise ValueError(f"{path}: is damaged: {' '.join(str(error).split())}") from None


def _check(told: Any, limit: int) -> None:
    """Refuse what cannot be before anything is allocated."""
    if not isinstance(told, dict):
        raise ValueError(f"tensors: wanted an object, got {type(told).__name__}")
    total = 0
    for name, each in told.items():
        shape = each["shape"]
        if not (
            isinstance(shape, list) and len(shape) <= 16 and all(type(size) is int and size >= 0 for size in shape)
        ):
            raise ValueError(f"{name}: shape {shape}, wanted whole numbers")
        if each["dtype"] not in DTYPES:
            raise ValueError(f"{name}: dtype {each['dtype']}, wanted one of {', '.join(DTYPES)}")
        total += math.prod(shape) * DTYPES[each["dtype"]].itemsize
    if total > limit:
        raise ValueError(f"its tensors would take {total:,} bytes, wanted at most {limit:,} (limit)")


def _unpacked(told: dict[str, Any], stored: Mapping[str, Tensor], name: str) -> Tensor:
    shape, kind, coding = told["shape"], DTYPES[told["dtype"]], told.get("coding")
    values = stored[f"values:{name}"]
    narrow = (torch.float16,) if kind.is_floating_point else (torch.uint8,) if kind == torch.bool else ()
    if values.ndim != 1 or values.dtype not in (kind, *narrow):
        raise ValueError(f"{name}: {values.ndim}-dimensional values of {values.dtype}, wanted a list of {kind}")
    count = math.prod(shape)
    if coding is not None:
        if coding not in CODINGS:
            raise ValueError(f"{name}: coding {coding!r}, wanted one of {', '.join(CODINGS)}")
        positions = decode(coding, stored[f"positions:{name}"], count)
        if len(positions) != len(values):
            raise ValueError(f"{name}: {len(values)} values at {len(positions)} positions")
        dense = torch.zeros(count, dtype=values.dtype)
        dense[positions] = values
        values = dense
    if len(values) != count:
        raise ValueError(f"{name}: {len(values)} values, wanted {count} for the shape {shape}")
    return values.to(kind).view(shape)
