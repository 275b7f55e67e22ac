"""The graph initialisation: sparse, feasible, and every node connected."""

import pytest
import torch
from torch import nn

import inface
from inface.sets import GroupL1Ball, KSparsePolytope, L1Ball, L2Ball, LInfBall, NuclearBall, Simplex, SpectralBall


def initialised(layer, set_, seed=0):
    groups = inface.param_groups(layer, {"weight": set_})
    inface.graph_init_(layer, groups, generator=torch.Generator().manual_seed(seed))
    return layer.weight.detach()


@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.Linear(784, 512),
        lambda: nn.Linear(5, 17),
        lambda: nn.Linear(1, 6),
        lambda: nn.Linear(6, 1),
        lambda: nn.Conv2d(3, 8, 5),
        lambda: nn.Conv1d(8, 3, 3),
        lambda: nn.Conv3d(2, 4, (1, 2, 3)),
        lambda: nn.ConvTranspose2d(4, 7, 3),
    ],
)
@pytest.mark.parametrize("per", ["output", "input", "tensor"])
def test_every_input_and_every_output_has_an_edge_and_every_block_its_radius(layer, per):
    ball = L1Ball(2.0, per=per)
    weight = initialised(layer(), ball)
    edges = (weight != 0).flatten(2).sum(2) if weight.ndim > 2 else (weight != 0).int()
    assert (edges.sum(0) >= 1).all()
    assert (edges.sum(1) >= 1).all()
    assert edges.sum() == max(weight.shape[:2])
    torch.testing.assert_close(ball.norm(weight), torch.full_like(ball.norm(weight), 2.0))
    assert ball.contains(weight).all()


@pytest.mark.parametrize(
    "layer", [nn.Conv2d(6, 12, 3, groups=3), nn.Conv2d(4, 4, 3, groups=4), nn.ConvTranspose2d(6, 12, 3, groups=2)]
)
def test_a_grouped_convolution_is_connected_group_by_group(layer):
    weight = initialised(layer, L1Ball(1.0))
    for part in weight.flatten(2).count_nonzero(2).chunk(layer.groups):
        assert (part.sum(0) >= 1).all()
        assert (part.sum(1) >= 1).all()


@pytest.mark.parametrize(
    "set_",
    [L1Ball(3.0), L2Ball(3.0), LInfBall(3.0), KSparsePolytope(3.0, k=2), Simplex(3.0), GroupL1Ball(3.0)],
    ids=lambda s: s.kind,
)
def test_other_vector_sets_get_the_same_pattern_scaled_to_their_gauge(set_):
    weight = initialised(nn.Linear(9, 4), set_)
    assert ((weight != 0) == (initialised(nn.Linear(9, 4), L1Ball(1.0)) != 0)).all()
    torch.testing.assert_close(set_.norm(weight), torch.full_like(set_.norm(weight), 3.0))
    assert set_.contains(weight).all()
    assert isinstance(set_, Simplex) == bool((weight >= 0).all())


@pytest.mark.parametrize("set_", [NuclearBall(1.0), SpectralBall(1.0)])
def test_sets_that_are_not_made_of_edges_are_refused_before_anything_changes(set_):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    before = model[0].weight.clone()
    with pytest.raises(ValueError, match="not made of edges"):
        inface.graph_init_(model, inface.param_groups(model, {"0.weight": L1Ball(1.0), "1.weight": set_}))
    assert torch.equal(model[0].weight, before)


def test_a_generator_makes_it_reproducible_and_signs_and_places_are_random():
    first, again, other = (initialised(nn.Linear(30, 20), L1Ball(1.0), seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert 5 < (first > 0).sum() < 25


def test_an_optimizer_is_enough_and_free_parameters_are_left_alone():
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2))
    opt = inface.FrankWolfe(model, {"0.weight": L1Ball(torch.arange(1.0, 7.0))}, lr=0.1, project=True)
    free = [model[0].bias.clone(), model[1].weight.clone()]
    inface.graph_init_(opt)
    torch.testing.assert_close(model[0].weight.detach().abs().sum(1), torch.arange(1.0, 7.0))
    assert torch.equal(model[0].bias, free[0])
    assert torch.equal(model[1].weight, free[1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_it_keeps_the_dtype_and_is_accepted_as_a_start(dtype):
    model = nn.Linear(40, 30, dtype=dtype)
    inface.graph_init_(model, inface.param_groups(model, {"weight": L1Ball(0.3)}))
    opt = inface.FrankWolfe(model, {"weight": L1Ball(0.3)}, lr=0.1, in_face="away")
    assert opt.param_groups[0]["params"][0].dtype == dtype


def test_behind_a_relu_edges_are_positive_if_an_example_shows_it():
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 40), nn.ReLU(), nn.Dropout(0.5), nn.Linear(40, 5))
    groups = inface.param_groups(model, {"*.weight": L1Ball(2.0)})
    inputs = torch.randn(8, 20, generator=torch.Generator().manual_seed(0))
    model[4].eval()
    before = torch.random.get_rng_state()
    inface.graph_init_(model, groups, generator=torch.Generator().manual_seed(0), example=inputs, scale=0.25)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert (model[0].weight < 0).any()
    for layer in (model[2], model[5]):
        assert (layer.weight >= 0).all()
    for layer in (model[0], model[2], model[5]):
        torch.testing.assert_close(layer.weight.abs().sum(1), torch.full((len(layer.weight),), 0.5))
        assert (layer.weight != 0).any(0).all()
    hidden = torch.relu(model[0](inputs)).detach()
    alive = (hidden > 0).any(0)
    fed = model[2].weight[:, alive].sum(1) > 0
    assert torch.equal(((model[2](hidden) - model[2].bias) > 0).any(0), fed)  # no node is dead of its sign
    assert model.training
    assert not model[4].training
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_layer_that_is_used_behind_and_before_an_activation_keeps_random_signs():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(30, 30)

        def forward(self, x):
            return self.layer(torch.relu(self.layer(x)))

    model = Twice()
    inface.graph_init_(model, inface.param_groups(model, {"layer.weight": L1Ball(1.0)}), example=torch.randn(4, 30))
    assert (model.layer.weight < 0).any()


def test_what_a_start_cannot_be_is_refused():
    model = nn.Linear(4, 3)
    start = model.weight.detach().clone()
    groups = inface.param_groups(model, {"weight": Simplex(1.0)})
    for scale in (0.0, 1.5, -1.0):
        with pytest.raises(ValueError, match="scale must be in"):
            inface.graph_init_(model, groups, scale=scale)
    with pytest.raises(ValueError, match=r"has no smaller points, got scale 0\.5"):
        inface.graph_init_(model, groups, scale=0.5)
    assert torch.equal(model.weight, start)
    opt = inface.FrankWolfe(model, {"weight": L1Ball(1.0)}, lr=0.1, project=True)
    with pytest.raises(TypeError, match="with an example, wanted the model"):
        inface.graph_init_(opt, example=torch.ones(1, 4))


# ---------------------------------------------------------------------- several edges into each node


def started(layer, set_, edges, **options):
    groups = inface.param_groups(layer, {"weight": set_})
    inface.graph_init_(layer, groups, generator=torch.Generator().manual_seed(0), edges=edges, **options)
    return layer.weight.detach()


@pytest.mark.parametrize("edges", [2, 3, 4])
@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.Linear(30, 30),
        lambda: nn.Linear(5, 17),
        lambda: nn.Linear(50, 6),
        lambda: nn.Conv2d(3, 8, 5),
        lambda: nn.Conv1d(1, 4, 4),
        lambda: nn.Conv2d(6, 12, 3, groups=3),
        lambda: nn.Conv2d(4, 4, 3, groups=4),
        lambda: nn.ConvTranspose2d(4, 7, 3),
        lambda: nn.ConvTranspose2d(6, 12, 3, groups=2),
    ],
)
def test_every_node_has_so_many_edges_half_of_each_sign_and_every_input_is_read(layer, edges):
    layer = layer()
    weight = started(layer, L1Ball(2.0), edges)
    transposed = isinstance(layer, nn.ConvTranspose2d)
    for part in weight.chunk(getattr(layer, "groups", 1)):
        into = (part.transpose(0, 1) if transposed else part).reshape(
            part.shape[transposed], part.shape[not transposed], -1
        )
        positive, negative = (into > 0).sum((1, 2)), (into < 0).sum((1, 2))
        assert (positive + negative >= edges).all()
        assert ((positive - negative).abs() <= 1).all()
        assert (into != 0).any(2).any(0).all()
    assert L1Ball(2.0).contains(weight).all()
    torch.testing.assert_close(weight.flatten(1).abs().sum(1), torch.full((len(weight),), 2.0))


def test_a_square_layer_gets_no_more_edges_than_two_covers_need():
    weight = started(nn.Linear(200, 200), L1Ball(1.0), 2)
    assert ((weight != 0).sum(1) == 2).all()


@pytest.mark.parametrize("per", ["output", "input", "tensor"])
def test_blocks_of_any_kind_have_their_radius_with_several_edges(per):
    ball = L1Ball(2.0, per=per)
    norms = ball.norm(started(nn.Linear(9, 12), ball, 3))
    torch.testing.assert_close(norms, torch.full_like(norms, 2.0))


def test_a_simplex_and_a_vector_take_several_edges():
    weight = started(nn.Linear(9, 4), Simplex(3.0), 4)
    assert (weight >= 0).all()
    assert ((weight > 0).sum(1) >= 4).all()
    vector = nn.ParameterDict({"weight": nn.Parameter(torch.ones(7))})
    assert started(vector, L1Ball(1.0), 5).count_nonzero() == 7


def test_all_edges_may_be_asked_for_and_not_one_more():
    assert started(nn.Conv2d(2, 3, 2), L1Ball(1.0), 8).count_nonzero() == 24
    model = nn.Sequential(nn.Linear(9, 9), nn.Conv2d(2, 4, 2, groups=2))
    before = [p.detach().clone() for p in model.parameters()]
    groups = inface.param_groups(model, {"*.weight": L1Ball(1.0)})
    with pytest.raises(ValueError, match=r'parameter "1.weight" has a fan-in of 4, got edges 5'):
        inface.graph_init_(model, groups, edges=5)
    transposed = nn.ConvTranspose2d(3, 8, 2)
    with pytest.raises(ValueError, match=r'parameter "weight" has a fan-in of 12, got edges 13'):
        inface.graph_init_(transposed, inface.param_groups(transposed, {"weight": L1Ball(1.0)}), edges=13)
    for edges in (0, -1, 1.5, 2.0, True, None, "2"):
        with pytest.raises(ValueError, match=f"edges must be a whole number >= 1, got {edges!r}"):
            inface.graph_init_(model, groups, edges=edges)
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))


def test_with_two_edges_fewer_relu_nodes_of_a_square_layer_start_dead_than_with_one():
    inputs = torch.rand(200, 300, generator=torch.Generator().manual_seed(0))

    def dead(edges, **options):
        layer = nn.Linear(300, 300, bias=False)
        started(layer, L1Ball(1.0), edges, **options)
        return 1 - float((layer(inputs) > 0).any(0).float().mean())

    assert 0.4 < dead(1) < 0.6
    assert dead(2) == 0.0
    assert dead(1, alive=True, example=inputs) == 0.0


def test_a_start_alive_is_an_example_and_three_tenths_of_the_radius():
    def weights(**options):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
        sets = {"0.weight": L1Ball(2.0), "2.weight": options.pop("last", L1Ball(2.0))}
        inputs = torch.randn(5, 6)
        generator = torch.Generator().manual_seed(1)
        inface.graph_init_(model, inface.param_groups(model, sets), generator=generator, example=inputs, **options)
        return model[0].weight.detach(), model[2].weight.detach()

    for found, wanted in zip(weights(alive=True), weights(scale=0.3), strict=True):
        assert torch.equal(found, wanted)
    for found, wanted in zip(weights(alive=True, scale=0.5), weights(scale=0.5), strict=True):
        assert torch.equal(found, wanted)
    first, last = weights(alive=True, last=Simplex(2.0))
    torch.testing.assert_close(first.abs().sum(1), torch.full((8,), 0.6))
    torch.testing.assert_close(last.sum(1), torch.full((4,), 2.0))  # a simplex has no inside
    model = nn.Linear(3, 3)
    with pytest.raises(TypeError, match="with alive=True, wanted an example"):
        inface.graph_init_(model, inface.param_groups(model, {"weight": L1Ball(1.0)}), alive=True)


def test_the_constrained_bias_of_a_grouped_convolution_is_one_block():
    layer = nn.Conv2d(4, 8, 3, groups=2)
    inface.graph_init_(layer, inface.param_groups(layer, {"bias": L1Ball(1.0)}))
    torch.testing.assert_close(layer.bias.detach().abs(), torch.full((8,), 0.125))


@pytest.mark.parametrize(
    ("layer", "set_", "wanted"),
    [
        (lambda: nn.Linear(4, 3), L1Ball(2.0), [[0, -2, 0, 0], [-2, 0, 0, 0], [0, 0, -1, 1]]),
        (lambda: nn.Linear(2, 3), Simplex(1.0), [[0, 1], [0, 1], [1, 0]]),
        (lambda: nn.Conv1d(2, 4, 2, groups=2), L1Ball(1.0), [[[0, 1]], [[1, 0]], [[0, 1]], [[0, 1]]]),
        (lambda: nn.ConvTranspose1d(2, 1, 2), L1Ball(1.0), [[[0, -1]], [[0, 1]]]),
    ],
)
def test_one_edge_is_the_default_and_what_a_seed_gives_stays_as_it_is(layer, set_, wanted):
    assert initialised(layer(), set_).tolist() == wanted
    assert started(layer(), set_, 1).tolist() == wanted
