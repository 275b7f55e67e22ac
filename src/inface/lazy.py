"""Names of a package that are imported when they are first asked for.

What the command line does before it trains (help, completion, a wrong argument) need not wait for torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["exports"]


def exports(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__getattr__`` and ``__dir__`` of a package.

    Args:
        package: its ``__name__``.
        homes: from each public name to the module that defines it; a module is its own home.

    >>> getattribute, listed = exports("inface", {"theory": "theory", "RandomIterate": "iterate"})
    >>> getattribute("RandomIterate").__name__, listed()
    ('RandomIterate', ['RandomIterate', 'theory'])
    >>> getattribute("RandomWalk")
    Traceback (most recent call last):
    AttributeError: module 'inface' has no attribute 'RandomWalk'
    """

    def getattribute(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(f"{package}.{homes[name]}")
        return module if homes[name] == name else getattr(module, name)

    return getattribute, lambda: sorted(homes)
