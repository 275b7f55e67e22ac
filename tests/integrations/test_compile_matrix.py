"""All sets with all strategies as one functional graph: tests/test_compile.py has a part of these."""

import pytest
import torch
from torch import nn

import inface
from helpers.device_steps import FREE, OPTIONS, SETS, STRATEGIES, give, gradients, start

pytest.importorskip("triton")  # only because it takes minutes: run where the other tests of devices are

PART = 4


def assert_compiled(set_, **options):
    torch._dynamo.reset()
    results = []
    for fast in (False, True):
        params = [nn.Parameter(x.clone()) for x in start(set_)]
        group = {"params": params} if set_ is None else {"params": params, "set": set_}
        opt = inface.FrankWolfe([group], lr=0.3, fused=False, **options)
        step = torch.compile(opt.step, backend="aot_eager", fullgraph=True) if fast else opt.step
        for gs in gradients(6):
            give(params, gs, there=False)
            step()
        results.append([*(p.detach() for p in params), opt.gap])
    for p, q in zip(*results, strict=True):
        torch.testing.assert_close(q, p, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("strategy", ["away", "pairwise", "projected"])
@pytest.mark.parametrize("name", SETS)
def test_a_step_of_a_set_is_one_graph_with_eager_s_numbers(name, strategy):
    options = list(OPTIONS.values())
    turn = list(SETS).index(name) + STRATEGIES.index(strategy)
    assert_compiled(SETS[name], in_face=strategy, **options[turn % len(options)])


@pytest.mark.parametrize("options", FREE, ids=lambda options: "-".join(map(str, options.values())))
def test_a_step_of_free_parameters_is_one_graph_with_eager_s_numbers(options):
    assert_compiled(None, in_face="away", **options)
