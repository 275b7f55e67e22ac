"""The modified gap, exact and stochastic, and the report of what an optimizer did."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from torch.nn.functional import mse_loss
from torch.utils._pytree import tree_leaves

import inface
from inface.sets import L1Ball, LInfBall, NuclearBall, Simplex

BOTH_PATHS = True

RADII = [0.5, 1.0, 2.0, 4.0]
NUCLEAR = 3.0


class Net(torch.nn.Module):
    """Two linear layers, whose gradients are a few products of matrices."""

    def __init__(self):
        super().__init__()
        rng = np.random.default_rng(0)
        w1, w2 = rng.normal(size=(4, 6)), rng.normal(size=(3, 4))
        w1 *= 0.8 * np.array(RADII)[:, None] / np.abs(w1).sum(1, keepdims=True)
        w2 *= NUCLEAR / np.linalg.svd(w2, compute_uv=False).sum()
        parts = (w1, rng.normal(size=4), w2, rng.normal(size=3))
        self.w1, self.b1, self.w2, self.b2 = (torch.nn.Parameter(torch.tensor(part)) for part in parts)

    def forward(self, inputs):
        return (inputs @ self.w1.T + self.b1) @ self.w2.T + self.b2


def data(n=11):
    rng = np.random.default_rng(1)
    return torch.tensor(rng.normal(size=(n, 6))), torch.tensor(rng.normal(size=(n, 3)))


def gradients(model, inputs, target):
    """Of the mean squared error, by hand."""
    w1, b1, w2, b2 = (p.detach().numpy() for p in (model.w1, model.b1, model.w2, model.b2))
    inputs, target = inputs.numpy(), target.numpy()
    hidden = inputs @ w1.T + b1
    out = 2 * (hidden @ w2.T + b2 - target) / target.size
    back = out @ w2
    return back.T @ inputs, back.sum(0), out.T @ hidden, out.sum(0)


def block_gaps(model, g1, g2):
    """``max over the set of <g, x - v>``, by the support functions of the l1 and of the nuclear ball."""
    w1, w2 = model.w1.detach().numpy(), model.w2.detach().numpy()
    rows = (g1 * w1).sum(1) + RADII * np.abs(g1).max(1)
    return rows, np.array([(g2 * w2).sum() + NUCLEAR * np.linalg.svd(g2, compute_uv=False)[0]])


def optimizer(model, lr=(0.1, 0.1, 0.1, 0.1), bounds=(None, None), **options):
    """The groups w1, w2, b1, b2 with their learning rates."""
    sets = (L1Ball(torch.tensor(RADII, dtype=torch.float64)), NuclearBall(NUCLEAR))
    constrained = zip((model.w1, model.w2), sets, bounds, lr[:2], strict=True)
    groups = [{"params": [p], "set": s, "gradient_bound": b, "lr": rate} for p, s, b, rate in constrained]
    groups += [{"params": [p], "lr": rate} for p, rate in zip((model.b1, model.b2), lr[2:], strict=True)]
    return inface.FrankWolfe(groups, lr=1.0, **options)


def by_hand(model, grads, lr, bounds=(0.0, 0.0)):
    """The definition: ``sum G_i / sqrt(lr_ref sum C_i) + sqrt(sum (lr_j / lr_ref) |h_j|^2)``, and its two terms."""
    g1, h1, g2, h2 = grads
    rows, matrix = block_gaps(model, g1, g2)
    diameters = [2 * np.array(RADII), np.array([2 * NUCLEAR])]
    C = sum(np.maximum(d**2 / rate, b * d).sum() for d, rate, b in zip(diameters, lr[:2], bounds, strict=True))
    reference = max(lr[2:])
    first = (rows.sum() + matrix.sum()) / np.sqrt(reference * C)
    second = np.sqrt((lr[2] * (h1**2).sum() + lr[3] * (h2**2).sum()) / reference)
    return first + second, first, second


RATES = {
    "one": (0.1, 0.1, 0.1, 0.1),
    "constrained longer": (8.0, 2.0, 0.1, 0.1),
    "all different": (0.02, 3.0, 0.1, 0.7),
}


@pytest.mark.parametrize("bounds", [(None, None), (5.0, 80.0)])
@pytest.mark.parametrize("rates", RATES)
def test_modified_gap_is_its_definition(rates, bounds):
    model, (inputs, target), lr = Net(), data(), RATES[rates]
    found = inface.modified_gap(model, mse_loss, [(inputs, target)], optimizer(model, lr, bounds))
    grads = gradients(model, inputs, target)
    value, first, second = by_hand(model, grads, lr, [b or 0.0 for b in bounds])
    assert float(found) == float(found.value) == pytest.approx(value, rel=1e-13)
    assert float(found.constrained) == pytest.approx(first, rel=1e-13)
    assert float(found.free) == pytest.approx(second, rel=1e-13)
    rows, matrix = block_gaps(model, grads[0], grads[2])
    assert found.blocks["w1"].numpy() == pytest.approx(rows, rel=1e-12)
    assert found.blocks["w2"].numpy() == pytest.approx(matrix, rel=1e-12)
    if rates == "one" and bounds == (None, None):
        diameter = np.sqrt(4 * sum(r * r for r in RADII) + 4 * NUCLEAR**2)
        tilde = rows.sum() + matrix.sum()
        assert value == pytest.approx(tilde / diameter + np.sqrt((grads[1] ** 2).sum() + (grads[3] ** 2).sum()))
        assert float(found.scale) == pytest.approx(diameter, rel=1e-13)


def test_a_gradient_bound_that_acts_lowers_the_gap():
    model, batch = Net(), [data()]
    free = inface.modified_gap(model, mse_loss, batch, optimizer(model))
    slack = inface.modified_gap(model, mse_loss, batch, optimizer(model, bounds=(1e-3, 1e-3)))
    acts = inface.modified_gap(model, mse_loss, batch, optimizer(model, bounds=(1e3, 1e3)))
    assert float(free) == float(slack) > float(acts)
    assert float(acts.free) == float(free.free)


def test_the_parts_of_a_gap_add_up():
    model = Net()
    found = inface.modified_gap(model, mse_loss, [data()], optimizer(model, RATES["all different"]))
    assert set(found.blocks) == set(found.sets) == {"w1", "w2"}
    assert {name: len(gaps) for name, gaps in found.blocks.items()} == {"w1": 4, "w2": 1}
    for name, gaps in found.blocks.items():
        assert (gaps > 0).all()
        assert float(found.sets[name]) == pytest.approx(float(gaps.sum()), rel=1e-14)
    assert float(found.constrained) == pytest.approx(float(sum(found.sets.values()) / found.scale), rel=1e-14)
    assert float(found.value) == pytest.approx(float(found.constrained + found.free), rel=1e-14)


@pytest.mark.parametrize("norm", ["l2", "l1", "linf", "spectral"])
def test_the_free_term_is_the_dual_norm_of_the_whole_group(norm):
    model, (inputs, target) = Net(), data()
    groups = [{"params": list(model.parameters()), "norm": norm}]
    found = inface.modified_gap(model, mse_loss, [(inputs, target)], inface.FrankWolfe(groups, lr=0.3))
    grads = gradients(model, inputs, target)
    everything = np.concatenate([g.ravel() for g in grads])
    nuclear = [np.linalg.svd(g.reshape(len(g), -1), compute_uv=False).sum() for g in grads]
    dual = {"l2": (everything**2).sum() ** 0.5, "l1": np.abs(everything).max(), "linf": np.abs(everything).sum()}
    assert float(found) == pytest.approx(dual.get(norm, np.linalg.norm(nuclear)), rel=1e-13)
    assert (float(found.constrained), found.blocks) == (0.0, {})


def test_uneven_batches_give_the_gap_of_the_whole_data_set():
    model, (inputs, target) = Net(), data()
    opt = optimizer(model, RATES["all different"])
    whole = inface.modified_gap(model, mse_loss, [(inputs, target)], opt)
    pieces = zip(inputs.split([1, 6, 4]), target.split([1, 6, 4]), strict=True)
    found = inface.modified_gap(model, mse_loss, pieces, opt)
    assert float(found) == pytest.approx(float(whole), rel=1e-13)
    assert float(found) != pytest.approx(
        float(inface.modified_gap(model, mse_loss, [(inputs[:6], target[:6])], opt)), rel=0.01
    )


@pytest.mark.parametrize("training", [True, False])
def test_modified_gap_leaves_the_model_as_it_was(training):
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3)).double()
    model.train(training)
    opt = inface.FrankWolfe(model, {"0.weight": L1Ball(1.0)}, lr=0.1, in_face="away", momentum=0.5, project=True)
    inputs, target = data()
    mse_loss(model(inputs), target).backward()
    opt.step()
    model[2].bias.grad = None

    def everything():
        leaves = tree_leaves((model.state_dict(), [p.grad for p in model.parameters()], opt.state_dict(), opt.gap))
        return [leaf.tolist() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]

    saved = everything()
    with torch.no_grad():
        inface.modified_gap(model, mse_loss, [(inputs[:5], target[:5]), (inputs[5:], target[5:])], opt)
    assert everything() == saved
    assert all(module.training is training for module in model.modules())


def test_buffers_are_put_back_when_the_loss_fails():
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 3)).double()
    saved = deepcopy(model.state_dict())
    inputs, target = data()
    batches = [(inputs, target), (inputs, target[:, :2].reshape(2, 11))]
    with pytest.raises(RuntimeError):
        inface.modified_gap(
            model,
            lambda out, wanted: (out - wanted).square().mean(),
            batches,
            inface.FrankWolfe(model.parameters(), lr=0.1),
        )
    torch.testing.assert_close(model.state_dict(), saved, rtol=0, atol=0)


def test_maximising_is_minimising_the_negative():
    model, batch = Net(), [data()]
    up = inface.modified_gap(model, mse_loss, batch, optimizer(model, maximize=True))
    down = inface.modified_gap(model, lambda out, target: -mse_loss(out, target), batch, optimizer(model))
    assert float(up) == float(down)
    assert float(up) != pytest.approx(float(inface.modified_gap(model, mse_loss, batch, optimizer(model))), rel=0.01)


def test_learning_rates_that_a_schedule_has_brought_to_zero_still_give_the_gap():
    model, batch = Net(), [data()]
    opt = optimizer(model, bounds=(5.0, 5.0))
    for group in opt.param_groups:
        group["lr"] = 0.0
    value, first, _ = by_hand(model, gradients(model, *batch[0]), (1e-9,) * 4)
    found = inface.modified_gap(model, mse_loss, batch, opt)
    assert float(found) == pytest.approx(value, rel=1e-13)
    assert float(found.constrained) == pytest.approx(first, rel=1e-13)


@pytest.mark.parametrize("frozen", [[0], [1], [2], [3], [2, 3], [0, 2]])
def test_a_group_whose_learning_rate_is_zero_while_others_move_is_no_part_of_the_gap(frozen):
    model, batch = Net(), [data()]
    opt = optimizer(model, RATES["all different"])
    for index in frozen:
        opt.param_groups[index]["lr"] = 0.0
    rest = [group for index, group in enumerate(opt.param_groups) if index not in frozen]
    others = inface.FrankWolfe([{"params": g["params"], "set": g["set"], "lr": g["lr"]} for g in rest], lr=1.0)
    found, wanted = (inface.modified_gap(model, mse_loss, batch, o) for o in (opt, others))
    assert float(found) == pytest.approx(float(wanted), rel=1e-13)
    assert float(found.scale) == pytest.approx(float(wanted.scale), rel=1e-13)


def test_frozen_parameters_are_no_part_of_the_gap():
    model, batch = Net(), [data()]
    opt = optimizer(model)
    model.w1.requires_grad_(False)
    model.b2.requires_grad_(False)
    others = inface.FrankWolfe([{"params": [model.w2], "set": NuclearBall(NUCLEAR)}, {"params": [model.b1]}], lr=0.1)
    found = inface.modified_gap(model, mse_loss, batch, opt)
    assert float(found) == float(inface.modified_gap(model, mse_loss, batch, others))
    assert set(found.blocks) == {"w2"}


def test_a_gap_over_no_batches_is_an_error():
    model = Net()
    with pytest.raises(ValueError, match="batches is empty"):
        inface.modified_gap(model, mse_loss, [], optimizer(model))


# ---------------------------------------------------------------------- the optimizer's own


def backward(model, inputs, target, opt):
    opt.zero_grad()
    mse_loss(model(inputs), target).backward()
    opt.step()


@pytest.mark.parametrize("in_face", [None, "away"])
@pytest.mark.parametrize("rates", RATES)
@pytest.mark.parametrize("bounds", [(None, None), (5.0, 80.0)])
def test_the_gap_of_the_optimizer_is_the_modified_gap_where_the_gradient_is_full(bounds, rates, in_face):
    model, (inputs, target) = Net(), data()
    opt = optimizer(model, RATES[rates], bounds, in_face=in_face)
    for step in range(20):
        if in_face is None or step % 2 == 0:
            exact = inface.modified_gap(model, mse_loss, [(inputs, target)], opt)
        backward(model, inputs, target, opt)
        assert float(opt.gap) == float(opt.report().gap) == pytest.approx(float(exact), rel=1e-12), step
        parts = opt.report().gap
        assert float(parts.constrained) == pytest.approx(float(exact.constrained), rel=1e-12)
        assert float(parts.free) == pytest.approx(float(exact.free), rel=1e-12)
        assert [gaps.tolist() for gaps in parts.blocks.values()] == [
            pytest.approx(gaps.tolist(), rel=1e-11, abs=1e-14) for gaps in exact.blocks.values()
        ]


@pytest.mark.parametrize("every_gradient", [False, True])
def test_the_gap_of_the_optimizer_is_the_last_first_halfs(every_gradient):
    model, (inputs, target) = Net(), data()
    opt = optimizer(model, in_face="away", every_gradient=every_gradient)
    assert opt.gap.shape == ()
    assert torch.isnan(opt.gap)
    seen = []
    for n in (5, 6, 7, 8):
        backward(model, inputs[:n], target[:n], opt)
        seen.append(float(opt.gap))
    assert seen[0] == seen[1] != seen[2] == seen[3]


def test_a_step_with_learning_rate_zero_is_no_first_half():
    model, (inputs, target) = Net(), data()
    opt = optimizer(model)
    for group in opt.param_groups:
        group["lr"] = 0.0
    backward(model, inputs, target, opt)
    assert torch.isnan(opt.gap)


@pytest.mark.parametrize("in_face", [None, "away"])
def test_with_momentum_the_gap_is_the_averaged_gradients(in_face):
    model, (inputs, target), lr = Net(), data(), RATES["all different"]
    opt = optimizer(model, lr, momentum=0.8, in_face=in_face)
    averages = None
    for n in range(3, 11):
        grads = gradients(model, inputs[:n], target[:n])
        averages = grads if averages is None else [0.8 * m + 0.2 * g for m, g in zip(averages, grads, strict=True)]
        if in_face is None or n % 2 == 1:
            wanted = by_hand(model, averages, lr)[0]
        backward(model, inputs[:n], target[:n], opt)
        assert float(opt.gap) == pytest.approx(wanted, rel=1e-12), n


def test_the_exact_gap_scales_no_gradient_where_steps_do():
    model, (inputs, target) = Net(), data()
    rows = block_gaps(model, *gradients(model, inputs, target)[::2])[0]
    scaled = block_gaps(model, *map(np.sign, gradients(model, inputs, target)[::2]))[0]
    opt = optimizer(model, precondition=True, eps=1e-14)
    exact = inface.modified_gap(model, mse_loss, [(inputs, target)], opt)
    np.testing.assert_allclose(exact.blocks["w1"], rows)
    mse_loss(model(inputs), target).backward()
    opt.step()
    np.testing.assert_allclose(next(iter(opt.report().gap.blocks.values())), scaled, rtol=1e-9)


def test_the_mean_of_stochastic_gaps_is_no_less_than_the_exact_gap():
    """Lemma 2.1, with the expectation over all batches of one sample."""
    inputs, target = data()
    opt = optimizer(model := Net())
    exact = inface.modified_gap(model, mse_loss, [(inputs, target)], opt)
    gaps = []
    for sample in zip(inputs.split(1), target.split(1), strict=True):
        opt = optimizer(model := Net())
        backward(model, *sample, opt)
        gaps.append(float(opt.gap))
    assert np.mean(gaps) > float(exact)
    assert min(gaps) < float(exact), "the noise must be large enough for a single gap to be smaller"


def test_looking_changes_nothing():
    inputs, target = data()
    watched, left = Net(), Net()
    opts = [optimizer(model, in_face="pairwise", momentum=0.3) for model in (watched, left)]
    for n in range(2, 11):
        for model, opt in zip((watched, left), opts, strict=True):
            backward(model, inputs[:n], target[:n], opt)
        assert float(opts[0].gap) > 0
        opts[0].report()
    for p, q in zip(watched.parameters(), left.parameters(), strict=True):
        assert torch.equal(p, q)
    assert float(opts[0].gap) == float(opts[1].gap)
    assert str(opts[0].report()) == str(opts[1].report())


# ---------------------------------------------------------------------- the report

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("fused", [None, False])
def test_the_report_counts_every_kind_of_step(fused):
    """Five blocks of an l1 ball of radius 1 and lr 1, so ``C = 4``, in two iterations."""
    x = torch.nn.Parameter(
        torch.tensor([[0.5, 0.0], [0.5, 0.5], [0.9, 0.1], [0.0, 0.5], [1.0, 0.0]], dtype=torch.float64)
    )
    opt = inface.FrankWolfe([{"params": [x], "set": L1Ball(1.0)}], lr=1.0, in_face="away", fused=fused)

    def counts():
        report = opt.report()
        return report.frank_wolfe, report.clamped, report.in_face, report.drop, report.skipped

    def step(*rows):
        x.grad = torch.tensor(rows, dtype=torch.float64)
        opt.step()
        return counts()

    assert counts() == (0, 0, 0, 0, 0)
    # Moves; goes all the way to its vertex; no gradient; no number; already at its best vertex.
    assert step([1.0, 0.0], [0.0, 9.0], [0.0, 0.0], [NAN, 0.0], [-1.0, 0.0]) == (2, 1, 0, 0, 1)
    # Moves inside; is a vertex; loses its second entry; no number; is a vertex.
    assert step([1.0, 0.0], [3.0, 1.0], [0.0, 9.0], [INF, 0.0], [1.0, 5.0]) == (2, 1, 2, 1, 2)
    assert x.tolist()[1:] == [[0.0, -1.0], [1.0, 0.0], [0.0, 0.5], [1.0, 0.0]]
    # Everything moves, one to its vertex.
    assert step([0.0, 1.0], [0.5, 0.0], [0.0, 0.5], [1.0, 0.0], [9.0, 0.0]) == (7, 2, 2, 1, 2)
    assert x.tolist()[4] == [-1.0, 0.0]
    # All but the vertex move; from inside, one as far as it can.
    assert step([1.0, 0.0], [0.0, 0.1], [0.0, -0.1], [99.0, 0.0], [1.0, 0.0]) == (7, 2, 6, 2, 2)
    text = str(opt.report())
    assert "7 Frank-Wolfe steps (2 clamped), 6 in-face steps (2 drops), 2 blocks skipped" in text


@pytest.mark.parametrize("fused", [None, False])
def test_reports_add_up_over_parameters_and_skipped_blocks_have_no_gap(fused):
    sets = (L1Ball(1.0), Simplex(1.0), LInfBall(1.0), LInfBall(1.0, per="input"))
    params = [torch.nn.Parameter(torch.full((3, 3), 1 / 3, dtype=torch.float64)) for _ in sets]
    groups = [{"params": [p], "set": s} for p, s in zip(params, sets, strict=True)]
    opt = inface.FrankWolfe(groups, lr=0.1, fused=fused)
    for p in params:
        p.grad = torch.arange(1.0, 10.0, dtype=torch.float64).reshape(3, 3)
        p.grad[1, 1] = NAN
    opt.step()
    report = opt.report()
    assert (report.frank_wolfe, report.skipped) == (8, 4)
    assert [gaps.count_nonzero() for gaps in report.gap.blocks.values()] == [2, 2, 2, 2]
    assert torch.isfinite(opt.gap)


def test_a_group_that_is_frozen_later_no_longer_counts():
    first, second = torch.nn.Parameter(torch.zeros(2, 3)), torch.nn.Parameter(torch.zeros(2, 3))
    opt = inface.FrankWolfe([{"params": [p], "set": L1Ball(1.0)} for p in (first, second)], lr=0.1)
    first.grad, second.grad = torch.ones(2, 3), 5 * torch.ones(2, 3)
    opt.step()
    alone = inface.FrankWolfe([{"params": [torch.nn.Parameter(torch.zeros(2, 3))], "set": L1Ball(1.0)}], lr=0.1)
    alone.param_groups[0]["params"][0].grad = torch.ones(2, 3)
    alone.step()
    assert opt.gap != alone.gap
    opt.param_groups[1]["lr"] = 0.0
    assert opt.gap == alone.gap
    opt.param_groups[1]["lr"] = 0.1
    second.requires_grad_(requires_grad=False)
    assert opt.gap == alone.gap
