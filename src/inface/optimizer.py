"""Algorithm 1 of the paper, in its block version, as a torch.optim.Optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.optim.optimizer import Optimizer, ParamsT, _use_grad_for_differentiable

from .adaptive import Betas, descend_adaptively
from .checks import check_direction, check_gradients, check_group
from .density import advance, regrows
from .free import Norm, descend
from .fused import Fused
from .gap import BlockGaps, FreeNorm, ModifiedGap, combine, step_rate
from .groups import Constraints, param_groups
from .halves import average, take_half
from .kernels import Options
from .printing import shown
from .registry import constrain
from .relative import AUTO, NUMBERS, StepSize, keep_gap, step_size
from .report import Report
from .serialization import OLDER, beside, check_state, restored_group, to_plain_data
from .sets import Set
from .sets.base import EXACT, InFace, computable, spread
from .state import (
    average_free,
    average_moments,
    before_rounding,
    create,
    create_masters,
    keep_average,
    preconditioned,
    put,
    rounded,
    unit_weights,
    weights,
    write,
)
from .units import Unit, free_part, names_of, put_free_part, units, with_gradients
from .warning import warn

__all__ = ["Direction", "FrankWolfe"]

Direction = Callable[[Set, Tensor, Tensor], Tensor]


class Gaps(NamedTuple):
    """The gaps of a parameter's blocks at its last first half."""

    group: int
    blocks: Tensor
    lr: float | Tensor
    diameter: float | Tensor


class FrankWolfe(Optimizer):
    r"""Stochastic Frank-Wolfe and in-face steps where a set is given, steepest descent everywhere else.

    One :meth:`step` consumes one gradient. With ``in_face`` set, the steps of a parameter take turns:

    first half (the paper's Steps 2 and 3), with the gradient :math:`(\hat g, \hat h)` at :math:`(x, y)`:

    .. math::
        \tilde x^{(i)} &= \arg\min_{v \in S_i} \langle \hat g^{(i)}, v \rangle, \qquad
        \tilde G^i = \langle \hat g^{(i)}, x^{(i)} - \tilde x^{(i)} \rangle \\
        \bar x^{(i)} &= x^{(i)} + \min(\tilde G^i / C_i, 1) \, (\tilde x^{(i)} - x^{(i)}), \qquad
        y \leftarrow y - \mathrm{lr} \cdot \|\hat h\|_* \tilde y

    second half (Step 4, taken ``in_face_steps`` times), with the next gradient :math:`\check g`, evaluated at the new point:

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
        lr: :math:`1 / (2 L)`, for free and constrained parameters alike. Learning-rate schedulers work on both. It can be
            left out where every group has its own. ``"auto"``, for groups with a set: relative steps of a length that
            served well on many networks (``lr=0.03, relative=1``).
        in_face: what the second half does: ``None`` (no second half: SFW), ``"away"`` (from the worst vertex of the
            minimal face), ``"frank-wolfe"`` (to its best), ``"pairwise"`` (from the worst to the best), ``"projected"``
            (SGD in the face: to the projection of ``x - lr g`` onto it, see :meth:`inface.sets.Set.project_in_face`), or a
            function ``f(set, x, g) -> d`` on batches of blocks whose directions must satisfy ``<g, d> <= 0`` and
            ``|d| <= diam``.
        in_face_steps: how many second halves, each with a gradient of its own, follow a first half; the paper's is 1.
        momentum: steps use the average ``m <- momentum m + (1 - momentum) g`` of all gradients, those of both halves.
            Free parameters under ``norm="adaptive"`` do not look at it: their average is that of ``betas[0]``.
        dampening: of free parameters, as in :class:`torch.optim.SGD`: their momentum is ``m <- momentum m +
            (1 - dampening) g``. ``None``: the average, ``dampening = momentum``. 0 is what people call SGD with momentum.
        relative: steps of constrained parameters are relative to their layer and to its gradients, and ``relative * lr`` is
            their length (see :mod:`inface.relative`): rescaling the loss or a layer changes nothing. ``report()`` names the
            smoothness constant that they imply.
        norm: of free parameters, which makes their steepest-descent step: ``"l2"`` (SGD), ``"l1"``, ``"linf"``,
            ``"spectral"``, or ``"adaptive"`` (AdamW: the diagonal norm of the running second moments).
        betas: of ``norm="adaptive"``: how much the averages of gradients and of their squares keep, as of torch's AdamW.
            Gradients of both halves count. OneCycleLR and CyclicLR cycle ``momentum``, not these.
        eps: of ``norm="adaptive"``: added to the root of the second moments, as by torch's AdamW.
        gradient_bound: a bound on the dual norm of a block's gradient (the paper's ``L_f``), dual to the ``norm`` of its
            set, if the theorems are to hold without clamping; a number, or a tensor with one value per block.
        every_gradient: free parameters move with every gradient, not once per iteration.
        precondition: gradients of constrained parameters are first divided by the root of the running mean of their squares
            (``betas[1]``, ``eps``), as Adam does.
        weight_decay: free parameters shrink by ``1 - lr * weight_decay`` whenever they move (decoupled, as in AdamW); what
            lives in a set does not: its radius bounds it.
        maximize: maximise the objective.
        differentiable: let autograd flow through the step (not through the choice of a vertex, which is constant
            almost everywhere).
        fused: ``None``: contiguous float32 and float64 CPU parameters of an L1Ball, Simplex, LInfBall, GroupL1Ball
            or L2Ball take a compiled kernel that costs about what SGD's step costs; ``False``: torch operations everywhere; ``True``: the kernel,
            or an error where it cannot be.
        project: put parameters that start outside their set into it, and blocks that somebody else puts outside later;
            otherwise the one is an error, the other a warning.

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

    _warned: bool
    # Not in ``defaults``: OneCycleLR and CyclicLR would find them there and leave ``momentum`` alone.
    _betas: Betas = (0.9, 0.999)

    def __init__(
        self,
        params: ParamsT | nn.Module,
        sets: Constraints | float | Tensor | Literal["auto"] | None = None,
        lr: float | Tensor | Literal["auto"] | None = None,
        *,
        in_face: InFace | Direction | None = None,
        in_face_steps: int = 1,
        relative: float | None = None,
        momentum: float = 0.0,
        dampening: float | None = None,
        norm: Norm = "l2",
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        gradient_bound: float | Tensor | None = None,
        every_gradient: bool = False,
        weight_decay: float = 0.0,
        maximize: bool = False,
        precondition: bool = False,
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
            groups: list[Any] = list(params)
            params = groups
            if not groups or not all(isinstance(group, dict) and "lr" in group for group in groups):
                raise TypeError(
                    "FrankWolfe: lr is missing; it is 1 / (2 L) with the smoothness constant L of the objective "
                    "(give it to the optimizer, or to every group)"
                )
        defaults = {
            "lr": lr,
            "set": None,
            "in_face": in_face,
            "in_face_steps": in_face_steps,
            "relative": relative,
            "momentum": momentum,
            "dampening": dampening,
            "norm": norm,
            "eps": eps,
            "gradient_bound": gradient_bound,
            "every_gradient": every_gradient,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "precondition": precondition,
            "differentiable": differentiable,
            "fused": fused,
            "project": project,
            "path": None,
        }
        self._betas = betas
        self._prepared = False
        super().__init__(params, defaults)
        self._prepared = True
        self._forget()
        for index, group in enumerate(self.param_groups):
            _prepare(group, index)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; it is checked whole before anything is changed.

        The parameters of a group of relative steps, whose sizes have nothing to do with each other, become groups of their
        own, unless they share a set; and so do those of a set that is sized by a density.
        """
        before = len(self.param_groups)
        try:
            for index, one in enumerate(_apart(param_group, self.defaults), before):
                super().add_param_group(one)
                group = self.param_groups[index]
                group.setdefault("betas", self._betas)
                _resolve(group, index)
                check_group(group, index)
        except ValueError:
            del self.param_groups[before:]
            raise
        if self._prepared:
            for index, group in enumerate(self.param_groups[before:], before):
                _prepare(group, index)

    @_use_grad_for_differentiable
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Consume the gradients that the parameters hold; parameters without one are left out.

        Args:
            closure: re-evaluates the model and returns the loss, which is then returned.
        """
        if torch.compiler.is_compiling() and any(group["path"] is not None for group in self.param_groups):
            return self._uncompiled_step(closure)  # every step of a path has other numbers
        return self._step(closure)

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        loss, moved = None, []
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for index, group in enumerate(self.param_groups):
            check_gradients(group, index)
        directions = self._custom_directions()
        for index, group in enumerate(self.param_groups):
            params, set_ = self._ready(index, group), group["set"]
            if params:
                moved.append(index)
            if params and (set_ is None or set_.free is not None):
                self._free_step(index, group, params)
            if params and set_ is not None and not set_.all_free:
                self._constrained_steps(index, group, directions, _fused_options(group))
            for p in params:
                state = self.state[p]
                state["phase"] = _next_phase(group, state["phase"])
                if "started" in state:
                    state["started"] = True
        advance(self, by_itself=True, moved=moved)
        self._warn_of_outside()
        return loss

    _uncompiled_step = _disable_dynamo(_step)

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
        total = torch.zeros(2, 4, dtype=torch.long, device="cpu")
        for counts in (*self._counts.values(), *self._fused.counts()):
            total += counts.cpu()
        (moved, clamped, skipped, outside), (inner, drop, skipped_inner, outside_inner) = total.tolist()
        found = Report(self._measured(), moved, clamped, inner, drop, skipped + skipped_inner, outside + outside_inner)
        return replace(found, smoothness=self._smoothness())

    # ------------------------------------------------------------------ plain data

    def __repr__(self) -> str:
        return shown(type(self).__name__, self.param_groups)

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
                    if isinstance(value, Tensor) and (key in NUMBERS or (p.dtype not in EXACT and key != "step")):
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

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_betas": self._betas}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            for option, default in {**OLDER, **self.defaults, "betas": self._betas}.items():
                group.setdefault(option, default)
            for p in group["params"]:
                constrain(p, group["set"])
        self._prepared = True
        self._forget()

    # ------------------------------------------------------------------ one gradient

    def _ready(self, index: int, group: dict[str, Any]) -> list[Tensor]:
        """The parameters of a group that move in this step; their state exists afterwards even if none does."""
        lr, set_ = group["lr"], group["set"]
        if not isinstance(lr, Tensor) and not 0 <= lr < math.inf:
            raise ValueError(f"FrankWolfe: lr must be >= 0 and finite, got {lr!r}")
        present = [p for p in group["params"] if p.grad is not None and p.numel()]
        if present and set_ is not None and set_.per == "group":
            present = [p for p in group["params"] if p.numel()]  # they are one block
        for p in present:
            state = self.state[p]
            averaged = group["momentum"] or group["norm"] == "adaptive"
            if "phase" not in state or averaged or p.dtype not in EXACT or "master" in state:
                create(state, p, group)
            if state["phase"] > (0 if group["in_face"] is None else group["in_face_steps"]):
                state["phase"] = 0  # of a second half that was switched off
            if state["phase"] == 0:
                state["phase"] = _next_phase(group, group["in_face_steps"])  # a path may have no first halves
        if set_ is not None and any(p.dtype not in EXACT for p in present):
            for unit in with_gradients(group, index):
                create_masters(unit, [self.state[p] for p in unit.params])
        return [] if _is_zero(group["lr"]) else present

    def _constrained_steps(
        self, index: int, group: dict[str, Any], directions: dict[Tensor, Tensor], options: Options | None
    ) -> None:
        units_ = with_gradients(group, index)
        if not units_:
            return
        state, size = self.state[units_[0].params[0]], StepSize(_scalar(group["lr"]))
        first = state["phase"] == 0
        with preconditioned(group, self.state):
            if group["relative"] is not None:
                size = self._relative_size(group, units_[0])
            left = units_
            if options is not None:
                sized = options._replace(lr=size.lr, rate=size.rate)
                left, outside = self._fused.step(index, group, self.state, sized)
                self._outside += outside
            for unit in left:
                self._constrained_step(index, group, unit, size, directions.get(unit.params[0]))
        if first and group["relative"] is not None:
            gaps = [own.blocks for own in (self._gaps.get(units_[0].params[0]),) if own is not None and left]
            keep_gap(state, gaps[0] if gaps else self._fused.blocks(index))

    def _relative_size(self, group: dict[str, Any], unit: Unit) -> StepSize:
        states = [self.state[p] for p in unit.params]
        x, g = unit_weights(unit, states), [_gradient(group, p) for p in unit.params]
        size = step_size(group, unit, states[0], x, g)
        states[0]["implied_lr"] = size.lr
        return size

    def _constrained_step(
        self, index: int, group: dict[str, Any], unit: Unit, size: StepSize, direction: Tensor | None
    ) -> None:
        """One half of an iteration with torch operations."""
        set_ = unit.set
        # Before the state is looked at: torch.compile would else know p as a key of it, and recompile for every gradient.
        diameter = unit.diameter()
        states, lr = [self.state[p] for p in unit.params], size.lr
        half_number, momentum = min(states[0]["phase"], 1), group["momentum"]
        rate = step_rate(diameter, lr, group["gradient_bound"]) if size.rate is None else size.rate
        x, g = unit.blocks(unit_weights(unit, states)), unit.blocks([_gradient(group, p) for p in unit.params])
        m = unit.blocks([state["momentum_buffer"] for state in states]) if momentum else None
        if unit.params[0] not in self._counts:
            # Both halves at once, so that a compiled second half finds what it will find later.
            self._counts[unit.params[0]] = torch.zeros(2, 4, dtype=torch.long, device=x.device)
        counts = self._counts[unit.params[0]]
        kept = set_.constrained(x)
        own = set_ if kept is None else set_.part(kept)
        half = take_half(
            own,
            self._inside(group, unit, own, _only(x, kept), counts[half_number]),
            _only(g, kept),
            None if m is None else _only(m, kept),
            momentum=momentum,
            rate=_only_of(rate, kept),
            in_face=group["in_face"] if half_number and direction is None else None,
            diameter=_only_of(diameter, kept),
            direction=direction,
        )
        if half.m is not None:
            for state, buffer in zip(states, unit.tensors(_all(half.m, kept, m)), strict=True):
                keep_average(state, buffer)
        write(unit, states, unit.tensors(_all(half.x, kept, x)))
        if not torch.compiler.is_compiling():
            self._seen.update((p, _look(p, set_)) for p in unit.params)

        usable = torch.isfinite(half.slope)
        if half_number == 0:
            gaps = torch.where(usable, half.slope.detach().clamp(min=0), 0)
            self._gaps[unit.params[0]] = Gaps(index, _all(gaps, kept, gaps.new_zeros(len(x))), _now(lr), diameter)
            self._fused.forget(index, unit.params[0])
        counts[half_number, :3] += torch.stack([half.decision.step > 0, half.decision.hit, ~usable]).sum(1)

    def _inside(self, group: dict[str, Any], unit: Unit, set_: Set, x: Tensor, counts: Tensor) -> Tensor:
        """Count, name and, where ``project`` asks for it, project blocks that somebody else put outside of their set.

        Where a norm is dear, or a look at it would wait for a device, only steps look before which a parameter was
        written to; what is written through ``.data`` is seen on a CPU.
        """
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return x
        if not (set_.cheap_norm and x.is_cpu) and all(self._seen.get(p) == _look(p, set_) for p in unit.params):
            return x
        outside = ~set_.block_contains(x) & torch.isfinite(x).flatten(1).all(1)
        counts[3] += outside.sum()
        if x.is_cpu:
            if not bool(outside.any()):
                return x
            self._outside.append(unit.called)
        return set_.projected(x) if group["project"] else x

    def _free_step(self, index: int, group: dict[str, Any], params: list[Tensor]) -> None:
        """Descend on free parameters, or on the free blocks of constrained ones."""
        set_ = group["set"]
        grads = [_free(set_, _gradient(group, p)) for p in params]  # before the state is looked at, as above
        states = [self.state[p] for p in params]
        values = [_target(set_, p, state) for p, state in zip(params, states, strict=True)]
        parts = [_free(set_, x) for x in values]
        adaptive = group["norm"] == "adaptive"
        moments = average_moments(set_, states, grads, group["betas"]) if adaptive else []
        if group["momentum"] and not adaptive:
            averages: list[dict[str, Any]] = [
                {"momentum_buffer": _free(set_, state["momentum_buffer"]), "started": state["started"]}
                for state in states
            ]
            grads = average_free(averages, grads, group["momentum"], group["dampening"])
            for state, average_ in zip(states, averages, strict=True):
                state["momentum_buffer"] = put_free_part(set_, state["momentum_buffer"], average_["momentum_buffer"])
        first = [state["phase"] == 0 for state in states]
        moving = [i for i in range(len(params)) if first[i] or group["every_gradient"]]
        if moving:
            lr, decay, targets = _scalar(group["lr"]), group["weight_decay"], [parts[i] for i in moving]
            if adaptive:
                averages_ = [moments[i] for i in moving]
                square = descend_adaptively(
                    targets, averages_, lr, betas=group["betas"], eps=group["eps"], weight_decay=decay
                )
            else:
                square = descend(targets, [grads[i] for i in moving], lr, group["norm"], decay)
                weight = _weight(group)
                square, lr = square / weight**2, lr * weight  # of the average, which is what the gap is about
            for i in moving:
                if values[i] is not params[i]:
                    put_free_part(set_, values[i], parts[i])
                    parts[i] = parts[i].to(params[i].dtype)
                if parts[i] is not params[i]:
                    put(params[i], put_free_part(set_, params[i], parts[i]))
            if any(first):
                self._free[index] = FreeNorm(square.detach(), _now(lr))

    def _smoothness(self) -> dict[str, float]:
        """The constant ``L = 1 / (2 lr)`` that the last step of each relative group implied."""
        found = {}
        for index, group in enumerate(self.param_groups):
            for unit in units(group, index) if group["relative"] is not None and group["set"] is not None else ():
                lr = self.state[unit.params[0]].get("implied_lr")
                if lr is not None:
                    found[unit.name] = 1 / (2 * float(lr)) if float(lr) > 0 else math.inf
        return found

    def _custom_directions(self) -> dict[Tensor, Tensor]:
        """What the functions given as ``in_face`` say, checked before any parameter is touched."""
        found = {}
        for index, group in enumerate(self.param_groups):
            if group["set"] is None or not callable(group["in_face"]) or not self._ready(index, group):
                continue
            for unit in with_gradients(group, index):
                states = [self.state[p] for p in unit.params]
                x, g = unit.blocks(unit_weights(unit, states)), unit.blocks([_gradient(group, p) for p in unit.params])
                kept = unit.set.constrained(x)
                if states[0]["phase"] == 0 or (kept is not None and not len(kept)):
                    continue
                set_ = unit.set if kept is None else unit.set.part(kept)
                x, g = _only(x, kept), _only(g, kept)
                if group["project"]:
                    x = set_.projected(x)  # as the step will
                finite = torch.isfinite(g).flatten(1).all(1)
                if group["momentum"]:
                    m = unit.blocks([state["momentum_buffer"] for state in states])
                    g, _ = average(_only(m, kept), g, group["momentum"])
                d = group["in_face"](set_, x.clone(), g.clone())
                d = check_direction(set_, unit, x, g, d, finite)
                found[unit.params[0]] = torch.where(spread(finite, d), d, 0)
        return found

    def _measured(self) -> ModifiedGap:
        parts = []
        for index, group in enumerate(self.param_groups):
            if group["set"] is None:
                continue
            named = units(group, index)
            frozen = _is_zero(group["lr"])
            found = self._fused.gaps(index, [unit.name for unit in named], group["gradient_bound"])
            known = {name for part in found for name in part.parameters}
            for unit in named:
                own = None if unit.name in known else self._gaps.get(unit.params[0])
                if own is not None and any(p.requires_grad for p in unit.params):
                    gaps = {unit.name: len(own.blocks)}
                    found.append(BlockGaps(gaps, own.blocks.clone(), own.diameter, own.lr, group["gradient_bound"]))
            parts += [replace(part, lr=0.0) if frozen else part for part in found]  # frozen since
        free = [
            FreeNorm(norm.square, 0.0 if _is_zero(self.param_groups[index]["lr"]) else norm.lr)
            for index, norm in self._free.items()
        ]
        return combine(parts, free)

    def _warn_of_outside(self) -> None:
        """Say once which parameters were found outside of their sets."""
        if self._outside and not self._warned:
            self._warned = True
            more = f" and {len(self._outside) - 3} more" if len(self._outside) > 3 else ""
            warn(
                f"FrankWolfe: {', '.join(self._outside[:3])}{more} lay outside of the set that the optimizer keeps it in: "
                f"somebody else changed it. With project=True it is put back; report() counts such blocks"
            )
        self._outside.clear()

    def _forget(self) -> None:
        self._gaps: dict[Tensor, Gaps] = {}
        self._fused = Fused()
        self._free: dict[int, FreeNorm] = {}
        self._counts: dict[Tensor, Tensor] = {}
        self._seen: dict[Tensor, tuple[int, float]] = {}
        self._outside: list[str] = []
        self._warned = False


def _apart(group: dict[str, Any], defaults: dict[str, Any]) -> list[dict[str, Any]]:
    """A group as the groups that it becomes: of relative steps, or of a density, one for each parameter."""
    known = {**defaults, **group}
    params = group["params"]
    if not isinstance(known["set"], Set) or isinstance(params, Tensor) or known["set"].per == "group":
        return [group]
    if known["relative"] is None and not isinstance(known["lr"], str) and known["set"].sized:
        return [group]
    return [{**group, "params": [p]} for p in params]


def _resolve(group: dict[str, Any], index: int) -> None:
    """What a group says in words, as numbers: ``lr="auto"``, and the radius of a set that has a density."""
    set_ = group["set"]
    if isinstance(group["lr"], str) and group["lr"] == "auto":
        if set_ is None:
            raise ValueError(
                f"FrankWolfe: lr='auto' is for groups with a set, wanted a number for free parameters (group {index}: "
                f"{', '.join(names_of(group, index)[:3])})"
            )
        group["lr"], group["relative"] = AUTO, 1.0 if group["relative"] is None else group["relative"]
    if isinstance(set_, Set) and not set_.sized:
        found = units(group, index)
        if len(found) != 1:
            raise ValueError(
                f"FrankWolfe: a density gives every parameter a radius of its own, wanted one parameter in a group of "
                f"{set_!r}, got {len(found)} (group {index})"
            )
        group["set"] = _sized(found[0])
        group["project"] = True


def _sized(unit: Unit) -> Set:
    own = unit.set.sized_for(unit.blocks([computable(p.detach()) for p in unit.params]))
    return own if unit.joint is None else unit.joint.with_radius(own.radius)


def _prepare(group: dict[str, Any], index: int) -> None:
    """Put a checked group's parameters where its set wants them."""
    set_: Set | None = group["set"]
    if set_ is None:
        for p in group["params"]:
            constrain(p, None)
        return
    group["set"] = set_ = beside(set_, group["params"])
    for p in group["params"]:
        constrain(p, set_)
    for unit in units(group, index) if group["project"] else ():
        with torch.no_grad():
            x = unit.blocks([computable(p) for p in unit.params])
            kept = unit.tensors(spread(unit.set.inside(x), x).expand_as(x))  # bit for bit: resumed runs rely on it
            values = unit.tensors(unit.set.projected(unit.blocks(before_rounding(unit))))
            for p, new, keep in zip(unit.params, rounded(unit, values), kept, strict=True):
                p.copy_(torch.where(keep, p, new))


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


def _weight(group: dict[str, Any]) -> float:
    """How many times the average the momentum of free parameters is: once, unless their ``dampening`` says otherwise."""
    momentum, dampening = group["momentum"], group["dampening"]
    return 1.0 if not momentum or dampening is None else (1 - dampening) / (1 - momentum)


def _next_phase(group: dict[str, Any], phase: int) -> int:
    """What comes after a phase: a first half (0), or one of the second halves of an iteration."""
    if group["in_face"] is None:
        return 0
    return phase + 1 if phase < group["in_face_steps"] else 0 if regrows(group["path"]) else 1


def _gradient(group: dict[str, Any], p: Tensor) -> Tensor:
    g = torch.zeros_like(computable(p)) if p.grad is None else computable(p.grad)
    return -g if group["maximize"] else g


def _only(x: Tensor, kept: Tensor | None) -> Tensor:
    """Some of the blocks; all of them if it is not said which."""
    return x if kept is None else x[kept]


def _only_of(numbers: float | Tensor, kept: Tensor | None) -> float | Tensor:
    """The same of one number for all blocks, or one for each."""
    return _only(numbers, kept) if isinstance(numbers, Tensor) and numbers.ndim else numbers


def _all(some: Tensor, kept: Tensor | None, x: Tensor | None) -> Tensor:
    """All blocks ``x``, of which some are other ones."""
    return some if kept is None or x is None else x.index_copy(0, kept, some)


def _free(set_: Set | None, x: Tensor) -> Tensor:
    """The free part of a tensor that has one."""
    part = free_part(set_, x)
    if part is None:
        raise TypeError(f"{set_!r} has no free blocks")
    return part


def _look(p: Tensor, set_: Set) -> tuple[int, float]:
    """What changes when a tensor is written to: autograd's counter, and, for what it does not see, the size of the numbers."""
    version = -1 if p.is_inference() else p._version  # noqa: SLF001
    seen = p.is_cpu and not set_.cheap_norm
    return version, float(torch.linalg.vector_norm(p.detach(), dtype=torch.float64)) if seen else 0.0


def _target(set_: Set | None, p: Tensor, state: dict[str, Any]) -> Tensor:
    """What descent moves: the parameter, or its float32 copy."""
    if "master" not in state:
        return p
    return weights(p, state) if set_ is None else unit_weights(Unit(set_, [p], "", None), [state])[0]


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
