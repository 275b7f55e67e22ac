"""The built-in experiments are the paper's, and any experiment is found by its name."""

import sys

import pytest
import torch
from torch import nn

import inface
from helpers.datasets import write_mnist
from inface.lab import ArgumentError, Experiment, Settings, find
from inface.lab.experiments.builtin import BUILT_IN, options_of
from inface.lab.experiments.data import flipped_and_shifted
from inface.lab.runs.setup import experiment_of, make_model, make_optimizer, resolve, settings_for
from inface.sets import L1Ball

MLP = {"fc1.weight": (512, 784), "fc2.weight": (512, 512), "fc3.weight": (10, 512)}
CONV = {
    "conv1.weight": (20, 1, 5, 5),
    "conv2.weight": (50, 20, 5, 5),
    "fc1.weight": (500, 800),
    "fc2.weight": (10, 500),
}
CIFAR = {
    "conv1.weight": (6, 3, 5, 5),
    "conv2.weight": (16, 6, 5, 5),
    "fc1.weight": (120, 400),
    "fc2.weight": (84, 120),
    "fc3.weight": (10, 84),
}
SYNTHETIC = {"fc1.weight": (50, 50), "fc2.weight": (50, 50), "fc3.weight": (1, 50)}
DIGITS = {"fc1.weight": (256, 64), "fc2.weight": (128, 256), "fc3.weight": (10, 128)}
SHAPES = {"mnist-mlp": MLP, "mnist-conv": CONV, "cifar10": CIFAR, "synthetic": SYNTHETIC, "digits": DIGITS}
WITHOUT_SETS = ("lenet-300-100", "lenet-5", "resnet", "vit")
INPUTS = {
    "mnist-mlp": (1, 28, 28),
    "mnist-conv": (1, 28, 28),
    "cifar10": (3, 32, 32),
    "synthetic": (50,),
    "digits": (1, 8, 8),
}

each_experiment = pytest.mark.parametrize("name", list(SHAPES))


# ---------------------------------------------------------------------- what they are


def test_there_are_five_of_the_paper_and_four_without_sets():
    assert list(BUILT_IN) == [*SHAPES, *WITHOUT_SETS]


@pytest.mark.parametrize(
    ("name", "layers", "weights", "parameters"),
    [
        ("lenet-300-100", 3, 266_200, 266_610),
        ("lenet-5", 4, 430_500, 431_080),
        ("resnet", 20, 268_336, 269_722),  # 0.27 million, as He et al. count
        ("vit", 10, 69_312, 71_946),
    ],
)
def test_all_weights_of_the_networks_without_sets_become_sparse(name, layers, weights, parameters):
    settings = settings_for(name)
    assert (settings.method, settings.density) == ("sparse", 0.05)
    model = experiment_of(settings).model()
    sparse = [p for p, *_ in inface.sparse.chosen_layers(model).values()]
    assert (len(sparse), sum(p.numel() for p in sparse)) == (layers, weights)
    assert sum(p.numel() for p in model.parameters()) == parameters
    rivals = settings_for(name, method="gradual", keep=0.1)
    assert make_optimizer(rivals, experiment_of(rivals), model, 100).layers == sparse
    assert rivals.free == ("adamw" if name == "vit" else "sgd")


def test_a_residual_network_has_six_layers_per_block_of_each_stage():
    model = find("resnet", {"depth": "14"}).model()
    assert sum(isinstance(module, nn.Conv2d) for module in model.modules()) == 13
    stages = [model[:index](torch.zeros(1, 3, 32, 32)).shape for index in (4, 5, 6)]
    assert stages == [(1, 16, 32, 32), (1, 32, 16, 16), (1, 64, 8, 8)]
    with pytest.raises(ArgumentError, match=r"depth: wanted 6 n \+ 2, such as 8, 14, 20 or 32, got 18"):
        find("resnet", {"depth": "18"})


def test_the_first_training_samples_alone_can_be_taken(tmp_path):
    write_mnist(tmp_path, train=60, test=10)
    whole, few = find("vit").data(tmp_path), find("vit", {"samples": 12}).data(tmp_path)
    assert torch.equal(few.train.inputs, whole.train.inputs[:12])
    assert (whole.held_out, few.held_out, len(few.test)) == (10, 2, 10)
    with pytest.raises(ArgumentError, match="samples: wanted a whole number from 2 to 60, got 61"):
        find("vit", {"samples": 61}).data(tmp_path)


def test_an_augmented_image_is_a_crop_of_itself_with_a_margin_possibly_mirrored():
    images = torch.rand(40, 3, 8, 8)
    changed = flipped_and_shifted(images, torch.Generator().manual_seed(0))
    padded = nn.functional.pad(images, [4] * 4)
    mirrored = 0
    for image, found in zip(padded, changed, strict=True):
        crops = [image[:, y : y + 8, x : x + 8] for y in range(9) for x in range(9)]
        plain = any(torch.equal(found, crop) for crop in crops)
        assert plain or any(torch.equal(found, crop.flip(2)) for crop in crops)
        mirrored += not plain
    assert 10 < mirrored < 30


@each_experiment
def test_the_layers_have_the_published_shapes(name):
    parameters = dict(find(name).model().named_parameters())
    weights = {key: tuple(p.shape) for key, p in parameters.items() if key.endswith("weight")}
    assert weights == SHAPES[name]
    biases = {key: tuple(p.shape) for key, p in parameters.items() if key.endswith("bias")}
    nodes = {key.replace("weight", "bias"): (shape[0],) for key, shape in SHAPES[name].items()}
    assert biases == ({} if name == "synthetic" else nodes)
    assert len(parameters) == len(weights) + len(biases)


@each_experiment
def test_the_network_gives_one_output_for_a_regression_and_ten_for_classes(name):
    outputs = find(name).model()(torch.zeros(3, *INPUTS[name]))
    assert outputs.shape == (3, 1 if name == "synthetic" else 10)


@each_experiment
def test_two_dense_layers_are_constrained_and_everything_else_is_free(name):
    settings = Settings(name)
    experiment = experiment_of(settings)
    model = make_model(settings, experiment)
    names = {id(p): key for key, p in model.named_parameters()}
    sets = {
        names[id(p)]: group["set"]
        for group in make_optimizer(settings, experiment, model).param_groups
        for p in group["params"]
    }
    constrained = [key for key, set_ in sets.items() if set_ is not None]
    assert sorted(sets) == sorted(names.values())
    assert constrained == ["fc1.weight", "fc2.weight"]
    assert all(isinstance(sets[key], L1Ball) and sets[key].per == "output" for key in constrained)


def test_activations_follow_every_layer_but_the_last():
    for activation, kind in (("relu", "ReLU"), ("sigmoid", "Sigmoid")):
        names = [type(layer).__name__ for layer in find("synthetic", {"activation": activation}).model()]
        assert names == ["Flatten", "Linear", kind, "Linear", kind, "Linear"]
    block = ["Conv2d", "MaxPool2d", "ReLU"]
    dense = ["Flatten", "Linear", "ReLU", "Linear"]
    assert [type(layer).__name__ for layer in find("mnist-conv").model()] == [*block, *block, *dense]
    assert [type(layer).__name__ for layer in find("cifar10").model()] == [*block, *block, *dense, "ReLU", "Linear"]


def test_the_perceptron_computes_what_its_layers_say():
    torch.manual_seed(0)
    model = find("mnist-mlp").model()
    images = torch.rand(4, 1, 28, 28)
    w = dict(model.named_parameters())
    x = images.reshape(4, 784)
    for layer in ("fc1", "fc2"):
        x = (x @ w[f"{layer}.weight"].T + w[f"{layer}.bias"]).clamp(min=0)
    torch.testing.assert_close(model(images), x @ w["fc3.weight"].T + w["fc3.bias"])


# ---------------------------------------------------------------------- where they start


@each_experiment
@pytest.mark.parametrize("seed", [0, 7])
def test_sgd_starts_from_pytorchs_own_initialisation(name, seed):
    settings = Settings(name, method="sgd", seed=seed)
    experiment = experiment_of(settings)
    model = make_model(settings, experiment)
    torch.manual_seed(seed)
    other = experiment.model()
    for (key, p), (_, q) in zip(model.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(p, q), key


@each_experiment
@pytest.mark.parametrize("method", ["sfw", "sfw-if"])
def test_the_others_start_from_the_graph_initialisation_where_constrained(name, method):
    settings = Settings(name, method=method, seed=3)
    experiment = experiment_of(settings)
    model = make_model(settings, experiment)
    torch.manual_seed(3)
    expected = experiment.model()
    inface.graph_init_(
        expected, inface.param_groups(expected, experiment.sets), generator=torch.Generator().manual_seed(3)
    )
    for (key, p), (_, q) in zip(model.named_parameters(), expected.named_parameters(), strict=True):
        assert torch.equal(p, q), key
        if key in experiment.sets:
            nodes, inputs = p.shape
            assert int(p.count_nonzero()) == max(nodes, inputs)
            assert bool((p != 0).any(1).all())
            assert bool((p != 0).any(0).all())
            torch.testing.assert_close(p.abs().sum(1), torch.full((nodes,), experiment.sets[key].radius))


def test_sfw_and_sfw_if_start_from_the_same_point_and_other_seeds_from_another():
    starts = {
        (method, seed): make_model(settings := Settings("digits", method=method, seed=seed), experiment_of(settings))
        for method in ("sfw", "sfw-if")
        for seed in (0, 1)
    }
    assert torch.equal(starts["sfw", 0].fc1.weight, starts["sfw-if", 0].fc1.weight)
    assert not torch.equal(starts["sfw", 0].fc1.weight, starts["sfw", 1].fc1.weight)
    assert not torch.equal(starts["sfw", 0].fc3.weight, starts["sfw", 1].fc3.weight)


def test_radii_are_the_experiments_unless_they_are_given():
    assert resolve(Settings("mnist-mlp")).radius == (1.0, 10.0)
    assert resolve(Settings("mnist-mlp", radius=(0.5, 3.0))).radius == (0.5, 3.0)
    assert resolve(Settings("mnist-mlp", radius=(2.0,))).radius == (2.0, 2.0)
    with pytest.raises(ArgumentError, match=r"radius: wanted 1 or 2 numbers \(for fc1.weight, fc2.weight\), got 3"):
        resolve(Settings("mnist-mlp", radius=(1.0, 2.0, 3.0)))
    with pytest.raises(ArgumentError, match="radius: wanted numbers > 0, got 1 -2"):
        resolve(Settings("mnist-mlp", radius=(1.0, -2.0)))


# ---------------------------------------------------------------------- finding them


@pytest.mark.parametrize(
    ("wrong", "right"), [("minst-mlp", "mnist-mlp"), ("digit", "digits"), ("cifar-10", "cifar10"), ("mnist-cnov", "")]
)
def test_a_misspelt_name_gives_a_suggestion(wrong, right):
    with pytest.raises(ArgumentError) as error:
        find(wrong)
    assert str(error.value).startswith(f"there is no experiment {wrong}; did you mean {right}")
    assert str(error.value).endswith("?")
    assert error.value.exit_code == 2


def test_a_name_that_looks_like_none_lists_them_all():
    with pytest.raises(ArgumentError) as error:
        find("imagenet64")
    assert all(name in str(error.value) for name in BUILT_IN)
    assert "path/to/file.py:name" in str(error.value)


MINE = """
import torch
from typing import Literal
from inface.lab import Data, Experiment, Split, mean_squared_error
from inface.sets import L1Ball

def data(folder):
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    return Data(train=Split(x, x[:, :1]), test=Split(x, x[:, :1]))

def make(radius=1.0, width: int = 4, last: bool = False, kind: Literal["wide", "deep"] = "wide", label="x", count=3):
    seen.append(dict(radius=radius, width=width, last=last, kind=kind, label=label, count=count))
    return Experiment(data=data, model=lambda: torch.nn.Linear(4, 1), sets={"weight": L1Ball(radius)},
                      loss=torch.nn.functional.mse_loss, metric=mean_squared_error)

def strict(width: int):
    return make(width=width)

def wrong():
    return 3

seen = []
mine = make()
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "my_file.py"
    path.write_text(MINE)
    return path


def test_an_experiment_of_ones_own_is_found_in_its_file(file):
    experiment = find(f"{file}:mine")
    assert isinstance(experiment, Experiment)
    assert str(experiment.sets["weight"]) == str(L1Ball(1.0))
    assert options_of(f"{file}:mine") == {}
    with pytest.raises(ArgumentError, match=r"my_file.py:mine has no options, got edges"):
        find(f"{file}:mine", {"edges": 3})


def test_a_function_is_called_with_its_options(file):
    assert str(find(f"{file}:make").sets["weight"]) == str(L1Ball(1.0))
    assert str(find(f"{file}:make", {"radius": "2.5"}).sets["weight"]) == str(L1Ball(2.5))


def test_options_are_converted_to_what_the_function_asks_for(file):
    name = f"{file}:make"
    seen = find(f"{file}:mine").data.__globals__["seen"]
    texts = {"radius": "3", "width": "7", "last": "yes", "kind": "deep", "label": "5", "count": "4"}
    find(name, texts)
    assert seen[-1] == {"radius": 3.0, "width": 7, "last": True, "kind": "deep", "label": "5", "count": 4}
    assert [type(value) for value in seen[-1].values()] == [float, int, bool, str, str, int]
    assert options_of(name, texts) == seen[-1]
    find(name, {"radius": 3, "last": False, "label": 5})
    assert (seen[-1]["radius"], seen[-1]["last"], seen[-1]["label"]) == (3.0, False, "5")
    assert isinstance(seen[-1]["radius"], float)
    for text, value in (("true", True), ("False", False), ("no", False), ("1", True), ("0", False)):
        find(name, {"last": text})
        assert seen[-1]["last"] is value


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"width": "wide"}, "option width: wanted a whole number, got wide"),
        ({"width": "7.5"}, "option width: wanted a whole number, got 7.5"),
        ({"radius": "big"}, "option radius: wanted a number, got big"),
        ({"last": "maybe"}, "option last: wanted true or false, got maybe"),
        ({"kind": "depp"}, "option kind: wanted wide or deep, got depp; did you mean deep?"),
        ({"widht": "7"}, "has no option widht; did you mean width?"),
        ({"zzz": "7"}, "has no option zzz; it has radius, width, last, kind, label, count"),
    ],
)
def test_a_wrong_option_is_named_with_what_was_wanted(file, options, reason):
    with pytest.raises(ArgumentError) as error:
        find(f"{file}:make", options)
    assert str(error.value).startswith(f"{file}:make")
    assert str(error.value).endswith(reason)


def test_an_option_without_a_default_must_be_given(file):
    with pytest.raises(ArgumentError, match="option width must be given: width=VALUE"):
        find(f"{file}:strict")
    assert isinstance(find(f"{file}:strict", {"width": "3"}), Experiment)


def test_options_of_the_synthetic_data_are_checked():
    with pytest.raises(ArgumentError, match="wanted relu or sigmoid, got rleu; did you mean relu"):
        find("synthetic", {"activation": "rleu"})
    with pytest.raises(ArgumentError, match="synthetic: option edges: wanted a whole number, got many"):
        find("synthetic", {"edges": "many"})
    with pytest.raises(ArgumentError, match="digits has no option edges; it has none"):
        find("digits", {"edges": 5})
    assert find("synthetic", {"edges": "15"}).sets["fc2.weight"].radius == 15.0


def test_what_is_no_experiment_is_named(file, tmp_path):
    with pytest.raises(ArgumentError, match="has no experiment mime; did you mean mine"):
        find(f"{file}:mime")
    with pytest.raises(ArgumentError, match="has no experiment seen; "):
        find(f"{file}:seen")
    with pytest.raises(ArgumentError, match=r"my_file.py:wrong: wanted an Experiment, got int"):
        find(f"{file}:wrong")
    missing = tmp_path / "missing.py"
    with pytest.raises(ArgumentError, match=f"{missing}: there is no such file"):
        find(f"{missing}:mine")
    with pytest.raises(ArgumentError, match=r"wanted the name of an experiment, .*my_file.py:NAME; it has mine"):
        find(str(file))
    with pytest.raises(ArgumentError, match=r"there is no experiment notes.txt:mine"):
        find("notes.txt:mine")


def test_a_file_that_cannot_be_imported_raises_its_own_error_each_time(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("import torch\nraise ZeroDivisionError('mine')\n")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="mine"):
            find(f"{path}:mine")
    path = tmp_path / "unreadable.py"
    path.write_text("def f(:\n")
    with pytest.raises(SyntaxError):
        find(f"{path}:mine")
    assert str(tmp_path) not in sys.path


def test_a_module_beside_the_file_can_be_imported(tmp_path, monkeypatch):
    (tmp_path / "helper_of_mine.py").write_text("RADIUS = 4.0\n")
    path = tmp_path / "my_file.py"
    path.write_text(MINE + "\nfrom helper_of_mine import RADIUS\nhelped = make(radius=RADIUS)\n")
    before = list(sys.path)
    try:
        assert str(find(f"{path}:helped").sets["weight"]) == str(L1Ball(4.0))
        assert sys.path == [str(tmp_path), *before]  # as when Python runs the file: it may import later, too
        monkeypatch.chdir(tmp_path)
        assert str(find("my_file.py:helped").sets["weight"]) == str(L1Ball(4.0))
    finally:
        sys.modules.pop("helper_of_mine", None)


def test_two_files_of_one_name_are_two_experiments(tmp_path):
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "mine.py").write_text(MINE + f"\nown = make(radius={number})\n")
    found = [find(f"{tmp_path}/{number}/mine.py:own").sets["weight"].radius for number in (1, 2)]
    assert found == [1.0, 2.0]


def test_defaults_of_an_experiment_are_settings_where_nothing_is_given(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        MINE + "\nfrom dataclasses import replace\nown = replace(mine, defaults={'epochs': 3, 'lr': 0.5})\n"
    )
    settings = settings_for(f"{path}:own", lr=0.25)
    assert (settings.epochs, settings.lr, settings.batch_size) == (3, 0.25, 250)
    path = tmp_path / "typo.py"
    path.write_text(MINE + "\nfrom dataclasses import replace\nown = replace(mine, defaults={'epoch': 3})\n")
    with pytest.raises(ArgumentError, match="there is no setting epoch; did you mean epochs"):
        settings_for(f"{path}:own")


def test_what_a_layer_lives_in_must_be_a_set():
    with pytest.raises(ArgumentError, match=r'sets\["weight"\] must be a set, such as L1Ball\(1.0\), got 1.0'):
        Experiment(data=lambda _: None, model=lambda: nn.Linear(2, 1), sets={"weight": 1.0})
