"""MNIST, from its IDX files."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import torch
from numpy.typing import NDArray

from inface.lab.errors import LabError
from inface.lab.experiments.experiment import Data, Split

from .folders import Missing

__all__ = ["FILES", "MAX_SAMPLES", "idx_header", "mnist", "mnist_arrays", "mnist_file", "read_idx", "reading"]

FILES = tuple(f"{part}-{what}-ubyte" for part in ("train", "t10k") for what in ("images-idx3", "labels-idx1"))
MAX_SAMPLES = 1_000_000
SIDE = 28
MEAN, STD = 0.1307, 0.3081


def mnist(folder: Path) -> Data:
    """The handwritten digits of MNIST: 28x28 images; the published files hold 60,000 for training, 10,000 for testing.

    The files are ``mnist/train-images-idx3-ubyte.gz`` and so on in the data folder, with or without ``.gz``. Pixels are
    scaled to [0, 1], then standardised with the mean 0.1307 and the standard deviation 0.3081 of the training pixels.

    Args:
        folder: the data folder.

    >>> mnist(Path("no-such-folder"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    inface.lab.experiments.data.folders.Missing: no-such-folder/mnist/train-images-idx3-ubyte.gz: is missing; ...
    """
    arrays = mnist_arrays(folder)
    train, test = (_split(arrays[images], arrays[labels]) for images, labels in (FILES[:2], FILES[2:]))
    held_out = min(10_000, max(1, len(train) // 6), len(train) - 1)
    return Data(train, test, held_out=held_out, image=(1, SIDE, SIDE))


def mnist_arrays(folder: Path) -> dict[str, NDArray[np.uint8]]:
    """The contents of MNIST's four files by name, checked: images as (N, 28, 28), labels as (N,)."""
    with reading(folder / "mnist"):
        paths = {name: mnist_file(folder, name) for name in FILES}
        for name, path in paths.items():
            if not path.is_file():
                raise Missing(f"{folder / 'mnist' / name}.gz: is missing; inface data fetch mnist downloads it")
    arrays = {name: read_idx(path, (SIDE, SIDE) if "images" in name else ()) for name, path in paths.items()}
    for images, labels in (FILES[:2], FILES[2:]):
        if len(arrays[images]) != len(arrays[labels]):
            raise LabError(
                f"{paths[labels]}: holds {len(arrays[labels]):,} labels, wanted {len(arrays[images]):,}, "
                f"one for each image in {paths[images].name}"
            )
        if (largest := arrays[labels].max()) > 9:
            raise LabError(f"{paths[labels]}: holds the label {largest}, wanted labels from 0 to 9")
    return arrays


def mnist_file(folder: Path, name: str) -> Path:
    """The path of one of MNIST's files: the compressed one, unless only the decompressed one is there."""
    plain = folder / "mnist" / name
    packed = plain.with_name(f"{name}.gz")
    return plain if plain.is_file() and not packed.is_file() else packed


def read_idx(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes; a path that ends in ``.gz`` is decompressed.

    The file is not trusted: at most one byte more than the header promises is decompressed. Anything unexpected raises
    a :class:`LabError` that names the file.

    Args:
        path: the file.
        shape: the shape of a sample; ``()`` for labels.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "labels")
    ...     _ = path.write_bytes(bytes.fromhex("00000801 00000003 070809"))
    ...     read_idx(path, ())
    array([7, 8, 9], dtype=uint8)
    """
    size = len(idx_header((0, *shape)))
    with reading(path), _open(path) as file:
        header = file.read(size)
        if len(header) < size:
            raise LabError(f"{path}: truncated: {len(header)} bytes, wanted a header of {size}")
        magic, count, *dimensions = struct.unpack(f">{size // 4}I", header)
        if magic != 0x800 + 1 + len(shape):
            raise LabError(f"{path}: wanted the magic number {0x800 + 1 + len(shape):#010x}, got {magic:#010x}")
        if tuple(dimensions) != shape:
            raise LabError(f"{path}: wanted samples of {_by(shape)}, got {_by(dimensions)}")
        if not 1 <= count <= MAX_SAMPLES:
            raise LabError(f"{path}: the header promises {count:,} samples, wanted 1 to {MAX_SAMPLES:,}")
        wanted = count * int(np.prod(shape))
        contents = file.read(wanted + 1)
    if len(contents) < wanted:
        raise LabError(f"{path}: truncated: {len(contents):,} bytes after the header, which promises {wanted:,}")
    if len(contents) > wanted:
        raise LabError(f"{path}: more bytes after the header than the {wanted:,} that it promises")
    return np.frombuffer(contents, np.uint8).reshape(count, *shape)


def idx_header(shape: tuple[int, ...]) -> bytes:
    """The header of an IDX file of unsigned bytes with these dimensions.

    >>> idx_header((3,)).hex()
    '0000080100000003'
    """
    return struct.pack(f">{1 + len(shape)}I", 0x800 + len(shape), *shape)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn an error during reading or decompressing into a :class:`LabError` that names the file."""
    try:
        yield
    except EOFError:
        raise LabError(f"{path}: truncated: the compressed data has no end") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise LabError(f"{path}: damaged or not gzip: {error}") from None
    except OSError as error:
        raise LabError(f"{path}: cannot be read: {error.strerror or error}") from None


def _open(path: Path) -> IO[bytes] | gzip.GzipFile:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")


def _by(dimensions: tuple[int, ...] | list[int]) -> str:
    return " by ".join(map(str, dimensions))


def _split(images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> Split:
    inputs = torch.from_numpy(images.astype(np.float32)).unsqueeze(1)
    return Split(inputs.div_(255).sub_(MEAN).div_(STD), torch.from_numpy(labels.astype(np.int64)))
