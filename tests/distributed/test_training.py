"""Sharded models train as ordinary ones do, on two processes: the table of cases is in training_cases.py."""

import pytest

from distributed import training_cases
from helpers.ranks import run

pytest.importorskip("torch.distributed.tensor")


@pytest.fixture(scope="module")
def found():
    return run("distributed.training_cases", 2)


@pytest.mark.parametrize("name", training_cases.CASES)
def test_two_processes_do_what_one_does(found, name):
    assert found[name] is None, found[name]
