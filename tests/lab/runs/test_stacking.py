"""Networks trained together are the networks trained one by one."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn

from inface.lab import ArgumentError, Settings, train
from inface.lab.experiments.models import perceptron
from inface.lab.runs.batched import Perceptrons, Vmapped, batched
from inface.lab.runs.stacking import Stack, train_together

BASE = Settings("digits", epochs=2, batch_size=200, threads=1)
FLAVOURS = {
    "sfw-if": {"method": "sfw-if"},
    "sfw-if averaged": {"method": "sfw-if", "momentum": 0.9, "schedule": "cosine", "every_gradient": True},
    "sfw": {"method": "sfw", "momentum": 0.5},
    "sgd": {"method": "sgd"},
    "sgd momentum": {"method": "sgd", "momentum": 0.9, "schedule": "cosine"},
}


def alone(settings, folder):
    return [train(one, folder / str(number)).summary for number, one in enumerate(settings)]


def assert_equal(together, separate):
    for one, other in zip(together, separate, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)
        assert one["train_loss"] == pytest.approx(other["train_loss"], rel=1e-4)
        for theta, value in one["kept"].items():
            assert value == pytest.approx(other["kept"][theta], abs=0.6)  # two samples of 360 near a border
        for name, counted in one["layers"].items():
            assert counted["percent"] == pytest.approx(other["layers"][name]["percent"], abs=0.2)
        if one["gap"]:
            assert one["gap"]["exact"] == pytest.approx(other["gap"]["exact"], rel=1e-3)


def of_their_own(base, flavour):
    """Settings that differ in all that networks of a stack may differ in."""
    own = [{"lr": 0.1, "seed": 0}, {"lr": 0.02, "seed": 1}, {"lr": 0.1, "seed": 2}]
    if flavour["method"] != "sgd":
        for one, radius, rate in zip(own, [(1.0, 5.0), (2.0, 5.0), (3.0, 1.0)], [None, 1.0, (4.0, 0.5)], strict=True):
            one |= {"radius": radius, "constrained_lr": rate}
    return [replace(base, **flavour, **one) for one in own]


@pytest.mark.parametrize("flavour", FLAVOURS.values(), ids=FLAVOURS)
def test_networks_with_their_own_settings_end_as_they_do_alone(tmp_path, flavour):
    settings = of_their_own(BASE, flavour)
    assert_equal(train_together(settings), alone(settings, tmp_path))


@pytest.fixture
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("flavour", FLAVOURS.values(), ids=FLAVOURS)
def test_after_hundreds_of_gradients_in_double_precision_the_weights_are_those_of_separate_runs(tmp_path, flavour):
    (tmp_path / "mine.py").write_text(
        """
from dataclasses import replace
from inface.lab import Split
from inface.lab.experiments.builtin import digits

def data(folder):
    found = digits().data(folder)
    train, test = (Split(split.inputs.double(), split.targets) for split in (found.train, found.test))
    return replace(found, train=train, test=test)

mine = replace(digits(), data=data)
"""
    )
    settings = of_their_own(replace(BASE, experiment=f"{tmp_path / 'mine.py'}:mine", epochs=25), flavour)
    stack = Stack(settings)
    stack.train()
    for number, (one, model) in enumerate(zip(settings, stack.models, strict=True)):
        run = train(one, tmp_path / str(number))
        assert run.summary["steps"] == 200
        torch.testing.assert_close(dict(model.state_dict()), run.weights(), rtol=0, atol=1e-12)


def test_networks_of_one_seed_share_their_batches(tmp_path):
    settings = [replace(BASE, lr=lr, radius=(r, 5.0)) for lr, r in itertools.product((0.05, 0.2), (1.0, 3.0))]
    assert_equal(train_together(settings), alone(settings, tmp_path))


def test_trials_have_data_of_their_own(tmp_path):
    (tmp_path / "mine.py").write_text(
        """
from torch import nn
from inface.lab import Experiment, mean_squared_error
from inface.lab.experiments.data import synthetic
from inface.lab.experiments.models import perceptron
from inface.sets import L1Ball

def small(trial: int = 0) -> Experiment:
    return Experiment(
        data=lambda _: synthetic(edges=5, trial=trial, samples=(2000, 10, 1000)).data,
        model=lambda: perceptron(50, 50, 50, 1, activation="sigmoid", bias=False),
        sets={"fc1.weight": L1Ball(5.0), "fc2.weight": L1Ball(5.0)},
        loss=nn.functional.mse_loss,
        metric=mean_squared_error,
    )
"""
    )
    name = f"{tmp_path / 'mine.py'}:small"
    settings = [Settings(name, options={"trial": trial}, lr=0.1, epochs=2, threads=1) for trial in range(3)]
    together, separate = train_together(settings), alone(settings, tmp_path)
    assert len({result["loss"] for result in together}) == 3
    for one, other in zip(together, separate, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)
        assert one["kept"]["25"] == pytest.approx(other["kept"]["25"], rel=1e-3)


def test_a_network_that_diverges_does_not_disturb_the_others(tmp_path):
    settings = [replace(BASE, method="sgd", lr=lr) for lr in (0.1, 1e30, 0.05)]
    together = train_together(settings)
    assert together[1] is None
    assert_equal([together[0], together[2]], alone([settings[0], settings[2]], tmp_path))


def test_what_networks_cannot_differ_in_is_named():
    with pytest.raises(ArgumentError, match=r"momentum must be the same for all, got 0.0 and 0.9"):
        train_together([BASE, replace(BASE, momentum=0.9)])
    with pytest.raises(ArgumentError, match="must be of the same kind"):
        train_together(
            [Settings("synthetic", options={"activation": kind, "samples": 50}) for kind in ("relu", "sigmoid")]
        )
    with pytest.raises(ArgumentError, match="wanted the method sfw-if, sfw or sgd, got gradual"):
        train_together([replace(BASE, method="gradual", keep=0.1)])
    with pytest.raises(ArgumentError, match=r"wanted no weight_decay, got 0.001"):
        train_together([replace(BASE, method="sgd", weight_decay=1e-3)])
    with pytest.raises(ArgumentError, match="wanted free sgd, got adamw"):
        train_together([replace(BASE, method="sgd", free="adamw")])
    with pytest.raises(ArgumentError, match="at least one network"):
        train_together([])


def test_every_epoch_is_watched():
    seen = []
    train_together([BASE, replace(BASE, seed=1)], watch=lambda epoch, losses: seen.append((epoch, len(losses))))
    assert seen == [(1, 2), (2, 2)]


def test_scores_are_those_of_the_summaries():
    settings = [replace(BASE, lr=lr, measured_on="validation") for lr in (0.1, 0.05, 1e30)]
    for chosen in (settings, [replace(one, seed=seed) for seed, one in enumerate(settings)]):
        stack = Stack([replace(one, method="sgd") for one in chosen])
        stack.train()
        summaries = [stack.summary(index) for index in range(3)]
        assert summaries[2] is None
        assert stack.scores()[2] is None
        assert stack.scores()[:2] == pytest.approx([summary["kept"]["100"] for summary in summaries[:2]])


def test_a_network_is_measured_on_something_else_only_if_it_would_have_been_trained_on_the_same():
    held_out = Stack([replace(BASE, epochs=1, measured_on="validation")])
    held_out.train()
    assert held_out.summary(0) is not None
    assert held_out.summary(0, "test") is None
    options = {"samples": 500}
    separate = Settings("synthetic", options=options, epochs=1, threads=1, measured_on="validation")
    stack = Stack([separate])
    stack.train()
    (there,) = train_together([replace(separate, measured_on="test")])
    assert stack.summary(0, "test")["kept"] == there["kept"]
    assert stack.summary(0)["kept"] != there["kept"]


LOSSES = {
    "mse": (nn.functional.mse_loss, lambda n: torch.randn(n, 3)),
    "cross-entropy": (nn.functional.cross_entropy, lambda n: torch.randint(3, (n,))),
    "another": (nn.functional.smooth_l1_loss, lambda n: torch.randn(n, 3)),
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Sigmoid, nn.Tanh])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("shared", [True, False])
def test_perceptrons_have_the_losses_and_gradients_that_autograd_finds(shared, loss, activation, bias):
    torch.manual_seed(0)
    function, targets_of = LOSSES[loss]
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(6, 5, bias=bias), activation(), nn.Linear(5, 1), nn.Linear(1, 3, bias=bias)
    )
    inputs, targets = torch.randn(7, 2, 3), targets_of(7)
    if not shared:
        inputs, targets = torch.stack([inputs, 2 * inputs]), torch.stack([targets, targets_of(7)])
    weights = {name: nn.Parameter(torch.randn(2 * len(p), *p.shape[1:])) for name, p in model.named_parameters()}
    kinds = (batched(model, function, 2, torch.zeros(1, 2, 3)), Vmapped(model, function, 2))
    assert [type(kind) for kind in kinds] == [Perceptrons, Vmapped]
    found = []
    for kind in kinds:
        losses = kind.descend(weights, inputs, targets, shared=shared)
        gradients = [p.grad for p in weights.values()]
        found.append((losses, gradients, kind.outputs(weights, inputs, shared=shared)))
    torch.testing.assert_close(*found)


def test_what_is_not_a_plain_perceptron_is_not_taken_for_one():
    loss, vectors, images = nn.functional.mse_loss, torch.zeros(1, 4), torch.zeros(1, 4, 4)
    layer, act = nn.Linear(4, 4), nn.ReLU()
    assert isinstance(batched(nn.Sequential(layer, act, nn.Linear(4, 4), act), loss, 2, vectors), Perceptrons)
    for model, inputs in (
        (nn.Sequential(layer), images),  # which works on rows
        (nn.Sequential(layer, act, layer), vectors),
        (nn.Sequential(act, layer), vectors),
        (nn.Sequential(layer, nn.Softmax(1)), vectors),
        (nn.Sequential(nn.Flatten(0), layer), vectors),
        (nn.Sequential(perceptron(4, 4)), vectors),
        (layer, vectors),
    ):
        assert isinstance(batched(model, loss, 2, inputs), Vmapped)


def test_networks_of_any_kind_end_as_they_do_alone(tmp_path):
    (tmp_path / "mine.py").write_text(
        """
import torch
from torch import nn
from inface.lab import Data, Experiment, Split
from inface.sets import L1Ball

def data(folder):
    x = torch.randn(400, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    return Data(train=Split(x[:300], (x[:300, 0, 0, 0] > 0).long()), test=Split(x[300:], (x[300:, 0, 0, 0] > 0).long()))

def model():
    layers = (nn.Conv2d(1, 4, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2))
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)

small = Experiment(data=data, model=model, sets={"4.weight": L1Ball(5.0)})
"""
    )
    base = Settings(f"{tmp_path / 'mine.py'}:small", epochs=2, batch_size=50, threads=1)
    settings = [replace(base, lr=lr, seed=seed) for lr, seed in ((0.1, 0), (0.3, 0), (0.1, 1))]
    assert_equal(train_together(settings), alone(settings, tmp_path))
