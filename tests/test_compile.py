"""torch.compile of a training step that contains the optimizer: eager's numbers, and no endless recompilation."""

import copy
import os
import shutil

import pytest
import torch
from torch import nn
from torch._inductor.compile_fx import compile_fx

import inface
from inface.sets import GroupL1Ball, KSparsePolytope, L1Ball, L2Ball, LInfBall, NuclearBall, Simplex, SpectralBall

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, (os.environ.get("CXX") or "g++", "clang++"))), reason="inductor needs a C++ compiler"
)
SOME_FREE = torch.tensor([1.0, torch.inf, 0.5, 1.0, torch.inf])
BATCHES = list(torch.randn(12, 2, 8, 6, generator=torch.Generator().manual_seed(0)))


class Counting:
    """A backend that counts the graphs it is given."""

    def __init__(self, backend="eager"):
        self.backend, self.graphs = backend, 0

    def __call__(self, module, inputs):
        self.graphs += 1
        return compile_fx(module, inputs) if self.backend == "inductor" else module.forward


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    """No graphs of earlier tests, and an error where dynamo would give up and run eagerly."""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        yield
    torch._dynamo.reset()


def pair(sets, lr, dtype=torch.float32, **options):
    """Twice the same model with its optimizer."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 6)).to(dtype)
    models = model, copy.deepcopy(model)
    return [
        (m, inface.FrankWolfe(m, sets, lr=copy.copy(lr), project=True, **{"fused": False, **options})) for m in models
    ]


def backward(model, opt, batch):
    opt.zero_grad()
    inputs, target = batch.to(model[0].weight.dtype)
    nn.functional.mse_loss(model(inputs), target).backward()


def train(model, opt, batch):
    backward(model, opt, batch)
    opt.step()


def compiled(model, opt, backend, whole):
    """A function that does one compiled training step, or an eager backward pass and an optimizer step in one graph."""
    if whole:
        fast = torch.compile(train, backend=backend)
        return lambda batch: fast(model, opt, batch)
    step = torch.compile(opt.step, backend=backend, fullgraph=not has_factors(opt))
    return lambda batch: (backward(model, opt, batch), step())


def has_factors(opt):
    """Whether steps need factors of a matrix, whose number is data."""
    return any(isinstance(group["set"], NuclearBall) and group["in_face"] for group in opt.param_groups)


def assert_same(one, two, **tol):
    tol = tol or {"rtol": 0, "atol": 0}
    (model, opt), (other, fast) = one, two
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(q, p, **tol)
        state, found = dict(opt.state[p]), dict(fast.state[q])
        assert type(found["phase"]) is int
        assert state.keys() == found.keys()
        for key, value in state.items():
            # Eager steps of a CPU keep numbers where compiled ones keep tensors.
            own, other = (torch.as_tensor(x, dtype=getattr(x, "dtype", torch.double)) for x in (found[key], value))
            torch.testing.assert_close(own, other, equal_nan=True, **tol)
    torch.testing.assert_close(fast.gap, opt.gap, rtol=max(1e-12, tol["rtol"]), atol=tol["atol"])


STEPS = [
    pytest.param({"0.weight": L1Ball(1.0)}, {"in_face": "away", "momentum": 0.9}, True, id="l1-away-momentum-whole"),
    pytest.param({"0.weight": L1Ball(1.0)}, {"in_face": "pairwise"}, False, id="l1-pairwise"),
    pytest.param({"0.weight": L1Ball(1.0)}, {"in_face": "projected", "momentum": 0.9}, False, id="l1-projected"),
    pytest.param({"0.weight": L1Ball(1.0)}, {"in_face": "projected", "in_face_steps": 3}, False, id="l1-steps"),
    pytest.param({"0.weight": GroupL1Ball(1.0)}, {"in_face": "projected"}, False, id="group-projected"),
    pytest.param({"0.weight": LInfBall(0.2)}, {"in_face": "projected"}, False, id="box-projected"),
    pytest.param({"*.weight": L1Ball(1.0)}, {}, True, id="l1-two-layers-sfw-whole"),
    pytest.param({"0.weight": GroupL1Ball(2.0)}, {"in_face": "frank-wolfe", "norm": "linf"}, False, id="group-linf"),
    pytest.param({"0.weight": L1Ball(SOME_FREE)}, {"in_face": "away", "momentum": 0.9}, False, id="l1-free-blocks"),
    pytest.param({"*.weight": L1Ball(2.0, per="group")}, {"in_face": "away", "momentum": 0.9}, False, id="l1-joint"),
    pytest.param({"0.weight": Simplex(1.0)}, {"in_face": "away", "norm": "l1"}, False, id="simplex-free-l1"),
    pytest.param({"0.weight": LInfBall(0.2)}, {"in_face": "pairwise", "every_gradient": True}, False, id="box-every"),
    pytest.param({"0.weight": KSparsePolytope(0.3, k=2)}, {"in_face": "pairwise"}, False, id="k-sparse"),
    pytest.param({"0.weight": NuclearBall(1.0)}, {"in_face": "away"}, False, id="nuclear"),
    pytest.param({"0.weight": L2Ball(1.0)}, {"in_face": "away", "maximize": True}, False, id="l2-maximize"),
    pytest.param({"0.weight": SpectralBall(1.0)}, {"norm": "spectral", "momentum": 0.5}, True, id="spectral-whole"),
]


@pytest.mark.parametrize(("sets", "options", "whole"), STEPS)
def test_compiled_steps_are_the_eager_ones_bit_for_bit(sets, options, whole):
    one, two = pair(sets, lr=0.3, **options)
    step = compiled(*two, Counting(), whole)
    for batch in BATCHES[:6]:
        train(*one, batch)
        step(batch)
        assert_same(one, two)
    assert str(one[1].report()) == str(two[1].report())


@pytest.mark.parametrize(
    ("set_", "lr"), [(L1Ball(1.0), 0.03), (L1Ball(SOME_FREE), torch.tensor(0.03))], ids=["float", "tensor"]
)
def test_compiled_adaptive_steps_count_without_recompiling(set_, lr):
    options = {"norm": "adaptive", "in_face": "away", "momentum": 0.9, "weight_decay": 0.1}
    one, two = pair({"0.weight": set_}, lr, **options)
    backend = Counting()
    step = compiled(*two, backend, whole=False)
    for batch in BATCHES:
        train(*one, batch)
        step(batch)
        assert_same(one, two)
    assert one[1].state[one[0][2].bias]["step"] == len(BATCHES)
    assert backend.graphs <= 3  # each half, and the one that creates the state


def test_one_functional_graph_holds_a_whole_step():
    """Backends other than dynamo's own get a graph in which nothing is written in place, but for what it ends with."""
    options = {"in_face": "away", "momentum": 0.9, "norm": "adaptive", "relative": 1.0}
    one, two = pair({"0.weight": L1Ball(1.0)}, lr=0.3, **options)
    step = torch.compile(two[1].step, backend="aot_eager", fullgraph=True)
    for batch in BATCHES[:4]:
        train(*one, batch)
        backward(*two, batch)
        step()
        assert_same(one, two)


@needs_compiler
def test_inductor_gives_the_eager_numbers_up_to_rounding():
    one, two = pair({"0.weight": L1Ball(1.0)}, torch.tensor(0.3), in_face="away", momentum=0.9)
    step = compiled(*two, Counting("inductor"), whole=True)
    for batch in BATCHES[:6]:
        train(*one, batch)
        step(batch)
        assert_same(one, two, rtol=1e-5, atol=1e-6)
    assert two[1].report().drop == one[1].report().drop
    assert torch.equal(one[0][0].weight == 0, two[0][0].weight == 0)


@pytest.mark.parametrize(
    ("set_", "lr"),
    [(L1Ball(1.0), 0.3), (L1Ball(1.0), torch.tensor(0.3)), (KSparsePolytope(0.3, k=2), torch.tensor(0.3))],
    ids=["l1-float", "l1-tensor", "k-sparse-tensor"],
)
def test_after_two_iterations_nothing_is_recompiled_even_if_lr_changes(set_, lr):
    one, two = pair({"0.weight": set_}, lr, in_face="away", momentum=0.9)
    backend = Counting()
    step = compiled(*two, backend, whole=False)
    graphs = []
    for i, batch in enumerate(BATCHES):
        for _, opt in (one, two):
            for group in opt.param_groups:
                if isinstance(lr, float):
                    group["lr"] = 0.3 / (i + 1)
                else:
                    group["lr"].fill_(0.3 / (i + 1))
        train(*one, batch)
        step(batch)
        graphs.append(backend.graphs)
        assert_same(one, two)
    assert graphs[3] == graphs[-1]
    assert graphs[-1] <= 3  # each half, and the one that creates the state


def test_a_compiled_step_of_bfloat16_parameters_keeps_their_master_copy():
    one, two = pair({"0.weight": L1Ball(1.0)}, 1e-3, dtype=torch.bfloat16, in_face="away", momentum=0.9)
    step = compiled(*two, Counting(), whole=False)
    for batch in BATCHES[:6]:
        train(*one, batch)
        step(batch)
        assert_same(one, two)
    weight = two[0][0].weight
    master = two[1].state[weight]["master"]
    assert master.dtype is torch.float32
    assert not torch.equal(master, weight.float())


@pytest.mark.parametrize("first", [L1Ball(1.0), KSparsePolytope(0.3, k=2)], ids=["l1", "k-sparse"])
def test_where_eager_steps_take_a_kernel_compiled_ones_agree_up_to_rounding(first):
    one, two = pair({"0.weight": first, "2.weight": L1Ball(1.0)}, 0.3, in_face="away", momentum=0.9, fused=None)
    step = compiled(*two, Counting(), whole=False)
    for i, batch in enumerate(BATCHES):
        train(*one, batch)
        (train(*two, batch) if i in (5, 6) else step(batch))  # in between, steps of the other kind
        assert_same(one, two, rtol=1e-5, atol=1e-6)
    assert str(one[1].report()).split("|")[1] == str(two[1].report()).split("|")[1]


def test_a_compiled_step_leaves_out_parameters_without_a_gradient_and_takes_them_up_again():
    one, two = pair({"*.weight": L1Ball(1.0)}, 0.3, in_face="away")
    step = torch.compile(two[1].step, backend=Counting())
    for batch, missing in zip(BATCHES, [True, False, False] * 2, strict=False):
        for model, opt in (one, two):
            backward(model, opt, batch)
            if missing:
                model[0].weight.grad = None
        one[1].step()
        step()
        for p, q in zip(one[0].parameters(), two[0].parameters(), strict=True):
            assert torch.equal(p, q)
    assert one[1].state[one[0][0].weight]["phase"] == two[1].state[two[0][0].weight]["phase"] == 0


def test_a_compiled_run_can_be_saved_and_continued_eagerly(tmp_path):
    one, two = pair({"0.weight": L1Ball(1.0)}, 0.3, in_face="away", momentum=0.9)
    step = compiled(*two, Counting(), whole=False)
    for batch in BATCHES[:5]:
        train(*one, batch)
        step(batch)
    torch.save(two[1].state_dict(), tmp_path / "opt.pt")
    _, (model, opt) = pair({"0.weight": L1Ball(1.0)}, 0.3, in_face="away", momentum=0.9)
    model.load_state_dict(two[0].state_dict())
    opt.load_state_dict(torch.load(tmp_path / "opt.pt", weights_only=True))
    for batch in BATCHES[5:9]:
        train(*one, batch)
        train(model, opt, batch)
    assert_same(one, (model, opt))


def test_free_blocks_cost_no_further_graphs():
    _, two = pair({"0.weight": L1Ball(SOME_FREE)}, lr=0.3, in_face="away")
    backend = Counting()
    step = compiled(*two, backend, whole=False)
    for batch in BATCHES[:6]:
        step(batch)
    assert backend.graphs <= 3  # each half, and the one that creates the state
