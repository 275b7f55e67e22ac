"""Run folders written by hand in the documented format, for reports."""

import json
import math

import torch
from safetensors.torch import save_file

from inface.lab.runs.run import Run

HOSTILE = "<script>alert('$x$ & \"y\"')</script>{{ 7 * 7 }}\x07$\\frac{"
KEPT = {"sgd": 81.2, "sfw": 93.0, "sfw-if": 97.1}
EDGES = {"sgd": 16.0, "sfw": 4.0, "sfw-if": 2.0}
ACCURACY = {"name": "accuracy", "unit": "%", "better": "higher"}


def make_run(
    folder,
    method="sfw-if",
    *,
    experiment="digits",
    options=None,
    seed=0,
    finished=True,
    image=(1, 4, 4),
    layers=("fc1.weight", "fc2.weight"),
    metric=None,
    kept=None,
    summary=None,
    steps=30,
    weights=None,
    **config,
):
    """A run folder with a small network: 16 inputs, 9 nodes, 9 nodes, 3 outputs."""
    folder.mkdir(parents=True)
    options = options or {}
    free = method == "sgd"
    settings = {
        "format": 1,
        "experiment": experiment,
        "options": options,
        "method": method,
        "lr": 0.125,
        "constrained_lr": None if free else 4.0,
        "radius": None if free else [1.0, 10.0],
        "in_face": "away",
        "momentum": 0.0,
        "free_momentum": None,
        "schedule": "constant",
        "epochs": 3,
        "batch_size": 250,
        "seed": seed,
        "every_gradient": False,
        "measured_on": "test",
        "threads": 1,
        "source": None,
        "versions": {"inface": "0.1.0", "torch": "2.7.0"},
    }
    (folder / "config.json").write_text(json.dumps({**settings, **config}))
    edges = EDGES.get(method, 5.0) + 0.1 * seed
    lines = [
        {
            "kind": "step",
            "step": step,
            "loss": 1 / step,
            "gap": None if free else (2 + math.sin(step)) / step,
            "smoothed_gap": None if free else 2 / step,
            "nonzeros": dict.fromkeys(layers, edges * step / steps),
        }
        for step in range(1, steps + 1)
    ]
    lines += [
        {
            "kind": "epoch",
            "epoch": e,
            "step": 10 * e,
            "train_loss": 1 / e,
            "loss": 1 / e,
            "metric": 90.0 + e,
            "seconds": 0.1,
        }
        for e in range(1, 4)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if not finished:
        return Run(folder)
    value = KEPT.get(method, 90.0) + seed
    layer = {"percent": 100 * edges / 16, "exact_percent": 100 * edges / 16, "edges": edges, "inputs": 16, "nodes": 9}
    data = {
        "format": 1,
        "experiment": experiment,
        "options": options,
        "method": method,
        "metric": metric or ACCURACY,
        "kept": kept or {"100": 98.0, "50": 98.0, "25": 97.9, "10": 97.5, "5": value, "2": 50.0, "1": 20.0},
        "layers": dict.fromkeys(layers, layer),
        "network": {"percent": 30.0, "count": 90, "total": 300},
        "loss": 0.1,
        "train_loss": 0.1,
        "gap": None if free else {"stochastic": 0.5, "smoothed": 0.4, "exact": 0.3},
        "steps": steps,
        "epochs": 3,
        "seconds": 1.5,
        "image": None if image is None else list(image),
    }
    (folder / "summary.json").write_text(json.dumps({**data, **(summary or {})}))
    generator = torch.Generator().manual_seed(seed)
    first = torch.randn(9, 16, generator=generator)
    if not free:
        first *= torch.rand(9, 16, generator=generator) < 0.2
    tensors = {
        "a.bias": torch.zeros(9),
        layers[0]: first,
        layers[1]: torch.randn(9, 9),
        "fc3.weight": torch.randn(3, 9),
    }
    save_file(weights or tensors, folder / "model.safetensors")
    return Run(folder)
