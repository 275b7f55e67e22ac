"""Published numbers: the paper's Table 1 (P. Grigas, A. Lobos, N. Vermeersch, arXiv:1906.03580), and the LeNets."""

from __future__ import annotations

from dataclasses import dataclass

from inface.lab.runs.settings import Method

__all__ = ["EPOCHS", "LENETS", "LINES", "METHODS", "TABLE_1", "Compressed", "Reported"]


EPOCHS = 25
METHODS: tuple[Method, ...] = ("sfw-if", "sfw", "sgd")
# The lines of our Table 1, and the line of the paper's that each is compared with.
LINES: dict[str, Method] = {"sfw-if": "sfw-if", "sfw-if-every": "sfw-if", "sfw": "sfw", "sgd": "sgd"}


@dataclass(frozen=True)
class Reported:
    """The paper's numbers for one method on one network.

    Attributes:
        nonzeros: of layer 1 and layer 2, the average percentage of edges into a node of at least 0.001.
        kept: the test accuracy in % with the top theta % of the edges.
    """

    nonzeros: tuple[float, float]
    kept: dict[int, float]


def _reported(first: float, second: float, *accuracies: float) -> Reported:
    return Reported((first, second), dict(zip((100, 50, 25, 10, 5), accuracies, strict=True)))


TABLE_1: dict[str, dict[Method, Reported]] = {
    "mnist-mlp": {
        "sfw-if": _reported(10.05, 1.55, 96.88, 96.88, 96.88, 96.73, 96.49),
        "sfw": _reported(7.26, 0.73, 96.49, 96.49, 96.46, 96.22, 94.52),
        "sgd": _reported(97.28, 97.79, 98.25, 98.12, 97.73, 96.80, 81.12),
    },
    "mnist-conv": {
        "sfw-if": _reported(9.71, 27.34, 98.79, 98.79, 98.82, 98.58, 90.8),
        "sfw": _reported(1.69, 13.08, 98.50, 98.50, 98.50, 98.49, 98.06),
        "sgd": _reported(97.23, 98.78, 99.11, 99.07, 98.63, 96.44, 84.38),
    },
    "cifar10": {
        "sfw-if": _reported(29.27, 7.27, 54.72, 54.71, 54.33, 44.82, 32.68),
        "sfw": _reported(15.12, 13.26, 53.12, 53.12, 53.12, 52.57, 49.5),
        "sgd": _reported(98.08, 98.90, 57.76, 55.69, 49.04, 37.08, 23.63),
    },
}


@dataclass(frozen=True)
class Compressed:
    """A published network with few weights.

    Attributes:
        method: the method, and who published it.
        error: the test error in %.
        times: one in this many weights is left.
    """

    method: str
    error: float
    times: int


PRUNING = "pruning, Han et al., 2015"
DNS = "DNS, Guo et al., 2016"
SPARSE_VD = "SparseVD, Molchanov et al., 2017"
LENETS: dict[str, tuple[Compressed, ...]] = {
    "lenet-300-100": (
        Compressed(PRUNING, 1.59, 12),
        Compressed(DNS, 1.99, 56),
        Compressed(SPARSE_VD, 1.92, 68),
    ),
    "lenet-5": (Compressed(DNS, 0.91, 111), Compressed(SPARSE_VD, 0.75, 280)),
}
