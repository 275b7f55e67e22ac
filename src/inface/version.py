"""The installed version, which is declared once, in ``pyproject.toml``; and versions of other packages.

>>> import inface
>>> inface.__version__.count(".")
2
"""

import platform
from importlib.metadata import version

__all__ = ["__version__", "versions"]

__version__ = version("inface")


def versions(*names: str) -> dict[str, str]:
    """The installed versions of packages, for files that record how they were made; ``"python"`` is Python's own.

    >>> list(versions("inface", "torch", "python"))
    ['inface', 'torch', 'python']
    """
    return {name: platform.python_version() if name == "python" else version(name) for name in names}
