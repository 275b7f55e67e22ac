"""Downloads, from a server on this machine that behaves well, badly, and as asked."""

import contextlib
import gzip
import hashlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from inface.lab import ArgumentError, LabError
from inface.lab.experiments.data import REMOTES, Remote, download, fetch

NAME = "t10k-labels-idx1-ubyte.gz"
CONTENTS = np.random.default_rng(0).bytes(300_000)
HALF = len(CONTENTS) // 2


class Server:
    """Mirrors as the first part of the path, each with its own manners; what was asked for is in ``asked``."""

    def __init__(self):
        self.asked = []
        self.contents = {NAME: CONTENTS}
        self.go_on = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                with contextlib.suppress(ConnectionError):
                    outer.answer(self)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,))
        self.thread.start()

    def answer(self, request):
        _, manner, name = request.path.split("/")
        asked = request.headers["Range"]
        self.asked.append((manner, asked))
        assert request.headers["User-Agent"] == "inface"
        contents = self.contents[name]
        if manner == "missing":
            request.send_error(404)
            return
        if manner == "wrong":
            contents = contents[::-1]
        start = 0
        if asked and manner not in ("plain", "silent"):
            start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1])
            if start >= len(contents):
                request.send_error(416)
                return
            told = 0 if manner == "confused" else start
            request.send_response(206)
            request.send_header("Content-Range", f"bytes {told}-{len(contents) - 1}/{len(contents)}")
        else:
            request.send_response(200)
        if manner != "silent":
            request.send_header("Content-Length", str(10**12 if manner == "endless" else len(contents) - start))
        if manner == "labelled":
            request.send_header("Content-Encoding", "gzip")
        request.end_headers()
        end = HALF if manner in ("dropped", "stalled") else len(contents)
        request.wfile.write(contents[start:end])
        if manner == "stalled":
            self.go_on.wait()
        if manner == "slow":
            time.sleep(0.5)

    def remote(self, *manners, name=NAME):
        url = f"http://127.0.0.1:{self.http.server_port}"
        digest = hashlib.sha256(self.contents[name]).hexdigest()
        return Remote(name, digest, tuple(f"{url}/{manner}/{name}" for manner in manners))

    def stop(self):
        self.go_on.set()
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    running = Server()
    yield running
    running.stop()


def files(folder):
    return sorted(path.name for path in (folder / "mnist").iterdir() if path.name != ".fetch.lock")


def leave_part(folder, contents):
    (folder / "mnist").mkdir()
    (folder / "mnist" / f"{NAME}.part").write_bytes(contents)


def fetched(folder, server, *manners):
    paths = fetch("mnist", folder, sources=[server.remote(*manners)])
    assert paths == [folder / "mnist" / NAME]
    assert paths[0].read_bytes() == CONTENTS
    assert files(folder) == [NAME]


def test_a_file_is_downloaded_whole_with_its_progress_told(server, tmp_path):
    told = []
    paths = fetch("mnist", tmp_path, lambda *what: told.append(what), [server.remote("good", "missing")])
    assert paths[0].read_bytes() == CONTENTS
    assert server.asked == [("good", None)]
    assert told[0] == (NAME, 0, len(CONTENTS))
    assert told[-1] == (NAME, len(CONTENTS), len(CONTENTS))
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    assert os.stat(paths[0]).st_mode & 0o777 == 0o666 & ~current_umask()  # noqa: PTH116 - readable like any other file


def current_umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_files_already_there_are_left_as_they_are_and_nothing_is_asked_for(server, tmp_path):
    (tmp_path / "mnist").mkdir()
    path = tmp_path / "mnist" / NAME.removesuffix(".gz")
    path.write_bytes(b"mine")
    assert fetch("mnist", tmp_path, sources=[server.remote("good")]) == [path]
    packed = tmp_path / "mnist" / NAME
    packed.write_bytes(b"mine too")
    assert fetch("mnist", tmp_path, sources=[server.remote("good")]) == [packed]
    assert packed.read_bytes() == b"mine too"
    assert files(tmp_path) == [path.name, packed.name]
    assert server.asked == []


def test_batches_already_there_save_the_download_of_the_archive(server, tmp_path):
    where = tmp_path / "cifar10" / download.FOLDER
    where.mkdir(parents=True)
    for name in download.BATCHES:
        (where / name).write_bytes(b"mine")
    assert fetch("cifar10", tmp_path) == [where / name for name in download.BATCHES]


def test_only_what_is_missing_is_downloaded(server, tmp_path):
    other = "t10k-images-idx3-ubyte.gz"
    server.contents[other] = gzip.compress(b"images")
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / other).write_bytes(b"mine")
    paths = fetch("mnist", tmp_path, sources=[server.remote("good"), server.remote("good", name=other)])
    assert [path.name for path in paths] == [NAME, other]
    assert paths[1].read_bytes() == b"mine"
    assert len(server.asked) == 1


def test_the_next_mirror_is_asked_where_one_has_not_got_the_file(server, tmp_path):
    fetched(tmp_path, server, "missing", "good")
    assert server.asked == [("missing", None), ("good", None)]


def test_a_dropped_download_is_continued_from_the_next_mirror(server, tmp_path):
    fetched(tmp_path, server, "dropped", "good")
    assert server.asked == [("dropped", None), ("good", f"bytes={HALF}-")]


def test_a_dropped_download_is_continued_by_the_next_call(server, tmp_path):
    with pytest.raises(LabError, match=NAME):
        fetch("mnist", tmp_path, sources=[server.remote("dropped")])
    assert files(tmp_path) == [f"{NAME}.part"]
    told = []
    fetch("mnist", tmp_path, lambda *what: told.append(what), [server.remote("good")])
    assert (tmp_path / "mnist" / NAME).read_bytes() == CONTENTS
    assert server.asked[1:] == [("good", f"bytes={HALF}-")]
    assert told[0] == (NAME, HALF, len(CONTENTS))
    assert told[-1] == (NAME, len(CONTENTS), len(CONTENTS))


@pytest.mark.parametrize("manner", ["plain", "silent"])
def test_a_server_that_ignores_ranges_starts_again(server, tmp_path, manner):
    leave_part(tmp_path, CONTENTS[:1000])
    fetched(tmp_path, server, manner)
    assert server.asked == [(manner, "bytes=1000-")]


def test_a_server_that_continues_somewhere_else_is_asked_for_everything(server, tmp_path):
    leave_part(tmp_path, CONTENTS[:1000])
    fetched(tmp_path, server, "confused")
    assert server.asked == [("confused", "bytes=1000-"), ("confused", None)]


@pytest.mark.parametrize("extra", [0, 10])
def test_a_part_as_long_as_the_file_or_longer_starts_again(server, tmp_path, extra):
    leave_part(tmp_path, bytes(len(CONTENTS) + extra))
    fetched(tmp_path, server, "good")
    assert server.asked[-1] == ("good", None)


def test_a_part_of_something_else_is_thrown_away_and_the_file_downloaded_from_zero(server, tmp_path):
    leave_part(tmp_path, b"something else")
    fetched(tmp_path, server, "good")
    assert server.asked == [("good", "bytes=14-"), ("good", None)]


def test_wrong_contents_are_thrown_away_and_the_next_mirror_is_asked_for_everything(server, tmp_path):
    fetched(tmp_path, server, "wrong", "good")
    assert server.asked == [("wrong", None), ("good", None)]


def test_wrong_contents_from_everywhere_leave_nothing_behind(server, tmp_path):
    with pytest.raises(LabError, match="not the published ones"):
        fetch("mnist", tmp_path, sources=[server.remote("wrong")])
    assert files(tmp_path) == []


def test_a_transfer_labelled_as_compressed_is_not_decompressed(server, tmp_path):
    server.contents[NAME] = gzip.compress(CONTENTS)
    path = fetch("mnist", tmp_path, sources=[server.remote("labelled")])[0]
    assert path.read_bytes() == server.contents[NAME]


def test_an_absurdly_long_file_is_refused_before_it_is_received(server, tmp_path):
    with pytest.raises(LabError, match="1,000,000,000,000 bytes, wanted at most"):
        fetch("mnist", tmp_path, sources=[server.remote("endless")])


def test_a_file_without_a_length_is_not_received_without_end(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "MAX_BYTES", 100_000)
    with pytest.raises(LabError, match="wanted at most 100,000 bytes, got more"):
        fetch("mnist", tmp_path, sources=[server.remote("silent")])


def test_a_server_that_says_nothing_for_too_long_is_left(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "TIMEOUT", (1, 0.2))
    fetched(tmp_path, server, "stalled", "good")
    first, second = server.asked
    assert first == ("stalled", None)
    assert 0 < int(second[1].removeprefix("bytes=").removesuffix("-")) <= HALF


def test_when_every_mirror_fails_one_line_names_the_file_and_each_reason(server, tmp_path):
    remote = server.remote("missing", "dropped", "wrong")
    closed = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    closed.server_close()
    refusing = f"http://127.0.0.1:{closed.server_port}/{NAME}"
    with pytest.raises(LabError) as caught:
        fetch("mnist", tmp_path, sources=[Remote(NAME, remote.sha256, (*remote.urls, refusing))])
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{tmp_path / 'mnist' / NAME}: cannot be downloaded: ")
    reasons = ("HTTP 404", "Connection broken", "its contents are not the published ones", "Connection refused")
    for url, reason in zip((*remote.urls, refusing), reasons, strict=True):
        assert re.search(f"{re.escape(url)}: [^;]*{reason}", message)


def test_a_folder_that_cannot_be_written_is_named(server, tmp_path):
    (tmp_path / "mnist").write_text("a file")
    with pytest.raises(LabError, match="mnist: cannot be written"):
        fetch("mnist", tmp_path, sources=[server.remote("good")])


def test_an_unknown_name_is_refused_with_a_suggestion(tmp_path):
    with pytest.raises(
        ArgumentError, match=r"there is no download cifar; wanted mnist or cifar10; did you mean cifar10\?"
    ):
        fetch("cifar", tmp_path)


def test_every_published_file_has_a_hash_and_several_mirrors():
    remotes = [remote for group in REMOTES.values() for remote in group]
    assert len({remote.name for remote in remotes}) == 5
    for remote in remotes:
        assert re.fullmatch(r"[0-9a-f]{64}", remote.sha256)
        assert len(set(remote.urls)) >= 2
        assert all(url.endswith(f"/{remote.name}") for url in remote.urls)


PROGRAM = """
import sys
from pathlib import Path
from inface.lab.experiments.data import Remote, fetch
folder, name, sha256, url = sys.argv[1:]
print(fetch("mnist", Path(folder), sources=[Remote(name, sha256, (url,))])[0].stat().st_size)
"""


def start(folder, remote):
    arguments = [sys.executable, "-c", PROGRAM, folder, remote.name, remote.sha256, *remote.urls]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


def test_processes_that_fetch_at_once_download_once(server, tmp_path):
    running = [start(tmp_path, server.remote("slow")) for _ in range(2)]
    for process in running:
        assert process.communicate(timeout=300)[0] == f"{len(CONTENTS)}\n"
        assert process.returncode == 0
    assert server.asked == [("slow", None)]
    assert files(tmp_path) == [NAME]


def test_a_killed_download_is_continued_where_it_was(server, tmp_path):
    part = Path(tmp_path, "mnist", f"{NAME}.part")
    with start(tmp_path, server.remote("stalled")) as process:
        deadline = time.monotonic() + 300
        while not (part.exists() and part.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    size = part.stat().st_size
    assert 0 < size <= HALF
    assert not (tmp_path / "mnist" / NAME).exists()
    paths = fetch("mnist", tmp_path, sources=[server.remote("good")])
    assert paths[0].read_bytes() == CONTENTS
    assert server.asked[1:] == [("good", f"bytes={size}-")]
