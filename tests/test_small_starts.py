"""Networks that start small, and gradients that grow, train as others do."""

import copy

import pytest
import torch
from torch import nn

import inface

STEPS = 400


def problem():
    torch.manual_seed(0)
    teacher = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8))
    inputs = torch.randn(1000, 16)
    return inputs, (3 * teacher(inputs)).argmax(1)


def trained(model, free, lr):
    inputs, targets = problem()
    opt = inface.sparse_optimizer(model, density=0.2, lr=lr, steps=STEPS, free=free)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS)
    generator = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        chosen = torch.randint(0, 1000, (50,), generator=generator)
        opt.zero_grad()
        nn.functional.cross_entropy(model(inputs[chosen]), targets[chosen]).backward()
        opt.step()
        schedule.step()
    with torch.no_grad():
        return float((model(inputs).argmax(1) == targets).float().mean())


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))


@pytest.mark.parametrize(("free", "lr"), [("sgd", 0.1), ("adamw", 0.003)])
def test_a_network_that_starts_small_learns_as_well_as_one_of_pytorch(free, lr):
    usual, small = network(), network()
    for layer in (small[0], small[2], small[4]):
        nn.init.normal_(layer.weight, std=0.02)
    assert trained(small, free, lr) > trained(usual, free, lr) - 0.1


def test_a_gradient_a_thousand_times_as_large_does_not_throw_a_layer_away():
    model, (inputs, targets) = network(), problem()
    opt = inface.sparse_optimizer(model, density=0.2, lr=0.1, steps=120)
    moves = []
    for step in range(120):
        before = copy.deepcopy(model[2].weight.detach())
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs[:100]), targets[:100])
        (loss * (1000 if step == 80 else 1)).backward()
        opt.step()
        moves.append(float((model[2].weight.detach() - before).norm() / before.norm()))
    assert max(moves[80:]) < 4 * max(moves[30:80])
