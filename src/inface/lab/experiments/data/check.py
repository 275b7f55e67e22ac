"""Check which data sets are present, and whether their files are the published ones."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from inface.lab.errors import LabError

from .batches import BATCHES, cifar10_arrays
from .folders import Missing
from .idx import idx_header, mnist_arrays

__all__ = ["PUBLISHED", "DatasetStatus", "State", "status"]

State = Literal["bundled", "generated", "ready", "missing", "damaged"]

PUBLISHED = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}


@dataclass(frozen=True)
class DatasetStatus:
    """The status of a data set.

    Attributes:
        name: the name of the data set.
        path: its folder; None if it needs none.
        state: ``"bundled"`` or ``"generated"`` if it needs no files; else ``"ready"``, ``"missing"`` or ``"damaged"``.
        detail: the number of samples and whether they are the published ones, or what is wrong.
    """

    name: str
    path: Path | None
    state: State
    detail: str


def status(folder: Path) -> list[DatasetStatus]:
    """The status of every data set; all files are read and checked.

    >>> for each in status(Path("no-such-folder")):
    ...     print(each.name, each.state)
    digits bundled
    synthetic generated
    mnist missing
    cifar10 missing
    """
    return [
        DatasetStatus("digits", None, "bundled", "1,437 train, 360 test; part of scikit-learn"),
        DatasetStatus("synthetic", None, "generated", "100,000 train, 20,000 validation, 100,000 test"),
        _checked("mnist", folder),
        _checked("cifar10", folder),
    ]


def _checked(name: Literal["mnist", "cifar10"], folder: Path) -> DatasetStatus:
    path = folder / name
    try:
        if name == "mnist":
            arrays = mnist_arrays(folder)
            train, test = (len(arrays[part]) for part in ("train-labels-idx1-ubyte", "t10k-labels-idx1-ubyte"))
        else:
            arrays = cifar10_arrays(folder)
            train, test = sum(len(arrays[batch]) for batch in BATCHES[:-1]), len(arrays[BATCHES[-1]])
    except Missing as error:
        return DatasetStatus(name, path, "missing", str(error))
    except LabError as error:
        return DatasetStatus(name, path, "damaged", str(error))
    same = all(_digest(file, array) == PUBLISHED[file] for file, array in arrays.items())
    contents = "the published contents" if same else "not the published contents"
    return DatasetStatus(name, path, "ready", f"{train:,} train, {test:,} test; {contents}")


def _digest(file: str, array: NDArray[np.uint8]) -> str:
    """The SHA-256 of the decompressed file, from its array; the header of an IDX file follows from the shape."""
    digest = hashlib.sha256(b"" if file in BATCHES else idx_header(array.shape))
    digest.update(array.data)
    return digest.hexdigest()
