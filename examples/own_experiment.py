"""An experiment of one's own: which of thirty measurements of a cell tell a malignant tumour?

inface train examples/own_experiment.py:tumours --out runs/tumours
"""

from __future__ import annotations

from pathlib import Path

import torch
from sklearn.datasets import load_breast_cancer  # type: ignore[import-untyped]
from torch import nn

from inface.lab import Data, Experiment, Split
from inface.sets import GroupL1Ball, L1Ball


def data(folder: Path) -> Data:  # noqa: ARG001 - the data folder, which these samples do not need
    inputs, targets = load_breast_cancer(return_X_y=True)
    x = torch.tensor(inputs, dtype=torch.float32)
    x = (x - x.mean(0)) / x.std(0)
    y = torch.tensor(targets)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    samples = Split(x[order], y[order])
    return Data(train=samples[:-114], test=samples[-114:], held_out=91)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 2))


tumours = Experiment(
    data=data,
    model=model,
    sets={
        "0.weight": GroupL1Ball(1.0, groups="input"),  # whole measurements vanish
        "2.weight": L1Ball(2.0),  # few edges into each node
    },
    defaults={
        "epochs": 100,
        "batch_size": 50,
        "lr": 0.1,
        "constrained_lr": 20.0,
        "momentum": 0.9,
        "schedule": "cosine",
    },
)
