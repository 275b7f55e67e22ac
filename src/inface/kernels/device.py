"""The Triton kernels: which blocks they take on a GPU, and one half of an iteration by them.

They are for CUDA tensors, and for those of a CPU where ``TRITON_INTERPRET=1`` asks Triton to interpret its kernels. Triton is
imported by the first step that needs it; it comes with PyTorch's builds for CUDA. Without it torch operations step.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import os
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ..halves import Half
from ..sets import Set
from ..sets.base import EXACT, Decision, InFace, number
from . import PLAIN, enabled

__all__ = ["LONGEST", "take_half", "takes"]

# One program does a row: of longer ones a GPU has better ways.
LONGEST = 1 << 16

# A program takes so many entries at a time.
PIECE = 1024

# How it is compiled. Left to itself, NVIDIA's assembler saves registers and spills a few.
LAUNCH: dict[str, int] = {"num_warps": 4, "maxnreg": 160}

PHASES: dict[InFace | None, int] = {None: 0, "frank-wolfe": 1, "away": 2, "pairwise": 3}


def takes(set_: Set, x: Tensor, in_face: InFace | None) -> bool:
    """Whether there is a kernel for such a step on blocks ``x``, here and now.

    >>> import torch
    >>> from inface.sets import L1Ball
    >>> takes(L1Ball(1.0), torch.zeros(2, 3, 1), None)  # of a CPU
    False
    """
    if not (x.is_cuda or (x.is_cpu and interprets())) or not enabled() or type(x) not in PLAIN:
        return False
    if set_.kernel is None or x.dtype not in EXACT or not x.numel():
        return False
    if set_.kernel == "groups":
        # The l1 length of a step is not among the products that a group is reduced to.
        return (
            x.shape[2] <= LONGEST and not (in_face == "projected" and set_.norm_name == "l1") and _triton() is not None
        )
    return x.shape[1] <= LONGEST and _triton() is not None


def interprets() -> bool:
    """Whether Triton interprets kernels instead of compiling them: for tests, and for a look into a kernel."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@functools.cache
def _triton() -> tuple[ModuleType, ModuleType] | None:
    try:
        names = (".triton_rows", ".triton_groups")
        rows, groups = (importlib.import_module(name, __package__) for name in names)
    except ImportError:
        return None
    return rows, groups


def take_half(
    set_: Set,
    x: Tensor,
    g: Tensor,
    m: Tensor | None,
    *,
    momentum: float,
    rate: float | Tensor,
    in_face: InFace | None,
    diameter: float | Tensor = 1.0,
    most: float | Tensor = math.inf,
) -> Half:
    """What :func:`inface.halves.take_half` does, by a kernel; contiguous ``x`` and ``m`` are written in place.

    The slope of a projected step is ``<g, x - w>``, and its step is one or nothing.
    """
    x, g, m = x.contiguous(), g.contiguous(), None if m is None else m.contiguous()
    slope, step = (torch.empty(x.shape[0], dtype=torch.float64, device=x.device) for _ in range(2))
    hit = torch.empty(x.shape[0], dtype=torch.int8, device=x.device)
    radius = _number(set_.r(x), x)
    size, extent = _number(rate, x), _number(diameter, x)
    pace = size * extent.square() if in_face == "projected" else size
    common = {"EPS": torch.finfo(x.dtype).eps, "RADII": int(radius.ndim > 0), **_launch()}
    out = (slope, step, hit)
    weight = _number(1 - momentum if momentum else 1.0, x)
    by_kernel = _groups_half if set_.kernel == "groups" else _rows_half
    memory = (x, g, g if m is None else m)
    with torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext():  # not the current one, maybe
        by_kernel(set_, memory, radius, pace, _number(most, x), out, weight, in_face, m, common)
    torch.autograd.graph.increment_version([x] if m is None else [x, m])
    return Half(x, m, slope, Decision(step, hit.bool()))


def _rows_half(
    set_: Set,
    memory: tuple[Tensor, Tensor, Tensor],
    radius: Tensor,
    pace: Tensor,
    most: Tensor,
    out: tuple[Tensor, Tensor, Tensor],
    weight: Tensor,
    in_face: InFace | None,
    m: Tensor | None,
    common: dict[str, Any],
) -> None:
    rows: Any = _triton_now()[0]
    x = memory[0]
    width = x.numel() // x.shape[0]
    options = {**common, "MOMENTUM": m is not None, "PIECE": _piece(width)}
    many = int(pace.ndim > 0)
    if in_face == "projected":
        options |= {"TAXICAB": set_.norm_name == "l1", "LRS": many}
        if set_.kernel == "box":
            rows.box_projected_kernel[(len(x),)](*memory, radius, pace, *out, width, weight, **options)
        else:
            simplex = set_.kernel == "simplex"
            rows.projected_kernel[(len(x),)](*memory, radius, pace, *out, width, weight, SIMPLEX=simplex, **options)
        return
    options |= {"PHASE": PHASES[in_face], "RATES": many}
    if set_.kernel == "box":
        rows.box_kernel[(len(x),)](*memory, radius, pace, most, *out, width, weight, **options)
    else:
        simplex = set_.kernel == "simplex"
        rows.one_hot_kernel[(len(x),)](*memory, radius, pace, most, *out, width, weight, SIMPLEX=simplex, **options)


def _groups_half(
    set_: Set,  # noqa: ARG001 - as of rows
    memory: tuple[Tensor, Tensor, Tensor],
    radius: Tensor,
    pace: Tensor,
    most: Tensor,
    out: tuple[Tensor, Tensor, Tensor],
    weight: Tensor,
    in_face: InFace | None,
    m: Tensor | None,
    common: dict[str, Any],
) -> None:
    kernels: Any = _triton_now()[1]
    x, g, _ = memory
    blocks, groups, width = x.shape
    total, h = blocks * groups, g if m is None else m
    price, push, norm, end, a, b = (torch.empty(total, dtype=torch.float64, device=x.device) for _ in range(6))
    flag = torch.zeros(blocks, dtype=torch.int32, device=x.device)
    projected, many = in_face == "projected", int(pace.ndim > 0)
    wide = {"PIECE": _piece(width), **_launch()}
    kernels.tops_kernel[(total,)](x, g, flag, width, groups, SUPPORT=projected, **wide)
    kernels.products_kernel[(total,)](
        *memory, flag, pace, price, push, norm, end, width, groups, weight,
        SUPPORT=projected, MOMENTUM=m is not None, LRS=many, **wide,
    )  # fmt: skip
    if projected:
        kernels.project_kernel[(blocks,)](
            radius, pace, flag, price, push, norm, end, a, b, *out, width, groups,
            LRS=many, PIECE=_piece(groups), **common,
        )  # fmt: skip
    else:
        kernels.decide_kernel[(blocks,)](
            x, h, radius, pace, most, flag, price, push, norm, a, b, *out, width, groups,
            PHASE=PHASES[in_face], RATES=many, PIECE=_piece(max(groups, width)), **common,
        )  # fmt: skip
    forgets = projected and m is not None
    kernels.apply_kernel[(total,)](x, h, a, b, norm, out[2], width, groups, FORGETS=forgets, **wide)


def _launch() -> dict[str, int]:
    """How a kernel is compiled here: a bound on registers is NVIDIA's alone."""
    return LAUNCH if torch.version.hip is None else {"num_warps": LAUNCH["num_warps"]}


def _triton_now() -> tuple[ModuleType, ModuleType]:
    found = _triton()
    if found is None:
        raise RuntimeError("inface: Triton is not installed")
    return found


def _piece(width: int) -> int:
    """A power of two, as Triton wants its pieces: the width, if it is one piece."""
    return min(PIECE, max(16, 1 << (width - 1).bit_length()))


def _number(value: float | Tensor, x: Tensor) -> Tensor:
    """In float64, beside ``x``: as an argument of a kernel a number would be rounded to float32."""
    return number(value, torch.float64, x.device).contiguous()
