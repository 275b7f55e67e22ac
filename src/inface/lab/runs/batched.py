"""Compute networks of one shape at once: perceptrons by batched matrix products, others by ``vmap``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

__all__ = ["Batched", "Perceptrons", "Vmapped", "batched"]

Loss = Callable[[Tensor, Tensor], Tensor]
Weights = Mapping[str, nn.Parameter]


class Batched(Protocol):
    """Several networks; their parameters of one name are concatenated along the rows.

    Inputs and targets are the same for all networks (``shared``), or have a first dimension for the networks.
    """

    def outputs(self, weights: Weights, inputs: Tensor, *, shared: bool) -> Tensor:
        """The outputs, of shape (networks, samples, ...), without gradients."""

    def descend(self, weights: Weights, inputs: Tensor, targets: Tensor, *, shared: bool) -> Tensor:
        """Compute the gradients into the ``grad`` of the weights; return the loss of each network."""


def batched(model: nn.Module, loss: Loss, count: int, inputs: Tensor) -> Batched:
    """The fastest way to compute ``count`` networks like ``model`` on such inputs.

    >>> from inface.lab.experiments.models import mnist_conv, perceptron
    >>> loss, images = nn.functional.cross_entropy, torch.zeros(1, 1, 28, 28)
    >>> [type(batched(model, loss, 8, images)).__name__ for model in (perceptron(784, 32, 10), mnist_conv())]
    ['Perceptrons', 'Vmapped']
    """
    layers = _dense_layers(model, inputs.ndim)
    return Vmapped(model, loss, count) if layers is None else Perceptrons(layers, loss, count)


class Vmapped:
    """Any network, by ``torch.func.vmap``."""

    def __init__(self, model: nn.Module, loss: Loss, count: int) -> None:
        self.model, self.loss, self.count = model, loss, count
        self.shapes = {name: p.shape for name, p in model.named_parameters()}

    def outputs(self, weights: Weights, inputs: Tensor, *, shared: bool) -> Tensor:
        with torch.no_grad():
            return vmap(self._output, in_dims=(0, None if shared else 0))(self._own(weights), inputs)

    def descend(self, weights: Weights, inputs: Tensor, targets: Tensor, *, shared: bool) -> Tensor:
        def loss(own: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
            return self.loss(self._output(own, inputs), targets)

        dims = None if shared else 0
        losses: Tensor = vmap(loss, in_dims=(0, dims, dims))(self._own(weights), inputs, targets)
        for p in weights.values():
            p.grad = None
        losses.sum().backward()
        return losses.detach()

    def _own(self, weights: Weights) -> dict[str, Tensor]:
        return {name: weights[name].view(self.count, *shape) for name, shape in self.shapes.items()}

    def _output(self, own: dict[str, Tensor], inputs: Tensor) -> Tensor:
        found: Tensor = functional_call(self.model, own, (inputs,))
        return found


@dataclass
class Dense:
    """A linear layer, and the activation that follows it."""

    weight: str
    bias: str | None
    activation: type[nn.Module] | None = None


# Each activation and its gradient, both in place. The gradient is computed from the values of the activation.
IN_PLACE: dict[type[nn.Module], tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    nn.ReLU: (torch.relu_, lambda d, h: torch.ops.aten.threshold_backward.grad_input(d, h, 0, grad_input=d)),
    nn.Sigmoid: (torch.sigmoid_, lambda d, h: torch.ops.aten.sigmoid_backward.grad_input(d, h, grad_input=d)),
    nn.Tanh: (torch.tanh_, lambda d, h: torch.ops.aten.tanh_backward.grad_input(d, h, grad_input=d)),
}


class _Buffers:
    """Tensors by name and shape, reused at every step. Allocating them anew would make a step a third slower."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, tuple[int, ...]], Tensor] = {}

    def __call__(self, name: str, like: Tensor, *shape: int) -> Tensor:
        key = (name, shape)
        if key not in self.known:
            self.known[key] = torch.empty(shape, dtype=like.dtype)
        return self.known[key]


class Perceptrons:
    """Linear layers with activations between them.

    Values have the shape (networks, nodes, samples). On shared samples the first layer of all networks is then one
    matrix product, ``W x``; every other layer is a batch of products. Gradients are computed by hand, which saves a
    tenth of autograd's time. Buffers are reused at every step.

    >>> loss = nn.functional.mse_loss
    >>> weights = {"fc.weight": nn.Parameter(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))}  # of two networks
    >>> both = Perceptrons([Dense("fc.weight", None)], loss, 2)
    >>> both.descend(weights, torch.tensor([[1.0, 1.0]]), torch.tensor([[1.0]]), shared=True)
    tensor([ 4., 36.])
    >>> weights["fc.weight"].grad
    tensor([[ 4.,  4.],
            [12., 12.]])
    """

    def __init__(self, layers: list[Dense], loss: Loss, count: int) -> None:
        self.layers, self.loss, self.count = layers, loss, count
        self.buffers = _Buffers()

    @torch.no_grad()
    def outputs(self, weights: Weights, inputs: Tensor, *, shared: bool) -> Tensor:
        return self._forward(weights, inputs, shared, _Buffers())[-1].mT

    @torch.no_grad()
    def descend(self, weights: Weights, inputs: Tensor, targets: Tensor, *, shared: bool) -> Tensor:
        values = self._forward(weights, inputs, shared, self.buffers)
        losses, d = self._losses(values[-1], targets, shared)
        for layer, x, h in reversed(list(zip(self.layers, values, values[1:], strict=False))):
            if layer.activation is not None:
                d = IN_PLACE[layer.activation][1](d, h)
            if layer.bias is not None:
                weights[layer.bias].grad = d.sum(2).flatten()
            weight = weights[layer.weight]
            weight.grad = gradient = self.buffers(f"gradient of {layer.weight}", weight, *weight.shape)
            if x.ndim == 2:
                torch.mm(d.flatten(0, 1), x.T, out=gradient)
            else:
                torch.bmm(d, x.mT, out=self._own(gradient))
            if x is not values[0]:
                own, out = self._own(weight).mT, self.buffers(f"before {layer.weight}", x, *x.shape)
                d = torch.mul(own, d, out=out) if own.shape[2] == 1 else torch.bmm(own, d, out=out)
        return losses

    def _forward(self, weights: Weights, inputs: Tensor, shared: bool, buffers: _Buffers) -> list[Tensor]:
        """The inputs and the values of every layer; samples are the last dimension."""
        values = [inputs.flatten(1).T if shared else inputs.flatten(2).mT]
        for layer in self.layers:
            weight, x = weights[layer.weight], values[-1]
            h = buffers(f"after {layer.weight}", weight, self.count, len(weight) // self.count, x.shape[-1])
            if x.ndim == 2:
                torch.mm(weight, x, out=h.flatten(0, 1))
            else:
                torch.bmm(self._own(weight), x, out=h)
            if layer.bias is not None:
                h += self._own(weights[layer.bias]).unsqueeze(2)
            values.append(h if layer.activation is None else IN_PLACE[layer.activation][0](h))
        return values

    def _own(self, weight: Tensor) -> Tensor:
        """Each network's part of a parameter."""
        return weight.view(self.count, -1, *weight.shape[1:])

    def _losses(self, outputs: Tensor, targets: Tensor, shared: bool) -> tuple[Tensor, Tensor]:
        """The losses, and their gradients with respect to the outputs."""
        if self.loss is nn.functional.mse_loss and targets.mT.shape[-2:] == outputs.shape[1:]:
            d = (outputs - targets.mT).flatten(1)
            return d.square().mean(1), d.mul_(2 / d.shape[1]).view_as(outputs)
        outputs = outputs.detach().requires_grad_()
        with torch.enable_grad():
            if self.loss is nn.functional.cross_entropy and targets.ndim == (1 if shared else 2):
                each = targets.expand(self.count, -1) if shared else targets
                losses = nn.functional.cross_entropy(outputs, each, reduction="none").mean(1)
            else:
                losses = vmap(self.loss, in_dims=(0, None if shared else 0))(outputs.mT, targets)
            (d,) = torch.autograd.grad(losses.sum(), outputs)
        return losses.detach(), d


def _dense_layers(model: nn.Module, dimensions: int) -> list[Dense] | None:
    """The layers of an ``nn.Sequential`` of linear layers and activations on flat inputs; None for other networks."""
    if type(model) is not nn.Sequential:
        return None
    layers: list[Dense] = []
    children = [(name, child) for name, child in model.named_modules(remove_duplicate=False) if name]
    for index, (name, child) in enumerate(children):
        if type(child) is nn.Linear:
            layers.append(Dense(f"{name}.weight", None if child.bias is None else f"{name}.bias"))
        elif type(child) in IN_PLACE and layers and layers[-1].activation is None:
            layers[-1].activation = type(child)
        elif not (type(child) is nn.Flatten and index == 0 and (child.start_dim, child.end_dim) == (1, -1)):
            return None
    flat = dimensions == 2 or type(children[0][1]) is nn.Flatten
    named = dict(model.named_parameters())  # a layer that is used twice has one name
    return layers if layers and flat and all(layer.weight in named for layer in layers) else None
