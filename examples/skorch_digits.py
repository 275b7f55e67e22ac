"""skorch: which density, and which radius, suit digits? scikit-learn searches.

python examples/skorch_digits.py
"""

from __future__ import annotations

from typing import Any

import torch
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from sklearn.model_selection import GridSearchCV  # type: ignore[import-untyped]
from torch import Tensor, nn

from inface.integrations.skorch import NeuralNetClassifier
from inface.sets import L1Ball


class Digits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 50), nn.Linear(50, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu())


def main() -> dict[str, Any]:
    torch.manual_seed(0)
    pixels, digits = load_digits(return_X_y=True)
    pixels = (pixels / 16).astype("float32")
    common = {"criterion": nn.CrossEntropyLoss, "max_epochs": 8, "batch_size": 50, "verbose": 0}

    sparse = NeuralNetClassifier(Digits, lr=0.1, **common)
    densities = {"optimizer__density": [0.02, 0.1]}
    first = GridSearchCV(sparse, densities, cv=2, scoring="accuracy").fit(pixels, digits)

    balls = {"first.weight": L1Ball(1.0), "second.weight": L1Ball(1.0)}
    options = {"optimizer__sets": balls, "optimizer__in_face": "away", "optimizer__project": True}
    bounded = NeuralNetClassifier(Digits, lr=0.5, **options, **common)
    second = GridSearchCV(bounded, {"optimizer__radius": [0.5, 5.0]}, cv=2, scoring="accuracy").fit(pixels, digits)

    for search in (first, second):
        print(f"{search.best_params_}: accuracy {search.best_score_:.3f}")
    return {**first.best_params_, **second.best_params_}


if __name__ == "__main__":
    main()
