"""The norms on the blocks: diameters, constants and kappa against brute force, and who is told of another norm."""

import itertools

import numpy as np
import pytest
import torch

import inface
from inface.gap import step_rate
from inface.sets import GroupL1Ball, KSparsePolytope, L1Ball, L2Ball, LInfBall, NuclearBall, Set, Simplex, SpectralBall
from inface.sets.norms import DUAL, equivalence, length

VECTOR, MATRIX = ("l2", "l1", "linf"), ("frobenius", "spectral", "nuclear")
BY_HAND = {
    "l2": lambda x: np.linalg.norm(x.reshape(-1)),
    "l1": lambda x: np.abs(x).sum(),
    "linf": lambda x: np.abs(x).max(),
    "frobenius": lambda x: np.linalg.norm(x.reshape(-1)),
    "spectral": lambda x: np.linalg.norm(x.reshape(x.shape[0], -1), 2),
    "nuclear": lambda x: np.linalg.norm(x.reshape(x.shape[0], -1), "nuc"),
}


def corners(kind, n, r, k):
    every = itertools.product([1.0, -1.0, 0.0], repeat=n)
    held = {"l1": 1, "simplex": 1, "linf": n, "k-sparse": k}[kind]
    found = np.array([c for c in every if np.count_nonzero(c) == held]) * r
    return found[(found >= 0).all(1)] if kind == "simplex" else found


@pytest.mark.parametrize("norm", VECTOR)
@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize(
    "make",
    [L1Ball, Simplex, LInfBall, lambda r, norm: KSparsePolytope(r, 2, norm=norm)],
    ids=["l1", "simplex", "box", "k=2"],
)
def test_the_diameter_of_a_polytope_is_the_largest_distance_of_two_corners_in_its_norm(make, n, norm):
    set_ = make(0.75, norm=norm)
    vertices = corners(set_.kind, n, 0.75, min(2, n))
    wanted = max(BY_HAND[norm](v - w) for v in vertices for w in vertices)
    assert set_.diameter(torch.Size([n])) == pytest.approx(wanted, rel=1e-15)


@pytest.mark.parametrize("shape", [(4, 3), (3, 2, 4), (2, 5), (1, 4)])
@pytest.mark.parametrize(
    ("make", "norm"),
    [
        *itertools.product([L2Ball, GroupL1Ball, lambda r, per, norm: GroupL1Ball(r, "input", per, norm=norm)], VECTOR),
        *itertools.product([NuclearBall, SpectralBall], MATRIX),
    ],
)
def test_the_diameter_of_a_curved_set_is_attained_and_never_exceeded_in_its_norm(make, norm, shape):
    rng = np.random.default_rng(0)
    set_ = make(torch.tensor([0.75], dtype=torch.float64), per="tensor", norm=norm)
    diameter = set_.diameter(torch.Size(shape)).item()
    gradients = [rng.standard_normal(shape) for _ in range(20)]
    # Equal entries and signs make a vertex of the largest l1 norm, a single entry one of the largest linf norm.
    gradients += [np.ones(shape), np.eye(1, np.prod(shape)).reshape(shape)]
    vertices = [set_.vertex(torch.tensor(s * g)).numpy() for g in gradients for s in (1, -1)]
    distances = [BY_HAND[norm](v - w) for v, w in itertools.combinations(vertices, 2)]
    assert max(distances) == pytest.approx(diameter, rel=1e-12)


@pytest.mark.parametrize("norm", [*VECTOR, *MATRIX])
def test_a_length_its_dual_and_its_ratios_to_l2_are_those_of_brute_force(norm):
    rng = np.random.default_rng(1)
    shape = (3, 4)
    extremes = [np.eye(*shape), np.ones(shape), np.eye(1, 12).reshape(shape)]
    points = np.array([*extremes, *(rng.standard_normal(shape) for _ in range(200))])
    sizes = length(torch.tensor(points), norm).numpy()
    np.testing.assert_allclose(sizes, [BY_HAND[norm](x) for x in points], rtol=1e-13)
    flat = np.linalg.norm(points.reshape(len(points), -1), axis=1)
    first, second = equivalence(norm, 12, 3)
    assert (flat / sizes).max() == pytest.approx(first, rel=1e-12)
    assert (sizes / flat).max() == pytest.approx(second, rel=1e-12)
    inner = np.einsum("iab,jab->ij", points, points)
    duals = length(torch.tensor(points), DUAL[norm]).numpy()
    assert (inner <= np.outer(sizes, duals) * (1 + 1e-12)).all()


def optimizer(lrs=(0.1, 0.1, 0.1, 0.1), **options):
    shapes = [(2, 4), (3, 5), (6,), (2, 3)]
    params = [torch.nn.Parameter(torch.zeros(shape, dtype=torch.float64)) for shape in shapes]
    sets = (L1Ball(1.0, norm="l1"), SpectralBall(1.0, norm="spectral"), None, None)
    norms = ("l2", "l2", "linf", "spectral")
    groups = [
        {"params": [p], "set": s, "norm": norm, "lr": lr}
        for p, s, norm, lr in zip(params, sets, norms, lrs, strict=True)
    ]
    return params, inface.FrankWolfe(groups, lr=0.1, **options)


@pytest.mark.parametrize("lrs", [(0.1, 0.1, 0.1, 0.1), (0.4, 0.1, 0.2, 0.05), (0.1, 0.1, 0.0, 0.1)])
def test_kappa_is_the_product_of_the_two_largest_ratios_of_norms(lrs):
    params, opt = optimizer([lr or 1.0 for lr in lrs])
    for group, lr in zip(opt.param_groups, lrs, strict=True):
        group["lr"] = lr
    rng = np.random.default_rng(2)
    names = ("l1", "spectral", "linf", "spectral")

    def squares(parts):
        """Of the l2 norm and of the norm, with rows of the first parameter as blocks."""
        parts = [x if lr else 0 * x for x, lr in zip(parts, lrs, strict=True)]
        blocks = [(x, "l1", lrs[0]) for x in parts[0]] + list(zip(parts[1:], names[1:], lrs[1:], strict=True))
        flat = sum((x**2).sum() for x, *_ in blocks)
        return flat, sum(BY_HAND[name](x) ** 2 / lr for x, name, lr in blocks if lr)

    ratios = []
    for i, shape in enumerate([p.shape for p in params]):
        if lrs[i] == 0:
            continue
        zeros = [np.zeros(p.shape) for p in params]
        for x in (np.eye(shape[0], shape[1] if len(shape) > 1 else 1).reshape(shape), np.ones(shape), np.eye(1, 99)):
            zeros[i] = x if x.shape == tuple(shape) else x[0, : np.prod(shape)].reshape(shape)
            if i == 0:
                zeros[i][1:] = 0
            ratios.append(np.divide(*squares(zeros)))
    mixed = [np.divide(*squares([rng.standard_normal(p.shape) for p in params])) for _ in range(200)]
    assert max(mixed) <= max(ratios)
    assert min(mixed) >= min(ratios)
    assert inface.theory.kappa(opt) == pytest.approx(np.sqrt(max(ratios) / min(ratios)), rel=1e-12)


def test_kappa_of_l2_norms_and_one_learning_rate_is_exactly_one():
    weight, bias = torch.nn.Parameter(torch.zeros(3, 2)), torch.nn.Parameter(torch.zeros(3))
    opt = inface.FrankWolfe([{"params": [weight], "set": L1Ball(1.0)}, {"params": [bias]}], lr=0.1)
    for lr in np.random.default_rng(4).uniform(0, 1, 100):
        for group in opt.param_groups:
            group["lr"] = lr
        assert inface.theory.kappa(opt) == 1


def test_the_bound_takes_kappa_or_the_optimizer_and_assumes_neither():
    _, opt = optimizer(in_face=lambda s, x, g: 0 * x)
    known = {"L": 2.0, "initial": 1.0, "sigma": 0.5, "batch_sizes": 10}
    bound = inface.theory.squared_gap_bound
    assert bound(9, **known, optimizer=opt) == bound(9, **known, kappa=inface.theory.kappa(opt), in_face=True)
    assert bound(9, **known, optimizer=opt, in_face=False) < bound(9, **known, optimizer=opt)
    with pytest.raises(ValueError, match=r"sigma = 0.5, wanted kappa .* or optimizer=, got neither"):
        bound(9, **known)
    with pytest.raises(ValueError, match=r"wanted kappa or the optimizer, got kappa=1.0 and an optimizer"):
        bound(9, **known, optimizer=opt, kappa=1.0)
    assert bound(9, **known | {"sigma": 0.0}) == 1.6


def test_steps_and_gaps_follow_the_norm_through_the_diameter():
    after = []
    for norm, fused in itertools.product(VECTOR, (True, False)):
        p = torch.nn.Parameter(torch.zeros(1, 4, dtype=torch.float64))
        opt = inface.FrankWolfe([{"params": [p], "set": LInfBall(1.0, norm=norm)}], lr=0.1, fused=fused)
        p.grad = torch.ones_like(p)
        opt.step()
        diameter = {"l2": 4, "l1": 8, "linf": 2}[norm]
        assert p[0, 0].item() == pytest.approx(-4 * step_rate(diameter, 0.1, None))
        assert opt.gap.item() == pytest.approx(4 / diameter)
        after.append(p[0, 0].item())
    assert len(set(after)) == 3


@pytest.mark.parametrize(("norm", "fits"), [("l2", False), ("l1", True), ("linf", False)])
def test_a_function_as_in_face_is_held_to_the_diameter_in_the_norm_of_its_set(norm, fits):
    """Four entries of 3 have l1 norm 12 of at most 16, l2 norm 6 of at most 4 and linf norm 3 of at most 2."""
    radius = 2.0 if norm == "l1" else 1.0
    p = torch.nn.Parameter(torch.zeros(1, 4))
    opt = inface.FrankWolfe(
        [{"params": [p], "set": LInfBall(radius, norm=norm)}], lr=0.1, in_face=lambda s, x, g: torch.full_like(x, -3.0)
    )
    p.grad = torch.ones_like(p)
    opt.step()
    if fits:
        opt.step()
    else:
        with pytest.raises(ValueError, match=r"wanted \|d\| <= diam in block 0"):
            opt.step()


def test_a_norm_survives_plain_data_and_another_one_is_refused_like_another_kind():
    set_ = KSparsePolytope(torch.tensor([1.0, 2.0]), k=2, norm="linf")
    assert repr(Set.from_dict(set_.to_dict())) == repr(set_)
    assert set_.with_radius(1.0).norm_name == "linf"
    assert "norm" not in KSparsePolytope(1.0, k=2, norm="l2").to_dict()
    p = torch.nn.Parameter(torch.zeros(2, 3))
    saved = inface.FrankWolfe([{"params": [p], "set": L1Ball(1.0)}], lr=0.1).state_dict()
    with pytest.raises(ValueError, match=r"group 0 was saved with set .*, the optimizer has .*'norm': 'l1'"):
        inface.FrankWolfe([{"params": [p], "set": L1Ball(1.0, norm="l1")}], lr=0.1).load_state_dict(saved)


@pytest.mark.parametrize(("cls", "norm"), [(L1Ball, "frobenius"), (NuclearBall, "l2"), (GroupL1Ball, "L1")])
def test_a_norm_of_the_other_kind_is_refused_with_those_that_can_be(cls, norm):
    with pytest.raises(ValueError, match=f"{cls.__name__}: norm must be one of '{cls.norms[0]}', .*, got '{norm}'"):
        cls(1.0, norm=norm)


# ------------------------------------------------------------------------------------------------- Proposition 2.1


@pytest.mark.parametrize("norm", VECTOR)
@pytest.mark.parametrize(
    ("set_", "inside", "face"),
    [
        (L1Ball, [0.2, -0.1, 0.05], [0.6, -0.4, 0.0]),
        (LInfBall, [0.2, -0.1, 0.05], [1.0, -1.0, 0.3]),
        (L2Ball, [0.2, -0.1, 0.05], [0.6, -0.8, 0.0]),
    ],
)
@pytest.mark.parametrize("where", ["inside", "face"])
def test_the_gap_is_zero_at_a_local_minimum_of_a_non_convex_problem_and_only_there(set_, inside, face, where, norm):
    """``sum_j -cos(4 (x_j - c_j)) - <b, x>`` beside ``cos(y)``: at ``x = c`` its gradient is ``-b`` and its Hessian is
    positive. ``b`` is in the normal cone of ``c``, so that is a local minimum, though other valleys are deeper."""
    centre = torch.tensor([face if where == "face" else inside], dtype=torch.float64)
    normal = {L1Ball: [3.0, -3.0, 1.0], LInfBall: [1.0, -2.0, 0.0], L2Ball: [0.6, -0.8, 0.0]}[set_]
    b = torch.tensor([normal], dtype=torch.float64) * (where == "face")

    class Valleys(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.x = torch.nn.Parameter(centre.clone())
            self.y = torch.nn.Parameter(torch.tensor([np.pi], dtype=torch.float64))

        def forward(self, _):
            return -(4 * (self.x - centre)).cos().sum() - (b * self.x).sum() + self.y.cos().sum()

    model = Valleys()
    opt = inface.FrankWolfe(model, {"x": set_(1.0, norm=norm)}, lr=0.1)
    batch = [(torch.zeros(1), torch.zeros(1))]

    def gap():
        return float(inface.modified_gap(model, lambda out, _: out, batch, opt))

    ball, rng = set_(1.0), np.random.default_rng(3)
    least = model(None).item()
    assert gap() == pytest.approx(0, abs=1e-14)
    for _ in range(100):
        with torch.no_grad():
            model.x.copy_(ball.project(centre + 0.05 * torch.tensor(rng.standard_normal((1, 3)))))
            model.y.fill_(np.pi + 0.05 * rng.standard_normal())
            assert model(None) > least, "no local minimum"
        assert gap() > 1e-4
    with torch.no_grad():
        model.x.copy_(-centre)
        model.y.fill_(0)
    assert gap() > 0.1, "no local minimum, but a hill in y"


def test_a_direction_between_two_vertices_of_a_matrix_is_not_refused_for_rounding():
    """Its nuclear norm is the diameter itself, up to what a decomposition rounds."""
    generator = torch.Generator().manual_seed(16)
    for _ in range(5):
        p = torch.nn.Parameter(
            NuclearBall(0.1633).vertex(torch.randn(60, 60, generator=generator, dtype=torch.float64))
        )
        opt = inface.FrankWolfe(
            [{"params": [p], "set": NuclearBall(0.1633, norm="nuclear")}],
            lr=1e-6,
            in_face=lambda set_, x, g: set_.dense_vertex(g) - set_.dense_vertex(-g),
            project=True,
        )
        for _ in range(2):
            p.grad = torch.randn(60, 60, generator=generator, dtype=torch.float64)
            opt.step()
