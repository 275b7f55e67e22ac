"""Where data files lie."""

from __future__ import annotations

import os
from pathlib import Path

from inface.lab.errors import LabError

__all__ = ["Missing", "folder"]


class Missing(LabError):  # noqa: N818 - what it is
    """A data file is not there; the message says which, and how to get it."""


def folder(given: str | Path | None = None) -> Path:
    """The folder with a folder for each data set: ``given``, else ``$INFACE_DATA``, else the user's cache folder ``inface``.

    >>> folder("my-data").name
    'my-data'
    """
    from platformdirs import user_cache_path

    chosen = given or os.environ.get("INFACE_DATA")
    return Path(chosen).expanduser() if chosen else user_cache_path("inface", appauthor=False)
