"""Runs of the laboratory on two processes: the cases of test_runs.py, each called by both."""

import tempfile
from pathlib import Path

import pytest
import torch
from torch import distributed as dist
from torch import nn

from inface.lab import Data, Experiment, Split, train
from inface.lab.runs.processes import Processes, Stopped
from inface.lab.runs.setup import settings_for


def data(folder):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(33, 2, 6, 6, generator=generator)
    split = Split(x, x.mean((2, 3)).argmax(1))
    return Data(train=split, test=split)


def model():
    # No bias before the normalisation: its gradient is rounding alone, which Adam would make large.
    first = nn.Sequential(nn.Conv2d(2, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten())
    return nn.Sequential(*first, nn.Linear(128, 8), nn.ReLU(), nn.Linear(8, 2))


def shifted(x, generator):
    return x + 0.1 * torch.randn(x.shape, generator=generator)


# 33 samples in batches of 16: of the last batch, the second process has nothing.
images = Experiment(data=data, model=model, defaults={"epochs": 8, "batch_size": 16}, augment=shifted)
NAME = f"{Path(__file__).resolve()}:images"


def settings(**given):
    return settings_for(NAME, **{"density": 0.2, "threads": 1, **given})


def processes():
    return Processes(dist.get_rank(), dist.get_world_size())


def shared_folder():
    """One folder for both processes."""
    made = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(made)
    return Path(made[0])


def close(run, other):
    assert [record["step"] for record in run.records] == [record["step"] for record in other.records]
    assert run.summary["kept"] == other.summary["kept"]
    weights = other.weights()
    for name, tensor in run.weights().items():
        torch.testing.assert_close(tensor, weights[name], rtol=1e-4, atol=1e-5)
        assert torch.equal(tensor == 0, weights[name] == 0), name


def same_as_one_process(**given):
    def case():
        folder = shared_folder()
        run = train(settings(**given), folder / "two", processes=processes())
        if dist.get_rank() == 0:
            close(run, train(settings(**given), folder / "one"))
        else:
            assert run is None

    return case


def one_process_stops_and_two_go_on():
    class Stop(Exception):
        pass

    def stop(record):
        if record["kind"] == "step" and record["step"] >= 10:
            raise Stop

    folder = shared_folder()
    if dist.get_rank() == 0:
        with pytest.raises(Stop):
            train(settings(), folder / "two", watch=stop, checkpoint_seconds=0)
        assert (folder / "two" / "checkpoint.safetensors").is_file()
    dist.barrier()
    seen = []
    own = folder / "two" if dist.get_rank() == 0 else folder / "elsewhere"  # the others need not see the folder
    run = train(settings(), own, resume=True, watch=seen.append, processes=processes())
    if dist.get_rank() == 0:
        assert 0 < seen[0]["step"] <= 10
        close(run, train(settings(), folder / "one"))
    else:
        assert not seen
        assert not own.exists()


def all_stop_where_the_first_has_to():
    folder = shared_folder()
    train(settings(epochs=1), folder, processes=processes())
    with pytest.raises(Exception, match="already holds a run" if dist.get_rank() == 0 else "first process") as raised:
        train(settings(epochs=1), folder, processes=processes())
    assert isinstance(raised.value, Stopped) == (dist.get_rank() > 0)


CASES = {
    "a path of densities": same_as_one_process(),
    "AdamW": same_as_one_process(free="adamw", lr=0.003),
    "RigL": same_as_one_process(method="rigl", density=None, keep=0.2, momentum=0.9),
    "one process stops and two go on": one_process_stops_and_two_go_on,
    "all stop where the first has to": all_stop_where_the_first_has_to,
}
