"""Budgets on a path: a layer that only its ball bounds gets a larger one, all others keep theirs."""

import pytest
import torch
from torch import nn

import inface

X = torch.randn(400, 30, generator=torch.Generator().manual_seed(1))
TRUE = torch.randn(30, 5, generator=torch.Generator().manual_seed(2)) * (torch.arange(30) < 4)[:, None]
CLASSES = (X @ TRUE).argmax(1)


def trained(model, loss, *, steps=300, density=0.2, factor=1.0, momentum=0.9, every=None):
    """Where training ends: the model, the growth of each layer's budget, and the loss."""
    opt = inface.sparse_optimizer(model, density=density, lr=0.1, steps=steps, momentum=momentum)
    paths = [group["path"] for group in opt.param_groups if group["set"] is not None]
    for path in paths:
        path["every"] = every or path["every"]
    before = [path["budget"] for path in paths]
    for _ in range(steps):
        opt.zero_grad()
        (loss(model) * factor).backward()
        opt.step()
    return [path["budget"] / old for path, old in zip(paths, before, strict=True)], float(loss(model).detach())


def certain(model):
    return nn.functional.cross_entropy(model(X), CLASSES)


def classifier(*, normalised=False, seed=0):
    torch.manual_seed(seed)
    last = nn.Linear(40, 5, bias=False)
    return nn.Sequential(
        nn.Linear(30, 40, bias=False),
        nn.ReLU(),
        last,
        *([nn.LayerNorm(5, elementwise_affine=False)] if normalised else []),
    )


def test_a_classifier_without_norms_becomes_as_certain_as_a_dense_one():
    grown, loss = trained(classifier(), certain)
    assert max(grown) > 2  # balls of the plain size hold outputs that are too small
    assert loss < 0.15


def test_where_a_norm_takes_the_length_out_nothing_pulls_outwards():
    grown, _ = trained(classifier(normalised=True), certain)
    free, _ = trained(classifier(), certain)
    # The gradient of what a norm rescales has no part along it; the average of some has a little along what it has become.
    assert grown[1] < 2 < 0.2 * free[1]


def test_a_layer_with_room_left_keeps_its_budget():
    torch.manual_seed(0)
    model = nn.Linear(30, 5)
    small = 0.01 * (X @ TRUE)
    grown, _ = trained(model, lambda net: nn.functional.mse_loss(net(X), small))
    assert grown == [1]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_layer_that_needs_ten_times_its_length_gets_it(momentum):
    torch.manual_seed(0)
    model, long = nn.Linear(30, 5), 3 * (X @ TRUE)
    (grown,), _ = trained(model, lambda net: nn.functional.mse_loss(net(X), long), momentum=momentum)
    assert grown > 3
    assert float(model.weight.detach().norm()) > 4  # it starts with 1.3


def test_the_loss_may_be_multiplied_by_any_number():
    one, two = classifier(), classifier()
    grown, _ = trained(one, certain, steps=100)
    again, _ = trained(two, certain, steps=100, factor=1024.0)
    assert grown == pytest.approx(again, rel=1e-4)


def test_a_budget_grows_with_the_path_and_not_with_the_number_of_cuts():
    few, _ = trained(classifier(), certain, steps=600, every=12)
    many, _ = trained(classifier(), certain, steps=600, every=1)
    assert max(many) < 4 * max(few)


def test_gradients_whose_squares_are_no_numbers_are_no_reason_to_grow():
    for factor in (1e-25, 1e-42):  # of float32: the square of the first is 0, the second is denormal
        grown, _ = trained(classifier(), certain, factor=factor, steps=100)
        assert max(grown) < 10
