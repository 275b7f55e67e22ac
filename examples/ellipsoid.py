"""A set of one's own in one file: an ellipsoid per node, checked and trained with.

Inputs are measured in different units, so a weight may be large where its input is small. Each node's weights live in
``{x : sum_j (x_j / a_j)^2 <= r^2}``, with one axis ``a_j`` for each input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

import inface
from inface.sets import Set
from inface.testing import check_set


class Ellipsoid(Set):
    """``{x : sum_j (x_j / a_j)^2 <= radius^2}``, by default one ellipsoid per output node.

    Args:
        radius: a number, or a tensor with one value per block.
        axes: the ``a_j``, one for each entry of a block.
        options: ``per`` and ``norm``, as for every set.
    """

    kind = "ellipsoid"  # by this name a state_dict finds the class again

    def __init__(self, radius: float | Tensor, axes: Sequence[float], **options: Any) -> None:
        super().__init__(radius, **options)
        if not axes or min(axes) <= 0:
            raise ValueError(f"Ellipsoid: axes must be numbers > 0, got {axes!r}")
        self.axes = [float(a) for a in axes]

    def options(self) -> dict[str, Any]:
        """What a state_dict keeps beside radius and ``per``: plain data, under the names of the arguments."""
        return {"axes": self.axes}

    def check(self, size: torch.Size, where: str) -> None:
        """Refuse parameters that the set does not fit."""
        super().check(size, where)
        entries = self.to_blocks(torch.empty(size, device="meta")).shape[1]
        if entries != len(self.axes):
            raise ValueError(
                f"Ellipsoid: {where} has blocks of {entries} entries, wanted one for each of {len(self.axes)} axes"
            )

    # What every set must say. x and g are blocks, one row each; numbers of blocks are float64.

    def dense_vertex(self, g: Tensor) -> Tensor:
        """``argmin <g, v>`` is ``-r a^2 g / |a g|``; the end of the first axis where ``g`` is zero."""
        scaled = g.double() * self.a(g)
        size = torch.linalg.vector_norm(scaled, dim=1, keepdim=True)
        first = torch.zeros_like(scaled)
        first[:, 0] = 1
        unit = torch.where(size > 0, -scaled / torch.where(size > 0, size, 1), first)
        return (self.r(g).reshape(-1, 1) * self.a(g) * unit).to(g.dtype)

    def block_norm(self, x: Tensor) -> Tensor:
        """``|x / a|``: at most the radius exactly in the set."""
        return torch.linalg.vector_norm(x.double() / self.a(x), dim=1)

    def block_project(self, x: Tensor) -> Tensor:
        """``y_j = a_j^2 x_j / (a_j^2 + t)`` with the ``t > 0`` for which ``y`` is on the boundary.

        ``1 / |y / a|`` is concave in ``t``: Newton's method from zero never overshoots.
        """
        square, r = self.a(x) ** 2, self.r(x).reshape(-1, 1)
        t = torch.zeros(len(x), 1, dtype=torch.float64, device=x.device)
        for _ in range(50):
            w = self.a(x) * x.double() / (square + t)
            size = torch.linalg.vector_norm(w, dim=1, keepdim=True)
            t = t + (size / r - 1) * size**2 / (w * w / (square + t)).sum(1, keepdim=True).clamp(min=1e-300)
            t = t.clamp(min=0)
        y = square * x.double() / (square + t)
        return (y * (r / self.block_norm(y).unsqueeze(1)).clamp(max=1)).to(x.dtype)

    def diameter(self, block_shape: torch.Size) -> float | Tensor:  # noqa: ARG002 - the axes say it
        """The longest axis; in l1 the way between the two points where all entries pull together."""
        return 2 * self.radius * (sum(a * a for a in self.axes) ** 0.5 if self.norm_name == "l1" else max(self.axes))

    # In-face steps need one method more. A boundary point is its own minimal face; inside, the face is the whole set.

    def dense_face_vertex(self, x: Tensor, g: Tensor) -> Tensor:
        return torch.where(self.on_boundary(self.block_norm(x), x).unsqueeze(1), x, self.dense_vertex(g))

    def a(self, x: Tensor) -> Tensor:
        return torch.tensor(self.axes, dtype=torch.float64, device=x.device)


def main() -> None:
    torch.manual_seed(0)
    units = torch.tensor([8.0, 4.0, 2.0, 1.0])
    ellipsoid = Ellipsoid(2.0, axes=(1 / units).tolist())
    check_set(ellipsoid, shape=(3, 4))

    inputs = units * torch.randn(500, 4)
    target = inputs @ (torch.randn(4, 3) / units.unsqueeze(1))
    model = nn.Linear(4, 3)
    opt = inface.FrankWolfe(model, {"weight": ellipsoid}, lr=0.2, in_face="away", project=True)
    for _ in range(300):
        opt.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), target)
        loss.backward()
        opt.step()
    print(
        f"loss {loss.item():.4f}, norms {[round(size, 3) for size in ellipsoid.norm(model.weight.detach()).tolist()]}"
    )


if __name__ == "__main__":
    main()
