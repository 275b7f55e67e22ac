"""Networks of many kinds, and what each learns: parts of MNIST and CIFAR-10 (``inface data``), and made data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from inface.lab.experiments import data, models
from inface.types import Free

__all__ = ["KINDS", "Kind", "Samples"]

Loss = Callable[[Tensor, Tensor], Tensor]
Samples = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Kind:
    """A network and what it learns; the last sixth of the samples is held out."""

    model: Callable[[], nn.Module]
    samples: Callable[[], Samples]
    free: Free = "sgd"
    epochs: int = 10
    batch: int = 100
    loss: Loss = functional.cross_entropy
    score: Callable[[Tensor, Tensor], float] = lambda found, y: 100 * float((found.argmax(1) == y).float().mean())


def mnist(count: int = 12_000) -> Samples:
    train = data.mnist(data.folder()).train
    return train.inputs[:count].float(), train.targets[:count]


def cifar(count: int = 6000) -> Samples:
    train = data.cifar10(data.folder()).train
    return train.inputs[:count].float(), train.targets[:count]


def bags(count: int = 12_000, words: int = 2000, length: int = 30, classes: int = 20) -> Samples:
    """Texts of words from Zipf's law; each class prefers some of them."""
    made = torch.Generator().manual_seed(0)
    usual = 1 / torch.arange(1, words + 1)
    prefers = (2.5 * torch.randn(classes, words, generator=made)).exp() ** 0.3
    y = torch.randint(classes, (count,), generator=made)
    return torch.multinomial(usual * prefers[y], length, replacement=True, generator=made), y


def sums(count: int = 12_000, length: int = 8) -> Samples:
    """Sequences of digits; what follows each is the sum of all so far, modulo 7."""
    x = torch.randint(7, (count, length), generator=torch.Generator().manual_seed(0))
    return x, x.cumsum(1) % 7


def surface(count: int = 12_000, inputs: int = 20) -> Samples:
    """Regression: a smooth function of five of many inputs (J. Friedman, 1991), standardised."""
    made = torch.Generator().manual_seed(0)
    x = torch.rand(count, inputs, generator=made)
    y = 10 * (torch.pi * x[:, 0] * x[:, 1]).sin() + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    y = (y - y.mean()) / y.std() + 0.1 * torch.randn(count, generator=made)
    return 2 * x - 1, y.unsqueeze(1)


def explained(found: Tensor, y: Tensor) -> float:
    """The part of the variance that is explained, in percent."""
    return 100 * (1 - float((found - y).square().mean() / (y - y.mean(0)).square().mean()))


def tokens(found: Tensor, y: Tensor) -> float:
    return 100 * float((found.argmax(-1) == y).float().mean())


def flat(x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(x.flatten(0, 1), y.flatten())


def chain(*widths: int, between: Callable[[int], list[nn.Module]]) -> nn.Sequential:
    """A perceptron, with these modules after each layer but the last."""
    layers: list[nn.Module] = [nn.Flatten()]
    for index, (inputs, outputs) in enumerate(pairwise(widths)):
        layers += [nn.Linear(inputs, outputs)]
        layers += between(outputs) if index < len(widths) - 2 else []
    return nn.Sequential(*layers)


def convolutions(*channels: int, norm: Callable[[int], nn.Module], depthwise: bool = False) -> nn.Sequential:
    """Convolutions of 3x3 with norms, each second one of stride 2; a linear layer on the mean."""
    layers: list[nn.Module] = []
    for index, (inputs, outputs) in enumerate(pairwise(channels)):
        stride = 1 + index % 2
        if depthwise and index:
            layers += [nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False), norm(inputs), nn.ReLU()]
            layers += [nn.Conv2d(inputs, outputs, 1, bias=False), norm(outputs), nn.ReLU()]
        else:
            layers += [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), norm(outputs), nn.ReLU()]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels[-1], 10)]
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


class Recurrent(nn.Module):
    """A recurrent network that reads an image row by row."""

    def __init__(self, cell: type[nn.GRU | nn.LSTM], hidden: int) -> None:
        super().__init__()
        self.cell, self.head = cell(28, hidden, batch_first=True), nn.Linear(hidden, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x.squeeze(1))[0][:, -1])


class Bag(nn.Module):
    """The mean of embeddings, and a perceptron."""

    def __init__(self, words: int = 2000, width: int = 64, classes: int = 20) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(words, width)
        self.rest = nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.rest(self.words(x))


class Causal(nn.Module):
    """A transformer that sees what came before."""

    def __init__(self, words: int = 7, length: int = 8, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.layers(self.words(x) + self.places, self.mask)))


class Mixer(nn.Module):
    """An MLP-Mixer on patches."""

    def __init__(self, width: int = 64, patches: int = 16, layers: int = 3) -> None:
        super().__init__()
        self.embed = nn.Linear(49, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))
        self.mixes = nn.ModuleList(
            nn.Sequential(nn.Linear(n, 2 * n), nn.GELU(), nn.Linear(2 * n, n))
            for _ in range(layers)
            for n in (patches, width)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(functional.unfold(x, 7, stride=7).mT)
        for index, (norm, mix) in enumerate(zip(self.norms, self.mixes, strict=True)):
            x = x + (mix(norm(x)) if index % 2 else mix(norm(x).mT).mT)
        return self.head(x.mean(1))


def relu(_: int) -> list[nn.Module]:
    return [nn.ReLU()]


def normed(width: int) -> list[nn.Module]:
    return [nn.BatchNorm1d(width), nn.ReLU()]


def groups(channels: int) -> nn.Module:
    return nn.GroupNorm(8, channels)


def pictures() -> Samples:
    x, _ = mnist()
    return x, x.flatten(1)


KINDS: dict[str, Kind] = {
    "perceptron": Kind(lambda: chain(784, 300, 100, 10, between=relu), mnist),
    "perceptron, AdamW": Kind(lambda: chain(784, 300, 100, 10, between=relu), mnist, "adamw"),
    "tanh": Kind(lambda: chain(784, 200, 200, 10, between=lambda _: [nn.Tanh()]), mnist),
    "batch norm": Kind(lambda: chain(784, 256, 256, 10, between=normed), mnist),
    "20 layers of 32": Kind(lambda: chain(784, *[32] * 20, 10, between=relu), mnist, "adamw"),
    "8 layers of 64": Kind(lambda: chain(784, *[64] * 8, 10, between=relu), mnist),
    "conv, batch norm": Kind(lambda: convolutions(3, 16, 32, 32, 64, norm=nn.BatchNorm2d), cifar),
    "conv, group norm": Kind(lambda: convolutions(3, 16, 32, 32, 64, norm=groups), cifar),
    "conv, group norm, AdamW": Kind(lambda: convolutions(3, 16, 32, 32, 64, norm=groups), cifar, "adamw"),
    "conv, no norm": Kind(models.cifar10_conv, partial(cifar, 12_000)),
    "depthwise": Kind(lambda: convolutions(3, 32, 64, 64, 128, norm=nn.BatchNorm2d, depthwise=True), cifar),
    "residual": Kind(lambda: models.resnet(1), partial(cifar, 3600)),
    "GRU": Kind(lambda: Recurrent(nn.GRU, 64), mnist, "adamw", epochs=6),
    "LSTM": Kind(lambda: Recurrent(nn.LSTM, 64), mnist, "adamw", epochs=6),
    "mixer": Kind(Mixer, mnist, "adamw"),
    "image transformer": Kind(models.image_transformer, mnist, "adamw", epochs=6),
    "causal transformer": Kind(Causal, sums, "adamw", epochs=15, loss=flat, score=tokens),
    "embedding bag": Kind(Bag, bags, "adamw"),
    "embedding bag, SGD": Kind(Bag, bags),
    "regression": Kind(
        lambda: chain(20, 128, 128, 128, 1, between=lambda _: [nn.SiLU()]),
        surface,
        "adamw",
        loss=functional.mse_loss,
        score=explained,
    ),
    "autoencoder": Kind(
        lambda: chain(784, 128, 32, 128, 784, between=relu),
        pictures,
        "adamw",
        loss=functional.mse_loss,
        score=explained,
    ),
}
