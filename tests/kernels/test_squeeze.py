"""Projected steps that read whole rows with AVX-512: the lists that they make, and the steps that follow."""

import os
import platform
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.nn import Parameter

import inface
from inface.kernels import short
from inface.kernels.squeeze import SQUEEZES, squeeze
from inface.sets import L1Ball, Simplex

WIDTHS = [1, 7, 8, 15, 16, 17, 31, 33, 100, 784]
DTYPES = [np.float32, np.float64]


def row(width, dtype, density, seed):
    """Some of a row, with numbers that are hard to tell from zero, and a gradient that is not finite where nothing is."""
    rng = np.random.default_rng(seed)
    x = np.where(rng.random(width) < density, rng.standard_normal(width), 0).astype(dtype)
    x[rng.random(width) < 0.05] = np.finfo(dtype).smallest_subnormal
    x[rng.random(width) < 0.05] = -0.0
    g = rng.standard_normal(width).astype(dtype)
    g[x == 0] = np.resize([np.nan, np.inf, 1.0], int((x == 0).sum()))
    return x, g, rng.standard_normal(width).astype(dtype)


@pytest.mark.skipif(not SQUEEZES, reason="a CPU without AVX-512")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_row_that_is_squeezed_is_the_list_that_is_found_and_gathered(width, dtype):
    for seed, density in enumerate((0.0, 0.05, 0.5, 1.0)):
        x, g, m = row(width, dtype, density, seed)
        room = width + 32
        own, price, old = (np.full(room, 7, dtype) for _ in range(3))
        at, places = np.zeros(room, np.int32), np.zeros(room, np.int32)
        count = short.find(x, places)
        assert squeeze(x, g, None, own, price, None, at) == count
        np.testing.assert_array_equal(at[:count], places[:count])
        expected, slopes = np.full(room, 7, dtype), np.full(room, 7, dtype)
        assert short.gather(x, g, places, expected, slopes, count)
        end = short.padded(count)
        np.testing.assert_array_equal(own[:end], expected[:end])
        np.testing.assert_array_equal(price[:end], slopes[:end])
        assert squeeze(x, g, m, own, price, old, at) == count
        np.testing.assert_array_equal(old[:count], m[places[:count]])


@pytest.mark.skipif(not SQUEEZES, reason="a CPU without AVX-512, where there is always a list")
@pytest.mark.parametrize("set_", [L1Ball(1.5), Simplex(1.5)], ids=lambda s: s.kind)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_step_is_the_same_bits_whether_a_list_is_kept_or_rows_are_read(set_, momentum, dtype):
    generator = torch.Generator().manual_seed(0)
    for width in (24, 77, 160):
        x = torch.randn(12, width, generator=generator, dtype=dtype)
        x = x * (torch.rand(12, width, generator=generator) < 0.08) + 0.0
        x[:, -1] += 1  # no row is empty
        x = x.abs() if isinstance(set_, Simplex) else x
        x *= 1.5 / x.abs().sum(1, keepdim=True)
        gradients = torch.randn(6, 12, width, generator=generator, dtype=dtype)
        gradients[0] = 0
        gradients[2:, :, 0][x[:, 0].expand(4, -1) == 0] = torch.nan  # nobody looks
        gradients[3, 0] = torch.inf  # that row stays
        ends = []
        for listed in (False, True):
            p = Parameter(x.clone())
            opt = inface.FrankWolfe(
                [{"params": [p], "set": set_}], lr=0.05, in_face="projected", in_face_steps=9, momentum=momentum
            )
            for g in gradients:
                if listed:
                    opt._fused.support(p)
                p.grad = g.clone()
                opt.step()
            assert opt._fused.lists.pays(p, 12) is listed
            report = opt.report()
            ends.append((p.detach(), opt.state[p].get("momentum_buffer"), report.in_face, report.drop, report.skipped))
        (one, m, *counts), (other, n, *others) = ends
        assert torch.equal(one, other)
        assert not torch.signbit(one[one == 0]).any()
        assert counts == others
        if momentum:
            torch.testing.assert_close(m, n, rtol=0, atol=0, equal_nan=True)


STEPS_WITHOUT = """
import torch, inface
from inface.kernels.squeeze import SQUEEZES
from inface.sets import L1Ball

assert not SQUEEZES
ends = []
for fused in (True, False):
    random = torch.Generator().manual_seed(0)
    x = torch.randn(8, 200, generator=random) * (torch.rand(8, 200, generator=random) < 0.1)
    p = torch.nn.Parameter(x)
    group = {"params": [p], "set": L1Ball(x.abs().sum(1))}
    opt = inface.FrankWolfe([group], lr=0.05, in_face="projected", in_face_steps=9, momentum=0.9, fused=fused)
    for _ in range(10):
        p.grad = torch.randn(8, 200, generator=random)
        opt.step()
    assert opt.report().in_face > 0
    ends.append(p.detach())
torch.testing.assert_close(*ends)
assert ends[0].count_nonzero() == ends[1].count_nonzero() < 1600
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="haswell is an x86-64")
def test_a_cpu_without_avx_512_takes_the_same_steps():
    """Numba compiles for the CPU that it is told; every other test runs on the one that is there."""
    other = {**os.environ, "NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", STEPS_WITHOUT], env=other, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
