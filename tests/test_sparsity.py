"""Non-zeros and thresholding, as the paper counts and as everybody else does."""

import copy
import gc
import io
import pickle
import weakref

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import inface
from inface.sets import L1Ball
from inface.sparsity import hard_threshold, nonzeros


@pytest.fixture
def model():
    net = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 2))
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[0.5, 0.0, -0.3, 0.0005], [0.0, 0.0, 0.001, 0.0]]))
        net[0].bias.copy_(torch.tensor([0.0, 1.0]))
        net[1].weight.copy_(torch.tensor([[0.9, 0.8], [0.7, 0.0]]))
        net[1].bias.zero_()
    return net


def test_a_layer_is_averaged_over_its_nodes_and_the_threshold_itself_counts(model):
    layer = nonzeros(model, layers="0.weight").layers["0.weight"]
    assert (layer.edges, layer.percent, layer.exact_percent) == (1.5, 37.5, 50.0)


def test_the_network_is_counted_with_its_free_parameters_and_biases(model):
    result = nonzeros(model, layers="0.weight")
    assert (result.count, result.total) == (3 + 1 + 3 + 0, 8 + 2 + 4 + 2)
    assert result.percent == 100 * 7 / 16


def test_a_threshold_of_zero_counts_what_is_not_exactly_zero(model):
    assert nonzeros(model, 0.0, layers="0.weight").layers["0.weight"].edges == 2.0


def test_constrained_layers_are_the_default_until_another_optimizer_frees_them(model):
    opt = inface.FrankWolfe(model, {"0.weight": L1Ball(1.0)}, lr=0.1)
    assert list(nonzeros(model).layers) == ["0.weight"]
    assert list(nonzeros(model, layers=opt).layers) == ["0.weight"]
    inface.FrankWolfe(model, {"1.weight": L1Ball(5.0)}, lr=0.1)
    assert list(nonzeros(model).layers) == ["1.weight"]
    inface.FrankWolfe(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="no parameter of this model is constrained"):
        nonzeros(model)


def test_thresholding_keeps_the_largest_edges_of_each_layer_in_a_copy(model):
    kept = hard_threshold(model, 0.25, layers=["0.weight", "1.weight"])
    assert kept[0].weight.count_nonzero() == 2
    assert kept[0].weight[0, 0] == 0.5
    assert kept[1].weight.tolist() == [[pytest.approx(0.9), 0.0], [0.0, 0.0]]
    assert model[1].weight.count_nonzero() == 3
    assert torch.equal(kept[0].bias, model[0].bias)


def test_thresholding_may_rank_all_layers_together(model):
    kept = hard_threshold(model, 0.25, layers=["0.weight", "1.weight"], scope="global")
    assert kept[0].weight.count_nonzero() == 0
    assert kept[1].weight.count_nonzero() == 3


def test_thresholding_keeps_everything_at_one_and_exactly_the_asked_number_on_ties():
    model = nn.Linear(10, 10)
    nn.init.ones_(model.weight)
    assert torch.equal(hard_threshold(model, 1.0, layers="weight").weight, model.weight)
    kept = hard_threshold(model, 0.07, layers="weight").weight
    assert kept.flatten().nonzero().flatten().tolist() == list(range(7))


def test_a_thresholded_copy_still_knows_its_constrained_layers(model):
    inface.FrankWolfe(model, {"0.weight": L1Ball(1.0)}, lr=0.1)
    assert nonzeros(hard_threshold(model, 0.125)).layers["0.weight"].edges == 0.5


def test_convolutions_count_kernel_entries_as_edges():
    model = nn.Conv2d(2, 3, 2, bias=False)
    nn.init.zeros_(model.weight)
    with torch.no_grad():
        model.weight[0] = 1.0
    layer = nonzeros(model, layers="*").layers["weight"]
    assert (layer.edges, layer.percent) == (8 / 3, pytest.approx(100 / 3))


# ---------------------------------------------------------------------- copies and wrappers


@pytest.mark.parametrize(
    ("copied", "prefix"),
    [
        (copy.deepcopy, ""),
        (lambda model: copy.deepcopy(copy.deepcopy(model)), ""),
        (AveragedModel, "module."),
        (lambda model: AveragedModel(AveragedModel(model)), "module.module."),
        (nn.DataParallel, "module."),
        (lambda model: torch.compile(model, backend="eager"), "_orig_mod."),
        (lambda model: AveragedModel(torch.compile(model, backend="eager")), "module._orig_mod."),
    ],
    ids=["copy", "copy of a copy", "averaged", "averaged twice", "parallel", "compiled", "compiled and averaged"],
)
def test_a_copy_or_wrapper_of_a_model_has_the_constrained_layers_of_the_model(model, copied, prefix):
    inface.FrankWolfe(model, {"0.weight": L1Ball(1.0)}, lr=0.1)
    other = copied(model)
    assert list(nonzeros(other).layers) == [f"{prefix}0.weight"]
    assert nonzeros(other).layers[f"{prefix}0.weight"] == nonzeros(model).layers["0.weight"]
    kept = hard_threshold(other, 0.125)
    assert nonzeros(kept).layers[f"{prefix}0.weight"].edges == 0.5
    assert nonzeros(model).layers["0.weight"].edges == 1.5


def test_a_copy_outlives_its_original_and_a_freed_one_is_not_asked(model):
    opt = inface.FrankWolfe(model, {"0.weight": L1Ball(1.0)}, lr=0.1)
    averaged = AveragedModel(model)
    inface.FrankWolfe(model.parameters(), lr=0.1)
    del opt, model
    gc.collect()
    assert list(nonzeros(averaged).layers) == ["module.0.weight"]
    averaged.update_parameters(nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 2)))
    inface.FrankWolfe(averaged.module.parameters(), lr=0.1)
    for each in (averaged, copy.deepcopy(averaged)):
        with pytest.raises(ValueError, match="no parameter of this model is constrained"):
            nonzeros(each)


def test_nothing_of_a_constraint_is_saved(model):
    def saved(thing):
        file = io.BytesIO()
        torch.save(thing, file)
        return file.getvalue()

    model[1].weight.note = "a user's own"
    whole, state, parameter = saved(model), saved(model.state_dict()), pickle.dumps(model[1].weight)
    inface.FrankWolfe(model, {"*.weight": L1Ball(5.0)}, lr=0.1)
    assert saved(model) == whole
    assert saved(model.state_dict()) == state
    assert pickle.dumps(model[1].weight) == parameter
    loaded = torch.load(io.BytesIO(saved(list(model.parameters()))), weights_only=True)
    assert torch.equal(loaded[0], model[0].weight)
    assert loaded[2].note == "a user's own"


def test_a_constrained_parameter_is_freed_with_its_last_reference():
    model = nn.Linear(4, 2)
    inface.FrankWolfe(model, {"weight": L1Ball(1.0)}, lr=0.1, project=True)
    weight = weakref.ref(model.weight)
    gc.disable()
    try:
        del model
        assert weight() is None  # nothing in a circle, which only the garbage collector would find
    finally:
        gc.enable()


def cut_to(model, keep):
    return hard_threshold(model, keep, layers=["0.weight", "1.weight"], scope="balanced")


@pytest.fixture
def two_layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(30, 20), nn.Linear(20, 5))


def test_a_balanced_cut_ranks_by_scores_that_a_rescaled_layer_keeps(two_layers):
    before = [layer.weight != 0 for layer in cut_to(two_layers, 0.2)]
    with torch.no_grad():
        two_layers[0].weight.mul_(1000)
    assert all(
        torch.equal(layer.weight != 0, kept) for layer, kept in zip(cut_to(two_layers, 0.2), before, strict=True)
    )
    assert sum(int(kept.sum()) for kept in before) == 140


def test_a_balanced_cut_keeps_what_the_scores_of_the_paper_keep(two_layers):
    scores = []
    for layer in two_layers:
        squares = layer.weight.detach().double().square()
        scores.append(
            squares / torch.stack([squares[squares >= one].sum() for one in squares.flatten()]).view_as(squares)
        )
    least = torch.cat([score.flatten() for score in scores]).sort(descending=True).values[139]
    for layer, score in zip(cut_to(two_layers, 0.2), scores, strict=True):
        assert torch.equal(layer.weight != 0, score >= least)


def test_a_balanced_cut_is_between_the_l1_and_the_l2_norm_of_a_layer(two_layers):
    for old, new in zip(two_layers, cut_to(two_layers, 0.2), strict=True):
        assert new.weight.abs().sum() < old.weight.abs().sum()
        assert new.weight.norm() > old.weight.norm()
        ratio = (new.weight / old.weight)[new.weight != 0]
        torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio))


def test_a_balanced_cut_leaves_an_edge_to_every_layer_and_everything_at_one(two_layers):
    assert all(layer.weight.count_nonzero() == 1 for layer in cut_to(two_layers, 2 / 700))
    torch.testing.assert_close(cut_to(two_layers, 1.0)[0].weight, two_layers[0].weight)


def test_an_unknown_scope_is_refused_by_name(two_layers):
    with pytest.raises(ValueError, match=r"scope must be 'layer', 'global' or 'balanced', got 'network'"):
        hard_threshold(two_layers, 0.2, layers="*", scope="network")


@pytest.mark.parametrize("scope", ["layer", "global", "balanced"])
def test_nodes_with_weight_normalisation_keep_an_edge(scope):
    torch.manual_seed(0)
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(64, 100))
    model = nn.Sequential(normed, nn.ReLU(), nn.Linear(100, 10))
    layers = ["0.parametrizations.weight.original1", "2.weight"]
    model[2].weight.data *= 10  # most edges that stay are here
    cut = hard_threshold(model, 0.02, layers=layers, scope=scope)
    assert cut(torch.randn(5, 64)).isfinite().all()
    assert (cut[0].parametrizations.weight.original1.count_nonzero(1) >= 1).all()
    total = sum(int(dict(cut.named_parameters())[name].count_nonzero()) for name in layers)
    assert total == round(0.02 * 6400) + round(0.02 * 1000) if scope == "layer" else total == round(0.02 * 7400)
    assert model[2].weight.count_nonzero() == 1000


@pytest.mark.parametrize("scope", ["layer", "global", "balanced"])
def test_nodes_with_weight_normalisation_keep_an_edge_where_fewer_are_wanted_and_where_they_are_frozen(scope):
    torch.manual_seed(0)
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(64, 100))
    model = nn.Sequential(normed, nn.ReLU(), nn.Linear(100, 10)).requires_grad_(False)
    cut = hard_threshold(model, 0.01, layers=["*original1", "2.weight"], scope=scope)
    assert (cut[0].parametrizations.weight.original1.count_nonzero(1) == 1).all()
    assert cut[2].weight.any()
    assert cut(torch.randn(5, 64)).isfinite().all()
