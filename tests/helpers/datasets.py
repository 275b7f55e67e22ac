"""Small data sets in the published formats of MNIST and CIFAR-10."""

import gzip
import io
import struct
import tarfile
from pathlib import Path

import numpy as np

from inface.lab.experiments.data import batches, idx

IMAGES, LABELS, TEST_IMAGES, TEST_LABELS = idx.FILES
ARCHIVE = Path("cifar10", batches.ARCHIVE)


def idx_bytes(array):
    return struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes()


def mnist_contents(train=12, test=5):
    random = np.random.default_rng(0)
    contents = {}
    for names, count in (((IMAGES, LABELS), train), ((TEST_IMAGES, TEST_LABELS), test)):
        contents[names[0]] = random.integers(0, 256, (count, 28, 28), np.uint8)
        contents[names[1]] = random.integers(0, 10, count, np.uint8)
    return contents


def write_mnist(place, packed=True, **counts):
    """The four files, compressed or not; returns their arrays."""
    contents = mnist_contents(**counts)
    (place / "mnist").mkdir(exist_ok=True)
    for name, array in contents.items():
        write_file(place, name, idx_bytes(array), packed)
    return contents


def write_file(place, name, contents, packed=True):
    path = place / "mnist" / (f"{name}.gz" if packed else name)
    path.write_bytes(gzip.compress(contents, 1) if packed else contents)
    return path


def cifar_contents(records=4):
    random = np.random.default_rng(1)
    contents = {name: random.integers(0, 256, (records, 3073), np.uint8) for name in batches.BATCHES}
    for array in contents.values():
        array[:, 0] %= 10
    return contents


def write_batches(place, contents):
    where = place / "cifar10" / batches.FOLDER
    where.mkdir(parents=True, exist_ok=True)
    for name, array in contents.items():
        (where / name).write_bytes(array.tobytes())
    return where


def tar_of(contents, extra=(), leave_out=(), tar_format=tarfile.USTAR_FORMAT):
    """A tar archive as it is published, with further members in front."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tar_format) as archive:
        directory = tarfile.TarInfo(batches.FOLDER)
        directory.type = tarfile.DIRTYPE
        archive.addfile(directory)
        for member in extra:
            archive.addfile(member, io.BytesIO(bytes(member.size)))
        for name, array in contents.items():
            if name not in leave_out:
                member = tarfile.TarInfo(f"{batches.FOLDER}/{name}")
                member.size = array.nbytes
                archive.addfile(member, io.BytesIO(array.tobytes()))
    return buffer.getvalue()


def write_archive(place, contents):
    path = place / ARCHIVE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(contents)
    return path
