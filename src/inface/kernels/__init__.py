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
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..gap import step_rate
from ..sets import GroupL1Ball, L1Ball, L2Ball, LInfBall, Set, Simplex, blocks

__all__ = ["Options", "Rows", "alike", "available", "disabled", "fits"]

# Sets and in-face strategies by the numbers that the kernels know them by; sets of groups have a kernel of their own.
FAMILIES: dict[type[Set], int] = {L1Ball: 0, Simplex: 1, LInfBall: 2}
GROUPED: tuple[type[Set], ...] = (GroupL1Ball, L2Ball)
STRATEGIES = {None: 0, "frank-wolfe": 1, "away": 2, "pairwise": 3}

# Below this many entries a second thread costs more than it gives.
LARGE = 1 << 17

_enabled = True


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
        and (type(set_) in FAMILIES or _has_rows_as_groups(set_))
        and x.device.type == "cpu"
        and x.dtype in (torch.float32, torch.float64)
        and (set_.per != "input" or x.ndim < 2)
        and x.is_contiguous()
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
    return (
        g.shape == x.shape
        and g.dtype == x.dtype
        and g.device == x.device
        and (m is None or (m.shape == x.shape and m.dtype == x.dtype and m.device == x.device and m.is_contiguous()))
    )


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
        kernel: Callable[..., None] = getattr(module, f"{'groups' if grouped else 'rows'}_{str(dtype).split('.')[1]}")
        # No blocks: this compiles and does nothing else, so that what fails fails here.
        memory = torch.zeros(8, dtype=torch.float64)
        at = memory.data_ptr()
        kernel(at, at, at, 0, 0, 1, at, False, at, False, 0.0, 1.0, 1, at, at, 0)
    except Exception as error:  # noqa: BLE001 - whatever is wrong with a compiler, there is another way
        warnings.warn(
            f"inface: the fused kernels are not available, steps use torch operations instead ({type(error).__name__}: {error})",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return kernel


class Options(NamedTuple):
    """What a group says about its steps."""

    lr: float | Tensor
    gradient_bound: float | Tensor | None = None
    momentum: float = 0.0
    maximize: bool = False


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

    def __init__(self, set_: Set, x: Tensor) -> None:
        self.set = set_
        self.shape = x.shape
        self.rows = blocks.count(x.shape, set_.per)
        groups = set_.to_blocks(x).shape[1] if type(set_) in GROUPED else 1
        self.width = x.numel() // (self.rows * groups)
        self._family = groups if type(set_) in GROUPED else FAMILIES[type(set_)]
        self.diameter = set_.diameter(blocks.shape(x.shape, set_.per))
        self.gaps = torch.zeros(self.rows, dtype=torch.float64)
        self.counts = torch.zeros(2, 3, dtype=torch.long)
        self._unread = torch.zeros(self.rows, dtype=torch.float64)
        self._radii = torch.as_tensor(set_.radius, dtype=torch.float64).reshape(-1).contiguous()
        self._rates = torch.zeros(1, dtype=torch.float64)
        self._options: Options | None = None
        self._arguments: list[tuple[Any, ...]] = []
        self._small = x.numel() < LARGE or self.rows == 1

    def step(self, x: Tensor, g: Tensor, m: Tensor | None, options: Options, strategy: str | None = None) -> None:
        """One half of an iteration on ``x``, and on its momentum ``m``, in place.

        The first half if ``strategy`` is None, else the second, in the face.
        """
        kernel = available(self.set, x.dtype)
        if kernel is None:
            raise RuntimeError("inface: the fused kernels are not available")
        if options != self._options or isinstance(options.lr, Tensor) or isinstance(options.gradient_bound, Tensor):
            self._prepare(options)
        address = x.data_ptr()
        g = g if g.is_contiguous() else g.contiguous()
        memory = (address, g.data_ptr(), address if m is None else m.data_ptr())
        half = 0 if strategy is None else 1
        if self._small or torch.get_num_threads() == 1:
            kernel(*memory, 0, self.rows, *self._arguments[half], STRATEGIES[strategy])
        else:
            self._in_threads(functools.partial(kernel, *memory), half, STRATEGIES[strategy])

    def _prepare(self, options: Options) -> None:
        """What a call passes beside the memory: it changes with the options, not from step to step."""
        rates = torch.as_tensor(step_rate(self.diameter, options.lr, options.gradient_bound), dtype=torch.float64)
        self._rates = rates.expand(self.rows).contiguous() if rates.numel() > 1 else rates.reshape(1)
        self._arguments = [
            (
                self.width,
                self._radii.data_ptr(),
                self._radii.numel() > 1,
                self._rates.data_ptr(),
                self._rates.numel() > 1,
                1 - options.momentum if options.momentum else 0.0,
                -1.0 if options.maximize else 1.0,
                self._family,
                slopes.data_ptr(),
                counts.data_ptr(),
            )
            for slopes, counts in ((self.gaps, self.counts[0]), (self._unread, self.counts[1]))
        ]
        self._options = options

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
        jobs[0]()
        for other in others:
            other.result()
        self.counts[half] += counts.sum(0)


@functools.cache
def _pool(process: int, threads: int) -> ThreadPoolExecutor:  # noqa: ARG001 - threads do not survive a fork
    return ThreadPoolExecutor(threads, thread_name_prefix="inface")
