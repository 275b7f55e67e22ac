"""The pages of Figures 1 to 4: our numbers, and the paper's claims beside what we find."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from inface.lab.runs.run import Run
from inface.lab.runs.settings import FRANK_WOLFE, Method

from .cells import Cell
from .pairs import Pairs, Trial, paired, together
from .published import METHODS

__all__ = ["SAME", "boxes_page", "course_page"]

SAME = "sfw-same"  # the run of SFW with the settings of SFW-IF

Kind = tuple[int, float]  # m and SNR
Value = Callable[[dict[str, Any]], float]
Trials = dict[Kind, dict[Method, list[Trial]]]

BY_TRIAL = ("here, in trials (in brackets: in most trials of so many cells)",)
PAIRS: tuple[tuple[Method, Method], ...] = (("sfw-if", "sgd"), ("sfw", "sgd"), ("sfw-if", "sfw"))
SIGNIFICANT = 0.05


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
    trials_of = _trials(wanted, told["cells"])
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
        *_paired_tables(trials_of),
        "",
        *_beside(_claims(activation, trials_of), BY_TRIAL),
        "",
        _cost(told),
    ]
    return "\n".join(lines) + "\n"


def course_page(name: str, told: dict[str, Any], runs: Mapping[str, Run], pictures: Sequence[str]) -> str:
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


def _trials(wanted: Sequence[Cell], found: dict[str, Any]) -> Trials:
    """The trials of every kind of data, by method."""
    trials: Trials = {}
    for cell in wanted:
        trials.setdefault((cell.edges, cell.snr), {})[cell.method] = found[cell.name]["trials"]
    return trials


def _median(trials: list[dict[str, Any]]) -> tuple[float, float, float]:
    columns = zip(*((*trial["edges"], trial["mse"]) for trial in trials), strict=True)
    first, second, error = (statistics.median(column) for column in columns)
    return first, second, error


def _paired_tables(trials: Trials) -> list[str]:
    """Two tables of comparisons trial by trial: of the test error, and of the non-zero edges of SFW-IF and SFW."""
    errors = [(f"{_upper(a)} below {_upper(b)}", a, b, _error) for a, b in PAIRS]
    ours, plain = FRANK_WOLFE
    edges = [(f"layer {layer + 1}", ours, plain, _edges(layer)) for layer in (0, 1)]
    return [
        "All methods train on the same trials, so we compare them trial by trial, where both finished. An entry has the",
        "number of trials in which the first method is lower, the median over trials of the ratio of the two, and the",
        "p-value of the two-sided sign test, not corrected for the number of comparisons. Test error:",
        "",
        *_paired_table(trials, errors),
        "",
        "Non-zero edges, SFW-IF below SFW:",
        "",
        *_paired_table(trials, edges),
    ]


def _paired_table(trials: Trials, columns: Sequence[tuple[str, Method, Method, Value]]) -> list[str]:
    lines = [f"| m | SNR | {' | '.join(title for title, *_ in columns)} |", f"|---|---|{'---|' * len(columns)}"]
    for (m, snr), own in trials.items():
        entries = [_entry(paired(own.get(a, []), own.get(b, []), value)) for _, a, b, value in columns]
        lines.append(f"| {m} | {snr:g} | {' | '.join(entries)} |")
    return lines


def _entry(pairs: Pairs | None) -> str:
    """
    >>> _entry(Pairs(lower=1, higher=4, count=5, ratio=1.25))
    '1 of 5, ratio 1.25, p = 0.38'
    """
    if pairs is None:
        return "-"
    p = f"= {pairs.p:.2g}" if pairs.p >= 0.001 else "< 0.001"
    return f"{pairs.lower} of {pairs.count}, ratio {pairs.ratio:.2f}, p {p}"


def _claims(activation: str, trials: Trials) -> list[tuple[str, str]]:
    """The paper's claims about its figure, and in how many trials they hold here."""

    def so(methods: Sequence[Method], holds: Callable[..., bool]) -> str:
        cells = [together(*(own.get(method, []) for method in methods)) for own in trials.values()]
        counts = [(sum(holds(*trial) for trial in cell), len(cell)) for cell in cells if cell]
        most = sum(2 * held > count for held, count in counts)
        return f"{sum(held for held, _ in counts)} of {sum(count for _, count in counts)} ({most} of {len(counts)})"

    both = FRANK_WOLFE
    layers = [_edges(layer) for layer in (0, 1)]
    sparser = [so(METHODS, lambda a, b, c, n=n: max(n(a), n(b)) < n(c)) for n in layers]
    inner = [so(both, lambda a, b, n=n: n(a) < n(b)) for n in layers]
    sigmoid = activation == "sigmoid"
    larger, smaller = reversed(layers) if sigmoid else layers
    more = so(both, lambda a, b: larger(b) - larger(a) > smaller(b) - smaller(a))
    claims = [
        ("SFW and SFW-IF are sparser than SGD", _layers(sparser)),
        (f"SFW-IF is sparser than SFW{'' if sigmoid else ', but not in layer 2'}", _layers(inner)),
        (f"its lead over SFW is larger in layer {2 if sigmoid else 1}", f"in {more}"),
        ("SFW and SFW-IF have about SGD's test error", _ratios(trials)),
    ]
    if sigmoid:
        less = "; ".join(_below_sgd(trials, method) for method in both)
        claims.append(("for m = 10 and 15 it is lower than SGD's", less))
    return claims


def _ratios(trials: Trials) -> str:
    """The range over the cells of the median ratio to SGD's error in the same trial."""
    told = []
    for method in FRANK_WOLFE:
        pairs = [paired(own.get(method, []), own.get("sgd", []), _error) for own in trials.values()]
        found = [each.ratio for each in pairs if each is not None]
        if found:
            told.append(f"{_upper(method)} {min(found):.2f} to {max(found):.2f} times SGD's")
    return f"median ratios of the cells: {'; '.join(told)}" if told else "not measured"


def _below_sgd(trials: Trials, method: Method) -> str:
    """Where the error is lower than SGD's for m = 10 and 15.

    The p-values stay those of single cells: one true network may serve several cells, so trials cannot be pooled.
    """
    found = [paired(own.get(method, []), own.get("sgd", []), _error) for (m, _), own in trials.items() if m != 5]
    cells = [pairs for pairs in found if pairs is not None]
    most = sum(2 * pairs.lower > pairs.count for pairs in cells)
    clear = [pairs for pairs in cells if pairs.p < SIGNIFICANT]
    lower = sum(pairs.lower > pairs.higher for pairs in clear)
    return (
        f"{_upper(method)} in {sum(pairs.lower for pairs in cells)} of {sum(pairs.count for pairs in cells)} "
        f"({most} of {len(cells)}); with p < {SIGNIFICANT:g} lower in {lower} cells, higher in {len(clear) - lower}"
    )


def _error(trial: dict[str, Any]) -> float:
    return float(trial["mse"])


def _edges(layer: int) -> Value:
    return lambda trial: float(trial["edges"][layer])


def _upper(method: Method) -> str:
    return method.upper()


def _layers(counts: Sequence[str]) -> str:
    return "; ".join(f"layer {index} in {count}" for index, count in enumerate(counts, 1))


# ---------------------------------------------------------------------- Figures 3 and 4

COURSES = ("with the settings chosen for each", "with SFW-IF's settings for both")


def _course_claims(runs: Mapping[str, Run]) -> list[tuple[str, ...]]:
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
