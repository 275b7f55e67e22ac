"""PyTorch's own optimizer test machinery: what torch asks of its optimizers, asked of FrankWolfe on every set."""
# ruff: noqa: PT009, PT027 - torch's TestCase compares tensors

import copy
import io
import math
import pickle

import pytest
import torch
from torch.nn import Parameter
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, OneCycleLR, ReduceLROnPlateau, StepLR
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import inface
from inface.sets import GroupL1Ball, KSparsePolytope, L1Ball, L2Ball, LInfBall, NuclearBall, Simplex, SpectralBall

pytest.importorskip("expecttest")
machinery = pytest.importorskip("torch.testing._internal.common_optimizers", exc_type=ImportError)

from torch.testing._internal.common_device_type import instantiate_device_type_tests  # noqa: E402
from torch.testing._internal.common_utils import TestCase, parametrize  # noqa: E402

OptimizerInput, ErrorOptimizerInput, ErrorOn = (
    machinery.OptimizerInput,
    machinery.ErrorOptimizerInput,
    machinery.OptimizerErrorEnum,
)
SHAPE = (6, 5)
LR = 2.0**-6
SETS = {
    "free": None,
    "l1": L1Ball(1.0),
    "l1_radii": L1Ball(torch.tensor([0.25, 0.5, 1.0, 1.5, 2.0, 4.0])),
    "group": GroupL1Ball(3.0),
    "nuclear": NuclearBall(2.0),
    "simplex": Simplex(1.0),
    "box": LInfBall(0.3),
    "k_sparse": KSparsePolytope(0.4, k=2),
    "l2": L2Ball(1.0),
    "spectral": SpectralBall(1.0),
}


def inputs_for(set_):
    """What each optimizer is made with: all kinds of options but ``differentiable``, which tests set themselves."""

    def optim_inputs(device, dtype=None):
        kwargs = {
            "default": {"lr": LR},
            "large lr": {"lr": 0.25},
            "tensor lr": {"lr": torch.tensor(LR)},
            "momentum": {"lr": LR, "momentum": 0.9},
            "maximize": {"lr": LR, "maximize": True},
            "maximize, momentum": {"lr": LR, "maximize": True, "momentum": 0.5},
            "gradient_bound": {"lr": LR, "gradient_bound": 10.0},
            "torch operations": {"lr": LR, "fused": False},
            "norm l1": {"lr": LR, "norm": "l1"},
            "norm linf": {"lr": LR / 16, "norm": "linf"},
            "norm spectral": {"lr": LR, "norm": "spectral"},
            "norm adaptive": {"lr": LR, "norm": "adaptive", "betas": (0.8, 0.9)},
        }
        if set_ is None or set_.has_faces:
            kwargs |= {
                "away": {"lr": LR, "in_face": "away"},
                "away, momentum, every_gradient": {
                    "lr": LR,
                    "in_face": "away",
                    "momentum": 0.9,
                    "every_gradient": True,
                },
                "in-face Frank-Wolfe": {"lr": LR, "in_face": "frank-wolfe"},
                "pairwise, tensor lr": {"lr": torch.tensor(LR), "in_face": "pairwise"},
                "away, maximize": {"lr": LR, "in_face": "away", "maximize": True, "fused": False},
            }
        return [OptimizerInput(params=None, kwargs=options, desc=name) for name, options in kwargs.items()]

    return optim_inputs


def errors_for(set_):
    """What each optimizer refuses: what all of torch's do, with the lr that this one requires, and its own."""

    def optim_error_inputs(device, dtype):
        errors = machinery.get_error_inputs_for_all_optims(device, dtype)
        for error in errors:
            error.optimizer_error_input.kwargs.setdefault("lr", 1e-2)
        wrong = {
            "lr must be > 0": {"lr": 0.0},
            "lr must be > 0 and finite": {"lr": math.nan},
            "momentum must be in": {"lr": 1e-2, "momentum": 1.0},
            "norm must be one of": {"lr": 1e-2, "norm": "l3"},
            "betas must be two numbers": {"lr": 1e-2, "betas": (0.9, 1.5)},
            "eps must be >= 0": {"lr": 1e-2, "eps": math.inf},
            "in_face must be": {"lr": 1e-2, "in_face": "sideways"},
            "gradient_bound must be": {"lr": 1e-2, "gradient_bound": -1.0},
        }
        if set_ is not None and not set_.has_faces:
            wrong["offers no in-face steps"] = {"lr": 1e-2, "in_face": "away"}
        errors += [
            ErrorOptimizerInput(OptimizerInput(None, kwargs, message), error_type=ValueError, error_regex=message)
            for message, kwargs in wrong.items()
        ]
        sparse = Parameter(torch.zeros(3, 1))
        sparse.grad = torch.ones(3, 1).to_sparse()
        errors += [
            ErrorOptimizerInput(
                OptimizerInput(None, {}, "lr is required"), error_type=TypeError, error_regex="lr is missing"
            ),
            ErrorOptimizerInput(
                OptimizerInput([Parameter(torch.zeros(2, dtype=torch.complex64))], {"lr": 1e-2}, "complex"),
                error_type=ValueError,
                error_regex="dtype torch.complex64",
            ),
            ErrorOptimizerInput(
                OptimizerInput([sparse], {"lr": 1e-2}, "sparse gradient"),
                error_on=ErrorOn.STEP_ERROR,
                error_type=ValueError,
                error_regex="gradient of layout torch.sparse_coo",
            ),
        ]
        if set_ is not None:
            outside = {"params": [Parameter(torch.full(SHAPE, 100.0))], "set": set_}
            errors.append(
                ErrorOptimizerInput(
                    OptimizerInput([outside], {"lr": 1e-2}, "infeasible start"),
                    error_type=ValueError,
                    error_regex="starts outside its",
                )
            )
        return errors

    return optim_error_inputs


class SetInfo(machinery.OptimizerInfo):
    """FrankWolfe on one set, as one of torch's optimizers."""

    def __init__(self, label, set_):
        super().__init__(
            inface.FrankWolfe,
            optim_inputs_func=inputs_for(set_),
            optim_error_inputs_func=errors_for(set_),
            scheduler_inputs=(
                [lambda opt: StepLR(opt, gamma=0.9, step_size=10)],
                [lambda opt: ExponentialLR(opt, gamma=0.9), ReduceLROnPlateau],
                [lambda opt: CosineAnnealingLR(opt, T_max=20)],
                [lambda opt: OneCycleLR(opt, max_lr=LR, total_steps=21)],
            ),
            supported_impls=("differentiable",),
            not_og_supported_flags=(
                "gradient_bound",
                "every_gradient",
                "maximize",
                "differentiable",
                "fused",
                "project",
            ),
            supports_complex=False,
        )
        self.label, self.set = label, set_

    @property
    def strategies(self):
        return ["away", "frank-wolfe", "pairwise", "projected"] if self.set is not None and self.set.has_faces else []

    @property
    def name(self):
        return f"FrankWolfe_{self.label}"

    def groups(self, weight, bias, named=False):
        """A constrained weight (free where the set is None) and a free bias."""
        weights, biases = [weight], [bias]
        if named:
            weights, biases = [("weight", weight)], [("bias", bias)]
        return [{"params": weights, "set": self.set}, {"params": biases}]

    def make(self, weight, bias, named=False, **kwargs):
        return self.optim_cls(self.groups(weight, bias, named), **copy.deepcopy(kwargs))

    def start(self, device, dtype=torch.float32, seed=0):
        """A weight of the set, inside it where it has an inside, and a bias."""
        generator = torch.Generator().manual_seed(seed)
        weight = torch.randn(SHAPE, generator=generator, dtype=torch.float64)
        if self.set is not None:
            weight = self.set.project(weight)
            weight = weight if isinstance(self.set, Simplex) else 0.8 * weight
        bias = torch.randn(SHAPE[0], generator=generator, dtype=torch.float64)
        return Parameter(weight.to(device, dtype)), Parameter(bias.to(device, dtype))

    def face(self, where):
        """A point in general position, and a map from tensors near 0 to points around it in its minimal face."""
        set_, x = self.set, torch.randn(SHAPE, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        if set_ is None:
            return lambda t: x + t
        if not isinstance(set_, Simplex):
            x = 0.5 * x * (set_.radius / set_.norm(x)).reshape(-1, 1)
        if where == "inside" and not isinstance(set_, Simplex):
            return lambda t: x + t
        if isinstance(set_, LInfBall):
            x = x + set_.max_step(x, x.flip(1)).reshape(-1, 1) * x.flip(1)
            return lambda t: torch.where(x.abs() < set_.radius * (1 - 1e-12), x + t, x)
        if isinstance(set_, L1Ball | Simplex | KSparsePolytope):
            x = set_.project(x if isinstance(set_, Simplex) else 4 * x)
            bound = set_.radius if isinstance(set_, KSparsePolytope) else math.inf
            free = (x != 0) & (x.abs() < bound)

            def in_facet(t):
                t = torch.where(free, t, 0)
                return x + torch.where(free, x.sign() * (t - t.sum(1, True) / free.sum(1, True).clamp(min=1)), 0)

            return in_facet
        if isinstance(set_, GroupL1Ball):
            x[0] = 0
        used = (x != 0).any(1, keepdim=True)
        return lambda t: (x + used * t) * (set_.radius / set_.norm(x + used * t)).reshape(-1, 1)

    def feasible(self, weight):
        return self.set is None or bool(self.set.contains(weight.detach()).all())


INFOS = [SetInfo(label, set_) for label, set_ in SETS.items()]
every_set = machinery.optims(INFOS)


def objective(weight, bias):
    x = torch.linspace(-1, 1, SHAPE[1], dtype=weight.dtype)
    return (weight @ x + bias).square().sum()


def steps(opt, weight, bias, count):
    for _ in range(count):
        opt.zero_grad()
        objective(weight, bias).backward()
        opt.step()


def resume_from(state):
    """Saved and loaded with weights_only."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


class TestFrankWolfe(TestCase):
    """The tests are torch's, each on a constrained weight together with a free bias."""

    def assertBitEqual(self, one, two):
        self.assertEqual(one, two, rtol=0, atol=0)

    @every_set
    def test_inputs_leave_differentiable_to_the_tests(self, device, dtype, optim_info):
        for optim_input in optim_info.optim_inputs_func(device=device):
            self.assertNotIn("differentiable", optim_input.kwargs)

    @every_set
    def test_errors_are_raised_where_they_belong(self, device, dtype, optim_info):
        for error in optim_info.optim_error_inputs_func(device=device, dtype=dtype):
            optim_input = error.optimizer_error_input
            params = optim_input.params
            if params is None:
                params = optim_info.groups(*optim_info.start(device))
            if error.error_on is ErrorOn.STEP_ERROR:
                opt = optim_info.optim_cls(params, **optim_input.kwargs)
                with self.assertRaisesRegex(error.error_type, error.error_regex):
                    opt.step()
                continue
            catch = self.assertWarnsRegex if issubclass(error.error_type, Warning) else self.assertRaisesRegex
            with catch(error.error_type, error.error_regex):
                optim_info.optim_cls(params, **optim_input.kwargs)

    @parametrize("contiguous", [True, False])
    @every_set
    def test_steps_go_in_the_right_direction(self, device, dtype, optim_info, contiguous):
        for optim_input in optim_info.optim_inputs_func(device=device):
            weight, bias = optim_info.start(device)
            if not contiguous:
                weight = Parameter(weight.detach().t().contiguous().t())
                bias = Parameter(torch.stack([bias.detach()] * 2, -1)[:, 0])
                self.assertFalse(weight.is_contiguous() or bias.is_contiguous())
            self._check_direction(optim_info, weight, bias, optim_info.groups(weight, bias), optim_input)

    @every_set
    def test_scheduled_steps_go_in_the_right_direction(self, device, dtype, optim_info):
        for optim_input in optim_info.optim_inputs_func(device=device):
            for schedulers in optim_info.scheduler_inputs:
                weight, bias = optim_info.start(device)
                self._check_direction(
                    optim_info, weight, bias, optim_info.groups(weight, bias), optim_input, schedulers
                )

    @every_set
    def test_scheduled_groups_with_their_own_lr_go_in_the_right_direction(self, device, dtype, optim_info):
        for optim_input in optim_info.optim_inputs_func(device=device):
            weight, bias = optim_info.start(device)
            groups = optim_info.groups(weight, bias)
            groups[1]["lr"] = LR / 32
            self._check_direction(optim_info, weight, bias, groups, optim_input, optim_info.scheduler_inputs[1])

    def _check_direction(self, optim_info, weight, bias, groups, optim_input, schedulers=()):
        opt = optim_info.optim_cls(groups, **copy.deepcopy(optim_input.kwargs))
        scheduled = [build(opt) for build in schedulers]
        first, before = objective(weight, bias).item(), weight.detach().clone()
        for _ in range(20):
            opt.zero_grad()
            loss = objective(weight, bias)
            loss.backward()
            opt.step()
            for scheduler in scheduled:
                scheduler.step(*[loss.detach()] if isinstance(scheduler, ReduceLROnPlateau) else [])
            self.assertTrue(optim_info.feasible(weight), optim_input.desc)
        last = objective(weight, bias).item()
        self.assertTrue(last > first if opt.defaults["maximize"] else last < first, optim_input.desc)
        self.assertNotEqual(weight, before)

    @every_set
    def test_groups_move_by_their_own_lr(self, device, dtype, optim_info):
        """The free step is lr h; the constrained step is proportional to lr too."""
        moved = []
        for scale in (1, 3):
            weight, bias = optim_info.start(device, torch.float64)
            groups = optim_info.groups(weight, bias)
            groups[0]["lr"] = scale * 1e-3
            opt = optim_info.optim_cls(groups, lr=1e-2)
            before = weight.detach().clone(), bias.detach().clone()
            steps(opt, weight, bias, 1)
            self.assertEqual(bias, before[1] - 1e-2 * bias.grad)
            moved.append(weight.detach() - before[0])
        self.assertGreater(moved[0].abs().max(), 0)
        self.assertEqual(moved[1], 3 * moved[0])

    @parametrize("shape", [(), (1,)])
    @every_set
    def test_a_tensor_lr_steps_like_a_number(self, device, dtype, optim_info, shape):
        for optim_input in optim_info.optim_inputs_func(device=device):
            if isinstance(optim_input.kwargs["lr"], torch.Tensor):
                continue
            pairs = [optim_info.start(device) for _ in range(2)]
            number = optim_input.kwargs["lr"]
            rate = torch.full(shape, number, device=device)
            opts = [
                optim_info.make(*pair, **optim_input.kwargs | {"lr": lr})
                for pair, lr in zip(pairs, (number, rate), strict=True)
            ]
            scheduled = [StepLR(opt, gamma=0.5, step_size=3) for opt in opts]
            for _ in range(9):
                for opt, pair, scheduler in zip(opts, pairs, scheduled, strict=True):
                    steps(opt, *pair, 1)
                    scheduler.step()
            self.assertEqual(*pairs)
            self.assertIsInstance(opts[1].param_groups[0]["lr"], torch.Tensor)
            self.assertEqual(opts[1].param_groups[0]["lr"].shape, shape)
            self.assertEqual(rate, torch.full(shape, number))  # the caller's tensor is the caller's

    @every_set
    def test_a_step_without_gradients_does_nothing(self, device, dtype, optim_info):
        for optim_input in optim_info.optim_inputs_func(device=device):
            weight, bias = optim_info.start(device)
            before = weight.detach().clone(), bias.detach().clone()
            opt = optim_info.make(weight, bias, **optim_input.kwargs)
            for _ in range(2):
                opt.step()
            self.assertBitEqual((weight.detach(), bias.detach()), before)
            self.assertEqual(len(opt.state), 0)

    @every_set
    def test_zero_gradients_move_nothing(self, device, dtype, optim_info):
        for optim_input in optim_info.optim_inputs_func(device=device):
            weight, bias = optim_info.start(device)
            before = weight.detach().clone(), bias.detach().clone()
            opt = optim_info.make(weight, bias, **optim_input.kwargs)
            for _ in range(4):
                weight.grad, bias.grad = torch.zeros_like(weight), torch.zeros_like(bias)
                opt.step()
                self.assertBitEqual((weight.detach(), bias.detach()), before)

    @every_set
    def test_printing_shows_every_option(self, device, dtype, optim_info):
        for optim_input in optim_info.optim_inputs_func(device=device):
            opt = optim_info.make(*optim_info.start(device), **optim_input.kwargs)
            shown = repr(opt)
            for key, value in optim_input.kwargs.items():
                self.assertIn(f"{key}: {value}", shown)
            self.assertIn(f"set: {optim_info.set!r}", shown)

    @parametrize("is_named_optim0", [True, False])
    @parametrize("is_named_optim1", [True, False])
    @every_set
    def test_a_loaded_state_makes_the_same_steps(self, device, dtype, optim_info, is_named_optim0, is_named_optim1):
        for optim_input in optim_info.optim_inputs_func(device=device):
            weight, bias = optim_info.start(device)
            opt = optim_info.make(weight, bias, is_named_optim0, **optim_input.kwargs)
            steps(opt, weight, bias, 3)
            saved = copy.deepcopy(opt.state_dict())
            other = Parameter(weight.detach().clone()), Parameter(bias.detach().clone())
            live = optim_info.make(*other, is_named_optim1, **optim_input.kwargs)
            live.load_state_dict(saved)
            names = live.param_groups[0].get("param_names")
            self.assertEqual(names, ["weight"] if is_named_optim0 or is_named_optim1 else None)
            self.assertEqual(live.state_dict()["state"], saved["state"])
            for _ in range(3):
                steps(opt, weight, bias, 1)
                steps(live, *other, 1)
                self.assertBitEqual((weight, bias), other)

    @every_set
    def test_a_state_dict_without_later_options_loads(self, device, dtype, optim_info):
        for optim_input in optim_info.optim_inputs_func(device=device):
            weight, bias = optim_info.start(device)
            opt = optim_info.make(weight, bias, **optim_input.kwargs)
            steps(opt, weight, bias, 3)
            saved = copy.deepcopy(opt.state_dict())
            for group in saved["param_groups"]:
                for flag in optim_info.not_og_supported_flags:
                    del group[flag]
            opt.load_state_dict(saved)
            self.assertEqual(opt.param_groups[0].keys(), optim_info.make(weight, bias, lr=LR).param_groups[0].keys())
            steps(opt, weight, bias, 1)

    @every_set
    def test_saving_and_loading_with_weights_only_gives_an_equal_state(self, device, dtype, optim_info):
        for optim_input in optim_info.optim_inputs_func(device=device):
            weight, bias = optim_info.start(device)
            opt = optim_info.make(weight, bias, **optim_input.kwargs)
            steps(opt, weight, bias, 3)
            saved = opt.state_dict()
            opt.load_state_dict(resume_from(saved))
            self.assertBitEqual(opt.state_dict(), saved)

    @every_set
    def test_every_parameter_that_moves_has_state(self, device, dtype, optim_info):
        for optim_input in optim_info.optim_inputs_func(device=device):
            weight, bias = optim_info.start(device)
            opt = optim_info.make(weight, bias, **optim_input.kwargs)
            steps(opt, weight, bias, 1)
            self.assertEqual(len(opt.state), 2)
            for state in opt.state.values():
                self.assertEqual(state["phase"], 0 if opt.defaults["in_face"] is None else 1)
                self.assertEqual("momentum_buffer" in state, bool(opt.defaults["momentum"]))

    @every_set
    def test_deepcopy_copies_all_public_attributes(self, device, dtype, optim_info):
        def public(opt):
            return {name for name in opt.__dict__ if not name.startswith("_")}

        for optim_input in optim_info.optim_inputs_func(device=device):
            weight, bias = optim_info.start(device)
            opt = optim_info.make(weight, bias, **optim_input.kwargs)
            steps(opt, weight, bias, 1)
            again = copy.deepcopy(opt)
            self.assertEqual(public(again), public(opt))
            self.assertBitEqual(again.state_dict(), opt.state_dict())

    @every_set
    def test_pickling_keeps_the_parameters_their_state_and_their_groups(self, device, dtype, optim_info):
        for optim_input in optim_info.optim_inputs_func(device=device):
            weight, bias = optim_info.start(device)
            opt = optim_info.make(weight, bias, **optim_input.kwargs)
            steps(opt, weight, bias, 3)
            again, *other = pickle.loads(pickle.dumps((opt, weight, bias)))  # noqa: S301 - our own bytes
            self.assertIs(again.param_groups[0]["params"][0], other[0])
            self.assertEqual(repr(again), repr(opt))
            steps(opt, weight, bias, 3)
            steps(again, *other, 3)
            self.assertBitEqual([weight, bias], other)

    @every_set
    def test_a_group_added_later_is_stepped_on(self, device, dtype, optim_info):
        for optim_input in optim_info.optim_inputs_func(device=device):
            weight, bias = optim_info.start(device)
            groups = optim_info.groups(weight, bias)
            opt = optim_info.optim_cls(groups[1:], **copy.deepcopy(optim_input.kwargs))
            opt.add_param_group(groups[0])
            self.assertEqual(opt.param_groups[1]["momentum"], opt.defaults["momentum"])
            other = optim_info.start(device)
            reference = optim_info.make(*other, **optim_input.kwargs)
            for _ in range(3):
                steps(opt, weight, bias, 1)
                steps(reference, *other, 1)
            self.assertBitEqual((weight, bias), other)
            with self.assertRaisesRegex(ValueError, "some parameters appear in more than one parameter group"):
                opt.add_param_group({"params": [weight]})
            with self.assertRaisesRegex(ValueError, "lr must be > 0"):
                opt.add_param_group({"params": [Parameter(torch.zeros(2))], "lr": -1.0})
            self.assertEqual(len(opt.param_groups), 2)

    @every_set
    def test_maximize_is_minimising_the_opposite(self, device, dtype, optim_info):
        for optim_input in optim_info.optim_inputs_func(device=device):
            if "maximize" in optim_input.kwargs:
                continue
            pairs = [optim_info.start(device) for _ in range(2)]
            opts = [
                optim_info.make(*pair, **optim_input.kwargs, maximize=maximize)
                for pair, maximize in zip(pairs, (False, True), strict=True)
            ]
            for _ in range(5):
                for opt, pair, sign in zip(opts, pairs, (1, -1), strict=True):
                    opt.zero_grad()
                    (sign * objective(*pair)).backward()
                    opt.step()
                self.assertBitEqual(*pairs)

    @every_set
    def test_a_closure_is_evaluated_and_its_loss_returned(self, device, dtype, optim_info):
        weight, bias = optim_info.start(device)
        opt = optim_info.make(weight, bias, lr=LR)

        def closure():
            opt.zero_grad()
            loss = objective(weight, bias)
            loss.backward()
            return loss

        losses = [opt.step(closure).item() for _ in range(10)]
        self.assertEqual(losses, sorted(losses, reverse=True))
        self.assertGreater(losses[0], losses[-1])

    @every_set
    def test_the_default_dtype_does_not_matter(self, device, dtype, optim_info):
        results = []
        for default in (torch.float32, torch.float64):
            before = torch.get_default_dtype()
            torch.set_default_dtype(default)
            try:
                pair = optim_info.start(device)
                for kwargs in ({}, {"momentum": 0.9}):
                    steps(optim_info.make(*pair, lr=LR, **kwargs), *pair, 3)
                results.append(pair)
            finally:
                torch.set_default_dtype(before)
        self.assertBitEqual(*results)

    @machinery.optims(INFOS, dtypes=[torch.float64])
    @parametrize("momentum", [0.0, 0.9])
    def test_both_halves_differentiate_from_inside(self, device, dtype, optim_info, momentum):
        for in_face in (None, *optim_info.strategies):
            self._check_gradients(optim_info, "inside", 0, 2, lr=0.05, in_face=in_face, momentum=momentum)

    @machinery.optims(INFOS[1:], dtypes=[torch.float64])
    @parametrize("lr", [0.05, 2.0])
    def test_each_half_differentiates_from_the_boundary(self, device, dtype, optim_info, lr):
        for in_face in optim_info.strategies:
            for phase in (0, 1):
                self._check_gradients(optim_info, "boundary", phase, 1, lr=lr, in_face=in_face)

    @machinery.optims(INFOS[:1], dtypes=[torch.float64])
    @parametrize("norm", ["l2", "l1", "linf", "spectral", "adaptive"])
    def test_free_steps_differentiate_in_every_norm(self, device, dtype, optim_info, norm):
        self._check_gradients(optim_info, "inside", 0, 2, lr=0.05, norm=norm, momentum=0.5)

    def _check_gradients(self, optim_info, where, phase, count, lr, **kwargs):
        """Analytic against numerical derivatives of the last point in the first one, lr and all gradients."""
        point = optim_info.face(where)
        generator = torch.Generator().manual_seed(7)

        def walk(t, lr, *grads, differentiable=True):
            p = point(t).clone() if differentiable else Parameter(point(t).detach().clone())
            groups = [{"params": [p], "set": optim_info.set}]
            opt = inface.FrankWolfe(groups, lr=lr, differentiable=differentiable, **kwargs)
            opt.state[p]["phase"] = phase
            for g in grads:
                p.grad = g if differentiable else g.detach()
                opt.step()
            return p.clone()

        t = torch.zeros(SHAPE, dtype=torch.float64, requires_grad=True)
        rate = torch.tensor(lr, dtype=torch.float64, requires_grad=True)
        grads = [torch.randn(SHAPE, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(count)]
        self.assertTrue(torch.autograd.gradcheck(walk, (t, rate, *grads), fast_mode=True))
        self.assertEqual(walk(t, rate, *grads), walk(t, lr, *grads, differentiable=False))

    @every_set
    def test_step_hooks_run_before_and_after(self, device, dtype, optim_info):
        weight, bias = optim_info.start(device)
        opt = optim_info.make(weight, bias, lr=LR)
        log = []

        def hook(name):
            def called(live, args, kwargs):
                self.assertIs(live, opt)
                log.append((name, objective(weight, bias).item()))

            return called

        handles = [
            register_optimizer_step_pre_hook(hook("global before")),
            opt.register_step_pre_hook(hook("before")),
            opt.register_step_post_hook(hook("after")),
            register_optimizer_step_post_hook(hook("global after")),
        ]
        steps(opt, weight, bias, 1)
        names = [name for name, _ in log]
        self.assertEqual(names, ["global before", "before", "after", "global after"])
        self.assertEqual(log[0][1], log[1][1])
        self.assertGreater(log[1][1], log[2][1])
        for handle in handles:
            handle.remove()
        steps(opt, weight, bias, 1)
        self.assertEqual(len(log), 4)

    @every_set
    def test_state_dict_hooks_run_in_order(self, device, dtype, optim_info):
        weight, bias = optim_info.start(device)
        opt = optim_info.make(weight, bias, lr=LR)
        steps(opt, weight, bias, 1)
        log = []
        opt.register_state_dict_pre_hook(lambda _: log.append("pre"))
        opt.register_state_dict_post_hook(lambda _, data: log.append("post") or {**data, "extra": 1})
        opt.register_state_dict_post_hook(lambda _, data: log.append("first post"), prepend=True)
        saved = opt.state_dict()
        self.assertEqual(saved["extra"], 1)
        self.assertEqual(log, ["pre", "first post", "post"])
        opt.register_load_state_dict_pre_hook(lambda _, data: log.append("load") or {**data, "state": {}})
        opt.register_load_state_dict_pre_hook(lambda _, data: log.append("first load"), prepend=True)
        opt.register_load_state_dict_post_hook(lambda _: log.append("loaded"))
        opt.load_state_dict(saved)
        self.assertEqual(log[3:], ["first load", "load", "loaded"])
        self.assertEqual(len(opt.state), 0)
        self.assertIn(0, saved["state"])


instantiate_device_type_tests(TestFrankWolfe, globals(), only_for="cpu")
