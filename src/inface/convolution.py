"""Convolutions as products: what a filter sees at each place is a sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from .break_even import seconds

__all__ = ["Window", "break_even_of", "images", "patches"]

# Two densities say what a list costs beside what its entries cost.
DENSITIES = (0.02, 0.2)


class Window(NamedTuple):
    """How filters move over images."""

    size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    @property
    def pointwise(self) -> bool:
        """Whether it sees one place at a time, and all of them."""
        return self.size == self.stride == (1, 1) and self.padding == (0, 0)

    def places(self, shape: torch.Size) -> tuple[int, int]:
        """The height and the width of what comes out."""
        high, wide = (
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, k, s, p, d in zip(shape[2:], self.size, self.stride, self.padding, self.dilation, strict=True)
        )
        return high, wide


def patches(x: Tensor, window: Window) -> Tensor:
    """What filters see of images, one place in a row.

    >>> import torch
    >>> patches(torch.arange(9.0).view(1, 1, 3, 3), Window((2, 2), (1, 1), (0, 0), (1, 1)))[0]
    tensor([0., 1., 3., 4.])
    """
    if window.pointwise:
        return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])
    size, stride, padding, dilation = window
    seen = functional.unfold(x, size, dilation=dilation, padding=padding, stride=stride)
    return seen.transpose(1, 2).reshape(-1, seen.shape[1])


def images(y: Tensor, x: Tensor, window: Window) -> Tensor:
    """Rows of outputs, one for each place of the images ``x``, as images; with channels last, if those of ``x`` are."""
    high, wide = window.places(x.shape)
    found = y.view(x.shape[0], high, wide, -1).permute(0, 3, 1, 2)
    last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return found if last else found.contiguous()


def break_even_of(layer: Any, x: Tensor, product: Callable[[Tensor, Tensor, float], Tensor]) -> tuple[float, float]:
    """The density below which a convolution is faster as a product without zeros, with all that it takes to make it one.

    ``product(x, weight, density)`` is the convolution with a random list of that density.
    """
    with torch.inference_mode(mode=False), torch.enable_grad(), torch.autocast("cpu", enabled=False):
        own = torch.ones_like(x, dtype=layer.weight.dtype, requires_grad=True)  # random numbers are the training's
        weight = torch.ones_like(layer.weight, requires_grad=True)

        def dense() -> Tensor:
            return functional.conv2d(own, weight, None, layer.stride, layer.padding, layer.dilation)

        def both(y: Tensor) -> None:
            torch.autograd.grad(y, [own, weight], torch.ones_like(y))

        whole = seconds(lambda: both(dense()))
        low, high = (seconds(lambda d=d: both(product(own, weight, d))) for d in DENSITIES)  # type: ignore[misc]
    slope = max((high - low) / (DENSITIES[1] - DENSITIES[0]), 1e-12)
    return min(1.0, max(0.0, DENSITIES[0] + (whole - low) / slope)), 1.0
