"""The allocator keeps what is freed: arrays that come and go take no new pages from the system."""

from __future__ import annotations

import subprocess
import sys

import pytest

COUNT = """
import resource
import torch
from inface.lab.memory import keep_freed_memory

assert keep_freed_memory()
def use():
    del [torch.ones(3_000_000) for _ in range(10)][:]
for _ in range(5):
    use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_large_arrays_take_no_new_pages_once_freed_memory_is_kept():
    # Without it, about 470,000; or none, where something small lies above the arrays and the allocator cannot give them back.
    told = subprocess.run([sys.executable, "-c", COUNT], check=True, capture_output=True, text=True).stdout
    assert int(told) < 1000
