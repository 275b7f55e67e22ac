"""Training with zeros left out, against dense SGD: iterations, break-even densities, memory, whole trainings.

One thread, and the time of its processor: other programs on the machine do not count.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import inface
from inface.break_even import break_even
from inface.compute import random_product
from inface.convolution import break_even_of
from inface.kernels.lists import Listed
from inface.kernels.matrices import Pattern, pack
from inface.lab import settings_for, train
from inface.lab.runs.training import Record
from inface.sets import L1Ball

from .contest import Contender, contest

__all__ = ["compute_part", "compute_table", "training_part", "training_table"]

Row = dict[str, Any]

DENSITIES = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
WIDTHS = (512, 1024, 2048, 4096)
BATCHES = (16, 64, 250, 512)
STEPS = (1, 3, 7)
CONVOLUTIONS = (
    (256, 1, 14),
    (512, 1, 7),
    (64, 3, 32),
    (256, 3, 8),
    (512, 3, 4),
)  # channels, size of a filter, of images
PERCEPTRON = (784, 512, 512, 10)


def compute_part(seconds: float) -> list[Row]:
    """(g) Iterations (forward, backward, step), products beside torch's CSR, and break-even densities."""
    cases = [(PERCEPTRON, 250, density) for density in DENSITIES]
    for width in WIDTHS:
        cases += [((width,) * 4, 64, density) for density in (DENSITIES if width in (1024, 2048) else (0.05,))]
    cases += [((1024,) * 4, batch, 0.05) for batch in BATCHES if batch != 64]
    rows: list[Row] = [iteration(widths, batch, density, 4 * seconds) for widths, batch, density in cases]
    rows += [products(width, batch, seconds) for width, batch in ((512, 250), (2048, 64))]
    for width in WIDTHS:
        limits = {str(batch): list(break_even(width, width, batch, torch.float32)) for batch in BATCHES}
        rows.append({"kind": "break even", "width": width, "densities": limits})
        print(f"    break even {width}: {limits}")
    rows += [convolution(*case) for case in CONVOLUTIONS]
    rows.append({"kind": "memory", "megabytes": {name: peak_of(name) for name in ("dense SGD", "zeros left out")}})
    print(f"        memory {rows[-1]['megabytes']}")
    return rows


def network(widths: tuple[int, ...]) -> nn.Sequential:
    torch.manual_seed(0)
    made: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        made += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*made[:-1])


def sparse(widths: tuple[int, ...], density: float, in_face_steps: int = 1) -> tuple[nn.Sequential, inface.FrankWolfe]:
    """A network of which so much is in use, and its optimizer; a last layer of ten outputs stays dense."""
    model = network(widths)
    names = [f"{2 * i}.weight" for i, outputs in enumerate(widths[1:]) if outputs != 10]
    with torch.no_grad():
        for name in names:
            weight = model.get_parameter(name)
            weight.mul_(torch.rand(weight.shape) < density)
            weight.div_(weight.abs().sum(1, keepdim=True).clamp(min=1e-9))
    opt = inface.FrankWolfe(
        model,
        {name: L1Ball(1.0) for name in names},
        lr=1e-3,
        in_face="projected",
        in_face_steps=in_face_steps,
        every_gradient=True,
        project=True,
    )
    inface.sparse_compute_(model, opt, mode="sparse")
    return model, opt


def example(widths: tuple[int, ...], batch: int) -> tuple[Tensor, Tensor, Callable[[Tensor, Tensor], Tensor]]:
    inputs = torch.randn(batch, widths[0])
    if widths[-1] == 10:
        return inputs, torch.randint(10, (batch,)), functional.cross_entropy
    return inputs, torch.randn(batch, widths[-1]), functional.mse_loss


def iteration(widths: tuple[int, ...], batch: int, density: float, seconds: float) -> Row:
    """All halves of an iteration against one of SGD, and what the dense gradient of a first half costs alone."""
    inputs, target, loss = example(widths, batch)
    dense = network(widths)
    sgd = torch.optim.SGD(dense.parameters(), lr=1e-3, foreach=True)
    model, opt = sparse(widths, density, in_face_steps=3)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    first = model.get_parameter("0.weight")

    def take(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        loss(net(inputs), target).backward()
        optimizer.step()

    def halves() -> str:
        half = opt.state[first].get("phase", 0) if opt.state else 0
        take(model, opt)
        return ("Frank-Wolfe", "first", "later", "later")[half]

    def restore() -> None:
        """To the density that is measured."""
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(start[name])
        opt._count(opt.param_groups)

    gradients = [
        (torch.randn(batch, p.shape[0]), torch.randn(batch, p.shape[1]), torch.empty_like(p)) for p in _weights(model)
    ]

    def limit() -> None:
        for g, x, out in gradients:
            torch.mm(g.t(), x, out=out.detach())

    best = _in_turns({"SGD": lambda: take(dense, sgd), "": halves, "limit": limit}, restore, seconds)
    sgd_takes = best.pop("SGD")
    ratios = {name.strip(): taken / sgd_takes for name, taken in best.items()}
    row: Row = {
        "kind": "iteration",
        "layers": "-".join(map(str, widths)),
        "batch": batch,
        "density": density,
        "SGD milliseconds": 1e3 * sgd_takes,
        "Frank-Wolfe": ratios["Frank-Wolfe"],
        "projected": ratios["later"],
        "to SGD": {
            str(k): (ratios["Frank-Wolfe"] + ratios["first"] + (k - 1) * ratios["later"]) / (1 + k) for k in STEPS
        },
        "limit": {str(k): ratios["limit"] / (1 + k) for k in STEPS},
    }
    print(
        f"{row['layers']:>20} batch {batch} density {density:g}: {_shown(row['to SGD'])}; limit {_shown(row['limit'])}"
    )
    return row


def _in_turns(runs: dict[str, Callable[[], object]], restore: Callable[[], None], seconds: float) -> dict[str, float]:
    """The least time of each, by the kind of work that it says it did.

    In turns of several iterations: in a training, too, a network finds in the cache what its last iteration left.
    """
    best: dict[str, float] = {}
    end, rounds = time.perf_counter() + seconds, 0
    while rounds < 4 or time.perf_counter() < end:
        restore()
        for name, run in runs.items():
            for number in range(9 if not name else 3):
                begun = time.thread_time()
                kind = run()
                taken = time.thread_time() - begun
                key = f"{name} {kind}" if isinstance(kind, str) else name
                if number:
                    best[key] = min(taken, best.get(key, taken))
        rounds += 1
    return best


def _weights(model: nn.Module) -> list[Tensor]:
    return [p for name, p in model.named_parameters() if name.endswith("weight") and p.shape[0] != 10]


def products(width: int, batch: int, seconds: float) -> Row:
    """A product with a matrix of 5 %, dense, by torch's CSR and by these kernels."""
    torch.manual_seed(0)
    x, weight = torch.randn(batch, width), torch.randn(width, width) * (torch.rand(width, width) < 0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        csr = weight.to_sparse_csr()
    pattern = Pattern(Listed(csr.col_indices().int(), csr.crow_indices().long()), width, width)
    values, turned = csr.values(), x.t().contiguous()
    best = contest(
        {
            "dense": Contender(lambda: x @ weight.t()),
            "torch CSR": Contender(lambda: csr @ turned),
            "kernels": Contender(lambda: pattern.multiply(values, pack(x), batch)),
        },
        seconds=seconds,
        clock=time.thread_time,
    )
    ratios = {name: taken / best["dense"] for name, taken in best.items() if name != "dense"}
    flops = {
        name: 2e-9 * batch * (width**2 if name == "dense" else pattern.count) / taken for name, taken in best.items()
    }
    print(f"      products {width} batch {batch}: {_shown(ratios)}, GFLOP/s {_shown(flops)}")
    return {"kind": "products", "width": width, "batch": batch, "to dense": ratios, "GFLOP/s": flops}


def convolution(channels: int, size: int, places: int) -> Row:
    """The density below which a convolution of 32 images is faster as a product without zeros."""
    layer, x = nn.Conv2d(channels, channels, size, padding=size // 2), torch.randn(32, channels, places, places)
    limit = break_even_of(layer, x, random_product(layer))[0]
    print(f"    break even of {channels} channels, {size}x{size} on {places}x{places}: {limit:.2f}")
    return {"kind": "convolution", "channels": channels, "size": size, "places": places, "density": limit}


def peak_of(name: str) -> float:
    """The most that a process holds while it trains three layers of 2048, in megabytes, beyond what it held before."""
    command = [sys.executable, "-m", "benchmarks.compute", name]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])


def peak(name: str) -> float:
    torch.set_num_threads(1)
    widths = (2048,) * 4
    inputs, target, loss = example(widths, 64)
    sparse((16, 16), 0.5)  # what the first one brings along
    before = _held("VmRSS")
    model: nn.Module
    opt: torch.optim.Optimizer
    if name == "dense SGD":
        model = network(widths)
        opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    else:
        model, opt = sparse(widths, 0.05)
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # forget the peak of making them
    for _ in range(6):
        opt.zero_grad()
        loss(model(inputs), target).backward()
        opt.step()
    return (_held("VmHWM") - before) / 1e6


def _held(field: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {field} in /proc/self/status")


def training_part(epochs: int = 10) -> list[Row]:
    """(h) Whole trainings of MNIST-MLP: seconds of the processor, and accuracy."""
    runs: dict[str, dict[str, Any]] = {
        "dense SGD": {"method": "sgd", "lr": 0.1, "momentum": 0.9, "schedule": "cosine"},
        "gradual pruning": {"method": "gradual", "keep": 0.05, "lr": 0.1, "momentum": 0.9, "schedule": "cosine"},
        "inface, dense": {"density": 0.05, "compute": "dense"},
        "inface, auto": {"density": 0.05, "compute": "auto"},
    }
    rows: list[Row] = []
    for name, given in runs.items():
        marks: list[float] = []

        def watch(record: Record, marks: list[float] = marks) -> None:
            if record["kind"] in ("start", "epoch"):
                marks.append(time.process_time())

        with tempfile.TemporaryDirectory() as folder:
            settings = settings_for("mnist-mlp", epochs=epochs, threads=1, **given)
            run = train(settings, folder, watch=watch, checkpoint_seconds=1e9)
            rows.append(
                {
                    "run": name,
                    "epochs": epochs,
                    "seconds": marks[-1] - marks[0],
                    "accuracy": run.summary["kept"]["100"],
                    "edges": sum(layer["exact_percent"] for layer in run.summary["layers"].values())
                    / len(run.summary["layers"]),
                }
            )
        rows[-1]["to SGD"] = rows[-1]["seconds"] / rows[0]["seconds"]
        print(f"      training {name}: {rows[-1]['seconds']:.1f} s, {rows[-1]['accuracy']} %")
    return rows


def _shown(numbers: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in numbers.items())


def compute_table(rows: list[Row]) -> list[str]:
    """The part of the page on iterations."""
    lines = [
        "",
        "## An iteration with zeros left out, as a ratio to one of dense SGD (one thread)",
        "",
        'Forward, backward and step with `sparse_compute_` (`mode="sparse"`), l1 balls, `in_face="projected"`, against the',
        "same network with `torch.optim.SGD`, in time of the processor. An iteration is a Frank-Wolfe half and 1, 3 or 7",
        "in-face halves; the ratio is that of their mean. The limit is what the dense gradients of Frank-Wolfe halves take alone.",
        "",
        "| layers | batch | density, % | SGD, ms | Frank-Wolfe | in-face | with 1 | limit | with 3 | limit | with 7 | limit |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in (row for row in rows if row["kind"] == "iteration"):
        pairs = " | ".join(f"**{row['to SGD'][str(k)]:.2f}** | {row['limit'][str(k)]:.2f}" for k in STEPS)
        lines.append(
            f"| {row['layers']} | {row['batch']} | {100 * row['density']:g} | {row['SGD milliseconds']:.1f} | "
            f"{row['Frank-Wolfe']:.2f} | {row['projected']:.2f} | {pairs} |"
        )
    lines += [
        "",
        "## Break-even densities: below them leaving out zeros is faster, in percent (one thread)",
        "",
        'Of both products of a square layer, and of the gradient of its weight in the places of a list. `mode="auto"` measures',
        "these for its layers.",
        "",
        "| width | " + " | ".join(f"batch {batch}: products | gradient" for batch in BATCHES) + " |",
        "|---|" + "---|---|" * len(BATCHES),
    ]
    for row in (row for row in rows if row["kind"] == "break even"):
        cells = " | ".join(f"{100 * a:.0f} | {100 * b:.0f}" for a, b in row["densities"].values())
        lines.append(f"| {row['width']} | {cells} |")
    lines += [
        "",
        "## A product with a matrix of which 5 % is in use, as a ratio to the dense product (one thread)",
        "",
        "| width | batch | torch CSR | these kernels | dense, GFLOP/s | these kernels, GFLOP/s |",
        "|---|---|---|---|---|---|",
    ]
    for row in (row for row in rows if row["kind"] == "products"):
        ratios, flops = row["to dense"], row["GFLOP/s"]
        lines.append(
            f"| {row['width']} | {row['batch']} | {ratios['torch CSR']:.2f} | {ratios['kernels']:.3f} | {flops['dense']:.0f} | "
            f"{flops['kernels']:.0f} |"
        )
    lines += [
        "",
        'Convolutions become products of what their filters see (`mode="auto"` leaves them dense above these densities):',
        "",
        "| channels | filter | images (32) | break-even density, % |",
        "|---|---|---|---|",
    ]
    for row in (row for row in rows if row["kind"] == "convolution"):
        side, place = row["size"], row["places"]
        lines.append(f"| {row['channels']} | {side}x{side} | {place}x{place} | {100 * row['density']:.0f} |")
    held = next(row["megabytes"] for row in rows if row["kind"] == "memory")
    lines += ["", "Peak memory of training three layers of 2048x2048 (each of 16.8 MB) at 5 % and batch 64:"]
    lines += [", ".join(f"{name} {value:.0f} MB" for name, value in held.items()) + "."]
    return lines


def training_table(rows: list[Row]) -> list[str]:
    """The part of the page on whole trainings."""
    return [
        "",
        f"## Training MNIST-MLP for {rows[0]['epochs']} epochs to 5 % (one thread)",
        "",
        "`inface train mnist-mlp`, with an evaluation after each epoch; time of the processor.",
        "",
        "| run | seconds | to dense SGD | accuracy, % | edges, % |",
        "|---|---|---|---|---|",
        *(
            f"| {row['run']} | {row['seconds']:.1f} | {row['to SGD']:.2f} | {row['accuracy']:.2f} | {row['edges']:.1f} |"
            for row in rows
        ),
    ]


if __name__ == "__main__":
    print(peak(sys.argv[1]))
