"""The baselines of Frank-Wolfe training, checked step by step."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from inface.cli.app import run as command
from inface.lab import ArgumentError, Settings, train
from inface.lab.experiments.builtin import find
from inface.lab.runs.baselines import ProximalSGD, PrunedSGD
from inface.lab.runs.setup import make_optimizer, rate_factor, resolve

BASE = Settings("digits", method="gradual", keep=0.05, lr=0.1, momentum=0.9, epochs=5, batch_size=200, threads=1)


def pruned(layer, **changes):
    given = {"lr": 0.1, "momentum": 0.0, "keep": 0.1, "total": 100, "begin": 0.1, "end": 0.8}
    return PrunedSGD([layer], [layer], **{**given, **changes})


def test_the_density_falls_as_a_cubic_from_one_to_what_is_kept():
    opt = pruned(nn.Parameter(torch.ones(10, 10)))
    assert [opt.density(taken) for taken in (0, 9, 80, 100)] == [1.0, 1.0, 0.1, 0.1]
    assert opt.density(45) == pytest.approx(0.1 + 0.9 * 0.5**3)
    falling = [opt.density(taken) for taken in range(101)]
    assert falling == sorted(falling, reverse=True)


@pytest.mark.parametrize("every", [1, 7])
def test_pruning_is_sgd_followed_by_zeroing_the_smallest(every):
    torch.manual_seed(0)
    layer = nn.Parameter(torch.randn(10, 20))
    opt = pruned(layer, every=every)
    x, mask = layer.detach().clone(), torch.ones(10, 20)
    for taken in range(1, 101):
        layer.grad = torch.randn(10, 20)
        x = (x - 0.1 * layer.grad) * 1
        opt.step()
        density = opt.density(taken)
        if density < 1:
            ended = density == 0.1 and opt.density(taken - 1) > 0.1
            if taken % every == 0 or ended or mask.all():
                count = round(density * 200)
                kept = (x * mask).abs().flatten().topk(count).indices
                mask = torch.zeros(200).scatter(0, kept, 1.0).reshape(10, 20)
            x = x * mask
        torch.testing.assert_close(layer.detach(), x)
    assert layer.count_nonzero() == 20


def test_what_is_pruned_stays_zero_whatever_its_momentum():
    layer = nn.Parameter(torch.tensor([[1.0, 0.1]]))
    opt = pruned(layer, momentum=0.9, keep=0.5, begin=0.02, end=0.02)
    for _ in range(50):
        layer.grad = torch.tensor([[0.0, -1.0]])
        opt.step()
        if opt.param_groups[0]["taken"] >= 2:
            assert layer.count_nonzero() == 1


def test_pruned_together_layers_keep_the_largest_edges_of_all():
    torch.manual_seed(0)
    large, small = nn.Parameter(2 * torch.randn(10, 20)), nn.Parameter(torch.randn(5, 20))
    opt = PrunedSGD(
        [large, small], [large, small], lr=0.0, momentum=0.0, keep=0.1, total=10, begin=0.1, end=0.8, together=True
    )
    everything = torch.cat([large.detach().flatten(), small.detach().flatten()])
    for taken in range(1, 11):
        large.grad, small.grad = torch.ones(10, 20), torch.ones(5, 20)
        opt.step()
        count = round(opt.density(taken) * 300)
        threshold = everything.abs().topk(count).values.min()
        found = torch.cat([large.detach().flatten(), small.detach().flatten()])
        assert torch.equal(found, torch.where(everything.abs() >= threshold, everything, 0))
    assert large.count_nonzero() + small.count_nonzero() == 30
    assert large.count_nonzero() > 3 * small.count_nonzero()


def test_proximal_sgd_is_a_step_and_a_shrinkage():
    torch.manual_seed(0)
    layer, free = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(3))
    opt = ProximalSGD([layer, free], [layer], lr=0.1, momentum=0.0, shrinkage=2.0)
    x, y = layer.detach().clone(), free.detach().clone()
    for _ in range(5):
        layer.grad, free.grad = torch.randn(3, 4), torch.randn(3)
        x, y = x - 0.1 * layer.grad, y - 0.1 * free.grad
        x = x.sign() * (x.abs() - 0.2).clamp(min=0)
        opt.step()
        torch.testing.assert_close(layer.detach(), x)
        torch.testing.assert_close(free.detach(), y)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_proximal_sgd_comes_to_rest_at_the_optimum_of_the_penalised_loss(momentum):
    """Of |x - a|^2 / 2 + 0.3 |x|_1 that is a, shrunk by 0.3; whatever the momentum."""
    wanted = torch.tensor([[1.0, -0.5, 0.2, -0.1]])
    layer = nn.Parameter(torch.zeros(1, 4))
    opt = ProximalSGD([layer], [layer], lr=0.01, momentum=momentum, shrinkage=0.3)
    for _ in range(3000):
        layer.grad = layer.detach() - wanted
        opt.step()
    torch.testing.assert_close(layer.detach(), nn.functional.softshrink(wanted, 0.3), atol=1e-5, rtol=0)


def test_the_steps_of_pruning_fall_twice():
    settings = replace(BASE, method="prune", schedule="cosine")
    factors = [rate_factor(settings, step, 100) for step in (0, 40, 79, 80, 90, 99)]
    assert factors == pytest.approx([1, 0.5, 0, 1, 0.5, 0], abs=0.01)
    assert rate_factor(replace(settings, method="gradual"), 50, 100) == pytest.approx(0.5)


@pytest.mark.parametrize("method", ["sgd", "prune", "gradual", "proximal"])
def test_weight_decay_is_torchs(method):
    needed = {"prune": {"keep": 0.1}, "gradual": {"keep": 0.1}, "proximal": {"keep": None, "shrinkage": 0.1}}
    settings = replace(BASE, **{"method": method, "weight_decay": 0.01, "keep": None, **needed.get(method, {})})
    model = find("digits", {}).model()
    opt = make_optimizer(settings, find("digits", {}), model, total=1000)
    before = model.fc3.bias.detach().clone()  # no layer that is pruned or shrunk
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    opt.step()
    torch.testing.assert_close(model.fc3.bias.detach(), before * (1 - 0.1 * 0.01))
    assert resolve(replace(settings, weight_decay=0.0)).weight_decay is None
    assert resolve(Settings("digits", weight_decay=0.1)).weight_decay is None


@pytest.mark.parametrize("method", ["prune", "gradual"])
def test_a_pruned_network_has_as_many_edges_as_were_to_be_kept(tmp_path, method):
    run = train(replace(BASE, method=method), tmp_path)
    for layer in run.summary["layers"].values():
        assert layer["exact_percent"] == pytest.approx(5, abs=0.01)
    assert run.summary["kept"]["100"] == run.summary["kept"]["5"]
    assert run.summary["gap"] is None


def test_a_shrunk_network_has_exact_zeros(tmp_path):
    settings = replace(BASE, method="proximal", keep=None, shrinkage=0.003, epochs=20)
    layers = train(settings, tmp_path).summary["layers"].values()
    assert all(layer["exact_percent"] < 90 for layer in layers)


@pytest.mark.parametrize("method", ["prune", "gradual", "proximal"])
def test_a_killed_run_ends_with_the_same_weights(tmp_path, method):
    own = {"shrinkage": 0.003, "keep": None} if method == "proximal" else {}
    settings = replace(BASE, method=method, **own)
    whole = train(settings, tmp_path / "whole")

    def stop_after(epoch):
        def stop(record):
            if record.get("epoch") == epoch:
                raise KeyboardInterrupt

        return stop

    for epoch in (2, 4):
        with pytest.raises(KeyboardInterrupt):
            train(settings, tmp_path / "killed", resume=True, watch=stop_after(epoch), checkpoint_seconds=0)
    killed = train(settings, tmp_path / "killed", resume=True)
    assert killed.model_file.read_bytes() == whole.model_file.read_bytes()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"keep": None}, r"keep: the method \w+ needs it; wanted a number in \(0, 1\], got None"),
        ({"keep": 0.0}, r"keep: wanted a number in \(0, 1\]"),
        ({"keep": 1.5}, "keep: wanted"),
        ({"method": "proximal"}, "shrinkage: the method proximal needs it; wanted a number > 0, got None"),
        ({"weight_decay": -1.0}, "weight-decay: wanted a number >= 0, got -1.0"),
        ({"method": "proximal", "shrinkage": -1.0}, "shrinkage: wanted a number > 0"),
    ],
)
def test_what_a_baseline_needs_is_asked_for(changes, words):
    with pytest.raises(ArgumentError, match=words):
        replace(BASE, **changes)


def test_what_a_method_does_not_read_is_left_out():
    assert resolve(replace(BASE, method="sgd")).keep is None
    assert resolve(replace(BASE, method="sfw-if", shrinkage=1.0)).shrinkage is None
    assert resolve(BASE).keep == 0.05


def test_baselines_on_the_command_line(tmp_path, capsys):
    arguments = ["train", "digits", "--out", str(tmp_path / "run"), "--epochs", "1", "--threads", "1"]
    assert command([*arguments, "--method", "gradual", "--radius", "1", "2", "--keep", "0.1"]) == 2
    assert command([*arguments, "--method", "sgd", "--keep", "0.1"]) == 2
    assert command([*arguments, "--method", "gradual"]) == 2
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "inface: --method gradual does not use --radius"
    assert told[1] == "inface: --method sgd does not use --keep"
    assert "the method gradual needs it" in told[2]
    assert command([*arguments, "--method", "gradual", "--keep", "0.1"]) == 0
