"""Sparse weights in a safetensors file: a sparse tensor is stored as its non-zero values and their positions."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from inface.atomic import replacing

from .architecture import Network, describe
from .coding import CODINGS, decode, encode
from .network import unused

__all__ = ["load_network", "load_sparse", "save_dense", "save_sparse"]

FORMAT = "1"
FACTOR = 1000  # default limit of the dense tensors, in bytes per byte of the file
SMALL = 1 << 26  # bytes that are always allowed
LARGEST = 1 << 63
FLOATING = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
DTYPES = {str(kind).removeprefix("torch."): kind for kind in (*FLOATING, *WHOLE)}

Values = Literal["exact", "float16"]


def save_sparse(
    model: nn.Module | Mapping[str, Tensor],
    path: str | os.PathLike[str],
    *,
    values: Values = "exact",
    architecture: bool = True,
) -> int:
    """Write weights to a safetensors file, each tensor in the fewest bytes; return the size of the file.

    A tensor is stored dense, or as its non-zero values and their positions: one bit per entry, or the gaps between the
    non-zeros in one or two bytes, whichever is smallest. Values that float16 holds exactly are stored as float16. A
    tensor with two names is stored once.

    Args:
        model: a network, or its state dict.
        path: the file; it is written atomically.
        values: ``"exact"`` keeps every number, except that ``-0.0`` may become ``0.0``. ``"float16"`` rounds
            floating-point values: half the bytes. A tensor with a number that would become infinite (above 65504), or
            with none above 6e-5, is not rounded. A non-zero below 6e-8 beside larger ones becomes 6e-8, not 0.
        architecture: whether to store the architecture, so that :func:`load_network` needs no Python class. A state
            dict has no architecture.

    Raises:
        TypeError: ``model`` is neither a network nor a state dict.
        ValueError: a tensor cannot be written, or the architecture cannot be described.
        OSError: the file cannot be written.

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
    state = _state(model)
    told: dict[str, Any] = {}
    parts: dict[str, Tensor] = {}
    firsts: dict[Any, str] = {}
    for name, tensor in state.items():
        first = firsts.setdefault(_place(name, tensor), name)
        if first != name:
            told[name] = {"same": first}
            continue
        told[name], stored = _packed(tensor, values)
        parts |= {f"{kind}:{name}": part for kind, part in stored.items()}
    metadata = {"inface.sparse": FORMAT, "tensors": json.dumps(told, separators=(",", ":"))}
    if architecture and isinstance(model, nn.Module):
        try:
            metadata["architecture"] = json.dumps(describe(model), separators=(",", ":"))
        except ValueError as error:
            raise ValueError(f"{error}; with architecture=False its weights can be written") from error
    return _write(Path(path), parts, metadata)


def save_dense(model: nn.Module, path: str | os.PathLike[str]) -> int:
    """Write a network to an ordinary safetensors file with its architecture; return the size of the file.

    Every safetensors reader can read its tensors, including those that ``forward`` does not use. :func:`load_network`
    reads the network.

    Args:
        model: the network.
        path: the file; it is written atomically.

    Raises:
        TypeError: ``model`` is not a network.
        ValueError: the architecture cannot be described.
        OSError: the file cannot be written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = save_dense(nn.Sequential(nn.Linear(3, 2)), Path(folder, "model.safetensors"))
    ...     load_network(Path(folder, "model.safetensors")).get_submodule("0")
    Linear(in_features=3, out_features=2, bias=True)
    """
    told = json.dumps(describe(model), separators=(",", ":"))
    parts = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in _state(model).items()}
    return _write(Path(path), parts, {"architecture": told})


def load_sparse(path: str | os.PathLike[str], *, limit: int | None = None) -> dict[str, Tensor]:
    """Read a file written by :func:`save_sparse`: a dense state dict, in which shared tensors are shared again.

    Reading takes the memory of the tensors, at most half of that more, and at most 100 times the size of the file.

    Args:
        path: the file.
        limit: the largest number of bytes of the dense tensors, because a small file can claim to be a large network.
            By default 1000 times the size of the file, and at least 64 MiB: enough for networks that keep one weight in
            a thousand, and for small ones that keep none.

    Raises:
        ValueError: the file is damaged, not such a file, or exceeds ``limit``. Nothing in it is executed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "model.safetensors")
    ...     _ = save_sparse({"weight": torch.tensor([[0.0, 0.5], [0.0, 0.0]])}, file)
    ...     load_sparse(file)
    {'weight': tensor([[0.0000, 0.5000],
            [0.0000, 0.0000]])}
    """
    contents = _read(Path(path), limit)
    if not contents.sparse:
        raise ValueError(f"{path}: is not a file of save_sparse; safetensors.torch.load_file reads its tensors")
    return contents.state


def load_network(path: str | os.PathLike[str], *, limit: int | None = None, work: int | None = None) -> Network:
    """Load a network from a file of :func:`save_sparse` or :func:`save_dense`, in eval mode, without its Python class.

    Tensors that the network's ``forward`` does not use are left out.

    Args:
        path: the file.
        limit: as in :func:`load_sparse`.
        work: as in :class:`Network`; the values are those stored in the file.

    Raises:
        ValueError: the file is damaged, not such a file, or has no architecture. Nothing in it is executed.

    >>> import tempfile
    >>> model = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = save_sparse(model, Path(folder, "model.safetensors"))
    ...     again = load_network(Path(folder, "model.safetensors"))
    >>> torch.equal(again(torch.ones(3)), model(torch.ones(3)))
    True
    """
    state, architecture, _, values = _read(Path(path), limit)
    if architecture is None:
        raise ValueError(f"{path}: has no architecture; load_sparse reads its tensors")
    try:
        network = Network(architecture, work=work, values=values)
        return _filled(network, state, architecture.get("unused", [])).eval()
    except (ValueError, TypeError, RuntimeError) as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from None


def _filled(network: Network, state: Mapping[str, Tensor], left: list[str]) -> Network:
    """The network with the tensors of a state dict, except for those left out; shared ones are shared again."""
    more = set(unused(network, state))
    if more != set(left):
        raise ValueError(f"tensors that the architecture does not name: {', '.join(sorted(more ^ set(left)))}")
    network.load_state_dict({name: tensor for name, tensor in state.items() if name not in more}, assign=True)
    firsts: dict[int, nn.Parameter] = {}
    for name, parameter in list(network.named_parameters()):
        first = firsts.setdefault(id(state[name]), parameter)
        if first is not parameter:
            owner, _, last = name.rpartition(".")
            setattr(network.get_submodule(owner), last, first)
    return network


def _state(model: nn.Module | Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The tensors of a network or a state dict by name; an error names an entry that is not a tensor."""
    if not isinstance(model, nn.Module | Mapping):
        raise TypeError(f"model: wanted a network or a state dict, got a {type(model).__name__}")
    state = model.state_dict() if isinstance(model, nn.Module) else model
    for name, tensor in state.items():
        if not isinstance(name, str):
            raise ValueError(f"{name!r}: wanted a string as the name of a tensor, got a {type(name).__name__}")
        if not isinstance(tensor, Tensor):
            extra = " (extra state of a module)" if name.endswith("_extra_state") else ""
            raise ValueError(f"{name}: has the type {type(tensor).__name__}{extra}, wanted a tensor")
        if isinstance(tensor, nn.UninitializedParameter | nn.UninitializedBuffer) or tensor.is_meta:
            raise ValueError(f"{name}: has no values yet, wanted a network that has run or has been loaded")
        kind = str(tensor.dtype).removeprefix("torch.")
        if kind not in DTYPES or tensor.layout != torch.strided:
            raise ValueError(
                f"{name}: is {tensor.dtype} ({tensor.layout}), wanted a dense tensor of {', '.join(DTYPES)}"
            )
    return state


def _place(name: str, tensor: Tensor) -> Any:
    """A key that is equal for two names of one tensor."""
    if not tensor.numel():
        return name
    return (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())


def _write(target: Path, parts: dict[str, Tensor], metadata: dict[str, str]) -> int:
    """Write a file atomically."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        with replacing(target) as partial:
            save_file(parts, partial, metadata)
        return target.stat().st_size
    except OSError as error:
        raise OSError(error.errno, f"cannot be written: {error.strerror}", str(target)) from None
    except SafetensorError as error:
        raise OSError(f"cannot be written: {' '.join(str(error).split())}: {str(target)!r}") from None


def _packed(tensor: Tensor, values: Values) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The description of a tensor in the file, and the parts that it is stored as."""
    flat = tensor.detach().cpu().contiguous().flatten()
    flat = flat.view(torch.uint8) if flat.dtype == torch.bool else flat
    flat = _narrow(flat, values)
    mask = flat != 0
    coding, positions = encode(mask)
    told: dict[str, Any] = {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
    if positions.nbytes + int(mask.sum()) * flat.itemsize < flat.nbytes:
        return {**told, "coding": coding}, {"values": flat[mask], "positions": positions}
    return told, {"values": flat}


def _narrow(flat: Tensor, values: Values) -> Tensor:
    """The values as float16, if that is exact, or if rounding is wanted and the tensor is in its range."""
    if not flat.is_floating_point() or flat.dtype == torch.bfloat16:
        return flat.clone()  # safetensors refuses tensors that share memory
    narrow = flat.to(torch.float16, copy=True)
    if torch.equal(narrow.to(flat.dtype), flat):
        return narrow
    largest = flat[flat.isfinite()].abs().amax() if flat.isfinite().any() else flat.new_zeros(())
    # Above the smallest normal number, small values are rounded about as well as large ones.
    if values == "exact" or largest < 2**-14 or not torch.equal(narrow.isinf(), flat.isinf()):
        return flat.clone()
    smallest = torch.full_like(narrow, 2**-24).copysign(narrow)
    return torch.where((narrow == 0) & (flat != 0), smallest, narrow)


class _Contents(NamedTuple):
    """The contents of a file.

    Attributes:
        state: its tensors.
        architecture: the architecture of the network; None if the file has none.
        sparse: whether it is a file of :func:`save_sparse`.
        values: the number of stored values.
    """

    state: dict[str, Tensor]
    architecture: Any
    sparse: bool
    values: int


def _read(path: Path, limit: int | None) -> _Contents:
    """Read a file; its header is checked before memory is allocated."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    if path.exists() and not path.is_file():
        raise ValueError(f"{path}: cannot be read: is not a regular file")
    try:
        contents = path.read_bytes()
        stored = load(contents)
        header = _parsed(contents[8 : 8 + int.from_bytes(contents[:8], "little")])
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from None
    except (SafetensorError, ValueError, RecursionError, RuntimeError, KeyError, OverflowError) as error:
        raise ValueError(f"{path}: is damaged or not a safetensors file: {' '.join(str(error).split())}") from None
    metadata = header.get("__metadata__") or {}
    version = metadata.get("inface.sparse")
    if version not in (None, FORMAT):
        raise ValueError(f"{path}: has the format {version!r}, wanted {FORMAT}")
    values = sum(tensor.numel() for name, tensor in stored.items() if not name.startswith("positions:"))
    try:
        architecture = _parsed(metadata["architecture"]) if "architecture" in metadata else None
        if version is None:
            return _Contents(stored, architecture, sparse=False, values=values)
        told = _parsed(metadata["tensors"])
        needed = _needed(told)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path}: is damaged: {' '.join(str(error).split())}") from None
    allowed = max(SMALL, FACTOR * len(contents)) if limit is None else limit
    if needed > allowed:
        why = f"{FACTOR:,} times the file, or 64 MiB" if limit is None else "limit"
        raise ValueError(
            f"{path}: its tensors would take {needed:,} bytes, wanted at most {allowed:,} ({why}); "
            f"limit={needed} allows them"
        )
    try:
        state = {name: _unpacked(each, stored, name) for name, each in told.items() if "same" not in each}
        named = {name: state[each.get("same", name)] for name, each in told.items()}
        return _Contents(named, architecture, sparse=True, values=values)
    except (ValueError, KeyError, TypeError, RuntimeError, OverflowError) as error:
        raise ValueError(f"{path}: is damaged: {' '.join(str(error).split())}") from None


def _parsed(text: str | bytes) -> Any:
    """Parse JSON; a repeated name is an error."""
    return json.loads(text, object_pairs_hook=_object)


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{twice[:200]!r} is there twice")
    return found


def _needed(told: Any) -> int:
    """The bytes of the dense tensors; an error if their description is wrong."""
    if not isinstance(told, dict):
        raise ValueError(f"tensors: wanted an object, got {type(told).__name__}")
    total = 0
    for name, each in told.items():
        if not isinstance(each, dict):
            raise ValueError(f"{name}: wanted an object, got {type(each).__name__}")
        if "same" in each:
            if not isinstance(told.get(each["same"]), dict) or "same" in told[each["same"]]:
                raise ValueError(f"{name}: the same as {each['same']}, wanted a tensor of the file")
            continue
        shape = each["shape"]
        whole = isinstance(shape, list) and all(type(size) is int and 0 <= size < LARGEST for size in shape)
        if not whole or len(shape) > 16:
            raise ValueError(f"{name}: shape {str(shape)[:200]}, wanted at most 16 whole numbers below 2 to the 63")
        if each["dtype"] not in DTYPES:
            raise ValueError(f"{name}: dtype {str(each['dtype'])[:200]}, wanted one of {', '.join(DTYPES)}")
        total += math.prod(max(size, 1) for size in shape) * DTYPES[each["dtype"]].itemsize
    return total


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
