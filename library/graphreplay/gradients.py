"""Live gradients that are a recording's own memory, and the static memory for the loss's gradients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from graphreplay.layout import TensorForm


# By position of the output: the form of its gradient. An output that the loss does not use has None; weights that only
# such outputs need receive no gradient natively, and zeros would move momentum and weight decay.
Demand = tuple[TensorForm | None, ...]


def demand_of(gradients: Sequence[torch.Tensor | None]) -> Demand:
    """The forms of one backward's incoming gradients. The kernels of a backward are chosen by them."""
    return tuple(None if gradient is None else TensorForm.of(gradient) for gradient in gradients)


class StaticGradient:
    """The memory that one incoming gradient is copied into, in that gradient's own form.

    Dimensions of stride 0 (the gradient of a sum) are kept once and expanded, since writing to them all would race.
    """

    def __init__(self, form: TensorForm) -> None:
        size = tuple(1 if stride == 0 else length for length, stride in zip(form.shape, form.stride, strict=True))
        self._once = form._replace(shape=size).empty().zero_()
        self.tensor = self._once.expand(form.shape)

    def slot(self, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Where to copy, and what."""
        return self._once, gradient.as_strided(self._once.shape, gradient.stride(), gradient.storage_offset())


def release_live_gradients(parameters: Iterable[nn.Parameter], owned: set[int]) -> int:
    """Move every live `.grad` out of the recordings' own memory; return how many were moved.

    Autograd adopts the tensors that a replayed backward returns as `.grad`, without a copy. The next replay, its
    forward already, overwrites that memory, and g0 + g1 becomes 2 * g1 (pytorch#181723). So this runs at forward time,
    before the replay. The tensor object stays the same one and only gets new memory, since others may hold it.

    Args:
        parameters: Whose gradients to look at.
        owned: Storage addresses of all recordings' gradient buffers.
    """
    held = [
        gradient
        for parameter in parameters
        if (gradient := parameter.grad) is not None
        and gradient.layout is torch.strided
        and gradient.untyped_storage().data_ptr() in owned
    ]
    if not held:
        return 0
    fresh = [torch.empty_like(gradient) for gradient in held]
    torch._foreach_copy_(fresh, held)
    for gradient, copy in zip(held, fresh, strict=True):
        gradient.data = copy
    return len(held)
