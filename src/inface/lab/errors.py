"""The errors of the laboratory, with the exit codes of the command line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from inface.text import printable

__all__ = ["ArgumentError", "Broken", "Diverged", "LabError", "Occupied", "Paused", "suggestion"]


class LabError(Exception):
    """A file, a download or a run is damaged or missing; the message is one line that names it.

    >>> raise LabError("mnist/train-images-idx3-ubyte.gz: truncated")
    Traceback (most recent call last):
    inface.lab.errors.LabError: mnist/train-images-idx3-ubyte.gz: truncated
    """

    exit_code = 1

    def __str__(self) -> str:
        return printable(super().__str__())  # file names may contain control characters


class ArgumentError(LabError, ValueError):
    """A wrong argument: an unknown name, a value out of range."""

    exit_code = 2


class Occupied(ArgumentError):  # noqa: N818 - what it is called
    """Another process is training in the run folder."""


class Broken(LabError):  # noqa: N818 - what it is
    """A run cannot be continued: its checkpoint is damaged, or its files do not belong together."""


class Paused(LabError):  # noqa: N818 - what it is
    """Raised by a ``watch`` to stop a run that is to be continued later; training saves a checkpoint first."""


class Diverged(LabError, ArithmeticError):  # noqa: N818 - what it is called
    """The loss is no longer finite."""

    exit_code = 3


def suggestion(wrong: str, known: Iterable[str]) -> str:
    """The end of an error message: the known name that is most like the wrong one, if there is one.

    >>> suggestion("minst-mlp", ["mnist-mlp", "cifar10"])
    '; did you mean mnist-mlp?'
    >>> suggestion("resnet", ["mnist-mlp", "cifar10"])
    ''
    """
    close = difflib.get_close_matches(wrong, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
