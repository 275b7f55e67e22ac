"""Export sparse models: smaller networks, faster layers, smaller files."""

from typing import TYPE_CHECKING

from inface.lazy import exports

if TYPE_CHECKING:
    from .compaction.compact import Compaction, LayerChange, Left, compact
    from .compaction.select import Select
    from .cost.account import cost_report
    from .cost.report import CostReport, LayerReport, Variant
    from .files.architecture import Network, describe
    from .files.onnx import onnx_runner, save_onnx, save_program
    from .files.sparse import load_network, load_sparse, save_dense, save_sparse
    from .layers.sparse_linear import SparseLinear
    from .layers.sparsify import LayerChoice, layer_choices, sparsify

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
        "Compaction": "compaction.compact",
        "CostReport": "cost.report",
        "LayerChange": "compaction.compact",
        "LayerChoice": "layers.sparsify",
        "LayerReport": "cost.report",
        "Left": "compaction.compact",
        "Network": "files.architecture",
        "Select": "compaction.select",
        "SparseLinear": "layers.sparse_linear",
        "Variant": "cost.report",
        "compact": "compaction.compact",
        "cost_report": "cost.account",
        "describe": "files.architecture",
        "layer_choices": "layers.sparsify",
        "load_network": "files.sparse",
        "load_sparse": "files.sparse",
        "onnx_runner": "files.onnx",
        "save_dense": "files.sparse",
        "save_onnx": "files.onnx",
        "save_program": "files.onnx",
        "save_sparse": "files.sparse",
        "sparsify": "layers.sparsify",
    },
)
