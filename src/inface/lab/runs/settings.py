"""The settings of a run: everything that its result depends on, each declared once.

A declaration has the type, the default, the allowed values, the help text, and the methods that read the setting. The
command line, validation, ``config.json``, the grids of sweeps and the command in a report follow from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from typing import Any, Literal, get_args

from inface.lab.errors import ArgumentError, suggestion
from inface.lab.experiments import MeasuredOn
from inface.types import ComputeMode, Free, InFace

from .kinds import Choice, Flag, Kind, Number, Numbers, Options, Part, Text, described

__all__ = [
    "FRANK_WOLFE",
    "METHODS",
    "PRUNED",
    "REWIRED",
    "Distribution",
    "Init",
    "Method",
    "Precision",
    "Schedule",
    "Setting",
    "Settings",
    "declarations",
    "declared",
]

Method = Literal["sfw-if", "sfw", "sgd", "prune", "gradual", "rigl", "set", "proximal", "sparse"]
Schedule = Literal["constant", "cosine"]
Distribution = Literal["erk", "uniform", "global"]
Init = Literal["alive"]
Precision = Literal["float32", "bfloat16"]

# The methods and their display names, in the order of tables.
METHODS: dict[Method, str] = {
    "sgd": "SGD",
    "prune": "pruning",
    "gradual": "gradual pruning",
    "rigl": "RigL",
    "set": "SET",
    "proximal": "proximal SGD",
    "sfw": "SFW",
    "sfw-if": "SFW-IF",
    "sparse": "inface",
}
FRANK_WOLFE: tuple[Method, ...] = ("sfw-if", "sfw")
PRUNED: tuple[Method, ...] = ("prune", "gradual")
REWIRED: tuple[Method, ...] = ("rigl", "set")
DESCENT: tuple[Method, ...] = tuple(method for method in METHODS if method not in FRANK_WOLFE)


@dataclass(frozen=True)
class Setting:
    """The declaration of a setting.

    Attributes:
        name: the name of the field.
        default: the default value.
        kind: the allowed values.
        kind_with: the allowed values with some methods, if they differ.
        help: the help text, one line.
        details: more help, for the documentation.
        default_text: the default in words, if the value does not explain itself.
        default_with: other defaults, by the method or the value of ``free`` that they go with.
        read_by: the methods that read it; other methods ignore it, and it is cleared.
        needed_by: the methods that require it.
        metavar: the placeholder for its value in the command line's help.
        option: the option of the command line, if not made from the name; empty if there is no option.
        switch: the value that the option sets, if the option takes no value.
        in_sweep: whether ``inface sweep`` has the option.
        in_grid: whether a grid may list values of it.
        compared: whether reports group runs by it.
        mentioned: whether reports mention it when all runs share one value that is not the default.
    """

    name: str
    default: Any
    kind: Kind
    help: str
    details: str = ""
    default_text: str = ""
    default_with: Mapping[str, Any] = field(default_factory=dict)
    kind_with: Mapping[Method, Kind] = field(default_factory=dict)
    read_by: tuple[Method, ...] = get_args(Method)
    needed_by: tuple[Method, ...] = ()
    metavar: str | None = None
    option: str | None = None
    switch: Any = None
    in_sweep: bool = True
    in_grid: bool = True
    compared: bool = True
    mentioned: bool = True

    @property
    def flag(self) -> str:
        """The option of the command line.

        >>> declared("batch_size").flag, declared("measured_on").flag
        ('--batch-size', '--validate')
        """
        return f"--{self.name.replace('_', '-')}" if self.option is None else self.option

    @property
    def words(self) -> str:
        """Its name in reports."""
        return "in-face" if self.name == "in_face" else self.name.replace("_", " ")

    def is_read_by(self, method: str) -> bool:
        """Whether a method reads it. A setting that all known methods read counts as read by unknown ones too."""
        return method in self.read_by or len(self.read_by) == len(METHODS)

    def default_of(self, method: str, free: str | None = None) -> Any:
        """The default with a method, and with a value of ``free`` if the method reads it.

        >>> declared("lr").default_of("sgd"), declared("lr").default_of("sparse", "adamw")
        (0.125, 0.003)
        """
        words = (str(free), method) if declared("free").is_read_by(method) else (method,)
        return next((self.default_with[word] for word in words if word in self.default_with), self.default)

    def check(self, value: Any, method: Method) -> None:
        """Raise an error if the setting cannot have this value with this method."""
        needed, kind = method in self.needed_by, self.kind_with.get(method, self.kind)
        if value is None and self.default is None:
            if needed:
                raise ArgumentError(f"{self._said}: the method {method} needs it; wanted {kind.wanted}, got None")
        elif not kind.accepts(value):
            with_ = f" (with the method {method})" if method in self.kind_with else ""
            raise ArgumentError(f"{self._said}: {described(kind, value)}{with_}")

    @property
    def _said(self) -> str:
        return self.name.replace("_", "-")


def _declare(kind: Kind, help: str, *, default: Any = MISSING, **more: Any) -> Any:  # noqa: A002
    """A field of :class:`Settings` with its declaration."""
    metadata = {"kind": kind, "help": help, **more}
    if default == {}:
        return field(default_factory=dict, metadata=metadata)
    return field(metadata=metadata) if default is MISSING else field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Settings:
    """What ``config.json`` holds; two runs with equal settings on one machine give equal weights.

    >>> Settings("digits", lr=-1.0)
    Traceback (most recent call last):
    inface.lab.errors.ArgumentError: lr: wanted a number > 0, got -1.0
    """

    experiment: str = _declare(
        Text("a name"), "A built-in name, or path/to/file.py:name.", in_grid=False, compared=False, option=""
    )
    options: Mapping[str, Any] = _declare(
        Options(),
        "An option of the experiment, such as edges=5; inface experiments lists them.",
        default={},
        metavar="NAME=VALUE",
        option="--option",
        in_grid=False,
        compared=False,
    )
    method: Method = _declare(
        Choice(get_args(Method)),
        "sfw-if: Frank-Wolfe and in-face steps. sfw: Frank-Wolfe. sgd: dense. sparse: to the density of --density. "
        "Baselines: prune, gradual, rigl, set, proximal.",
        default="sfw-if",
        default_text="sfw-if; sparse with --density",
        details="prune prunes by magnitude after four fifths of the training and then fine-tunes; gradual prunes "
        "during training; rigl and set train a sparse network whose edges move; proximal soft-thresholds. All take one "
        "gradient per step: equal epochs, equal gradients.",
        in_grid=False,
        compared=False,
    )
    lr: float = _declare(
        Number(above=0),
        "Learning rate.",
        default=0.125,
        default_text="0.125; sparse 0.1; with --free adamw 0.003",
        default_with={"sparse": 0.1, "adamw": 0.003},
        details="1 / (2 L) with the paper's smoothness constant L; of sparse, what one would give SGD or AdamW.",
    )
    constrained_lr: float | tuple[float, ...] | None = _declare(
        Numbers(Number(above=0), alone=True),
        "Learning rates of the constrained layers, one for all or one each: --constrained-lr 8 2.",
        default=None,
        default_text="--lr",
        read_by=FRANK_WOLFE,
    )
    radius: tuple[float, ...] | None = _declare(
        Numbers(Number(above=0)),
        "Radii of the constrained layers, one for all or one each: --radius 1 10.",
        default=None,
        default_text="the experiment's",
        metavar="R...",
        read_by=FRANK_WOLFE,
    )
    in_face: InFace = _declare(
        Choice(get_args(InFace)),
        "The in-face step of sfw-if: away, pairwise, frank-wolfe, or projected (SGD in the face).",
        default="away",
        read_by=("sfw-if",),
    )
    in_face_steps: int = _declare(
        Number(least=1, whole=True),
        "In-face steps of sfw-if, each with a gradient of its own, after each Frank-Wolfe step.",
        default=1,
        read_by=("sfw-if",),
    )
    init: Init | None = _declare(
        Choice(get_args(Init)),
        "alive: smaller initial weights, positive after activations.",
        default=None,
        default_text="the paper's",
        details="The paper starts with edges of random sign, as large as the radius allows. alive scales them to 0.3 "
        "of the radius and makes them positive behind activations, so that fewer nodes start dead or die early.",
        read_by=FRANK_WOLFE,
    )
    start_edges: int = _declare(
        Number(least=1, whole=True),
        "Edges into each node of the constrained layers at the start, at least.",
        default=1,
        details="With two or more, half of them are of each sign.",
        read_by=FRANK_WOLFE,
    )
    momentum: float = _declare(
        Number(least=0, below=1),
        "Momentum.",
        default=0.0,
        default_text="0; sparse 0.9",
        default_with={"sparse": 0.9},
        details="The Frank-Wolfe methods average the gradients; SGD and the baselines use torch's momentum.",
    )
    free_momentum: float | None = _declare(
        Number(least=0, below=1),
        "Momentum of the free parameters.",
        default=None,
        default_text="--momentum",
        details="Long averages stabilise the constrained layers, but make the free parameters oscillate.",
        read_by=FRANK_WOLFE,
    )
    schedule: Schedule = _declare(
        Choice(get_args(Schedule)),
        "Schedule of the learning rates, constant or cosine.",
        default="constant",
        default_text="constant; sparse cosine",
        default_with={"sparse": "cosine"},
        details="cosine falls to 0 along half a cosine; prune does so twice, until pruning and during fine-tuning.",
    )
    warmup: float = _declare(
        Number(least=0),
        "Epochs in which the learning rates rise linearly to what the schedule says.",
        default=0.0,
    )
    weight_decay: float | None = _declare(
        Number(least=0),
        "Weight decay of sgd, the baselines, and the dense parameters of sparse.",
        default=None,
        default_text="0",
        read_by=DESCENT,
    )
    epochs: int = _declare(
        Number(least=1, whole=True),
        "Passes over the training data.",
        default=25,
        default_text="25, or the experiment's",
        mentioned=False,
    )
    batch_size: int = _declare(
        Number(least=1, whole=True),
        "Samples in a batch.",
        default=250,
        default_text="250, or the experiment's",
        mentioned=False,
    )
    density: float | None = _declare(
        Part(),
        "Part of the constrained layers' edges that the method sparse keeps: 5% or 0.05.",
        default=None,
        details="Of all constrained layers together: which layer keeps more is found during training.",
        read_by=("sparse",),
        needed_by=("sparse",),
    )
    free: Free = _declare(
        Choice(get_args(Free)),
        "How dense parameters move, and all weights of sgd and the baselines: sgd or adamw.",
        default="sgd",
        details="AdamW has torch's betas; --momentum then is that of the sparse layers of sparse alone.",
        read_by=DESCENT,
    )
    keep: float | None = _declare(
        Part(),
        "Part of the edges that prune, gradual, rigl and set keep: 5% or 0.05.",
        default=None,
        read_by=(*PRUNED, *REWIRED),
        needed_by=(*PRUNED, *REWIRED),
    )
    distribution: Distribution | None = _declare(
        Choice(get_args(Distribution)),
        "How the kept edges are distributed over layers: uniform, erk (rigl, set) or global (prune, gradual).",
        default=None,
        default_text="erk for rigl and set, uniform for prune and gradual",
        details="uniform keeps the same part of every layer. erk (Erdos-Renyi-Kernel) makes small layers denser. global "
        "keeps the largest edges of all layers together.",
        read_by=(*PRUNED, *REWIRED),
        kind_with={
            **dict.fromkeys(PRUNED, Choice(("uniform", "global"))),
            **dict.fromkeys(REWIRED, Choice(("erk", "uniform"))),
        },
    )
    shrinkage: float | None = _declare(
        Number(above=0),
        "Weight of the l1 penalty of proximal.",
        default=None,
        read_by=("proximal",),
        needed_by=("proximal",),
    )
    seed: int = _declare(
        Number(least=0, below=2**31, whole=True),
        "Seed of the initialisation and of the order of samples.",
        default=0,
        in_sweep=False,
        compared=False,
    )
    every_gradient: bool = _declare(
        Flag(),
        "With sfw-if, free parameters move with every gradient, not only with the first of an iteration.",
        default=False,
        switch=True,
        read_by=("sfw-if",),
    )
    compute: ComputeMode = _declare(
        Choice(get_args(ComputeMode)),
        "How constrained layers compute: dense, sparse (with their zeros left out) or auto (what is faster).",
        default="dense",
        details="Results are the same to rounding. sparse repeats bit for bit; auto measures on this machine when a run "
        "begins, and a run that is continued keeps what was measured.",
        read_by=(*FRANK_WOLFE, "sparse"),
        in_sweep=False,
        in_grid=False,
        compared=False,
    )
    measured_on: MeasuredOn = _declare(
        Choice(get_args(MeasuredOn)),
        "Measure on held-out training data instead of the test data.",
        default="test",
        option="--validate",
        switch="validation",
        in_sweep=False,
        in_grid=False,
        compared=False,
    )
    threads: int | None = _declare(
        Number(least=1, most=1024, whole=True),
        "Threads of torch.",
        default=None,
        default_text="torch's own",
        in_sweep=False,
        in_grid=False,
        compared=False,
    )
    precision: Precision = _declare(
        Choice(get_args(Precision)),
        "float32, or bfloat16: the network computes in bfloat16 where that is safe; weights stay float32.",
        default="float32",
        details="bfloat16 is torch's autocast. Measurements are made in float32.",
        in_sweep=False,
        in_grid=False,
    )
    source: str | None = _declare(
        Text("a SHA-256"),
        "SHA-256 of the file of your own experiment; a file with another one is not imported.",
        default=None,
        in_grid=False,
        in_sweep=False,
        compared=False,
        option="",
    )

    def __post_init__(self) -> None:
        declared("method").check(self.method, self.method)  # first, because other checks depend on the method
        for setting in declarations():
            setting.check(getattr(self, setting.name), self.method)

    @property
    def frank_wolfe(self) -> bool:
        """Whether the method is a Frank-Wolfe method; the others are SGD and the baselines."""
        return self.method in FRANK_WOLFE

    @property
    def constrained_rates(self) -> tuple[float, ...]:
        """The learning rates of the constrained layers: one for all, or one for each.

        >>> Settings("digits", lr=0.1).constrained_rates
        (0.1,)
        >>> Settings("digits", constrained_lr=(8.0, 2.0)).constrained_rates
        (8.0, 2.0)
        """
        given = self.lr if self.constrained_lr is None else self.constrained_lr
        return given if isinstance(given, tuple) else (given,)

    def read(self) -> Settings:
        """The settings with those that the method ignores at their defaults.

        >>> Settings("digits", method="sgd", radius=(1.0,), momentum=0.9).read().radius
        """
        ignored = [setting for setting in declarations() if not setting.is_read_by(self.method)]
        return replace(self, **{setting.name: setting.default for setting in ignored})

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain data; what came later than others is left out at its default, so that old runs compare.

        >>> Settings("digits", radius=(1.0, 2.0)).to_dict()["radius"]
        [1.0, 2.0]
        """
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        for name in ("source", "start_edges"):
            if plain[name] == declared(name).default:
                del plain[name]
        return {**plain, "options": dict(self.options)}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Settings:
        """Settings from plain data; an unknown name is an error.

        >>> Settings.from_dict({"experiment": "digits", "epoch": 3})
        Traceback (most recent call last):
        inface.lab.errors.ArgumentError: there is no setting epoch; did you mean epochs?
        """
        known = [setting.name for setting in declarations()]
        for name in data:
            if name not in known:
                raise ArgumentError(f"there is no setting {name}{suggestion(name, known)}")
        if "experiment" not in data:
            raise ArgumentError("the setting experiment is missing")
        return Settings(**{name: _plain(declared(name).kind, value) for name, value in data.items()})


def declarations() -> Iterator[Setting]:
    """The declarations of all settings, in the order of ``config.json``.

    >>> [setting.name for setting in declarations() if setting.needed_by]
    ['density', 'keep', 'shrinkage']
    """
    yield from _DECLARED.values()


def declared(name: str) -> Setting:
    """The declaration of one setting.

    >>> declared("free_momentum").read_by, declared("free_momentum").kind.wanted
    (('sfw-if', 'sfw'), 'a number in [0, 1)')
    """
    return _DECLARED[name]


def _plain(kind: Kind, value: Any) -> Any:
    return kind.plain(value) if isinstance(kind, Numbers) else value


_DECLARED = {item.name: Setting(item.name, item.default, **item.metadata) for item in fields(Settings)}

Settings.__doc__ = f"{Settings.__doc__}\n    Attributes:\n" + "".join(
    f"        {' '.join(filter(None, (f'{setting.name}: {setting.help}', setting.details)))}\n"
    for setting in declarations()
)
