"""The version that is installed. It is declared once, in ``pyproject.toml``.

>>> import inface
>>> inface.__version__.count(".")
2
"""

from importlib.metadata import version

__all__ = ["__version__"]

__version__ = version("inface")
