"""A Linear layer that stores only its non-zeros, in CSR form, with a fast CPU kernel."""

from __future__ import annotations

import functools
import itertools
import math
import os
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import wait
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from inface.kernels import thread_pool

__all__ = ["SparseLinear"]

# Column indices have two bytes if they fit: a quarter less to read per non-zero of float32.
NARROW = 1 << 15

# Below this many products a second thread costs more than it gains.
LARGE = 1 << 21


class SparseLinear(nn.Module):
    """``y = x W^T + b``, where only the non-zeros of ``W`` are stored, in CSR form.

    It accepts the same inputs as :class:`torch.nn.Linear`: any number of batch dimensions, empty ones, any strides. On
    the CPU, float32 and float64 use a compiled kernel. Other devices and dtypes, and ``torch.func`` transforms, build
    the dense matrix in every call, which is correct but slow. The layer follows ``torch.set_num_threads``.

    A zero weight ignores its input. If the input has a NaN or an infinity there, a dense layer returns NaN
    (``0 * inf``), this layer does not.

    It is made for inference. Gradients of any order are supported, for the input, the non-zeros and the bias, at the
    cost of a dense layer; zeros stay zero. ``weight`` builds the dense matrix. ``state_dict`` has ``values``,
    ``columns``, ``rows`` and ``bias``. Loading accepts any number of non-zeros, and raises an error unless they form a
    CSR matrix of this layer's size. The first call after other changes of the indices checks the same.

    Args:
        in_features: as in :class:`torch.nn.Linear`.
        out_features: as in :class:`torch.nn.Linear`.
        bias: as in :class:`torch.nn.Linear`.
        device: the device of the parameters.
        dtype: the dtype of the values and the bias.

    A new layer is all zero until ``load_state_dict``. The usual way to make one is :meth:`from_linear`.

    >>> import torch
    >>> linear = torch.nn.Linear(3, 2, bias=False)
    >>> _ = linear.weight.data.copy_(torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 0.0]]))
    >>> sparse = SparseLinear.from_linear(linear)
    >>> sparse
    SparseLinear(in_features=3, out_features=2, bias=False, nonzeros=1)
    >>> sparse(torch.tensor([1.0, 10.0, 100.0]))
    tensor([20.,  0.], grad_fn=<MultiplyBackward>)
    """

    values: Tensor
    columns: Tensor
    rows: Tensor
    bias: Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for name, size in (("in_features", in_features), ("out_features", out_features)):
            if size < 0:
                raise ValueError(f"SparseLinear: {name} must be >= 0, got {size!r}")
        self.in_features = in_features
        self.out_features = out_features
        index = torch.int16 if in_features <= NARROW else torch.int32
        self.values = nn.Parameter(torch.zeros(0, device=device, dtype=dtype))
        self.register_buffer("columns", torch.zeros(0, device=device, dtype=index))
        self.register_buffer("rows", torch.zeros(out_features + 1, device=device, dtype=torch.int32))
        self.register_parameter(
            "bias", nn.Parameter(torch.zeros(out_features, device=device, dtype=dtype)) if bias else None
        )

    @classmethod
    def from_linear(cls, linear: nn.Linear) -> SparseLinear:
        """The sparse form of a layer; the given layer is not changed.

        Raises:
            ValueError: it is not a :class:`torch.nn.Linear`, or has 2^31 non-zeros or more.

        >>> linear = nn.Linear(3, 2)
        >>> _ = linear.weight.data.copy_(torch.tensor([[0.0, 2.0, 0.0], [4.0, 0.0, 5.0]]))
        >>> sparse = SparseLinear.from_linear(linear)
        >>> sparse.values.tolist(), sparse.columns.tolist(), sparse.rows.tolist()
        ([2.0, 4.0, 5.0], [1, 0, 2], [0, 1, 3])
        """
        if not isinstance(linear, nn.Linear):
            raise ValueError(f"SparseLinear: from_linear takes a torch.nn.Linear, got {_named(linear)}")
        weight = linear.weight.detach()
        if weight.count_nonzero() >= 2**31:
            raise ValueError(f"SparseLinear: wanted at most 2^31 - 1 non-zeros, got {int(weight.count_nonzero())}")
        layer = cls(weight.shape[1], weight.shape[0], linear.bias is not None, device=weight.device, dtype=weight.dtype)
        used = weight != 0
        layer.values = nn.Parameter(weight[used], requires_grad=linear.weight.requires_grad)
        layer.columns = used.nonzero()[:, 1].to(layer.columns.dtype).contiguous()
        layer.rows[1:] = used.sum(1).cumsum(0)
        if linear.bias is not None:
            layer.bias = nn.Parameter(linear.bias.detach().clone(), requires_grad=linear.bias.requires_grad)
        return layer.train(linear.training)

    @property
    def weight(self) -> Tensor:
        """The dense matrix, built on each access.

        >>> SparseLinear(2, 1).weight
        tensor([[0., 0.]], grad_fn=<IndexPutBackward0>)
        """
        return _dense(self.values, self.columns, self.rows, self.in_features)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        x = input
        # Attribute lookups of nn.Module cost as much as the kernel for a small layer.
        parameters: dict[str, Any] = self._parameters
        buffers: dict[str, Any] = self._buffers
        values, columns, rows, bias = parameters["values"], buffers["columns"], buffers["rows"], parameters["bias"]
        if isinstance(x, Tensor):  # not what torch.fx traces with
            if x.dtype != values.dtype and torch.is_autocast_enabled(x.device.type):
                x = x.to(values.dtype)
            _check(x, values, self.in_features)
        if _transformed():
            return nn.functional.linear(x, self.weight, bias)
        if _seen_by_others(x):
            return csr_linear(x, values, columns, rows, bias, self.in_features)
        if torch.is_grad_enabled() and (
            x.requires_grad or values.requires_grad or (bias is not None and bias.requires_grad)
        ):
            return Multiply.apply(  # type: ignore[no-untyped-call]
                x, values, columns, rows, bias, self.in_features
            )
        return _multiply(x, values, columns, rows, bias)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
            f"nonzeros={self.values.numel()}"
        )

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: Any, strict: bool, *messages: list[str]
    ) -> None:
        own = {"values": self.values, "columns": self.columns, "rows": self.rows}
        values, columns, rows = (state_dict.get(prefix + name, tensor) for name, tensor in own.items())
        wrong = _what_is_wrong(values, columns, rows, self.in_features, self.out_features)
        if wrong:
            messages[-1].append(f'"{prefix[:-1]}": {wrong}')
            return
        # The loaded tensors may differ in length and dtype.
        for name, tensor in (("columns", columns), ("rows", rows)):
            if prefix + name in state_dict:
                state_dict[prefix + name] = tensor.to(own[name].dtype).contiguous()
        if values.shape != self.values.shape:
            self.values = nn.Parameter(self.values.new_zeros(values.shape), requires_grad=self.values.requires_grad)
            self.columns = self.columns.new_zeros(columns.shape)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, *messages)


def _named(value: Any) -> str:
    return type(value).__name__ if isinstance(value, nn.Module) else repr(value)


def _check(x: Tensor, values: Tensor, inputs: int) -> None:
    if x.shape[-1:] != (inputs,):
        raise ValueError(f"SparseLinear: the last dimension of the input must be {inputs}, got shape {tuple(x.shape)}")
    if x.dtype != values.dtype:
        raise ValueError(f"SparseLinear: the input must be {values.dtype} like the layer, got {x.dtype}")


def _what_is_wrong(values: Any, columns: Any, rows: Any, inputs: int, outputs: int) -> str | None:
    """The reason why these are not the values, columns and row pointers of a matrix of this size; None if they are."""
    for name, tensor in {"values": values, "columns": columns, "rows": rows}.items():
        if not isinstance(tensor, Tensor) or tensor.ndim != 1:
            return f"{name} must be a tensor of one dimension, got {getattr(tensor, 'shape', type(tensor).__name__)}"
        if name != "values" and tensor.dtype not in (torch.int16, torch.int32, torch.int64):
            return f"{name} must be integers, got {tensor.dtype}"
    count = len(values)
    wrong = None
    if len(rows) != outputs + 1:
        wrong = f"rows must have {outputs + 1} entries, got {len(rows)}"
    elif len(columns) != count:
        wrong = f"columns must be as many as values, got {len(columns)} and {count}"
    elif not (rows.is_meta or columns.is_meta):
        # The kernel does not check: a column out of range would read foreign memory.
        if int(rows[0]) != 0 or int(rows[-1]) != count or bool((rows[1:] < rows[:-1]).any()):
            wrong = f"rows must grow from 0 to {count}"
        elif count and not 0 <= int(columns.min()) <= int(columns.max()) < inputs:
            wrong = f"columns must be in 0 to {inputs - 1}, got {int(columns.min())} to {int(columns.max())}"
    return wrong


# Indices that were checked, by the identity of their columns, as long as they exist.
_checked: dict[int, tuple[Any, ...]] = {}


def _trust(values: Tensor, columns: Tensor, rows: Tensor, inputs: int) -> None:
    """Raise an error unless these form a matrix; checked once, and again after they are replaced or written to."""
    known = _checked.get(id(columns))
    if (
        known is not None
        and known[0]() is columns
        and known[1]() is rows
        and known[2] == inputs
        and known[3] == values.shape[0]
        and (known[4] is None or known[4] == columns._version)  # noqa: SLF001 - nothing public counts the writes
        and (known[5] is None or known[5] == rows._version)  # noqa: SLF001
    ):
        return
    wrong = _what_is_wrong(values, columns, rows, inputs, rows.shape[0] - 1)
    if wrong:
        raise ValueError(f"SparseLinear: {wrong} (after to_empty they are uninitialised: load_state_dict first)")
    held = (weakref.ref(columns, functools.partial(_forget, id(columns))), weakref.ref(rows))
    writes = (None if each.is_inference() else each._version for each in (columns, rows))  # noqa: SLF001
    _checked[id(columns)] = (*held, inputs, len(values), *writes)


def _forget(key: int, _: Any) -> None:
    _checked.pop(key, None)


# ---------------------------------------------------------------------- the product


def _multiply(x: Tensor, values: Tensor, columns: Tensor, rows: Tensor, bias: Tensor | None) -> Tensor:
    """The product by the kernel if there is one, else by the dense matrix."""
    _trust(values, columns, rows, x.shape[-1])
    kernel = _kernel(values.dtype, columns.dtype) if x.is_cpu and _plain(values, columns, rows, bias) else None
    if kernel is None:
        return nn.functional.linear(x, _dense(values, columns, rows, x.shape[-1]), bias)
    shape = x.shape
    outputs, batch = rows.shape[0] - 1, math.prod(shape[:-1])
    if x.is_neg() or not x.is_contiguous():
        x = x.resolve_neg().contiguous()
    y = x.new_empty(*shape[:-1], outputs)
    arguments = (
        x.data_ptr(),
        y.data_ptr(),
        batch,
        values.data_ptr(),
        columns.data_ptr(),
        rows.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        shape[-1],
        outputs,
    )
    if batch * values.shape[0] >= LARGE and torch.get_num_threads() > 1:
        _in_threads(kernel, arguments, rows, x.element_size())
    else:
        kernel(*arguments)
    return y


def _plain(values: Tensor, columns: Tensor, rows: Tensor, bias: Tensor | None) -> bool:
    """Whether the layer has the memory layout that the kernel expects; the kernel does not check."""
    return (
        values.is_cpu
        and values.is_contiguous()
        and columns.is_contiguous()
        and rows.is_contiguous()
        and rows.dtype == torch.int32
        and (
            bias is None or (bias.dtype == values.dtype and bias.numel() == rows.shape[0] - 1 and bias.is_contiguous())
        )
    )


def _in_threads(kernel: Callable[..., None], arguments: tuple[int, ...], rows: Tensor, size: int) -> None:
    """The work of each thread. One sample is split by rows with equal non-zeros; many samples are split by samples."""
    x, y, batch, values, columns, pointers, bias, inputs, outputs = arguments
    if batch == 1:
        threads = torch.get_num_threads()
        shares = torch.arange(threads + 1, dtype=rows.dtype) * (rows[-1] // threads)
        edges = [0, *torch.searchsorted(rows, shares[1:-1]).tolist(), outputs]
        parts = [
            (x, y + size * a, 1, values, columns, pointers + 4 * a, bias + size * a if bias else 0, inputs, b - a)
            for a, b in itertools.pairwise(edges)
        ]
    else:
        threads = min(torch.get_num_threads(), max(1, batch // 8))
        edges = [batch * i // threads // 8 * 8 for i in range(threads)] + [batch]
        parts = [
            (x + size * a * inputs, y + size * a * outputs, b - a, values, columns, pointers, bias, inputs, outputs)
            for a, b in itertools.pairwise(edges)
        ]
    others = [thread_pool(os.getpid(), len(parts) - 1).submit(kernel, *part) for part in parts[1:]]
    try:
        kernel(*parts[0])
    finally:
        wait(others)  # also after an error: no thread may write after the memory is freed
    for other in others:
        other.result()


@functools.cache
def _kernel(real: torch.dtype, index: torch.dtype) -> Callable[..., None] | None:
    """The kernel for these dtypes, compiled or from the disk cache; None after a warning if it is not available."""
    if real not in (torch.float32, torch.float64) or index not in (torch.int16, torch.int32):
        return None
    try:
        from . import csr  # imports Numba at the first product, not with the library

        kernel: Any = getattr(csr, f"multiply_{real}_{index}".replace("torch.", ""))
        try:
            kernel(0, 0, 0, 0, 0, 0, 0, 0, 0)
        except Exception:  # noqa: BLE001 - a cache that is damaged, or a disk that is full: do without
            from numba.core.caching import NullCache

            kernel._cache = NullCache()  # noqa: SLF001 - Numba has no other way to say it
            kernel(0, 0, 0, 0, 0, 0, 0, 0, 0)
    except Exception as error:  # noqa: BLE001 - whatever is wrong with a compiler, there is another way
        warnings.warn(
            "inface: the sparse kernel is not available, sparse layers use the dense matrix "
            f"({type(error).__name__}: {error})",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return cast("Callable[..., None]", kernel)


def _dense(values: Tensor, columns: Tensor, rows: Tensor, inputs: int) -> Tensor:
    empty = values.new_zeros(rows.shape[0] - 1, inputs)
    return empty.index_put((_row_of_each(values, rows), columns.long()), values, accumulate=True)


def _row_of_each(values: Tensor, rows: Tensor) -> Tensor:
    each = torch.arange(rows.shape[0] - 1, device=rows.device)
    return torch.repeat_interleave(each, rows.diff().long(), output_size=values.shape[0])


# ---------------------------------------------------------------------- autograd and tracing


def _seen_by_others(x: Any) -> bool:
    """Whether this call is traced or watched by a mode; then it must be an operator, not a write to memory."""
    return (
        torch.compiler.is_compiling()
        or type(x) is not Tensor
        or is_in_torch_dispatch_mode()
        or torch._C._get_tracing_state() is not None  # noqa: SLF001 - torch.jit.is_tracing, without its detours
    )


def _transformed() -> bool:
    """Whether torch.func or forward-mode differentiation is active; their tensors have no memory of their own."""
    transformed = torch._C._are_functorch_transforms_active()  # noqa: SLF001 - there is no public function
    return transformed or forward_ad._current_level >= 0  # noqa: SLF001


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor | None) -> None:  # noqa: ARG001 - torch's interface
    x, values, columns, rows, _, _ = inputs
    ctx.save_for_backward(x, values, columns, rows)


def _gradients(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of the dense layer, by differentiable operations."""
    x, values, columns, rows = ctx.saved_tensors
    batch = math.prod(x.shape[:-1])
    flat_g, flat_x = g.reshape(batch, g.shape[-1]), x.reshape(batch, x.shape[-1])
    to_x, to_values, _, _, to_bias, _ = ctx.needs_input_grad
    return (
        g @ _dense(values, columns, rows, x.shape[-1]) if to_x else None,
        (flat_g.mT @ flat_x)[_row_of_each(values, rows), columns.long()] if to_values else None,
        None,
        None,
        flat_g.sum(0) if to_bias else None,
        None,
    )


class Multiply(torch.autograd.Function):
    """The product with its gradients, as an autograd function; faster to call than the operator."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        _remember(ctx, inputs, None)
        return _multiply(*inputs[:-1])

    backward = staticmethod(_gradients)


@torch.library.custom_op("inface::csr_linear", mutates_args=())
def csr_linear(
    x: Tensor, values: Tensor, columns: Tensor, rows: Tensor, bias: Tensor | None, in_features: int
) -> Tensor:
    """The product as one operator for torch.compile, torch.export and torch.fx."""
    _check(x, values, in_features)
    return _multiply(x, values, columns, rows, bias)


@csr_linear.register_fake
def _shape_alone(
    x: Tensor,
    values: Tensor,  # noqa: ARG001 - the operator's arguments
    columns: Tensor,  # noqa: ARG001
    rows: Tensor,
    *_: Any,
) -> Tensor:
    return x.new_empty((*x.shape[:-1], rows.shape[0] - 1))


csr_linear.register_autograd(_gradients, setup_context=_remember)
