"""Steps on an accelerator, without one: nobody waits, everything lies there, and a captured graph does what eager steps do.

The device is pretended (see helpers/accelerator.py): it computes, and refuses what would make a host wait for CUDA.
"""

import copy

import pytest
import torch
from torch import nn

import inface
from helpers.accelerator import DEVICE, Accelerator, Graph, HostWaitError, on_device
from helpers.device_steps import (
    FREE,
    OPTIONS,
    SETS,
    STRATEGIES,
    assert_replays,
    assert_there,
    both,
    captured,
    give,
    gradients,
    made,
    numbers,
    start,
)
from inface.sets import L1Ball, NuclearBall, SpectralBall

# ---------------------------------------------------------------------- nobody waits


@pytest.mark.parametrize("name", SETS)
def test_no_step_of_a_set_waits_and_all_numbers_are_those_of_the_cpu(name):
    """Every strategy, each with other options for another set; tests/integrations has all of them."""
    options = list(OPTIONS.values())
    for i, strategy in enumerate(STRATEGIES):
        both(SETS[name], in_face=strategy, **options[(i + list(SETS).index(name)) % len(options)])


@pytest.mark.parametrize("options", FREE, ids=lambda options: "-".join(map(str, options.values())))
def test_no_step_of_free_parameters_waits(options):
    both(None, in_face="away", **options)


def test_no_step_waits_with_preconditioned_gradients():
    """The first ones are all of one size, so that rounding decides between vertices, and numbers are not compared."""
    for strategy in STRATEGIES:
        params, opt = made(start(L1Ball(1.0)), L1Ball(1.0), there=True, in_face=strategy, precondition=True)
        for gs in gradients(4):
            give(params, gs, there=True)
            with Accelerator():
                opt.step()
        assert all(L1Ball(1.0).contains(p.inner).all() for p in params)
        assert_there(opt)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_no_step_of_half_precision_waits(dtype):
    both(L1Ball(1.0), dtype=dtype, in_face="away", momentum=0.9)
    both(None, dtype=dtype, norm="adaptive")


def test_with_a_tensor_lr_and_a_scheduler_no_step_waits():
    params, opt = made(start(L1Ball(1.0)), L1Ball(1.0), there=True, lr=on_device(torch.tensor(0.3)), in_face="away")
    scheduler = torch.optim.lr_scheduler.ExponentialLR(opt, 0.5)
    for gs in gradients(4):
        give(params, gs, there=True)
        with Accelerator():
            opt.step()
        scheduler.step()
    assert float(opt.param_groups[0]["lr"].inner) == pytest.approx(0.3 / 16)


def test_a_path_of_densities_waits_where_it_cuts_and_nowhere_else():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, 4))
    for layer in (model[0], model[2]):
        layer.weight, layer.bias = on_device(layer.weight), on_device(layer.bias)
    with Accelerator(strict=False):
        opt = inface.sparse_optimizer(model, density=0.3, lr=0.1, steps=40)
    path = opt.param_groups[0]["path"]
    for group in opt.param_groups:
        if group["path"] is not None:
            group["path"]["every"] = 4
    waited = set()
    generator = torch.Generator().manual_seed(1)
    for step in range(1, 41):
        for p in model.parameters():
            p.grad = on_device(torch.randn(p.shape, generator=generator))
        saved = copy.deepcopy(path)
        last = step in (32, 40)  # where the path ends, and where the training does
        with Accelerator(strict=not (last or step % 4 == 0)):
            opt.step()
        waited.add(step) if path["density"] != saved["density"] else None
    assert waited
    assert all(step % 4 == 0 for step in waited)
    kept = sum(int(numbers(model[i].weight).count_nonzero()) for i in (0, 2))
    assert kept <= 0.3 * (72 + 32)


def test_the_exceptions_are_decompositions_and_directions_of_somebody_s_own():
    """What the page on GPUs lists as waiting does wait: it must be read again when this fails."""
    for set_, options in (
        (NuclearBall(1.0), {}),
        (SpectralBall(1.0), {}),
        (None, {"norm": "spectral"}),
        (L1Ball(1.0), {"in_face": lambda set_, x, g: torch.zeros_like(x)}),
    ):
        params, opt = made(start(set_), set_, there=True, **options)
        give(params, gradients(1)[0], there=True)
        if callable(options.get("in_face")):
            with Accelerator():
                opt.step()  # a first half, which asks nobody
            give(params, gradients(1)[0], there=True)
        with pytest.raises(HostWaitError), Accelerator():
            opt.step()


def test_the_pretended_device_refuses_what_cuda_would_wait_for():
    x = on_device(torch.arange(4.0))
    waiting = [
        lambda: x.sum().item(),
        lambda: bool(x.any()),
        x.nonzero,
        lambda: x[x > 1],
        lambda: x[on_device(torch.tensor(1))],
        x.cpu,
        lambda: torch.zeros(4).to(DEVICE),
        lambda: x + torch.zeros(4),
        lambda: torch.equal(x, x),
        lambda: torch.linalg.svdvals(on_device(torch.eye(2))),
    ]
    for look in waiting:
        with pytest.raises(HostWaitError), Accelerator():
            look()
    with Accelerator():
        assert (x + torch.tensor(1.0)).device == torch.full((), 2.0, device=DEVICE).device == DEVICE
        torch.where(x > 1, 0, x)[:2] = 1


# ---------------------------------------------------------------------- captured graphs


@pytest.mark.parametrize("name", SETS)
def test_replays_of_a_captured_iteration_are_the_eager_steps(name):
    """Two strategies, with other options for another set; tests/integrations has all of them."""
    turn = list(SETS).index(name)
    assert_replays(SETS[name], in_face=STRATEGIES[turn % 4], relative=1.0, in_face_steps=2)
    assert_replays(SETS[name], in_face="projected", momentum=0.9)


@pytest.mark.parametrize("options", FREE, ids=lambda options: "-".join(map(str, options.values())))
def test_replays_of_free_parameters_are_the_eager_steps(options):
    assert_replays(None, in_face="away", **options)


def test_replays_count_preconditioned_gradients():
    _, (params, opt), _ = captured(L1Ball(1.0), in_face="away", precondition=True)
    assert [float(opt.state[p]["step"].inner) for p in params] == [6.0]
    assert all(L1Ball(1.0).contains(p.inner).all() for p in params)


def test_without_capturable_a_count_on_the_cpu_is_noticed_in_a_graph():
    params, opt = made(start(None), None, there=True, norm="adaptive")
    give(params, gradients(1)[0], there=True)
    with pytest.raises(HostWaitError, match="inside of a graph"), Accelerator(graph=Graph()):
        opt.step()


def test_a_replay_uses_numbers_as_they_were_captured():
    """The pretended graph is one: a number of Python's that changes later is not seen."""
    x, scale, graph = on_device(torch.ones(3)), [2.0], Graph()
    with Accelerator(graph=graph):
        y = x * scale[0] + 1
    scale[0] = 5.0
    x.inner.fill_(10.0)
    graph.replay()
    assert y.inner.tolist() == [21.0] * 3


# ---------------------------------------------------------------------- the option


def test_capturable_is_part_of_a_group_and_of_a_state_dict():
    p = nn.Parameter(torch.zeros(2, 3))
    opt = inface.FrankWolfe([{"params": [p], "set": L1Ball(1.0), "capturable": True}], lr=0.1)
    data = opt.state_dict()
    assert data["param_groups"][0]["capturable"] is True
    del data["param_groups"][0]["capturable"]  # of an older version
    opt.load_state_dict(data)
    assert opt.param_groups[0]["capturable"] is False


def test_what_a_graph_cannot_hold_is_refused():
    p = on_device(nn.Parameter(torch.zeros(2, 3)))
    with pytest.raises(ValueError, match="capturable must be True or False, got 'yes'"):
        inface.FrankWolfe([p], lr=0.1, capturable="yes")
    with pytest.raises(
        ValueError, match=r"capturable=True wants a tensor lr beside its parameters, on lazy, got one on cpu"
    ):
        inface.FrankWolfe([p], lr=torch.tensor(0.1), capturable=True)
    with pytest.raises(ValueError, match="capturable=True does not go with a function as in_face"):
        inface.FrankWolfe(
            [{"params": [p], "set": L1Ball(1.0)}],
            lr=0.1,
            capturable=True,
            in_face=lambda set_, x, g: torch.zeros_like(x),
        )
    model = nn.Linear(20, 4)
    opt = inface.sparse_optimizer(model, density=0.3, lr=0.1, steps=10)
    opt.param_groups[0]["capturable"] = True
    model(torch.ones(1, 20)).sum().backward()
    with pytest.raises(ValueError, match=r"capturable=True does not go with a path of densities.*weight"):
        opt.step()
