"""Algorithm 1 of the paper, in its block version, as a torch.optim.Optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, ParamsT, _use_grad_for_differentiable

from .checks import check_direction, check_gradients, check_group
from .free import Norm, descend
from .gap import BlockGaps, FreeNorm, ModifiedGap, combine, step_rate
from .groups import Constraints, param_groups
from .halves import average, take_half
from .kernels import Options, Rows, alike, available, fits
from .plain import beside, check_state, restored_group, to_plain_data
from .registry import constrain
from .report import Report
from .sets import Set, blocks
from .sets.base import EXACT, InFace, computable, spread
from .state import average_free, create, keep_average, weights, where_is, write

__all__ = ["Direction", "FrankWolfe"]

Direction = Callable[[Set, Tensor, Tensor], Tensor]


class Gaps(NamedTuple):
    """The gaps of a parameter's blocks at its last first half."""

    group: int
    blocks: Tensor
    lr: float | Tensor


class FrankWolfe(Optimizer):
    r"""Stochastic Frank-Wolfe and in-face steps where a set is given, steepest descent everywhere else.

    One :meth:`step` consumes one gradient. With ``in_face`` set, the steps of a parameter alternate:

    first half (the paper's Steps 2 and 3), with the gradient :math:`(\hat g, \hat h)` at :math:`(x, y)`:

    .. math::
        \tilde x^{(i)} &= \arg\min_{v \in S_i} \langle \hat g^{(i)}, v \rangle, \qquad
        \tilde G^i = \langle \hat g^{(i)}, x^{(i)} - \tilde x^{(i)} \rangle \\
        \bar x^{(i)} &= x^{(i)} + \min(\tilde G^i / C_i, 1) \, (\tilde x^{(i)} - x^{(i)}), \qquad
        y \leftarrow y - \mathrm{lr} \cdot \|\hat h\|_* \tilde y

    second half (Step 4), with the next gradient :math:`\check g`, evaluated at the new point:

    .. math::
        x^{(i)} \leftarrow \bar x^{(i)} + \min(A_i / C_i, \alpha^{stop}_i) \, d^{(i)}, \qquad
        A_i = -\langle \check g^{(i)}, d^{(i)} \rangle

    where :math:`C_i = \max(\mathrm{diam}(S_i)^2 / \mathrm{lr}, \mathrm{gradient\_bound} \cdot \mathrm{diam}(S_i))` and
    :math:`\mathrm{lr} = 1 / (2 L)` with the smoothness constant :math:`L`. Without ``in_face`` every step is a first
    half. Every block of every constrained parameter stays in its set at all times.

    Args:
        params: groups from :func:`inface.param_groups`, or anything that torch's optimizers take; a group without a
            ``set`` is free. Or a model, with ``sets``.
        sets: with a model only: the mapping that :func:`inface.param_groups` takes.
        lr: :math:`1 / (2 L)`, for free and constrained parameters alike. Learning-rate schedulers work on both.
        in_face: what the second half does: ``None`` (no second half: SFW), ``"away"`` (from the worst vertex of the
            minimal face), ``"frank-wolfe"`` (to its best), ``"pairwise"`` (from the worst to the best), or a function
            ``f(set, x, g) -> d`` on batches of blocks whose directions must satisfy ``<g, d> <= 0`` and
            ``|d| <= diam``.
        momentum: steps use the average ``m <- momentum m + (1 - momentum) g`` of all gradients, those of both halves.
        norm: of free parameters, which makes their steepest-descent step: ``"l2"`` (SGD), ``"l1"``, ``"linf"``,
            ``"spectral"``.
        gradient_bound: a bound on the dual norm of a block's gradient (the paper's ``L_f``), dual to the ``norm`` of its
            set, if the theorems are to hold without clamping; a number, or a tensor with one value per block.
        every_gradient: free parameters move on both halves, not once per iteration.
        maximize: maximise the objective.
        differentiable: let autograd flow through the step (not through the choice of a vertex, which is constant
            almost everywhere).
        fused: ``None``: contiguous float32 and float64 CPU parameters of an L1Ball, Simplex, LInfBall, GroupL1Ball
            or L2Ball take a compiled kernel that costs about what SGD's step costs; ``False``: torch operations everywhere; ``True``: the kernel,
            or an error where it cannot be.
        project: put parameters that start outside their set into it; otherwise they are an error.

    All of them can be set per group, but ``differentiable``, which is the optimizer's. Parameters in bfloat16 or float16 are kept in float32 in the state
    (``state[p]["master"]``, 4 bytes per parameter; the momentum buffer is float32 too), because half precision swallows
    relative steps under 2^-9; entries that somebody else changes between two steps are taken over.

    A step at which a group's ``lr`` is 0 creates its state and does nothing else (a tensor ``lr`` is not looked at inside
    ``torch.compile`` or on an accelerator: there such a step moves nothing, but counts). A block whose gradient is not finite
    stays as it is, and so does its momentum; free parameters take such a gradient as they do under SGD.

    >>> import torch, inface
    >>> from inface.sets import L1Ball
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Linear(20, 3)
    >>> opt = inface.FrankWolfe(model, {"weight": L1Ball(1.0)}, lr=0.5, in_face="away", project=True)
    >>> inputs, target = torch.randn(64, 20), torch.randn(64, 3)
    >>> for _ in range(200):
    ...     opt.zero_grad()
    ...     loss = torch.nn.functional.mse_loss(model(inputs), target)
    ...     loss.backward()
    ...     opt.step()
    >>> bool((model.weight.abs().sum(1) <= 1.000001).all()), bool(opt.gap < 0.01)
    (True, True)
    """

    def __init__(
        self,
        params: ParamsT | nn.Module,
        sets: Constraints | float | Tensor | None = None,
        lr: float | Tensor | None = None,
        *,
        in_face: InFace | Direction | None = None,
        momentum: float = 0.0,
        norm: Norm = "l2",
        gradient_bound: float | Tensor | None = None,
        every_gradient: bool = False,
        maximize: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        project: bool = False,
    ) -> None:
        if isinstance(params, nn.Module):
            if not isinstance(sets, Mapping):
                raise TypeError(
                    f"FrankWolfe: with a model, wanted a mapping from parameter names to sets, got {sets!r}"
                )
            params = param_groups(params, sets)
        elif sets is not None:
            if isinstance(sets, Mapping):
                raise TypeError("FrankWolfe: a mapping of sets goes with a model; groups carry their sets themselves")
            if lr is not None:
                raise TypeError(f"FrankWolfe: with groups, lr is the one positional argument, got {sets!r} and {lr!r}")
            lr = sets
        if lr is None:
            raise TypeError(
                "FrankWolfe: lr is missing; it is 1 / (2 L) with the smoothness constant L of the objective"
            )
        defaults = {
            "lr": lr,
            "set": None,
            "in_face": in_face,
            "momentum": momentum,
            "norm": norm,
            "gradient_bound": gradient_bound,
            "every_gradient": every_gradient,
            "maximize": maximize,
            "differentiable": differentiable,
            "fused": fused,
            "project": project,
        }
        self._prepared = False
        super().__init__(params, defaults)
        self._prepared = True
        self._forget()
        for group in self.param_groups:
            _prepare(group)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; it is checked whole before anything is changed."""
        super().add_param_group(param_group)
        try:
            check_group(self.param_groups[-1], len(self.param_groups) - 1)
        except ValueError:
            self.param_groups.pop()
            raise
        if self._prepared:
            _prepare(self.param_groups[-1])

    @_use_grad_for_differentiable
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Consume the gradients that the parameters hold; parameters without one are left out.

        Args:
            closure: re-evaluates the model and returns the loss, which is then returned.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for index, group in enumerate(self.param_groups):
            check_gradients(group, index)
        directions = self._custom_directions()
        for index, group in enumerate(self.param_groups):
            params = self._ready(group)
            if group["set"] is None:
                self._free_step(index, group, params)
                continue
            options = _fused_options(group)
            for p in params:
                if options is None or not self._fused_step(index, group, p, self.state[p], options):
                    self._constrained_step(index, group, p, directions.get(p))
        return loss

    @property
    def gap(self) -> Tensor:
        """The stochastic modified gap (Lemma 2.1) at the last first half, as a 0-d tensor; NaN before there was one.

        With momentum it is the averaged gradient's. All that a step does for it is to take the norms of free gradients;
        the rest happens when it is read, and reading it does not synchronise with the device.
        """
        return self._measured().value

    def report(self) -> Report:
        """What the optimizer did since it was made or loaded: the gap with its parts, and the kinds of step, counted.

        >>> import torch, inface
        >>> from inface.sets import L1Ball
        >>> weight = torch.nn.Parameter(torch.zeros(2, 3))
        >>> opt = inface.FrankWolfe([{"params": [weight], "set": L1Ball(1.0)}], lr=0.1)
        >>> weight.grad = torch.tensor([[1.0, 0.0, 0.0], [float("nan"), 0.0, 0.0]])
        >>> opt.step()
        >>> opt.report().frank_wolfe, opt.report().skipped
        (1, 1)
        """
        total = torch.zeros(2, 3, dtype=torch.long)
        for counts in (*self._counts.values(), *(rows.counts for rows in self._rows.values())):
            total += counts.cpu()
        (moved, clamped, skipped), (inner, drop, skipped_inner) = total.tolist()
        return Report(self._measured(), moved, clamped, inner, drop, skipped + skipped_inner)

    # ------------------------------------------------------------------ plain data

    def state_dict(self) -> dict[str, Any]:
        """The state as plain data: it loads with ``torch.load(weights_only=True)`` and nothing allow-listed.

        A set is saved by its kind and options, a function given as ``in_face`` as ``"custom"``.
        """
        handle = self.register_state_dict_post_hook(to_plain_data, prepend=True)  # so that other hooks see plain data
        try:
            return super().state_dict()
        finally:
            handle.remove()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a saved state. Sets must be of the same kind, ``per`` and norm; their radii come from the saved state."""
        loaded: dict[str, Any] = {}

        def adopt(_: Optimizer, data: dict[str, Any]) -> dict[str, Any]:
            check_state(data)
            groups = data["param_groups"]
            if len(groups) == len(self.param_groups):  # torch refuses another number of groups
                pairs = zip(self.param_groups, groups, strict=True)
                groups = [restored_group(index, live, saved) for index, (live, saved) in enumerate(pairs)]
            loaded.update(data, param_groups=groups)
            return loaded

        def keep_precision(_: Optimizer) -> None:
            """Torch casts state to the dtype of its parameter, which would round what is kept in float32 for a reason."""
            ids = [i for group in loaded["param_groups"] for i in group["params"]]
            params = [p for group in self.param_groups for p in group["params"]]
            for i, p in zip(ids, params, strict=True):
                for key, value in loaded["state"].get(i, {}).items():
                    if isinstance(value, Tensor) and p.dtype not in EXACT:
                        self.state[p][key] = computable(value.detach()).clone().to(p.device)

        # Last before and first after: the hooks of others see, and may rewrite, plain data.
        handles = [
            self.register_load_state_dict_pre_hook(adopt),
            self.register_load_state_dict_post_hook(keep_precision, prepend=True),
        ]
        try:
            super().load_state_dict(state_dict)
        finally:
            for handle in handles:
                handle.remove()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            for option, default in self.defaults.items():
                group.setdefault(option, default)
            for p in group["params"]:
                constrain(p, group["set"])
        self._prepared = True
        self._forget()

    # ------------------------------------------------------------------ one gradient

    def _ready(self, group: dict[str, Any]) -> list[Tensor]:
        """The parameters of a group that move in this step; their state exists afterwards even if none does."""
        lr = group["lr"]
        if not isinstance(lr, Tensor) and not 0 <= lr < math.inf:
            raise ValueError(f"FrankWolfe: lr must be >= 0 and finite, got {lr!r}")
        present = [p for p in group["params"] if p.grad is not None and p.numel()]
        for p in present:
            create(self.state[p], p, group)
            if group["in_face"] is None:
                self.state[p]["phase"] = 0  # of a second half that was switched off
        return [] if _is_zero(group["lr"]) else present

    def _constrained_step(self, index: int, group: dict[str, Any], p: Tensor, direction: Tensor | None) -> None:
        set_: Set = group["set"]
        # Before the state is looked at: torch.compile would else know p as a key of it, and recompile for every gradient.
        diameter = set_.diameter(blocks.shape(p.shape, set_.per))
        state, lr = self.state[p], _scalar(group["lr"])
        phase, momentum = state["phase"], group["momentum"]
        half = take_half(
            set_,
            set_.to_blocks(weights(p, state)),
            set_.to_blocks(_gradient(group, p)),
            set_.to_blocks(state["momentum_buffer"]) if momentum else None,
            momentum=momentum,
            rate=step_rate(diameter, lr, group["gradient_bound"]),
            in_face=group["in_face"] if phase and direction is None else None,
            direction=direction,
        )
        if half.m is not None:
            keep_average(state, set_.from_blocks(half.m, p))
        write(p, state, set_.from_blocks(half.x, p))

        usable = torch.isfinite(half.slope)
        if phase == 0:
            gaps = torch.where(usable, half.slope.detach().clamp(min=0), 0)
            self._gaps[p] = Gaps(index, gaps, _now(lr))
        if p not in self._counts:  # both halves at once, so that a compiled second half finds what it will find later
            self._counts[p] = torch.zeros(2, 3, dtype=torch.long, device=p.device)
        self._counts[p][phase] += torch.stack([half.decision.step > 0, half.decision.hit, ~usable]).sum(1)
        state["phase"] = _next(group, phase)

    def _fused_step(
        self, index: int, group: dict[str, Any], p: Tensor, state: dict[str, Any], options: Options
    ) -> bool:
        """The same in one call of a kernel, if it takes this parameter."""
        set_, phase = group["set"], state["phase"]
        x, g = weights(p, state), computable(p.grad)  # type: ignore[arg-type]
        m = state["momentum_buffer"] if options.momentum else None
        if not fits(set_, x) or not alike(x, g, m) or available(set_, x.dtype) is None:
            return False
        rows = self._rows.get(id(p))
        if rows is None or not rows.belongs_to(set_, x):
            rows = self._rows[id(p)] = Rows(set_, x, None if rows is None else rows.counts)
        rows.step(x, g, m, options, group["in_face"] if phase else None)
        if x is not p:
            p.copy_(x)
        if m is not None:
            state["started"] = True
        if phase == 0:
            self._gaps[p] = Gaps(index, rows.gaps, _now(options.lr))
        state["phase"] = _next(group, phase)
        return True

    def _free_step(self, index: int, group: dict[str, Any], params: list[Tensor]) -> None:
        if not params:
            return
        grads = [_gradient(group, p) for p in params]
        if group["momentum"]:
            grads = average_free([self.state[p] for p in params], grads, group["momentum"])
        first = [self.state[p]["phase"] == 0 for p in params]
        moving = [i for i in range(len(params)) if first[i] or group["every_gradient"]]
        if moving:
            lr = _scalar(group["lr"])
            targets = [_target(params[i], self.state[params[i]]) for i in moving]
            square = descend(targets, [grads[i] for i in moving], lr, group["norm"])
            for i, target in zip(moving, targets, strict=True):
                if target is not params[i]:
                    params[i].copy_(target)
            if any(first):
                self._free[index] = FreeNorm(square.detach(), _now(lr))
        for p in params:
            self.state[p]["phase"] = _next(group, self.state[p]["phase"])

    def _custom_directions(self) -> dict[Tensor, Tensor]:
        """What the functions given as ``in_face`` say, checked before any parameter is touched."""
        found = {}
        for index, group in enumerate(self.param_groups):
            if group["set"] is None or not callable(group["in_face"]):
                continue
            for p in self._ready(group):
                if self.state[p]["phase"] == 1:
                    set_, state = group["set"], self.state[p]
                    x, g = set_.to_blocks(weights(p, state)), set_.to_blocks(_gradient(group, p))
                    finite = torch.isfinite(g).flatten(1).all(1)
                    if group["momentum"]:
                        g, _ = average(set_.to_blocks(state["momentum_buffer"]), g, group["momentum"])
                    d = group["in_face"](set_, x.clone(), g.clone())
                    d = check_direction(group, index, p, x, g, d, finite)
                    found[p] = torch.where(spread(finite, d), d, 0)
        return found

    def _measured(self) -> ModifiedGap:
        parts = []
        for p, (index, gaps, lr) in self._gaps.items():
            group = self.param_groups[index]
            if not p.requires_grad:
                continue
            lr = 0.0 if _is_zero(group["lr"]) else lr  # noqa: PLW2901 - frozen since
            diameter = group["set"].diameter(blocks.shape(p.shape, group["set"].per))
            parts.append(BlockGaps(where_is(group, index, p), gaps.clone(), diameter, lr, group["gradient_bound"]))
        free = [
            FreeNorm(norm.square, 0.0 if _is_zero(self.param_groups[index]["lr"]) else norm.lr)
            for index, norm in self._free.items()
        ]
        return combine(parts, free)

    def _forget(self) -> None:
        self._gaps: dict[Tensor, Gaps] = {}
        self._rows: dict[int, Rows] = {}
        self._free: dict[int, FreeNorm] = {}
        self._counts: dict[Tensor, Tensor] = {}


def _prepare(group: dict[str, Any]) -> None:
    """Put a checked group's parameters where its set wants them."""
    set_: Set | None = group["set"]
    if set_ is not None:
        group["set"] = set_ = beside(set_, group["params"])
    for p in group["params"]:
        constrain(p, set_)
        if set_ is not None and group["project"] and p.numel():
            with torch.no_grad():
                p.copy_(set_.project(p))


def _fused_options(group: dict[str, Any]) -> Options | None:
    """What the kernels need to know of a group; None if it asks for something that only torch operations can do."""
    if (
        group["fused"] is False
        or callable(group["in_face"])
        or torch.is_grad_enabled()
        or torch.compiler.is_compiling()
    ):
        return None
    return Options(_scalar(group["lr"]), group["gradient_bound"], group["momentum"], group["maximize"])


def _gradient(group: dict[str, Any], p: Tensor) -> Tensor:
    g = computable(p.grad)  # type: ignore[arg-type]
    return -g if group["maximize"] else g


def _target(p: Tensor, state: dict[str, Any]) -> Tensor:
    """What a free parameter's descent moves: the parameter, or its float32 copy."""
    return weights(p, state) if "master" in state else p


def _next(group: dict[str, Any], phase: int) -> int:
    return 0 if group["in_face"] is None else 1 - phase


def _scalar(lr: float | Tensor) -> float | Tensor:
    return lr.reshape(()) if isinstance(lr, Tensor) else lr


def _now(lr: float | Tensor) -> float | Tensor:
    """A learning rate as it is: schedulers change tensors in place."""
    return lr.detach().clone() if isinstance(lr, Tensor) else lr


def _is_zero(lr: float | Tensor) -> bool:
    """Whether a step would not move; a tensor that only a device or a compiler knows is not asked."""
    if isinstance(lr, Tensor):
        return not torch.compiler.is_compiling() and lr.device.type == "cpu" and lr.item() == 0
    return lr == 0
