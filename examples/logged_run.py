"""The loggers of ``inface train --log``, from Python: a run of the laboratory, with its numbers in TensorBoard as well.

python examples/logged_run.py
tensorboard --logdir runs
"""

from __future__ import annotations

from pathlib import Path

from inface.integrations.loggers import recording
from inface.lab import train
from inface.lab.runs.setup import settings_for


def main(names: tuple[str, ...] = ("tensorboard",), out: Path = Path("runs/logged")) -> Path:
    settings = settings_for("digits", density=0.05, epochs=5, threads=1)
    with recording(names, out, settings.to_dict()) as (watch, finish):
        run = train(settings, out, overwrite=True, watch=watch)
        finish(run.summary)
    print(f"accuracy {run.summary['kept']['100']:.1f} %, logged to {', '.join(names)} in {out}")
    return out


if __name__ == "__main__":
    main()
