"""Runs of the laboratory on two processes are those of one: the table of cases is in run_cases.py."""

import pytest
import torch

from distributed import run_cases
from helpers.ranks import run
from inface.lab import train
from inface.lab.errors import ArgumentError
from inface.lab.runs.processes import joined


@pytest.fixture(scope="module")
def found():
    return run("distributed.run_cases", 2)


@pytest.mark.parametrize("name", run_cases.CASES)
def test_two_processes_do_what_one_does(found, name):
    assert found[name] is None, found[name]


def test_bfloat16_computes_in_half_precision_and_keeps_float32(tmp_path):
    exact = train(run_cases.settings(), tmp_path / "float32")
    half = train(run_cases.settings(precision="bfloat16"), tmp_path / "bfloat16")
    assert all(tensor.dtype == torch.float32 for name, tensor in half.weights().items() if "num" not in name)
    assert not torch.equal(half.weights()["4.weight"], exact.weights()["4.weight"])
    assert half.summary["kept"]["100"] > 80
    assert half.settings.precision == "bfloat16"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(ArgumentError, match="device: cuda is not available here; wanted"), joined("cuda"):
        pass
    with pytest.raises(ArgumentError, match="device: wanted cpu, cuda, mps, auto, got tpu"), joined("tpu"):
        pass


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is 2, but RANK is not set; torchrun sets all of them"),
        ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost"}, "but MASTER_PORT is not set"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE: wanted a whole number in the environment, got 'two'"),
    ],
)
def test_a_part_of_what_torchrun_tells_is_refused(environment, told):
    with pytest.raises(ArgumentError, match=told), joined(environment=environment):
        pass
