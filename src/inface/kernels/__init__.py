"""The fused CPU kernels: which parameters they take, and one call per parameter.

A kernel does a whole step on a parameter's rows in place: momentum, vertices, step sizes, the update, the repair of
rounding, the gaps and the counts. The sets' own torch operations are the reference; both agree to rounding.
"""

from __future__ import annotations

import contextlib
import functools
import os
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import Parameter

from ..gap import step_rate
from ..sets import GroupL1Ball, L1Ball, L2Ball, LInfBall, Set, Simplex, blocks

__all__ = ["Options", "Rows", "alike", "available", "disabled", "fits"]

# Sets and in-face strategies by the numbers that the kernels know them by; sets of groups have a kernel of their own.
FAMILIES: dict[type[Set], int] = {L1Ball: 0, Simplex: 1, LInfBall: 2}
GROUPED: tuple[type[Set], ...] = (GroupL1Ball, L2Ball)
STRATEGIES = {None: 0, "frank-wolfe": 1, "away": 2, "pairwise": 3}

# Below this many entries a second thread costs more than it gives: torch's own threads are still spinning on its core.
LARGE = 1 << 21

# A subclass may say that it is contiguous CPU memory and have none (a sharded tensor does).
PLAIN = (Tensor, Parameter)

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
    return (
        _enabled
        and type(x) in PLAIN
        and (type(set_) in FAMILIES or _has_rows_as_groups(set_))
        and x.device.type == "cpu"
        and x.dtype in (torch.float32, torch.float64)
        and (set_.per != "input" or x.ndim < 2)
        and x.is_contiguous()
        and not x.is_neg()
    )


def _has_rows_as_groups(set_: Set) -> bool:
    return type(set_) in GROUPED and not (
        isinstance(set_, GroupL1Ball) and set_.groups == "input" and set_.per == "tensor"
    )


def alike(x: Tensor, g: Tensor, m: Tensor | None) -> bool:
    """Whether gradient and momentum lie in memory as the kernels expect them to beside ``x``: they do not check again.

    >>> import torch
    >>> alike(torch.zeros(3, 4), torch.zeros(3, 4), None), alike(torch.zeros(3, 4), torch.zeros(2, 4), None)
    (True, False)
    """
    return all(
        type(other) in PLAIN
        and other.shape == x.shape
        and other.dtype == x.dtype
        and other.device == x.device
        and not other.is_neg()
        for other in ((g,) if m is None else (g, m))
    ) and (m is None or m.is_contiguous())


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


def available(set_: Set, dtype: torch.dtype) -> Callable[..., None] | None:
    """The kernel for a set and a dtype, compiled or from the disk cache; None, after one warning, if there is none.

    >>> import torch
    >>> from inface.sets import L1Ball
    >>> available(L1Ball(1.0), torch.float32) is not None
    True
    """
    return _kernel(type(set_) in GROUPED, dtype)


@functools.cache
def _kernel(grouped: bool, dtype: torch.dtype) -> Callable[..., None] | None:
    try:
        # Numba is imported by the first step, not by the library.
        if grouped:
            from . import groups as module  # noqa: PLC0415
        else:
            from . import rows as module  # type: ignore[no-redef]  # noqa: PLC0415
        kernel: Any = getattr(module, f"{'groups' if grouped else 'rows'}_{str(dtype).split('.')[1]}")
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
    memory = torch.zeros(8, dtype=torch.float64)
    at = memory.data_ptr()
    kernel(at, at, at, 0, 0, 1, at, False, at, False, 0.0, 1.0, 1, at, at, 0)


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

    def mark(self) -> tuple[object, ...]:
        """What changes when these options do."""
        return tuple(_mark(option) for option in self)


def _mark(value: float | Tensor | None) -> object:
    """What changes when a number does, or a tensor of numbers, be it in place."""
    if not isinstance(value, Tensor):
        return value
    return object() if value.is_inference() else (id(value), value._version)  # noqa: SLF001


class Rows:
    """The place beside a parameter that its kernel writes to: the gap of every block, and counts of both halves.

    >>> import torch
    >>> from inface.sets import L1Ball
    >>> x = torch.zeros(1, 3)
    >>> rows = Rows(L1Ball(1.0), x)
    >>> rows.step(x, torch.tensor([[0.0, 2.0, 1.0]]), None, Options(lr=1.0))
    >>> x, rows.gaps
    (tensor([[ 0.0000, -0.5000,  0.0000]]), tensor([2.], dtype=torch.float64))
    """

    def __init__(self, set_: Set, x: Tensor, counts: Tensor | None = None) -> None:
        self.set = set_
        self.shape = x.shape
        self.rows = blocks.count(x.shape, set_.per)
        self.diameter = set_.diameter(blocks.shape(x.shape, set_.per))
        self.gaps = torch.zeros(self.rows, dtype=torch.float64)
        self.counts = torch.zeros(2, 3, dtype=torch.long) if counts is None else counts
        groups = set_.to_blocks(x).shape[1] if type(set_) in GROUPED else 1
        self._width = x.numel() // (self.rows * groups)
        self._family = groups if type(set_) in GROUPED else FAMILIES[type(set_)]
        self._radius = _mark(set_.radius)
        self._unread = torch.zeros(self.rows, dtype=torch.float64)
        self._radii = torch.as_tensor(set_.radius, dtype=torch.float64).reshape(-1).clone()
        self._rates = torch.zeros(self.rows, dtype=torch.float64)
        self._options: Options | None = None
        self._known: tuple[object, ...] = ()
        self._arguments: list[tuple[Any, ...]] = []
        self._small = x.numel() < LARGE or self.rows == 1

    def belongs_to(self, set_: Set, x: Tensor) -> bool:
        """Whether this is still the place beside that parameter: the same set, of the same radius, and the same shape."""
        return self.set is set_ and self.shape == x.shape and self._radius == _mark(set_.radius)

    def step(self, x: Tensor, g: Tensor, m: Tensor | None, options: Options, strategy: str | None = None) -> None:
        """One half of an iteration on ``x``, and on its momentum ``m``, in place.

        The first half if ``strategy`` is None, else the second, in the face.
        """
        kernel = available(self.set, x.dtype)
        if kernel is None:
            raise RuntimeError("inface: the fused kernels are not available")
        known = options.mark()
        if known != self._known:
            self._prepare(options)
            self._known = known
        address = x.data_ptr()
        g = g if g.is_contiguous() else g.contiguous()
        memory = (address, g.data_ptr(), address if m is None else m.data_ptr())
        half = 0 if strategy is None else 1
        if self._small or torch.get_num_threads() == 1:
            kernel(*memory, 0, self.rows, *self._arguments[half], STRATEGIES[strategy])
        else:
            self._in_threads(functools.partial(kernel, *memory), half, STRATEGIES[strategy])
        # Autograd must know that memory was written behind its back.
        torch.autograd.graph.increment_version(x if m is None else (x, m))

    def _prepare(self, options: Options) -> None:
        """What a call passes beside the memory: it changes with the options, not from step to step."""
        before, self._options = self._options, options
        rate = step_rate(self.diameter, options.lr, options.gradient_bound)
        if isinstance(rate, Tensor) and rate.numel() > 1:
            self._rates.copy_(rate)
        else:
            self._rates.fill_(float(rate))
        if before is not None and (before.momentum, before.maximize) == (options.momentum, options.maximize):
            return
        self._arguments = [
            (
                self._width,
                self._radii.data_ptr(),
                self._radii.numel() > 1,
                self._rates.data_ptr(),
                True,
                1 - options.momentum if options.momentum else 0.0,
                -1.0 if options.maximize else 1.0,
                self._family,
                slopes.data_ptr(),
                counts.data_ptr(),
            )
            for slopes, counts in ((self.gaps, self.counts[0]), (self._unread, self.counts[1]))
        ]

    def _in_threads(self, kernel: Callable[..., None], half: int, strategy: int) -> None:
        """Rows do not depend on each other, so the result does not depend on how they are dealt out."""
        threads = min(torch.get_num_threads(), self.rows)
        edges = [self.rows * i // threads for i in range(threads + 1)]
        counts = torch.zeros(threads, 3, dtype=torch.long)
        jobs = [
            functools.partial(
                kernel, edges[i], edges[i + 1], *self._arguments[half][:-1], counts[i].data_ptr(), strategy
            )
            for i in range(threads)
        ]
        others = [_pool(os.getpid(), threads - 1).submit(job) for job in jobs[1:]]
        try:
            jobs[0]()
        finally:
            wait(others)  # whatever happens, nobody may still write when the memory is let go
        for other in others:
            other.result()
        self.counts[half] += counts.sum(0)


@functools.cache
def _pool(process: int, threads: int) -> ThreadPoolExecutor:  # noqa: ARG001 - threads do not survive a fork
    return ThreadPoolExecutor(threads, thread_name_prefix="inface")
