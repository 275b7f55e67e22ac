"""Every step against a few lines of numpy that follow the paper, in float64."""

from collections import Counter
from itertools import combinations, product

import numpy as np
import pytest
import torch

import inface
from inface.sets import GroupL1Ball, KSparsePolytope, L1Ball, L2Ball, LInfBall, NuclearBall, Simplex, SpectralBall

NEAR = 1e-10  # the reference calls a facet active, or a singular value zero, at this distance
STEPS = 84
IN_FACE = [None, "away", "frank-wolfe", "pairwise"]


# ---------------------------------------------------------------------- sets, by their definitions


class Polytope:
    """The hull of the rows of ``V``, which is also ``{x : A x <= b}``; faces and step limits by enumeration."""

    def __init__(self, V, A, b):
        self.V, self.A, self.b = np.array(V, float), np.array(A, float), np.array(b, float)
        self.diameter = np.linalg.norm(self.V[:, None] - self.V, axis=2).max()

    def vertex(self, g):
        return self.V[np.argmin(self.V @ g)]

    def face_vertex(self, x, g):
        active = self.A @ x >= self.b - NEAR
        face = self.V[(self.b[active] - NEAR <= self.V @ self.A[active].T).all(1)]
        return face[np.argmin(face @ g)]

    def max_step(self, x, d):
        slack, rise = self.b - self.A @ x, self.A @ d
        ahead = (slack > NEAR) & (rise > 0)
        return np.min(slack[ahead] / rise[ahead], initial=np.inf)


def signs(n):
    return np.array(list(product([1.0, -1.0], repeat=n)))


def l1(r, shape):
    n = shape[0]
    return Polytope(np.vstack([r * np.eye(n), -r * np.eye(n)]), signs(n), np.full(2**n, r))


def simplex(r, shape):
    n = shape[0]
    return Polytope(r * np.eye(n), np.vstack([-np.eye(n), np.ones(n), -np.ones(n)]), [*[0] * n, r, -r])


def linf(r, shape):
    n = shape[0]
    return Polytope(r * signs(n), np.vstack([np.eye(n), -np.eye(n)]), np.full(2 * n, r))


def k_sparse(k):
    def make(r, shape):
        n = shape[0]
        V = [
            [r * dict(zip(J, s, strict=True)).get(j, 0) for j in range(n)]
            for J in combinations(range(n), k)
            for s in signs(k)
        ]
        return Polytope(V, np.vstack([np.eye(n), -np.eye(n), signs(n)]), [*[r] * (2 * n), *[k * r] * 2**n])

    return make


class Curved:
    """A ball with infinitely many extreme points; inside it, the step limit is found by bisection."""

    def __init__(self, r, shape):
        self.r, self.diameter = r, 2 * r

    def on_boundary(self, x):
        return self.norm(x) >= self.r * (1 - NEAR)

    def max_step(self, x, d):
        if np.abs(d).max() < NEAR:
            return np.inf
        if self.on_boundary(x):
            return self.face_step(x, d)
        low, high = 0.0, 2 * self.r / self.norm(d)
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if self.norm(x + middle * d) <= self.r else (low, middle)
        return low


class Groups(Curved):
    """``sum of the norms of the rows <= r``; with rows of one number the l1 ball, with one row the l2 ball."""

    def norm(self, x):
        return np.linalg.norm(x, axis=1).sum()

    def vertex(self, g):
        norms = np.linalg.norm(g, axis=1)
        v = np.zeros_like(g)
        if norms.max() > 0:
            v[norms.argmax()] = -self.r * g[norms.argmax()] / norms.max()
        else:
            v[0, 0] = self.r
        return v

    def directions(self, x):
        norms = np.linalg.norm(x, axis=1)
        return norms, np.where(norms > NEAR, 1, 0)[:, None] * x / np.maximum(norms, NEAR)[:, None]

    def face_vertex(self, x, g):
        if not self.on_boundary(x):
            return self.vertex(g)
        norms, units = self.directions(x)
        j = np.where(norms > NEAR, (g * units).sum(1), np.inf).argmin()
        v = np.zeros_like(x)
        v[j] = self.r * units[j]
        return v

    def face_step(self, x, d):
        norms, units = self.directions(x)
        rise = (d * units).sum(1)
        falls = (rise < 0) & (norms > NEAR)
        return np.min(norms[falls] / -rise[falls], initial=np.inf)


class Nuclear(Curved):
    """``sum of the singular values <= r``."""

    def norm(self, x):
        return np.linalg.svd(x, compute_uv=False).sum()

    def vertex(self, g):
        u, s, vt = np.linalg.svd(g)
        return (-1 if s[0] > 0 else 1) * self.r * np.outer(u[:, 0], vt[0])

    def factors(self, x):
        u, s, vt = np.linalg.svd(x, full_matrices=False)
        return u[:, s > NEAR], s[s > NEAR], vt[s > NEAR].T

    def face_vertex(self, x, g):
        if not self.on_boundary(x):
            return self.vertex(g)
        u, _, v = self.factors(x)
        core = u.T @ g @ v
        z = np.linalg.eigh(core + core.T)[1][:, 0]
        return self.r * np.outer(u @ z, v @ z)

    def face_step(self, x, d):
        """``M + a D`` stays positive semi-definite as long as ``1 + a eig(M^-1/2 D M^-1/2) >= 0``."""
        u, s, v = self.factors(x)
        lowest = np.linalg.eigvalsh((u.T @ d @ v) / np.sqrt(np.outer(s, s)))[0]
        return -1 / lowest if lowest < 0 else np.inf


class Spectral:
    """``largest singular value <= r``."""

    def __init__(self, r, shape):
        self.r, self.diameter = r, 2 * r * min(shape) ** 0.5

    def vertex(self, g):
        u, s, vt = np.linalg.svd(g, full_matrices=False)
        return -self.r * u @ vt if s[0] > 0 else self.r * np.eye(*g.shape)


# ---------------------------------------------------------------------- Algorithm 1


def layout(shape, per, inner):
    """Where the numbers of each block are in the flat parameter: ``(N, *block)``."""
    ids = np.arange(np.prod(shape)).reshape(shape)
    ids = ids[None] if per == "tensor" or len(shape) == 1 else np.moveaxis(ids, 1, 0) if per == "input" else ids
    if inner == "columns":
        ids = np.moveaxis(ids, 2, 1)
    return {
        "flat": lambda: ids.reshape(len(ids), -1),
        "entries": lambda: ids.reshape(len(ids), -1, 1),
        "whole": lambda: ids.reshape(len(ids), 1, -1),
        "rows": lambda: ids.reshape(len(ids), ids.shape[1], -1),
        "columns": lambda: ids.reshape(len(ids), ids.shape[1], -1),
    }[inner]()


class Averaged:
    """What free and constrained parameters share: the averaged gradient and the phase."""

    def __init__(self, x, in_face=None, momentum=0.0, sign=1):
        self.x, self.m, self.phase = np.array(x, float), None, 0
        self.in_face, self.momentum, self.sign = in_face, momentum, sign

    def gradient(self, g):
        g = self.sign * g
        self.m = g if self.m is None else self.momentum * self.m + (1 - self.momentum) * g
        return self.m

    def advance(self):
        self.phase = 0 if self.in_face is None else 1 - self.phase


class Constrained(Averaged):
    """Subroutines 1 and 2 on one parameter."""

    def __init__(self, x, sets, ids, bounds=None, **options):
        super().__init__(x, **options)
        self.sets, self.ids, self.bounds, self.kinds = sets, ids, bounds or [0.0] * len(sets), Counter()

    def step(self, g, lr):
        flat, g = self.x.ravel(), self.gradient(g).ravel()
        constants = [max(S.diameter**2 / lr, L_f * S.diameter) for S, L_f in zip(self.sets, self.bounds, strict=True)]
        gaps = []
        for S, ids, C in zip(self.sets, self.ids, constants, strict=True):
            x, c = flat[ids], g[ids]
            if self.phase == 0:
                d, limit = S.vertex(c) - x, 1.0
            else:
                d = self.direction(S, x, c)
                limit = S.max_step(x, d)
            slope = -(c * d).sum()
            gaps.append(slope)
            flat[ids] = x + min(slope / C, limit) * d
            self.count(S, x, slope / C, limit)
        if self.phase == 0:
            self.gap = sum(gaps) / np.sqrt(lr * sum(constants))
        self.x = flat.reshape(self.x.shape)
        self.advance()

    def direction(self, S, x, g):
        return {
            "away": lambda: x - S.face_vertex(x, -g),
            "frank-wolfe": lambda: S.face_vertex(x, g) - x,
            "pairwise": lambda: S.face_vertex(x, g) - S.face_vertex(x, -g),
        }[self.in_face]()

    def count(self, S, x, wanted, limit):
        if wanted > 1e-14:
            self.kinds["in_face" if self.phase else "frank_wolfe"] += 1
            if self.phase:
                self.kinds["boundary" if on_boundary(S, x) else "interior"] += 1
                self.kinds["drop" if wanted >= limit else "partial"] += 1
            elif wanted >= limit:
                self.kinds["clamped"] += 1


def on_boundary(S, x):
    return S.on_boundary(x) if isinstance(S, Curved) else (S.A @ x >= S.b - NEAR).any()


def descend(params, grads, lr, norm):
    """Step 3: ``y - lr |h|_* u`` with ``u`` the unit vector of the norm that maximises ``<h, u>``; all as new arrays."""
    flat = np.concatenate([h.ravel() for h in grads])
    if norm == "l2":
        return [y - lr * h for y, h in zip(params, grads, strict=True)]
    if norm == "l1":
        largest = np.abs(flat).max()
        return [y - lr * np.where(np.abs(h) == largest, h, 0) for y, h in zip(params, grads, strict=True)]
    if norm == "linf":
        return [y - lr * np.abs(flat).sum() * np.sign(h) for y, h in zip(params, grads, strict=True)]
    new = []
    for y, h in zip(params, grads, strict=True):
        u, s, vt = np.linalg.svd(h.reshape(len(h), -1), full_matrices=False)
        new.append(y - lr * s.sum() * (u @ vt).reshape(y.shape))
    return new


def free_step(group, grads, lr, norm="l2", every_gradient=False):
    """Step 3 on a group of free parameters; a gradient that is None is of a parameter that is left out."""
    present = [(y, y.gradient(h)) for y, h in zip(group, grads, strict=True) if h is not None]
    moving = [(y, m) for y, m in present if y.phase == 0 or every_gradient]
    if moving:
        for (y, _), new in zip(
            moving, descend([y.x for y, _ in moving], [m for _, m in moving], lr, norm), strict=True
        ):
            y.x = new
    for y, _ in present:
        y.advance()


# ---------------------------------------------------------------------- helpers


def parameter(x):
    return torch.nn.Parameter(torch.tensor(x, dtype=torch.float64))


def close(p, x, scale=None):
    return np.abs(p.detach().numpy() - x).max() <= 1e-12 * (np.abs(x).max() if scale is None else scale)


def gradients(rng, shape, steps):
    """A drift with noise, so that points settle on faces; zero in some first halves, so that faces are walked on.

    Half way the drift turns round, which takes points through the inside to the opposite faces.
    """
    drift = np.sign(steps / 2 - np.arange(steps) - 0.5).reshape(-1, *[1] * len(shape)) * rng.normal(size=shape)
    still = [t % 2 == 0 and (t < 12 or t % 6 == 4) for t in range(steps)]
    return [np.zeros(shape) if still[t] else drift[t] + 0.8 * rng.normal(size=shape) for t in range(steps)]


def rates(rng, steps):
    """Learning rates over three orders of magnitude, and one that takes every block all the way to its vertex."""
    lr = 2.0 ** rng.uniform(-8, 1, steps)
    lr[steps // 4 * 2 + 2] = 1e3
    return lr


def start(set_, shape, rng):
    return set_.project(torch.tensor(0.6 * rng.normal(size=shape))).numpy()


CASES = {
    "l1 rows": (L1Ball(1.5), l1, (4, 6), "flat"),
    "l1 columns": (L1Ball(0.7, per="input"), l1, (5, 3), "flat"),
    "l1 tensor": (L1Ball(2.0, per="tensor"), l1, (2, 4), "flat"),
    "l1 filters": (L1Ball(1.5), l1, (3, 2, 2, 2), "flat"),
    "l1 input channels": (L1Ball(1.5, per="input"), l1, (3, 2, 2, 1), "flat"),
    "l1 conv tensor": (L1Ball(1.5, per="tensor"), l1, (2, 1, 2, 2), "flat"),
    "l1 vector": (L1Ball(30.0), l1, (7,), "flat"),
    "l1 wide rows": (L1Ball(1.0), Groups, (3, 60), "entries"),
    "simplex rows": (Simplex(1.5), simplex, (4, 6), "flat"),
    "simplex tensor": (Simplex(1.5, per="tensor"), simplex, (2, 2, 3), "flat"),
    "linf rows": (LInfBall(0.5), linf, (4, 5), "flat"),
    "linf columns": (LInfBall(0.8, per="input"), linf, (4, 2, 2), "flat"),
    "k-sparse rows": (KSparsePolytope(0.6, k=2), k_sparse(2), (4, 6), "flat"),
    "k-sparse filters": (KSparsePolytope(0.6, k=3), k_sparse(3), (3, 2, 2, 1), "flat"),
    "k = n": (KSparsePolytope(0.6, k=4), k_sparse(4), (3, 4), "flat"),
    "groups of rows": (GroupL1Ball(1.5), Groups, (6, 3), "rows"),
    "groups of filters": (GroupL1Ball(1.5), Groups, (5, 2, 2, 2), "rows"),
    "groups of columns": (GroupL1Ball(1.5, groups="input"), Groups, (3, 6), "columns"),
    "groups of input channels": (GroupL1Ball(1.5, groups="input"), Groups, (2, 5, 2, 2), "columns"),
    "groups in filters": (GroupL1Ball(1.5, groups="input", per="output"), Groups, (3, 5, 2, 2), "rows"),
    "l2 rows": (L2Ball(1.5), Groups, (4, 6), "whole"),
    "l2 tensor": (L2Ball(1.5, per="tensor"), Groups, (4, 3, 2), "whole"),
    "nuclear tensor": (NuclearBall(4.0), Nuclear, (6, 5), "rows"),
    "nuclear conv": (NuclearBall(4.0), Nuclear, (4, 3, 2, 2), "rows"),
    "nuclear filters": (NuclearBall(2.0, per="output"), Nuclear, (3, 4, 2, 2), "rows"),
}
FRANK_WOLFE_ONLY = {
    "spectral tensor": (SpectralBall(1.5), Spectral, (6, 5), "rows"),
    "spectral filters": (SpectralBall(1.5, per="output"), Spectral, (3, 4, 2, 2), "rows"),
}
RUNS = [
    pytest.param(case, in_face, fused, id=f"{name}-{in_face}{'' if fused is None else '-without kernels'}")
    for name, case in {**CASES, **FRANK_WOLFE_ONLY}.items()
    for in_face in (IN_FACE if name in CASES else [None])
    for fused in ([None, False] if isinstance(case[0], L1Ball | Simplex | LInfBall) else [None])
]


def reference(set_, make, shape, inner, x, bounds=None, **options):
    ids = layout(shape, set_.per, inner)
    radii = np.broadcast_to(torch.as_tensor(set_.radius, dtype=torch.float64).numpy(), len(ids))
    return Constrained(x, [make(float(r), ids.shape[1:]) for r in radii], ids, bounds, **options)


# ---------------------------------------------------------------------- tests


@pytest.mark.parametrize(("case", "in_face", "fused"), RUNS)
def test_every_step_is_the_one_of_algorithm_1(case, in_face, fused):
    set_, _, shape, _ = case
    rng = np.random.default_rng(0)
    x = start(set_, shape, rng)
    p, ref = parameter(x), reference(*case, x, in_face=in_face)
    opt = inface.FrankWolfe([{"params": [p], "set": set_}], lr=1.0, in_face=in_face, fused=fused)
    scale = float(set_.radius)
    for t, (g, lr) in enumerate(zip(gradients(rng, shape, STEPS), rates(rng, STEPS), strict=True)):
        opt.param_groups[0]["lr"] = lr
        p.grad = torch.tensor(g)
        opt.step()
        ref.step(g, lr)
        assert close(p, ref.x, scale), t
        assert float(opt.gap) == pytest.approx(ref.gap, rel=1e-11, abs=1e-13), t
    assert (opt.report().clamped, opt.report().drop) == (ref.kinds["clamped"], ref.kinds["drop"])
    assert ref.kinds.keys() >= wanted_kinds(set_, in_face), "the run must meet every kind of step"


def wanted_kinds(set_, in_face):
    kinds = {"frank_wolfe", "clamped"}
    if in_face is not None:
        kinds |= {"in_face"} | {"boundary", "interior"} - {{Simplex: "interior", L2Ball: "boundary"}.get(type(set_))}
    return kinds | ({"drop", "partial"} if in_face in ("away", "pairwise") else set())


def test_an_entry_that_cancels_inside_a_k_sparse_polytope_is_no_support_on_its_facet():
    a = np.linspace(0.05, 0.3, 40)
    x = np.stack([1 - a, 0 * a + 0.3, 0 * a, -a], axis=1)
    set_ = KSparsePolytope(1.0, k=2)
    p, ref = parameter(x), reference(set_, k_sparse(2), x.shape, "flat", x, in_face="away")
    opt = inface.FrankWolfe([{"params": [p], "set": set_}], lr=1e3, in_face="away")
    # To the bound of entry 0, where entry 3 cancels; to the l1 facet; away from the vertex that entry 3 would have.
    for inner in ([0.0, 0.0, 1.0, -2.0], [0.0, 0.1, 1.0, 0.0], [0.0, 0.2, -0.1, -3.0], [0.0, 0.2, -0.1, 3.0]):
        for g in (np.zeros_like(x), np.tile(inner, (40, 1))):
            p.grad = torch.tensor(g)
            opt.step()
            ref.step(g, 1e3)
            assert close(p, ref.x)
    assert (p[:, 3] == 0).all()
    assert (p[:, 1] == 0).all()


OPTIONS = {
    "radii of blocks": ({}, torch.tensor([0.3, 1.0, 2.5, 40.0], dtype=torch.float64)),
    "momentum": ({"momentum": 0.9}, 1.5),
    "gradient_bound": ({"gradient_bound": 3.0}, 1.5),
    "gradient_bound of blocks": ({"gradient_bound": torch.tensor([0.1, 3.0, 9.0, 0.01])}, 1.5),
    "gradient_bound and radii": ({"gradient_bound": 3.0}, torch.tensor([0.3, 1.0, 2.5, 40.0], dtype=torch.float64)),
    "lr in a tensor": ({}, 0.7),
    "maximize": ({"maximize": True}, 1.5),
    "maximize with momentum": ({"maximize": True, "momentum": 0.5}, 1.5),
}


@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("in_face", [None, "away"])
@pytest.mark.parametrize("name", OPTIONS)
def test_options_change_the_step_as_their_definitions_say(name, in_face, fused):
    options, radius = OPTIONS[name]
    set_, shape, rng = L1Ball(radius), (4, 6), np.random.default_rng(1)
    x = start(set_, shape, rng)
    bound = options.get("gradient_bound")
    bounds = None if bound is None else np.broadcast_to(torch.as_tensor(bound).double().numpy(), 4).tolist()
    sign, momentum = -1 if "maximize" in options else 1, options.get("momentum", 0.0)
    ref = reference(set_, l1, shape, "flat", x, bounds, in_face=in_face, momentum=momentum, sign=sign)
    plain = reference(set_, l1, shape, "flat", x, in_face=in_face)
    p = parameter(x)
    opt = inface.FrankWolfe([{"params": [p], "set": set_}], lr=1.0, in_face=in_face, fused=fused, **options)
    for t, (g, lr) in enumerate(zip(gradients(rng, shape, STEPS), rates(rng, STEPS), strict=True)):
        opt.param_groups[0]["lr"] = torch.tensor(lr) if name == "lr in a tensor" else lr
        p.grad = torch.tensor(g)
        opt.step()
        ref.step(g, lr)
        plain.step(g, lr)
        assert close(p, ref.x), t
        assert float(opt.gap) == pytest.approx(ref.gap, rel=1e-11, abs=1e-13), t
    if options:
        assert not close(p, plain.x)


@pytest.mark.parametrize("every_gradient", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.7])
@pytest.mark.parametrize("norm", ["l2", "l1", "linf", "spectral"])
def test_free_parameters_descend_in_the_norm_of_their_group(norm, momentum, every_gradient):
    rng = np.random.default_rng(2)
    shapes = [(4, 3), (5,), (2, 3, 2, 2)]
    group = [Averaged(rng.normal(size=s), in_face="away", momentum=momentum) for s in shapes]
    params = [parameter(y.x) for y in group]
    opt = inface.FrankWolfe(params, lr=1.0, in_face="away", norm=norm, momentum=momentum, every_gradient=every_gradient)
    for lr in rates(rng, 40):
        grads = [rng.normal(size=s) for s in shapes]
        for p, h in zip(params, grads, strict=True):
            p.grad = torch.tensor(h)
        opt.param_groups[0]["lr"] = lr
        before = [p.detach().clone() for p in params]
        opt.step()
        free_step(group, grads, lr, norm, every_gradient)
        for p, y in zip(params, group, strict=True):
            assert close(p, y.x)
        if norm == "l1":
            moved = sum(int((p != old).sum()) for p, old in zip(params, before, strict=True))
            assert moved == (1 if every_gradient or group[0].phase == 1 else 0)


def test_groups_with_their_own_options_are_one_algorithm():
    """Two sets, two free groups, everything different, gradients of a function of all of them together."""
    rng = np.random.default_rng(3)
    rows, ball = L1Ball(torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)), NuclearBall(3.0)
    x1, x2 = start(rows, (3, 5), rng), start(ball, (4, 3), rng)
    a = reference(rows, l1, (3, 5), "flat", x1, in_face="away", momentum=0.5)
    b = reference(ball, Nuclear, (4, 3), "rows", x2, [2.0], in_face=None, sign=-1)
    c = [Averaged(rng.normal(size=(6,)), in_face="pairwise")]
    d = [Averaged(rng.normal(size=s), in_face=None, momentum=0.9) for s in ((2, 2), (3,))]
    everything = [a, b, *c, *d]
    params = [parameter(part.x) for part in everything]
    opt = inface.FrankWolfe(
        [
            {"params": params[:1], "set": rows, "lr": 0.8, "momentum": 0.5},
            {"params": params[1:2], "set": ball, "lr": 0.1, "in_face": None, "maximize": True, "gradient_bound": 2.0},
            {"params": params[2:3], "lr": 0.05, "in_face": "pairwise", "every_gradient": True},
            {"params": params[3:], "norm": "linf", "momentum": 0.9, "in_face": None},
        ],
        lr=0.02,
        in_face="away",
    )
    sizes = np.cumsum([part.x.size for part in everything])[:-1]
    n = sum(part.x.size for part in everything)
    Q, centre = rng.normal(size=(2, n, n)), rng.normal(size=n)
    Q = Q[0] @ Q[0].T / n + 0.3 * (Q[1] + Q[1].T) / 2

    def gradient(values):
        z = np.concatenate([v.ravel() for v in values])
        return [h.reshape(v.shape) for h, v in zip(np.split(Q @ (z - centre), sizes), values, strict=True)]

    for t in range(60):
        for p, h in zip(params, gradient([p.detach().numpy() for p in params]), strict=True):
            p.grad = torch.tensor(h)
        opt.step()
        h = gradient([part.x for part in everything])
        a.step(h[0], 0.8)
        b.step(h[1], 0.1)
        free_step(c, h[2:3], 0.05, every_gradient=True)
        free_step(d, h[3:], 0.02, "linf")
        for p, part in zip(params, everything, strict=True):
            assert close(p, part.x), t


@pytest.mark.parametrize("in_face", [None, "away", "pairwise"])
def test_each_parameter_alternates_over_the_gradients_that_it_receives(in_face):
    rng = np.random.default_rng(4)
    set_, shape = L1Ball(1.0), (3, 5)
    xs = [start(set_, shape, rng) for _ in range(3)]
    constrained = [reference(set_, l1, shape, "flat", x, in_face=in_face, momentum=0.3) for x in xs]
    free = [Averaged(rng.normal(size=(4,)), in_face=in_face, momentum=0.3) for _ in range(3)]
    params = [parameter(part.x) for part in constrained + free]
    opt = inface.FrankWolfe(
        [{"params": params[:3], "set": set_}, {"params": params[3:], "norm": "l1"}],
        lr=0.5,
        in_face=in_face,
        momentum=0.3,
    )
    for t in range(60):
        grads = [rng.normal(size=p.shape) if rng.random() < 0.6 else None for p in params]
        for p, g in zip(params, grads, strict=True):
            p.grad = None if g is None else torch.tensor(g)
        opt.step()
        for part, g in zip(constrained, grads, strict=False):
            if g is not None:
                part.step(g, 0.5)
        free_step(free, grads[3:], 0.5, "l1")
        for p, part in zip(params, constrained + free, strict=True):
            assert close(p, part.x), t
            assert opt.state[p].get("phase", 0) == part.phase


@pytest.mark.parametrize("in_face", IN_FACE[1:])
@pytest.mark.parametrize(
    "name", ["l1 rows", "l1 columns", "l1 filters", "simplex rows", "linf rows", "k-sparse rows", "nuclear tensor"]
)
def test_a_function_given_as_in_face_that_returns_its_directions_is_the_strategy(name, in_face):
    set_, _, shape, _ = CASES[name]
    rng = np.random.default_rng(5)
    x = start(set_, shape, rng)
    ref = reference(*CASES[name], x, in_face=in_face)

    def directions(same, blocks, grads):
        assert same is opt.param_groups[0]["set"]
        pairs = zip(ref.sets, blocks.numpy(), grads.numpy(), strict=True)
        size = ref.ids.shape[1:]
        found = [ref.direction(S, b.reshape(size), g.reshape(size)).reshape(b.shape) for S, b, g in pairs]
        return torch.tensor(np.stack(found))

    p = parameter(x)
    opt = inface.FrankWolfe([{"params": [p], "set": set_}], lr=1.0, in_face=directions)
    for t, (g, lr) in enumerate(zip(gradients(rng, shape, STEPS), rates(rng, STEPS), strict=True)):
        opt.param_groups[0]["lr"] = lr
        p.grad = torch.tensor(g)
        opt.step()
        ref.step(g, lr)
        assert close(p, ref.x, set_.radius), t
    assert in_face == "frank-wolfe" or opt.report().drop == ref.kinds["drop"] > 0


@pytest.mark.parametrize("radius", [0.7, 0.3, 1e-3, 1e3 / 3])
def test_a_direction_as_long_as_the_diameter_is_taken(radius):
    p = parameter(np.zeros((1, 2)))
    between = torch.tensor([[[-2 * radius], [0.0]]], dtype=torch.float64)
    opt = inface.FrankWolfe([{"params": [p], "set": L1Ball(radius)}], lr=1e9, in_face=lambda set_, x, g: between)
    for g in ([0.0, 0.0], [1.0, 0.0]):
        p.grad = torch.tensor([g], dtype=torch.float64)
        opt.step()
    assert p.tolist() == [[-radius, 0.0]]
