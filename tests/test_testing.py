"""``check_set`` holds every set to its contract, and finds what is wrong with sets that break it."""

import runpy
from itertools import product
from pathlib import Path

import pytest
import torch

import inface
from inface.sets import GroupL1Ball, KSparsePolytope, L1Ball, L2Ball, LInfBall, NuclearBall, Set, Simplex, SpectralBall
from inface.testing import check_set

ROOT = Path(__file__).parents[1]
PER = ["output", "input", "tensor"]

SETS = {
    "l1": L1Ball,
    "group": lambda r, per=None: GroupL1Ball(r, per=per),
    "group-input": lambda r, per=None: GroupL1Ball(r, groups="input", per=per),
    "nuclear": NuclearBall,
    "simplex": Simplex,
    "box": LInfBall,
    "k=2": lambda r, per=None: KSparsePolytope(r, k=2, per=per),
    "l2": L2Ball,
    "spectral": SpectralBall,
}
GROUPS = {"group": "output", "group-input": "input"}  # a group must be less than a block


@pytest.mark.parametrize(("name", "per"), [(name, per) for name, per in product(SETS, PER) if GROUPS.get(name) != per])
def test_every_set_keeps_the_contract_for_filters_of_a_convolution(name, per):
    check_set(SETS[name](0.7, per), (2, 3, 2, 2))


@pytest.mark.parametrize("name", SETS)
def test_every_set_keeps_the_contract_for_a_matrix(name):
    check_set(SETS[name](30.0), (3, 4), seed=1)


@pytest.mark.parametrize("name", [name for name in SETS if name != "group-input"])
def test_every_set_keeps_the_contract_for_a_vector(name):
    check_set(SETS[name](1e-3), (5,), seed=2)


@pytest.mark.parametrize("shape", [(3, 1), (1, 1), (1,)])
@pytest.mark.parametrize("name", ["l1", "simplex", "box", "l2"])
def test_sets_keep_the_contract_for_blocks_of_one_entry(name, shape):
    check_set(SETS[name](2.0), shape)


def test_radii_of_blocks_may_be_infinite():
    check_set(LInfBall(torch.tensor([1.0, torch.inf, 2.0])), (3, 4))


def test_a_shape_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="radius has 3 values, wanted one for each of the 2 blocks"):
        check_set(L1Ball(torch.ones(3)), (2, 4))


# ---------------------------------------------------------------------- sets that break it


def overriding(base, **methods):
    """A set of its own kind, with some methods replaced; each is given the original method first."""

    def bound(method, original):
        return lambda self, *args, **named: method(lambda *a, **n: original(self, *a, **n), self, *args, **named)

    changed = {name: bound(method, getattr(base, name)) for name, method in methods.items()}
    return type("Broken", (base,), {"kind": "broken", "has_faces": base.has_faces, **changed})


def tiny_instead_of_zero(apply, self, x, move, decision):
    end = apply(x, move, decision)
    return torch.where((end == 0) & (x != 0), 1e-9 * x.sign(), end)


BROKEN = {
    "a vertex that maximises": (
        overriding(L1Ball, dense_vertex=lambda vertex, self, g: vertex(-g)), "vertex: must minimise"),
    "a vertex outside": (
        overriding(L1Ball, dense_vertex=lambda vertex, self, g: 1.01 * vertex(g)), "vertex: must lie in the set"),
    "a vertex inside": (
        overriding(LInfBall, dense_vertex=lambda vertex, self, g: 0.5 * vertex(g)), "vertex: must have the norm"),
    "all vertices of a tie": (
        overriding(L1Ball, dense_vertex=lambda _, self, g: -0.7 * g.sign() * (g.abs() == g.abs().amax(1, keepdim=True))),
        "vertex: must lie in the set"),
    "a vertex of the first block for all": (
        overriding(L1Ball, dense_vertex=lambda vertex, self, g: vertex(g[:1].expand_as(g).contiguous())),
        "vertex: must minimise"),
    "the radius of the first block for all": (
        overriding(L1Ball, dense_vertex=lambda vertex, self, g: (
            vertex(g) / self.r(g).reshape(-1, 1, 1) * self.r(g).flatten()[0]).to(g.dtype)),
        "vertex: must (lie in the set|have the norm)"),
    "a projection that scales": (
        overriding(L1Ball, block_project=lambda _, self, x: (x * (self.r(x) / self.block_norm(x)).reshape(-1, 1, 1)).to(x.dtype)),
        "project: must be the nearest point"),
    "a projection that ends outside": (
        overriding(L2Ball, block_project=lambda project, self, x: 1.001 * project(x)), "project: must end in the set"),
    "a projection that moves points of the set": (
        overriding(L2Ball, projected=lambda _, self, x: 0.9 * self.block_project(x)), "project: must return points"),
    "membership without abs": (
        overriding(LInfBall, block_contains=lambda _, self, x, tol=None: x.amax(1) <= self.r(x) * (1 + (tol or 1e-6))),
        "contains: must be False outside"),
    "an absolute tolerance": (
        overriding(L2Ball, block_contains=lambda contains, self, x, tol=None: contains(x, 0.1 if tol is None else tol)),
        "contains: must be False outside"),
    "no tolerance at all": (
        overriding(L2Ball, block_contains=lambda contains, self, x, tol=None: contains(x, -1e-3 if tol is None else tol)),
        "contains: must be True for a point of the set"),
    "a tolerance that is not asked": (
        overriding(L2Ball, block_contains=lambda contains, self, x, tol=None: contains(x)),
        "contains: must take tol"),
    "not a number as a point": (
        overriding(L2Ball, block_contains=lambda contains, self, x, tol=None: ~(self.block_norm(x) > self.r(x) * (
            1 + (self.tolerance(x) if tol is None else tol)))), "contains: must be False where an entry is not a number"),
    "a squared norm": (
        overriding(L2Ball, block_norm=lambda norm, self, x: norm(x) ** 2 / 0.7), "norm: of 2x must be twice"),
    "a diameter too small": (
        overriding(L1Ball, diameter=lambda diameter, self, shape: diameter(shape) / 2), "diameter: in l2: no two points"),
    "a diameter too large": (
        overriding(L1Ball, diameter=lambda diameter, self, shape: diameter(shape) * 2), "diameter: in l2: two points must"),
    "a diameter that ignores the norm": (
        overriding(LInfBall, diameter=lambda _, self, shape: 2 * self.radius * shape.numel() ** 0.5),
        "diameter: in l1: no two points"),
    "steps too long": (
        overriding(L1Ball, ray=lambda ray, self, x, d: 1.1 * ray(x, d)), "max_step: must end in the set"),
    "steps too short": (
        overriding(L1Ball, ray=lambda ray, self, x, d: 0.9 * ray(x, d)), "max_step: must be the largest"),
    "faces that are the set": (
        overriding(L1Ball, dense_face_vertex=lambda _, self, x, g: self.dense_vertex(g)), "face_vertex: must lie in the minimal"),
    "faces that are their point": (
        overriding(L1Ball, dense_face_vertex=lambda _, self, x, g: x), "face_vertex: must be as good as the vertex"),
    "the worst vertex of the face": (
        overriding(L1Ball, dense_face_vertex=lambda vertex, self, x, g: vertex(x, -g)), "face_vertex: must minimise"),
    "a slope of the wrong sign": (
        overriding(L1Ball, away=lambda away, self, x, g: away(x, -g)), "away: its slope must be"),
    "a limit that is one": (
        overriding(L1Ball, limit=lambda _, self, x, move, wanted: torch.ones_like(wanted)), "away: its limit must be max_step"),
    "a step that ends beside a zero": (
        overriding(L1Ball, apply=tiny_instead_of_zero), "away: a maximal step must land exactly"),
    "a step that goes too far": (
        overriding(L2Ball, apply=lambda apply, self, x, move, decision: x + 1.01 * (apply(x, move, decision) - x)),
        "apply: a step of 1 must end at the vertex"),
    "a step of zero that moves": (
        overriding(L2Ball, apply=lambda apply, self, x, move, decision: apply(x, move, decision) * (1 + 1e-6)),
        "apply: "),
    "blocks that do not come back": (
        overriding(L2Ball, from_blocks=lambda back, self, b, like: back(b.flip(0), like)), "from_blocks: must undo"),
    "blocks that overlook strides": (
        overriding(L2Ball, to_blocks=lambda blocks, self, x: blocks(x.as_strided(x.shape, torch.empty(x.shape).stride()))),
        "must not depend on the layout"),
    "parameters that do not come back": (
        overriding(L2Ball, scatter=lambda back, self, x, like: back(x.flip(0), like)), "scatter: must undo gather"),
    "one kind for two classes": (type("Heir", (L1Ball,), {}), "kind 'l1' makes a L1Ball"),
    "an option that is forgotten": (
        overriding(KSparsePolytope, options=lambda _, self: {}), "to_dict: must make the set again"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_found_and_named(name):
    cls, clause = BROKEN[name]
    Set._kinds[cls.kind] = Set._kinds[cls.kind] if name == "one kind for two classes" else cls  # all are called Broken
    with pytest.raises(AssertionError, match=clause) as error:
        check_set(cls(0.7, **({"k": 2} if issubclass(cls, KSparsePolytope) else {})), (3, 4))
    assert cls.__name__ in str(error.value)


def test_an_error_names_shape_dtype_block_and_values():
    cls, _ = BROKEN["a diameter too small"]
    Set._kinds["broken"] = cls
    with pytest.raises(AssertionError, match=r"shape \(3, 4\), float64: .*: block 0: diameter = 0.7, distance = 1.4"):
        check_set(cls(1.4), (3, 4))


# ---------------------------------------------------------------------- what a class says, and what follows


def test_two_classes_of_one_kind_are_refused():
    with pytest.raises(ValueError, match="Other: kind 'l1' is that of L1Ball"):
        type("Other", (L2Ball,), {"kind": "l1"})


def test_a_subclass_does_not_inherit_the_kernel_whose_steps_it_may_change():
    assert (L1Ball.kernel, type("Heir", (L1Ball,), {}).kernel) == ("ball", None)
    assert (GroupL1Ball(1.0).kernel, GroupL1Ball(1.0, groups="input").kernel) == ("groups", None)


def test_a_class_has_faces_if_it_defines_their_vertices():
    assert {
        cls.has_faces for cls in (L1Ball, GroupL1Ball, NuclearBall, Simplex, LInfBall, L2Ball, KSparsePolytope)
    } == {True}
    assert not SpectralBall.has_faces


def test_a_set_with_another_radius_is_of_the_same_class():
    heir = type("Heir", (L1Ball,), {})
    assert type(heir(1.0).with_radius(2.0)) is heir
    assert type(heir(1.0, per="group").together()) is heir


@pytest.mark.parametrize("name", SETS)
def test_a_set_whose_blocks_are_all_free_contains_everything(name):
    x = 100 * torch.ones(2, 3)
    set_ = SETS[name](torch.tensor([torch.inf]), "tensor")
    assert set_.contains(x).all()
    assert torch.equal(set_.project(x), x)


# ---------------------------------------------------------------------- the example


@pytest.fixture(scope="module")
def ellipsoid():
    return runpy.run_path(str(ROOT / "examples" / "ellipsoid.py"))["Ellipsoid"]


def test_the_example_runs_as_the_page_shows_it(capsys):
    page = (ROOT / "docs" / "howto" / "own-set.md").read_text(encoding="utf-8")
    assert f"```python\n{(ROOT / 'examples' / 'ellipsoid.py').read_text(encoding='utf-8')}```" in page
    runpy.run_path(str(ROOT / "examples" / "ellipsoid.py"), run_name="__main__")
    assert capsys.readouterr().out in page


@pytest.mark.parametrize("per", PER)
def test_the_example_keeps_the_contract(ellipsoid, per):
    axes = torch.linspace(0.2, 3, {"output": 6, "input": 4, "tensor": 12}[per]).tolist()
    check_set(ellipsoid(1.7, axes, per=per), (2, 3, 2))


def test_an_ellipsoid_of_equal_axes_is_an_l2_ball(ellipsoid):
    generator = torch.Generator().manual_seed(0)
    one, other = ellipsoid(1.5, [2.0] * 5), L2Ball(3.0)
    x, g = (torch.randn(8, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    inside = other.project(x)
    for a, b in (
        (one.vertex(g), other.vertex(g)),
        (one.project(4 * g), other.project(4 * g)),
        (one.max_step(inside, g), other.max_step(inside, g)),
        (one.face_vertex(inside, g), other.face_vertex(inside, g)),
        (2 * one.norm(x), other.norm(x)),
    ):
        torch.testing.assert_close(a, b)
    runs = []
    for set_ in (one, other):
        p = torch.nn.Parameter(inside.clone())
        opt = inface.FrankWolfe([{"params": [p], "set": set_}], 0.5, in_face="away")
        for shift in range(20):
            p.grad = g.roll(shift, 1)
            opt.step()
        runs.append(p.detach())
    torch.testing.assert_close(*runs)


def test_axes_that_do_not_fit_are_refused(ellipsoid):
    with pytest.raises(ValueError, match="blocks of 3 entries, wanted one for each of 2 axes"):
        check_set(ellipsoid(1.0, [1.0, 2.0]), (4, 3))
