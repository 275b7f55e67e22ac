"""A small task for all frameworks, and the loop that their results are compared with."""

import os
import subprocess
import sys
from pathlib import Path

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, TensorDataset

import inface
from inface.sets import L1Ball

SAMPLES, BATCH = 96, 16
SETS = {"0.weight": L1Ball(2.0), "2.weight": L1Ball(3.0)}
AWAY = {"lr": 0.3, "in_face": "away", "momentum": 0.5, "project": True}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 3))


def data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, 20, generator=generator)
    return TensorDataset(x, x[:, :3].argmax(1))


def loader(batch=BATCH):
    return DataLoader(data(), batch_size=batch)


def plain(model, opt, epochs, batch=BATCH):
    """The ordinary loop."""
    for _ in range(epochs):
        for x, y in loader(batch):
            opt.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            opt.step()
    return model


def away():
    model = network()
    return model, inface.FrankWolfe(model, SETS, **AWAY)


def nonzeros(model):
    return sum(int(p.count_nonzero()) for p in model.parameters() if p.ndim == 2)


def same(model, other):
    return all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True))


def close(model, state, atol=1e-5):
    """Equal to rounding, with the same zeros."""
    for name, p in model.state_dict().items():
        torch.testing.assert_close(p, state[name], rtol=1e-4, atol=atol)
        assert torch.equal(p == 0, state[name] == 0), name


def two_processes(file, *arguments):
    """Run a file on two processes that torchrun starts."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", file, *arguments]
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    said = subprocess.run(
        [str(word) for word in command],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert said.returncode == 0, said.stdout


def one_process(main):
    """Run what one of two processes does with the argument of its command.

    It waits for the other, and ends without the interpreter's own end, which threads of Gloo now and then abort.
    """
    main(sys.argv[1])
    if distributed.is_initialized():  # Lightning has left it
        distributed.barrier()
    sys.stdout.flush()
    os._exit(0)
