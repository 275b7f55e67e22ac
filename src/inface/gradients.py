"""Whether layers that leave out their zeros give whole gradients, whatever the optimizer needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["dense_gradients", "wants_dense_gradients"]

_dense = 0


@contextmanager
def dense_gradients() -> Iterator[None]:
    """Within it, forward passes of layers that :func:`inface.sparse_compute_` changed lead to whole gradients.

    Without it a weight has no gradient where it is zero, before a step that does not look there.

    >>> import torch, inface
    >>> from inface.sets import L1Ball
    >>> layer = torch.nn.Linear(4, 1, bias=False)
    >>> layer.weight.data = torch.tensor([[0.5, 0.5, 0.0, 0.0]])
    >>> opt = inface.FrankWolfe(layer, {"weight": L1Ball(1.0)}, lr=0.1, in_face="projected", in_face_steps=9)
    >>> _ = inface.sparse_compute_(layer, opt, mode="sparse")
    >>> x = torch.ones(3, 4)
    >>> layer(x).sum().backward()
    >>> opt.step()                                                     # Frank-Wolfe: needs all of it
    >>> torch.autograd.grad(layer(x).sum(), layer.weight)[0]           # in the face
    tensor([[3., 3., 0., 0.]])
    >>> with inface.dense_gradients():
    ...     torch.autograd.grad(layer(x).sum(), layer.weight)[0]
    tensor([[3., 3., 3., 3.]])
    """
    global _dense  # noqa: PLW0603 - a switch for the whole process is what this is
    _dense += 1
    try:
        yield
    finally:
        _dense -= 1


def wants_dense_gradients() -> bool:
    """Whether somebody asked for whole gradients."""
    return _dense > 0
