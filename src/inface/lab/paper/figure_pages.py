"""The pages of Figures 1 to 4: our numbers, and the paper's claims beside what we find."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from inface.lab.runs.run import Run
from inface.lab.runs.settings import FRANK_WOLFE, Method

from .cells import Cell
from .published import METHODS

__all__ = ["SAME", "boxes_page", "course_page"]

SAME = "sfw-same"  # the run of SFW with the settings of SFW-IF

Kind = tuple[int, float]  # m and SNR
Medians = dict[Kind, dict[Method, tuple[float, float, float]]]  # of layer 1, layer 2 and the test error


def boxes_page(name: str, told: dict[str, Any], wanted: Sequence[Cell], picture: str | None) -> str:
    """The page of Figure 1 or 2.

    Args:
        name: of the figure.
        told: what its JSON file says.
        wanted: the cells, in the order of the table.
        picture: the file of the box plots, if there are any.
    """
    activation = wanted[0].activation
    counts = [len(cell["trials"]) for cell in told["cells"].values()]
    trials = max(counts, default=0)
    over = f"Medians over {trials} trials" if trials != 1 else "One trial"
    shown = f"; box plots in [{picture}]({picture})" if picture else ""
    lines = [
        f"# {_title(name)}, reproduced: {activation}",
        "",
        f"Written by `{told['command']}`; do not edit. {over}: non-zero edges into a node (of 50; those of at",
        f"least 0.001) and the error on the test data{shown}. Settings were chosen on the first",
        "trial's validation data.",
        "",
        "| m | SNR | method | L, radii | trials | layer 1 | layer 2 | test MSE |",
        "|---|---|---|---|---|---|---|---|",
        *(_row(cell, told["cells"][cell.name]) for cell in wanted),
        "",
        *_beside(_claims(activation, _medians(wanted, told["cells"]))),
        "",
        _cost(told),
    ]
    return "\n".join(lines) + "\n"


def course_page(name: str, told: dict[str, Any], runs: dict[str, Run], pictures: Sequence[str]) -> str:
    """The page of Figures 3 and 4; ``told`` is what its JSON file says."""
    lines = [
        f"# {_title(name).replace('Figure 3', 'Figures 3 and 4')}, reproduced: one instance during training",
        "",
        f"Written by `{told['command']}`; do not edit. Sigmoid networks, m = 10, SNR = 10: {_links(pictures)}.",
        "Each method has the settings chosen for it on validation data. SFW also has a run with the settings of",
        "SFW-IF, because gaps can be compared only for equal learning rates and radii.",
        "",
        "| method | L, radii | layer 1 | layer 2 | exact gap | test MSE |",
        "|---|---|---|---|---|---|",
    ]
    for run in runs.values():
        edges = [f"{layer['edges']:.1f}" for layer in run.summary["layers"].values()]
        numbers = [*edges, f"{run.summary['gap']['exact']:.3g}", f"{run.summary['kept']['100']:.3g}"]
        lines.append(f"| {run.settings.method} | {_settings(run.config)} | {' | '.join(numbers)} |")
    return "\n".join([*lines, "", *_beside(_course_claims(runs), COURSES), "", _cost(told)]) + "\n"


# ---------------------------------------------------------------------- Figures 1 and 2


def _row(cell: Cell, found: dict[str, Any]) -> str:
    begun = f"| {cell.edges} | {cell.snr:g} | {cell.method} |"
    if found["best"] is None:
        return f"{begun} all settings diverged | | | | |"
    trials = [trial for trial in found["trials"] if trial is not None]
    count = f"{len(trials)}" if len(trials) == len(found["trials"]) else f"{len(trials)} of {len(found['trials'])}"
    if not trials:
        return f"{begun} {_settings(found['best'])} | {count}: all diverged | | | |"
    first, second, error = _median(trials)
    return f"{begun} {_settings(found['best'])} | {count} | {first:.1f} | {second:.1f} | {error:.3g} |"


def _medians(wanted: Sequence[Cell], found: dict[str, Any]) -> Medians:
    """The medians of every kind of data, over the trials that did not diverge."""
    medians: Medians = {}
    for cell in wanted:
        trials = [trial for trial in found[cell.name]["trials"] if trial is not None]
        if trials:
            medians.setdefault((cell.edges, cell.snr), {})[cell.method] = _median(trials)
    return medians


def _median(trials: list[dict[str, Any]]) -> tuple[float, float, float]:
    columns = zip(*((*trial["edges"], trial["mse"]) for trial in trials), strict=True)
    first, second, error = (statistics.median(column) for column in columns)
    return first, second, error


def _claims(activation: str, medians: Medians) -> list[tuple[str, str]]:
    """The paper's claims about its figure, and for how many kinds of data they hold here."""

    def so(methods: Sequence[Method], holds: Callable[..., bool], ms: Sequence[int] = (5, 10, 15)) -> str:
        kinds = [own for (m, _), own in medians.items() if m in ms and all(method in own for method in methods)]
        return f"{sum(holds(*(own[method] for method in methods)) for own in kinds)} of {len(kinds)}"

    both = FRANK_WOLFE
    sparser = [so(METHODS, lambda a, b, c, i=i: max(a[i], b[i]) < c[i]) for i in (0, 1)]
    inner = [so(both, lambda a, b, i=i: a[i] < b[i]) for i in (0, 1)]
    sigmoid = activation == "sigmoid"
    more = so(both, lambda a, b: (b[1] - a[1] > b[0] - a[0]) == sigmoid)
    claims = [
        ("SFW and SFW-IF are sparser than SGD", _layers(sparser)),
        (f"SFW-IF is sparser than SFW{'' if sigmoid else ', but not in layer 2'}", _layers(inner)),
        (f"its lead over SFW is larger in layer {2 if sigmoid else 1}", f"in {more}"),
        ("SFW and SFW-IF have about SGD's test error", _ratios(medians)),
    ]
    if sigmoid:
        less = [so((method, "sgd"), lambda a, b: a[2] < b[2], (10, 15)) for method in both]
        claims.append(("for m = 10 and 15 it is lower than SGD's", f"SFW-IF in {less[0]}, SFW in {less[1]}"))
    return claims


def _ratios(medians: Medians) -> str:
    told = []
    for method in FRANK_WOLFE:
        found = [own[method][2] / own["sgd"][2] for own in medians.values() if method in own and "sgd" in own]
        if found:
            told.append(f"{method.upper()} {min(found):.2f} to {max(found):.2f} times SGD's")
    return "; ".join(told) or "not measured"


def _layers(counts: Sequence[str]) -> str:
    return "; ".join(f"layer {index} in {count}" for index, count in enumerate(counts, 1))


# ---------------------------------------------------------------------- Figures 3 and 4

COURSES = ("with the settings chosen for each", "with SFW-IF's settings for both")


def _course_claims(runs: dict[str, Run]) -> list[tuple[str, ...]]:
    """The paper's claims about its instance, and at how many points of the series they hold here."""
    found = [_compared(runs["sfw-if"], runs[other]) for other in ("sfw", SAME)]
    claims = ("SFW-IF is sparser than SFW all the way", "its gap seems to fall faster")
    return list(zip(claims, *found, strict=True))


def _compared(run: Run, other: Run) -> tuple[str, str]:
    """Where a run is sparser than another, and where its gap is smaller."""
    series, others = ({point["step"]: point for point in each.steps} for each in (run, other))
    pairs = [(series[step], others[step]) for step in sorted(set(series) & set(others))]
    layers = list(pairs[0][0]["nonzeros"]) if pairs else []
    sparser = [_part([(a["nonzeros"][layer], b["nonzeros"][layer]) for a, b in pairs]) for layer in layers]
    gaps = [(a["gap"], b["gap"]) for a, b in pairs]
    return _layers(sparser), f"it is the smaller one in {_part([pair for pair in gaps if None not in pair])}"


def _part(pairs: Sequence[tuple[float, float]]) -> str:
    """How often the first is the smaller one."""
    return f"{sum(a < b for a, b in pairs)} of {len(pairs)} points"


# ---------------------------------------------------------------------- both


def _beside(claims: Sequence[tuple[str, ...]], kinds: Sequence[str] = ("here",)) -> list[str]:
    """A table of the paper's claims. Its figures have no numbers, so we count where each claim holds."""
    lines = [
        "The paper's figure has no numbers to compare with. For each of its claims, we count where it holds here:",
        "",
    ]
    lines += [f"| the paper | {' | '.join(kinds)} |", f"|---|{'---|' * len(kinds)}"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in claims)]


def _settings(settings: dict[str, Any]) -> str:
    radii = "" if settings["radius"] is None else f"; {', '.join(f'{radius:g}' for radius in settings['radius'])}"
    return f"{1 / (2 * settings['lr']):g}{radii}"


def _cost(told: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in told["versions"].items())
    spent = f"{told['cpu_seconds'] / 60:.1f} minutes of CPU time, {told['seconds'] / 60:.1f} of wall-clock time"
    return f"It took {spent}, added up over single-threaded processes, with {versions}."


def _links(files: Sequence[str]) -> str:
    return ", ".join(f"[{file}]({file})" for file in files)


def _title(name: str) -> str:
    """
    >>> _title("figure1"), _title("figure3-quick")
    ('Figure 1', 'Figure 3 (quick)')
    """
    number, _, rest = name.removeprefix("figure").partition("-")
    return f"Figure {number}" + (f" ({rest})" if rest else "")
