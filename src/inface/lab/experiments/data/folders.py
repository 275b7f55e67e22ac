"""The folder of the data files."""

from __future__ import annotations

import os
from pathlib import Path

from inface.lab.errors import LabError

__all__ = ["Missing", "folder"]


class Missing(LabError):  # noqa: N818 - what it is
    """A data file is missing; the message names it and says how to get it."""


def folder(given: str | Path | None = None) -> Path:
    """The data folder: ``given``, else ``$INFACE_DATA``, else ``inface`` in the user's cache folder.

    >>> folder("my-data").name
    'my-data'
    """
    from platformdirs import user_cache_path

    chosen = given or os.environ.get("INFACE_DATA")
    return Path(chosen).expanduser() if chosen else user_cache_path("inface", appauthor=False)
