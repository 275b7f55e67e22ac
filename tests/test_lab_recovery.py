"""SFW-IF finds the true network of the supplement's synthetic data, where it can be found."""

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from inface.lab import Settings, train
from inface.lab.data import synthetic

EDGES = 5
SAMPLES = (50_000, 5_000, 20_000)
FILE = f"""
from torch import nn
from inface.lab import Experiment, data, mean_squared_error, models
from inface.sets import L1Ball

mine = Experiment(
    data=lambda _: data.synthetic(edges={EDGES}, snr=10.0, activation="sigmoid", samples={SAMPLES}).data,
    model=lambda: models.perceptron(50, 50, 50, 1, activation="sigmoid", bias=False),
    sets={{"fc1.weight": L1Ball({EDGES}.0), "fc2.weight": L1Ball({EDGES}.0)}},
    loss=nn.functional.mse_loss,
    metric=mean_squared_error,
)
"""


@pytest.fixture(scope="module")
def truth():
    """The true weights, features to compare nodes on, and the variance of the noise."""
    made = synthetic(edges=EDGES, snr=10.0, activation="sigmoid", samples=SAMPLES)
    signal = layers(made.truth, made.data.train.inputs)[2]
    return made.truth, made.data.validation.inputs, float(signal.var()) / 10


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """SFW-IF and SGD with equal numbers of gradients, each with settings chosen on the validation data.

    Half of the supplement's training samples, in batches of 500 and for 30 epochs, are what ten seconds allow. For
    SFW-IF the radius is the true one; a constrained lr of 3000 and momentum 0.99 were the best of {100, 300, 1000, 3000,
    5000, 10000} and {0, 0.9, 0.95, 0.98, 0.99, 0.995}, an lr of 0.03 of {0.01, 0.03, 0.05, 0.1, 0.3}. For SGD lr 0.1 with
    momentum 0.9 was the best of lr in {0.03, 0.05, 0.1, 0.15, 0.2, 0.4}. Sigmoid, because with ReLU neither method finds the
    true nodes in this time.
    """
    place = tmp_path_factory.mktemp("recovery")
    (place / "mine.py").write_text(FILE)
    common = {"schedule": "cosine", "epochs": 30, "batch_size": 500, "threads": 1}
    chosen = {
        "sfw-if": {"lr": 0.03, "constrained_lr": 3000.0, "momentum": 0.99, "every_gradient": True},
        "sgd": {"lr": 0.1, "momentum": 0.9},
    }
    return {
        method: train(Settings(f"{place}/mine.py:mine", method=method, **common, **own), place / method)
        for method, own in chosen.items()
    }


def layers(weights, x):
    """The values of all nodes, layer by layer."""
    first = torch.sigmoid(x @ weights[0].T)
    second = torch.sigmoid(first @ weights[1].T)
    return [first, second, second @ weights[2].T]


def matched(learnt, true):
    """For each true node the learnt one that is most like it, one to one, by correlation of their values."""
    a, b = ((values - values.mean(0)) / (values.std(0) + 1e-9) for values in (learnt, true))
    rows, columns = linear_sum_assignment((a.T @ b).abs().numpy(), maximize=True)
    return dict(zip(columns.tolist(), rows.tolist(), strict=True))


def found(run, truth, x):
    """Of the true edges into each node of the first and the second layer, the part among its largest learnt ones.

    Nodes have no names, so learnt ones are first matched to true ones; of a matched node count as many edges as are true.
    """
    weights = [run.weights()[f"fc{number}.weight"] for number in (1, 2, 3)]
    learnt, true = layers(weights, x), layers(truth, x)
    nodes = matched(learnt[0], true[0])
    upper = matched(learnt[1], true[1])

    def largest(w):
        return set(w.abs().argsort(descending=True)[:EDGES].tolist())

    def edges(w):
        return w.nonzero().flatten().tolist()

    first = [len(largest(weights[0][nodes[k]]) & set(edges(truth[0][k]))) / EDGES for k in range(50)]
    second = [len(largest(weights[1][upper[k]]) & {nodes[j] for j in edges(truth[1][k])}) / EDGES for k in range(50)]
    return np.array(first), np.array(second)


def influence(truth, x):
    """How much of the output each node of the first layer is responsible for: the variance that goes with it."""
    hidden, _, output = layers(truth, x)
    lost = []
    for k in range(50):
        without = hidden.clone()
        without[:, k] = hidden[:, k].mean()
        lost.append(float((output - torch.sigmoid(without @ truth[1].T) @ truth[2].T).var()))
    return np.array(lost)


def test_sfw_if_finds_most_of_the_true_edges_into_the_first_layer(runs, truth):
    """Of 250; chance finds a tenth of them, and after matching, an untrained network has about a quarter.

    With seeds 0, 1, 2 it is 74, 66 and 71 %, with all 100,000 samples of the supplement 80 %.
    """
    weights, x, _ = truth
    first, _ = found(runs["sfw-if"], weights, x)
    dense, _ = found(runs["sgd"], weights, x)
    assert first.mean() > 0.6
    assert first.mean() > dense.mean() + 0.1


def test_sfw_if_finds_nearly_all_edges_of_the_nodes_that_matter(runs, truth):
    """The edges of the 20 nodes that the output depends on most are found, with any seed.

    Nodes whose effects cancel in the layers above cannot be seen from the output: of the last ten, SFW-IF finds about
    as many edges as an untrained network has.
    """
    weights, x, _ = truth
    first, _ = found(runs["sfw-if"], weights, x)
    order = influence(weights, x).argsort()
    assert first[order[30:]].mean() > 0.9
    assert first[order[:10]].mean() < 0.5


def test_the_second_layer_is_hidden_under_the_noise(runs, truth):
    """Sums of five sigmoids hardly leave the linear part of the next: linear layers above the first explain 97 %.

    Only the rest tells which edges go into which node of the second layer, and the noise is three times as large. Of
    these edges SFW-IF finds a quarter, more than chance (a tenth) and more than SGD, and far from most.
    """
    weights, x, noise = truth
    hidden, _, output = layers(weights, x)
    design = torch.cat([hidden, torch.ones(len(x), 1)], 1)
    left = output - design @ torch.linalg.lstsq(design, output).solution
    assert float(left.var()) < noise
    _, second = found(runs["sfw-if"], weights, x)
    _, dense = found(runs["sgd"], weights, x)
    assert second.mean() > 0.2
    assert second.mean() > dense.mean()


def test_sfw_if_is_sparser_than_sgd_at_no_worse_an_error(runs, truth):
    _, _, noise = truth
    sparse, dense = runs["sfw-if"].summary, runs["sgd"].summary
    assert sparse["steps"] == dense["steps"]
    assert noise < sparse["kept"]["100"] < 1.3 * noise
    assert sparse["kept"]["100"] <= 1.02 * dense["kept"]["100"]
    for name in ("fc1.weight", "fc2.weight"):
        assert sparse["layers"][name]["percent"] < 0.8 * dense["layers"][name]["percent"]
