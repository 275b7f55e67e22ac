"""Sparse models out: smaller networks, faster layers, smaller files."""

from typing import TYPE_CHECKING

from inface.lazy import exports

if TYPE_CHECKING:
    from .accounting import cost_report
    from .architecture import Network, describe
    from .compaction import Compaction, LayerChange, Left, compact
    from .files import load_network, load_sparse, save_dense, save_sparse
    from .onnx import onnx_runner, save_onnx, save_program
    from .report import CostReport, LayerReport, Variant
    from .selection import Select
    from .sparse_linear import SparseLinear
    from .sparsifying import LayerChoice, layer_choices, sparsify

__all__ = [
    "Compaction",
    "CostReport",
    "LayerChange",
    "LayerChoice",
    "LayerReport",
    "Left",
    "Network",
    "Select",
    "SparseLinear",
    "Variant",
    "compact",
    "cost_report",
    "describe",
    "layer_choices",
    "load_network",
    "load_sparse",
    "onnx_runner",
    "save_dense",
    "save_onnx",
    "save_program",
    "save_sparse",
    "sparsify",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "Compaction": "compaction",
        "CostReport": "report",
        "LayerChange": "compaction",
        "LayerChoice": "sparsifying",
        "LayerReport": "report",
        "Left": "compaction",
        "Network": "architecture",
        "Select": "selection",
        "SparseLinear": "sparse_linear",
        "Variant": "report",
        "compact": "compaction",
        "cost_report": "accounting",
        "describe": "architecture",
        "layer_choices": "sparsifying",
        "load_network": "files",
        "load_sparse": "files",
        "onnx_runner": "onnx",
        "save_dense": "files",
        "save_onnx": "onnx",
        "save_program": "onnx",
        "save_sparse": "files",
        "sparsify": "sparsifying",
    },
)
