"""Damaged and hostile files of every format: a reader must give the right result, or one line that names the file."""

from __future__ import annotations

import copy
import gzip
import json
import random
import shutil
import struct
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import inface
from inface import export
from inface.cli.app import run as inface_command
from inface.lab import LabError, Settings, train
from inface.lab.experiments import data
from inface.lab.experiments.data import batches, idx
from inface.lab.sweeps import load_grid
from inface.sets import L1Ball, Simplex

from .processes import ended

__all__ = ["case"]

MEMORY = 3 << 30  # bytes that reading a file of a few kilobytes may take
HOSTILE: list[Any] = [
    *(None, True, "", "x", [], {}, -1, 0, 1, 0.5, 2**31, 2**63, 10**40, -(10**18), 1e308, -1e-320),
    *(float("nan"), float("inf"), "\x1b[2J", "../../etc/passwd", "nan", "9" * 5000, [0] * 1000, [[[[[[]]]]]]),
]
SETTINGS = Settings(
    "digits", method="sfw-if", radius=(2.0, 5.0), lr=0.1, momentum=0.9, epochs=2, batch_size=400, threads=1
)
GRIDS = [
    "lr: [0.1, 0.2]\nradius: [1, [2, 5]]\nmomentum: [0.5]\n",
    "a: &a [1, 1]\nb: &b [*a, *a]\nlr: [*b, *b]\n",
    "smoothness: [1, 4]\nradius 1: [1]\nradius 2:\n  - 2\n  - 5\nschedule: [cosine]\n",
]


def case(seed: int) -> Counter[str]:
    """Damage one file in one or a few ways, and read it."""
    draw = random.Random(seed)  # noqa: S311 - no secret
    name = draw.choice(list(READERS))
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        result = ended(_read, name, seed, Path(folder), _run_folder(), memory=MEMORY)
        said = result.said.replace(folder, "FOLDER")
        lines = [line for line in result.said.splitlines() if line.startswith("inface: ") or "Error" in line]
        assert "Traceback" not in said, f"{name}: a traceback: {said[-1500:]}"
        assert 0 <= result.code <= 3, f"{name}: code {result.code}: {said[-500:]}"
        assert result.code == 0 or len(lines) <= 1, f"{name}: more than one line: {said[-1500:]}"
    return Counter({"files": 1, name: 1, "read" if result.code == 0 else "refused in one line": 1})


# ---------------------------------------------------------------------- damage


def mutated(draw: random.Random, contents: bytes) -> bytes:
    """Bytes with some of them flipped, cut, doubled, moved or replaced."""
    found = bytearray(contents)
    for _ in range(draw.choice([1, 1, 2, 8])):
        at = draw.randrange(max(1, len(found)))
        length = draw.choice([1, 4, 64, max(1, len(found) // 3)])
        manner = draw.choice(["flip", "flip", "cut", "end", "double", "random", "zero", "empty"])
        if manner == "flip" and found:
            found[at] ^= 1 << draw.randrange(8)
        elif manner == "cut":
            del found[at : at + length]
        elif manner == "end":
            del found[at:]
        elif manner == "double":
            found[at:at] = found[at : at + length]
        elif manner == "random":
            found[at : at + length] = draw.randbytes(length)
        elif manner == "zero":
            found[at : at + length] = bytes(length)
        elif draw.random() < 0.1:
            found.clear()
    return bytes(found)


def changed(draw: random.Random, told: Any) -> Any:
    """Plain data with a value replaced, removed, or exchanged with another."""
    told = copy.deepcopy(told)
    for _ in range(draw.choice([1, 1, 2, 5])):
        places = list(_places(told))
        if not places:
            return draw.choice(HOSTILE)
        holder, key = draw.choice(places)
        manner = draw.choice(["replace", "replace", "remove", "exchange"])
        if manner == "replace":
            holder[key] = copy.deepcopy(draw.choice(HOSTILE))
        elif manner == "remove":
            del holder[key]
        else:
            other, place = draw.choice(places)
            holder[key], other[place] = copy.deepcopy(other[place]), copy.deepcopy(holder[key])
    return told


def _places(told: Any) -> Any:
    """The places of all values in nested data: the container and the key."""
    pairs = list(told.items()) if isinstance(told, dict) else list(enumerate(told)) if isinstance(told, list) else []
    for key, value in pairs:
        yield told, key
        yield from _places(value)


def _in_json(draw: random.Random, contents: bytes) -> bytes:
    if draw.random() < 0.5:
        return mutated(draw, contents)
    lines = contents.decode().splitlines() if contents.count(b"\n{") else [contents.decode()]
    at = draw.randrange(len(lines))
    lines[at] = json.dumps(changed(draw, json.loads(lines[at])))
    return ("\n".join(lines) + "\n").encode()


def _in_tensors(draw: random.Random, contents: bytes) -> bytes:
    """Damage the header of a safetensors file, the JSON in its metadata, or any byte."""
    if draw.random() < 0.4:
        return mutated(draw, contents)
    (length,) = struct.unpack("<Q", contents[:8])
    header, rest = json.loads(contents[8 : 8 + length]), contents[8 + length :]
    texts = [key for key, value in header.get("__metadata__", {}).items() if value[:1] in "[{"]
    if texts and draw.random() < 0.7:
        key = draw.choice(texts)
        header["__metadata__"][key] = json.dumps(changed(draw, json.loads(header["__metadata__"][key])))
    else:
        header = changed(draw, header)
    packed = json.dumps(header).encode()
    return struct.pack("<Q", draw.choice([len(packed), len(packed), 2**62])) + packed + rest


# ---------------------------------------------------------------------- readers, each in a new process


def _read(name: str, seed: int, folder: Path, runs: Path) -> int:
    return READERS[name](seed, folder, runs)


def _file_of_a_run(name: str, *commands: str) -> Callable[[int, Path, Path], int]:
    """A reader that damages a file in a run folder and runs a command on the folder."""

    def read(seed: int, folder: Path, runs: Path) -> int:
        draw = random.Random(seed)  # noqa: S311 - no secret
        place = folder / "run"
        shutil.copytree(runs / ("begun" if name == "checkpoint.safetensors" else "finished"), place)
        change = _in_tensors if name.endswith(".safetensors") else _in_json
        (place / name).write_bytes(change(draw, (place / name).read_bytes()))
        words = draw.choice(commands).replace("RUN", str(place)).replace("PAGE", str(folder / "page"))
        return inface_command(words.split())

    return read


def _grid(seed: int, folder: Path, _: Path) -> int:
    draw = random.Random(seed)  # noqa: S311 - no secret
    text = draw.choice(GRIDS).encode()
    file = folder / "grid.yaml"
    if draw.random() < 0.2:
        text = draw.choice(
            [b"lr: " + b"[" * 5000, b"lr: [%s]\n" % b", ".join(b"%d" % n for n in range(1, 3000)), b"&a [*a]"]
        )
    file.write_bytes(mutated(draw, text) if draw.random() < 0.8 else text)
    return _named(lambda: load_grid(file, SETTINGS, 2).points())


def _digits(seed: int, folder: Path, _: Path) -> int:
    draw, numbers = random.Random(seed), np.random.default_rng(seed)  # noqa: S311 - no secret
    (folder / "mnist").mkdir()
    packed = draw.random() < 0.5
    wrong = draw.choice(idx.FILES)
    for name in idx.FILES:
        shape = (12, 28, 28) if "images" in name else (12,)
        header = struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape)
        contents = header + numbers.integers(0, 10, shape, np.uint8).tobytes()
        if name == wrong and (inner := draw.random() < 0.5):
            contents = mutated(draw, contents[:64]) + contents[64:]
        contents = gzip.compress(contents, 1) if packed else contents
        if name == wrong and not inner:
            contents = mutated(draw, contents)
        (folder / "mnist" / (f"{name}.gz" if packed else name)).write_bytes(contents)
    if draw.random() < 0.3:
        return inface_command(["data", "status", "--data", str(folder)])
    return _named(lambda: data.mnist(folder))


def _pictures(seed: int, folder: Path, _: Path) -> int:
    draw, numbers = random.Random(seed), np.random.default_rng(seed)  # noqa: S311 - no secret
    where = folder / "cifar10" / batches.FOLDER
    where.mkdir(parents=True)
    wrong = draw.choice(list(batches.BATCHES))
    for name in batches.BATCHES:
        records = numbers.integers(0, 256, (4, 3073), np.uint8)
        records[:, 0] %= 10
        (where / name).write_bytes(mutated(draw, records.tobytes()) if name == wrong else records.tobytes())
    if draw.random() < 0.3:
        return inface_command(["data", "status", "--data", str(folder)])
    return _named(lambda: data.cifar10(folder))


def _exported(seed: int, folder: Path, runs: Path) -> int:
    draw = random.Random(seed)  # noqa: S311 - no secret
    dense = draw.random() < 0.3
    file = folder / "model.safetensors"
    file.write_bytes(_in_tensors(draw, (runs / ("dense" if dense else "sparse")).read_bytes()))

    def read() -> None:
        if not dense and draw.random() < 0.3:
            export.load_sparse(file)
            return
        network = export.load_network(file)
        try:
            with torch.no_grad():
                network(torch.zeros(2, 1, 8, 8))
        except (RuntimeError, ValueError, IndexError, TypeError):  # a changed architecture may want other inputs
            return

    return _named(read)


def _state(seed: int, _: Path, __: Path) -> int:
    """Load a damaged optimizer state: either an error, or the weights stay in their sets."""
    draw = random.Random(seed)  # noqa: S311 - no secret

    def optimizer() -> inface.FrankWolfe:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
        sets = {"0.weight": L1Ball(1.0), "1.weight": Simplex(torch.tensor([1.0, 2.0]))}
        made = inface.FrankWolfe(model, sets, lr=0.1, in_face="away", momentum=0.5, project=True)
        for _ in range(3):
            for p in model.parameters():
                p.grad = torch.randn(p.shape)
            made.step()
        return made

    state = optimizer().state_dict()
    given = changed(draw, state)
    made = optimizer()

    def load() -> None:
        made.load_state_dict(given)
        for group in made.param_groups:
            for p in group["params"]:
                p.grad = torch.randn(p.shape)
        made.step()
        for group in made.param_groups:
            if group["set"] is not None:
                for p in group["params"]:
                    assert bool(group["set"].contains(p.detach(), tol=1e-4).all()), f"outside of {group['set']!r}"

    return _named(load, KeyError, TypeError, RuntimeError)  # the errors of torch for its own fields


def _named(read: Callable[[], Any], *others: type[Exception]) -> int:
    """Turn an expected error into exit code 1 and one line; any other is a traceback."""
    try:
        read()
    except Exception as error:
        if not isinstance(error, (LabError, ValueError, *others)):
            raise
        text = str(error)
        assert len(text.splitlines()) <= 1 or others, f"an error of several lines: {text}"
        print(f"inface: {' '.join(text.split())[:300]}")
        return 1
    return 0


READERS: dict[str, Callable[[int, Path, Path], int]] = {
    "config.json": _file_of_a_run("config.json", "evaluate RUN", "train --out RUN --resume", "report RUN --out PAGE"),
    "metrics.jsonl": _file_of_a_run("metrics.jsonl", "report RUN --out PAGE", "train --out RUN --resume"),
    "summary.json": _file_of_a_run("summary.json", "report RUN --out PAGE", "train --out RUN --resume"),
    "model.safetensors": _file_of_a_run("model.safetensors", "evaluate RUN", "report RUN --out PAGE"),
    "checkpoint.safetensors": _file_of_a_run("checkpoint.safetensors", "train --out RUN --resume"),
    "grid.yaml": _grid,
    "MNIST (IDX)": _digits,
    "CIFAR-10 (binary)": _pictures,
    "exported network": _exported,
    "optimizer state": _state,
}


@cache
def _run_folder() -> Path:
    """A finished run, an interrupted one, and two exported files; deleted with this process."""
    kept = tempfile.TemporaryDirectory(prefix="torture-runs-")
    _KEEP.append(kept)
    place = Path(kept.name)
    result = ended(_make, place)
    assert result.code == 0, result.said
    return place


def _make(place: Path) -> int:
    def leave(record: dict[str, Any]) -> None:
        if record["kind"] == "epoch":
            raise KeyboardInterrupt

    train(SETTINGS, place / "finished")
    with suppress(KeyboardInterrupt):
        train(SETTINGS, place / "begun", watch=leave, checkpoint_seconds=0)
    layer = nn.Linear(64, 20)
    with torch.no_grad():
        layer.weight.mul_(torch.rand(20, 64) < 0.2)
    model = nn.Sequential(nn.Flatten(), layer, nn.ReLU(), nn.Linear(20, 10))
    export.save_sparse(model, place / "sparse")
    export.save_dense(model, place / "dense")
    return 0


_KEEP: list[Any] = []
