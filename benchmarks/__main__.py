"""What a Frank-Wolfe step costs, and what a sparse layer gains.

``python -m benchmarks`` measures, prints, and writes docs/benchmarks.{json,md}.
Every figure is a ratio of two times of one run, so that it says something on another machine too.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter

import inface
from inface.lab.experiments import Activation
from inface.lab.runs.settings import Method
from inface.sets import GroupL1Ball, InFace, L1Ball, LInfBall, Set, Simplex

from .compute import compute_part, compute_table, training_part, training_table
from .contest import Contender, contest
from .export import export_part, export_table
from .laboratory import epoch_ratio
from .stacking import gain

SHAPES = {
    "512x784": (1, 512, 784),
    "512x512": (1, 512, 512),
    "4096x4096": (1, 4096, 4096),
}
SMALL = {"1000 of 64x64": (1000, 64, 64), "2000 of 16x16": (2000, 16, 16)}
SETS: dict[str, Set] = {
    "L1Ball": L1Ball(1.0),
    "Simplex": Simplex(1.0),
    "LInfBall": LInfBall(0.05),
    "GroupL1Ball": GroupL1Ball(1.0),
}
STRATEGIES: tuple[InFace, ...] = ("away", "frank-wolfe", "pairwise")
HALVES = ("Frank-Wolfe", *STRATEGIES)
DENSITY = 0.05  # of what projected steps move
LR = 0.1  # with the gradients below, a step changes nearly every entry of its layer

Row = dict[str, Any]


def layers(shape: tuple[int, int, int], set_: Set | None = None) -> list[Parameter]:
    """Parameters on the boundary of their sets, each with a gradient."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for _ in range(shape[0]):
        x = torch.rand(shape[1:], generator=generator)
        # A box has its entries well inside, where they move; other sets are met on their boundary.
        fill = 0.5 if isinstance(set_, LInfBall) else 1.0
        p = Parameter(x if set_ is None else x * (fill * set_.radius / set_.norm(x)).float().unsqueeze(1))
        p.grad = torch.randn(shape[1:], generator=generator)
        made.append(p)
    return made


def frank_wolfe(shape: tuple[int, int, int], set_: Set, **options: Any) -> Contender:
    """A step, which says which half it was, always from the same point: on the boundary, all entries in use."""
    params = layers(shape, set_)
    start = [p.detach().clone() for p in params]
    opt = inface.FrankWolfe([{"params": params, "set": set_}], lr=LR, **options)

    def restore() -> None:
        with torch.no_grad():
            torch._foreach_copy_([p.detach() for p in params], start)

    def step() -> str:
        half = opt.state[params[0]].get("phase", 0)
        opt.step()
        return str(options["in_face"]) if half else "Frank-Wolfe"

    step()
    changed = (params[0].detach() != start[0]).float().mean()
    if changed < 0.9:
        raise RuntimeError(
            f"{set_!r}: a step changed only {100 * changed:.0f} % of the entries, which is no test of its cost"
        )
    return Contender(step, restore)


def sgd(shape: tuple[int, int, int], momentum: float) -> Contender:
    return Contender(torch.optim.SGD(layers(shape), lr=LR, momentum=momentum, foreach=True).step)


def plain(shape: tuple[int, int, int], operation: Callable[[Tensor, Tensor], object]) -> Contender:
    pairs = [(p.detach(), p.grad) for p in layers(shape)]

    def run() -> None:
        for x, g in pairs:
            operation(x, g)  # type: ignore[arg-type]

    return Contender(run)


def steps(seconds: float) -> list[Row]:
    """(a) One step, against SGD's, ``x.add_(g)`` and a copy."""
    rows: list[Row] = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for name, shape in SHAPES.items():
            for momentum in (0.0, 0.9):
                for label, set_ in SETS.items():
                    contenders: dict[str, Contender] = {
                        "SGD": sgd(shape, momentum),
                        "add_": plain(shape, lambda x, g: x.add_(g, alpha=-LR)),
                        "copy_": plain(shape, lambda x, g: x.copy_(g)),
                        **{s: frank_wolfe(shape, set_, in_face=s, momentum=momentum) for s in STRATEGIES},
                    }
                    best = contest(contenders, seconds=seconds)
                    halves = {half: best[f"{half if half in STRATEGIES else 'away'} {half}"] for half in HALVES}
                    to_sgd = {half: taken / best["SGD"] for half, taken in halves.items()}
                    if label == "L1Ball":  # by themselves: their temporaries push everybody else out of the cache
                        slow = contest(
                            {
                                "SGD": sgd(shape, momentum),
                                "torch operations": frank_wolfe(
                                    shape, set_, in_face="away", momentum=momentum, fused=False
                                ),
                            },
                            seconds=seconds,
                        )
                        to_sgd |= {key: taken / slow["SGD"] for key, taken in slow.items() if key != "SGD"}
                    rows.append(
                        {
                            "layers": name,
                            "set": label,
                            "threads": threads,
                            "momentum": momentum,
                            "SGD microseconds": 1e6 * best["SGD"],
                            "to SGD": to_sgd,
                            "to add_": {half: taken / best["add_"] for half, taken in halves.items()},
                            "to copy_": {half: taken / best["copy_"] for half, taken in halves.items()},
                        }
                    )
                    print(
                        f"{name:>14} {label:<11} {threads} thread(s) momentum {momentum}: {_ratios(rows[-1]['to SGD'])}"
                    )
    torch.set_num_threads(1)
    return rows


def projected_steps(seconds: float) -> list[Row]:
    """(a1) One projected in-face step of a layer of which 5 % is in use, against SGD's, one thread."""
    rows: list[Row] = []
    for name in ("512x784", "4096x4096"):
        for momentum in (0.0, 0.9):
            for label, set_ in SETS.items():
                (p,) = layers(SHAPES[name], None)
                shape = p.shape[:1] if isinstance(set_, GroupL1Ball) else p.shape
                used = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < DENSITY
                x = p.detach() * used.reshape(*shape, *[1] * (p.ndim - len(shape)))
                fill = 0.5 if isinstance(set_, LInfBall) else 1.0
                x *= (fill * set_.radius / set_.norm(x)).float().unsqueeze(1)
                opt = _in_face_only(Parameter(x.clone()), p.grad, set_, momentum)
                both = {"SGD": sgd(SHAPES[name], momentum), "projected": opt}
                best = contest(both, seconds=seconds, clock=time.thread_time)
                rows.append(
                    {
                        "layers": name,
                        "set": label,
                        "momentum": momentum,
                        "SGD microseconds": 1e6 * best["SGD"],
                        "to SGD": {"projected": best["projected"] / best["SGD"]},
                    }
                )
                print(f"{name:>14} {label:<11} momentum {momentum}: {_ratios(rows[-1]['to SGD'])}")
    return rows


def _in_face_only(p: Parameter, g: Tensor | None, set_: Set, momentum: float) -> Contender:
    """Projected steps after a first half that does nothing, always from the same point."""
    start = p.detach().clone()
    opt = inface.FrankWolfe(
        [{"params": [p], "set": set_}], lr=1e-3, in_face="projected", in_face_steps=2**62, momentum=momentum
    )
    p.grad = torch.zeros_like(p)
    opt.step()
    p.grad = g

    def restore() -> None:
        p.detach().copy_(start)

    return Contender(opt.step, restore)


def small_layers(seconds: float) -> list[Row]:
    """(a2) One step on many small layers of one group, against SGD's; and reading ``opt.gap``, in milliseconds."""
    rows: list[Row] = []
    for name, shape in SMALL.items():
        for momentum in (0.0, 0.9):
            for label, set_ in SETS.items():
                params = layers(shape, set_)
                opt = inface.FrankWolfe([{"params": params, "set": set_}], lr=LR, in_face="away", momentum=momentum)
                opt.step()
                begun = time.process_time()
                float(opt.gap)
                first = time.process_time() - begun
                best = contest(
                    {
                        "SGD": sgd(shape, momentum),
                        "FW": frank_wolfe(shape, set_, in_face="away", momentum=momentum),
                        "gap": Contender(lambda opt=opt: float(opt.gap)),  # type: ignore[misc]
                    },
                    seconds=2 * seconds,
                )
                rows.append(
                    {
                        "layers": name,
                        "set": label,
                        "momentum": momentum,
                        "SGD milliseconds": 1e3 * best["SGD"],
                        "to SGD": {half: best[f"FW {half}"] / best["SGD"] for half in ("Frank-Wolfe", "away")},
                        "gap milliseconds": {
                            "first": 1e3 * first,
                            "then": 1e3 * min(v for k, v in best.items() if "gap" in k),
                        },
                    }
                )
                print(f"{name:>14} {label:<11} momentum {momentum}: {_ratios(rows[-1]['to SGD'])}")
    return rows


def epoch(seconds: float) -> list[Row]:
    """(b) A quarter of an epoch of the MNIST perceptron's shape on random data, against the same with SGD."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(15_000, 784, generator=generator)
    target = torch.randint(10, (15_000,), generator=generator)

    def training(make: Callable[[nn.Module], torch.optim.Optimizer]) -> Contender:
        model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
        opt = make(model)

        def run() -> None:
            for start in range(0, len(inputs), 250):
                opt.zero_grad()
                nn.functional.cross_entropy(model(inputs[start : start + 250]), target[start : start + 250]).backward()
                opt.step()

        return Contender(run)

    def dense(momentum: float) -> Callable[[nn.Module], torch.optim.Optimizer]:
        return lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum, foreach=True)

    def constrained(momentum: float, in_face: InFace | None) -> Callable[[nn.Module], torch.optim.Optimizer]:
        def make(model: nn.Module) -> torch.optim.Optimizer:
            groups = inface.param_groups(model, {"0.weight": L1Ball(1.0), "2.weight": L1Ball(10.0)})
            inface.graph_init_(model, groups)
            return inface.FrankWolfe(groups, lr=0.1, momentum=momentum, in_face=in_face)

        return make

    rows = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for momentum in (0.0, 0.9):
            best = contest(
                {
                    "SGD": training(dense(momentum)),
                    "SFW": training(constrained(momentum, None)),
                    "SFW-IF": training(constrained(momentum, "away")),
                },
                seconds=4 * seconds,
            )
            ratios = {name: best[name] / best["SGD"] for name in ("SFW", "SFW-IF")}
            rows.append({"threads": threads, "momentum": momentum, "SGD seconds": best["SGD"], "to SGD": ratios})
            print(f"         epoch {threads} thread(s) momentum {momentum}: {_ratios(ratios)}")
    torch.set_num_threads(1)
    return rows


def laboratory() -> list[Row]:
    """(e) An epoch of a run of the laboratory, evaluation and logging included, to the bare loop with SGD."""
    rows: list[Row] = []
    methods: tuple[Method, ...] = ("sgd", "sfw", "sfw-if")
    for momentum in (0.0, 0.9):
        ratios: dict[str, float] = {method: epoch_ratio(method, momentum) for method in methods}
        rows.append({"momentum": momentum, "to the bare loop": ratios})
        print(f"    laboratory momentum {momentum}: {_ratios(ratios)}")
    return rows


def stacking() -> list[Row]:
    """(f) How many times less a small network takes among others than alone."""
    rows: list[Row] = []
    methods: tuple[Method, ...] = ("sgd", "sfw", "sfw-if")
    activations: tuple[Activation, ...] = ("sigmoid", "relu")
    for activation in activations:
        for networks in (8, 32):
            gains: dict[str, float] = {method: gain(method, activation, networks) for method in methods}
            rows.append({"activation": activation, "networks": networks, "gain": gains})
            print(f"      stacking {networks} networks, {activation}: {_ratios(gains)}")
    return rows


def growth(seconds: float) -> list[Row]:
    """(c) How the cost of a step grows with the number of nodes, and with the number of inputs."""
    rows: list[Row] = []
    for what, shapes in {
        "nodes": [(1, n, 512) for n in (16, 64, 256, 1024, 4096)],
        "inputs": [(1, 512, n) for n in (16, 64, 256, 1024, 4096)],
    }.items():
        for shape in shapes:
            best = contest(
                {"": frank_wolfe(shape, L1Ball(1.0), in_face="away"), "SGD": sgd(shape, 0.0)}, seconds=seconds / 4
            )
            entries = shape[1] * shape[2]
            row: Row = {
                "grows": what,
                "layer": f"{shape[1]}x{shape[2]}",
                "nanoseconds per entry": {name.strip(): 1e9 * taken / entries for name, taken in best.items()},
            }
            rows.append(row)
            print(f"{row['layer']:>14} ns per entry: {_ratios(row['nanoseconds per entry'])}")
    return rows


def memory() -> list[Row]:
    """(d) What a process at its largest holds beyond parameters, gradients and momentum, in parameters' sizes."""
    rows = []
    for momentum in (0.0, 0.9):
        held = {
            name: float(
                subprocess.run(
                    [sys.executable, "-m", "benchmarks", "--peak", name, str(momentum)],
                    capture_output=True,
                    text=True,
                    check=True,
                ).stdout
            )
            for name in ("SGD", "fused", "torch operations")
        }
        rows.append({"momentum": momentum, "beyond parameters, gradients and momentum": held})
        print(f"        memory momentum {momentum}: {_ratios(held)}")
    return rows


def peak(name: str, momentum: float) -> float:
    """The growth of this process over a few steps on a 4096x4096 layer, in sizes of that layer."""
    torch.set_num_threads(1)
    shape, size = (1, 4096, 4096), 4 * 4096 * 4096
    small = (1, 8, 8)  # what a first step brings along: compiled code, and torch's own
    run = [
        sgd(s, momentum)
        if name == "SGD"
        else frank_wolfe(
            s, LInfBall(0.05) if s is small else L1Ball(1.0), in_face="away", momentum=momentum, fused=name == "fused"
        )
        for s in (small, shape)
    ]
    for _ in range(4):
        run[0].run()
    run[1].run()  # makes the momentum, which is not counted
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # forget the peak so far
    before = _status("VmRSS")
    for _ in range(4):
        run[1].run()
    return max(0, _status("VmHWM") - before) / size


def _status(field: str) -> int:
    """A line of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {field} in /proc/self/status")


def _ratios(numbers: dict[str, float]) -> str:
    return ", ".join(f"{name or 'all'} {value:.2f}" for name, value in numbers.items())


def page(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    machine = results["machine"]
    lines = [
        "# Benchmarks: the cost of a step, the gain of sparse layers",
        "",
        "Written by `make bench`; do not edit. Every number is a ratio of two times, unless it has a unit. The two",
        "times are measured in one run, in turns; each is the minimum of many. Measured on",
        f"{machine['processor']}, {machine['cores']} cores, float32,",
        f"Python {machine['python']}, torch {machine['torch']}.",
        "",
        "## One step, as a ratio to a step of `torch.optim.SGD(foreach=True)`",
        "",
        "Rows with momentum compare with SGD with momentum. The last two columns are the same L1Ball steps with torch",
        "operations (`fused=False`).",
        "",
        "| layers | set | threads | momentum | " + " | ".join(HALVES) + " | torch: Frank-Wolfe | torch: away |",
        "|" + "---|" * (6 + len(HALVES)),
    ]
    for row in results["steps"]:
        ratios = row["to SGD"]
        slow = [ratios.get(f"torch operations {half}") for half in ("Frank-Wolfe", "away")]
        cells = [f"{ratios[half]:.2f}" for half in HALVES] + ["" if value is None else f"{value:.1f}" for value in slow]
        lines.append(
            f"| {row['layers']} | {row['set']} | {row['threads']} | {row['momentum']:g} | " + " | ".join(cells) + " |"
        )
    lines += [
        "",
        "## A projected in-face step of a layer of which 5 % is in use, as a ratio to a step of SGD (one thread)",
        "",
        "Of the box all entries are in use: its zeros move too.",
        "",
        "| layers | set | momentum | SGD, us | projected |",
        "|---|---|---|---|---|",
        *(
            f"| {row['layers']} | {row['set']} | {row['momentum']:g} | {row['SGD microseconds']:.0f} | "
            f"{row['to SGD']['projected']:.2f} |"
            for row in results["projected steps"]
        ),
        "",
        "## The first table, as a ratio to `x.add_(g)` and to `x.copy_(g)` (L1Ball, no momentum)",
        "",
        "| layers | threads | Frank-Wolfe to add_ | away to add_ | Frank-Wolfe to copy_ | away to copy_ |",
        "|---|---|---|---|---|---|",
    ]
    for row in results["steps"]:
        if row["set"] == "L1Ball" and row["momentum"] == 0:
            numbers = [row[to][half] for to in ("to add_", "to copy_") for half in ("Frank-Wolfe", "away")]
            lines.append(f"| {row['layers']} | {row['threads']} | " + " | ".join(f"{n:.2f}" for n in numbers) + " |")
    lines += [
        "",
        "## Many small layers in one group (one thread): a step to SGD's, and reading `opt.gap`",
        "",
        "| layers | set | momentum | SGD, ms | Frank-Wolfe to SGD | away to SGD | first `gap`, ms | `gap`, ms |",
        "|---|---|---|---|---|---|---|---|",
        *(
            f"| {row['layers']} | {row['set']} | {row['momentum']:g} | {row['SGD milliseconds']:.2f} | "
            f"{row['to SGD']['Frank-Wolfe']:.2f} | {row['to SGD']['away']:.2f} | "
            f"{row['gap milliseconds']['first']:.1f} | {row['gap milliseconds']['then']:.1f} |"
            for row in results["small layers"]
        ),
    ]
    lines += [
        "",
        "## Training a 784-512-512-10 perceptron, batch 250, as a ratio to the same with SGD",
        "",
        "Forward, backward and step over 15,000 random samples (a quarter of an MNIST epoch); the first two layers",
        "are in l1 balls.",
        "",
        "| threads | momentum | SFW | SFW-IF |",
        "|---|---|---|---|",
        *(
            f"| {row['threads']} | {row['momentum']:g} | {row['to SGD']['SFW']:.3f} | {row['to SGD']['SFW-IF']:.3f} |"
            for row in results["epoch"]
        ),
        "",
        "## An epoch of `inface train`, as a ratio to the bare forward, backward and SGD step",
        "",
        "The same network and batches on 60,000 random samples in the shape of MNIST, one thread. The laboratory's",
        "epoch includes evaluation on 10,000 samples, gap, non-zeros, records and checkpoints.",
        "",
        "| momentum | sgd | sfw | sfw-if |",
        "|---|---|---|---|",
        *(
            f"| {row['momentum']:g} | "
            + " | ".join(f"{ratio:.3f}" for ratio in row["to the bare loop"].values())
            + " |"
            for row in results["laboratory"]
        ),
        "",
        "## Small networks trained together: speed-up per network",
        "",
        "The CPU time of an epoch of a separate run, relative to the share of one network in a stack",
        "(`inface.lab.runs.stacking`). Perceptrons 50-50-50-1 on 100,000 samples, batch 250, each with its own",
        "settings,",
        "one thread.",
        "",
        "| activation | networks | sgd | sfw | sfw-if |",
        "|---|---|---|---|---|",
        *(
            f"| {row['activation']} | {row['networks']} | "
            + " | ".join(f"{times:.2f}" for times in row["gain"].values())
            + " |"
            for row in results["stacking"]
        ),
        "",
        "## Nanoseconds per entry, as a layer grows (L1Ball, one thread)",
        "",
        "| what grows | layer | Frank-Wolfe | away | SGD |",
        "|---|---|---|---|---|",
    ]
    for row in results["growth"]:
        per = row["nanoseconds per entry"]
        lines.append(
            f"| {row['grows']} | {row['layer']} | {per['Frank-Wolfe']:.3f} | {per['away']:.3f} | {per['SGD']:.3f} |"
        )
    lines += [
        "",
        "## Peak memory beyond parameters, gradients and momentum, in sizes of the layer (4096x4096)",
        "",
        "| momentum | SGD | fused | torch operations |",
        "|---|---|---|---|",
    ]
    for row in results["memory"]:
        held = row["beyond parameters, gradients and momentum"]
        lines.append(
            f"| {row['momentum']:g} | {held['SGD']:.2f} | {held['fused']:.2f} | {held['torch operations']:.2f} |"
        )
    lines += compute_table(results["compute"])
    lines += training_table(results["training"])
    lines += export_table(results["export"])
    return "\n".join(lines) + "\n"


def processor() -> str:
    for line in (
        Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else ()
    ):
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.processor() or platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.7, help="how long each contest lasts (default: 0.7)")
    parser.add_argument("--out", type=Path, default=Path("docs"), help="where to write the results (default: docs)")
    parser.add_argument("--only", metavar="PART", help="measure one part again and keep the others (default: all)")
    parser.add_argument("--peak", nargs=2, metavar=("NAME", "MOMENTUM"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peak:
        print(peak(arguments.peak[0], float(arguments.peak[1])))
        return
    torch.set_num_threads(1)
    parts: dict[str, Callable[[], list[Row]]] = {
        "steps": lambda: steps(arguments.seconds),
        "projected steps": lambda: projected_steps(arguments.seconds),
        "small layers": lambda: small_layers(arguments.seconds),
        "epoch": lambda: epoch(arguments.seconds),
        "laboratory": laboratory,
        "stacking": stacking,
        "growth": lambda: growth(arguments.seconds),
        "memory": memory,
        "export": lambda: export_part(arguments.seconds),
        "compute": lambda: compute_part(arguments.seconds),
        "training": training_part,
    }
    earlier = json.loads((arguments.out / "benchmarks.json").read_text(encoding="utf-8")) if arguments.only else {}
    results = {
        "command": "make bench",
        "machine": {
            "processor": processor(),
            "cores": torch.multiprocessing.cpu_count(),
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
        **{
            name: part() if arguments.only in (None, name) or name not in earlier else earlier[name]
            for name, part in parts.items()
        },
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "benchmarks.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (arguments.out / "benchmarks.md").write_text(page(results), encoding="utf-8")
    print(f"written: {arguments.out / 'benchmarks.json'}, {arguments.out / 'benchmarks.md'}")


if __name__ == "__main__":
    main()
