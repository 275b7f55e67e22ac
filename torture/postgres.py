"""A temporary PostgreSQL server on loopback."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["missing", "server"]

DEBIAN = Path("/usr/lib/postgresql")


def missing() -> str | None:
    """What the server needs and is missing; None if it can be started."""
    if _programs() is None:
        return "PostgreSQL is not installed (Debian: apt-get install postgresql)"
    try:
        import psycopg  # noqa: F401, PLC0415
    except ImportError:
        return 'psycopg is not installed (pip install "inface[torture]")'
    return None


@contextmanager
def server() -> Iterator[str]:
    """The URL of an empty database."""
    programs = _programs()
    if programs is None:
        raise FileNotFoundError("initdb")
    user = "postgres" if os.geteuid() == 0 else None  # the server refuses to run as root
    with tempfile.TemporaryDirectory(prefix="torture-postgres-") as folder:
        if user:
            shutil.chown(folder, user)
        place = Path(folder, "data")
        common = {"cwd": folder, "user": user, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        made = [
            programs / "initdb",
            "-D",
            place,
            "-U",
            "torture",
            "-A",
            "trust",
            "--no-sync",
            "-E",
            "UTF8",
            "--locale",
            "C",
        ]
        subprocess.run(made, check=True, **common)  # type: ignore[call-overload]
        port = _free_port()
        listening = ["-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={folder}", "-c", "fsync=off"]
        server = [programs / "postgres", "-D", place, "-p", str(port), *listening]
        running = subprocess.Popen(server, **common)  # type: ignore[call-overload]
        try:
            while not _answers(port):
                if running.poll() is not None:
                    raise RuntimeError(f"postgres ended with code {running.returncode}")
                time.sleep(0.05)
            yield f"postgresql+psycopg://torture@127.0.0.1:{port}/postgres"
        finally:
            running.send_signal(signal.SIGINT)  # SIGTERM would wait until every client has left
            running.wait()


def _programs() -> Path | None:
    """The folder of the server's programs, of the newest version."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else sorted(DEBIAN.glob("*/bin"), key=lambda path: float(path.parent.name))
    return next((folder for folder in reversed(folders) if (folder / "postgres").is_file()), None)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(port: int) -> bool:
    import psycopg  # noqa: PLC0415

    try:
        psycopg.connect(host="127.0.0.1", port=port, user="torture", dbname="postgres", connect_timeout=5).close()
    except psycopg.OperationalError:
        return False
    return True
