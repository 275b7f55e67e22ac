"""A lasso ball, with and without in-face steps: the same optimum, reached sooner.

Least squares over an l1 ball, full batch, in float64. The gap is drawn as text; each line is one method.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

import inface
from inface.sets import InFace, L1Ball

ROWS, WIDTH = 12, 72


def problem() -> tuple[Tensor, Tensor, float]:
    """A design matrix, a response of five features out of fifty, and the smoothness constant of the mean squared loss."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(200, 50, generator=generator, dtype=torch.float64)
    weights = torch.zeros(50, 1, dtype=torch.float64)
    weights[:5] = torch.tensor([[1.0], [-2.0], [3.0], [-1.0], [2.0]])
    target = inputs @ weights + 0.5 * torch.randn(200, 1, generator=generator, dtype=torch.float64)
    smoothness = 2 * float(torch.linalg.eigvalsh(inputs.T @ inputs / 200).max())
    return inputs, target, smoothness


def train(in_face: InFace | None, gradients: int) -> tuple[list[float], float, int]:
    """The gap after every gradient, the final loss, and the number of non-zero weights."""
    inputs, target, smoothness = problem()
    model = nn.Linear(50, 1, bias=False, dtype=torch.float64)
    nn.init.zeros_(model.weight)
    opt = inface.FrankWolfe(model, {"weight": L1Ball(6.0)}, lr=1 / (2 * smoothness), in_face=in_face)
    gaps = []
    for _ in range(gradients):
        opt.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), target)
        loss.backward()
        opt.step()
        gaps.append(float(opt.gap))
    return gaps, float(loss.detach()), int(model.weight.count_nonzero())


def picture(curves: dict[str, list[float]]) -> str:
    """The curves on a logarithmic scale, as text."""
    logs = {mark: [math.log10(max(v, 1e-16)) for v in values] for mark, values in curves.items()}
    top = math.ceil(max(max(values) for values in logs.values()))
    low = math.floor(min(min(values) for values in logs.values()))
    grid = [[" "] * WIDTH for _ in range(ROWS)]
    for mark, values in logs.items():
        for column in range(WIDTH):
            value = values[column * (len(values) - 1) // (WIDTH - 1)]
            row = round((top - value) / (top - low) * (ROWS - 1))
            grid[row][column] = mark
    lines = []
    for row, cells in enumerate(grid):
        exponent = top - row * (top - low) / (ROWS - 1)
        lines.append(f"10^{exponent:<+6.1f}|{''.join(cells)}")
    steps = len(next(iter(curves.values())))
    return "\n".join([*lines, " " * 8 + "+" + "-" * WIDTH, f"{'0':>9}{'gradients':^{WIDTH - 8}}{steps:>8}"])


def main() -> None:
    torch.set_num_threads(1)
    gradients = 1000
    curves = {}
    methods: tuple[tuple[str, str, InFace | None], ...] = (
        (".", "Frank-Wolfe alone (SFW)", None),
        ("*", "with away steps (SFW-IF)", "away"),
        ("o", "with pairwise steps", "pairwise"),
    )
    print("Least squares over an l1 ball of radius 6, 50 weights, of which 5 are true.\n")
    print(f"{'':4}{'method':<34}{'loss':>12}{'gap':>12}{'non-zeros':>12}")
    for mark, name, in_face in methods:
        gaps, loss, count = train(in_face, gradients)
        curves[mark] = gaps
        print(f"{mark:<4}{name:<34}{loss:>12.8f}{gaps[-1]:>12.2e}{count:>12}")
    print("\nThe modified Frank-Wolfe gap against the number of gradients:\n")
    print(picture(curves))


if __name__ == "__main__":
    main()
