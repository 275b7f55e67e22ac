"""Compile every Triton kernel ahead of time, for GPUs that are not here: ``python triton_compilation.py 80 90``.

Prints one line of JSON for each variant: what ptxas says of its registers, and how many bytes it spills.
"""

import itertools
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from triton import compile as compile_kernel
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from inface.kernels import triton_groups, triton_rows
from inface.kernels.device import LAUNCH, PIECE

YES_NO = (False, True)
VARIANTS = {
    "one_hot_kernel": {"SIMPLEX": YES_NO, "PHASE": (0, 1, 2, 3), "MOMENTUM": YES_NO},
    "box_kernel": {"PHASE": (0, 1, 2, 3), "MOMENTUM": YES_NO},
    "projected_kernel": {"SIMPLEX": YES_NO, "TAXICAB": YES_NO, "MOMENTUM": YES_NO},
    "box_projected_kernel": {"TAXICAB": YES_NO, "MOMENTUM": YES_NO},
    "tops_kernel": {"SUPPORT": YES_NO},
    "products_kernel": {"SUPPORT": YES_NO, "MOMENTUM": YES_NO},
    "decide_kernel": {"PHASE": (0, 1, 2, 3)},
    "project_kernel": {},
    "apply_kernel": {"FORGETS": YES_NO},
}
ENTRIES = ("at_x", "at_g", "at_m", "at_h")
WHOLE = {"at_hit": "*i8", "at_flag": "*i32", "width": "i32", "groups": "i32"}


def variants(dtype):
    """Kernels with the constants that a launch gives them."""
    common = {"RADII": 1, "RATES": 1, "LRS": 1, "EPS": torch.finfo(dtype).eps, "PIECE": PIECE}
    for name, choices in VARIANTS.items():
        kernel = getattr(triton_rows, name, None) or getattr(triton_groups, name)
        for values in itertools.product(*choices.values()):
            wanted = {**common, **dict(zip(choices, values, strict=True))}
            yield name, kernel, {key: value for key, value in wanted.items() if key in kernel.arg_names}


def signature(kernel, constants, dtype):
    entry = {torch.float32: "*fp32", torch.float64: "*fp64"}[dtype]
    found = {}
    for name in kernel.arg_names:
        kind = entry if name in ENTRIES else WHOLE.get(name, "*fp64")
        found[name] = "constexpr" if name in constants else kind
    return found


def compiled(kernel, constants, dtype, capability):
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature(kernel, constants, dtype), places)
    return compile_kernel(source, target=GPUTarget("cuda", capability, 32), options=dict(LAUNCH))


def resources(ptx, folder):
    """Registers of a thread and bytes that it spills, from the assembler itself."""
    file = Path(folder) / "kernel.ptx"
    file.write_text(ptx)
    architecture = re.search(r"\.target (sm_\w+)", ptx)[1]
    done = subprocess.run(
        [knobs.nvidia.ptxas.path, "-v", f"--gpu-name={architecture}", str(file), "-o", str(file.with_suffix(".cubin"))],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    spills = sum(int(n) for n in re.findall(r"(\d+) bytes spill (?:stores|loads)", done.stderr))
    return {"registers": int(re.search(r"Used (\d+) registers", done.stderr)[1]), "spilled": spills}


def main():
    dtypes = (torch.float32, torch.float64)
    with tempfile.TemporaryDirectory() as folder:
        for capability, dtype in itertools.product(map(int, sys.argv[1:]), dtypes):
            for name, kernel, constants in variants(dtype):
                found = compiled(kernel, constants, dtype, capability)
                line = {"kernel": name, "capability": capability, "dtype": str(dtype), "constants": constants}
                sys.stdout.write(json.dumps(line | resources(found.asm["ptx"], folder)) + "\n")


if __name__ == "__main__":
    main()
