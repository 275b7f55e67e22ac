"""Lightning: digits with 5 % of the weights, logged on the way.

python examples/lightning_digits.py
"""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import inface
from inface.integrations.lightning import FrankWolfeCallback


class Digits(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.network(x), y)

    def validation_step(self, batch: list[Tensor], _: int) -> None:
        x, y = batch
        self.log("accuracy", (self.network(x).argmax(1) == y).float().mean(), prog_bar=True)

    def configure_optimizers(self) -> Any:
        optimizer = inface.sparse_optimizer(self, density=0.05, lr=0.1, steps="auto")  # the callback says how many
        steps = int(self.trainer.estimated_stepping_batches)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def main() -> tuple[Trainer, Digits]:
    seed_everything(0, verbose=False)
    pixels, digits = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(digits))
    train, test = torch.utils.data.random_split(data, [0.8, 0.2])
    model = Digits()
    trainer = Trainer(
        max_epochs=12,
        accelerator="cpu",
        callbacks=[FrankWolfeCallback()],
        log_every_n_steps=10,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(train, batch_size=50, shuffle=True), DataLoader(test, batch_size=500))
    found = {name: float(value) for name, value in trainer.callback_metrics.items()}
    print(f"accuracy {found['accuracy']:.3f} with {100 * found['inface/density']:.1f} % of the weights")
    return trainer, model


if __name__ == "__main__":
    main()
