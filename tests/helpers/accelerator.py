"""A pretended accelerator: tensors that say they lie on a device, compute on the CPU, and refuse what makes a host wait.

Inside of :class:`Accelerator`, what is made on :data:`DEVICE` is a :class:`DeviceTensor`. On it every operation is refused that
would synchronise a host with CUDA: a look at a number, a shape that depends on numbers, a copy to or from the CPU (pageable
memory is waited for in both directions), a decomposition whose success is looked at. Tensors of two devices do not mix, but
for a CPU tensor without dimensions among the operands of arithmetic, which becomes an argument of a kernel.

A :class:`Graph` records operations as a CUDA graph does: what is done, with which memory and with which numbers, and none of
the Python around it. Its replay does that again, with what the memory holds then.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

# A device type that torch knows, initialises nothing for and has no operations of.
DEVICE = torch.device("lazy")

# Operations that wait for a device, by name; and decompositions, whose status torch looks at.
WAITING = (
    "_local_scalar_dense",
    "item",
    "equal",
    "is_nonzero",
    "nonzero",
    "masked_select",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "bincount",
    "repeat_interleave",
    "allclose",
)
DECOMPOSITIONS = ("_linalg_svd", "_linalg_eigh", "linalg_eig", "_linalg_solve_ex", "linalg_lu_factor_ex")


class HostWaitError(RuntimeError):
    """Something made the host wait for the device, or the device for the host."""


class DeviceTensor(torch.Tensor):
    """A tensor that says it lies on the device; ``inner`` has its numbers."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=0, dtype=inner.dtype, device=DEVICE
        )

    def __init__(self, inner):
        self.inner = inner

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        with Accelerator(strict=False):
            return function(*args, **(kwargs or {}))

    def __repr__(self):
        return f"DeviceTensor(shape={tuple(self.shape)}, dtype={self.dtype})"


@dataclass
class Operation:
    function: object
    args: tuple
    kwargs: dict
    results: list  # fresh memory that the operation filled


@dataclass
class Graph:
    """Operations on memory that stays where it is."""

    operations: list[Operation] = field(default_factory=list)

    def replay(self):
        for operation in self.operations:
            found = operation.function(*operation.args, **operation.kwargs)
            made = [x for x in tree_flatten(found)[0] if isinstance(x, torch.Tensor)]
            for there, new in zip(operation.results, made, strict=True):
                if there is not None:
                    there.copy_(new)

    def names(self):
        return [str(operation.function) for operation in self.operations]


class Accelerator(TorchDispatchMode):
    """Within it there is a device.

    Args:
        strict: whether to refuse what makes a host wait. Where it is not, copies come and go.
        decompositions: whether factorisations of matrices are let through.
        graph: where to record operations; then nothing on the CPU may take part in them either.
    """

    def __init__(self, *, strict=True, decompositions=False, graph=None):
        super().__init__()
        self.strict, self.decompositions, self.graph = strict, decompositions, graph

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        leaves = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
        here = [x for x in leaves if isinstance(x, DeviceTensor)]
        name = function._schema.name.split("::")[1].rstrip("_") if "copy" not in str(function) else "copy"
        wanted = kwargs.get("device")
        on_device = bool(here) if wanted is None else torch.device(wanted).type == DEVICE.type
        if here and self.strict:
            self._check(function, name, leaves, args, wanted)
        elif leaves and on_device and not here and self.strict:
            raise HostWaitError(f"{function}: a copy from the CPU to the device waits; wanted torch.full, say")
        if not here and not on_device:
            shapes = str(wanted) == "meta" or any(x.is_meta for x in leaves)
            if self.graph is not None and function.namespace == "aten" and not shapes:
                raise HostWaitError(f"{function}: of the CPU, inside of a graph")
            return function(*args, **kwargs)
        if wanted is not None:
            kwargs["device"] = torch.device("cpu")
        found = self._run(function, args, kwargs)
        return found if on_device else tree_map(lambda x: x.inner if isinstance(x, DeviceTensor) else x, found)

    def _check(self, function, name, leaves, args, wanted):
        if name in WAITING:
            raise HostWaitError(f"{function}: the host waits for the device")
        if name in DECOMPOSITIONS and not self.decompositions:
            raise HostWaitError(f"{function}: torch looks at its status")
        if name in ("index", "index_put") and any(
            i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1]
        ):
            raise HostWaitError(f"{function}: with a mask, the shape depends on numbers")
        if wanted is not None and torch.device(wanted).type != DEVICE.type:
            raise HostWaitError(f"{function}: a copy to {wanted}")
        others = [x for x in leaves if not isinstance(x, DeviceTensor)]
        if any(x.ndim for x in others) or (others and (name == "copy" or self.graph is not None)):
            shapes = [tuple(x.shape) for x in others]
            raise HostWaitError(f"{function}: tensors of the CPU, of shapes {shapes}, beside those of the device")

    def _run(self, function, args, kwargs):
        outer = {id(x.inner): x for x in tree_flatten((args, kwargs))[0] if isinstance(x, DeviceTensor)}
        held = {x.inner.untyped_storage().data_ptr() for x in outer.values()}
        inner_args, inner_kwargs = tree_map(lambda x: x.inner if isinstance(x, DeviceTensor) else x, (args, kwargs))
        found = function(*inner_args, **inner_kwargs)
        if self.graph is not None:
            made = [x for x in tree_flatten(found)[0] if isinstance(x, torch.Tensor)]
            fresh = [None if x.untyped_storage().data_ptr() in held else x for x in made]
            self.graph.operations.append(Operation(function, inner_args, inner_kwargs, fresh))
        return tree_map(lambda x: outer.get(id(x)) if id(x) in outer else _wrapped(x), found)


def _wrapped(x):
    return DeviceTensor(x) if isinstance(x, torch.Tensor) else x


def on_device(x):
    """A copy of a CPU tensor on the device; a parameter stays one."""
    there = DeviceTensor(x.detach().clone())
    return torch.nn.Parameter(there) if isinstance(x, torch.nn.Parameter) else there
