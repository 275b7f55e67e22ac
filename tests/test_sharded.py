"""Sharded parameters (DTensors), on a mesh of one process."""

import subprocess
import sys

import pytest
import torch
from torch import distributed as dist
from torch import nn

import inface
from inface.sets import L1Ball

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch has no distributed package here")


@pytest.fixture(scope="module")
def mesh():
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415 - only where there is one

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def sharded(x, mesh):
    from torch.distributed.tensor import Shard, distribute_tensor  # noqa: PLC0415

    return nn.Parameter(distribute_tensor(x, mesh, [Shard(0)]))


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"norm": "adaptive", "weight_decay": 0.1}])
def test_free_ones_descend_as_plain_ones_do(mesh, options):
    start = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    p, q = sharded(start.clone(), mesh), nn.Parameter(start.clone())
    ours, plain = (inface.FrankWolfe([x], lr=0.1, **options) for x in (p, q))
    for i in range(5):
        g = torch.randn(4, 3, generator=torch.Generator().manual_seed(i))
        p.grad, q.grad = sharded(g, mesh).detach(), g
        ours.step()
        plain.step()
        assert torch.equal(p.full_tensor(), q)


def test_constrained_ones_step_as_plain_ones_do(mesh):
    start = torch.zeros(4, 3)
    p, q = sharded(start.clone(), mesh), nn.Parameter(start.clone())
    ours, plain = (
        inface.FrankWolfe([{"params": [x], "set": L1Ball(1.0)}], lr=0.1, in_face="away", momentum=0.5) for x in (p, q)
    )
    for i in range(6):
        g = torch.randn(4, 3, generator=torch.Generator().manual_seed(i))
        p.grad, q.grad = sharded(g, mesh).detach(), g
        ours.step()
        plain.step()
        assert torch.equal(p.full_tensor(), q)
    assert str(ours.report()) == str(plain.report())


def test_the_library_does_not_load_dtensors_by_itself():
    code = "import sys, inface, inface.optimizer; print('torch.distributed.tensor' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
