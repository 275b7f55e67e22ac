"""Sharded models on meshes of two dimensions, on four processes: the table of cases is in mesh_cases.py."""

import pytest

from distributed import mesh_cases
from helpers.ranks import run

pytest.importorskip("torch.distributed.tensor")


@pytest.fixture(scope="module")
def found():
    return run("distributed.mesh_cases", 4)


@pytest.mark.parametrize("name", mesh_cases.CASES)
def test_four_processes_do_what_one_does(found, name):
    assert found[name] is None, found[name]
