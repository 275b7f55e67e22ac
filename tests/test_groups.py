"""Which parameters are constrained to what: by name, never by position."""

import pytest
import torch
from torch import nn

import inface
from helpers.conv1d import Conv1D
from inface.sets import GroupL1Ball, L1Ball, L2Ball, Simplex


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))


def named(groups):
    return [(group["set"] and group["set"].kind, [name for name, _ in group["params"]]) for group in groups]


def test_everything_that_no_pattern_matches_is_free(model):
    groups = inface.param_groups(model, {"0.weight": L1Ball(1.0), "2.weight": L2Ball(1.0)})
    assert named(groups) == [
        ("l1", ["0.weight"]),
        ("l2", ["2.weight"]),
        (None, ["0.bias", "2.bias", "4.weight", "4.bias"]),
    ]


@pytest.mark.parametrize("wrap", [torch.compile, nn.DataParallel, lambda model: nn.Sequential(torch.compile(model))])
def test_a_compiled_or_parallel_model_has_the_names_of_the_one_inside(model, wrap):
    outer = wrap(model)
    pattern = "0.0.weight" if isinstance(outer, nn.Sequential) else "0.weight"
    for asked in (pattern, pattern.replace(".weight", ".*"), next(name for name, _ in outer.named_parameters())):
        found = inface.param_groups(outer, {asked: L1Ball(1.0)})
        assert [p is model[0].weight for _, p in found[0]["params"]] == [True]


def test_a_glob_reaches_weights_and_only_an_exact_name_reaches_a_bias(model):
    assert named(inface.param_groups(model, {"*": L1Ball(1.0)}))[0] == ("l1", ["0.weight", "2.weight", "4.weight"])
    assert named(inface.param_groups(model, {"0.bias": Simplex(1.0)}))[0] == ("simplex", ["0.bias"])


def test_a_pattern_for_biases_alone_says_that_they_want_exact_names(model):
    with pytest.raises(ValueError, match=r'pattern "\*.bias" matches only .*0.bias.* exact names'):
        inface.param_groups(model, {"*.bias": L1Ball(1.0)})


def test_a_pattern_that_matches_nothing_is_named_with_what_there_is(model):
    with pytest.raises(ValueError, match=r'"fc1.weight" matches no parameter; the model has 0.weight'):
        inface.param_groups(model, {"fc1.weight": L1Ball(1.0)})


def test_a_parameter_matched_twice_is_named_with_both_patterns(model):
    with pytest.raises(ValueError, match=r'"0.weight" is matched by two patterns, "0.\*" and "\*.weight"'):
        inface.param_groups(model, {"0.*": L1Ball(1.0), "*.weight": L1Ball(2.0)})


def test_a_group_takes_options_with_its_set(model):
    opt = inface.FrankWolfe(
        inface.param_groups(model, {"0.weight": {"set": L1Ball(1.0), "lr": 8.0, "in_face": "pairwise"}}),
        lr=0.1,
        in_face="away",
        project=True,
    )
    assert [(group["lr"], group["in_face"]) for group in opt.param_groups] == [(8.0, "pairwise"), (0.1, "away")]


@pytest.mark.parametrize("value", [1.0, {"radius": 1.0}, {"set": "l1"}, None])
def test_a_value_that_is_not_a_set_is_refused_by_pattern(model, value):
    with pytest.raises(ValueError, match=r'pattern "0\.weight": wanted a set'):
        inface.param_groups(model, {"0.weight": value})


def test_a_frozen_layer_shifts_no_constraint(model):
    model[0].weight.requires_grad_(requires_grad=False)
    opt = inface.FrankWolfe(model, {"2.weight": L1Ball(0.5)}, lr=0.1, project=True)
    before = model[0].weight.clone()
    model(torch.randn(5, 4)).square().mean().backward()
    opt.step()
    assert torch.equal(model[0].weight, before)
    assert (model[2].weight.abs().sum(1) <= 0.5 * (1 + 1e-6)).all()


def test_a_shared_parameter_is_reached_by_any_of_its_names_and_listed_once():
    model = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})
    model["b"].weight = model["a"].weight
    groups = inface.param_groups(model, {"b.weight": L1Ball(1.0)})
    assert named(groups) == [("l1", ["a.weight"]), (None, ["a.bias", "b.bias"])]


def test_a_model_and_a_mapping_say_the_same_as_groups(model):
    inface.graph_init_(model, inface.param_groups(model, {"0.weight": L1Ball(1.0)}))
    opt = inface.FrankWolfe(model, {"0.weight": L1Ball(1.0)}, 0.1, in_face="away")
    assert opt.param_groups[0]["param_names"] == ["0.weight"]
    assert opt.param_groups[1]["set"] is None


def test_a_model_without_a_mapping_and_a_mapping_without_a_model_are_type_errors(model):
    with pytest.raises(TypeError, match="with a model, wanted a mapping"):
        inface.FrankWolfe(model, lr=0.1)
    with pytest.raises(TypeError, match="goes with a model"):
        inface.FrankWolfe(model.parameters(), {"0.weight": L1Ball(1.0)}, lr=0.1)
    with pytest.raises(TypeError, match="lr is missing"):
        inface.FrankWolfe(model.parameters())


@pytest.mark.parametrize("options", [{"lrr": 1.0}, {"in_fase": "away"}, {"params": []}])
def test_an_option_that_is_none_is_named(model, options):
    with pytest.raises(ValueError, match=rf'pattern "0.weight": .{next(iter(options))}. is no option of a group'):
        inface.param_groups(model, {"0.weight": {"set": L1Ball(1.0), **options}})


def test_nodes_of_transformers_conv1d_are_its_outputs():
    mixed = nn.Sequential(nn.Linear(4, 6), Conv1D(3, 6))
    plain, turned, _ = inface.param_groups(mixed, {"*.weight": {"set": L1Ball(1.0, norm="l1"), "lr": 2.0}})
    assert [name for name, _ in plain["params"]] == ["0.weight"]
    assert [name for name, _ in turned["params"]] == ["1.weight"]
    assert (plain["set"].per, turned["set"].per) == ("output", "input")
    assert (turned["set"].norm_name, turned["lr"]) == ("l1", 2.0)
    opt = inface.FrankWolfe(mixed, {"1.weight": L1Ball(torch.full((3,), 0.5))}, lr=0.1, project=True)
    mixed(torch.randn(2, 4)).sum().backward()
    opt.step()
    assert float(mixed[1].weight.detach().abs().sum(0).max()) <= 0.5 + 1e-6


def test_whole_nodes_of_transformers_conv1d_are_its_outputs():
    group, _ = inface.param_groups(Conv1D(3, 6), {"weight": GroupL1Ball(1.0)})
    assert group["set"].groups == "input"
    group, _ = inface.param_groups(Conv1D(3, 6), {"weight": L1Ball(1.0, per="tensor")})
    assert group["set"].per == "tensor"
