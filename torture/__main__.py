"""Random tests: optimizer steps, kills, damaged files.

``python -m torture`` runs for an hour; ``--write`` writes docs/reliability.{json,md}. ``python -m torture PART CASE``
repeats one case.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

__all__ = ["main"]

Case = Callable[[int], Counter[str]]

DOCS = Path(__file__).parents[1] / "docs"
SHARES = {"steps": 0.3, "training": 0.25, "sweeps": 0.25, "files": 0.2}  # parts of the time


def parts(stack: ExitStack) -> tuple[dict[str, Case], list[str]]:
    """The parts by name, and what is left out, with the reason."""
    # Imported here: the fork server imports this module, and these with it, once for all processes.
    from . import files, kills, postgres, steps  # noqa: PLC0415

    why = postgres.missing()
    url = None if why else stack.enter_context(postgres.server())
    found: dict[str, Case] = {
        "steps": steps.case,
        "training": kills.training,
        "sweeps": partial(kills.sweeps, url=url),
        "files": files.case,
    }
    return found, [f"sweeps on PostgreSQL: {why}"] if why else []


def main(arguments: list[str] | None = None) -> int:
    """Run; the exit code is 1 if a case failed."""
    parser = argparse.ArgumentParser(prog="python -m torture", description=__doc__)
    parser.add_argument("part", nargs="?", choices=list(SHARES), help="only this part")
    parser.add_argument("case", nargs="?", type=int, help="repeat only this case of the part")
    parser.add_argument("--minutes", type=float, default=60.0, help="how long to run (default: 60)")
    parser.add_argument("--seed", type=int, help="seed of the first cases (default: random, and printed)")
    parser.add_argument("--write", action="store_true", help="write docs/reliability.{json,md}")
    given = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(2**31) if given.seed is None else given.seed
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the database server ends with this process
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)
    with ExitStack() as stack:
        found, left_out = parts(stack)
        for reason in left_out:
            print(f"left out: {reason}")
        if given.case is not None:
            return _attempt(given.part, found[given.part], given.case, Counter())
        print(f"seed {seed}, {given.minutes:g} minutes")
        shares = {given.part: 1.0} if given.part else SHARES
        begun = time.monotonic()
        counts = _run({name: (found[name], share) for name, share in shares.items()}, seed, 60 * given.minutes)
        minutes = (time.monotonic() - begun) / 60
    failed = sum(each["failed"] for each in counts.values())
    for name, each in counts.items():
        print(f"{name}: {each['cases']} cases, {each['failed']} failed")
    if given.write:
        from .page import write  # noqa: PLC0415

        write(DOCS, counts, seed=seed, minutes=minutes, left_out=left_out)
    return 1 if failed else 0


def _run(shares: dict[str, tuple[Case, float]], seed: int, seconds: float) -> dict[str, Counter[str]]:
    """Run cases of all parts; the next case is of the part that is furthest below its share of the time."""
    counts = {name: Counter({"cases": 0, "failed": 0}) for name in shares}
    spent = dict.fromkeys(shares, 0.0)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        name = min(shares, key=lambda part: spent[part] / shares[part][1])
        begun = time.monotonic()
        counts[name]["cases"] += 1
        number = seed * 1_000_003 + counts[name]["cases"]
        counts[name]["failed"] += _attempt(name, shares[name][0], number, counts[name])
        spent[name] += time.monotonic() - begun
    return counts


def _attempt(name: str, case: Case, number: int, counts: Counter[str]) -> int:
    """Run a case; if it fails, print how to repeat it. Return 1 if it failed, else 0."""
    try:
        counts.update(case(number))
    except Exception as error:  # noqa: BLE001 - any error is a failure
        told = str(error) if isinstance(error, AssertionError) else traceback.format_exc()
        sys.stderr.write(
            f"{name}: case {number} failed: {told}\n  again: .venv/bin/python -m torture {name} {number}\n"
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
