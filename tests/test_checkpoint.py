"""State: saving, resuming, copying, and everything that acts on an optimizer from outside."""

import copy
import io
import pickle
import subprocess
import sys
from functools import partial

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR

import inface
from inface.sets import GroupL1Ball, KSparsePolytope, L1Ball, L2Ball, LInfBall, NuclearBall, Simplex, SpectralBall

SETS = {
    "l1": L1Ball(1.0),
    "l1-radii": L1Ball(torch.tensor([0.5, 1.0, 1.5, 2.0])),
    "group": GroupL1Ball(2.0),
    "nuclear": NuclearBall(1.5),
    "simplex": Simplex(1.0),
    "box": LInfBall(0.3),
    "k-sparse": KSparsePolytope(0.3, k=2),
    "l2": L2Ball(1.0),
    "spectral": SpectralBall(1.0),
}
STRATEGIES = [None, "away", "frank-wolfe", "pairwise", "projected"]
EVERYTHING = [
    pytest.param(set_, in_face, id=f"{name}-{in_face}")
    for name, set_ in SETS.items()
    for in_face in STRATEGIES
    if in_face is None or set_.has_faces
]
BATCHES = torch.randn(200, 2, 8, 5, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """A constrained layer with a free bias, and a free layer."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(5, 4), nn.Linear(4, 5)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def make(set_=SETS["l1"], dtype=torch.float32, seed=0, **options):
    torch.manual_seed(seed)
    model = Net().to(dtype)
    if set_ is not None:
        with torch.no_grad():
            model.first.weight.copy_(set_.project(model.first.weight))
    options = {"lr": 0.2, "in_face": "away"} | options
    sets = {} if set_ is None else {"first.weight": set_}
    return model, inface.FrankWolfe(model, sets, project=True, **options)


def backward(model, batch):
    inputs, target = batch.to(next(model.parameters()).dtype)
    loss = nn.functional.mse_loss(model(inputs), target)
    loss.backward()
    return loss


def train(model, opt, start, stop):
    for batch in BATCHES[start:stop]:
        opt.zero_grad()
        backward(model, batch)
        opt.step()


def through_file(data):
    """Saved, and loaded with nothing but plain data allowed."""
    file = io.BytesIO()
    torch.save(data, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def resumed(model, opt, other, live):
    """``other`` and ``live``, made like ``model`` and ``opt``, after taking over their saved state."""
    other.load_state_dict(through_file(model.state_dict()))
    live.load_state_dict(through_file(opt.state_dict()))
    return other, live


def values(model):
    return [p.detach().clone() for p in model.parameters()]


def assert_same(one, two):
    for p, q in zip(one, two, strict=True):
        assert torch.equal(p, q)


def assert_same_state(opt, other):
    for group, found in zip(opt.param_groups, other.param_groups, strict=True):
        for p, q in zip(group["params"], found["params"], strict=True):
            assert torch.equal(p, q)
            assert opt.state[p].keys() == other.state[q].keys()
            for key, value in opt.state[p].items():
                assert type(other.state[q][key]) is type(value)
                if isinstance(value, torch.Tensor):
                    assert value.dtype is other.state[q][key].dtype
                    torch.testing.assert_close(value, other.state[q][key], rtol=0, atol=0, equal_nan=True)
                else:
                    assert other.state[q][key] == value


# ---------------------------------------------------------------------- resuming


@pytest.mark.parametrize(("set_", "in_face"), EVERYTHING)
@pytest.mark.parametrize(
    ("at", "momentum", "dtype"),
    [(100, 0.0, torch.float32), (101, 0.9, torch.float32), (101, 0.9, torch.bfloat16)],
    ids=["even", "odd-momentum", "odd-momentum-bfloat16"],
)
def test_resuming_from_a_file_is_bit_equal_to_never_having_stopped(set_, in_face, at, momentum, dtype):
    build = partial(make, set_, dtype, in_face=in_face, momentum=momentum)
    model, opt = build()
    train(model, opt, 0, at)
    other, live = resumed(model, opt, *build(seed=1))
    assert_same_state(opt, live)
    train(model, opt, at, 200)
    train(other, live, at, 200)
    assert_same_state(opt, live)


@pytest.mark.parametrize("at", [50, 51])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "again",
    [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))],  # noqa: S301 - our own bytes
    ids=["deepcopy", "pickle"],
)
def test_a_copy_of_model_and_optimizer_continues_bit_equal_to_the_original(again, dtype, at):
    model, opt = make(dtype=dtype, momentum=0.9)
    train(model, opt, 0, at)
    other, live = again((model, opt))
    assert live.param_groups[0]["params"][0] is other.first.weight
    train(other, live, at, 100)
    assert not torch.equal(model.first.weight, other.first.weight)
    train(model, opt, at, 100)
    assert_same_state(opt, live)


PROCESS = """
import sys, torch
sys.path.insert(0, sys.argv[1])
from test_checkpoint import make, train
torch.set_num_threads(1)
model, opt = make(seed=1, momentum=0.9)
saved = torch.load(sys.argv[2], weights_only=True)
model.load_state_dict(saved["model"])
opt.load_state_dict(saved["opt"])
train(model, opt, 101, 200)
torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, sys.argv[2])
"""


def test_another_process_resumes_bit_equal_to_never_having_stopped(tmp_path, request):
    model, opt = make(momentum=0.9)
    train(model, opt, 0, 101)
    path = str(tmp_path / "saved.pt")
    torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, path)
    subprocess.run([sys.executable, "-c", PROCESS, str(request.path.parent), path], check=True, timeout=120)
    train(model, opt, 101, 200)
    saved = torch.load(path, weights_only=True)
    other, live = make(seed=2, momentum=0.9)
    other.load_state_dict(saved["model"])
    live.load_state_dict(saved["opt"])
    assert_same_state(opt, live)


def test_a_state_dict_is_plain_data():
    def plain(value):
        if isinstance(value, dict):
            return all(isinstance(key, str | int) and plain(item) for key, item in value.items())
        if isinstance(value, list | tuple):
            return all(map(plain, value))
        return value is None or type(value) in (bool, int, float, str, torch.Tensor)

    for set_ in SETS.values():
        in_face = (lambda s, x, g: torch.zeros_like(x)) if set_.has_faces else None
        model, opt = make(set_, in_face=in_face, momentum=0.9, lr=torch.tensor(0.1))
        train(model, opt, 0, 3)
        assert plain(opt.state_dict())


def test_saving_changes_nothing_in_the_optimizer():
    model, opt = make(momentum=0.9)
    train(model, opt, 0, 3)
    before = [dict(group) for group in opt.param_groups]
    opt.state_dict()
    assert [dict(group) for group in opt.param_groups] == before
    assert opt.param_groups[0]["set"].kind == "l1"


# ---------------------------------------------------------------------- a step with lr 0


@pytest.mark.parametrize("tensor", [False, True])
@pytest.mark.parametrize(("set_", "in_face"), EVERYTHING)
def test_a_step_with_lr_0_moves_nothing_and_advances_neither_phase_nor_momentum(set_, in_face, tensor):
    runs = []
    for pauses in (False, True):
        model, opt = make(set_, in_face=in_face, momentum=0.9, lr=torch.tensor(0.2) if tensor else 0.2)
        for i in range(6):
            if pauses:
                before = values(model)
                for group in opt.param_groups:
                    group["lr"] = torch.tensor(0.0) if tensor else 0.0
                train(model, opt, 100 + i, 101 + i)
                assert_same(before, values(model))
                for group in opt.param_groups:
                    group["lr"] = torch.tensor(0.2) if tensor else 0.2
            train(model, opt, i, i + 1)
        runs.append(opt)
    assert_same_state(*runs)


@pytest.mark.parametrize("zero", [0.0, torch.tensor(0.0), torch.tensor([0.0])])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_with_lr_0_creates_the_state_that_a_real_step_has(zero, dtype):
    model, opt = make(dtype=dtype, momentum=0.9)
    real_model, real = make(dtype=dtype, momentum=0.9)
    for group in opt.param_groups:
        group["lr"] = zero
    train(model, opt, 0, 1)
    train(real_model, real, 0, 1)
    for p, q in zip(model.parameters(), real_model.parameters(), strict=True):
        assert opt.state[p].keys() == real.state[q].keys()
        assert opt.state[p]["phase"] == 0
        assert opt.state[p]["started"] is False


# ---------------------------------------------------------------------- torch's distributed checkpoint


@pytest.mark.parametrize("flat", [False, True], ids=["nested", "flat"])
@pytest.mark.parametrize(("momentum", "dtype"), [(0.9, torch.float32), (0.0, torch.bfloat16)])
@pytest.mark.parametrize("set_", [SETS["l1"], SETS["l1-radii"], SETS["k-sparse"]], ids=["l1", "radii", "k-sparse"])
def test_distributed_checkpoint_round_trips_to_a_bit_equal_run(set_, momentum, dtype, flat):
    build = partial(make, set_, dtype, momentum=momentum)
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    model, opt = build()
    train(model, opt, 0, 11)
    saved = through_file(get_optimizer_state_dict(model, opt, options=options))
    other, live = build(seed=1)
    other.load_state_dict(model.state_dict())
    set_optimizer_state_dict(other, live, saved, options=options)
    assert_same_state(opt, live)
    train(model, opt, 11, 20)
    train(other, live, 11, 20)
    assert_same_state(opt, live)


@pytest.mark.parametrize("lr", [0.2, torch.tensor(0.2)], ids=["float", "tensor"])
def test_distributed_checkpoint_creates_the_state_of_a_fresh_optimizer_without_moving_anything(lr):
    model, opt = make(momentum=0.9, lr=lr)
    before = values(model)
    saved = get_optimizer_state_dict(model, opt)
    assert_same(before, values(model))
    assert set(saved["state"]) == dict(model.named_parameters()).keys()
    reference, straight = make(momentum=0.9, lr=lr)
    train(model, opt, 0, 5)
    train(reference, straight, 0, 5)
    assert_same_state(straight, opt)


# ---------------------------------------------------------------------- groups, names, frozen parameters


def unnamed(model, **options):
    free = [model.first.bias, *model.second.parameters()]
    return inface.FrankWolfe([{"params": [model.first.weight], "set": L1Ball(1.0)}, {"params": free}], **options)


@pytest.mark.parametrize("named", [(True, False), (False, True)], ids=["to-unnamed", "from-unnamed"])
def test_names_do_not_matter_to_a_checkpoint(named):
    pairs = []
    for seed, names in enumerate(named):
        model, opt = make(seed=seed, momentum=0.9)
        pairs.append((model, opt if names else unnamed(model, lr=0.2, in_face="away", momentum=0.9)))
    (model, opt), (other, live) = pairs
    train(model, opt, 0, 11)
    resumed(model, opt, other, live)
    train(model, opt, 11, 20)
    train(other, live, 11, 20)
    assert_same_state(opt, live)
    assert live.param_groups[0]["param_names"] == ["first.weight"]  # from whichever had them


def test_a_group_added_later_trains_and_resumes_like_one_that_was_there():
    def grown(seed):
        torch.manual_seed(seed)
        model = Net()
        opt = inface.FrankWolfe(
            [{"params": list(model.second.named_parameters())}], lr=0.2, in_face="away", momentum=0.9
        )
        opt.add_param_group({"params": [("first.bias", model.first.bias)], "lr": 0.1})
        opt.add_param_group({"params": [("first.weight", model.first.weight)], "set": L1Ball(1.0), "project": True})
        return model, opt

    model, opt = grown(0)
    assert bool(L1Ball(1.0).contains(model.first.weight).all())
    train(model, opt, 0, 11)
    assert opt.param_groups[1]["lr"] == 0.1
    assert opt.param_groups[2]["in_face"] == "away"
    assert bool(L1Ball(1.0).contains(model.first.weight).all())
    assert opt.report().in_face > 0
    other, live = resumed(model, opt, *grown(1))
    train(model, opt, 11, 20)
    train(other, live, 11, 20)
    assert_same_state(opt, live)


def test_a_frozen_parameter_stays_and_shifts_nobodys_constraint():
    model, opt = make(momentum=0.9)
    model.first.bias.requires_grad_(False)
    frozen = model.first.bias.clone()
    reference, straight = make(momentum=0.9)
    keep = reference.first.bias
    train(model, opt, 0, 7)
    for batch in BATCHES[:7]:
        straight.zero_grad()
        backward(reference, batch)
        keep.grad = None
        straight.step()
    assert torch.equal(model.first.bias, frozen)
    assert model.first.bias not in opt.state
    assert_same(values(reference), values(model))
    assert bool(L1Ball(1.0).contains(model.first.weight).all())
    assert not bool(L1Ball(1.0).contains(model.second.weight).all())


def test_a_parameter_alternates_over_the_gradients_that_it_receives():
    model, opt = make()
    reference, straight = make()
    skipped = model.first.weight
    for i, batch in enumerate(BATCHES[:9]):
        opt.zero_grad()
        backward(model, batch)
        grad = skipped.grad.clone()
        if i % 3 == 2:
            skipped.grad = None
        before, phase = skipped.detach().clone(), opt.state[skipped].get("phase", 0)
        opt.step()
        if i % 3 == 2:
            assert torch.equal(skipped, before)
            assert opt.state[skipped]["phase"] == phase
        else:
            straight.zero_grad()
            reference.first.weight.grad = grad
            straight.step()
    assert_same([reference.first.weight], [skipped])
    assert straight.state[reference.first.weight] == opt.state[skipped] == {"phase": 0}


# ---------------------------------------------------------------------- what acts from outside


def scheduled(build, tensor=False, **options):
    """The learning rate and momentum of each step of a run under a scheduler, and the run."""
    model, opt = make(lr=torch.tensor(0.4) if tensor else 0.4, momentum=0.9, **options)
    scheduler, seen = build(opt), []
    for i in range(20):
        seen.append([(float(group["lr"]), group["momentum"]) for group in opt.param_groups])
        train(model, opt, i, i + 1)
        scheduler.step()
    return model, opt, seen


SCHEDULERS = {
    "cosine-to-0": lambda opt: CosineAnnealingLR(opt, T_max=10),
    "lambda": lambda opt: LambdaLR(opt, [lambda k: 1 / (1 + k), lambda k: 0.5**k]),
    "one-cycle": lambda opt: OneCycleLR(opt, max_lr=0.5, total_steps=25),
}


@pytest.mark.parametrize("tensor", [False, True])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_is_the_same_as_setting_lr_and_momentum_by_hand(name, tensor):
    model, _, seen = scheduled(SCHEDULERS[name], tensor)
    assert len({lr for (lr, _), *_ in seen}) > 9
    assert (len({momentum for (_, momentum), *_ in seen}) > 9) == (name == "one-cycle")
    other, opt = make(lr=torch.tensor(0.4) if tensor else 0.4, momentum=0.9)
    for i, hyper in enumerate(seen):
        for group, (lr, momentum) in zip(opt.param_groups, hyper, strict=True):
            group["lr"], group["momentum"] = torch.tensor(lr) if tensor else lr, momentum
        train(other, opt, i, i + 1)
    assert_same(values(other), values(model))


def test_a_schedule_that_is_at_0_leaves_constrained_layers_alone_and_one_that_is_not_moves_them():
    model, opt = make()
    scheduler = CosineAnnealingLR(opt, T_max=4)
    moved = []
    for i in range(8):
        before = values(model)
        rate = opt.param_groups[0]["lr"]
        train(model, opt, i, i + 1)
        scheduler.step()
        moved.append(
            (rate > 0, not torch.equal(before[0], model.first.weight), not torch.equal(before[1], model.first.bias))
        )
    assert [constrained for _, constrained, _ in moved] == [rate for rate, *_ in moved]
    assert [rate for rate, *_ in moved].count(False) == 1
    assert bool(torch.isfinite(opt.gap))


def test_the_free_step_scales_with_a_schedule_and_the_constrained_step_does_too():
    steps = {}
    for rate in (1e-3, 2e-3):
        model, opt = make(lr=1.0)
        LambdaLR(opt, lambda _, rate=rate: rate)
        before = values(model)
        train(model, opt, 0, 1)
        steps[rate] = [q - p for p, q in zip(before, values(model), strict=True)]
    for small, large in zip(*steps.values(), strict=True):
        torch.testing.assert_close(large, 2 * small, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("grad_mode", [True, False])
def test_step_takes_a_closure_evaluates_it_once_and_returns_its_loss(grad_mode):
    model, opt = make(momentum=0.9)
    reference, straight = make(momentum=0.9)
    calls = []

    def closure(batch):
        opt.zero_grad()
        calls.append(torch.is_grad_enabled())
        return backward(model, batch)

    for i, batch in enumerate(BATCHES[:5]):
        with torch.set_grad_enabled(grad_mode):
            loss = opt.step(partial(closure, batch))
        straight.zero_grad()
        assert torch.equal(loss, backward(reference, batch))
        assert straight.step() is None
        assert calls == [True] * (i + 1)
    assert_same_state(straight, opt)


def test_a_grad_scaler_skips_an_infinite_step_whole_and_changes_no_other():
    model, opt = make(momentum=0.9)
    reference, straight = make(momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for i, batch in enumerate(BATCHES[:9]):
        opt.zero_grad()
        inputs, target = batch
        scaler.scale(nn.functional.mse_loss(model(inputs), target)).backward()
        overflow = i == 4
        if overflow:
            model.second.bias.grad[0] = torch.inf
        before = values(model)
        scaler.step(opt)
        scaler.update()
        if overflow:
            assert_same(before, values(model))
            assert scaler.get_scale() == 2.0**9
        else:
            train(reference, straight, i, i + 1)
    assert_same_state(straight, opt)  # scales are powers of two
    assert opt.report().skipped == 0


# ---------------------------------------------------------------------- what loading refuses, and what it takes


def direction(set_, x, g):
    return set_.dense_vertex(g) - x


@pytest.mark.parametrize(
    ("saved", "live"),
    [
        (L1Ball(1.0), L2Ball(1.0)),
        (L1Ball(1.0), L1Ball(1.0, per="input")),
        (L1Ball(1.0), None),
        (None, L1Ball(1.0)),
        (KSparsePolytope(0.3, k=2), KSparsePolytope(0.3, k=3)),
        (GroupL1Ball(1.0, groups="output"), GroupL1Ball(1.0, groups="input")),
        (L1Ball(torch.ones(5), per="input"), L1Ball(torch.ones(4), per="output")),
    ],
    ids=repr,
)
def test_loading_refuses_another_set_and_changes_nothing(saved, live):
    model = Net()
    pairs = []
    for set_ in (saved, live):
        group = {"params": [model.first.weight], "set": set_}
        pairs.append(inface.FrankWolfe([group, {"params": [model.first.bias]}], lr=0.1, momentum=0.9, project=True))
    one, two = pairs
    model.first.weight.grad, model.first.bias.grad = torch.ones(4, 5), torch.ones(4)
    one.step()
    before = copy.deepcopy(two.state_dict())
    with pytest.raises(ValueError, match="load_state_dict: group 0 was saved with set"):
        two.load_state_dict(one.state_dict())
    assert str(two.state_dict()) == str(before)
    assert not two.state


def test_loading_takes_the_saved_radius_and_the_saved_hyper_parameters():
    _, opt = make(L1Ball(0.5), lr=0.3, in_face="pairwise", momentum=0.8, gradient_bound=7.0)
    _, live = make(L1Ball(2.0), lr=0.1)
    with pytest.warns(UserWarning, match=r"saved with radius 0\.5, the optimizer has 2; the saved one is used"):
        live.load_state_dict(through_file(opt.state_dict()))
    assert repr(live.param_groups[0]["set"]) == "L1Ball(radius=0.5, per='output')"
    for option in ("lr", "in_face", "momentum", "gradient_bound"):
        assert live.param_groups[0][option] == opt.param_groups[0][option]


def test_loading_takes_one_radius_per_block_where_there_was_one_for_all():
    radii = torch.tensor([0.5, 1.0, 1.5, 2.0])
    _, opt = make(L1Ball(radii))
    _, live = make(L1Ball(2.0))
    with pytest.warns(UserWarning, match=r"saved with radius 0\.5 to 2 \(4 values\), the optimizer has 2"):
        live.load_state_dict(through_file(opt.state_dict()))
    assert torch.equal(live.param_groups[0]["set"].radius, radii)


def test_loading_refuses_radii_that_do_not_fit_the_parameter():
    _, opt = make(L1Ball(torch.ones(4)))
    saved = opt.state_dict()
    saved["param_groups"][0]["set"]["radius"] = torch.ones(3)
    with pytest.raises(ValueError, match=r"radius has 3 values, wanted one for each of the 4 blocks of first\.weight"):
        opt.load_state_dict(saved)


def test_loading_refuses_a_kind_of_set_that_does_not_exist():
    _, opt = make()
    saved = opt.state_dict()
    saved["param_groups"][0]["set"]["kind"] = "l3"
    with pytest.raises(ValueError, match="l3"):
        opt.load_state_dict(saved)


@pytest.mark.parametrize("groups", [1, 3])
def test_loading_refuses_another_number_of_groups(groups):
    _, opt = make()
    saved = opt.state_dict()
    saved["param_groups"] = (saved["param_groups"] * 2)[:groups]
    with pytest.raises(ValueError, match="different number of parameter groups"):
        opt.load_state_dict(saved)


def test_a_function_as_in_face_is_saved_as_custom_and_kept_from_the_live_group():
    model, opt = make(in_face=direction)
    train(model, opt, 0, 11)
    saved = through_file(opt.state_dict())
    assert saved["param_groups"][0]["in_face"] == "custom"
    assert opt.param_groups[0]["in_face"] is direction
    other, live = make(seed=1, in_face=direction)
    resumed(model, opt, other, live)
    assert live.param_groups[0]["in_face"] is direction
    train(model, opt, 11, 20)
    train(other, live, 11, 20)
    assert_same_state(opt, live)
    assert opt.report().in_face > 0


@pytest.mark.parametrize("in_face", [None, "away"])
def test_loading_refuses_a_function_as_in_face_where_the_live_group_has_none(in_face):
    _, opt = make(in_face=direction)
    _, live = make(in_face=in_face)
    with pytest.raises(ValueError, match="group 0 was saved with a function as in_face; make the optimizer with it"):
        live.load_state_dict(opt.state_dict())


@pytest.mark.parametrize("option", ["lr", "in_face", "norm", "betas", "eps", "gradient_bound", "project"])
def test_a_checkpoint_with_a_missing_option_loads_with_the_optimizers_own(option):
    model, opt = make()
    train(model, opt, 0, 3)
    saved = opt.state_dict()
    for group in saved["param_groups"]:
        del group[option]
    other, live = make(seed=1)
    other.load_state_dict(model.state_dict())
    live.load_state_dict(saved)
    assert live.param_groups[0][option] == opt.param_groups[0][option]
    train(model, opt, 3, 7)
    train(other, live, 3, 7)
    assert_same_state(opt, live)


# ---------------------------------------------------------------------- hooks


def test_state_dict_hooks_see_plain_data_and_what_they_return_is_saved():
    _, opt = make()
    seen = []
    opt.register_state_dict_post_hook(lambda _, data: seen.append(data["param_groups"][0]["set"]["kind"]))
    opt.register_state_dict_post_hook(lambda _, data: {**data, "note": 1})
    assert opt.state_dict()["note"] == 1
    assert opt.state_dict()["param_groups"][0]["set"] == {"kind": "l1", "radius": 1.0, "per": "output"}
    assert seen == ["l1"] * 2
    assert len(opt._optimizer_state_dict_post_hooks) == 2


def test_a_load_hook_may_reorder_parameters_by_name_before_anything_is_checked():
    """The example of torch's documentation, where parameters of half precision keep their float32 copies."""

    def build(names, seed):
        torch.manual_seed(seed)
        model = Net().to(torch.bfloat16)
        params = dict(model.named_parameters())
        sets = {"first.weight": L1Ball(1.0), "second.weight": L2Ball(1.0)}
        groups = [{"params": [(name, params[name])], "set": sets.get(name)} for name in names]
        return model, inface.FrankWolfe(groups, lr=0.1, in_face="away", momentum=0.9, project=True)

    names = list(dict(Net().named_parameters()))
    model, opt = build(names, 0)
    train(model, opt, 0, 7)
    saved = through_file(opt.state_dict())
    other, live = build(names[::-1], 1)
    other.load_state_dict(model.state_dict())

    def reorder(optimizer, data):
        by_name = {group["param_names"][0]: group for group in data["param_groups"]}
        return {**data, "param_groups": [by_name[group["param_names"][0]] for group in optimizer.param_groups]}

    with pytest.raises(ValueError, match="was saved with set"):
        live.load_state_dict(saved)
    live.register_load_state_dict_pre_hook(reorder)
    after = []
    live.register_load_state_dict_post_hook(
        lambda optimizer: after.append(optimizer.state[other.first.weight]["master"].dtype)
    )
    live.load_state_dict(saved)
    assert after == [torch.float32]
    for (name, p), q in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(opt.state[p]["master"], live.state[q]["master"]), name
    train(model, opt, 7, 12)
    train(other, live, 7, 12)
    assert_same(values(model), values(other))


def test_options_that_are_none_are_refused_when_they_are_loaded():
    p = torch.nn.Parameter(torch.zeros(2, 3))
    opt = inface.FrankWolfe([{"params": [p], "set": L1Ball(1.0)}], lr=0.1)
    state = opt.state_dict()
    state["param_groups"][0]["in_face"] = "bogus"
    with pytest.raises(ValueError, match=r"load_state_dict: group 0: .*got 'bogus'"):
        opt.load_state_dict(state)


def test_switching_second_halves_off_between_two_halves_loses_no_gradient():
    w, y = torch.nn.Parameter(torch.zeros(2, 3)), torch.nn.Parameter(torch.zeros(1))
    opt = inface.FrankWolfe([{"params": [w], "set": L1Ball(1.0)}, {"params": [y]}], lr=0.1, in_face="away")
    for _ in range(2):
        w.grad, y.grad = torch.ones(2, 3), torch.ones(1)
        opt.step()
        for group in opt.param_groups:
            group["in_face"] = None
    assert y.item() == pytest.approx(-0.2)
    assert opt.report().frank_wolfe == 4


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda data: data.update(state=[]), "state: wanted a dict, got a list"),
        (lambda data: data.pop("param_groups"), "param_groups: wanted a list, got None"),
        (lambda data: data["state"].update({0: 0.5}), "state of parameter 0: wanted a dict, got 0.5"),
        (
            lambda data: data["param_groups"][0].pop("params"),
            "group 0: wanted a dict with a list of params, got a dict",
        ),
        (lambda data: data["param_groups"].insert(0, "x"), "group 0: wanted a dict with a list of params, got 'x'"),
        (lambda data: data["param_groups"][0].update(set="L1"), "group 0: set: wanted a dict or None, got 'L1'"),
    ],
)
def test_a_state_that_is_not_made_of_states_and_groups_is_named_and_nothing_is_changed(damage, told):
    weight = torch.nn.Parameter(torch.zeros(2, 3))
    opt = inface.FrankWolfe([{"params": [weight], "set": inface.sets.L1Ball(1.0)}], 0.1, in_face="away")
    weight.grad = torch.ones(2, 3)
    opt.step()
    given = opt.state_dict()
    damage(given)
    with pytest.raises(ValueError, match=f"^load_state_dict: {told}$"):
        opt.load_state_dict(given)
    assert opt.state[weight]["phase"] == 1


@pytest.mark.parametrize("damaged", ["state", None, [1]])
def test_what_is_no_state_dict_is_refused_by_its_name(damaged):
    _, opt = make()
    with pytest.raises(ValueError, match="FrankWolfe: wanted a state_dict, got "):
        opt.load_state_dict(damaged)
