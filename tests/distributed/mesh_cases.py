"""What four processes must do as one does: meshes of two dimensions, more processes than rows, and checkpoints."""

import functools
import tempfile
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import _StridedShard

import inface
from helpers.sharding import Pair, blocks_of, mesh, numbers, same, whole
from inface.sets import GroupL1Ball, L1Ball, NuclearBall

CASES = {}
STEPS = 24


@functools.cache
def plane():
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))


CUTS = [
    ((9, 4), [Shard(0), Shard(0)]),
    ((8, 4), [_StridedShard(0, split_factor=2), Shard(0)]),
    ((9, 4), [_StridedShard(0, split_factor=2), Shard(0)]),
    ((5, 4), [Shard(0), Shard(1)]),
    ((5, 4), [Replicate(), Shard(0)]),
    ((3, 7), [Shard(1), Replicate()]),
    ((2, 3), [Shard(0), Shard(0)]),
    ((5, 3), None),
]


def both(mesh, cuts, set_of, times=6, **options):
    def groups(params):
        return [{"params": [(name, p)], "set": set_of(p)} for name, p in params]

    pair = Pair(mesh, cuts, groups, **options)
    pair.train(times)
    pair.assert_same()


def radii(per):
    def set_of(p):
        radius = 0.5 + numbers(blocks_of(p, per)).abs()
        radius[-1:] = torch.inf if len(radius) > 2 else 1.0
        return L1Ball(radius, per)

    return set_of


for name, set_of in {
    "output": lambda _: L1Ball(0.7),
    "input": lambda _: L1Ball(0.7, per="input"),
    "radii": radii("output"),
    "radii of inputs": radii("input"),
    "groups": lambda _: GroupL1Ball(2.0),
    "free": lambda _: None,
}.items():
    CASES[f"plane {name}"] = lambda a=set_of: both(plane(), CUTS, a, in_face="away", momentum=0.9)
CASES["plane relative"] = lambda: both(plane(), CUTS, lambda _: L1Ball(0.7), in_face="projected", relative=1.0)
CASES["more processes than rows"] = lambda: both(
    mesh(),
    [((2, 3), [Shard(0)]), ((5, 3), [Shard(0)]), ((7,), [Shard(0)])],
    lambda _: L1Ball(0.7),
    in_face="away",
    momentum=0.9,
)
CASES["more processes than rows, relative"] = lambda: both(
    mesh(),
    [((2, 3), [Shard(0)]), ((5, 3), [Shard(0)]), ((8, 3), [Shard(0)])],
    lambda _: L1Ball(0.7),
    in_face="projected",
    relative=1.0,
)
CASES["more processes than rows, half precision"] = lambda: both(
    mesh(), [((2, 3), [Shard(0)]), ((5, 3), [Shard(0)])], lambda _: L1Ball(0.7), in_face="away", dtype=torch.bfloat16
)
CASES["more processes than rows, free"] = lambda: both(
    mesh(), [((2, 3), [Shard(0)]), ((3,), [Shard(0)])], lambda _: None, norm="adaptive", in_face="away"
)


# ---------------------------------------------------------------------- models on a mesh of two dimensions


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 11), nn.ReLU(), nn.Linear(11, 3)).double()


X = torch.randn(40, 16, 12, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
Y = X[..., :3].argmax(-1)


def train(model, opt, first, last, part=(0, 1)):
    rank, world = part
    for i in range(first, last):
        opt.zero_grad()
        x, y = X[i % len(X)].chunk(world)[rank], Y[i % len(X)].chunk(world)[rank]
        x = x.to(next(model.parameters()).dtype)
        nn.functional.cross_entropy(model(x), y).backward()
        opt.step()


def hybrid(model):
    return fully_shard(model, mesh=plane()), (dist.get_rank(), 4)


def fsdp_and_tensor_parallel(model):
    parallelize_module(model, plane()["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return fully_shard(model, mesh=plane()["dp"]), (plane()["dp"].get_local_rank(), 2)


def fsdp(model):
    return fully_shard(model, mesh=mesh()), (dist.get_rank(), 4)


SETS = {"0.weight": L1Ball(1.0), "2.weight": L1Ball(1.0), "4.weight": NuclearBall(1.5)}
RECIPES = {
    "steps": lambda model: inface.FrankWolfe(model, SETS, lr=0.05, in_face="away", momentum=0.9, project=True),
    "path": lambda model: inface.sparse_optimizer(model, density=0.2, lr=0.1, steps=STEPS),
    "path of adamw": lambda model: inface.sparse_optimizer(model, density=0.2, lr=0.01, steps=STEPS, free="adamw"),
}


def assert_same_model(model, other, tol=1e-9):
    for (name, p), q in zip(model.named_parameters(), other.parameters(), strict=True):
        same(p, q, tol, name)


for cut, recipe in (
    (hybrid, "path"),
    (fsdp_and_tensor_parallel, "steps"),
    (fsdp_and_tensor_parallel, "path of adamw"),
):

    def trained(cut=cut, make=RECIPES[recipe]):
        model = network()
        other, part = cut(network())
        train(model, make(model), 0, STEPS)
        train(other, make(other), 0, STEPS, part)
        assert_same_model(model, other)

    CASES[f"{cut.__name__} {recipe}"] = trained


# ---------------------------------------------------------------------- checkpoints


def save(model, opt, folder, group):
    state = dict(zip(("model", "optimizer"), get_state_dict(model, opt), strict=True))
    dcp.save(state, checkpoint_id=folder, process_group=group)


def load(model, opt, folder, **where):
    state = dict(zip(("model", "optimizer"), get_state_dict(model, opt), strict=True))
    dcp.load(state, checkpoint_id=folder, **where)
    set_state_dict(model, opt, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def shared_folder(made):
    found = [made]
    dist.broadcast_object_list(found, 0)
    return Path(found[0])


def saved_by_two(make, stop, dtype=torch.float64):
    """Saved by two processes and loaded by two, four and one; ranks 0 and 1 save, ranks 2 and 3 do the same elsewhere."""
    two = plane()["tp"]
    group, half = two.get_group(), (two.get_local_rank(), 2)
    with tempfile.TemporaryDirectory() as own:
        folder = shared_folder(own) / str(dist.get_rank() // 2)
        model = fully_shard(network().to(dtype), mesh=two)
        opt = make(model)
        train(model, opt, 0, stop, half)
        save(model, opt, folder, group)
        train(model, opt, stop, STEPS, half)

        again = fully_shard(network(1).to(dtype), mesh=two)
        live = make(again)
        load(again, live, folder, process_group=group)
        train(again, live, stop, STEPS, half)
        for p, q in zip(model.parameters(), again.parameters(), strict=True):
            assert torch.equal(p.to_local(), q.to_local())
        assert str(live.gap) == str(opt.gap)

        dist.barrier()
        tol = 1e-9 if dtype is torch.float64 else 0.1
        four, part = fsdp(network(2).to(dtype))
        live = make(four)
        load(four, live, folder.parent / "0")
        train(four, live, stop, STEPS, part)
        one = network(3).to(dtype)
        live = make(one)
        load(one, live, folder.parent / "0", no_dist=True)
        train(one, live, stop, STEPS)
        for p, q, r in zip(model.parameters(), four.parameters(), one.parameters(), strict=True):
            same(whole(p), q, tol)
            same(whole(p), r, tol)
        dist.barrier()


CASES["checkpoint, half precision"] = lambda: saved_by_two(RECIPES["steps"], 7, torch.bfloat16)
STOPS = {"steps": 7, "path": 13, "path of adamw": 8}
for recipe, stop in STOPS.items():
    CASES[f"checkpoint, {recipe}"] = lambda a=(RECIPES[recipe], stop): saved_by_two(*a)
