"""What every step on every set keeps, whatever the shape, the values, the radius and the strategy."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import inface
from inface.sets import GroupL1Ball, KSparsePolytope, L1Ball, L2Ball, LInfBall, NuclearBall, Set, Simplex, SpectralBall

MAKE = {
    "l1": lambda r, per: L1Ball(r, per=per),
    "simplex": lambda r, per: Simplex(r, per=per),
    "group-output": lambda r, per: GroupL1Ball(r, groups="output", per=per),
    "group-input": lambda r, per: GroupL1Ball(r, groups="input", per=per),
    "box": lambda r, per: LInfBall(r, per=per),
    "k-sparse": lambda r, per: KSparsePolytope(r, k=2, per=per),
    "l2": lambda r, per: L2Ball(r, per=per),
    "nuclear": lambda r, per: NuclearBall(r, per=per),
    "spectral": lambda r, per: SpectralBall(r, per=per),
}
SPARSE = ["l1", "simplex", "group-output", "group-input"]
IN_FACE = ["away", "frank-wolfe", "pairwise", "projected"]


def by_hand(set_, x, g):
    """The pairwise direction, as somebody would write it who gives a function as ``in_face``."""
    return set_.dense_face_vertex(x, g) - set_.dense_face_vertex(x, -g)


SCALES = [1e-12, 1e-3, 1.0, 1e3, 1e12]


class Case:
    """A set, and a parameter in it, with what the tests look at: its blocks as numpy arrays ``(groups, size)``."""

    def __init__(self, name: str, set_: Set, x: torch.Tensor, strategy: str | None, turned: bool, fused: bool | None):
        self.name, self.set, self.strategy, self.turned, self.fused = name, set_, strategy, turned, fused
        if turned:  # the same values, with the strides the other way round
            x = x.permute(*reversed(range(x.ndim))).contiguous().permute(*reversed(range(x.ndim)))
        self.p = torch.nn.Parameter(x)
        self.eps = torch.finfo(x.dtype).eps
        count = len(self.split(self.p))
        self.r = np.broadcast_to(np.asarray(torch.as_tensor(set_.radius, dtype=torch.float64)), (count,))

    def __repr__(self) -> str:
        radius = self.set.radius
        return f"{self.set} of {radius}, in_face={self.strategy!r}, fused={self.fused}, {self.p.dtype}, x={self.p.tolist()}"

    def split(self, x):
        """The blocks by indexing, as matrices of groups (vector sets: one number each; matrix sets: the matrix)."""
        a = x.detach().double().numpy().copy()
        per = "tensor" if a.ndim == 1 else self.set.per
        blocks = {
            "tensor": [a],
            "output": list(a),
            "input": [a[:, i] for i in range(a.shape[1])] if a.ndim > 1 else [],
        }[per]
        if self.name == "group-input" and per == "tensor":
            blocks = [b.swapaxes(0, 1) for b in blocks]
        if self.name.startswith("group") or self.name in ("nuclear", "spectral"):
            return [b.reshape(b.shape[0], -1) for b in blocks]
        return [b.reshape(-1, 1) for b in blocks]

    def norm(self, block):
        """How large the block is, as a multiple of a unit ball."""
        flat = np.abs(block).ravel()
        if self.name == "nuclear":
            return np.linalg.svd(block, compute_uv=False).sum()
        if self.name == "spectral":
            return np.linalg.norm(block, 2)
        if self.name == "l2":
            return np.linalg.norm(block)
        if self.name == "box":
            return flat.max()
        if self.name == "k-sparse":
            return max(flat.max(), flat.sum() / min(2, len(flat)))
        return np.linalg.norm(block, axis=1).sum()

    def best(self, g):
        """The maximum of ``<-g, v>`` over the unit ball."""
        flat = np.abs(g).ravel()
        if self.name == "nuclear":
            return np.linalg.norm(g, 2)
        if self.name == "spectral":
            return np.linalg.svd(g, compute_uv=False).sum()
        if self.name == "l2":
            return np.linalg.norm(g)
        if self.name == "box":
            return flat.sum()
        if self.name == "k-sparse":
            return np.sort(flat)[-2:].sum()
        return -g.min() if self.name == "simplex" else np.linalg.norm(g, axis=1).max()

    def inside(self):
        """Every block in its set, up to what rounding to the dtype can do.

        In float64 the singular values themselves, here and in numpy, are only good to some tens of eps.
        """
        coarse = self.name in ("nuclear", "spectral") and self.p.dtype == torch.float64
        for block, r in zip(self.split(self.p), self.r, strict=True):
            assert self.norm(block) <= r * (1 + (64 if coarse else 10) * self.eps)
            if self.name == "simplex":
                assert (block >= 0).all()
                assert abs(block.sum() - r) <= 10 * self.eps * r
        assert self.set.contains(self.p.detach(), tol=64 * self.eps if coarse else None).all()

    def bounded(self):
        """Which blocks are on the boundary, without a doubt."""
        sizes = np.array([self.norm(block) for block in self.split(self.p)])
        return sizes >= self.r * (1 - 6 * self.eps)

    def rate(self, factor: float, scale: float) -> float:
        """A learning rate with which a gradient of this scale makes steps of about ``factor``."""
        return factor * float(self.r.min()) / scale

    def optimizer(self, lr: float, **options) -> inface.FrankWolfe:
        group = {"params": [self.p], "set": self.set, "in_face": self.strategy, "fused": self.fused}
        return inface.FrankWolfe([group], lr, **options)

    def twin(self) -> "Case":
        return Case(self.name, self.set, self.p.detach().clone(), self.strategy, self.turned, self.fused)


NUMBERS = st.one_of(st.integers(-2, 2).map(float), st.floats(-1, 1, width=32))


@st.composite
def values(draw, shape, dtype=torch.float64):
    """Signed numbers with ties and many zeros."""
    fill = draw(st.sampled_from([0.0, 1.0, -0.5]))
    array = draw(hnp.arrays(np.float64, shape, elements=NUMBERS, fill=st.just(fill)))
    if len(shape) > 1 and draw(st.booleans()):
        array[draw(st.integers(0, shape[0] - 1))] = 0
    return torch.tensor(array).to(dtype)


@st.composite
def cases(
    draw,
    names=tuple(MAKE),
    starts=("inside", "project", "vertex", "face", "just inside"),
    strategies=(*IN_FACE, by_hand),
):
    name = draw(st.sampled_from(names))
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    per = draw(st.sampled_from(["output", "input", "tensor"]))
    if name.startswith("group"):
        assume(name != f"group-{per}" and (len(shape) > 1 or (name, per) == ("group-output", "tensor")))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    count = 1 if len(shape) == 1 or per == "tensor" else shape[0 if per == "output" else 1]
    one = st.floats(-2, 3).map(lambda e: 10**e)
    radius = draw(st.one_of(one, st.lists(one, min_size=count, max_size=count).map(lambda r: torch.tensor(r).double())))
    set_ = MAKE[name](radius, per)
    start = draw(st.sampled_from(starts))
    x = draw(values(shape, dtype))
    if start == "face":  # weights that are exact, so that common entries at a bound stay there
        vertices = [set_.vertex(draw(values(shape, dtype))) for _ in range(3)]
        x = 0.5 * vertices[0] + 0.25 * vertices[1] + 0.25 * vertices[2]
    else:
        x = set_.vertex(x) if start == "vertex" else set_.project(x * (1e6 if start != "inside" else 1e-6))
    if start == "just inside" and name != "simplex":
        x = x * (1 - draw(st.integers(1, 40)) * torch.finfo(dtype).eps)
    strategy = draw(st.sampled_from(strategies)) if name != "spectral" else None
    return Case(name, set_, set_.project(x), strategy, draw(st.booleans()), draw(st.sampled_from([None, False])))


def bits(x):
    return x.detach().contiguous().view(torch.int32 if x.dtype == torch.float32 else torch.int64).clone()


def give(p, g):
    p.grad = g.to(p.dtype)


@settings(max_examples=120)
@given(st.data(), cases(), st.sampled_from(SCALES), st.sampled_from([1e-3, 0.3, 1.0, 10.0, 1e4]))
def test_every_iterate_is_feasible(data, case, scale, factor):
    optimizer = case.optimizer(case.rate(factor, scale))
    case.inside()
    for _ in range(6):
        give(case.p, scale * data.draw(values(case.p.shape)))
        optimizer.step()
        case.inside()


@settings(max_examples=120)
@given(st.data(), cases(names=SPARSE), st.sampled_from(SCALES), st.sampled_from([1e-3, 0.3, 1.0, 1e4]))
def test_an_in_face_step_on_the_boundary_keeps_zeros_and_directions(data, case, scale, factor):
    optimizer = case.optimizer(case.rate(factor, scale))
    for _ in range(4):
        give(case.p, scale * data.draw(values(case.p.shape)))
        optimizer.step()
        before, on = case.split(case.p), case.bounded()
        give(case.p, scale * data.draw(values(case.p.shape)))
        optimizer.step()
        for old, new, r in zip(np.array(before)[on], np.array(case.split(case.p))[on], case.r[on], strict=True):
            sizes = np.linalg.norm(new, axis=1, keepdims=True), np.linalg.norm(old, axis=1, keepdims=True)
            assert (new[old == 0] == 0).all()
            np.testing.assert_allclose(new * sizes[1], old * sizes[0], rtol=0, atol=8 * case.eps * r * r)
            assert abs(case.norm(new) - r) <= 8 * case.eps * r, "the step left the boundary"
        assert case.bounded()[on].all()


def away_slope(case, block, g, r, strategy):
    """The paper's ``A`` of a step from the worst vertex of the face of a boundary block, by brute force."""
    sizes = np.linalg.norm(block, axis=1)
    prices = r * (g * block).sum(1)[sizes > 0] / sizes[sizes > 0]
    return prices.max() - (prices.min() if strategy != "away" else (g * block).sum())


@settings(max_examples=120)
@given(
    st.data(),
    cases(names=SPARSE, starts=("project", "vertex", "face"), strategies=("away", "pairwise", by_hand)),
)
def test_a_maximal_step_from_the_boundary_drops_exactly_one_entry_to_an_exact_zero(data, case):
    optimizer = case.optimizer(case.rate(1e30, 1.0))
    assume(case.bounded().all())
    give(case.p, torch.zeros_like(case.p))
    optimizer.step()
    g = data.draw(values(case.p.shape, case.p.dtype))
    old = case.split(case.p)
    give(case.p, g)
    optimizer.step()
    slopes = [away_slope(case, *block, case.strategy) for block in zip(old, case.split(g), case.r, strict=True)]
    kept = [[np.count_nonzero(np.linalg.norm(b, axis=1)) for b in side] for side in (old, case.split(case.p))]
    lost = np.subtract(*kept)
    assert optimizer.report().drop == lost.sum()
    for slope, gone, before, r in zip(slopes, lost, kept[0], case.r, strict=True):
        if slope > 1e-4 * r and before > 1:
            assert gone == 1
        assert gone in (0, 1)
    case.inside()


@settings(max_examples=120)
@given(st.data(), cases(names=("box", "k-sparse")), st.sampled_from(SCALES), st.sampled_from([1e-3, 0.3, 1e30]))
def test_an_in_face_step_keeps_entries_at_a_bound_and_lands_on_others_exactly(data, case, scale, factor):
    optimizer = case.optimizer(case.rate(factor, scale))
    give(case.p, scale * data.draw(values(case.p.shape)))
    optimizer.step()
    old = case.split(case.p)
    give(case.p, scale * data.draw(values(case.p.shape)))
    optimizer.step()
    for before, after, r in zip(old, case.split(case.p), case.r, strict=True):
        bound = float(torch.tensor(r).to(case.p.dtype))
        at, arrived = np.abs(before) == bound, np.abs(after) == bound
        assert (after[at] == before[at]).all()
        full = min(2, before.size) * r if case.name == "k-sparse" else np.inf
        facet, reached = (np.abs(b).sum() >= full * (1 - 6 * case.eps) for b in (before, after))
        if facet:
            assert reached
            assert (after[before == 0] == 0).all()
            assert (after * before >= 0).all()
        if factor == 1e30 and (after != before).any() and case.strategy != "frank-wolfe":
            dropped = facet and (after == 0).sum() > (before == 0).sum()
            assert arrived.sum() > at.sum() or dropped or (reached and not facet), "a maximal step ended nowhere"


@settings(max_examples=120)
@given(st.data(), cases(), st.sampled_from(SCALES))
def test_the_gap_is_never_negative_and_zero_only_at_stationary_points(data, case, scale):
    g = scale * data.draw(values(case.p.shape, case.p.dtype))
    x = case.p.detach()
    found = case.set.toward(case.set.to_blocks(x), case.set.to_blocks(g)).slope.numpy()
    parts = list(zip(case.split(x), case.split(g), case.r, strict=True))
    exact = np.array([(c * b).sum() + r * case.best(c) for b, c, r in parts])
    rounding = np.array([16 * case.eps * r * np.abs(c).sum() for _, c, r in parts])
    np.testing.assert_array_less(np.abs(found - exact), rounding + 1e-300)
    optimizer = case.optimizer(case.rate(0.1, scale))
    give(case.p, g)
    optimizer.step()
    assert optimizer.gap >= 0
    if (exact > rounding).any():
        assert optimizer.gap > 0
    with torch.no_grad():
        case.p.copy_(case.set.vertex(g))
    give(case.p, g)
    stationary = case.optimizer(case.rate(0.1, scale))
    stationary.step()
    assert (stationary.report().gap.blocks["group 0, parameter 0"].numpy() <= rounding).all()


@settings(max_examples=120)
@given(
    st.data(), cases(names=[name for name in MAKE if name != "spectral"], strategies=IN_FACE), st.sampled_from(SCALES)
)
def test_an_in_face_direction_never_points_uphill(data, case, scale):
    g = scale * data.draw(values(case.p.shape, case.p.dtype))
    blocks = case.set.to_blocks(case.p.detach()), case.set.to_blocks(g)
    if case.strategy == "projected":
        slope = case.set.project_in_face(*blocks, rate=1.0, diameter=1.0).slope.numpy()
    else:
        slope = case.set.in_face(case.strategy, *blocks).slope.numpy()
    rounding = [16 * case.eps * r * np.abs(c).sum() for c, r in zip(case.split(g), case.r, strict=True)]
    assert (slope >= -np.array(rounding)).all()


@settings(max_examples=80)
@given(st.data(), cases(), st.sampled_from([0.0, 0.9]))
def test_a_zero_gradient_leaves_every_bit_alone_in_both_halves(data, case, momentum):
    with torch.no_grad():  # also the sign of a zero
        case.p.copy_(torch.where(case.p == 0, data.draw(values(case.p.shape, case.p.dtype)) * 0, case.p))
    optimizer = case.optimizer(case.rate(1e4, 1.0), momentum=momentum)
    before = bits(case.p)
    for _ in range(4):
        give(case.p, torch.zeros_like(case.p))
        optimizer.step()
        assert torch.equal(bits(case.p), before)


@settings(max_examples=120)
@given(st.data(), cases(), st.sampled_from([math.nan, math.inf, -math.inf]), st.booleans())
def test_a_block_whose_gradient_is_not_finite_stays_is_counted_and_spoils_no_other(data, case, bad, second_half):
    twin = case.twin()
    optimizer = case.optimizer(case.rate(0.5, 1.0))
    reference = twin.optimizer(case.rate(0.5, 1.0))
    if second_half and case.strategy:
        for p, opt in ((case.p, optimizer), (twin.p, reference)):
            give(p, torch.zeros_like(p))
            opt.step()
    good = data.draw(values(case.p.shape, case.p.dtype))
    spoiled = good.clone()
    flat = spoiled.view(-1)
    for index in data.draw(st.sets(st.integers(0, flat.numel() - 1), min_size=1, max_size=3)):
        flat[index] = bad
    seen = spoiled
    if case.strategy == "projected" and second_half:  # it looks at what a block uses
        x = case.set.to_blocks(case.p.detach())
        used = case.set.in_use(x)
        seen = (
            spoiled
            if used is None
            else case.set.from_blocks(torch.where(used, case.set.to_blocks(spoiled), 0), spoiled)
        )
    hit = torch.tensor([not np.isfinite(block).all() for block in case.split(seen)])
    before = case.set.to_blocks(bits(case.p))
    give(case.p, spoiled)
    give(twin.p, good)
    optimizer.step()
    reference.step()
    after, clean = case.set.to_blocks(bits(case.p)), case.set.to_blocks(bits(twin.p))
    assert torch.equal(after[hit], before[hit])
    assert torch.equal(after[~hit], clean[~hit])
    assert optimizer.report().skipped == int(hit.sum())
    assert reference.report().skipped == 0


LONG = {
    "l1": L1Ball(0.3),
    "simplex": Simplex(0.3),
    "group": GroupL1Ball(3.0, groups="input"),
    "k-sparse": KSparsePolytope(0.1, k=5),
    "box": LInfBall(0.1),
    "l2": L2Ball(0.3),
    "nuclear": NuclearBall(0.3),
    "spectral": SpectralBall(0.3),
}
WIDE = (4, 784)


@pytest.mark.parametrize(
    ("name", "strategy"),
    list(zip(LONG, ["away", "pairwise", "frank-wolfe", "away", "pairwise", "away", "away", None], strict=True)),
)
def test_a_long_run_in_float32_stays_in_the_set(name, strategy):
    generator = torch.Generator().manual_seed(0)
    set_ = LONG[name]
    p = torch.nn.Parameter(set_.project(torch.randn(WIDE, generator=generator)))
    target = torch.randn(WIDE, generator=generator)
    optimizer = inface.FrankWolfe([{"params": [p], "set": set_}], 0.05, in_face=strategy)
    for step in range(1000):
        p.grad = p.detach() - target + 0.3 * torch.randn(WIDE, generator=generator)
        optimizer.step()
        if step % 20 == 0:
            assert set_.contains(p.detach()).all(), f"outside at step {step}"


@pytest.mark.parametrize("strategy", IN_FACE)
@pytest.mark.parametrize("name", ["l1", "simplex", "group", "k-sparse", "nuclear"])
def test_a_long_run_in_float32_that_cannot_leave_the_boundary_does_not(name, strategy):
    """All gradients have their best vertex in one proper face, and the iterate starts there: no step can leave it."""
    generator = torch.Generator().manual_seed(1)
    set_ = LONG[name]
    units = torch.nn.functional.normalize(torch.randn(WIDE, generator=generator), dim=0)
    left, right = (torch.linalg.qr(torch.randn(n, 3, generator=generator)).Q for n in WIDE)

    def inward():
        positive = torch.rand(WIDE, generator=generator)
        core = torch.randn(3, 3, generator=generator)
        return {"group": positive[:1] * units, "nuclear": left @ (core @ core.T) @ right.T}.get(name, positive)

    p = torch.nn.Parameter(set_.project(1000 * inward()))
    lr = 0.001 if name == "nuclear" else 0.02
    optimizer = inface.FrankWolfe([{"params": [p], "set": set_}], lr, in_face=strategy)
    for step in range(1000):
        p.grad = -inward()
        optimizer.step()
        if step % 20 == 0:
            assert set_.contains(p.detach()).all(), f"outside at step {step}"
            assert (set_.norm(p.detach()) >= set_.radius * (1 - 8 * 2**-23)).all(), f"off the boundary at step {step}"
    assert optimizer.report().frank_wolfe > 0
    assert optimizer.report().in_face > 0
