"""CIFAR-10, from its binary batches."""

from __future__ import annotations

import gzip
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, cast

import numpy as np
import torch
from numpy.typing import NDArray

from inface.lab.errors import LabError
from inface.lab.experiments.experiment import Data, Split

from .folders import Missing
from .idx import reading

__all__ = ["ARCHIVE", "BATCHES", "FOLDER", "MAX_RECORDS", "batches_there", "cifar10", "cifar10_arrays"]

BATCHES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
FOLDER = "cifar-10-batches-bin"
ARCHIVE = "cifar-10-binary.tar.gz"
MAX_RECORDS = 10_000
IMAGE = (3, 32, 32)
RECORD = 1 + 3 * 32 * 32


def cifar10(folder: Path) -> Data:
    """The photographs of CIFAR-10: 32x32 colour images; the published files hold 50,000 for training, 10,000 for tests.

    The files are ``cifar10/cifar-10-batches-bin/data_batch_1.bin`` and so on in the data folder, or else the published
    archive ``cifar10/cifar-10-binary.tar.gz``, which is read in place. Pixels are scaled to [-1, 1].

    Args:
        folder: the data folder.

    >>> cifar10(Path("no-such-folder"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    inface.lab.experiments.data.folders.Missing: no-such-folder/cifar10/cifar-10-binary.tar.gz: is missing; ...
    """
    arrays = cifar10_arrays(folder)
    train, test = (_split([arrays[name] for name in names]) for names in (BATCHES[:5], BATCHES[5:]))
    return Data(train, test, held_out=max(1, len(train) // 5), image=IMAGE)


def cifar10_arrays(folder: Path) -> dict[str, NDArray[np.uint8]]:
    """The six batches by name, checked: one row of 3,073 bytes a record, the label first."""
    place = folder / "cifar10"
    with reading(place):
        lost = [place / FOLDER / name for name in BATCHES if not (place / FOLDER / name).is_file()]
        if lost and not (place / ARCHIVE).is_file():
            first = place / ARCHIVE if len(lost) == len(BATCHES) else lost[0]
            raise Missing(f"{first}: is missing; inface data fetch cifar10 downloads it")
    if lost:
        where = {name: f"{place / ARCHIVE}: {FOLDER}/{name}" for name in BATCHES}
        arrays = _read_archive(place / ARCHIVE)
    else:
        where = {name: str(place / FOLDER / name) for name in BATCHES}
        arrays = {name: _read_batch(place / FOLDER / name) for name in BATCHES}
    most = max(map(len, arrays.values()))
    for name, records in arrays.items():
        if len(records) < most:
            raise LabError(f"{where[name]}: truncated: {len(records):,} records, wanted {most:,}, as in other batches")
        if (largest := records[:, 0].max()) > 9:
            raise LabError(f"{where[name]}: holds the label {largest}, wanted labels from 0 to 9")
    return arrays


def batches_there(folder: Path) -> bool:
    """Whether all six batches are there as extracted files."""
    return all((folder / "cifar10" / FOLDER / name).is_file() for name in BATCHES)


def _read_batch(path: Path) -> NDArray[np.uint8]:
    with reading(path), path.open("rb") as file:
        contents = file.read(MAX_RECORDS * RECORD + 1)
    return _records(str(path), len(contents), contents)


def _read_archive(path: Path) -> dict[str, NDArray[np.uint8]]:
    """The batches in the archive, read into memory in one pass; nothing is extracted to disk."""
    arrays: dict[str, NDArray[np.uint8]] = {}
    with reading(path), gzip.open(path) as file:
        bounded = _Bounded(path, file)
        try:
            with tarfile.open(fileobj=cast("IO[bytes]", bounded), mode="r|", bufsize=1 << 20) as archive:
                for name, member in _batches(path, archive):
                    if name in arrays:
                        raise LabError(f"{path}: holds {member.name} twice")
                    arrays[name] = _records(f"{path}: {member.name}", member.size, _contents(archive, member))
        except (tarfile.TarError, ValueError, OverflowError, RecursionError, IndexError) as error:
            # Not only TarError: for damaged headers, tarfile also raises the errors of int(), decode() and recursion.
            raise LabError(f"{path}: damaged or not a tar archive: {_line(error)}") from None
        while bounded.read(1 << 20):  # to the end, where the checksum is
            pass
    for name in BATCHES:
        if name not in arrays:
            raise LabError(f"{path}: holds no {FOLDER}/{name}")
    return {name: arrays[name] for name in BATCHES}


def _batches(path: Path, archive: tarfile.TarFile) -> Iterator[tuple[str, tarfile.TarInfo]]:
    for member in archive:
        place = PurePosixPath(member.name)
        if place.is_absolute() or ".." in place.parts:
            raise LabError(f"{path}: holds a file with a path outside the archive: {member.name!r}")
        if place.parent != PurePosixPath(FOLDER) or place.name not in BATCHES:
            continue
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.issparse():
            raise LabError(f"{path}: {place}: is not an ordinary file")
        yield place.name, member


def _contents(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member) if member.size <= MAX_RECORDS * RECORD else None
    return file.read() if file is not None else b""


def _records(where: str, size: int, contents: bytes) -> NDArray[np.uint8]:
    if size > MAX_RECORDS * RECORD:
        raise LabError(f"{where}: too large: wanted at most {MAX_RECORDS:,} records of {RECORD:,} bytes")
    if not size or size % RECORD or len(contents) != size:
        raise LabError(f"{where}: wanted a multiple of {RECORD:,} bytes, one record each, got {len(contents):,} bytes")
    return np.frombuffer(contents, np.uint8).reshape(-1, RECORD)


class _Bounded:
    """The decompressed bytes of an archive, limited to the size of six batches and 1 MB of other files."""

    def __init__(self, path: Path, file: gzip.GzipFile) -> None:
        self.path = path
        self.file = file
        self.left = len(BATCHES) * MAX_RECORDS * RECORD + (1 << 20)

    def read(self, size: int) -> bytes:
        chunk = self.file.read(min(size, self.left + 1))
        self.left -= len(chunk)
        if self.left < 0:
            raise LabError(f"{self.path}: too large when decompressed: wanted six batches of {MAX_RECORDS:,} records")
        return chunk


def _split(batches: list[NDArray[np.uint8]]) -> Split:
    size = len(batches[0])
    pixels = np.empty((len(batches) * size, RECORD - 1), np.float32)
    for number, records in enumerate(batches):
        np.divide(records[:, 1:], np.float32(255), out=pixels[number * size : (number + 1) * size])
    inputs = torch.from_numpy(pixels).view(-1, *IMAGE).sub_(0.5).div_(0.5)
    return Split(inputs, torch.from_numpy(np.concatenate([records[:, 0] for records in batches]).astype(np.int64)))


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
