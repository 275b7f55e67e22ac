"""The baselines of Frank-Wolfe training, checked step by step."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from inface.cli.app import run as command
from inface.lab import ArgumentError, Run, Settings, train
from inface.lab.experiments.builtin import find
from inface.lab.runs.baselines import (
    SET,
    ProximalAdamW,
    ProximalSGD,
    PrunedAdamW,
    PrunedSGD,
    RigL,
    RigLAdamW,
    SETAdamW,
    edge_counts,
    sparse_init_,
)
from inface.lab.runs.evaluation import evaluate
from inface.lab.runs.setup import experiment_of, make_model, make_optimizer, rate_factor, resolve

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


# ---------------------------------------------------------------------- sparse training


SHAPES = [(300, 784), (100, 300), (10, 100)]


@pytest.mark.parametrize("keep", [0.001, 0.05, 0.3, 1.0])
def test_uniform_layers_keep_the_same_part_of_their_edges(keep):
    assert edge_counts(SHAPES, keep, "uniform") == [round(keep * a * b) for a, b in SHAPES]


@pytest.mark.parametrize("keep", [0.001, 0.01, 0.05, 0.1, 0.3, 0.77, 1.0])
@pytest.mark.parametrize("shapes", [SHAPES, [(64, 3, 3, 3), (128, 64, 3, 3), (10, 128)], [(7, 5)]], ids=str)
def test_erk_densities_are_those_of_the_paper_and_the_edges_add_up(shapes, keep):
    """The density is proportional to (n_in + n_out + kernel) / (n_in n_out kernel), and at most 1."""
    counts, sizes = edge_counts(shapes, keep, "erk"), np.array([np.prod(shape) for shape in shapes])
    assert sum(counts) == max(len(shapes), round(keep * sizes.sum()))
    ratios, dense = np.array([sum(shape) for shape in shapes]) / sizes, np.zeros(len(shapes), bool)
    for _ in shapes:  # the fixed point: what is left over goes to the layers that are not dense
        epsilon = (keep * sizes.sum() - sizes[dense].sum()) / max((ratios * sizes)[~dense].sum(), 1e-9)
        over = ~dense & (epsilon * ratios > 1)
        dense |= over & (ratios == ratios[~dense].max(initial=0))
    wanted = np.where(dense, sizes, epsilon * ratios * sizes)
    np.testing.assert_allclose(counts, np.clip(wanted, 1, sizes), atol=2)


def test_a_layer_that_erk_would_make_denser_than_dense_is_dense():
    first, second, last = edge_counts(SHAPES, 0.1, "erk")
    assert last == 1000
    assert first / second == pytest.approx(1084 / 400, rel=1e-3)
    assert first + second + last == round(0.1 * 266200)


@pytest.mark.parametrize("distribution", [None, "erk", "uniform"])
@pytest.mark.parametrize("method", ["rigl", "set"])
def test_a_network_starts_with_random_edges_of_the_usual_initialisation(method, distribution):
    settings = Settings("digits", method=method, keep=0.05, distribution=distribution, seed=3)
    model, dense = (make_model(one, experiment_of(one)) for one in (settings, replace(settings, method="sgd")))
    layers = [model.fc1.weight, model.fc2.weight]
    counts = edge_counts([p.shape for p in layers], 0.05, distribution or "erk")
    assert [int(p.count_nonzero()) for p in layers] == counts
    for p, q in zip(model.parameters(), dense.parameters(), strict=True):
        assert torch.equal(p, torch.where(p != 0, q, 0))
    assert torch.equal(model.fc3.weight, dense.fc3.weight)
    middle = layers[0].detach()[layers[0] != 0]
    assert abs(float(middle.mean())) < 4 * float(middle.std()) / len(middle) ** 0.5  # not the largest, say


def sparse_layer(seed=0, shape=(10, 20), count=60):
    torch.manual_seed(seed)
    layer = nn.Parameter(torch.randn(shape))
    sparse_init_([layer], [count])
    return layer


def fraction(taken, total, alpha=0.3, end=0.75):
    return alpha / 2 * (1 + np.cos(np.pi * taken / (end * total)))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_rigl_is_the_algorithm_of_its_paper(momentum):
    layer, free = sparse_layer(), nn.Parameter(torch.randn(5))
    opt = RigL([layer, free], [layer], lr=0.1, momentum=momentum, weight_decay=0.01, total=80, every=5)
    w, b = layer.detach().numpy().copy().ravel(), free.detach().numpy().copy()
    mask, m, n = w != 0, np.zeros(200, np.float32), np.zeros(5, np.float32)
    changed = 0
    for t in range(1, 81):
        layer.grad, free.grad = torch.randn(10, 20), torch.randn(5)
        g, h = layer.grad.numpy().ravel(), free.grad.numpy()
        opt.step()
        if t % 5 == 0 and t < 60:
            k = int(fraction(t, 80) * mask.sum())
            active = np.flatnonzero(mask)
            dropped = active[np.argsort(np.abs(w[active]))[:k]]
            kept = mask.copy()
            kept[dropped] = False
            others = np.flatnonzero(~kept)
            grown = others[np.argsort(-np.abs(g[others]))[:k]]
            w[~kept], m[~kept] = 0, 0
            mask = kept.copy()
            mask[grown] = True
            changed += k
        else:
            m = momentum * m + mask * (g + np.float32(0.01) * w)
            n = momentum * n + h + np.float32(0.01) * b
            w, b = w - np.float32(0.1) * m, b - np.float32(0.1) * n
        np.testing.assert_allclose(layer.detach().numpy().ravel(), w, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(free.detach().numpy(), b, rtol=1e-4, atol=1e-5)
        assert np.array_equal(opt.state[layer]["mask"].numpy().ravel(), mask)
        assert mask.sum() == 60
    assert changed > 50


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_set_is_the_algorithm_of_its_paper_with_random_places_of_its_own(momentum):
    layer = sparse_layer()
    opt = SET([layer], [layer], lr=0.1, momentum=momentum, total=80, every=5, seed=7)
    w = layer.detach().numpy().copy().ravel()
    mask, m = w != 0, np.zeros(200, np.float32)
    places = []
    for t in range(1, 81):
        layer.grad = torch.randn(10, 20)
        opt.step()
        m = momentum * m + mask * layer.grad.numpy().ravel()
        w = w - np.float32(0.1) * m
        if t % 5 == 0 and t < 60:
            positive, negative = np.flatnonzero(mask & (w >= 0)), np.flatnonzero(mask & (w < 0))
            part = fraction(t, 80)
            smallest = positive[np.argsort(w[positive])[: int(part * len(positive))]]
            largest = negative[np.argsort(-w[negative])[: int(part * len(negative))]]
            kept = mask.copy()
            kept[smallest] = kept[largest] = False
            w[~kept], m[~kept] = 0, 0
            mask = opt.state[layer]["mask"].numpy().ravel() > 0  # at random
            assert (mask & kept).sum() == kept.sum()
            places += np.flatnonzero(mask & ~kept).tolist()
        np.testing.assert_allclose(layer.detach().numpy().ravel(), w, rtol=1e-4, atol=1e-5)
        assert np.array_equal(opt.state[layer]["mask"].numpy().ravel(), mask)
        assert mask.sum() == 60
    assert len(places) > 50
    assert 60 < np.mean(places) < 140  # anywhere


def test_the_places_of_set_depend_on_the_seed_and_the_gradients_so_far_alone():
    masks = []
    for seed in (0, 0, 1):
        layer = sparse_layer()
        opt = SET([layer], [layer], lr=0.1, momentum=0.0, total=100, every=1, seed=seed)
        torch.rand(seed + len(masks))  # whatever else is drawn
        for _ in range(5):
            layer.grad = torch.zeros(10, 20)
            opt.step()
        masks.append(opt.state[layer]["mask"])
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])


@pytest.mark.parametrize("make", [RigL, lambda *args, **options: SET(*args, **options, seed=0)], ids=["rigl", "set"])
def test_a_layer_with_all_edges_keeps_them(make):
    layer = nn.Parameter(torch.randn(4, 5))
    opt = make([layer], [layer], lr=0.0, momentum=0.0, total=100, every=1)
    before = layer.detach().clone()
    for _ in range(5):
        layer.grad = torch.randn(4, 5)
        opt.step()
    assert torch.equal(layer, before)


@pytest.mark.parametrize("make", [RigL, lambda *args, **options: SET(*args, **options, seed=0)], ids=["rigl", "set"])
def test_edges_change_less_and_less_and_stay_for_the_last_quarter(make):
    layer = sparse_layer()
    opt = make([layer], [layer], lr=0.1, momentum=0.0, total=1000)
    parts = [opt.dropped(taken) for taken in range(1, 1001)]
    assert [taken for taken, part in enumerate(parts, start=1) if part] == [100, 200, 300, 400, 500, 600, 700]
    assert parts[99] == pytest.approx(fraction(100, 1000))
    changing = [part for part in parts if part]
    assert changing == sorted(changing, reverse=True)
    assert make([layer], [layer], lr=0.1, momentum=0.0, total=1000).step(lambda: 5.0) == 5.0


@pytest.mark.parametrize(("total", "every"), [(50, 10), (600, 10), (6000, 60), (50_000, 100)])
def test_short_runs_change_edges_more_often_than_every_hundred_gradients(total, every):
    settings = replace(BASE, method="rigl")
    model = make_model(settings, experiment_of(settings))
    assert make_optimizer(settings, experiment_of(settings), model, total).every == every


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


# ---------------------------------------------------------------------- AdamW instead of SGD


def steps_beside_adamw(make, count=40):
    """Take steps of a baseline; yield its layer beside what AdamW alone would have made of it in this step."""
    torch.manual_seed(0)
    layer, plain = sparse_layer(), nn.Parameter(torch.zeros(10, 20))
    opt, beside = make(layer), torch.optim.AdamW([plain], lr=0.01, weight_decay=0.1)
    for t in range(1, count + 1):
        plain.data.copy_(layer.detach())
        layer.grad = plain.grad = torch.randn(10, 20)
        beside.step()
        opt.step()
        yield t, layer, plain, opt, beside


ADAMW = {"lr": 0.01, "weight_decay": 0.1}


def test_pruning_with_adamw_is_its_step_without_the_pruned_edges():
    def make(p):
        return PrunedAdamW([p], [p], **ADAMW, keep=0.1, total=40, begin=0.5, end=0.5)

    for t, layer, plain, opt, _ in steps_beside_adamw(make):
        mask = opt.state[layer].get("mask", torch.ones(10, 20))
        torch.testing.assert_close(layer.detach(), plain.detach() * mask)
        assert int(mask.sum()) == (200 if t < 20 else 20)


@pytest.mark.parametrize("kind", [RigLAdamW, SETAdamW])
def test_edges_move_with_adamw_too_and_start_with_no_moments(kind):
    own = {"seed": 0} if kind is SETAdamW else {}

    def make(p):
        return kind([p], [p], **ADAMW, **own, total=40, every=10)

    before = None
    for t, layer, plain, opt, beside in steps_beside_adamw(make):
        state = opt.state[layer]
        if opt.dropped(t):
            grown = (state["mask"] > 0) & ~before
            assert grown.any()
            assert not layer[grown].any()
            assert not state["exp_avg"][grown].any()
            assert not state["exp_avg_sq"][grown].any()
            beside.load_state_dict(opt.state_dict())  # from here on with its moments
            beside.state[plain] = {key: beside.state[plain][key].clone() for key in ("step", "exp_avg", "exp_avg_sq")}
        else:
            torch.testing.assert_close(layer.detach(), plain.detach() * state["mask"])
        before = state["mask"] > 0
        assert int(before.sum()) == 60


def test_proximal_adamw_shrinks_by_the_learning_rate_times_the_penalty():
    for _, layer, plain, _, _ in steps_beside_adamw(lambda p: ProximalAdamW([p], [p], **ADAMW, shrinkage=0.5), 10):
        torch.testing.assert_close(layer.detach(), nn.functional.softshrink(plain.detach(), 0.005))


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("sgd", "AdamW"),
        ("prune", "PrunedAdamW"),
        ("gradual", "PrunedAdamW"),
        ("rigl", "RigLAdamW"),
        ("set", "SETAdamW"),
        ("proximal", "ProximalAdamW"),
    ],
)
def test_free_adamw_gives_every_baseline_its_steps_and_no_momentum(method, kind):
    settings = replace(BASE, method=method, free="adamw", shrinkage=0.1, weight_decay=0.02)
    opt = make_optimizer(resolve(settings), find("digits"), find("digits").model(), total=1000)
    assert type(opt).__name__ == kind
    assert (opt.param_groups[0]["betas"], opt.param_groups[0]["weight_decay"]) == ((0.9, 0.999), 0.02)
    assert resolve(settings).momentum == 0.0
    assert resolve(replace(settings, free="sgd")).momentum == 0.9


def test_the_steps_of_pruning_fall_twice():
    settings = replace(BASE, method="prune", schedule="cosine")
    factors = [rate_factor(settings, step, 100) for step in (0, 40, 79, 80, 90, 99)]
    assert factors == pytest.approx([1, 0.5, 0, 1, 0.5, 0], abs=0.01)
    assert rate_factor(replace(settings, method="gradual"), 50, 100) == pytest.approx(0.5)


@pytest.mark.parametrize("method", ["sgd", "prune", "gradual", "rigl", "set", "proximal"])
def test_weight_decay_is_torchs(method):
    needed = {"sgd": {"keep": None}, "proximal": {"keep": None, "shrinkage": 0.1}}
    settings = replace(BASE, **{"method": method, "weight_decay": 0.01, "keep": 0.1, **needed.get(method, {})})
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


@pytest.mark.parametrize("method", ["prune", "gradual"])
def test_a_network_pruned_with_one_threshold_has_as_many_edges_as_were_to_be_kept(tmp_path, method):
    run = train(replace(BASE, method=method, distribution="global"), tmp_path)
    layers = run.summary["layers"].values()
    weights = load_file(run.model_file)
    kept = [int(weights[name].count_nonzero()) for name in ("fc1.weight", "fc2.weight")]
    assert sum(kept) == round(0.05 * sum(weights[name].numel() for name in ("fc1.weight", "fc2.weight")))
    assert len({layer["exact_percent"] for layer in layers}) == 2


@pytest.mark.parametrize("distribution", ["erk", "uniform"])
@pytest.mark.parametrize("method", ["rigl", "set"])
def test_a_sparse_network_has_at_most_as_many_edges_as_were_to_be_kept(tmp_path, method, distribution):
    settings = replace(BASE, method=method, distribution=distribution, keep=0.1, epochs=20)
    run = train(settings, tmp_path)
    layers = [load_file(run.model_file)[name] for name in ("fc1.weight", "fc2.weight")]
    start = make_model(settings, experiment_of(settings))
    counts = edge_counts([p.shape for p in layers], 0.1, distribution)
    found = [int(p.count_nonzero()) for p in layers]
    assert all(0.5 * count < edges <= count for edges, count in zip(found, counts, strict=True))
    assert not torch.equal(layers[0] != 0, start.fc1.weight != 0)
    assert run.summary["kept"]["100"] > 60
    assert run.summary["gap"] is None
    assert evaluate(run)["kept"] == run.summary["kept"]


def test_a_shrunk_network_has_exact_zeros(tmp_path):
    settings = replace(BASE, method="proximal", keep=None, shrinkage=0.003, epochs=20)
    layers = train(settings, tmp_path).summary["layers"].values()
    assert all(layer["exact_percent"] < 90 for layer in layers)


@pytest.mark.parametrize("method", ["prune", "gradual", "gradual global", "rigl", "set", "proximal", "rigl adamw"])
def test_a_killed_run_ends_with_the_same_weights(tmp_path, method):
    own = {"shrinkage": 0.003, "keep": None} if method == "proximal" else {}
    method, _, how = method.partition(" ")
    how = {"free": "adamw", "lr": 0.003} if how == "adamw" else {"distribution": how or None}
    settings = replace(BASE, method=method, **how, **own)
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
        ({"keep": None}, r"keep: the method \w+ needs it; wanted a number in \(0, 1\], such as 0.05 or 5%, got None"),
        ({"keep": 0.0}, r"keep: wanted a number in \(0, 1\]"),
        ({"keep": 1.5}, "keep: wanted"),
        ({"method": "rigl", "keep": None}, "keep: the method rigl needs it"),
        ({"method": "set", "distribution": "global"}, r"wanted erk or uniform, got global.* \(with the method set\)"),
        ({"distribution": "erk"}, r"distribution: wanted uniform or global, got erk.* \(with the method gradual\)"),
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


def test_the_default_distribution_is_the_same_run_whether_given_or_not():
    for method, default in {"prune": "uniform", "gradual": "uniform", "rigl": "erk", "set": "erk"}.items():
        settings = replace(BASE, method=method)
        assert resolve(replace(settings, distribution=default)) == resolve(settings)
    assert resolve(replace(BASE, method="rigl", distribution="uniform")).distribution == "uniform"


def test_baselines_on_the_command_line(tmp_path, capsys):
    arguments = ["train", "digits", "--out", str(tmp_path / "run"), "--epochs", "1", "--threads", "1"]
    assert command([*arguments, "--method", "gradual", "--radius", "1", "2", "--keep", "0.1"]) == 2
    assert command([*arguments, "--method", "sgd", "--keep", "0.1"]) == 2
    assert command([*arguments, "--method", "gradual"]) == 2
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "inface: --method gradual does not use --radius"
    assert told[1] == "inface: --method sgd does not use --keep"
    assert "the method gradual needs it" in told[2]
    assert command([*arguments, "--method", "gradual", "--keep", "10%"]) == 0
    assert Run(tmp_path / "run").settings.keep == 0.1
