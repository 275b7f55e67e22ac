"""The gain of sparse layers: networks and layers after ``inface.export.sparsify``, against torch and onnxruntime."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from inface.export import SparseLinear, onnx_runner, save_onnx, sparsify

from .contest import Contender, contest

__all__ = ["export_part", "export_table"]

BATCHES = (1, 64)
KEPT = 0.05


def export_part(seconds: float) -> list[dict[str, Any]]:
    """(f) Forward passes on one thread, without gradients; every row is one contest."""
    rows: list[dict[str, Any]] = []
    with torch.no_grad():
        for batch in BATCHES:
            rows.extend(_network(pattern, batch, 2 * seconds) for pattern in ("at random", "as trained"))
            rows.append(_layer(4096, 4096, KEPT, batch, 4 * seconds))
            rows.extend(_layer(512, 784, kept, batch, seconds) for kept in (0.02, 0.05, 0.1, 0.2, 0.3, 0.5))
    return rows


def export_table(rows: list[dict[str, Any]]) -> list[str]:
    """The results as Markdown."""
    lines = [
        "",
        "## Speed of forward passes with sparse layers, relative to dense torch",
        "",
        "One thread, no gradients. The network is 784-512-512-10 after `inface.export.sparsify`, which keeps a layer",
        "dense if that is faster. The single layers are always `SparseLinear`. `as trained` has no weights at the",
        "border of the image, and nodes of very different sizes. onnxruntime runs the dense network. torch's own CSR",
        "matrices (MKL) are for reference.",
        "",
        "| what | weights kept | batch | sparse | torch's CSR | onnxruntime, dense | sparse to onnxruntime |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        gains = row["times as fast as dense torch"]
        other = gains.get("onnxruntime")
        cells = [gains["sparse"], gains.get("torch's CSR"), other, other and gains["sparse"] / other]
        shown = " | ".join("" if cell is None else f"{cell:.2f}" for cell in cells)
        lines.append(f"| {row['what']} | {100 * row['kept']:g} % | {row['batch']} | {shown} |")
    return lines


def _row(what: str, kept: float, batch: int, runs: dict[str, Callable[[], object]], seconds: float) -> dict[str, Any]:
    best = contest({name: Contender(run) for name, run in runs.items()}, seconds=seconds)
    gains = {name: best["dense"] / taken for name, taken in best.items() if name != "dense"}
    print(
        f"{what:>24} {100 * kept:g} % batch {batch}: " + ", ".join(f"{name} {gain:.2f}" for name, gain in gains.items())
    )
    return {
        "what": what,
        "kept": kept,
        "batch": batch,
        "dense seconds": best["dense"],
        "times as fast as dense torch": gains,
    }


def _network(pattern: str, batch: int, seconds: float) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)).eval()
    for k in (0, 2):
        _prune(model[k], KEPT, generator, uneven=pattern == "as trained", image=k == 0)
    fast = sparsify(model, batch=BATCHES)
    x = torch.rand(batch, 784, generator=generator)
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
    runs: dict[str, Callable[[], object]] = {"dense": lambda: model(x), "sparse": lambda: fast(x)}
    other = _onnxruntime(model, x)
    if other is not None:
        runs["onnxruntime"] = other
    return _row(f"network, zeros {pattern}", KEPT, batch, runs, seconds)


def _layer(outputs: int, inputs: int, kept: float, batch: int, seconds: float) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    layer = nn.Linear(inputs, outputs)
    _prune(layer, kept, generator)
    sparse = SparseLinear.from_linear(layer)
    x = torch.rand(batch, inputs, generator=generator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's CSR matrices are in beta
        csr = layer.weight.detach().to_sparse_csr()
        csr = torch.sparse_csr_tensor(csr.crow_indices().int(), csr.col_indices().int(), csr.values(), csr.shape)
    columns, bias = x.T.contiguous(), layer.bias.detach().unsqueeze(1)
    runs = {
        "dense": lambda: layer(x),
        "sparse": lambda: sparse(x),
        "torch's CSR": lambda: torch.addmm(bias, csr, columns),
    }
    return _row(f"layer {outputs}x{inputs}", kept, batch, runs, seconds)


@torch.no_grad()
def _prune(
    layer: nn.Module, kept: float, generator: torch.Generator, *, uneven: bool = False, image: bool = False
) -> None:
    """Keep a part of the weights: uniformly at random, or unevenly over nodes and inputs."""
    weight: Tensor = layer.weight  # type: ignore[assignment]
    size = torch.rand(weight.shape, generator=generator)
    if uneven:
        size *= torch.rand(weight.shape[0], 1, generator=generator) * torch.rand(
            1, weight.shape[1], generator=generator
        )
        if image:
            inner = torch.zeros(28, 28)
            inner[3:25, 3:25] = 1
            size *= inner.flatten()
    edge = size.flatten().topk(round(kept * size.numel())).values[-1]
    weight.mul_(size >= edge)


def _onnxruntime(model: nn.Module, x: Tensor) -> Callable[[], object] | None:
    """The dense network there, on as many threads as torch has; None if it is not installed."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model.onnx")
            save_onnx(model, x, path)
            runner = onnx_runner(path)
    except ImportError:
        return None
    return lambda: runner(x)
