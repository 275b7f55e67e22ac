"""One thread, quiet Hypothesis, and both paths of the optimizer for the modules that ask for them."""

from collections import Counter

import pytest
import torch
from hypothesis import HealthCheck, settings

from inface import kernels

# Two OpenMP threads on a busy two-core machine can be hundreds of times slower than one.
torch.set_num_threads(1)
settings.register_profile(
    "inface",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.function_scoped_fixture],
)
settings.load_profile("inface")


def pytest_addoption(parser):
    parser.addoption("--every", type=int, default=1, metavar="N", help="run one of N tests")
    parser.addoption("--whole", action="store_true", help="run all cases of matrices of which a part is run otherwise")


def pytest_collection_modifyitems(config, items):
    """A module with ``PART = n`` runs one of n of its tests, unless all are asked for."""
    items[:] = items[:: config.getoption("--every")]
    if not config.getoption("--whole"):
        seen = Counter()
        for item in list(items):
            module = getattr(item, "module", None)
            if seen[module] % getattr(module, "PART", 1):
                items.remove(item)
            seen[module] += 1


def pytest_generate_tests(metafunc):
    """A module with ``BOTH_PATHS = True`` runs twice: with the fused kernels, and with torch operations alone."""
    if getattr(metafunc.module, "BOTH_PATHS", False):
        metafunc.fixturenames.append("path")
        metafunc.parametrize("path", ["fused", "torch"], indirect=True)


@pytest.fixture
def path(request):
    if request.param == "fused":
        yield
    else:
        with kernels.disabled():
            yield
