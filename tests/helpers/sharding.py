"""The same parameters twice: whole on every process, and cut into DTensors."""

import functools

import torch
from torch import nn

import inface
from inface.sets import blocks


def numbers(*shape):
    """The same random numbers wherever they are asked for: they depend on the shape alone."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def blocks_of(p, per):
    return blocks.count(p.shape, per)


def whole(x):
    return x.full_tensor() if hasattr(x, "full_tensor") else x


@functools.cache
def mesh():
    """All processes in a line; to make one opens connections."""
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415

    return init_device_mesh("cpu", (torch.distributed.get_world_size(),))


class Pair:
    """An optimizer of ordinary parameters, and one of the same parameters as DTensors (but those that are not cut)."""

    def __init__(self, mesh, cuts, groups, dtype=torch.float64, **options):
        from torch.distributed.tensor import distribute_tensor  # noqa: PLC0415

        generator = torch.Generator().manual_seed(0)
        starts = [torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype) for shape, _ in cuts]
        self.mesh, self.cuts, self.generator = mesh, [cut for _, cut in cuts], generator
        self.plain = [nn.Parameter(x.clone()) for x in starts]
        self.cut = [
            nn.Parameter(x.clone() if cut is None else distribute_tensor(x.clone(), mesh, cut, src_data_rank=None))
            for x, cut in zip(starts, self.cuts, strict=True)
        ]
        options = {"lr": 0.1, "project": True, **options}
        self.optimizers = [
            inface.FrankWolfe(groups([(f"p{i}", p) for i, p in enumerate(params)]), **options)
            for params in (self.plain, self.cut)
        ]

    def gradients(self):
        """New gradients, the same for both."""
        from torch.distributed.tensor import distribute_tensor  # noqa: PLC0415

        for p, q, cut in zip(self.plain, self.cut, self.cuts, strict=True):
            g = torch.randn(p.shape, generator=self.generator, dtype=torch.float64).to(p.dtype)
            p.grad = g
            q.grad = g.clone() if cut is None else distribute_tensor(g.clone(), self.mesh, cut, src_data_rank=None)

    def train(self, times):
        for _ in range(times):
            self.gradients()
            for opt in self.optimizers:
                opt.step()

    def assert_same(self, tol=1e-12):
        for i, (p, q) in enumerate(zip(self.plain, self.cut, strict=True)):
            same(p, q, tol, f"p{i}")
        one, other = (opt.report() for opt in self.optimizers)
        assert str(one).split("|")[1] == str(other).split("|")[1], (one, other)
        assert one.gap.blocks.keys() == other.gap.blocks.keys()
        for name, gaps in one.gap.blocks.items():
            same(gaps, other.gap.blocks[name], tol, f"gap of {name}")
        same(one.gap.value, other.gap.value, tol, "gap")
        assert one.smoothness.keys() == other.smoothness.keys()
        for (name, mine), yours in zip(one.smoothness.items(), other.smoothness.values(), strict=True):
            assert abs(mine - yours) <= tol * abs(mine), name
        for p, q, cut in zip(self.plain, self.cut, self.cuts, strict=True):
            mine, yours = (opt.state[x] for opt, x in zip(self.optimizers, (p, q), strict=True))
            assert mine.keys() == yours.keys(), (mine.keys(), yours.keys())
            for key, value in mine.items():
                if isinstance(value, torch.Tensor):
                    same(value, yours[key], tol, f"state {key}")
                    assert value.ndim == 0 or cut is None or yours[key].placements == tuple(cut), key
                else:
                    assert value == yours[key] or isinstance(value, float), key


def same(mine, yours, tol=1e-12, what=""):
    mine, yours = mine.detach().double(), whole(yours.detach()).double()
    assert torch.equal(mine.isnan(), yours.isnan()), what
    assert torch.allclose(mine, yours, rtol=tol, atol=tol, equal_nan=True), (what, mine, yours)
    assert torch.equal(mine != 0, yours != 0), what
