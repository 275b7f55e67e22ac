"""Frameworks warn of many things that are not ours; our own warnings are errors here as everywhere."""

import pytest

OURS = "error:(sparse_optimizer|load_state_dict|FrankWolfe|DensityScheduler)"


def pytest_collection_modifyitems(items):
    for item in items:
        if "integrations" in item.path.parts:
            item.add_marker(pytest.mark.filterwarnings("ignore", OURS))
