"""Sets sized by a density, and the scheduler that lowers it: edges, whole nodes, and ranks."""

import copy
import io
import math

import pytest
import torch
from torch import nn

import inface
from inface.paths import room, unfinished
from inface.sets import GroupL1Ball, L1Ball, L2Ball, NuclearBall

STEPS = 40
DATA = torch.randn(STEPS + 10, 2, 16, 12, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(12, 20), nn.Linear(20, 12)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def make(set_, *, seed=0, dtype=torch.float32, share="network", schedule=None, **options):
    torch.manual_seed(seed)
    model = Net().to(dtype)
    options = {"lr": 0.05, "in_face": "projected", "momentum": 0.9} | options
    opt = inface.FrankWolfe(model, {"*.weight": set_}, **options)
    return model, opt, inface.DensityScheduler(opt, STEPS, share=share, **(schedule or {}))


def train(model, opt, scheduler, start=0, stop=STEPS):
    for x, y in DATA[start:stop].to(model.first.weight.dtype):
        opt.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        opt.step()
        scheduler.step()


def atoms(group):
    """How many atoms the weight of a group has, counted from the weight itself, and how many it could have."""
    (p,), set_ = group["params"], group["set"]
    if isinstance(set_, NuclearBall):
        return int(torch.linalg.matrix_rank(p.double(), rtol=1e-6)), min(p.shape)
    if isinstance(set_, GroupL1Ball):
        used = p.abs().sum(1 if set_.groups == "output" else 0) > 0
        return int(used.sum()), used.numel()
    return int(p.count_nonzero()), p.numel()


def constrained(opt):
    return [group for group in opt.param_groups if group["set"] is not None]


def values(model):
    return [p.detach().clone() for p in model.parameters()]


def assert_same(one, two):
    for p, q in zip(one, two, strict=True):
        assert torch.equal(p, q)


def through_file(data):
    file = io.BytesIO()
    torch.save(data, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


SETS = {
    "edges": L1Ball(density=0.1),
    "inputs": L1Ball(density=0.1, per="input"),
    "tensor": L1Ball(density=0.1, per="tensor"),
    "nodes": GroupL1Ball(density=0.25),
    "features": GroupL1Ball(density=0.25, groups="input"),
    "rank": NuclearBall(density=0.25),
}


@pytest.mark.parametrize("options", [{}, {"lr": "auto"}, {"fused": False}], ids=["lr", "auto", "torch"])
@pytest.mark.parametrize("name", SETS)
def test_every_kind_of_atom_ends_at_its_density(name, options):
    if options.get("lr") == "auto":
        torch.manual_seed(0)
        model = Net()
        groups = [
            {"params": [(n, p) for n, p in model.named_parameters() if p.ndim > 1], "set": SETS[name], "lr": "auto"},
            {"params": [(n, p) for n, p in model.named_parameters() if p.ndim == 1], "set": None},
        ]
        opt = inface.FrankWolfe(groups, lr=0.05, in_face="projected", momentum=0.9)
        scheduler = inface.DensityScheduler(opt, STEPS)
    else:
        model, opt, scheduler = make(SETS[name], **options)
    train(model, opt, scheduler)
    found = [atoms(group) for group in constrained(opt)]
    density = SETS[name].density
    assert sum(used for used, _ in found) <= density * sum(total for _, total in found)
    assert all(used >= 1 for used, _ in found)
    assert scheduler.get_last_density() == [density, density]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", ["edges", "nodes", "rank"])
def test_other_dtypes_end_at_their_density_too(name, dtype):
    model, opt, scheduler = make(SETS[name], dtype=dtype)
    train(model, opt, scheduler)
    found = [
        (opt.state[group["params"][0]]["master"] if dtype is torch.bfloat16 else group["params"][0], group)
        for group in constrained(opt)
    ]
    counted = [atoms({**group, "params": [x]}) for x, group in found]
    assert 1 <= sum(used for used, _ in counted) <= SETS[name].density * sum(total for _, total in counted)


def test_layers_share_their_edges_or_have_each_its_own():
    model, opt, scheduler = make(L1Ball(density=0.1), share="layer")
    train(model, opt, scheduler)
    assert all(int(p.count_nonzero()) <= 24 for p in (model.first.weight, model.second.weight))
    torch.manual_seed(0)
    model = Net()
    with torch.no_grad():
        model.first.weight[:, 0] *= 100  # beside which nothing of its layer counts
    opt = inface.FrankWolfe(model, {"*.weight": L1Ball(density=0.1)}, lr=1e-3, in_face="projected")
    train(model, opt, inface.DensityScheduler(opt, STEPS))
    assert int(model.first.weight.count_nonzero()) < 24 < int(model.second.weight.count_nonzero())


def test_making_a_scheduler_moves_no_weight():
    for set_ in SETS.values():
        torch.manual_seed(0)
        model = Net()
        with torch.no_grad():
            model.first.weight[:10, 2:] = 0  # rows of other densities
        opt = inface.FrankWolfe(
            model, {"*.weight": type(set_)(density=1.0, per=set_.per)}, lr=0.05, in_face="projected"
        )
        before = values(model)
        inface.DensityScheduler(opt, STEPS)
        for p, q in zip(before, model.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)


def test_weights_stay_in_their_balls_at_every_step_and_zeros_are_exact():
    model, opt, scheduler = make(L1Ball(density=0.1))
    for i in range(STEPS):
        train(model, opt, scheduler, i, i + 1)
        for group in constrained(opt):
            assert group["set"].contains(group["params"][0]).all()
    assert opt.report().outside == 0


def test_the_density_falls_along_the_path_and_begins_and_ends_where_it_is_told():
    model, opt, scheduler = make(L1Ball(density=0.1), schedule={"begin": 0.25, "end": 0.5, "every": 1})
    start, found = scheduler.get_last_density()[0], []
    for i in range(STEPS):
        train(model, opt, scheduler, i, i + 1)
        found.append(scheduler.get_last_density()[0])
    assert found[9] == start > found[10]
    assert found[18] > 0.1 == found[19]
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_path_of_very_few_steps_ends_at_its_density(steps):
    torch.manual_seed(0)
    model = Net()
    opt = inface.FrankWolfe(model, {"*.weight": L1Ball(density=0.1)}, lr=0.05, in_face="projected")
    train(model, opt, inface.DensityScheduler(opt, steps), 0, steps)
    assert sum(atoms(group)[0] for group in constrained(opt)) <= 48


# ---------------------------------------------------------------------- saving


@pytest.mark.parametrize("order", ["both made first", "scheduler made last"])
@pytest.mark.parametrize("at", [1, 7, 8, 20, 31, 32, 33])
@pytest.mark.parametrize("name", ["edges", "nodes", "rank"])
def test_a_resumed_scheduler_goes_on_bit_for_bit(name, at, order):
    model, opt, scheduler = make(SETS[name])
    train(model, opt, scheduler, 0, at)
    saved = through_file([model.state_dict(), opt.state_dict(), scheduler.state_dict()])
    train(model, opt, scheduler, at, STEPS + 5)
    if order == "both made first":
        other, live, again = make(SETS[name], seed=1)
        other.load_state_dict(saved[0])
        live.load_state_dict(saved[1])
    else:
        torch.manual_seed(1)
        other = Net()
        live = inface.FrankWolfe(other, {"*.weight": SETS[name]}, lr=0.05, in_face="projected", momentum=0.9)
        other.load_state_dict(saved[0])
        live.load_state_dict(saved[1])
        again = inface.DensityScheduler(live, STEPS)
    again.load_state_dict(saved[2])
    train(other, live, again, at, STEPS + 5)
    assert_same(values(model), values(other))
    assert again.state_dict() == scheduler.state_dict()


def test_a_state_that_is_no_path_is_refused_and_nothing_is_changed():
    _, _, scheduler = make(L1Ball(density=0.1))
    before = copy.deepcopy(scheduler.state_dict())
    path = before["paths"][0]
    for wrong in ({}, {"paths": []}, {"paths": [path, 3]}, {"paths": [path, {"step": 3}]}, {"paths": path}):
        with pytest.raises(ValueError, match="DensityScheduler: wanted"):
            scheduler.load_state_dict(wrong)
    assert scheduler.state_dict() == before


# ---------------------------------------------------------------------- what is refused


def test_bad_values_are_refused_by_name():
    model = Net()
    plain = inface.FrankWolfe(model, {"*.weight": L1Ball(100.0)}, lr=0.1)
    with pytest.raises(ValueError, match="no set of the optimizer has a density"):
        inface.DensityScheduler(plain, 10)
    opt = inface.FrankWolfe(Net(), {"*.weight": L1Ball(density=0.1)}, lr=0.1, in_face="projected")
    for options, told in (
        ({"steps": 0}, "steps must be"),
        ({"steps": 1.5}, "steps must be"),
        ({"steps": 9, "begin": 0.9}, "begin"),
        ({"steps": 9, "end": math.nan}, "end"),
        ({"steps": 9, "begin": "0"}, "begin"),
        ({"steps": 9, "every": 0}, "every"),
        ({"steps": 9, "share": "all"}, "share"),
    ):
        with pytest.raises(ValueError, match=f"DensityScheduler: .*{told}"):
            inface.DensityScheduler(opt, **options)
    assert all(group["path"] is None for group in opt.param_groups)
    for wrong in (0, 1.5, -1, math.nan, True, "5%"):
        with pytest.raises(ValueError, match="density must be in"):
            L1Ball(density=wrong)
    with pytest.raises(ValueError, match="atoms to count"):
        L2Ball(density=0.1)


def test_a_density_that_leaves_nothing_to_a_layer_is_refused():
    opt = inface.FrankWolfe(Net(), {"*.weight": NuclearBall(density=0.05)}, lr=0.1, in_face="projected")
    before = [group["set"] for group in opt.param_groups]
    with pytest.raises(ValueError, match=r"DensityScheduler: density 0\.05 leaves 1 of 24 to 2 layers"):
        inface.DensityScheduler(opt, 10)
    assert [group["set"] for group in opt.param_groups] == before


def test_a_path_has_one_master():
    opt = inface.sparse_optimizer(Net(), density=0.1, lr=0.1, steps=10)
    with pytest.raises(ValueError, match="follows a path by itself"):
        inface.DensityScheduler(opt, 10)


def test_a_group_with_a_parameter_that_cannot_be_sized_adds_none_of_its_parameters():
    opt = inface.FrankWolfe([nn.Parameter(torch.ones(3))], lr=0.1)
    good, bad = nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="all zero"):
        opt.add_param_group({"params": [good, bad], "set": L1Ball(density=0.5)})
    assert len(opt.param_groups) == 1
    assert inface.registry.set_of(good) is None
    opt.add_param_group({"params": [good], "set": L1Ball(density=0.5)})
    assert len(opt.param_groups) == 2


def test_parameters_of_one_pattern_get_each_a_radius_of_its_own():
    torch.manual_seed(0)
    model = Net()
    opt = inface.FrankWolfe(model, {"*.weight": L1Ball(density=0.25)}, lr=0.1)
    for group, p in zip(constrained(opt), (model.first.weight, model.second.weight), strict=True):
        assert group["set"].radius.shape == (len(p),)
        assert group["set"].contains(p).all()


def test_room_is_the_floor_of_the_exact_product():
    assert [room(0.07, 100), room(0.05, 7400), room(0.1, 30), room(0.05, 39), room(1.0, 7)] == [7, 370, 3, 1, 7]


def test_what_is_said_of_a_path_names_the_step_and_the_density():
    _, opt, _ = make(L1Ball(density=0.1))
    assert unfinished(opt.param_groups) is None
    for group in constrained(opt):
        group["path"].update(step=7, density=0.8)
    assert "7 of the 40 steps" in unfinished(opt.param_groups)
    for group in constrained(opt):
        group["path"].update(step=39, density=0.1)
    assert unfinished(opt.param_groups) is None


def test_weights_that_are_loaded_before_the_optimizer_is_made_stay_as_they_were():
    def made():
        torch.manual_seed(0)
        model = nn.Linear(40, 3)
        return model, inface.FrankWolfe(model, {"weight": L1Ball(density=0.2)}, lr=0.1, in_face="projected")

    model, opt = made()
    scheduler = inface.DensityScheduler(opt, 40)
    _walk(model, opt, scheduler, 20)
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(opt.state_dict())
    _walk(model, opt, scheduler, 20)
    again = nn.Linear(40, 3)
    again.load_state_dict(weights)
    opt = inface.FrankWolfe(again, {"weight": L1Ball(density=0.2)}, lr=0.1, in_face="projected")
    assert not torch.equal(again.weight, weights["weight"])  # the ball of weights that are sparse already is smaller
    opt.load_state_dict(state)
    _walk(again, opt, inface.DensityScheduler(opt, 40), 20)
    assert torch.equal(again.weight, model.weight)


def _walk(model, opt, scheduler, steps):
    x = torch.randn(32, 40, generator=torch.Generator().manual_seed(1))
    for _ in range(steps):
        opt.zero_grad()
        (model(x) - x[:, :3]).square().mean().backward()
        opt.step()
        scheduler.step()
