"""What two processes must do as one does: every set, ``per`` and in-face step, on every way to cut a parameter."""

import torch
from torch.distributed.tensor import Replicate, Shard

from helpers.sharding import Pair, blocks_of, mesh, numbers
from inface.sets import GroupL1Ball, KSparsePolytope, L1Ball, L2Ball, LInfBall, NuclearBall, Simplex, SpectralBall

CASES = {}


SETS = {
    "l1": L1Ball,
    "group": lambda radius, per: GroupL1Ball(radius, "input" if per == "output" else "output", per),
    "nuclear": NuclearBall,
    "simplex": Simplex,
    "box": LInfBall,
    "k-sparse": lambda radius, per: KSparsePolytope(radius, k=2, per=per),
    "l2": L2Ball,
    "spectral": SpectralBall,
}
CUTS = [((5, 4), [Shard(0)]), ((4, 7), [Shard(1)]), ((3, 4), [Replicate()]), ((1, 4), [Shard(0)]), ((3, 4), None)]
STRATEGIES = (None, "away", "frank-wolfe", "pairwise", "projected")


def steps(kind, per, in_face):
    """A group of parameters that are cut in all ways, with momentum and a gradient bound every second time."""
    some = STRATEGIES.index(in_face) % 2 == 1
    options = {"momentum": 0.9, "gradient_bound": 50.0} if some else {}
    pair = Pair(
        mesh(), CUTS, lambda params: [{"params": params, "set": SETS[kind](0.7, per)}], in_face=in_face, **options
    )
    pair.train(4)
    pair.assert_same()


def radii(kind, per, in_face):
    """A radius, and a gradient bound, for every block: some of them infinite."""

    def groups(params):
        made = []
        for _, p in params:
            n = blocks_of(p, per)
            radius, bound = 0.5 + numbers(n).abs(), 20 + numbers(n).abs()
            if n > 2:
                radius[2] = torch.inf
            made.append({"params": [_named(params, p)], "set": SETS[kind](radius, per), "gradient_bound": bound})
        return made

    pair = Pair(mesh(), CUTS, groups, in_face=in_face, momentum=0.5)
    pair.train(4)
    pair.assert_same()


def _named(params, p):
    return next(pair for pair in params if pair[1] is p)


for kind, made in SETS.items():
    for per in ("output", "input", "tensor", "group"):
        if per == "group" and kind in ("nuclear", "spectral"):
            continue
        for in_face in STRATEGIES:
            if in_face is not None and not made(1.0, per).has_faces:
                continue
            if (
                in_face is not None
                and kind in ("nuclear", "k-sparse", "group", "l2")
                and per == "input"
                and in_face != "away"
            ):
                continue  # the same code as per output
            CASES[f"{kind}-{per}-{in_face}"] = lambda a=(kind, per, in_face): steps(*a)
for kind in ("l1", "simplex", "box", "nuclear"):
    for per in ("output", "input"):
        CASES[f"radii-{kind}-{per}"] = lambda a=(kind, per, "away"): radii(*a)
