"""Sparse models out: smaller networks, faster layers, smaller files."""

from typing import TYPE_CHECKING

from inface.lazy import exports

if TYPE_CHECKING:
    from .architecture import Network, describe
    from .files import load_network, load_sparse, save_sparse
    from .onnx import save_onnx, save_program

__all__ = ["Network", "describe", "load_network", "load_sparse", "save_onnx", "save_program", "save_sparse"]

__getattr__, __dir__ = exports(
    __name__,
    {
        "Network": "architecture",
        "describe": "architecture",
        "load_network": "files",
        "load_sparse": "files",
        "save_onnx": "onnx",
        "save_program": "onnx",
        "save_sparse": "files",
    },
)
