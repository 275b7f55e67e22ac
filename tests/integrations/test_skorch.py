"""skorch trains as an ordinary loop does; scikit-learn searches over densities and radii."""

import pickle

import pytest
import torch
from torch import nn

import inface
from inface.sets import L1Ball
from integrations import networks

skorch = pytest.importorskip("skorch")
from sklearn.model_selection import GridSearchCV  # noqa: E402

from inface.integrations.skorch import FrankWolfeCallback, NeuralNetClassifier, NeuralNetRegressor  # noqa: E402

X, Y = (tensor.numpy() for tensor in networks.data().tensors)
COMMON = {"criterion": nn.CrossEntropyLoss, "max_epochs": 8, "batch_size": networks.BATCH, "verbose": 0}
AWAY = {f"optimizer__{name}": value for name, value in networks.AWAY.items()}


def net(**options):
    return NeuralNetClassifier(networks.network, **{**COMMON, "train_split": None, **options})


def test_sets_by_name_are_a_plain_loop():
    model, opt = networks.away()
    expected = networks.plain(model, opt, 8)
    found = net(optimizer__sets=networks.SETS, callbacks=[FrankWolfeCallback(layers=True)], **AWAY).fit(X, Y)
    assert networks.same(found.module_, expected)
    assert found.history[-1, "gap"] == pytest.approx(float(opt.gap))
    assert found.history[-1, "density/0.weight"] == int(model[0].weight.count_nonzero()) / 320


@pytest.mark.parametrize("options", [{"optimizer__density": 0.1}, {"sized": 0.1}])
def test_a_path_ends_with_the_last_epoch(options):
    if "sized" in options:
        sets = {name: L1Ball(density=0.1) for name in networks.SETS}
        options = {"optimizer__sets": sets, "optimizer__in_face": "projected"}
    found = net(lr=0.1, train_split=skorch.dataset.ValidSplit(3), **options).fit(X, Y)
    path = found.optimizer_.param_groups[0]["path"]
    assert path["step"] == path["steps"] == 8 * 4  # 64 of 96 samples
    assert networks.nonzeros(found.module_) <= 36


class Stop(skorch.callbacks.Callback):
    def on_epoch_end(self, net, **_):
        if len(net.history) == 4:
            raise KeyboardInterrupt


@pytest.mark.parametrize("way", ["load", "pickle", "go on"])
def test_a_path_that_was_stopped_goes_on(way, tmp_path):
    sets = {name: L1Ball(density=0.1) for name in networks.SETS}
    options = {"lr": 0.1, "optimizer__sets": sets, "optimizer__in_face": "projected"}
    found = net(callbacks=[Stop()], **options).fit(X, Y)
    assert found.optimizer_.param_groups[0]["path"]["step"] == 24
    again = found
    if way == "load":
        found.save_params(f_params=tmp_path / "weights.pt", f_optimizer=tmp_path / "optimizer.pt")
        again = net(**options).initialize()
        again.load_params(f_params=tmp_path / "weights.pt", f_optimizer=tmp_path / "optimizer.pt")
    elif way == "pickle":
        again = pickle.loads(pickle.dumps(found))  # noqa: S301
    again.fit_loop(X, Y, epochs=4)
    path = again.optimizer_.param_groups[0]["path"]
    assert path["step"] == path["steps"] == 48
    assert networks.nonzeros(again.module_) <= 36


def test_a_grid_of_densities_and_one_of_radii():
    sparse = GridSearchCV(net(lr=0.1), {"optimizer__density": [0.05, 0.3]}, cv=2, scoring="accuracy").fit(X, Y)
    assert networks.nonzeros(sparse.best_estimator_.module_) <= sparse.best_params_["optimizer__density"] * 368
    bounded = net(optimizer__sets=networks.SETS, **AWAY)
    radii = GridSearchCV(bounded, {"optimizer__radius": [0.01, {"0.weight": 3.0}]}, cv=2, scoring="accuracy").fit(X, Y)
    assert radii.best_params_["optimizer__radius"] == {"0.weight": 3.0}
    group = radii.best_estimator_.optimizer_.param_groups[0]
    assert group["set"].radius == 3.0
    assert group["set"].contains(group["params"][0]).all()


def test_a_criterion_with_weights_and_another_optimizer_train_too():
    class Criterion(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, found, wanted):
            return nn.functional.cross_entropy(self.scale * found, wanted)

    found = net(criterion=Criterion, optimizer__density=0.1, lr=0.1).fit(X, Y)
    assert float(found.criterion_.scale) != 1
    dense = NeuralNetRegressor(networks.network, optimizer=torch.optim.SGD, max_epochs=1, verbose=0, train_split=None)
    assert isinstance(dense.fit(X, X[:, :3]).optimizer_, torch.optim.SGD)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"optimizer__density": 0.1, "optimizer__sets": networks.SETS}, "wanted either optimizer__sets or"),
        ({"optimizer__density": 0.1, "optimizer__radius": 1.0}, "optimizer__density finds radii itself"),
        ({"optimizer__radius": 1.0}, "wanted optimizer__sets, whose radii it replaces"),
        ({"optimizer__sets": networks.SETS, "optimizer__radius": {"1": 1.0}}, '"1" is no pattern of optimizer__sets'),
    ],
)
def test_what_does_not_go_together_is_refused(options, told):
    with pytest.raises(ValueError, match=told):
        net(**options).initialize()


def test_sets_can_be_pickled_with_their_network(tmp_path):
    found = net(optimizer__sets=networks.SETS, **AWAY).fit(X, Y)
    found.save_params(f_params=tmp_path / "weights.pt", f_optimizer=tmp_path / "optimizer.pt")
    again = net(optimizer__sets=networks.SETS, **AWAY).initialize()
    again.load_params(f_params=tmp_path / "weights.pt", f_optimizer=tmp_path / "optimizer.pt")
    assert networks.same(again.module_, found.module_)
    assert isinstance(again.optimizer_, inface.FrankWolfe)
