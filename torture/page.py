"""Write docs/reliability.md from a template and the numbers of a run."""

from __future__ import annotations

import json
import os
import platform
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inface.version import versions

__all__ = ["page", "write"]

TEMPLATE = Path(__file__).with_name("reliability.md")
PARTS = {
    "steps": "steps of the optimizer, checked in float64",
    "training": "training killed while it writes",
    "sweeps": "sweeps killed while they write",
    "files": "damaged and hostile files",
}


def write(folder: Path, counts: Mapping[str, Counter[str]], *, seed: int, minutes: float, left_out: list[str]) -> None:
    """Write the numbers of a run as JSON, and the page."""
    found = versions("python", "torch")
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}"
    told = {
        "format": 1,
        "command": f"python -m torture --minutes {minutes:.0f} --seed {seed} --write",
        "minutes": round(minutes, 1),
        "machine": f"{machine}, Python {found['python']}, torch {found['torch']}",
        "left_out": left_out,
        "parts": {name: dict(sorted(each.items())) for name, each in counts.items()},
    }
    (folder / "reliability.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    (folder / "reliability.md").write_text(page(told), encoding="utf-8")


def page(told: Mapping[str, Any]) -> str:
    """The page of a run.

    >>> parts = {"files": {"cases": 2, "failed": 0, "files": 2, "grid.yaml": 2, "read": 2}}
    >>> text = page({"command": "c", "minutes": 1, "machine": "m", "left_out": [], "parts": parts})
    >>> "| damaged and hostile files | 2 | 0 |" in text
    True
    >>> "- Damaged and hostile files: 2 files, 2 grid.yaml, 2 read." in text
    True
    """
    rows, details = [], []
    for name, each in told["parts"].items():
        rows.append(f"| {PARTS[name]} | {each['cases']:,} | {each['failed']:,} |")
        others = sorted((-number, what) for what, number in each.items() if what not in ("cases", "failed"))
        listed = ", ".join(f"{-number:,} {what}" for number, what in others)
        details.append(f"- {PARTS[name].capitalize()}: {listed}.")
    left = "".join(f"\nLeft out: {reason}.\n" for reason in told["left_out"])
    figures = "\n".join(["| what | cases | failed |", "|---|---|---|", *rows, "", "In detail:", "", *details])
    text = TEMPLATE.read_text(encoding="utf-8")
    for key, value in {
        "FIGURES": figures + "\n" + left,
        "COMMAND": told["command"],
        "MINUTES": f"{told['minutes']:g}",
        "MACHINE": told["machine"],
    }.items():
        text = text.replace(f"{{{key}}}", value)
    return text
