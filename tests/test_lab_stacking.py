"""Networks trained together are the networks trained one by one."""

import itertools
from dataclasses import replace

import pytest

from inface.lab import ArgumentError, Settings, train
from inface.lab.stacking import train_together

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


@pytest.mark.parametrize("flavour", FLAVOURS.values(), ids=FLAVOURS)
def test_networks_with_their_own_settings_end_as_they_do_alone(tmp_path, flavour):
    own = [{"lr": 0.1, "seed": 0}, {"lr": 0.02, "seed": 1}, {"lr": 0.1, "seed": 2}]
    if flavour["method"] != "sgd":
        for one, radius, rate in zip(own, [(1.0, 5.0), (2.0, 5.0), (3.0, 1.0)], [None, 1.0, 4.0], strict=True):
            one |= {"radius": radius, "constrained_lr": rate}
    settings = [replace(BASE, **flavour, **one) for one in own]
    assert_equal(train_together(settings), alone(settings, tmp_path))


def test_networks_of_one_seed_share_their_batches(tmp_path):
    settings = [replace(BASE, lr=lr, radius=(r, 5.0)) for lr, r in itertools.product((0.05, 0.2), (1.0, 3.0))]
    assert_equal(train_together(settings), alone(settings, tmp_path))


def test_trials_have_data_of_their_own(tmp_path):
    (tmp_path / "mine.py").write_text(
        """
from torch import nn
from inface.lab import Experiment, mean_squared_error
from inface.lab.data import synthetic
from inface.lab.models import perceptron
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
    with pytest.raises(ArgumentError, match="at least one network"):
        train_together([])


def test_every_epoch_is_watched():
    seen = []
    train_together([BASE, replace(BASE, seed=1)], watch=lambda epoch, losses: seen.append((epoch, len(losses))))
    assert seen == [(1, 2), (2, 2)]
