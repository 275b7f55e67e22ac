"""The Triton kernels without a GPU: in Triton's interpreter they do what torch operations do, and NVIDIA's assembler takes them.

Triton decides when it is imported whether it interprets or compiles, so both happen in processes of their own.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

# The tests of the CPU kernels that compare a kernel with torch operations: interpreted, they compare these kernels.
SAME = "both_paths or gaps_and_counts or per_block or any_size or not_contiguous or group_of_tiny or lands_on_it"
# Rounding decides whether a row moves whose gradients are 1e-42: here it does, by 1e-44.
ROUNDED = "test_both_paths_agree_on_zero_rows_vertices_denormals_and_zero_gradients[L1Ball-projected]"
PARTS = {
    "every shape": "every_shape",
    "ties and signed zeros": "ties_and_signed_zeros",
    "all others": f"({SAME} or numbers_and_tensors) and not every_shape and not ties_and_signed_zeros",
}
EVERY = "13"


def in_a_process(*arguments, **environment):
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("part", PARTS)
def test_interpreted_kernels_pass_the_tests_of_the_cpu_kernels(part, pytestconfig):
    tests = "tests/kernels/test_kernels.py"
    # NumPy, in which kernels are interpreted, warns of what a GPU computes in silence: of NaN, where a test gives it one.
    silent = ("-W", "ignore:invalid value:RuntimeWarning", "-W", "ignore:overflow:RuntimeWarning")
    every = "1" if pytestconfig.getoption("--whole") else EVERY  # all of them take half an hour
    options = ("-x", "-k", PARTS[part], *silent, "--deselect", f"{tests}::{ROUNDED}", "--every", every)
    in_a_process("-m", "pytest", *options, tests, TRITON_INTERPRET="1")


def test_interpreted_kernels_pass_what_is_theirs_alone():
    in_a_process("-m", "pytest", "-x", str(HERE / "triton_cases.py"), TRITON_INTERPRET="1")


def test_nobody_imports_the_kernels_before_a_step_needs_them():
    """That torch imports Triton when an optimizer is made is its own business."""
    in_a_process(
        "-c",
        "import sys, torch, inface\n"
        "assert 'triton' not in sys.modules\n"
        "p = torch.nn.Parameter(torch.zeros(2, 3)); p.grad = torch.ones(2, 3)\n"
        "inface.FrankWolfe([{'params': [p], 'set': inface.sets.L1Ball(1.0)}], lr=0.1).step()\n"
        "assert 'inface.kernels.triton_rows' not in sys.modules",
        TRITON_INTERPRET="0",
    )


@pytest.mark.parametrize("capability", [80, 90])
def test_every_kernel_compiles_ahead_of_time_and_spills_no_register(capability, tmp_path):
    """For the A100 and the H100. An assembler that is told nothing of registers spills some of them."""
    lines = in_a_process(
        str(HERE / "triton_compilation.py"), str(capability), TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path)
    )  # fmt: skip
    found = [json.loads(line) for line in lines.splitlines()]
    assert len({line["kernel"] for line in found}) == 9
    assert len(found) == 98
    assert [line for line in found if line["spilled"]] == []
    assert max(line["registers"] for line in found) <= 160
