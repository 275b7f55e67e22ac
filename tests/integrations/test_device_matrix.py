"""All sets with all strategies and options on a pretended accelerator: tests/test_device.py has a part of these."""

import pytest

from helpers.device_steps import OPTIONS, SETS, STRATEGIES, assert_replays, both

pytest.importorskip("triton")  # only because it takes long: run where the other tests of devices are

PART = 7


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", SETS)
def test_no_step_waits_and_replays_are_the_eager_steps(name, strategy, options):
    both(SETS[name], steps=6, in_face=strategy, **options)
    assert_replays(SETS[name], warm=2, replays=3, in_face=strategy, **options)
