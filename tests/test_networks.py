"""The benchmark of many kinds of networks: every method trains, and the page counts what it shows."""

from __future__ import annotations

import pytest
import torch
from benchmarks.kinds import KINDS, Kind
from benchmarks.networks import METHODS, page, run
from torch import nn


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("free", ["sgd", "adamw"])
def test_a_method_trains_to_its_density_and_is_judged_on_what_is_held_out(method, free):
    made = torch.Generator().manual_seed(0)
    x = torch.randn(600, 20, generator=made)
    model = nn.Linear(20, 5)
    kind = Kind(lambda: model, lambda: (x, x[:, :5].argmax(1)), free, epochs=20, batch=50)
    found = run(kind, kind.samples(), method, {"sgd": 0.1, "adamw": 0.01}[free], 0.25, 0)
    assert found["score"] > 60
    assert int(model.weight.count_nonzero()) <= (100 if method == "dense" else 25)


def test_the_page_names_the_best_and_counts_lines_and_networks():
    def runs(network, lr, *scores):
        densities = (1.0, 0.1, 0.1, 0.1)
        return [
            {"network": network, "lr": lr, "method": method, "density": density, "seed": 0, "score": score}
            for method, density, score in zip(METHODS, densities, scores, strict=True)
        ]

    first, second = list(KINDS)[:2]
    told = page(
        [*runs(first, 0.1, 99, 90, 91, 92), *runs(first, 0.3, 99, 95, 91, 92), *runs(second, 0.1, 99, 90, 91, 92)]
    )
    assert f"| {first} | 0.1 | 99.0 | 90.0 | 91.0 | **92.0** |" in told
    assert f"| {first} | 0.3 | 99.0 | **95.0** | 91.0 | 92.0 |" in told
    assert "in 2 of 3 lines, and in 1 of 2" in told
    assert "100 %" not in told
