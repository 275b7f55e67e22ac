"""``sparse_optimizer`` with its defaults on networks of many kinds, beside dense training and gradual pruning.

``python -m benchmarks.networks`` trains small networks for a thousand gradients or so, on parts of MNIST and CIFAR-10
(``inface data``) and on made data, and writes results/networks.md: what they reach on held-out samples, in percent. No test
data is used. It can be killed at any moment; the same command continues.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import statistics
import time
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import nn

import inface
from benchmarks.kinds import KINDS, Kind, Samples
from inface.lab.files import read_json, write_json, write_text
from inface.lab.runs.baselines import PrunedAdamW, PrunedSGD
from inface.layers import chosen_layers
from inface.types import Free
from inface.version import versions

RATES: dict[Free, tuple[float, ...]] = {"sgd": (0.03, 0.1), "adamw": (0.001, 0.003)}
METHODS = ("dense", "gradual, global", "gradual, uniform", "inface")
NAMES = ("network", "lr", "method", "density", "seed")
RESULTS = Path(__file__).parents[1] / "results"


def optimizer(
    method: str, kind: Kind, model: nn.Module, lr: float, density: float, steps: int
) -> torch.optim.Optimizer:
    """The method's optimizer; pruning takes the layers that inface takes, along the path that it takes."""
    adam = kind.free == "adamw"
    if method == "inface":
        return inface.sparse_optimizer(model, density=density, lr=lr, steps=steps, free=kind.free)
    usual: dict[str, Any] = {"lr": lr, "weight_decay": 0.0} if adam else {"lr": lr, "momentum": 0.9}
    if method == "dense":
        return (torch.optim.AdamW if adam else torch.optim.SGD)(model.parameters(), **usual)
    layers = [layer.param for layer in chosen_layers(model).values()]
    usual |= {"keep": density, "total": steps, "begin": 0.1, "end": 0.8, "every": 10, "together": "global" in method}
    return (PrunedAdamW if adam else PrunedSGD)(model.parameters(), layers, **usual)  # type: ignore[arg-type]


def run(kind: Kind, samples: Samples, method: str, lr: float, density: float, seed: int) -> dict[str, Any]:
    """Train a network, with a cosine schedule, and measure it on what is held out."""
    torch.manual_seed(seed)
    model, (x, y) = kind.model(), samples
    count = len(x) - len(x) // 6
    steps = kind.epochs * -(-count // kind.batch)
    opt = optimizer(method, kind, model, lr, density, steps)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    start = time.perf_counter()
    for _ in range(kind.epochs):
        for rows in torch.randperm(count).split(kind.batch):
            opt.zero_grad()
            kind.loss(model(x[rows]), y[rows]).backward()
            opt.step()
            schedule.step()
    seconds = time.perf_counter() - start
    model.eval()
    with torch.no_grad():
        found = torch.cat([model(part) for part in x[count:].split(500)])
    return {"score": kind.score(found, y[count:]), "seconds": seconds}


def code() -> str:
    """A short hash of the library's code, without the laboratory, the exports and the command line."""
    package = Path(inface.__file__).parent
    files = sorted(path.relative_to(package) for path in package.rglob("*.py"))
    found = hashlib.sha256()
    for file in (file for file in files if file.parts[0] not in ("lab", "cli", "export", "integrations")):
        found.update(f"{file.as_posix()}\n".encode() + (package / file).read_bytes())
    return found.hexdigest()[:8]


def page(runs: list[dict[str, Any]]) -> str:
    """What the runs reached, as Markdown."""
    text = [
        "# Networks of many kinds",
        "",
        "`sparse_optimizer` with its defaults beside dense training and gradual pruning, each at the two learning rates that",
        "the field would try first, for a thousand gradients or so. Accuracy, or the part of the variance that is explained,",
        "in percent, on held-out samples; no test data is used. With more than one seed, the mean and half of the range.",
        "The best sparse network of a line is bold. `benchmarks/kinds.py` has the networks and the data.",
        "",
    ]
    for density in sorted({run["density"] for run in runs} - {1.0}, reverse=True):
        lines: dict[tuple[str, float], dict[str, list[float]]] = {}
        for run in runs:
            if run["density"] in (density, 1.0):
                line = lines.setdefault((run["network"], run["lr"]), {})
                line.setdefault(run["method"], []).append(run["score"])
        seeds = len({run["seed"] for run in runs if run["density"] == density})
        text += [f"## {100 * density:g} % of the weights, {seeds} {'seeds' if seeds > 1 else 'seed'}", ""]
        text += ["| network | lr | " + " | ".join(METHODS) + " |", "|" + "---|" * (2 + len(METHODS))]
        for (network, lr), line in sorted(lines.items(), key=lambda each: (list(KINDS).index(each[0][0]), each[0][1])):
            best = max((statistics.fmean(line[method]) for method in METHODS[1:] if method in line), default=math.inf)
            told = [_told(line.get(method, []), math.inf if method == "dense" else best) for method in METHODS]
            text.append(f"| {network} | {lr:g} | " + " | ".join(told) + " |")
        text += ["", *_counted(lines), ""]
    text += [
        "Made by `python -m benchmarks.networks --density D --seeds N` for each of these densities. Runs of inface by the"
    ]
    text += [f"library's code, as a hash of its files: {_codes(runs)}. `--again` trains those of other code again."]
    return "\n".join([*text, ""])


def _codes(runs: list[dict[str, Any]]) -> str:
    counts = Counter(run.get("code", "older") for run in runs if run["method"] == "inface")
    return ", ".join(f"{name} ({count})" for name, count in counts.most_common())


def _told(scores: list[float], best: float) -> str:
    if not scores:
        return ""
    mean, half = statistics.fmean(scores), (max(scores) - min(scores)) / 2
    told = f"{mean:.1f} ± {half:.1f}" if len(scores) > 1 else f"{mean:.1f}"
    return f"**{told}**" if mean >= best else told


def _counted(lines: dict[tuple[str, float], dict[str, list[float]]]) -> list[str]:
    """How often inface is ahead of gradual pruning, at equal learning rates and at the better one for each."""
    means = {key: {name: statistics.fmean(scores) for name, scores in line.items()} for key, line in lines.items()}
    whole = {key: found for key, found in means.items() if set(METHODS) <= set(found)}
    ahead = sum(found["inface"] > max(found[name] for name in METHODS[1:3]) for found in whole.values())
    best: dict[str, list[float]] = {}
    for (network, _), found in whole.items():
        ours, theirs = best.setdefault(network, [-math.inf, -math.inf])
        best[network] = [max(ours, found["inface"]), max(theirs, *(found[name] for name in METHODS[1:3]))]
    won = sum(ours > theirs for ours, theirs in best.values())
    return [
        f"inface is ahead of both kinds of gradual pruning in {ahead} of {len(whole)} lines, and in {won} of {len(best)}",
        "networks if each takes its better learning rate.",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--density", type=float, default=0.1)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=list(KINDS), choices=KINDS, metavar="NETWORK")
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=METHODS, metavar="METHOD")
    parser.add_argument(
        "--again", action="store_true", help="train again what was trained by other code of the library"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder of networks.json and networks.md")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    file = arguments.results / "networks.json"
    runs = read_json(file)["runs"] if file.is_file() else []
    now = code()
    if arguments.again:
        stale = {
            "network": arguments.only,
            "method": ["inface"],
            "density": [arguments.density],
            "seed": range(arguments.seeds),
        }
        old = [run for run in runs if run.get("code") != now and all(run[name] in some for name, some in stale.items())]
        runs = [run for run in runs if run not in old or "inface" not in arguments.methods]
    done = {tuple(each[name] for name in NAMES) for each in runs}
    for network in arguments.only:
        kind = KINDS[network]
        samples = kind.samples()
        for lr, method, seed in product(RATES[kind.free], arguments.methods, range(arguments.seeds)):
            density = 1.0 if method == "dense" else arguments.density
            key = (network, lr, method, density, seed)
            if key not in done:
                found = run(kind, samples, method, lr, density, seed)
                runs.append({**dict(zip(NAMES, key, strict=True)), **found, "code": now})
                print(*key, f"{runs[-1]['score']:.1f}", flush=True)
                write_json(file, {"versions": versions("python", "inface", "torch", "numba"), "runs": runs})
                write_text(arguments.results / "networks.md", page(runs))


if __name__ == "__main__":
    main()
