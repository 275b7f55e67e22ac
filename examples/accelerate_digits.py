"""Accelerate: digits in l1 balls, on one process or on several.

python examples/accelerate_digits.py
accelerate launch --cpu --num_processes 2 examples/accelerate_digits.py
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import inface
from inface.integrations.accelerate import gap, report
from inface.sets import L1Ball


def main() -> tuple[nn.Module, float]:
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    pixels, digits = load_digits(return_X_y=True)
    x, y = torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(digits)
    model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    sets = {"0.weight": {"set": L1Ball(2.0), "lr": 8.0}, "2.weight": {"set": L1Ball(5.0), "lr": 8.0}}
    optimizer = inface.FrankWolfe(model, sets, lr=0.5, in_face="away", project=True)
    loader = DataLoader(TensorDataset(x, y), batch_size=64 // accelerator.num_processes, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(20):
        for inputs, target in loader:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(model(inputs), target))
            optimizer.step()
        if epoch % 5 == 4:
            accelerator.print(f"epoch {epoch + 1}: gap {float(gap(optimizer)):.3f}, {report(optimizer)}")
    network: nn.Module = accelerator.unwrap_model(model)
    accuracy = float((network(x).argmax(1) == y).float().mean())
    accelerator.print(f"accuracy {accuracy:.3f}")
    return network, accuracy


if __name__ == "__main__":
    main()
