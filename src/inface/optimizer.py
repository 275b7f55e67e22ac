"""Algorithm 1 of the paper, in its block version, as a torch.optim.Optimizer."""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.optim.optimizer import Optimizer, ParamsT

from .adaptive import Betas
from .checks import check_gradients, check_group
from .cuts import keeping_blocks
from .density import advance, check_announced
from .descent import free_step, gradient, is_zero, now, scalar
from .directions import all_blocks, custom_directions, only, only_of
from .dtensors import entries
from .free import Norm
from .fused import Fused
from .gap import BlockGaps, FreeNorm, ModifiedGap, combine, step_rate
from .groups import Constraints, param_groups
from .halves import take_half
from .kernels import Options, device
from .preparation import Moved, apart, prepare, put_back, resolve
from .printing import shown
from .registry import constrain
from .relative import StepSize, begin, keep_gap, step_size
from .report import Report, smoothness
from .serialization import OLDER, adopting, to_plain_data
from .sets import Set
from .sets.base import EXACT, InFace
from .sharded import Shards, any_sharded
from .state import (
    create,
    create_masters,
    keep_average,
    preconditioned,
    unit_weights,
    write,
)
from .support import Compute, looks_at_entries, next_phase, upcoming_phase
from .units import Unit, units, with_gradients
from .warning import warn

__all__ = ["Direction", "FrankWolfe"]

Direction = Callable[[Set, Tensor, Tensor], Tensor]

NOTHING: contextlib.AbstractContextManager[None] = contextlib.nullcontext()


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
            or L2Ball take a compiled kernel that costs about what SGD's step costs, and CUDA parameters a Triton kernel
            if Triton is installed; ``False``: torch operations everywhere; ``True``: the kernel,
            or an error where it cannot be.
        capturable: steps can be captured in a CUDA graph: counts of gradients lie beside the parameters, and nothing else
            about a step changes with its number (see the page on GPUs). A captured ``lr`` can change if it is a tensor on
            their device. Without a graph it costs a little.
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
    _shards: Shards | None
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
        capturable: bool = False,
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
            "capturable": capturable,
            "project": project,
            "path": None,
        }
        self._betas = betas
        self._prepared = False
        super().__init__(params, defaults)
        self._prepared = True
        self._forget()
        for index, group in enumerate(self.param_groups):
            self._moved |= prepare(group, index)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; it is checked whole before anything is changed.

        The parameters of a group of relative steps, whose sizes have nothing to do with each other, become groups of their
        own, unless they share a set; and so do those of a set that is sized by a density.
        """
        before = len(self.param_groups)
        try:
            for index, one in enumerate(apart(param_group, self.defaults), before):
                super().add_param_group(one)
                group = self.param_groups[index]
                group.setdefault("betas", self._betas)
                resolve(group, index)
                check_group(group, index)
        except ValueError:
            del self.param_groups[before:]
            raise
        if self._prepared:
            for index, group in enumerate(self.param_groups[before:], before):
                self._moved |= prepare(group, index)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Consume the gradients that the parameters hold; parameters without one are left out.

        Args:
            closure: re-evaluates the model and returns the loss, which is then returned.
        """
        # torch's own decorator for this breaks a graph on purpose.
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            return self._whole_step(closure)

    def _whole_step(self, closure: Callable[[], Any] | None) -> Any:
        if torch.compiler.is_compiling() and any(
            group["path"] is not None or any_sharded(group["params"]) for group in self.param_groups
        ):
            return self._uncompiled_step(closure)  # every step of a path has other numbers, and shards are gathered
        return self._step(closure)

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._accelerator_graph_capture_health_check()
        check_announced(self.param_groups)
        self._moved.clear()
        for index, group in enumerate(self.param_groups):
            check_gradients(group, index)
        shards = self._shards_now()
        if shards is None:
            moved = self._halves()
        else:
            moved = shards.step(self.param_groups, self.state)
            self._outside += shards.outside()
        advance(self, by_itself=True, moved=moved)
        if shards is None and not torch.compiler.is_compiling():
            self._count()
        self._warn_of_outside()
        return loss

    _uncompiled_step = _disable_dynamo(_step)

    def _halves(self, some: Sequence[int] | None = None) -> list[int]:
        """One half of an iteration of everything that has a gradient, or of some groups; those that moved."""
        moved = []
        chosen = [(i, self.param_groups[i]) for i in (range(len(self.param_groups)) if some is None else some)]
        directions = self._custom_directions(chosen)
        for index, group in chosen:
            params, set_ = self._ready(index, group), group["set"]
            if params:
                moved.append(index)
            if params and (set_ is None or set_.free is not None):
                norm = free_step(group, params, self.state)
                if norm is not None:
                    self._free[index] = norm
            if params and set_ is not None and not set_.all_free:
                self._constrained_steps(index, group, directions, _fused_options(group))
            for p in params:
                state = self.state[p]
                if state["phase"] == 0 and "compute" in group:
                    self._grown.add(p)
                state["phase"] = next_phase(group, state["phase"])
                if "started" in state:
                    state["started"] = True
        return moved

    @property
    def gap(self) -> Tensor:
        """The stochastic modified gap (Lemma 2.1) at the last first half, as a 0-d tensor; NaN before there was one.

        With momentum it is the averaged gradient's, and with ``precondition`` that of the scaled gradients, which are what
        steps follow: a number to watch, not one to compare with :func:`inface.modified_gap`, which scales no gradient of a
        constrained parameter. All that a step does for it is to take the norms of free gradients;
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
        for counts in (
            (*self._counts.values(), *self._fused.counts()) if self._shards is None else self._shards.counts()
        ):
            total += counts.cpu()
        (moved, clamped, skipped, outside), (inner, drop, skipped_inner, outside_inner) = total.tolist()
        found = Report(self._measured(), moved, clamped, inner, drop, skipped + skipped_inner, outside + outside_inner)
        return replace(found, smoothness=smoothness(self.param_groups, self.state))

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
        """Take over a saved state. Sets must be of the same kind, ``per`` and norm; their radii come from the saved state.

        A path of densities goes on where it was. If this optimizer was made with another number of steps, that number is
        used from now on, with a warning: a longer training is announced this way.
        """
        if not isinstance(state_dict, Mapping):
            raise ValueError(f"FrankWolfe: wanted a state_dict, got {state_dict!r:.60}")
        moved = dict(self._moved)
        with adopting(self):
            super().load_state_dict(state_dict)
        put_back(moved)

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
        present = [p for p in group["params"] if p.grad is not None and entries(p)]
        if present and set_ is not None and set_.per == "group":
            present = [p for p in group["params"] if p.numel()]  # they are one block
        for p in present:
            _start(self.state[p], p, group)
        if set_ is not None and any(p.dtype not in EXACT for p in present):
            for unit in with_gradients(group, index):
                create_masters(unit, [self.state[p] for p in unit.params])
        return [] if is_zero(group["lr"]) else present

    def _constrained_steps(
        self, index: int, group: dict[str, Any], directions: dict[Tensor, Tensor], options: Options | None
    ) -> None:
        units_ = with_gradients(group, index)
        if not units_:
            return
        state, size = self.state[units_[0].params[0]], StepSize(scalar(group["lr"]))
        first = state["phase"] == 0
        keeping = NOTHING if group["path"] is None else keeping_blocks(group, units_, self.state)
        scaled = preconditioned(group, units_, self.state) if group["precondition"] else NOTHING
        with keeping, scaled:
            if group["relative"] is not None:
                size = self._relative_size(group, units_[0], fused=options is not None)
            left = units_
            if options is not None:
                sized = options
                if group["relative"] is not None:
                    sized = options._replace(lr=size.lr, rate=size.rate, most=size.most)
                left, outside = self._fused.step(index, group, self.state, sized)
                self._outside += outside
            for unit in left:
                self._constrained_step(index, group, unit, size, directions.get(unit.params[0]))
        if first and group["relative"] is not None:
            gaps = [own.blocks for own in (self._gaps.get(units_[0].params[0]),) if own is not None and left]
            keep_gap(state, units_[0], gaps[0] if gaps else self._fused.blocks(index))

    def _relative_size(self, group: dict[str, Any], unit: Unit, *, fused: bool) -> StepSize:
        states = [self.state[p] for p in unit.params]
        x, g = unit_weights(unit, states), [gradient(group, p) for p in unit.params]
        norms = self._fused.norms(unit.set, x[0], g[0]) if fused and unit.joint is None and states[0]["phase"] else None
        size = step_size(group, unit, states[0], x, g, norms)
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
        x, g = unit.blocks(unit_weights(unit, states)), unit.blocks([gradient(group, p) for p in unit.params])
        m = unit.blocks([state["momentum_buffer"] for state in states]) if momentum else None
        if unit.params[0] not in self._counts:
            # Both halves at once, so that a compiled second half finds what it will find later.
            self._counts[unit.params[0]] = torch.zeros(2, 4, dtype=torch.long, device=x.device)
        counts = self._counts[unit.params[0]]
        kept = set_.constrained(x)
        own = set_ if kept is None else set_.part(kept)
        start = self._inside(group, unit, own, only(x, kept), counts[half_number])
        options: dict[str, Any] = {
            "momentum": momentum,
            "rate": only_of(rate, kept),
            "in_face": group["in_face"] if half_number and direction is None else None,
            "diameter": only_of(diameter, kept),
            "most": size.most,
        }
        averages = None if m is None else only(m, kept)
        if direction is None and _on_device(group, own, start, options["in_face"]):
            half = device.take_half(own, start, only(g, kept), averages, **options)
        else:
            half = take_half(own, start, only(g, kept), averages, direction=direction, **options)
        if half.m is not None:
            for state, buffer in zip(states, unit.tensors(all_blocks(half.m, kept, m)), strict=True):
                keep_average(state, buffer)
        write(unit, states, unit.tensors(all_blocks(half.x, kept, x)))
        if not torch.compiler.is_compiling():
            self._seen.update((p, _look(p, set_)) for p in unit.params)

        usable = torch.isfinite(half.slope)
        if half_number == 0:
            gaps = torch.where(usable, half.slope.detach().clamp(min=0), 0)
            self._gaps[unit.params[0]] = Gaps(index, all_blocks(gaps, kept, gaps.new_zeros(len(x))), now(lr), diameter)
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

    def _count(self, cut: Sequence[dict[str, Any]] = ()) -> None:
        """Count the non-zeros of layers that leave their zeros out, after steps that may have brought some, and after cuts.

        Counts decide how a layer computes. Steps in a face do not count: a resumed run has not the lists that it had.
        """
        for group in self.param_groups:
            compute: Compute | None = group.get("compute")
            if compute is None:
                continue
            changed = any(group is other for other in cut) or not looks_at_entries(group)
            for place, p in enumerate(group["params"]):
                if changed or p in self._grown:
                    compute["nonzeros"][place] = self._fused.nonzeros(p)
        self._grown.clear()

    def _custom_directions(self, groups: Sequence[tuple[int, dict[str, Any]]]) -> dict[Tensor, Tensor]:
        found: dict[Tensor, Tensor] = {}
        for index, group in groups:
            if group["set"] is not None and callable(group["in_face"]) and self._ready(index, group):
                found |= custom_directions(group, index, self.state)
        return found

    def _measured(self) -> ModifiedGap:
        groups = self.param_groups
        found: list[tuple[int, BlockGaps | FreeNorm]] = []
        if self._shards is not None:
            found += self._shards.parts(groups)
        else:
            for index, group in enumerate(groups):
                found += [(index, part) for part in self._gaps_of(index, group)]
            found += self._free.items()
        frozen = [is_zero(group["lr"]) for group in groups]  # since their last step
        parts = [replace(part, lr=0.0) if frozen[index] else part for index, part in found]
        return combine(
            [part for part in parts if isinstance(part, BlockGaps)],
            [part for part in parts if isinstance(part, FreeNorm)],
        )

    def _gaps_of(self, index: int, group: dict[str, Any]) -> list[BlockGaps]:
        """The gaps of the blocks of a group at their last first half."""
        if group["set"] is None:
            return []
        named = units(group, index)
        found = self._fused.gaps(index, [unit.name for unit in named], group["gradient_bound"])
        known = {name for part in found for name in part.parameters}
        for unit in named:
            own = None if unit.name in known else self._gaps.get(unit.params[0])
            if own is not None and any(p.requires_grad for p in unit.params):
                gaps = {unit.name: len(own.blocks)}
                found.append(BlockGaps(gaps, own.blocks.clone(), own.diameter, own.lr, group["gradient_bound"]))
        return found

    def _free_norm_of(self, index: int) -> FreeNorm | None:
        """The norm of a group's free gradient at its last first half."""
        return self._free.get(index)

    def _counts_of(self, index: int, group: dict[str, Any]) -> Tensor:
        """What the blocks of a group did, counted."""
        found = [self._counts[p].cpu() for p in group["params"] if p in self._counts]
        return sum([*found, *self._fused.counts(index)], torch.zeros(2, 4, dtype=torch.long, device="cpu"))

    def _shards_now(self) -> Shards | None:
        """What steps on sharded parameters; None if there are none."""
        if not any(any_sharded(group["params"]) for group in self.param_groups):
            self._shards = None
        elif self._shards is None:
            engine = object.__new__(FrankWolfe)
            engine.param_groups, engine.state = [], defaultdict(dict)
            engine._forget()
            self._shards = Shards(engine)
        return self._shards

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
        self._shards = None
        self._gaps: dict[Tensor, Gaps] = {}
        self._fused = Fused()
        self._free: dict[int, FreeNorm] = {}
        self._counts: dict[Tensor, Tensor] = {}
        self._seen: dict[Tensor, tuple[int, float]] = {}
        self._outside: list[str] = []
        self._moved: Moved = {}
        self._grown: set[Tensor] = set()
        self._warned = False


def _on_device(group: dict[str, Any], set_: Set, x: Tensor, in_face: InFace | None) -> bool:
    """Whether a Triton kernel takes a step on these blocks."""
    if group["fused"] is False or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    return device.takes(set_, x, in_face)


def _fused_options(group: dict[str, Any]) -> Options | None:
    """What the kernels need to know of a group; None if it asks for something that only torch operations can do."""
    if (
        group["fused"] is False
        or not any(p.is_cpu for p in group["params"])
        or device.interprets()
        or callable(group["in_face"])
        or torch.is_grad_enabled()
        or torch.compiler.is_compiling()
    ):
        return None
    return Options(scalar(group["lr"]), group["gradient_bound"], group["momentum"], group["maximize"])


def _start(state: dict[str, Any], p: Tensor, group: dict[str, Any]) -> None:
    """Bring the state of a parameter to where the next half of an iteration begins."""
    averaged = group["momentum"] or group["norm"] == "adaptive"
    if "phase" not in state or averaged or p.dtype not in EXACT or "master" in state:
        create(state, p, group)
    if group["set"] is not None and group["relative"] is not None and "gap_known" not in state:
        begin(state, p)
    state["phase"] = upcoming_phase(group, state)


def _look(p: Tensor, set_: Set) -> tuple[int, float]:
    """What changes when a tensor is written to: autograd's counter, and, for what it does not see, the size of the numbers."""
    version = -1 if p.is_inference() else p._version  # noqa: SLF001
    seen = p.is_cpu and not set_.cheap_norm
    return version, float(torch.linalg.vector_norm(p.detach(), dtype=torch.float64)) if seen else 0.0
