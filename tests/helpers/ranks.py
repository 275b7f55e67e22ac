"""Tables of cases that run on several processes: they are started once, and say how each case went."""

import importlib
import os
import subprocess
import sys
import tempfile
import traceback
from datetime import timedelta
from pathlib import Path

import torch

TESTS = Path(__file__).parents[1]


def run(module, world):
    """What became of the CASES of a module of ``tests``, by name: None, or the tracebacks of processes that failed."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        said = subprocess.run(
            [sys.executable, __file__, module, str(world), folder],
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        ).stdout
        ended = {path.name: path.read_text() for path in Path(folder).glob("*@*")}
    found = {}
    for name in importlib.import_module(module).CASES:
        ends = [ended.get(f"{name}@{rank}", f"process {rank} did not get there\n{said}") for rank in range(world)]
        found[name] = "\n".join(end for end in ends if end) or None
    return found


def main(module, world, folder):
    # Once for all: imports and kernels take longer to load than most cases take.
    cases = importlib.import_module(module).CASES
    torch.set_num_threads(1)
    load_kernels()
    ranks = []
    for rank in range(world):
        process = os.fork()
        if process == 0:
            code = 1
            try:
                work(cases, world, folder, rank)
                code = 0
            finally:
                sys.stdout.flush()
                os._exit(code)
        ranks.append(process)
    for process in ranks:
        os.waitpid(process, 0)


def load_kernels():
    import inface  # noqa: PLC0415 - not needed where cases are only listed
    from inface.sets import GroupL1Ball, L1Ball, LInfBall, Simplex  # noqa: PLC0415

    for set_ in (L1Ball(1.0), Simplex(1.0), LInfBall(1.0), GroupL1Ball(1.0)):
        for in_face in ("away", "frank-wolfe", "pairwise", "projected"):
            p = torch.nn.Parameter(torch.rand(2, 3, dtype=torch.float64))
            opt = inface.FrankWolfe([{"params": [p], "set": set_}], lr=0.1, in_face=in_face, project=True)
            for _ in range(2):
                p.grad = torch.rand(2, 3, dtype=torch.float64)
                opt.step()


def work(cases, world, folder, rank):
    from torch import distributed as dist  # noqa: PLC0415 - not needed where cases are only listed

    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder) / "store"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=60))
    for name, case in cases.items():
        end = Path(folder) / f"{name}@{rank}"
        try:
            torch.manual_seed(0)
            case()
        except Exception:  # noqa: BLE001 - whatever it is, the test shows it
            end.write_text(traceback.format_exc())
        else:
            end.write_text("")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
