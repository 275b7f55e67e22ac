"""What can go wrong in the laboratory, and the exit code of the command line that it leads to."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from inface.text import printable

__all__ = ["ArgumentError", "Broken", "Diverged", "LabError", "Occupied", "suggestion"]


class LabError(Exception):
    """A file, a download or a run is not as it should be; the message is one line that names it.

    >>> raise LabError("mnist/train-images-idx3-ubyte.gz: truncated")
    Traceback (most recent call last):
    inface.lab.errors.LabError: mnist/train-images-idx3-ubyte.gz: truncated
    """

    exit_code = 1

    def __str__(self) -> str:
        return printable(super().__str__())  # names of files may hold anything


class ArgumentError(LabError, ValueError):
    """What was asked for cannot be: an unknown name, a value out of range."""

    exit_code = 2


class Occupied(ArgumentError):  # noqa: N818 - what it is called
    """The folder of a run in which another process is training."""


class Broken(LabError):  # noqa: N818 - what it is
    """A run that cannot be continued: its checkpoint is damaged, or its files do not belong together."""


class Diverged(LabError, ArithmeticError):  # noqa: N818 - what it is called
    """The loss is not finite any more."""

    exit_code = 3


def suggestion(wrong: str, known: Iterable[str]) -> str:
    """A question to end a message with, if something known looks like what was written.

    >>> suggestion("minst-mlp", ["mnist-mlp", "cifar10"])
    '; did you mean mnist-mlp?'
    >>> suggestion("resnet", ["mnist-mlp", "cifar10"])
    ''
    """
    close = difflib.get_close_matches(wrong, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
