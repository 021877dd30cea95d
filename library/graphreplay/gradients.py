"""Live gradients that are a recording's own memory, and the static memory for the loss's gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import nn

from graphreplay.layout import AutocastForm, TensorForm


class Demand(NamedTuple):
    """What a backward's kernels are chosen by, beside the forward.

    Attributes:
        forms: By position of the output: the form of its gradient. An output that the loss does not use has None;
            weights that only such outputs need receive no gradient natively, and zeros would move momentum and weight
            decay.
        autocast: What is in force while backward runs; None outside of all regions.
    """

    forms: tuple[TensorForm | None, ...]
    autocast: AutocastForm | None

    @classmethod
    def of(cls, gradients: Sequence[torch.Tensor | None]) -> Demand:
        """What the running backward asks for with the incoming `gradients`."""
        forms = tuple(None if gradient is None else TensorForm.of(gradient) for gradient in gradients)
        return cls(forms, autocast_in_force())


def autocast_in_force() -> AutocastForm | None:
    """The settings of the thread that asks: of a hook's or a node's own in a backward, as its kernels meet them."""
    return AutocastForm.current() if torch.is_autocast_enabled("cuda") else None


class StaticGradient:
    """The memory that one incoming gradient is copied into, in that gradient's own form.

    Dimensions of stride 0 (the gradient of a sum) are kept once and expanded, since writing to them all would race.
    """

    def __init__(self, form: TensorForm) -> None:
        size = tuple(1 if stride == 0 else length for length, stride in zip(form.shape, form.stride, strict=True))
        self._once = form._replace(shape=size).empty().zero_()
        self._expanded = size != form.shape
        self.tensor = self._once.expand(form.shape)

    def slot(self, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Where to copy, and what."""
        if not self._expanded:
            return self._once, gradient
        return self._once, gradient.as_strided(self._once.shape, gradient.stride(), gradient.storage_offset())


class GradientMemory:
    """The buffers that one recording's backward hands out as gradients without a copy.

    Autograd adopts a handed-out tensor as `.grad`. The next replay, its forward already, overwrites that memory, and
    g0 + g1 becomes 2 * g1 (pytorch#181723). With a pool shared between recordings, so does another recording's replay.
    """

    def __init__(self, buffers: Sequence[torch.Tensor]) -> None:
        storages = [buffer.untyped_storage() for buffer in buffers]
        self.addresses = {storage.data_ptr(): storage._cdata for storage in storages}
        del storages
        self._storages = list(self.addresses.values())
        self._own = self._uses()

    def _uses(self) -> list[int]:
        """How many tensors hold each storage; torch's own CUDA graph trees decide by it which outputs still live."""
        return list(map(torch._C._storage_Use_Count, self._storages))

    def lent(self) -> bool:
        """Whether anybody holds a buffer beside the recording itself."""
        return self._uses() != self._own

    def others_hold(self, live: Counter[int]) -> bool:
        """Whether somebody holds a buffer beside the recording itself and the `live` gradients, counted by storage."""
        uses = zip(self._storages, self._uses(), self._own, strict=True)
        return any(now > own + live[storage] for storage, now, own in uses)


def reclaim(parameters: Iterable[nn.Parameter], handed_out: Iterable[GradientMemory]) -> bool:
    """Make sure that nobody is left with a gradient in memory that a replay overwrites. Call it before each replay.

    Every live `.grad` in such memory gets memory of its own. The tensor object stays, since others may hold it.

    Args:
        parameters: Whose gradients are live.
        handed_out: The memory of all recordings whose backward ran since the last time this returned True.

    Returns:
        False where somebody else holds such memory too: a result of `torch.autograd.grad`, or a view of a `.grad`.
        Nothing was moved then, and nothing may be replayed.
    """
    memories = [memory for memory in handed_out if memory.lent()]
    if not memories:
        return True
    owned = {address: storage for memory in memories for address, storage in memory.addresses.items()}
    held = [(gradient, storage) for gradient in _strided(parameters) if (storage := owned.get(_address(gradient)))]
    live = Counter(storage for _, storage in held)
    if any(memory.others_hold(live) for memory in memories):
        return False
    if held:
        gradients = [gradient for gradient, _ in held]
        fresh = [torch.empty_like(gradient) for gradient in gradients]
        torch._foreach_copy_(fresh, gradients)
        for gradient, copy in zip(gradients, fresh, strict=True):
            gradient.data = copy
    return True


def _strided(parameters: Iterable[nn.Parameter]) -> list[torch.Tensor]:
    """The distinct live gradients that have a storage; sparse ones have none. A tied weight comes twice in a tree."""
    found = {id(one.grad): one.grad for one in parameters if one.grad is not None}
    return [gradient for gradient in found.values() if gradient.layout is torch.strided]


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
