"""Layers that compute with their zeros left out, forward and backward, while the optimizer trains them.

A layer keeps its class's behaviour, its parameters and their names: the weight stays an ordinary dense parameter. What
changes is how products are computed, and which gradient the weight gets:

* output and gradient of the input are those of the dense computation, to rounding;
* before a step that looks at the weight's non-zeros alone (the in-face halves of ``in_face="projected"`` in l1 balls and
  simplices), ``weight.grad`` is the gradient there, and zero elsewhere;
* before any other step it is the whole gradient.

The memory of that gradient is kept from step to step and used again once nobody else holds it: after ``zero_grad()``, which
sets gradients to None. A gradient that somebody keeps, or that is accumulated, is never written over.
"""

from __future__ import annotations

import copyreg
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn import functional

from .break_even import break_even, random_pattern
from .convolution import Window, break_even_of, images, patches
from .gradients import wants_dense_gradients
from .kernels import Lists, addressable, enabled
from .kernels.matrices import Pattern, pack, products_available
from .optimizer import FrankWolfe
from .support import Compute, support_suffices
from .types import ComputeMode
from .units import names_of

__all__ = ["sparse_compute_"]

Measure = Callable[[], tuple[float, float]]


def sparse_compute_(model: nn.Module, optimizer: FrankWolfe, *, mode: ComputeMode = "auto") -> list[str]:
    """Let the constrained layers of a model compute with their zeros left out, forward and backward, where that is faster.

    The model's parameters, names, ``state_dict``, hooks and copies stay what they are. Linear layers and convolutions take
    part whose weights the optimizer keeps in a set. How a layer computes follows from its non-zeros, which the optimizer counts, and from
    two densities that are measured when a batch size is first met; both are in the optimizer's ``state_dict``, so that a resumed
    training computes alike, bit for bit. Layers become sparse computers, and dense ones again, as their density changes.

    Iterates are those of the dense computation, to rounding. Where the optimizer needs the gradient of what is not zero and no
    more, ``weight.grad`` is zero elsewhere: see :func:`inface.dense_gradients`. Under ``torch.compile``, ``torch.func`` and on devices
    other than a CPU layers compute densely; so they do with weights that are not contiguous float32 or float64.

    Args:
        model: the network.
        optimizer: its optimizer.
        mode: ``"auto"``; ``"sparse"``: wherever there is a list of non-zeros, measured or not; ``"dense"``: as before.

    Returns:
        The names of the weights that take part.

    Raises:
        ValueError: naming the argument, the value and what was wanted.

    >>> import torch, inface
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 100), torch.nn.ReLU(), torch.nn.Linear(100, 10))
    >>> opt = inface.sparse_optimizer(model, density=0.05, lr=0.1, steps=300)
    >>> inface.sparse_compute_(model, opt)
    ['0.weight', '2.weight']
    >>> model
    Sequential(
      (0): Linear(in_features=64, out_features=100, bias=True)
      (1): ReLU()
      (2): Linear(in_features=100, out_features=10, bias=True)
    )
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"sparse_compute_: model must be a torch.nn.Module, got {type(model).__name__}")
    if not isinstance(optimizer, FrankWolfe):
        raise ValueError(f"sparse_compute_: optimizer must be a FrankWolfe, got {type(optimizer).__name__}")
    if mode not in get_args(ComputeMode):
        modes = ", ".join(map(repr, get_args(ComputeMode)))
        raise ValueError(f"sparse_compute_: mode must be one of {modes}, got {mode!r}")
    layers = _layers(model, optimizer)
    places = [_place(optimizer, layer.weight) for layer in layers]
    for index, _ in places:  # those of layers elsewhere stay as they are
        optimizer.param_groups[index].pop("compute", None)
    names: list[str] = []
    for layer, (index, place) in zip(layers, places, strict=True):
        _release(layer)
        if mode == "dense":
            continue
        group = optimizer.param_groups[index]
        if "compute" not in group:
            counts = [optimizer._fused.nonzeros(p) for p in group["params"]]  # noqa: SLF001 - the optimizer's own lists
            group["compute"] = Compute(mode=mode, nonzeros=counts, limits={})
        _plans[layer] = Plan(optimizer, index, place)
        layer.__class__ = COMPUTING[type(layer)]
        names.append(names_of(group, index)[place])
    return names


def _layers(model: nn.Module, optimizer: FrankWolfe) -> list[Any]:
    """The layers whose weights the optimizer keeps in a set."""
    constrained = {id(p) for group in optimizer.param_groups if group["set"] is not None for p in group["params"]}
    kinds = {*COMPUTING, *COMPUTING.values()}
    return [
        layer
        for layer in model.modules()
        if type(layer) in kinds and id(layer._parameters.get("weight")) in constrained  # noqa: SLF001 - not one that is computed
    ]


def _place(optimizer: FrankWolfe, p: Tensor) -> tuple[int, int]:
    """The group of a parameter, and its place there."""
    return next(
        (index, place)
        for index, group in enumerate(optimizer.param_groups)
        for place, other in enumerate(group["params"])
        if other is p
    )


def _release(layer: nn.Module) -> None:
    """Make a layer what it was."""
    _plans.pop(layer, None)
    for plain, computing in COMPUTING.items():
        if type(layer) is computing:
            layer.__class__ = plain


class Job(NamedTuple):
    """What one forward pass of a layer is computed with, and its backward pass too."""

    pattern: Pattern
    values: Tensor
    listed: bool  # the gradient of the weight is computed where it has entries, and nowhere else
    memory: Memory
    lists: Lists
    dtype: torch.dtype  # of the output


class Plan:
    """How a layer computes: what it asks the optimizer, and what it keeps from pass to pass."""

    def __init__(self, optimizer: FrankWolfe, index: int, place: int) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.index, self.place = index, place
        self.pattern: Pattern | None = None
        self.memory = Memory()

    def job(self, weight: Tensor, x: Tensor, batch: int, measure: Measure | None = None) -> Job | None:
        """What to compute a batch with; None for the dense computation."""
        optimizer = self.optimizer()
        if optimizer is None or batch == 0 or not _computable(weight, x):
            return None
        group = self._group(optimizer, weight)
        compute: Compute | None = None if group is None else group.get("compute")
        if group is None or compute is None:
            return None
        products, slopes = self._limits(compute, weight, x, batch, measure)
        density = compute["nonzeros"][self.place] / weight.numel()
        if density >= products:
            return None
        entries = optimizer._fused.support(weight)  # noqa: SLF001 - the optimizer's own lists
        if entries is None:
            return None
        if self.pattern is None or self.pattern.listed is not entries.listed:
            self.pattern = Pattern(entries.listed, weight.shape[0], weight.numel() // weight.shape[0])
        support = not wants_dense_gradients() and support_suffices(group, optimizer.state.get(weight, {}), weight)
        autocast = torch.is_autocast_enabled("cpu")
        dtype = torch.get_autocast_dtype("cpu") if autocast and x.dtype is not torch.float64 else x.dtype
        lists = optimizer._fused.lists  # noqa: SLF001
        return Job(self.pattern, entries.values, support and density < slopes, self.memory, lists, dtype)

    def _group(self, optimizer: FrankWolfe, weight: Tensor) -> dict[str, Any] | None:
        """The group of the weight; None if the optimizer does not have it any more."""
        groups = optimizer.param_groups
        if self.index < len(groups) and self.place < len(groups[self.index]["params"]):
            group = groups[self.index]
            if group["params"][self.place] is weight:
                return group
        return None

    def _limits(
        self, compute: Compute, weight: Tensor, x: Tensor, batch: int, measure: Measure | None
    ) -> tuple[float, float]:
        """The densities below which zeros are left out, in products and in gradients of weights.

        Batches between two powers of two share them. A pass that is not differentiated measures nothing: evaluation does not change a
        training.
        """
        if compute["mode"] == "sparse":
            return 1.0, 1.0
        rows, width = weight.shape[0], weight.numel() // weight.shape[0]
        case = (
            f"{rows}x{width}" if measure is None else f"{'x'.join(map(str, weight.shape))} on {x.shape[2]}x{x.shape[3]}"
        )
        size = batch.bit_length()
        key, limits = f"{case}, {size}", compute["limits"]
        if key not in limits:
            known = [other for other in limits if other.startswith(f"{case}, ")]
            if known and not torch.is_grad_enabled():
                key = min(known, key=lambda other: abs(int(other.split(", ")[1]) - size))
            else:
                limits[key] = list(break_even(rows, width, batch, weight.dtype) if measure is None else measure())
        first, second = limits[key]
        return first, second


def _ordinary(x: Tensor) -> bool:
    """Whether an input is a tensor with numbers, and not what somebody traces a model with."""
    return not torch.compiler.is_compiling() and type(x) in (Tensor, nn.Parameter)


def _computable(weight: Tensor, x: Tensor) -> bool:
    """Whether the kernels can compute with these, here and now."""
    return (
        enabled()
        and addressable(weight)
        and weight.is_contiguous()
        and x.is_cpu
        and (x.dtype is weight.dtype or (torch.is_autocast_enabled("cpu") and x.is_floating_point()))
        and x.layout is torch.strided
        and not x.is_neg()
        and torch._C._get_tracing_state() is None  # noqa: SLF001 - torch.jit's
        and not torch._C._are_functorch_transforms_active()  # noqa: SLF001 - torch has no other way to say it
        and torch.autograd.forward_ad._current_level < 0  # noqa: SLF001
        and products_available()
    )


class Memory:
    """The memory of the gradients of a weight, which is used again when nobody else holds it."""

    def __init__(self) -> None:
        self._memory: Tensor | None = None
        self._written: Pattern | None = None  # where it is not zero; None for everywhere
        self._version = 0

    def dense(self, g: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """The gradient of a whole weight, from that of the outputs and from the inputs."""
        memory = self._free(weight)
        if memory is None:
            memory = torch.empty_like(weight, requires_grad=False)
        torch.mm(g.t(), x, out=memory.view(g.shape[1], x.shape[1]))
        return self._given(memory, None)

    def listed(self, slopes: Tensor, pattern: Pattern, weight: Tensor) -> Tensor:
        """A gradient that is zero but in some places."""
        memory = self._free(weight)
        if memory is None:
            memory = torch.zeros_like(weight, requires_grad=False)
        elif self._written is None or memory._version != self._version:  # noqa: SLF001 - somebody else may have written to it
            memory.zero_()
        elif self._written is not pattern:
            self._written.scatter(None, memory)
        pattern.scatter(slopes, memory)
        torch.autograd.graph.increment_version(memory)
        return self._given(memory, pattern)

    def _free(self, weight: Tensor) -> Tensor | None:
        """Memory for a gradient that nobody else holds; None if there is none."""
        memory = self._memory
        if memory is None or memory.shape != weight.shape or memory.dtype is not weight.dtype:
            return None
        # This object has it, and the storage that is asked.
        return memory if torch._C._storage_Use_Count(memory.untyped_storage()._cdata) == 2 else None  # noqa: SLF001

    def _given(self, memory: Tensor, written: Pattern | None) -> Tensor:
        self._memory, self._written, self._version = memory, written, memory._version  # noqa: SLF001
        return memory.detach()


class Product(torch.autograd.Function):
    """Samples times a sparse matrix."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, job: Job) -> Tensor:
        flat = x.detach().reshape(-1, job.pattern.width).to(weight.dtype)
        packed = pack(flat)
        y = job.pattern.multiply(job.values, packed, len(flat), None if bias is None else bias.detach())
        ctx.job, ctx.shape, ctx.dtype = job, x.shape, x.dtype
        ctx.save_for_backward(packed if job.listed else x, weight)
        return y.to(job.dtype)  # no view of it: activations may change it in place

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = grads
        job: Job = ctx.job  # type: ignore[attr-defined]
        saved, weight = ctx.saved_tensors  # type: ignore[attr-defined]
        if torch.is_grad_enabled() or _batched(g):
            return (*_differentiable(ctx, job, g, saved, weight), None)
        for_x, for_weight, for_bias = ctx.needs_input_grad[:3]  # type: ignore[attr-defined]
        pattern = job.pattern
        flat = g.reshape(-1, pattern.rows)
        wide = flat.to(weight.dtype)
        batch = len(flat)
        steep = pack(wide) if for_x or (for_weight and job.listed) else wide
        slopes = None
        if for_weight and job.listed:
            prices = pattern.slopes(saved, steep, batch)
            slopes = job.memory.listed(prices, pattern, weight)
            job.lists.keep_prices(weight, pattern.listed, prices, slopes)
        elif for_weight:
            slopes = _dense_slopes(job, flat, saved.reshape(-1, pattern.width), weight)
        down = None
        if for_x:
            down = pattern.multiply_transposed(job.values, steep, batch)
            down = down.to(ctx.dtype).view(ctx.shape)  # type: ignore[attr-defined]
        return down, slopes, wide.sum(0) if for_bias else None, None


def _batched(g: Tensor) -> bool:
    """Whether many gradients are computed at once, by ``torch.autograd.grad(is_grads_batched=True)``."""
    functorch = torch._C._functorch  # noqa: SLF001 - torch has no other way to say it
    return functorch.is_batchedtensor(g) or functorch.is_legacy_batchedtensor(g)


def _dense_slopes(job: Job, g: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """The gradient of a weight by one dense product, in the precision of the gradient of the outputs."""
    if g.dtype is weight.dtype and x.dtype is weight.dtype and not torch.is_autocast_enabled("cpu"):
        slopes = job.memory.dense(g, x, weight)
    else:
        slopes = (g.t() @ x.to(g.dtype)).to(weight.dtype).view(weight.shape)
    return slopes


def _differentiable(
    ctx: Any, job: Job, g: Tensor, x: Tensor, weight: Tensor
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients by torch's operations, for those who differentiate twice, or many outputs at once: dense."""
    if job.listed:
        raise RuntimeError(
            "sparse_compute_: second derivatives and batches of gradients need the dense computation, wanted the forward pass "
            "inside of inface.dense_gradients()"
        )
    for_x, for_weight, for_bias = ctx.needs_input_grad[:3]
    wide = g.reshape(-1, job.pattern.rows).to(weight.dtype)
    down = (wide @ weight.view(job.pattern.rows, -1)).to(x.dtype).view(x.shape) if for_x else None
    flat = x.reshape(-1, job.pattern.width).to(weight.dtype)
    return down, (wide.t() @ flat).view(weight.shape) if for_weight else None, wide.sum(0) if for_bias else None


class Linear(nn.Linear):
    """A linear layer that may leave out its zeros; to everybody else a :class:`torch.nn.Linear`."""

    def forward(self, x: Tensor) -> Tensor:
        if not torch.jit.is_scripting():  # type: ignore[attr-defined]
            found = _linear(self, x)
            if found is not None:
                return found
        return functional.linear(x, self.weight, self.bias)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _reduced(super().__reduce_ex__(protocol), nn.Linear)


class Conv2d(nn.Conv2d):
    """A convolution that may leave out its zeros; to everybody else a :class:`torch.nn.Conv2d`."""

    def forward(self, x: Tensor) -> Tensor:
        if not torch.jit.is_scripting():  # type: ignore[attr-defined]
            found = _convolution(self, x)
            if found is not None:
                return found
        return self._conv_forward(x, self.weight, self.bias)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _reduced(super().__reduce_ex__(protocol), nn.Conv2d)


def _linear(layer: nn.Linear, x: Tensor) -> Tensor | None:
    """The output of a layer with its zeros left out; None for the dense computation."""
    if not _ordinary(x) or not x.ndim or x.shape[-1] != layer.in_features:
        return None
    job = _job(layer, x, x.numel() // max(layer.in_features, 1))
    return None if job is None else _product(x, layer.weight, layer.bias, job)


def _convolution(layer: nn.Conv2d, x: Tensor) -> Tensor | None:
    """The output of a layer with its zeros left out; None for the dense computation."""
    window = _window(layer, x) if _ordinary(x) else None
    if window is None:
        return None
    high, wide = window.places(x.shape)
    job = _job(layer, x, x.shape[0] * high * wide, lambda: break_even_of(layer, x, random_product(layer)))
    return None if job is None else images(_product(patches(x, window), layer.weight, layer.bias, job), x, window)


def _window(layer: nn.Conv2d, x: Tensor) -> Window | None:
    """How the filters of a layer move; None for what the kernels leave to torch."""
    if layer.groups != 1 or layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        return None
    if x.ndim != 4 or x.shape[1] != layer.in_channels or not x.numel():
        return None
    pairs = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    window = Window(*((int(one), int(other)) for one, other in pairs))
    return window if min(window.places(x.shape)) > 0 else None


def random_product(layer: nn.Conv2d) -> Callable[[Tensor, Tensor, float], Tensor]:
    """A layer's convolution by a random list, for those who measure."""
    rows, width, jobs = layer.out_channels, layer.weight.numel() // layer.out_channels, dict[float, Job]()

    def product(x: Tensor, weight: Tensor, density: float) -> Tensor:
        if density not in jobs:
            pattern = random_pattern(rows, width, density, torch.Generator().manual_seed(0))
            values = torch.ones(pattern.count, dtype=weight.dtype, device="cpu")
            jobs[density] = Job(pattern, values, True, Memory(), Lists(), x.dtype)
        window = _window(layer, x)
        if window is None:
            raise RuntimeError("inface: a convolution without a window")
        return images(_product(patches(x, window), weight, None, jobs[density]), x, window)

    return product


COMPUTING: dict[type[nn.Module], type[nn.Module]] = {nn.Linear: Linear, nn.Conv2d: Conv2d}

_plans: weakref.WeakKeyDictionary[nn.Module, Plan] = weakref.WeakKeyDictionary()


def _job(layer: Any, x: Tensor, batch: int, measure: Measure | None = None) -> Job | None:
    plan, bias = _plans.get(layer), layer.bias
    if plan is None or not (bias is None or _plain(bias, layer.weight)):
        return None
    return plan.job(layer.weight, x, batch, measure)


def _plain(bias: Tensor, weight: Tensor) -> bool:
    """Whether a bias is what the kernels take it for: a number for each row."""
    return bias.is_cpu and bias.dtype is weight.dtype and bias.shape == weight.shape[:1] and bias.is_contiguous()


def _product(x: Tensor, weight: Tensor, bias: Tensor | None, job: Job) -> Tensor:
    if torch.is_grad_enabled() and (
        x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    ):
        y: Tensor = Product.apply(x, weight, bias, job)  # type: ignore[no-untyped-call]
    else:
        flat = x.detach().reshape(-1, job.pattern.width).to(weight.dtype)
        y = job.pattern.multiply(job.values, pack(flat), len(flat), None if bias is None else bias.detach()).to(
            job.dtype
        )
    return y if x.ndim == 2 else y.view(*x.shape[:-1], job.pattern.rows)


def _reduced(reduced: Any, plain: type[nn.Module]) -> Any:
    """What a layer is copied and pickled as: the class that it was, which needs nothing of this package."""
    return (copyreg._reconstructor, (plain, object, None), *reduced[2:])  # type: ignore[attr-defined]  # noqa: SLF001
