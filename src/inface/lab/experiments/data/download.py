"""Download the published files: from several mirrors, checked, and resumed after an interruption."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inface.lab.errors import ArgumentError, LabError, suggestion
from inface.lab.files import writing

from .batches import ARCHIVE, BATCHES, FOLDER, batches_there
from .idx import mnist_file

if TYPE_CHECKING:
    import requests

__all__ = ["REMOTES", "Progress", "Remote", "fetch"]

Progress = Callable[[str, int, int | None], None]

TIMEOUT = (10, 60)  # seconds: to connect, and between two pieces
MAX_BYTES = 1 << 30
PIECE = 1 << 16


@dataclass(frozen=True)
class Remote:
    """A published file.

    Attributes:
        name: the name of the file.
        sha256: the SHA-256 of its contents.
        urls: its mirrors, in the order in which they are tried.
    """

    name: str
    sha256: str
    urls: tuple[str, ...]


def _mnist(name: str, sha256: str) -> Remote:
    mirrors = (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "http://yann.lecun.com/exdb/mnist/",
    )
    return Remote(name, sha256, tuple(mirror + name for mirror in mirrors))


REMOTES: dict[str, tuple[Remote, ...]] = {
    "mnist": (
        _mnist("train-images-idx3-ubyte.gz", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        _mnist("train-labels-idx1-ubyte.gz", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        _mnist("t10k-images-idx3-ubyte.gz", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        _mnist("t10k-labels-idx1-ubyte.gz", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    ),
    "cifar10": (
        Remote(
            ARCHIVE,
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            (
                f"https://www.cs.toronto.edu/~kriz/{ARCHIVE}",
                f"https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/{ARCHIVE}",
            ),
        ),
    ),
}


def fetch(
    name: str, folder: Path, progress: Progress | None = None, sources: Sequence[Remote] | None = None
) -> list[Path]:
    """Download the missing files of a data set; return the paths of all its files.

    An incomplete file is called ``.part``. It is resumed later, also by another call and from another mirror, and
    renamed once it is complete and its SHA-256 is right. Existing files are left alone. Several processes may fetch at
    once: one downloads, the others wait.

    Args:
        name: ``"mnist"`` or ``"cifar10"``.
        folder: the data folder.
        progress: called with the name of a file, its bytes so far, and its size or None.
        sources: the files and their mirrors, instead of the published ones.

    >>> fetch("minst", Path("data"))
    Traceback (most recent call last):
    inface.lab.errors.ArgumentError: data: there is no download minst; wanted mnist or cifar10; did you mean mnist?
    """
    from filelock import FileLock

    if name not in REMOTES:
        raise ArgumentError(
            f"data: there is no download {name}; wanted {' or '.join(REMOTES)}{suggestion(name, REMOTES)}"
        )
    place = folder / name
    remotes = REMOTES[name] if sources is None else sources
    with writing(place):
        there = [_there(folder, name, remote) for remote in remotes]
        if all(there):  # also in a read-only folder
            return [path for paths in there for path in paths]
        place.mkdir(parents=True, exist_ok=True)
        with FileLock(place / ".fetch.lock"):
            return [
                path
                for remote in remotes
                for path in _there(folder, name, remote) or [_download(remote, place / remote.name, progress)]
            ]


def _there(folder: Path, name: str, remote: Remote) -> list[Path]:
    """The existing files with the contents of a published file."""
    if name == "cifar10" and batches_there(folder):
        return [folder / name / FOLDER / batch for batch in BATCHES]
    path = mnist_file(folder, remote.name.removesuffix(".gz")) if name == "mnist" else folder / name / remote.name
    return [path] if path.is_file() else []


def _download(remote: Remote, target: Path, progress: Progress | None) -> Path:
    import pooch  # type: ignore[import-untyped]
    from requests import RequestException
    from urllib3.exceptions import HTTPError

    pooch.get_logger().setLevel("ERROR")  # the caller shows the progress
    reasons = []
    for url in remote.urls:
        again = True
        while again:
            attempt = _Attempt(target, progress)
            try:
                pooch.retrieve(url, remote.sha256, fname=target.name, path=target.parent, downloader=attempt)
            except (RequestException, HTTPError, ValueError) as error:
                reason = "its contents are not the published ones" if attempt.whole else _reason(error)
            else:
                return target
            # The old .part may have been the wrong one. It is deleted, so try the same mirror again.
            again = attempt.whole and attempt.resumed
        reasons.append(f"{url}: {reason}")
    raise LabError(f"{target}: cannot be downloaded: {'; '.join(reasons)}")


class _Attempt:
    """A downloader for pooch, which checks the file afterwards. It resumes a ``.part`` if the server can.

    Attributes:
        resumed: whether a ``.part`` was resumed.
        whole: whether the server sent the whole file.
    """

    def __init__(self, target: Path, progress: Progress | None) -> None:
        self.name = target.name
        self.part = target.with_name(f"{target.name}.part")
        self.progress = progress
        self.resumed = False
        self.whole = False

    def __call__(self, url: str, output_file: str, _pooch: Any) -> None:
        import requests

        start = self.part.stat().st_size if self.part.exists() else 0
        with requests.Session() as session:
            response = _get(session, url, start)
            if start and (response.status_code == 416 or _first_byte(response) not in (None, start)):
                response.close()  # the server does not continue where the .part ends
                response = _get(session, url, 0)
            with response:
                response.raise_for_status()
                if response.status_code not in (200, 206):
                    raise requests.RequestException(f"HTTP {response.status_code}")
                self.resumed = start > 0 and _first_byte(response) == start
                self._receive(response, start if self.resumed else 0)
        self.part.replace(output_file)
        self.whole = True

    def _receive(self, response: requests.Response, done: int) -> None:
        import requests

        length = response.headers.get("Content-Length", "")
        total = done + int(length) if length.isdecimal() else None
        if (total or 0) > MAX_BYTES:
            raise requests.RequestException(f"{total:,} bytes, wanted at most {MAX_BYTES:,}")
        with self.part.open("ab" if done else "wb") as file:
            self._report(done, total)
            # Raw bytes: a server may label a .gz file as a compressed transfer, which must not be decompressed.
            for piece in response.raw.stream(PIECE, decode_content=False):
                file.write(piece)
                done += len(piece)
                if done > MAX_BYTES:
                    raise requests.RequestException(f"wanted at most {MAX_BYTES:,} bytes, got more")
                self._report(done, total)
            file.flush()
            os.fsync(file.fileno())
        if total is not None and done != total:
            raise requests.ConnectionError(f"ended after {done:,} of {total:,} bytes")

    def _report(self, done: int, total: int | None) -> None:
        if self.progress is not None:
            self.progress(self.name, done, total)


def _get(session: requests.Session, url: str, start: int) -> requests.Response:
    headers = {"User-Agent": "inface", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    return session.get(url, headers=headers, stream=True, timeout=TIMEOUT)


def _first_byte(response: requests.Response) -> int | None:
    """The first byte of a partial response; None if the response is not partial."""
    if response.status_code != 206:
        return None
    found = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return int(found[1]) if found else -1


def _reason(error: Exception) -> str:
    import requests
    from urllib3.exceptions import TimeoutError as ReadTimeout

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"HTTP {error.response.status_code}"
    if isinstance(error, (requests.Timeout, ReadTimeout)):
        return "timed out"
    text = re.sub(r"\s+", " ", str(error))
    # The message of requests ends with the cause, in parentheses.
    found = re.search(r"(\[Errno -?\d+\] [^'\")]+|Connection broken|ended after [^)]+)", text)
    return found[1] if found else text[:100] or type(error).__name__
