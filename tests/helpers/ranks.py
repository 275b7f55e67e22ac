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
    cases = importlib.import_module(module).CASES  # once for all: imports take longer than the cases
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
