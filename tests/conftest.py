"""One thread: two OpenMP threads on a busy two-core machine can be hundreds of times slower than one."""

import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
settings.register_profile(
    "inface", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
settings.load_profile("inface")
