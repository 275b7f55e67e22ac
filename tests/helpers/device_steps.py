"""The same steps on the CPU, on a pretended accelerator, and by replays of what was captured there."""

import copy

import torch
from torch import nn

import inface
from helpers.accelerator import DEVICE, Accelerator, DeviceTensor, Graph, on_device
from inface.sets import GroupL1Ball, KSparsePolytope, L1Ball, L2Ball, LInfBall, Simplex

INF = float("inf")
SETS = {
    "l1": L1Ball(1.0),
    "l1-radii": L1Ball(torch.linspace(0.5, 1.5, 6)),
    "l1-free-blocks": L1Ball(torch.tensor([1.0, 2.0, INF, 1.0, 1.0, INF])),
    "l1-joint": L1Ball(1.0, per="group"),
    "l1-in-l1": L1Ball(1.0, norm="l1"),
    "simplex": Simplex(1.0),
    "box": LInfBall(0.2),
    "group": GroupL1Ball(1.0),
    "group-input": GroupL1Ball(1.0, groups="input"),
    "l2": L2Ball(1.0),
    "k-sparse": KSparsePolytope(0.3, k=2),
}
STRATEGIES = [None, "away", "frank-wolfe", "pairwise", "projected"]
OPTIONS = {
    "plain": {},
    "momentum": {"momentum": 0.9, "maximize": True},
    "relative": {"relative": 1.0, "momentum": 0.5},
    "bound-steps-project": {"gradient_bound": 3.0, "in_face_steps": 2, "project": True},
}
FREE = [
    {"norm": norm, "every_gradient": every, **more}
    for norm, every in (("l2", False), ("l1", True), ("linf", False), ("adaptive", True))
    for more in ({"weight_decay": 0.1}, {"momentum": 0.9}, {"momentum": 0.9, "dampening": 0.0})
]


def start(set_, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    values = [0.1 * torch.randn(6, 9, generator=generator)]
    if set_ is None or set_.per == "group":  # parameters that a step takes together
        values.append(0.1 * torch.randn(6, 4, generator=generator))
    if set_ is not None and set_.per != "group":
        values = [set_.project(value) for value in values]
    elif set_ is not None:
        values = [value / 20 for value in values]
    return [value.to(dtype) for value in values]


def gradients(steps, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    return [[torch.randn(6, n, generator=generator).to(dtype) for n in (9, 4)] for _ in range(steps)]


def made(values, set_, *, there, **options):
    """Parameters and their optimizer, on the device or on the CPU."""
    params = [on_device(nn.Parameter(x)) if there else nn.Parameter(x.clone()) for x in values]
    group = {"params": params} if set_ is None else {"params": params, "set": set_}
    with Accelerator(strict=False):
        return params, inface.FrankWolfe([group], **{"lr": 0.3, "fused": None if there else False, **options})


def numbers(x):
    return x.inner if isinstance(x, DeviceTensor) else x.detach()


def assert_there(opt, *, counts=False):
    """All state of an optimizer lies beside its parameters, but for counts of gradients, which torch keeps on the CPU."""
    for state in opt.state.values():
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and (key != "step" or counts):
                assert value.device == DEVICE, key


def give(params, gs, *, there):
    for p, g in zip(params, gs, strict=False):
        p.grad = on_device(g) if there else g.clone()


def both(set_, steps=4, dtype=torch.float32, **options):
    """The same steps on the CPU and, with nobody waiting, on the device."""
    results = []
    for there in (False, True):
        params, opt = made(start(set_, dtype), set_, there=there, **options)
        for gs in gradients(steps, dtype):
            give(params, gs, there=there)
            with Accelerator():
                opt.step()
        with Accelerator():
            results.append(([numbers(p) for p in params], numbers(opt.gap)))
    assert_there(opt)
    for p, q in zip(*(found[0] for found in results), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
        assert torch.equal(p == 0, q == 0)
    torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-5, atol=1e-6)


def eager_steps(set_, grads, lrs, **options):
    """Parameters and their optimizer after steps on the CPU."""
    params, opt = made(start(set_), set_, there=False, lr=torch.tensor(0.3), **options)
    for gs, lr in zip(grads, lrs, strict=True):
        opt.param_groups[0]["lr"].fill_(lr)
        give(params, gs, there=False)
        opt.step()
    return params, opt


def captured(set_, *, warm=1, replays=2, **options):
    """Eager steps on the CPU, and the same by replays of one captured iteration, the lr falling with each."""
    halves = 1 if options.get("in_face") is None else 1 + options.get("in_face_steps", 1)
    grads = gradients(halves * (warm + replays))
    lrs = [0.3 / (1 + i) for i in range(warm + replays)]
    expected = eager_steps(set_, grads, [lr for lr in lrs for _ in range(halves)], **options)

    lr = on_device(torch.tensor(0.3))
    params, opt = made(start(set_), set_, there=True, lr=lr, capturable=True, **options)
    static = [[on_device(torch.zeros_like(p.inner)) for p in params] for _ in range(halves)]

    def fill(iteration):
        lr.inner.fill_(lrs[iteration])
        for buffers, gs in zip(static, grads[iteration * halves :], strict=False):
            for buffer, g in zip(buffers, gs, strict=False):
                buffer.inner.copy_(g)

    def iterate():
        for buffers in static:
            for p, buffer in zip(params, buffers, strict=True):
                p.grad = buffer
            opt.step()

    for i in range(warm):
        fill(i)
        with Accelerator():
            iterate()
    # A captured graph runs when it is replayed. This device runs it at once too, so what it wrote is put back.
    kept = copy.deepcopy(memory(params, opt))
    graph = Graph()
    with Accelerator(graph=graph):
        iterate()
    put_back(memory(params, opt), kept)
    for i in range(warm, warm + replays):
        fill(i)
        graph.replay()
    return expected, (params, opt), graph


def put_back(there, kept):
    for key in there.keys() & kept.keys():
        there[key].copy_(kept[key])


def memory(params, opt):
    """What an optimizer writes to, by where it is."""
    return {
        **{("p", i): p.inner for i, p in enumerate(params)},
        **{("counts", i): counts.inner for i, counts in enumerate(opt._counts.values())},
        **{
            (key, i): value.inner
            for i, state in enumerate(opt.state.values())
            for key, value in state.items()
            if isinstance(value, DeviceTensor) and key != "implied_lr"  # which is made again by each step
        },
    }


def assert_replays(set_, **options):
    """Replays of a captured iteration are the eager steps, with their counts, their gap and their state."""
    (expected, eager), (params, opt), graph = captured(set_, **options)
    assert len(graph.operations) > 10
    for p, q in zip(expected, params, strict=True):
        torch.testing.assert_close(q.inner, p.detach(), rtol=1e-5, atol=1e-6)
        assert torch.equal(q.inner == 0, p.detach() == 0)
        if "step" in opt.state[q]:
            assert opt.state[q]["step"].inner == eager.state[p]["step"]
    with Accelerator(strict=False):
        found = opt.report()
    wanted = eager.report()
    assert (found.frank_wolfe, found.in_face, found.drop) == (wanted.frank_wolfe, wanted.in_face, wanted.drop)
    torch.testing.assert_close(found.gap.value.inner, wanted.gap.value, rtol=1e-5, atol=1e-6)
    assert_there(opt, counts=True)
