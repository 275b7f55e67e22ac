"""One thread, quiet Hypothesis, and both paths of the optimizer for the modules that ask for them."""

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
