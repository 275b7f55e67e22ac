"""Training runs against loops written out by hand, and metrics against numpy and brute force."""

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import inface
from inface.cli.app import run as run_command
from inface.lab import (
    ArgumentError,
    Diverged,
    LabError,
    Run,
    Settings,
    Split,
    evaluate,
    mean_squared_error,
    rebuild,
    train,
)
from inface.lab.experiments.data import digits, synthetic
from inface.lab.files import write_tensors
from inface.lab.runs.metrics import THETAS, exact_gap, kept, score, sparsity
from inface.lab.runs.setup import augmenting, experiment_of, make_model, make_optimizer, resolve
from inface.sets import NuclearBall

SMALL = Settings(
    "digits", lr=0.1, constrained_lr=1.0, radius=(2.0, 5.0), momentum=0.5, schedule="cosine", epochs=2, threads=1
)  # 6 gradients an epoch, the last of 187 samples
TEXT = """
import torch
from torch import nn
from inface.lab import Data, Experiment, Split, accuracy, mean_squared_error
from inface.lab.experiments.data import digits
from inface.sets import L1Ball, NuclearBall

def images(folder):
    data = digits()
    return Data(train=data.train[:300], test=data.test, held_out=60, image=data.image)

def garbage(folder):
    data = images(folder)
    nothing = Split(torch.full_like(data.test.inputs, float("nan")), torch.zeros_like(data.test.targets))
    return Data(train=data.train, test=nothing, held_out=60, image=data.image)

def spoilt(folder):
    data = images(folder)
    inputs, targets = data.train.inputs.clone(), data.train.targets.clone()
    inputs[-60:], targets[-60:] = 7.0, 3
    return Data(train=Split(inputs, targets), test=data.test, held_out=60)

def dense():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))

def fancy():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 10))

plain = Experiment(data=images, model=dense, sets={"1.weight": L1Ball(2.0)})
without_test = Experiment(data=garbage, model=dense, sets={"1.weight": L1Ball(2.0)})
other_held_out = Experiment(data=spoilt, model=dense, sets={"1.weight": L1Ball(2.0)})
low_rank = Experiment(data=images, model=dense, sets={"1.weight": NuclearBall(3.0)})
noisy = Experiment(data=images, model=fancy, sets={"1.weight": L1Ball(2.0)})
unconstrained = Experiment(data=images, model=dense, sets={})

seen = []

def augmented(images, generator):
    seen.append(images.clone())
    return images + torch.rand(images.shape, generator=generator)

shaken = Experiment(data=images, model=fancy, augment=augmented)
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A file of somebody's own experiments."""
    path = tmp_path_factory.mktemp("own") / "mine.py"
    path.write_text(TEXT)
    return path


def mine(own, name, **changes):
    given = {"lr": 0.1, "constrained_lr": 1.0, "epochs": 3, "batch_size": 40, "threads": 1, **changes}
    return Settings(f"{own}:{name}", **given)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A short run of each method."""
    place = tmp_path_factory.mktemp("runs")
    return {method: train(replace(SMALL, method=method), place / method) for method in ("sfw-if", "sfw", "sgd")}


def timeless(records):
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


def identical(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# ---------------------------------------------------------------------- the loop, by hand


def by_hand(settings, data):
    """The weights after training, from torch and the optimizer alone, and how many gradients were taken."""
    torch.manual_seed(settings.seed)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)
    )
    sets = {"1.weight": inface.sets.L1Ball(settings.radius[0]), "3.weight": inface.sets.L1Ball(settings.radius[1])}
    if settings.method == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=settings.lr, momentum=settings.momentum)
    else:
        groups = inface.param_groups(model, sets)
        inface.graph_init_(model, groups, generator=torch.Generator().manual_seed(settings.seed))
        rate = settings.constrained_lr or settings.lr
        for number, group in enumerate(groups[:2]):
            group["lr"] = rate[number] if isinstance(rate, tuple) else rate
        groups[2]["momentum"] = settings.momentum if settings.free_momentum is None else settings.free_momentum
        in_face = settings.in_face if settings.method == "sfw-if" else None
        optimizer = inface.FrankWolfe(
            groups, settings.lr, in_face=in_face, momentum=settings.momentum, every_gradient=settings.every_gradient
        )
    steps = settings.epochs * math.ceil(len(data) / settings.batch_size)
    decay = (lambda step: (1 + math.cos(math.pi * step / steps)) / 2) if settings.schedule == "cosine" else lambda _: 1
    rise = settings.warmup * math.ceil(len(data) / settings.batch_size)
    warm = (lambda step: min(1, (step + 1) / rise)) if rise else lambda _: 1
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: warm(step) * decay(step))
    gradients = 0
    for epoch in range(settings.epochs):
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(settings.seed * 1_000_003 + epoch))
        for rows in order.split(settings.batch_size):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(data.inputs[rows]), data.targets[rows]).backward()
            optimizer.step()
            scheduler.step()
            gradients += 1
    return [p.detach() for p in model.parameters()], gradients


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "sgd", "schedule": "constant", "momentum": 0.0},
        {"method": "sgd", "momentum": 0.9, "seed": 5},
        {"method": "sfw", "schedule": "constant", "momentum": 0.0, "constrained_lr": None},
        {"method": "sfw", "momentum": 0.9},
        {"method": "sfw-if", "schedule": "constant", "momentum": 0.0, "constrained_lr": None},
        {"method": "sfw-if", "momentum": 0.9, "seed": 5},
        {"method": "sfw-if", "every_gradient": True},
        {"method": "sfw-if", "warmup": 1.5},
        {"method": "sgd", "schedule": "constant", "warmup": 2.0},
        {"method": "sfw-if", "free_momentum": 0.0},
        {"method": "sfw-if", "constrained_lr": (2.0, 0.5)},
        {"method": "sfw", "constrained_lr": (0.5, 2.0)},
        {"method": "sfw", "momentum": 0.0, "free_momentum": 0.9},
        {"method": "sfw-if", "in_face": "pairwise", "batch_size": 1437},
        {"method": "sfw-if", "in_face": "frank-wolfe", "batch_size": 2000},
    ],
    ids=lambda changes: ",".join(map(str, changes.values())),
)
def test_a_run_ends_where_a_loop_written_by_hand_ends(tmp_path, changes):
    settings = replace(SMALL, **changes)
    run = train(settings, tmp_path / "run")
    weights, gradients = by_hand(settings, digits().train)
    names = [f"fc{number}.{kind}" for number in (1, 2, 3) for kind in ("weight", "bias")]
    assert identical(run.weights(), dict(zip(names, weights, strict=True)))
    assert run.summary["steps"] == gradients


def test_sfw_and_sfw_if_see_the_same_number_of_gradients(tmp_path, own):
    """The model itself counts: an in-face iteration takes two."""
    counts = {}
    for method in ("sfw-if", "sfw", "sgd"):
        settings = mine(own, "plain", method=method, batch_size=77)
        seen = []
        run = train(settings, tmp_path / method, watch=seen.append)
        counts[method] = run.summary["steps"]
        assert seen[0] == {**seen[0], "kind": "start", "step": 0, "steps": 12, "epochs": 3, "layers": ["1.weight"]}
        assert seen[1:] == run.records
    assert set(counts.values()) == {3 * math.ceil(300 / 77)}


def test_the_last_batch_of_an_epoch_may_be_a_single_sample(tmp_path, own):
    run = train(mine(own, "plain", batch_size=299), tmp_path / "run")
    assert run.summary["steps"] == 6
    assert [record["step"] for record in run.epochs] == [2, 4, 6]


# ---------------------------------------------------------------------- the same again


@pytest.mark.parametrize("method", ["sfw-if", "sgd"])
def test_the_same_seed_gives_the_same_run_and_another_seed_another(tmp_path, finished, method):
    first = finished[method]
    again = train(replace(SMALL, method=method), tmp_path / "again")
    other = train(replace(SMALL, method=method, seed=1), tmp_path / "other")
    assert first.model_file.read_bytes() == again.model_file.read_bytes()
    assert timeless(first.records) == timeless(again.records)
    assert timeless([first.summary]) == timeless([again.summary])
    assert all(not torch.equal(w, other.weights()[name]) for name, w in first.weights().items())


def test_the_callers_random_numbers_and_threads_are_left_alone(tmp_path, own):
    torch.manual_seed(99)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    settings = mine(own, "noisy", threads=2)
    run = train(settings, tmp_path / "run")
    evaluate(run, experiment=settings.experiment)
    rebuild(run, settings.experiment)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads == 1
    assert run.config["threads"] == 2
    with pytest.raises(Diverged):
        train(replace(settings, method="sgd", lr=1e30), tmp_path / "bad")
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_the_callers_random_numbers_do_not_change_a_run(tmp_path, own):
    weights = []
    for number in (1, 2):
        torch.manual_seed(number)
        weights.append(train(mine(own, "noisy"), tmp_path / str(number)).weights())
    assert identical(*weights)


@pytest.mark.parametrize(("method", "name"), [("sfw-if", "noisy"), ("sgd", "noisy"), ("sgd", "shaken")])
def test_batch_normalisation_dropout_and_augmentation_continue_bit_for_bit(tmp_path, own, method, name):
    settings = mine(own, name, method=method, momentum=0.9, schedule="cosine")
    whole = train(settings, tmp_path / "whole")
    assert "2.running_mean" in whole.weights()
    assert int(whole.weights()["2.num_batches_tracked"]) == 24

    for stop in (5, 9, 16, 23):

        def leave(record, stop=stop):
            if record.get("step", 0) >= stop:
                raise KeyboardInterrupt

        place = tmp_path / f"stopped-{stop}"
        with pytest.raises(KeyboardInterrupt):
            train(settings, place, watch=leave, checkpoint_seconds=0)
        assert not Run(place).finished
        resumed = train(settings, place, resume=True)
        assert identical(resumed.weights(), whole.weights())
        assert timeless(resumed.records) == timeless(whole.records)
        assert timeless([resumed.summary]) == timeless([whole.summary])


def test_training_batches_alone_are_augmented_and_differ_by_seed(tmp_path, own):
    settings = mine(own, "shaken", method="sgd", epochs=2)
    seen = experiment_of(settings).augment.__globals__["seen"]
    seen.clear()
    one = train(settings, tmp_path / "one")
    assert sum(map(len, seen)) == 2 * 300
    unshaken = train(replace(settings, experiment=f"{own}:noisy"), tmp_path / "unshaken")
    assert not identical(one.weights(), unshaken.weights())
    count = len(seen)
    evaluate(one, experiment=f"{own}:shaken")
    assert len(seen) == count
    drawn = [torch.rand(3, generator=augmenting(replace(settings, seed=seed), 5)) for seed in (0, 0, 1)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


# ---------------------------------------------------------------------- what is measured on what


def test_validation_never_looks_at_the_test_data(tmp_path, own):
    settings = mine(own, "plain", measured_on="validation")
    clean = train(settings, tmp_path / "clean")
    garbage = train(replace(settings, experiment=f"{own}:without_test"), tmp_path / "garbage")
    assert identical(clean.weights(), garbage.weights())
    assert timeless(clean.records) == timeless(garbage.records)
    same = ("kept", "layers", "network", "loss", "train_loss", "gap", "steps")
    assert {key: clean.summary[key] for key in same} == {key: garbage.summary[key] for key in same}


def test_validation_leaves_the_held_out_samples_out_of_training(tmp_path, own):
    settings = mine(own, "plain", measured_on="validation")
    clean = train(settings, tmp_path / "clean")
    spoilt = train(replace(settings, experiment=f"{own}:other_held_out"), tmp_path / "spoilt")
    assert clean.summary["steps"] == 3 * 240 // 40
    assert identical(clean.weights(), spoilt.weights())
    assert clean.summary["train_loss"] == spoilt.summary["train_loss"]
    assert clean.summary["loss"] != spoilt.summary["loss"]
    tested = train(replace(settings, measured_on="test"), tmp_path / "tested")
    assert tested.summary["steps"] == 3 * math.ceil(300 / 40)


def test_the_synthetic_data_has_a_validation_split_of_its_own():
    data = synthetic(edges=5, samples=(30, 20, 10)).data
    assert [len(part) for part in data.parts("validation")] == [30, 20]
    assert [len(part) for part in data.parts("test")] == [30, 10]


# ---------------------------------------------------------------------- metrics, by numpy


def forward(weights, inputs):
    """The outputs of a perceptron, in numpy."""
    x = inputs.reshape(len(inputs), -1).astype(np.float64)
    layers = sorted({name.split(".")[0] for name in weights})
    for number, layer in enumerate(layers):
        x = x @ weights[f"{layer}.weight"].T + weights.get(f"{layer}.bias", 0)
        x = np.maximum(x, 0) if number < len(layers) - 1 else x
    return x


@pytest.mark.parametrize("method", ["sfw-if", "sfw", "sgd"])
def test_the_summary_counts_as_numpy_does(finished, method):
    run = finished[method]
    weights = {name: w.double().numpy() for name, w in run.weights().items()}
    for name in ("fc1.weight", "fc2.weight"):
        w = weights[name]
        counted = run.summary["layers"][name]
        per_node = [100 * sum(abs(v) >= np.float32(0.001) for v in row) / len(row) for row in w]
        assert counted["percent"] == pytest.approx(np.mean(per_node))
        assert counted["exact_percent"] == pytest.approx(np.mean([100 * np.mean(row != 0) for row in w]))
        assert counted["edges"] == pytest.approx(np.mean([np.sum(np.abs(row) >= np.float32(0.001)) for row in w]))
        assert (counted["nodes"], counted["inputs"]) == w.shape
    everything = np.concatenate([w.ravel() for w in weights.values()])
    count = int(np.sum(np.abs(everything) >= np.float32(0.001)))
    expected = {"percent": 100 * count / everything.size, "count": count, "total": everything.size}
    exact = int(np.count_nonzero(everything))
    expected |= {"exact_count": exact, "exact_percent": 100 * exact / everything.size}
    assert run.summary["network"] == pytest.approx(expected)
    last = run.epochs[-1]["nonzeros"]
    assert last == {
        name: {key: counted[key] for key in ("percent", "exact_percent", "edges")}
        for name, counted in run.summary["layers"].items()
    }


@pytest.mark.parametrize("method", ["sfw-if", "sgd"])
@pytest.mark.parametrize(
    ("reading", "parts"),
    [("kept", [["fc1.weight"], ["fc2.weight"]]), ("kept_together", [["fc1.weight", "fc2.weight"]])],
)
def test_accuracy_after_keeping_the_largest_edges_is_what_numpy_gets(finished, method, reading, parts):
    run = finished[method]
    weights = {name: w.numpy() for name, w in run.weights().items()}
    test = digits().test
    images, labels = test.inputs.numpy(), test.targets.numpy()
    assert list(run.summary[reading]) == [str(theta) for theta in THETAS] == ["100", "50", "25", "10", "5", "2", "1"]
    for theta, measured in run.summary[reading].items():
        thin = dict(weights)
        for part in parts:
            flat = np.concatenate([weights[name].ravel() for name in part])
            order = np.argsort(-np.abs(flat), kind="stable")
            flat[order[round(int(theta) / 100 * flat.size) :]] = 0
            ends = np.cumsum([weights[name].size for name in part])[:-1]
            thin |= {name: w.reshape(weights[name].shape) for name, w in zip(part, np.split(flat, ends), strict=True)}
        accuracy = 100 * np.mean(forward(thin, images).argmax(1) == labels)
        # Two outputs that agree to float32 rounding may change places; no more than one of 360 does.
        assert measured == pytest.approx(accuracy, abs=100 / 359)
    assert run.summary[reading]["100"] == run.epochs[-1]["metric"]
    assert run.summary["kept"] != run.summary["kept_together"]


def test_losses_are_what_numpy_gets(finished):
    run, data = finished["sfw-if"], digits()
    weights = {name: w.double().numpy() for name, w in run.weights().items()}
    for key, split in (("loss", data.test), ("train_loss", data.train)):
        z = forward(weights, split.inputs.numpy())
        z = z - z.max(1, keepdims=True)
        logs = z - np.log(np.exp(z).sum(1, keepdims=True))
        loss = -np.mean(logs[np.arange(len(z)), split.targets.numpy()])
        assert run.summary[key] == pytest.approx(loss, rel=1e-5)


def test_what_is_wrong_in_any_reading_of_the_largest_edges_is_named(finished, tmp_path):
    for reading in ("kept", "kept_together", "kept_balanced"):
        summary = {**finished["sgd"].summary, reading: {"100": "many"}}
        folder = tmp_path / reading
        folder.mkdir()
        (folder / "config.json").write_text(finished["sgd"].config_file.read_text())
        (folder / "summary.json").write_text(json.dumps(summary))
        with pytest.raises(
            LabError, match=rf"summary.json: {reading}.100: wanted int or float or NoneType, got 'many'"
        ):
            _ = Run(folder).summary


def test_a_regression_is_measured_by_its_mean_squared_error():
    experiment = experiment_of(Settings("synthetic", options={"edges": 5, "activation": "relu"}))
    torch.manual_seed(0)
    model = experiment.model()
    split = synthetic(edges=5, activation="relu", samples=(1, 1, 2_345)).data.test  # not a whole number of slices
    w = {name: p.detach().numpy() for name, p in model.named_parameters()}
    errors = (forward(w, split.inputs.numpy()) - split.targets.numpy()) ** 2
    measured = score(model, experiment, split)
    assert measured.metric == pytest.approx(errors.mean(), rel=1e-5)
    assert measured.loss == pytest.approx(errors.mean(), rel=1e-5)
    assert experiment.metric.better == "lower"


def test_a_measurement_leaves_the_network_as_it_was(own):
    settings = mine(own, "noisy")
    experiment = experiment_of(settings)
    model = make_model(settings, experiment)
    optimizer = make_optimizer(settings, experiment, model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    data = experiment.data(None)
    for mode in (True, False):
        model.train(mode)
        score(model, experiment, data.test)
        kept(model, experiment, data.test)
        sparsity(model, experiment)
        exact_gap(model, experiment, data.train, optimizer)
        assert model.training is mode
        assert identical(before, model.state_dict())
        assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("constrained_lr", [None, 2.0])
def test_the_exact_gap_is_that_of_brute_force_over_vertices(tmp_path, own, constrained_lr):
    """Definition 2.1, in float64, from the gradient of the whole training set and all vertices of every ball."""
    settings = mine(own, "plain", constrained_lr=constrained_lr, batch_size=100)
    run = train(settings, tmp_path / "run")
    _, experiment, model = rebuild(run, settings.experiment)
    model.double()
    data = experiment.data(None).train
    nn.functional.cross_entropy(model(data.inputs.double()), data.targets).backward()
    w, g = (tensor.detach().numpy() for tensor in (model[1].weight, model[1].weight.grad))
    radius, (nodes, inputs) = 2.0, w.shape
    gaps = 0.0
    for x, slope in zip(w, g, strict=True):
        vertices = [sign * radius * np.eye(inputs)[j] for j, sign in itertools.product(range(inputs), (1, -1))]
        gaps += max(slope @ (x - v) for v in vertices)
    lr = settings.lr
    constants = nodes * (2 * radius) ** 2 / (constrained_lr or lr)  # the sum of the C_i
    free = sum(float(p.grad.square().sum()) for name, p in model.named_parameters() if name != "1.weight")
    assert run.summary["gap"]["exact"] == pytest.approx(gaps / math.sqrt(lr * constants) + math.sqrt(free), rel=1e-4)


def test_the_gaps_of_a_run_are_those_of_its_optimizer(tmp_path, own):
    """Stochastic at every first half, smoothed over the points of the series."""
    settings = mine(own, "plain", batch_size=100, epochs=4)
    run = train(settings, tmp_path / "run")
    experiment = experiment_of(settings)
    model = make_model(settings, experiment)
    optimizer = make_optimizer(settings, experiment, model)
    data = experiment.data(None).train
    gaps, smoothed = [], []
    for step in range(12):
        order = torch.randperm(300, generator=torch.Generator().manual_seed(step // 3))
        rows = order[100 * (step % 3) : 100 * (step % 3) + 100]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(data.inputs[rows]), data.targets[rows]).backward()
        optimizer.step()
        if step % 2 == 0:
            gaps.append(float(optimizer.gap))
            weights = [0.95**age for age in reversed(range(len(gaps)))]
            smoothed.append(sum(w * gap for w, gap in zip(weights, gaps, strict=True)) / sum(weights))
    assert [record["gap"] for record in run.steps] == gaps
    assert [record["smoothed_gap"] for record in run.steps] == pytest.approx(smoothed)
    assert run.summary["gap"]["stochastic"] == gaps[-1]
    assert run.summary["gap"]["smoothed"] == pytest.approx(smoothed[-1])


# ---------------------------------------------------------------------- where runs end


@pytest.mark.parametrize("method", ["sfw-if", "sfw"])
def test_the_final_weights_are_in_their_sets(finished, method):
    run = finished[method]
    sets = experiment_of(run.settings).sets
    assert [set_.radius for set_ in sets.values()] == [2.0, 5.0]
    for name, set_ in sets.items():
        assert bool(set_.contains(run.weights()[name]).all())


def test_a_nuclear_ball_of_ones_own_trains(tmp_path, own):
    run = train(mine(own, "low_rank", epochs=8, constrained_lr=10.0, momentum=0.5), tmp_path / "run")
    weight = run.weights()["1.weight"]
    assert float(np.linalg.svd(weight.double().numpy(), compute_uv=False).sum()) <= 3.0 * (1 + 1e-5)
    assert isinstance(experiment_of(run.settings).sets["1.weight"], NuclearBall)
    assert run.epochs[-1]["train_loss"] < run.epochs[0]["train_loss"]
    again = evaluate(run, experiment=run.settings.experiment)
    assert again["kept"] == run.summary["kept"]
    assert again["gap"]["exact"] == run.summary["gap"]["exact"]


def test_an_experiment_without_constraints_trains_as_sgd_does(tmp_path, own):
    runs = [
        train(mine(own, "unconstrained", method=method, constrained_lr=None), tmp_path / method)
        for method in ("sfw", "sgd")
    ]
    weights = [run.weights() for run in runs]
    for name, w in weights[0].items():
        torch.testing.assert_close(w, weights[1][name])
    assert list(runs[0].summary["layers"]) == ["1.weight", "3.weight"]


@pytest.mark.parametrize("method", ["sfw-if", "sfw", "sgd"])
def test_evaluating_a_run_gives_its_summary_again(finished, method):
    run = finished[method]
    again = evaluate(Run(run.path), experiment=run.settings.experiment)
    gap, summary_gap = again.pop("gap"), run.summary["gap"]
    assert again == {key: run.summary[key] for key in again}
    if method == "sgd":
        assert gap is summary_gap is None
    else:
        assert gap["exact"] == pytest.approx(summary_gap["exact"], rel=1e-9)


# ---------------------------------------------------------------------- what is written


def test_the_records_hold_what_is_promised(finished):
    for method, run in finished.items():
        assert {record["kind"] for record in run.records} == {"step", "epoch"}
        steps = [record["step"] for record in run.records]
        assert steps == sorted(steps)
        for record in run.steps:
            assert list(record) == ["kind", "step", "loss", "gap", "smoothed_gap", "nonzeros"]
            assert set(record["nonzeros"]) == {"fc1.weight", "fc2.weight"}
            assert record["step"] % 2 == 0
        for record in run.epochs:
            assert set(record) == {
                *("kind", "epoch", "step", "train_loss", "loss", "metric"),
                *("gap", "smoothed_gap", "nonzeros", "seconds"),
            }
            assert all(
                list(counted) == ["percent", "exact_percent", "edges"] for counted in record["nonzeros"].values()
            )
        assert [record["epoch"] for record in run.epochs] == [1, 2]
        assert [record["step"] for record in run.epochs] == [6, 12]
        assert all((record["gap"] is None) == (method == "sgd") for record in run.records)
        assert all((record["smoothed_gap"] is None) == (method == "sgd") for record in run.records)
        assert run.steps[-1]["nonzeros"] == {
            name: counted["edges"] for name, counted in run.epochs[-1]["nonzeros"].items()
        }


def test_the_mean_loss_of_an_epoch_is_that_of_its_batches(tmp_path, own):
    run = train(mine(own, "plain", batch_size=150, epochs=3), tmp_path / "run")  # two gradients an epoch
    settings = run.settings
    experiment = experiment_of(settings)
    model = make_model(settings, experiment)
    data = experiment.data(None).train
    rows = torch.randperm(300, generator=torch.Generator().manual_seed(0))[:150]
    first = nn.functional.cross_entropy(model(data.inputs[rows]), data.targets[rows]).item()
    assert run.epochs[0]["train_loss"] == pytest.approx((first + run.steps[0]["loss"]) / 2)


@pytest.mark.parametrize(("epochs", "stride"), [(1, 4), (17, 4)])
def test_the_series_over_gradients_is_thinned_evenly(tmp_path, own, epochs, stride):
    settings = mine(own, "plain", method="sgd", batch_size=5, epochs=epochs, constrained_lr=None)
    run = train(settings, tmp_path / "run")
    steps = [record["step"] for record in run.steps]
    assert steps == list(range(stride, 60 * epochs + 1, stride))
    assert len(steps) <= 20 * epochs
    assert run.epochs[-1]["epoch"] == len(run.epochs) == epochs


@pytest.mark.parametrize("method", ["sfw-if", "sgd"])
def test_the_configuration_gives_the_settings_again(finished, method):
    run = finished[method]
    assert run.settings == resolve(replace(SMALL, method=method))
    config = json.loads((run.path / "config.json").read_text())
    assert config["format"] == 1
    assert config["versions"]["torch"] == torch.__version__
    assert Settings.from_dict(run.settings.to_dict()) == run.settings


def test_the_configuration_says_what_the_settings_left_open(tmp_path, own):
    run = train(mine(own, "plain", threads=None), tmp_path / "run")
    assert run.config["threads"] == 1
    assert run.config["radius"] == [2.0]
    assert len(run.config["source"]) == 64
    again = train(run.settings, tmp_path / "again")
    assert identical(run.weights(), again.weights())


def test_the_summary_holds_what_is_promised(finished):
    for method, run in finished.items():
        summary = run.summary
        assert (summary["format"], summary["experiment"], summary["method"]) == (1, "digits", method)
        assert summary["metric"] == {"name": "accuracy", "unit": "%", "better": "higher"}
        assert (summary["steps"], summary["epochs"], summary["image"]) == (12, 2, [1, 8, 8])
        assert summary["seconds"] > 0
        assert (
            (summary["gap"] is None)
            if method == "sgd"
            else set(summary["gap"])
            == {
                "stochastic",
                "smoothed",
                "exact",
            }
        )
        names = {file.name for file in run.path.iterdir()} - {".lock"}
        assert names == {"config.json", "metrics.jsonl", "model.safetensors", "summary.json"}


# ---------------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"method": "sfw-fi"},
            "method: wanted sfw-if or sfw or sgd or prune or gradual or rigl or set or proximal or sparse, got sfw-fi; did you mean sfw-if?",
        ),
        (
            {"in_face": "awya"},
            "in-face: wanted away or frank-wolfe or pairwise or projected, got awya; did you mean away?",
        ),
        ({"schedule": "cosin"}, "schedule: wanted constant or cosine, got cosin; did you mean cosine?"),
        ({"measured_on": "train"}, "measured-on: wanted test or validation, got train"),
        ({"lr": 0.0}, "lr: wanted a number > 0, got 0.0"),
        ({"lr": math.inf}, "lr: wanted a number > 0, got inf"),
        ({"lr": 10**400}, f"lr: wanted a number > 0, got {10**400}"),
        ({"epochs": 10**400}, f"epochs: wanted a whole number >= 1, got {10**400}"),
        ({"lr": math.nan}, "lr: wanted a number > 0, got nan"),
        ({"constrained_lr": -2.0}, "constrained-lr: wanted numbers > 0, got -2.0"),
        ({"constrained_lr": ()}, "constrained-lr: wanted numbers > 0, got ()"),
        ({"constrained_lr": (8.0, 0.0)}, "constrained-lr: wanted numbers > 0, got 8 0"),
        ({"momentum": 1.0}, "momentum: wanted a number in [0, 1), got 1.0"),
        ({"free_momentum": -0.1}, "free-momentum: wanted a number in [0, 1), got -0.1"),
        ({"momentum": math.nan}, "momentum: wanted a number in [0, 1), got nan"),
        ({"epochs": 0}, "epochs: wanted a whole number >= 1, got 0"),
        ({"batch_size": 2.5}, "batch-size: wanted a whole number >= 1, got 2.5"),
        ({"threads": 0}, "threads: wanted a whole number in [1, 1024], got 0"),
        ({"seed": -1}, "seed: wanted a whole number in [0, 2^31), got -1"),
        ({"seed": 2**31}, "seed: wanted a whole number in [0, 2^31), got 2147483648"),
    ],
)
def test_a_wrong_setting_is_named_with_what_was_wanted(changes, message):
    with pytest.raises(ArgumentError) as error:
        Settings("digits", **changes)
    assert str(error.value) == message
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "sgd", "lr": 1e30}, ["a smaller --lr than 1e+30"]),
        ({"method": "sgd", "lr": 1e30, "momentum": 0.9}, ["--lr than 1e+30", "less --momentum than 0.9"]),
        (
            {"method": "sfw-if", "lr": 1e30, "constrained_lr": 3.0},
            ["--lr than 1e+30", "--constrained-lr than 3", "smaller radii than 2"],
        ),
    ],
)
def test_a_loss_that_is_not_finite_stops_the_run_and_says_what_to_try(tmp_path, own, changes, words):
    place = tmp_path / "run"
    with pytest.raises(Diverged) as error:
        train(mine(own, "plain", **{"constrained_lr": None, **changes}), place)
    message = str(error.value)
    assert message.startswith(f"{place}: the loss became ")
    assert " after gradient " in message
    assert all(word in message for word in words)
    assert len(message.splitlines()) == 1
    assert error.value.exit_code == 3
    assert not (place / "summary.json").exists()
    assert not (place / "model.safetensors").exists()
    with pytest.raises(ArgumentError, match="the run is not finished"):
        _ = Run(place).summary


def test_the_command_line_ends_with_code_3_when_the_loss_is_not_finite(tmp_path, capsys):
    place = tmp_path / "run"
    code = run_command(["train", "digits", "--out", str(place), "--method", "sgd", "--lr", "1e30", "--threads", "1"])
    message = capsys.readouterr().err
    assert code == 3
    assert message.startswith(f"inface: {place}: the loss became ")
    assert "a smaller --lr than 1e+30" in message
    assert len(message.splitlines()) == 1
    assert not (place / "summary.json").exists()


def test_weights_that_do_not_fit_are_named(tmp_path, own):
    run = train(mine(own, "plain", epochs=1), tmp_path / "run")
    write_tensors(run.model_file, {"1.weight": torch.zeros(2, 2)})
    with pytest.raises(LabError, match=r"model.safetensors: does not fit the network of .*mine.py:plain"):
        evaluate(run, experiment=run.settings.experiment)


def test_weights_that_are_not_finite_are_named_with_their_file(tmp_path):
    run = train(Settings("digits", method="sfw", epochs=1, threads=1), tmp_path / "run")
    weights = run.weights()
    weights["fc1.weight"][0, 0] = torch.nan
    write_tensors(run.model_file, weights)
    with pytest.raises(LabError, match=r'model\.safetensors: FrankWolfe: parameter "fc1\.weight" is not finite'):
        evaluate(run)


def test_a_split_must_have_as_many_inputs_as_targets():
    with pytest.raises(ArgumentError, match="wanted equally many inputs and targets, at least one, got 2 and 3"):
        Split(torch.zeros(2, 1), torch.zeros(3))


def test_a_network_that_its_last_step_destroyed_is_not_called_a_result(tmp_path):
    with pytest.raises(Diverged, match="after gradient 1 of 1"):
        train(Settings("digits", method="sgd", lr=1e38, epochs=1, batch_size=2000), tmp_path)
    assert not (tmp_path / "summary.json").exists()


def test_what_an_earlier_run_left_is_not_taken_for_this_one(tmp_path):
    train(Settings("digits", epochs=1, threads=1), tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(
        ArgumentError, match=r"not a run folder \(found summary.json, model.safetensors, metrics.jsonl\)"
    ):
        train(Settings("digits", epochs=2, threads=1), tmp_path, resume=True)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_of_something_else_is_left_alone(tmp_path, overwrite):
    """Such as the folder of a model from elsewhere, which has files of the same names."""
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text('{"architectures": ["Bert"]}')
    with pytest.raises(ArgumentError, match=r"not a run folder \(found model.safetensors, config.json\)"):
        train(Settings("digits", epochs=1), tmp_path, overwrite=overwrite)
    assert (tmp_path / "config.json").read_text() == '{"architectures": ["Bert"]}'


def test_a_run_that_could_not_begin_leaves_no_folder(tmp_path):
    with pytest.raises(LabError, match="inface data fetch mnist"):
        train(Settings("mnist-mlp"), tmp_path / "run", data=tmp_path / "nothing")
    assert not (tmp_path / "run").exists()


def test_a_run_is_not_continued_on_other_data(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom inface.lab import Data, Experiment, Split\nfrom inface.sets import L1Ball\n"
        "def data(folder):\n    x = torch.load(folder / 'x.pt', weights_only=True)\n    s = Split(x, (x[:, 0] > 0).long())\n"
        "    return Data(s, s)\n"
        "mine = Experiment(data, lambda: torch.nn.Linear(5, 2), {'weight': L1Ball(1.0)})\n"
    )
    torch.save(torch.randn(40, 5), tmp_path / "x.pt")
    settings = Settings(f"{tmp_path / 'mine.py'}:mine", epochs=20, batch_size=10, threads=1)

    def stop(record):
        if record.get("epoch") == 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(settings, tmp_path / "run", data=tmp_path, watch=stop, checkpoint_seconds=0)
    torch.save(torch.randn(40, 5), tmp_path / "x.pt")
    with pytest.raises(LabError, match=r"checkpoint.safetensors: was trained on other data"):
        train(settings, tmp_path / "run", data=tmp_path, resume=True)


@pytest.mark.parametrize(("outputs", "targets"), [((7, 1), (7,)), ((7,), (7, 1)), ((7, 2), (7, 1))])
def test_the_mean_squared_error_is_of_equal_shapes(outputs, targets):
    with pytest.raises(ArgumentError, match="MSE: wanted outputs in the shape of the targets"):
        mean_squared_error.total(torch.zeros(outputs), torch.zeros(targets))


@pytest.mark.parametrize("shape", [(7,), (7, 1), (7, 2, 3)])
def test_the_mean_squared_error_is_a_mean_over_samples_and_outputs(shape):
    outputs, targets = torch.randn(shape), torch.randn(shape)
    assert mean_squared_error.total(outputs, targets) / 7 == pytest.approx(float(((outputs - targets) ** 2).mean()))


def test_a_short_run_has_a_gap(tmp_path):
    gap = train(Settings("digits", epochs=1, batch_size=2000, threads=1), tmp_path).summary["gap"]
    assert gap["stochastic"] == gap["smoothed"] > 0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"seed": 1.5}, "seed: wanted a whole number"),
        (
            {"method": None},
            "method: wanted sfw-if or sfw or sgd or prune or gradual or rigl or set or proximal or sparse, got None",
        ),
    ],
)
def test_settings_of_a_wrong_kind_are_named(given, words):
    with pytest.raises(ArgumentError, match=words):
        Settings("digits", **given)


def test_a_file_cannot_be_the_folder_of_a_run(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="cannot be used as a run folder"):
        train(Settings("digits", epochs=1), tmp_path / "file")


def test_data_that_draws_numbers_without_a_seed_is_the_same_in_every_run(tmp_path):
    (tmp_path / "mine.py").write_text(
        """
import torch
from inface.lab import Data, Experiment, Split
from inface.sets import L1Ball

def split():
    x = torch.randn(40, 5)
    return Split(x, (x[:, 0] > 0).long())

mine = Experiment(data=lambda _: Data(split(), split()), model=lambda: torch.nn.Linear(5, 2), sets={"weight": L1Ball(1.0)})
"""
    )
    settings = Settings(f"{tmp_path / 'mine.py'}:mine", epochs=2, threads=1)
    torch.manual_seed(1)
    first = train(settings, tmp_path / "a")
    torch.manual_seed(2)
    second = train(settings, tmp_path / "b")
    assert first.model_file.read_bytes() == second.model_file.read_bytes()
    assert evaluate(second, experiment=second.settings.experiment)["kept"] == first.summary["kept"]


def test_a_misspelt_layer_is_named_with_what_there_is(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom inface.lab import Experiment\nfrom inface.lab.experiments.data import digits\nfrom inface.sets import L1Ball\n"
        "mine = Experiment(digits, lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)), {'1.wieght': L1Ball(1.0)})\n"
    )
    with pytest.raises(ArgumentError, match=r'"1.wieght" matches no parameter; the model has 1.weight, 1.bias'):
        train(Settings(f"{tmp_path / 'mine.py'}:mine", epochs=1), tmp_path / "run")
