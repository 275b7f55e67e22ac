"""What two processes must do as one does: options, real models under FSDP2 and tensor parallel, and everything beside steps."""

import copy
import warnings

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import inface
from helpers.sharding import Pair, mesh, same, whole
from inface.sets import GroupL1Ball, L1Ball, NuclearBall, Simplex

CASES = {}
STEPS = 24
CUTS = [
    ((5, 4), [Shard(0)]),
    ((4, 7), [Shard(1)]),
    ((3, 4), [Replicate()]),
    ((1, 4), [Shard(0)]),
    ((3, 4), None),
    ((7,), [Shard(0)]),
]


def case(function):
    CASES[function.__name__] = function
    return function


# ---------------------------------------------------------------------- options


def options(constrained, tol=1e-12, dtype=torch.float64, cuts=CUTS, times=6, **given):
    """Free or constrained parameters with these options."""
    set_ = L1Ball(0.7) if constrained else None
    pair = Pair(mesh(), cuts, lambda params: [{"params": params, "set": set_}], dtype=dtype, **given)
    pair.train(times)
    pair.assert_same(tol)


for norm in ("l2", "l1", "linf", "spectral", "adaptive"):
    for momentum in (0.0, 0.9):
        CASES[f"free-{norm}-{momentum}"] = lambda a=(norm, momentum): options(
            False, norm=a[0], momentum=a[1], weight_decay=0.1, in_face="away", every_gradient=a[1] > 0
        )
for name, given in {
    "maximize": {"maximize": True},
    "tensor lr": {"lr": torch.tensor(0.1, dtype=torch.float64)},
    "relative away": {"in_face": "away", "relative": 1.0},
    "relative projected": {"in_face": "projected", "relative": 1.0, "in_face_steps": 3, "momentum": 0.5},
    "automatic": {"lr": "auto", "in_face": "projected"},
    "preconditioned": {"in_face": "projected", "precondition": True, "relative": 0.5},
    "torch operations": {"in_face": "away", "fused": False, "momentum": 0.9},
}.items():
    CASES[f"option {name}"] = lambda a=given: options(True, **a)
for dtype in (torch.float32, torch.bfloat16):
    for constrained in (True, False):
        given = {"in_face": "away", "momentum": 0.9} if constrained else {"norm": "adaptive"}
        CASES[f"{dtype} {constrained}"] = lambda a=(constrained, dtype, given): options(a[0], 1e-6, a[1], **a[2])


def partly_free(**given):
    """A set with free blocks and others, so that processes have different kinds of them."""
    radius = torch.tensor([1.0, torch.inf, 0.5, 2.0], dtype=torch.float64)
    groups = [((4, 3), [Shard(0)], radius), ((4, 5), [Shard(1)], radius), ((3, 4), [Shard(0)], radius[1:])]

    def made(params):
        return [{"params": [named], "set": L1Ball(own)} for named, (_, _, own) in zip(params, groups, strict=True)]

    pair = Pair(mesh(), [(shape, cut) for shape, cut, _ in groups], made, in_face="away", **given)
    pair.train(5)
    pair.assert_same()


for name, given in {
    "descent": {"momentum": 0.9, "dampening": 0.0},
    "adaptive": {"norm": "adaptive"},
    "largest entry": {"norm": "l1"},
    "relative": {"relative": 1.0},
}.items():
    CASES[f"partly free, {name}"] = lambda a=given: partly_free(**a)


@case
def a_function_as_in_face_sees_the_blocks_of_its_process():
    def direction(set_, x, g):
        return set_.dense_vertex(g) - x

    options(True, in_face=direction, momentum=0.5)


@case
def gradients_that_are_not_finite_skip_the_same_blocks():
    pair = Pair(mesh(), CUTS, lambda params: [{"params": params, "set": L1Ball(0.7)}], in_face="away", momentum=0.9)
    for i in range(6):
        pair.gradients()
        for p, q in zip(pair.plain, pair.cut, strict=True):
            p.grad.view(-1)[i % p.grad.numel()] = torch.nan
            if isinstance(q, DTensor):
                q.grad = distribute_tensor(p.grad.clone(), pair.mesh, q.placements, src_data_rank=None)
            else:
                q.grad = p.grad.clone()
        for opt in pair.optimizers:
            opt.step()
    pair.assert_same()
    assert pair.optimizers[1].report().skipped > 0


@case
def gradients_that_are_not_added_up_yet_are():
    p = nn.Parameter(distribute_tensor(torch.zeros(3, 4), mesh(), [Replicate()]))
    opt = inface.FrankWolfe([{"params": [p], "set": L1Ball(1.0)}], lr=0.1)
    ours = torch.zeros(3, 4)
    ours[:, dist.get_rank()] = 1 + dist.get_rank()
    p.grad = DTensor.from_local(ours, mesh(), [Partial()])
    opt.step()
    assert torch.equal((p.full_tensor() != 0).nonzero()[:, 1], torch.tensor([1, 1, 1]))


@case
def what_somebody_else_puts_outside_is_put_back():
    pair = Pair(mesh(), CUTS[:5], lambda params: [{"params": params, "set": L1Ball(0.7)}], in_face="away")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i in range(4):
            if i == 2:
                for p in (*pair.plain, *pair.cut):
                    (p.to_local() if isinstance(p, DTensor) else p).data.mul_(3)
            pair.train(1)
    pair.assert_same()
    assert pair.optimizers[1].report().outside > 0


@case
def options_may_change_on_the_way():
    pair = Pair(mesh(), CUTS, lambda params: [{"params": params}], norm="l2")
    for norm in ("l2", "linf", "l2", "adaptive", "l1"):
        for opt in pair.optimizers:
            opt.param_groups[0]["norm"] = norm
        pair.train(2)
    pair.assert_same()


@case
def state_that_one_process_saved_is_cut_when_it_is_used():
    pair = Pair(mesh(), CUTS, lambda params: [{"params": params, "set": L1Ball(0.7)}], in_face="away", momentum=0.9)
    pair.train(3)
    saved = pair.optimizers[0].state_dict()
    for opt in pair.optimizers:
        opt.load_state_dict(copy.deepcopy(saved))  # the counts of report() begin again
    pair.train(3)
    pair.assert_same()


@case
def groups_can_be_added():
    pair = Pair(mesh(), CUTS, lambda params: [{"params": params[:2], "set": L1Ball(0.7)}], in_face="away")
    pair.train(3)
    for opt, params in zip(pair.optimizers, (pair.plain, pair.cut), strict=True):
        opt.add_param_group({"params": [("p2", params[2]), ("p3", params[3]), ("p4", params[4])], "set": Simplex(1.0)})
        opt.add_param_group({"params": [("p5", params[5])]})
    pair.train(3)
    pair.assert_same()


@case
def a_model_outside_of_its_set_is_an_error_on_every_process():
    start = torch.zeros(4, 3)
    start[3] = 5.0  # on the last process alone
    p = nn.Parameter(distribute_tensor(start, mesh(), [Shard(0)], src_data_rank=None))
    with pytest.raises(ValueError, match=r'"fc\.weight" starts outside its .* block 3 has norm 15'):
        inface.FrankWolfe([{"params": [("fc.weight", p)], "set": L1Ball(1.0)}], lr=0.1)


@case
def what_cannot_be_done_is_an_error_that_says_so():
    with pytest.raises(ValueError, match=r"FullyShardedDataParallel flattens parameters.*wanted fully_shard"):
        inface.FrankWolfe(
            FullyShardedDataParallel(nn.Linear(4, 3), device_id=torch.device("cpu")), {"*weight": L1Ball(1.0)}, lr=0.1
        )
    p = nn.Parameter(distribute_tensor(torch.zeros(4, 3), mesh(), [Shard(0)]))
    with pytest.raises(ValueError, match="is a DTensor, which does not go with differentiable=True"):
        inface.FrankWolfe([{"params": [("w", p)], "set": L1Ball(1.0)}], lr=0.1, differentiable=True)
    q = nn.Parameter(DTensor.from_local(torch.zeros(4, 3), mesh(), [Partial()]))
    with pytest.raises(ValueError, match=r"has placements .*Partial.*, wanted Shard and Replicate alone"):
        inface.FrankWolfe([{"params": [("w", q)], "set": L1Ball(1.0)}], lr=0.1)
    with torch.device("meta"):
        model = nn.Linear(4, 3)
    fully_shard(model, mesh=mesh())
    with pytest.raises(ValueError, match=r'"weight" is on the meta device, wanted weights to start from'):
        inface.FrankWolfe(model, {"weight": L1Ball(1.0)}, lr=0.1)


# ---------------------------------------------------------------------- what is sent


def sent(groups, **given):
    """How often the processes talk in a step."""
    pair = Pair(mesh(), CUTS, groups, **given)
    pair.train(3)
    pair.gradients()
    with CommDebugMode() as talk:
        for _ in range(2):
            pair.optimizers[1].step()
    return talk.get_total_counts()


@case
def blocks_that_lie_on_one_process_send_nothing():
    def groups(params):
        return [
            {"params": [params[0], params[2], params[3]], "set": L1Ball(1.0)},
            {"params": [params[1]], "set": L1Ball(1.0, per="input")},
            {"params": [params[4]], "set": NuclearBall(1.0)},
            {"params": [params[5]]},
        ]

    assert sent(groups, in_face="away", momentum=0.9) == 0
    assert sent(groups, in_face="projected", norm="adaptive") == 0
    assert sent(lambda params: [{"params": params[1:2], "set": L1Ball(1.0)}]) > 0


@case
def what_is_gathered_is_given_back():
    pair = Pair(mesh(), CUTS[:2], lambda params: [{"params": params, "set": L1Ball(1.0, per="tensor")}], momentum=0.9)
    pair.train(2)
    twins = [twin for twin in pair.optimizers[1]._shards._twins.values() if twin.gathered]
    assert len(twins) == 2
    for twin in twins:
        assert twin.tensor.untyped_storage().nbytes() == 0
        assert twin.tensor.grad is None
        assert not twin.taken


# ---------------------------------------------------------------------- models


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 11), nn.ReLU(), nn.Linear(11, 3)).double()


def fsdp(model):
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh())
    return fully_shard(model, mesh=mesh())


def tensor_parallel(model):
    return parallelize_module(model, mesh(), {"0": ColwiseParallel(), "2": RowwiseParallel()})


WAYS = {"fsdp": fsdp, "tensor parallel": tensor_parallel}
X = torch.randn(40, 16, 12, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
Y = X[..., :3].argmax(-1)


def batch(i, way):
    x, y = X[i % len(X)], Y[i % len(X)]
    if way == "fsdp":
        return x.chunk(dist.get_world_size())[dist.get_rank()], y.chunk(dist.get_world_size())[dist.get_rank()]
    return x, y


def train(model, opt, way=None, times=STEPS, after=None):
    for i in range(times):
        x, y = batch(i, way)
        opt.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        opt.step()
        if after is not None:
            after.step()


def assert_same_model(model, other, tol=1e-9):
    for (name, p), q in zip(model.named_parameters(), other.parameters(), strict=True):
        same(p, q, tol, name)


for way, cut in WAYS.items():

    def constrained(way=way, cut=cut):
        sets = {"0.weight": L1Ball(1.0), "2.weight": GroupL1Ball(3.0), "4.weight": NuclearBall(1.5)}
        model, other = network(), cut(network())
        given = {"lr": 0.05, "in_face": "away", "momentum": 0.9, "project": True}
        one, opt = inface.FrankWolfe(model, sets, **given), inface.FrankWolfe(other, sets, **given)
        train(model, one)
        train(other, opt, way)
        assert_same_model(model, other)
        same(one.gap, opt.gap, 1e-9)

    def sparse(way=way, cut=cut):
        for free, density in (("sgd", 0.2), ("adamw", 0.2), ("sgd", 0.7)):
            model, other = network(), network()
            for own in (model, other):
                nn.init.zeros_(own[4].weight)  # a layer that starts at zero is free for a while
            other = cut(other)
            given = {"density": density, "lr": 0.1 if free == "sgd" else 0.01, "steps": STEPS, "free": free}
            one, opt = (inface.sparse_optimizer(own, **given) for own in (model, other))
            train(model, one)
            train(other, opt, way)
            assert_same_model(model, other)
            assert opt.param_groups[0]["path"] == pytest.approx(one.param_groups[0]["path"])
            kept = sum(int(whole(other[i].weight).count_nonzero()) for i in (0, 2, 4))
            assert kept <= density * (12 * 16 + 16 * 11 + 11 * 3)

    def scheduled(way=way, cut=cut):
        model, other = network(), cut(network())
        sets = {
            "0.weight": L1Ball(density=0.2),
            "2.weight": L1Ball(density=0.2, per="input"),
            "4.weight": GroupL1Ball(density=0.7),
        }
        given = {"lr": 0.05, "in_face": "projected", "in_face_steps": 2}
        one, opt = (inface.FrankWolfe(own, sets, **given) for own in (model, other))
        train(model, one, after=inface.DensityScheduler(one, steps=STEPS))
        train(other, opt, way, after=inface.DensityScheduler(opt, steps=STEPS))
        assert_same_model(model, other)

    def beside_steps(way=way, cut=cut):
        """graph_init_, nonzeros, hard_threshold, modified_gap and RandomIterate."""
        model, other = network(), cut(network())
        sets = {"0.weight": L1Ball(1.0), "2.weight": Simplex(1.0)}
        given = {"lr": 0.05, "in_face": "away", "project": True}
        one, opt = (inface.FrankWolfe(own, sets, **given) for own in (model, other))
        seed = 3 if dist.get_rank() == 0 else 4  # the first process decides
        inface.graph_init_(model, one, generator=torch.Generator().manual_seed(3), edges=2)
        inface.graph_init_(other, opt, generator=torch.Generator().manual_seed(seed), edges=2)
        assert_same_model(model, other)
        iterates = [
            inface.RandomIterate(own, generator=torch.Generator().manual_seed(start))
            for own, start in ((one, 3), (opt, seed))
        ]
        train(model, one)
        train(other, opt, way)
        assert inface.sparsity.nonzeros(other) == inface.sparsity.nonzeros(model)
        loss = nn.functional.cross_entropy
        gap = inface.modified_gap(model, loss, [batch(i, None) for i in range(4)], one)
        found = inface.modified_gap(other, loss, [batch(i, way) for i in range(4)], opt)
        same(gap.value, found.value, 1e-9)
        assert gap.blocks.keys() == found.blocks.keys()
        for scope in ("layer", "global"):
            if way == "fsdp":
                with pytest.raises(ValueError, match="under fully_shard cannot be copied, wanted inplace=True"):
                    inface.sparsity.hard_threshold(other, keep=0.3)
                continue
            assert_same_model(
                *(inface.sparsity.hard_threshold(own, keep=0.3, scope=scope) for own in (model, other)), tol=1e-9
            )
        assert_same_model(model, other)
        assert iterates[0].restore_() == iterates[1].restore_()
        assert_same_model(model, other)
        inface.sparsity.hard_threshold(other, keep=0.3, inplace=True)
        assert_same_model(inface.sparsity.hard_threshold(model, keep=0.3), other)

    CASES |= {f"{way} {name.__name__}": name for name in (constrained, sparse, scheduled, beside_steps)}


@case
def a_compiled_step_is_an_ordinary_one():
    pair = Pair(mesh(), CUTS, lambda params: [{"params": params, "set": L1Ball(0.7)}], in_face="away")
    pair.train(1)
    step = torch.compile(pair.optimizers[1].step, backend="eager")
    for _ in range(2):
        pair.gradients()
        pair.optimizers[0].step()
        step()
    pair.assert_same()


# ---------------------------------------------------------------------- DistributedDataParallel


@case
def zero_redundancy_shares_out_the_state():
    sets = {"0.weight": L1Ball(1.0), "2.weight": L1Ball(2.0)}
    given = {"lr": 0.05, "in_face": "away", "momentum": 0.9, "project": True}
    model = network()
    one = inface.FrankWolfe(model, sets, **given)
    other = DistributedDataParallel(network())
    groups = [
        {**group, "params": [p for _, p in group["params"]], "param_names": [name for name, _ in group["params"]]}
        for group in inface.param_groups(other.module, sets)
    ]
    inface.FrankWolfe(groups, **given)  # puts all weights into their sets on every process
    opt = ZeroRedundancyOptimizer(groups, inface.FrankWolfe, **given)
    train(model, one, times=11)
    train(other, opt, "fsdp", times=11)
    assert_same_model(model, other.module)
    opt.consolidate_state_dict(dist.get_world_size() - 1)
    if dist.get_rank() == dist.get_world_size() - 1:
        assert [len(group["params"]) for group in opt.state_dict()["param_groups"]] == [1, 1, 4]


@case
def layers_that_leave_out_zeros_train_under_ddp():
    sets = {"0.weight": L1Ball(1.0), "2.weight": L1Ball(2.0)}
    given = {"lr": 0.05, "in_face": "projected", "in_face_steps": 2, "momentum": 0.9, "project": True}
    model = network()
    one = inface.FrankWolfe(model, sets, **given)
    plain = network()
    opt = inface.FrankWolfe(plain, sets, **given)
    assert inface.sparse_compute_(plain, opt, mode="sparse") == ["0.weight", "2.weight"]
    train(model, one, times=11)
    train(DistributedDataParallel(plain), opt, "fsdp", times=11)
    assert_same_model(model, plain)
