"""Sharded parameters move as ordinary ones do: the table of cases is in sharded_cases.py."""

import pytest

from distributed import sharded_cases
from helpers.ranks import run

pytest.importorskip("torch.distributed.tensor")


@pytest.fixture(scope="module")
def found():
    return run("distributed.sharded_cases", 2)


@pytest.mark.parametrize("name", sharded_cases.CASES)
def test_two_processes_do_what_one_does(found, name):
    assert found[name] is None, found[name]
