"""Kill training and sweeps while they write, and resume them: nothing is lost, doubled or left over."""

from __future__ import annotations

import json
import random
import tempfile
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from inface.cli.app import run as inface_command
from inface.lab import Run, Settings
from inface.lab.runs.setup import settings_for
from inface.lab.sweeps import Grid, Plan, trials
from inface.lab.sweeps.study import open_study
from inface.lab.sweeps.trials import counted, key_in
from inface.lab.sweeps.worker import finish, tune, winner

from .processes import Blow, ended

__all__ = ["sweeps", "training"]

KEPT = {"config.json", "metrics.jsonl", "model.safetensors", "summary.json", ".lock"}
METHODS: dict[str, list[str]] = {
    "sfw": ["--radius", "2", "5"],
    "sfw-if": ["--radius", "2", "5", "--in-face", "away"],
    "sfw-if pairwise": ["--radius", "2", "5", "--in-face", "pairwise", "--momentum", "0.9"],
    "sgd": ["--lr", "0.05", "--momentum", "0.9"],
    "prune": ["--lr", "0.05", "--keep", "0.1"],
    "gradual": ["--lr", "0.05", "--keep", "0.1", "--distribution", "global"],
    "rigl": ["--lr", "0.05", "--momentum", "0.9", "--keep", "0.1"],
    "set": ["--lr", "0.05", "--momentum", "0.9", "--keep", "0.1"],
    "proximal": ["--lr", "0.05", "--shrinkage", "0.001"],
    "sparse": ["--density", "10%"],
    "sparse adamw": ["--density", "10%", "--free", "adamw"],
}
STORAGES = ["journal", "sqlite", "postgresql"]


def training(seed: int) -> Counter[str]:
    """A run that is killed up to five times and resumed equals an uninterrupted run, byte for byte."""
    draw = random.Random(seed)  # noqa: S311 - no secret
    name = draw.choice(list(METHODS))
    words = [
        *(
            "train",
            "digits",
            "--method",
            name.split()[0],
            *METHODS[name],
            "--threads",
            "1",
            "--checkpoint-seconds",
            "0",
        ),
        *("--epochs", str(draw.choice([2, 4])), "--batch-size", str(draw.choice([100, 200]))),
        *("--schedule", draw.choice(["constant", "cosine"])),
    ]
    counts: Counter[str] = Counter({"runs": 1, f"method {name.split()[0]}": 1})
    weights, records, summary = _whole(tuple(words))
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        place = Path(folder, "run")
        command = [*words, "--out", str(place), "--resume"]
        for _ in range(draw.randint(1, 5)):
            blow = _drawn(draw, folder)
            result = ended(inface_command, command, blow=blow)
            assert result.killed or result.code == 0, f"{blow}: code {result.code}: {result.said}"
            counts[f"killed at a {_moment(blow)}" if result.killed else "not reached"] += 1
            if not result.killed:
                break
        result = ended(inface_command, command)
        assert result.code == 0, f"--resume: code {result.code}: {result.said}"
        assert (place / "model.safetensors").read_bytes() == weights, "the weights are those of an uninterrupted run"
        assert _timeless(Run(place).records) == records, "the records are those of an uninterrupted run"
        assert _timeless([Run(place).summary]) == summary, "the summary is that of an uninterrupted run"
        stray = {file.name for file in place.iterdir()} - KEPT
        assert not stray, f"files are left by killed writes: {sorted(stray)}"
    return counts


@cache
def _whole(words: tuple[str, ...]) -> tuple[bytes, list[dict[str, Any]], list[dict[str, Any]]]:
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        place = Path(folder, "run")
        result = ended(inface_command, [*words, "--out", str(place)])
        assert result.code == 0, f"code {result.code}: {result.said}"
        return (
            (place / "model.safetensors").read_bytes(),
            _timeless(Run(place).records),
            _timeless([Run(place).summary]),
        )


def _drawn(draw: random.Random, folder: str) -> Blow:
    how = draw.choice(["write", "write", "gradient", "size"])
    if how == "write":
        return Blow(folder, write=draw.choice([draw.randint(1, 15), draw.randint(1, 60)]))
    return (
        Blow(folder, gradient=draw.randint(1, 15)) if how == "gradient" else Blow(folder, size=draw.randint(1, 20_000))
    )


def _moment(blow: Blow) -> str:
    return "write" if blow.write else "gradient" if blow.gradient else "byte of a file"


def _timeless(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


# ---------------------------------------------------------------------- sweeps


def sweeps(seed: int, url: str | None = None) -> Counter[str]:
    """A sweep whose workers are killed tries every setting, counts each once, and has the same results.

    Args:
        seed: the seed of the case.
        url: the URL of a PostgreSQL database; without one, studies are in journals and in SQLite.
    """
    draw = random.Random(seed)  # noqa: S311 - no secret
    storages = STORAGES if url else STORAGES[:-1]
    storage = storages[seed % len(storages)]  # in turn, so that a short run tries all of them
    manner = draw.choice(["grid", "grid with halving", "search", "search with halving"])
    counts: Counter[str] = Counter({"sweeps": 1, storage: 1, manner: 1})
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        places = {"journal": folder, "sqlite": f"sqlite:///{folder}/study.db", "postgresql": url}
        plan = replace(_plan(manner), out=folder, storage=str(places[storage]), study=f"case {seed} {folder}")
        for _ in range(draw.randint(1, 4)):
            blow = Blow(folder, write=draw.choice([draw.randint(1, 60), draw.randint(1, 600)]))
            result = ended(_sweep, plan, blow=blow)
            assert result.killed or result.code == 0, f"{blow}: code {result.code}: {result.said}"
            counts["workers killed" if result.killed else "not reached"] += 1
        # One worker finishes the sweep; another one, which starts after the end, changes nothing.
        for _ in range(2):
            result = ended(_sweep, plan)
            assert result.code == 0, f"the last worker: code {result.code}: {result.said}"
        found = _found(plan)
        values = _found_whole(manner)
        keys = list(values) if plan.grid else list(found)
        assert sorted(found) == sorted(keys), f"every setting is counted once: {sorted(found)}, wanted {sorted(keys)}"
        assert len(found) == len(keys) == 4, f"four settings are counted, got {len(found)}"
        if plan.grid:  # a search samples by trial number, and a killed trial uses one up
            for key, value in found.items():
                whole = values[key]
                same = value == whole or (plan.pruning and None in (value, whole))
                assert same, f"the setting {key} has the value {value}, uninterrupted {whole}"
        counts["settings"] += len(found)
    return counts


def _plan(manner: str) -> Plan:
    base: Settings = settings_for(experiment="digits", method="sfw", epochs=3, batch_size=400, threads=1)
    grid = Grid({"lr": [0.05, 0.5], "radius": [1.0, 5.0]}) if "grid" in manner else None
    return Plan(base, "", "", "", grid, search=0 if grid else 4, pruning="halving" in manner, first_rung=1, seeds=1)


def _sweep(plan: Plan) -> int:
    """A sweep in one process, with a short timeout for workers that did not register."""
    trials.DEAD, trials.PATIENCE = 10.0, 0.1
    tune(plan)
    finish(plan, winner(plan, _study(plan)))
    return 0


def _study(plan: Plan) -> Any:
    return open_study(plan.tuning, plan.direction, plan.identity())


def _found(plan: Plan) -> dict[str, float | None]:
    """The value of every setting, None if it was stopped early; also one final run of the winner."""
    study = _study(plan)
    done = [trial for trial in study.get_trials(deepcopy=False) if trial.state.name in ("COMPLETE", "PRUNED")]
    keys = [key_in(trial) for trial in done]
    assert len(set(keys)) == len(keys), f"a setting came to its end twice: {sorted(keys)}"
    assert [trial.number for trial in counted(study)] == [trial.number for trial in done]
    best = winner(plan, study)
    summary = json.loads(Path(plan.out, "final", best.key, "0", "summary.json").read_text(encoding="utf-8"))
    assert summary["epochs"] == plan.base.epochs
    # Optuna gives a pruned trial its last value, which depends on the order of the workers.
    return {key_in(trial): trial.value if trial.state.name == "COMPLETE" else None for trial in done}


@cache
def _found_whole(manner: str) -> dict[str, float | None]:
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        plan = replace(_plan(manner), out=folder, storage=folder, study="whole")
        result = ended(_sweep, plan)
        assert result.code == 0, f"code {result.code}: {result.said}"
        return _found(plan)
