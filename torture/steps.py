"""Random runs of the optimizer; each step is checked in float64.

The tables below list the choices. A new set, strategy or dtype is one more line.
"""

from __future__ import annotations

import copy
import io
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Parameter

import inface
from inface import kernels
from inface.sets import GroupL1Ball, KSparsePolytope, L1Ball, L2Ball, LInfBall, NuclearBall, Set, Simplex, SpectralBall

__all__ = ["case"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Kind:
    """A set, with its properties computed independently of its own code.

    Attributes:
        make: makes the set from a radius and ``per``.
        norm: the norm of a block, given as a matrix of groups; at most the radius inside the set.
        best: the largest ``<-g, v>`` over the unit ball.
        stays: the entries of a point on the boundary of this radius that no in-face step may change.
        shapes: whether the set supports blocks of this shape.
    """

    make: Callable[[Any, Any], Set]
    norm: Callable[[Array], float]
    best: Callable[[Array], float]
    stays: Callable[[Array, float], NDArray[np.bool_]] | None = None
    shapes: Callable[[tuple[int, ...], str], bool] = lambda _shape, _per: True


def _length(x: Array) -> float:
    return float(np.linalg.norm(x))


def _groups(block: Array) -> Array:
    return np.linalg.norm(block, axis=1)


def _largest(block: Array, k: int = 2) -> float:
    return float(np.sort(np.abs(block).ravel())[-k:].sum())


def _of_groups(shape: tuple[int, ...], per: str) -> bool:
    return len(shape) > 1 and per == "tensor"


KINDS: dict[str, Kind] = {
    "L1Ball": Kind(
        lambda r, per: L1Ball(r, per=per),
        lambda x: float(np.abs(x).sum()),
        lambda g: float(np.abs(g).max()),
        lambda x, _: x == 0,
    ),
    "Simplex": Kind(
        lambda r, per: Simplex(r, per=per),
        lambda x: float(np.abs(x).sum()),
        lambda g: float(-g.min()),
        lambda x, _: x == 0,
    ),
    "LInfBall": Kind(
        lambda r, per: LInfBall(r, per=per),
        lambda x: float(np.abs(x).max()),
        lambda g: float(np.abs(g).sum()),
        lambda x, r: np.abs(x) == r,
    ),
    "KSparsePolytope": Kind(
        lambda r, per: KSparsePolytope(r, k=2, per=per),
        lambda x: float(max(np.abs(x).max(), np.abs(x).sum() / min(2, x.size))),
        _largest,
        lambda x, r: np.abs(x) == r,
    ),
    "L2Ball": Kind(lambda r, per: L2Ball(r, per=per), _length, _length),
    "GroupL1Ball output": Kind(
        lambda r, per: GroupL1Ball(r, groups="output", per=per),
        lambda x: float(_groups(x).sum()),
        lambda g: float(_groups(g).max()),
        lambda x, _: (x == 0).all(1, keepdims=True) & np.ones_like(x, bool),
        _of_groups,
    ),
    "GroupL1Ball input": Kind(
        lambda r, per: GroupL1Ball(r, groups="input", per=per),
        lambda x: float(_groups(x).sum()),
        lambda g: float(_groups(g).max()),
        lambda x, _: (x == 0).all(1, keepdims=True) & np.ones_like(x, bool),
        _of_groups,
    ),
    "NuclearBall": Kind(
        lambda r, per: NuclearBall(r, per=per), lambda x: _singular(x).sum(), lambda g: _singular(g)[0]
    ),
    "SpectralBall": Kind(
        lambda r, per: SpectralBall(r, per=per), lambda x: _singular(x)[0], lambda g: _singular(g).sum()
    ),
}
STRATEGIES = [None, "away", "frank-wolfe", "pairwise", "projected", "function"]
DTYPES = [torch.float32, torch.float32, torch.float64, torch.float64, torch.bfloat16, torch.float16]
PER = ["output", "input", "tensor"]  # "group" has its own case
MATRICES = ("NuclearBall", "SpectralBall")


def _singular(x: Array) -> Array:
    return cast("Array", np.linalg.svd(x, compute_uv=False))


def _by_hand(set_: Set, x: Tensor, g: Tensor) -> Tensor:
    """The pairwise direction as a user's function."""
    return set_.dense_face_vertex(x, g) - set_.dense_face_vertex(x, -g)


def case(seed: int) -> Counter[str]:
    """Run one optimizer for up to 200 steps; return counts of what was done."""
    if random.Random(seed).random() < 0.1:  # noqa: S311 - no secret
        return _whole_group(random.Random(seed + 1), seed)  # noqa: S311
    run = _Run(random.Random(seed), seed)  # noqa: S311
    steps = run.draw.choice([20, 60, 200])
    restored = run.draw.randrange(steps)
    twin: _Run | None = None
    for number in range(steps):
        if number == restored:
            twin = run.resumed()
        gradient = run.gradient()
        run.step(gradient, compared=run.draw.random() < 0.1)
        if twin is not None:
            twin.take(gradient)
    if twin is not None:
        check(_same_bits(run.p, twin.p), "a run resumed from a checkpoint ends with the same bits", run)
    return run.counts


def _whole_group(draw: random.Random, seed: int) -> Counter[str]:
    """per="group": the tensors of a group take the same steps as one vector of all their entries."""
    numbers = torch.Generator().manual_seed(seed % 2**63)
    name = draw.choice([name for name in KINDS if name not in MATRICES])
    shapes = [tuple(draw.choice([1, 2, 3, 5, 9]) for _ in range(draw.randint(2, 3))) for _ in range(draw.randint(1, 4))]
    size = 10 ** draw.uniform(-1, 2)
    set_ = KINDS[name].make(size, "group")
    like = [torch.randn(shape, generator=numbers, dtype=torch.float64) for shape in shapes]
    start = set_.together().project(size * set_.gather(like))
    tensors = [Parameter(x.contiguous()) for x in set_.scatter(start, like)]
    vector = Parameter(set_.gather([p.detach() for p in tensors]).clone())
    options: dict[str, Any] = {
        "lr": size * 10 ** draw.uniform(-2, 1),
        "in_face": None if name == "L2Ball" else draw.choice(STRATEGIES[:-1]),
        "momentum": draw.choice([0.0, 0.9]),
        "fused": draw.choice([None, False]),
    }
    joint = inface.FrankWolfe([{"params": tensors, "set": set_}], **options)
    single = inface.FrankWolfe([{"params": [vector], "set": set_.together()}], **options)
    steps = draw.choice([20, 60])
    for number in range(steps):
        gradients = [torch.randn(p.shape, generator=numbers, dtype=torch.float64) for p in tensors]
        for p, g in zip(tensors, gradients, strict=True):
            p.grad = g
        vector.grad = set_.gather(gradients)
        joint.step()
        single.step()
        apart = float((set_.gather([p.detach() for p in tensors]) - vector.detach()).abs().max())
        if not apart <= 1e-10 * size or not bool(set_.together().contains(vector.detach()).all()):
            raise AssertionError(
                f"the tensors of a group step as one vector: apart {apart!r} "
                f"({set_!r}, shapes {shapes}, {options}, step {number})"
            )
    return Counter(
        {"runs": 1, "steps": steps, "per group": 1, name: 1, "float64": 1, f"in_face {options['in_face']}": 1}
    )


def check(holds: object, what: str, run: _Run, **found: object) -> None:
    """Raise an AssertionError that names the property and the run."""
    if not holds:
        numbers = ", ".join(f"{name} {value!r}" for name, value in found.items())
        raise AssertionError(f"{what}: {numbers} ({run})")


class _Run:
    """A parameter in a set, with the optimizer that moves it."""

    def __init__(self, draw: random.Random, seed: int) -> None:
        self.draw = draw
        self.counts: Counter[str] = Counter()
        self.random = torch.Generator().manual_seed(seed % 2**63)
        self.name = draw.choice(list(KINDS))
        self.kind = KINDS[self.name]
        self.dtype = draw.choice(DTYPES)
        half = self.dtype in (torch.bfloat16, torch.float16)
        self.eps = torch.finfo(torch.float32 if half else self.dtype).eps
        while True:
            shape = tuple(draw.choice([1, 2, 3, 5, 9, 17]) for _ in range(draw.randint(1, 4)))
            per = draw.choice(PER)
            if self.kind.shapes(shape, per) and np.prod(shape) < 2000:
                break
        count = 1 if len(shape) == 1 or per == "tensor" else shape[0 if per == "output" else 1]
        size = 10 ** draw.uniform(-1, 1 if self.dtype == torch.float16 else 3)
        radius: float | Tensor = size
        if draw.random() < 0.5:
            radius = size * (0.5 + torch.rand(count, generator=self.random, dtype=torch.float64))
        bounded = self.kind.make(radius, per)
        self.set = type(bounded).from_dict({**bounded.to_dict(), "norm": draw.choice(bounded.norms)})
        if isinstance(radius, Tensor) and count > 1 and draw.random() < 0.3:
            radius[draw.randrange(count)] = torch.inf  # that block is free
            self.set = self.set.with_radius(radius)
        self.radii = np.broadcast_to(torch.as_tensor(radius, dtype=torch.float64).numpy(), (count,))
        self.scale = 10 ** (draw.uniform(-2, 2) if half else draw.choice([-12.0, -3.0, 0.0, 0.0, 0.0, 3.0, 12.0]))
        self.strategy = draw.choice(STRATEGIES) if self.set.has_faces and self.name != "L2Ball" else None
        self.momentum = draw.choice([0.0, 0.0, 0.9])
        self.maximize = draw.random() < 0.2
        self.fused = draw.choice([None, False])
        self.lr = size / self.scale * 10 ** draw.uniform(-2, 1.5)
        start = torch.randn(shape, generator=self.random, dtype=torch.float64)
        start = (
            bounded.vertex(start) if draw.random() < 0.5 else bounded.project(start * 10 ** draw.uniform(-3, 3) * size)
        )
        self.target = bounded.vertex(torch.randn(shape, generator=self.random, dtype=torch.float64))
        self.noise = draw.choice([0.0, 0.1, 1.0])
        self.p = Parameter(start.to(self.dtype))
        self.optimizer = self.make()
        self.phase = 0
        self.counts["runs"] += 1
        self.counts["runs with a free block"] += bool(np.isinf(self.radii).any())
        self.counts[f"norm {self.set.norm_name}"] += 1
        for label in (self.name, str(self.dtype).removeprefix("torch."), f"in_face {self.strategy}", f"per {per}"):
            self.counts[label] += 1

    def __str__(self) -> str:
        return (
            f"{self.set!r}, shape {tuple(self.p.shape)}, {self.dtype}, "
            f"in_face={self.strategy}, momentum={self.momentum}, "
            f"maximize={self.maximize}, fused={self.fused}, lr={self.lr:g}, gradients of {self.scale:g}, "
            f"after {self.counts['steps']} steps"
        )

    def make(self) -> inface.FrankWolfe:
        in_face = _by_hand if self.strategy == "function" else self.strategy
        return inface.FrankWolfe(
            [{"params": [("w", self.p)], "set": self.set}],
            self.lr,
            in_face=cast("Any", in_face),
            momentum=self.momentum,
            maximize=self.maximize,
            fused=self.fused,
            project=True,
        )

    def resumed(self) -> _Run:
        """The same run from a checkpoint file."""
        file = io.BytesIO()
        torch.save({"weights": self.p.detach(), "optimizer": self.optimizer.state_dict()}, file)
        file.seek(0)
        saved = torch.load(file, weights_only=True)
        other = copy.copy(self)
        other.p = Parameter(saved["weights"])
        other.optimizer = other.make()
        other.optimizer.load_state_dict(saved["optimizer"])
        self.counts["resumed"] += 1
        return other

    def gradient(self) -> Tensor:
        """The gradient of a quadratic function plus noise; sometimes zeros, ties, or values that are not finite."""
        x = self.p.detach().double()
        spread = torch.as_tensor(self.radii[np.isfinite(self.radii)].max())
        g = (x - self.target) / spread + self.noise * torch.randn(x.shape, generator=self.random, dtype=x.dtype)
        chance = self.draw.random()
        if chance < 0.02:
            g = torch.zeros_like(g)
        elif chance < 0.05:
            g = g.sign()
        g = (self.scale * g).to(self.dtype).contiguous()
        if 0.05 < chance < 0.08:
            g.view(-1)[self.draw.randrange(g.numel())] = self.draw.choice([float("nan"), float("inf")])
        return -g if self.maximize else g

    def take(self, gradient: Tensor) -> None:
        self.p.grad = gradient.clone()
        self.optimizer.step()

    # ------------------------------------------------------------------ one step and its checks

    def step(self, gradient: Tensor, *, compared: bool) -> None:
        before = self.weights().clone()
        if compared and self.fused is None:
            self.compare(gradient)
        earlier = self.optimizer.state.get(self.p, {}).get("momentum_buffer", torch.tensor(torch.nan)).clone()
        self.take(gradient)
        self.counts["steps"] += 1
        after, phase = self.weights(), self.phase
        g = (-gradient if self.maximize else gradient).double()
        if self.momentum:
            mixed = torch.where(torch.isnan(earlier), g, torch.lerp(earlier.double(), g, 1 - self.momentum))
            average = self.optimizer.state[self.p]["momentum_buffer"].double()
            g = torch.where(torch.isnan(average), mixed, average)  # what has left has none any more
        gradient, g = (self.seen(before, one) for one in (gradient, g))
        finite = [bool(np.isfinite(block).all()) for block in self.split(gradient)]
        self.phase = 0 if self.strategy is None else 1 - self.phase
        check(self.optimizer.state[self.p]["phase"] == self.phase, "the phase is the next one", self)
        gaps = self.optimizer.report().gap.blocks["w"].double() if phase == 0 else None
        blocks = zip(
            self.split(before), self.split(after), self.split(g), self.split(self.p), self.radii, finite, strict=True
        )
        # Until its first step a half-precision parameter has no float32 copy to compare with.
        known = "master" not in self.optimizer.state[self.p] or self.counts["steps"] > 1
        for number, (x, new, slope, rounded, r, usable) in enumerate(blocks):
            if np.isinf(r):
                self.is_free(x, new, slope, phase, number)
                continue
            self.is_inside(new, rounded, r, number)
            if not known:
                continue
            if not usable:
                check(np.array_equal(x, new), "a block with a gradient that is not finite stays", self, block=number)
                self.counts["blocks skipped"] += 1
                continue
            self.descends(x, new, slope, r, number)
            if gaps is not None:
                self.has_gap(x, slope, r, float(gaps[number]), number)
                self.lands(new, float(gaps[number]), r, number)
            else:
                self.keeps_its_face(x, new, r, number)
            self.counts["blocks checked"] += 1

    def seen(self, x: Tensor, g: Tensor) -> Tensor:
        """A gradient where the step at ``x`` looks at it: projected ones in the face, where a block is not zero."""
        used = self.set.in_use(self.set.to_blocks(x)) if self.phase and self.strategy == "projected" else None
        return g if used is None else self.set.from_blocks(torch.where(used, self.set.to_blocks(g), 0), g)

    def is_free(self, x: Array, new: Array, g: Array, phase: int, number: int) -> None:
        """A block of infinite radius descends in the first half, and stays in the second."""
        with np.errstate(invalid="ignore"):
            wanted = x - self.lr * g if phase == 0 else x
        if not np.isfinite(wanted).all():
            return
        slack = 8 * self.eps * (np.abs(x) + np.abs(wanted))
        check((np.abs(new - wanted) <= slack).all(), "a free block descends", self, block=number)
        self.counts["free blocks checked"] += 1

    def is_inside(self, new: Array, rounded: Array, r: float, number: int) -> None:
        slack = (64 if self.name in MATRICES else 10) * self.eps
        size = self.kind.norm(new)
        check(size <= r * (1 + slack), "every step is feasible", self, block=number, norm=size, radius=r)
        if self.name == "Simplex":
            check((new >= 0).all() and abs(new.sum() - r) <= slack * r, "a simplex keeps its sum", self, block=number)
        if self.name == "Simplex":  # whose sum half precision has to its own accuracy only
            slack += 2 * torch.finfo(self.dtype).eps
        size = self.kind.norm(rounded)
        check(size <= r * (1 + slack), "what is written back is feasible", self, block=number, norm=size, radius=r)

    def descends(self, x: Array, new: Array, g: Array, r: float, number: int) -> None:
        rise = float((g * (new - x)).sum())
        # Every entry may be rounded, and entries that are kept on their face are rescaled.
        slack = 16 * self.eps * (float(np.abs(g).ravel() @ np.abs(x).ravel()) + r * self.kind.best(np.abs(g) * -1))
        if self.name in MATRICES:
            slack *= 16
        check(rise <= slack, "no step raises the linearised objective", self, block=number, rise=rise, rounding=slack)
        if not g.any():
            check(np.array_equal(x, new), "a zero gradient moves nothing", self, block=number)

    def has_gap(self, x: Array, g: Array, r: float, found: float, number: int) -> None:
        wanted = float((g * x).sum()) + r * self.kind.best(g)
        size = r * abs(self.kind.best(g)) + float(np.abs(g).ravel() @ np.abs(x).ravel())
        slack = (256 if self.name in MATRICES else 32) * self.eps * size
        check(
            abs(found - max(wanted, 0)) <= slack,
            "the gap is that of float64",
            self,
            block=number,
            found=found,
            wanted=wanted,
        )

    def lands(self, new: Array, gap: float, r: float, number: int) -> None:
        """A step that goes all the way ends exactly on its vertex."""
        if self.name not in ("L1Ball", "Simplex") or gap * self.lr < 1.01 * (2 * r) ** 2 or self.set.norm_name != "l2":
            return
        check(np.count_nonzero(new) == 1, "a step of 1 ends exactly on its vertex", self, block=number)
        self.counts["vertices reached"] += 1

    def keeps_its_face(self, x: Array, new: Array, r: float, number: int) -> None:
        if self.kind.stays is None or self.kind.norm(x) < r * (1 - 6 * self.eps):
            return
        exact = float(np.float32(r)) if self.dtype != torch.float64 else r
        stays = self.kind.stays(x, exact)
        check(
            np.array_equal(x[stays], new[stays]),
            "an in-face step on the boundary stays in its face",
            self,
            block=number,
        )
        self.counts["faces kept"] += 1

    def compare(self, gradient: Tensor) -> None:
        """Kernels and torch operations take the same step up to rounding, or an equally good one in case of a tie."""
        others = []
        for disabled in (False, True):
            other = copy.copy(self)
            other.optimizer = copy.deepcopy(self.optimizer)
            other.p = other.optimizer.param_groups[0]["params"][0]
            if disabled:
                with kernels.disabled():
                    other.take(gradient)
            else:
                other.take(gradient)
            others.append(other)
        g = self.split(-gradient if self.maximize else gradient)
        if self.momentum:
            g = self.split(others[1].optimizer.state[others[1].p]["momentum_buffer"])
        for number, (a, b, slope, r) in enumerate(
            zip(self.split(others[0].weights()), self.split(others[1].weights()), g, self.radii, strict=True)
        ):
            if np.isinf(r):
                continue  # a free block, which no kernel touches
            near = np.abs(a - b).max() <= 256 * self.eps * r
            if not near and np.isfinite(slope).all():
                size = float(np.abs(slope).ravel() @ (np.abs(a) + np.abs(b)).ravel()) + r * self.kind.best(
                    -np.abs(slope)
                )
                near = abs(float((slope * (a - b)).sum())) <= 256 * self.eps * size
            check(near, "the kernels agree with torch operations", self, block=number, apart=float(np.abs(a - b).max()))
        self.counts["kernels compared"] += 1

    # ------------------------------------------------------------------ float64

    def weights(self) -> Tensor:
        """The values that the optimizer computes with: the parameter, or its float32 copy."""
        found: Tensor = self.optimizer.state[self.p].get("master", self.p) if self.p in self.optimizer.state else self.p
        return found.detach()

    def split(self, x: Tensor) -> list[Array]:
        """The blocks by indexing, each a matrix of groups."""
        a = x.detach().double().numpy().copy()
        per = "tensor" if a.ndim == 1 else self.set.per
        parts = [a] if per == "tensor" else list(a if per == "output" else a.swapaxes(0, 1))
        if self.name == "GroupL1Ball input":
            parts = [block.swapaxes(0, 1) for block in parts]
        if self.name.startswith("Group") or self.name in MATRICES:
            return [block.reshape(block.shape[0], -1) if block.ndim else block.reshape(1, 1) for block in parts]
        return [block.reshape(-1, 1) for block in parts]


def _same_bits(a: Tensor, b: Tensor) -> bool:
    copies = (x.detach().clone(memory_format=torch.contiguous_format).view(torch.uint8) for x in (a, b))
    return torch.equal(*copies)
