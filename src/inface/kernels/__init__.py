"""The fused CPU kernels: which parameters they take, and one call for all layers of a set.

A kernel does a whole step on the rows of its layers in place: momentum, vertices, step sizes, the update, the repair of
rounding, the gaps and the counts. The sets' own torch operations are the reference; both agree to rounding.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import importlib
import itertools
import math
import os
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import Parameter

from ..gap import step_rate
from ..sets import Set, blocks
from ..sets.base import Decision
from .lists import Entries, Lists

__all__ = [
    "PLAIN",
    "Entries",
    "Lists",
    "Memory",
    "Options",
    "Table",
    "addressable",
    "alike",
    "available",
    "disabled",
    "enabled",
    "fits",
    "knows",
    "thread_pool",
]

# Below this many entries a second thread costs more than it gives: torch's own threads are still spinning on its core.
LARGE = 1 << 21

# A subclass may say that it is contiguous CPU memory and have none (a sharded tensor does).
PLAIN = (Tensor, Parameter)

# Never the default device: kernels write to the memory of a CPU.
FLOAT64: Any = {"dtype": torch.float64, "device": "cpu"}

# Columns of the table of layers, whose module imports Numba: see :mod:`inface.kernels.loops`.
AT, ENDS, VALUES, PRICES, NEW = 9, 10, 11, 12, 13

_enabled = True
_warned = False


def fits(set_: Set, x: Tensor) -> bool:
    """Whether the kernels can step on this parameter: contiguous blocks in CPU memory, of a set that they know.

    >>> import torch
    >>> from inface.sets import L1Ball, NuclearBall
    >>> weight = torch.zeros(3, 4)
    >>> fits(L1Ball(1.0), weight), fits(L1Ball(1.0), weight.T), fits(NuclearBall(1.0), weight)
    (True, False, False)
    """
    return _enabled and knows(set_) and (set_.per != "input" or x.ndim < 2) and addressable(x) and x.is_contiguous()


def knows(set_: Set) -> bool:
    """Whether there are kernels for such a set.

    >>> from inface.sets import GroupL1Ball, Simplex
    >>> knows(Simplex(1.0)), knows(GroupL1Ball(1.0)), knows(GroupL1Ball(1.0, groups="input"))
    (True, True, False)
    """
    return set_.kernel is not None


def addressable(x: Tensor) -> bool:
    """Whether a kernel can read the numbers of a tensor where they lie."""
    return type(x) in PLAIN and x.is_cpu and x.dtype in (torch.float32, torch.float64) and not x.is_neg()


def alike(x: Tensor, g: Tensor, m: Tensor | None) -> bool:
    """Whether gradient and momentum lie in memory as the kernels expect them to beside ``x``: they do not check again.

    >>> import torch
    >>> alike(torch.zeros(3, 4), torch.zeros(3, 4), None), alike(torch.zeros(3, 4), torch.zeros(2, 4), None)
    (True, False)
    """
    shape, dtype = x.shape, x.dtype
    return (
        addressable(g)
        and g.dtype is dtype
        and g.shape == shape
        and (m is None or (addressable(m) and m.dtype is dtype and m.shape == shape and m.is_contiguous()))
    )


def enabled() -> bool:
    """Whether kernels may be used at all: see :func:`disabled`."""
    return _enabled


@contextlib.contextmanager
def disabled() -> Iterator[None]:
    """Within it, every step uses torch operations.

    >>> import torch
    >>> from inface.sets import L1Ball
    >>> with disabled():
    ...     fits(L1Ball(1.0), torch.zeros(3, 4))
    False
    """
    global _enabled  # noqa: PLW0603 - a switch for the whole process is what this is
    before, _enabled = _enabled, False
    try:
        yield
    finally:
        _enabled = before


def available(set_: Set, dtype: torch.dtype, strategy: str | None = None) -> Callable[..., None] | None:
    """The kernel for a set, a dtype and an in-face strategy, compiled or from the disk cache; None, after one warning, if there is none.

    >>> import torch
    >>> from inface.sets import L1Ball
    >>> available(L1Ball(1.0), torch.float32) is not None
    True
    """
    if strategy == "projected":
        return _kernel("projected", dtype)
    return _kernel("groups" if set_.kernel == "groups" else "rows", dtype)


@functools.cache
def _kernel(name: str, dtype: torch.dtype) -> Callable[..., None] | None:
    try:
        # Numba is imported by the first step, not by the library.
        module = importlib.import_module(f".{name}", __package__)
        kernel: Any = getattr(module, f"{name}_{str(dtype).split('.')[1]}")
        try:
            _compile(kernel)
        except Exception:  # noqa: BLE001 - a cache that is damaged, or a disk that is full: do without
            from numba.core.caching import NullCache  # noqa: PLC0415

            kernel._cache = NullCache()  # noqa: SLF001 - Numba has no other way to say it
            _compile(kernel)
    except Exception as error:  # noqa: BLE001 - whatever is wrong with a compiler, there is another way
        _warn_once(f"{type(error).__name__}: {error}")
        return None
    return cast("Callable[..., None]", kernel)


def _compile(kernel: Callable[..., None]) -> None:
    """A call on no blocks: it compiles and does nothing else, so that what fails fails here."""
    memory = torch.zeros(8, **FLOAT64)
    at = memory.data_ptr()
    kernel(at, 0, 0, 0, at, False, 0.0, 1.0, 1.0, 0, at, 0, False)


def _warn_once(reason: str) -> None:
    global _warned  # noqa: PLW0603 - once for the whole process
    if not _warned:
        _warned = True
        warnings.warn(
            f"inface: the fused kernels are not available, steps use torch operations instead ({reason})",
            RuntimeWarning,
            stacklevel=2,
        )


class Options(NamedTuple):
    """What a group says about its steps."""

    lr: float | Tensor
    gradient_bound: float | Tensor | None = None
    momentum: float = 0.0
    maximize: bool = False
    rate: float | Tensor | None = None  # 1 / C of all blocks, where it is not lr / diam^2
    most: float = math.inf  # no step is longer, but for projected ones

    def mark(self) -> tuple[object, ...]:
        """What changes when these options do."""
        return tuple(_mark(option) for option in self)


def _mark(value: float | Tensor | None) -> object:
    """What changes when a number does, or a tensor of numbers, be it in place."""
    if not isinstance(value, Tensor):
        return value
    return object() if value.is_inference() else (id(value), value._version)  # noqa: SLF001


class Memory(NamedTuple):
    """Where one layer's step happens: the parameter, its gradient and its momentum."""

    x: Tensor
    g: Tensor
    m: Tensor | None
    entries: Entries | None = None  # what its rows use, if somebody knows it
    new: Tensor | None = None  # where a first half with a list of entries writes what it brings


class Table:
    """The layers of one set, which one call of a kernel steps on; and what it writes: gaps of blocks, counts of both halves.

    Blocks are numbered through all layers. A block that lies outside of its set is marked: see :meth:`marked`.

    Args:
        set_: the set of all layers.
        shapes: theirs.
        counts: where to go on counting.
        source: the set that :meth:`is_of` knows the table by, if it is another one.

    >>> import torch
    >>> from inface.sets import L1Ball
    >>> x = torch.zeros(1, 3)
    >>> table = Table(L1Ball(1.0), [x.shape])
    >>> table.step([Memory(x, torch.tensor([[0.0, 2.0, 1.0]]), None)], Options(lr=1.0))
    0
    >>> x, table.gaps
    (tensor([[ 0.0000, -0.5000,  0.0000]]), tensor([2.], dtype=torch.float64))
    """

    def __init__(
        self, set_: Set, shapes: list[torch.Size], counts: Tensor | None = None, *, source: Set | None = None
    ) -> None:
        import numpy as np  # noqa: PLC0415 - comes with Numba, which the first step imports

        from .loops import (  # noqa: PLC0415
            COLUMNS,
            FAMILIES,
            GROUPS,
            PHASES,
            RATES,
            ROWS,
            SLOPES,
            START,
            TAXICAB,
            WIDTH,
        )  # fmt: skip

        self.set, self.shapes, self.layers = set_, shapes, len(shapes)
        self.rows = [blocks.count(shape, set_.per) for shape in shapes]
        self.starts = [0, *itertools.accumulate(self.rows)]
        self.total = self.starts.pop()
        self.diameter = (
            0.0 if not shapes else _flat([set_.diameter(blocks.shape(shape, set_.per)) for shape in shapes], self.rows)
        )
        self.gaps, self._unread, self._rates, self._lrs = (torch.zeros(self.total, **FLOAT64) for _ in range(4))
        self.counts = torch.zeros(2, 4, dtype=torch.long, device="cpu") if counts is None else counts
        self._radii = torch.as_tensor(set_.radius, **FLOAT64).reshape(-1).clone()
        self._source = set_ if source is None else source
        self._radius = _mark(self._source.radius)
        self._options: Options | None = None
        self._known: tuple[object, ...] = ()
        self._arguments: tuple[Any, ...] = ()
        self._family, self._phases = FAMILIES[str(set_.kernel)], dict(PHASES)
        if set_.norm_name == "l1":
            self._phases["projected"] = TAXICAB
        grouped = set_.kernel == "groups"
        # One for each half, one for projected steps, which need learning rates, and one for first halves with lists.
        self._tables = [np.zeros((self.layers, COLUMNS), dtype=np.int64) for _ in range(4)]
        first = (self.gaps, self._rates)
        numbers = (first, (self._unread, self._rates), (self._unread, self._lrs), first)
        for table, (slopes, rates) in zip(self._tables, numbers, strict=True):
            for i, (shape, rows, start) in enumerate(zip(shapes, self.rows, self.starts, strict=True)):
                groups = _groups(set_, shape) if grouped else 1
                table[i, [ROWS, START, GROUPS, WIDTH]] = rows, start, groups, shape.numel() // max(1, rows * groups)
            table[:, RATES] = rates.data_ptr() + 8 * table[:, START]
            table[:, SLOPES] = slopes.data_ptr() + 8 * table[:, START]
        self._entries = [shape.numel() for shape in shapes]
        self._listed = True  # whether columns of lists may be other than 0
        self._small = self.total == 1 or sum(self._entries) < LARGE
        self._counted = self.counts.numpy()
        self._places = [table.ctypes.data for table in self._tables]
        self._counts_at = [self.counts[half].data_ptr() for half in range(2)]

    def is_of(self, set_: Set) -> bool:
        """Whether this is still the table of that set: the same one, of the same radius."""
        return self._source is set_ and self._radius == _mark(set_.radius)

    def resize(self, set_: Set, source: Set | None = None) -> bool:
        """Go over to the same set with other radii, and keep gaps and counts; False if it is another set.

        >>> import torch
        >>> from inface.sets import L1Ball, Simplex
        >>> table = Table(L1Ball(1.0), [torch.Size([1, 3])])
        >>> table.resize(L1Ball(2.0)), table.diameter, table.resize(Simplex(2.0))
        (True, 4.0, False)
        """
        if not _same_but_radius(set_, self.set) or not self.shapes:
            return False
        radii = torch.as_tensor(set_.radius, **FLOAT64).reshape(-1)
        if radii.shape == self._radii.shape:
            self._radii.copy_(radii)
        else:
            self._radii, self._options = radii.clone(), None  # whose place the arguments have
        self.set, self._source = set_, set_ if source is None else source
        self._radius, self._known = _mark(self._source.radius), ()
        self.diameter = _flat([set_.diameter(blocks.shape(shape, set_.per)) for shape in self.shapes], self.rows)
        return True

    def step(
        self, memory: list[Memory | None], options: Options, strategy: str | None = None, *, project: bool = False
    ) -> int:
        """One half of an iteration in place, and how many blocks were outside of their set.

        The first half if ``strategy`` is None, else the second, in the face. Layers of which there is no memory stay.
        """
        active = [layer for layer in memory if layer is not None] if None in memory else cast("list[Memory]", memory)
        listed = active[0].new is not None
        kernel = _kernel("toward", active[0].x.dtype) if listed else available(self.set, active[0].x.dtype, strategy)
        if kernel is None:
            raise RuntimeError("inface: the fused kernels are not available")
        self._prepare(options)
        half = 0 if strategy is None else 1
        which = 3 if listed else 2 if strategy == "projected" else half
        held = [None if layer is None else layer.g.contiguous() for layer in memory]
        table = self._tables[which]
        table[:, 0] = [0 if layer is None else layer.x.data_ptr() for layer in memory]
        table[:, 1] = [0 if g is None else g.data_ptr() for g in held]
        if options.momentum:
            table[:, 2] = [0 if layer is None or layer.m is None else layer.m.data_ptr() for layer in memory]
        some = which > 1 and any(layer.entries is not None for layer in active)
        if some or (which > 1 and self._listed):
            self._listed = some  # while it is False these columns stay 0: filling them costs more than a small step
            lists = [None if layer is None else layer.entries for layer in memory]
            table[:, AT] = [0 if found is None else found.listed.at.data_ptr() for found in lists]
            table[:, ENDS] = [0 if found is None else found.listed.ends.data_ptr() for found in lists]
            table[:, VALUES] = [0 if found is None else found.values.data_ptr() for found in lists]
            table[:, PRICES] = [
                0 if found is None or found.prices is None else found.prices.data_ptr() for found in lists
            ]
            table[:, NEW] = [0 if layer is None or layer.new is None else layer.new.data_ptr() for layer in memory]
        before = self._counted[half, 3]
        number = self._phases[strategy]
        if self._small or torch.get_num_threads() == 1:
            kernel(
                self._places[which], self.layers, 0, self.total, *self._arguments, self._counts_at[half], number, project
            )  # fmt: skip
        else:
            self._in_threads(kernel, half, which, number, project=project)
        # Autograd must know that memory was written behind its back.
        written = [layer.x for layer in active]
        if options.momentum:
            written += [layer.m for layer in active]  # type: ignore[misc]
        torch.autograd.graph.increment_version(written)
        return int(self._counted[half, 3] - before)

    def marked(self, layer: int, strategy: str | None) -> Tensor:
        """Which blocks of a layer the last such half found outside of their set; their marks are taken away.

        A block that was to be projected has not moved yet: :meth:`blocks_of` has what its step needs.
        """
        slopes = (self.gaps if strategy is None else self._unread)[self.blocks_of(layer)]
        outside = slopes < 0
        slopes[outside] = -1 - slopes[outside]
        return outside.nonzero().flatten()

    def blocks_of(self, layer: int) -> slice:
        """The numbers of a layer's blocks."""
        return slice(self.starts[layer], self.starts[layer] + self.rows[layer])

    def bound(self, gradient_bound: float | Tensor | None) -> float | Tensor | None:
        """The bound of every block, where a layer has several."""
        if isinstance(gradient_bound, Tensor) and gradient_bound.numel() > 1:
            return gradient_bound.to(**FLOAT64).repeat(self.layers)
        return gradient_bound

    def add(self, layer: int, marked: Tensor, strategy: str | None, slope: Tensor, decision: Decision) -> None:
        """What blocks did that a kernel had left undone."""
        usable = torch.isfinite(slope)
        slopes = (self.gaps if strategy is None else self._unread)[self.blocks_of(layer)]
        slopes[marked] = torch.where(usable, slope.clamp(min=0), 0)
        done = torch.stack([decision.step > 0, decision.hit, ~usable]).sum(1)
        self.counts[0 if strategy is None else 1, :3] += done

    def rates(self, layer: int) -> Tensor:
        """``1 / C_i`` of the blocks of a layer, as the last step used them."""
        return self._rates[self.blocks_of(layer)]

    def diameters(self, layer: int) -> Tensor:
        """The diameters of the blocks of a layer."""
        return torch.as_tensor(self.diameter, **FLOAT64).expand(self.total)[self.blocks_of(layer)]

    def _prepare(self, options: Options) -> None:
        """What a call passes beside the memory: it changes with the options, not from step to step."""
        known = options.mark()
        if known == self._known:
            return
        self._known, before, self._options = known, self._options, options
        rate = options.rate
        if rate is None:
            rate = step_rate(self.diameter, options.lr, self.bound(options.gradient_bound))
        if isinstance(rate, Tensor) and rate.numel() > 1:
            self._rates.copy_(rate)
        else:
            self._rates.fill_(float(rate))
        torch.mul(self._rates, torch.as_tensor(self.diameter, **FLOAT64).square(), out=self._lrs)
        if before is None or _constants(before) != _constants(options):
            self._arguments = (
                self._radii.data_ptr(),
                self._radii.numel() > 1,
                1 - options.momentum if options.momentum else 0.0,
                float(options.most),
                -1.0 if options.maximize else 1.0,
                self._family,
            )

    def _in_threads(self, kernel: Callable[..., None], half: int, which: int, strategy: int, *, project: bool) -> None:
        """Rows do not depend on each other, so the result does not depend on how they are dealt out."""
        threads = min(torch.get_num_threads(), self.total)
        edges = self._even(threads)
        counts = torch.zeros(threads, 4, dtype=torch.long, device="cpu")
        jobs = [
            functools.partial(
                kernel, self._places[which], self.layers, edges[i], edges[i + 1], *self._arguments, counts[i].data_ptr(),
                strategy, project,
            )
            for i in range(threads)
        ]  # fmt: skip
        others = [thread_pool(os.getpid(), threads - 1).submit(job) for job in jobs[1:]]
        try:
            jobs[0]()
        finally:
            wait(others)  # whatever happens, nobody may still write when the memory is let go
        for other in others:
            other.result()
        self.counts[half] += counts.sum(0)

    def _even(self, threads: int) -> list[int]:
        """Where to cut the rows so that every thread has about as many entries."""
        ends = list(itertools.accumulate(self._entries))
        edges = []
        for i in range(1, threads):
            wanted = ends[-1] * i // threads
            layer = bisect.bisect_right(ends, wanted)
            into = (wanted - (ends[layer] - self._entries[layer])) * self.rows[layer] // max(1, self._entries[layer])
            edges.append(self.starts[layer] + into)
        return [0, *edges, self.total]


def _constants(options: Options) -> tuple[object, ...]:
    return options.momentum, options.maximize, float(options.most)


def _same_but_radius(one: Set, other: Set) -> bool:
    return type(one) is type(other) and {**one.to_dict(), "radius": 0} == {**other.to_dict(), "radius": 0}


def _groups(set_: Set, shape: torch.Size) -> int:
    """How many groups a block of such a layer has."""
    return set_.to_blocks(torch.empty(shape, device="meta")).shape[1]


def _flat(numbers: list[float | Tensor], counts: list[int]) -> float | Tensor:
    """One number for all, or one for each block of each layer."""
    first = numbers[0]
    if not isinstance(first, Tensor) and all(number == first for number in numbers):
        return first
    parts = [torch.as_tensor(n, **FLOAT64).expand(c) for n, c in zip(numbers, counts, strict=True)]
    return torch.cat(parts)


@functools.cache
def thread_pool(process: int, threads: int) -> ThreadPoolExecutor:  # noqa: ARG001 - threads do not survive a fork
    """The threads that all kernels of a process share."""
    return ThreadPoolExecutor(threads, thread_name_prefix="inface")
