"""Keeps what a native forward saves for its backward in host memory, bit for bit and address for address."""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch

# Smaller ones are not worth a copy.
_SMALLEST = 1 << 16
# What the allocator's blocks begin at.
_ALIGNMENT = 512


class _Packed(NamedTuple):
    """A tensor on the host: the span of memory that it covers, and how it lies there."""

    span: torch.Tensor
    shape: torch.Size
    stride: tuple[int, ...]
    shift: int
    device: torch.device


def offloaded(device: torch.device, kept: Iterable[torch.Tensor]) -> AbstractContextManager[object]:
    """Let the forwards in the block keep their activations on the host until their backward, whenever that comes.

    Unlike `torch.autograd.graph.save_on_cpu` it keeps strides, and the alignment of addresses: kernels are chosen by
    them, and bits depend on the kernel. It moves nothing that lives on anyway.

    Args:
        device: Whose activations move.
        kept: What stays where it is: weights, buffers and inputs.
    """
    stay = frozenset(tensor.untyped_storage().data_ptr() for tensor in kept if tensor.layout is torch.strided)
    return torch.autograd.graph.saved_tensors_hooks(functools.partial(_pack, device, stay), _unpack)


def is_refusal(error: BaseException) -> bool:
    """Whether a forward in `offloaded` failed because of it: torch would not have hooks in force there, or a hook could
    not take what it was given. A region that refuses hooks has a message of its own, so it is told by its place."""
    found: BaseException | None = error
    while found is not None:
        places = [frame.f_code for frame, _ in traceback.walk_tb(found.__traceback__)]
        if places and (places[-1] is _REFUSING or any(place in _OWN for place in places)):
            return True
        found = found.__cause__ or found.__context__
    return False


def _pack(device: torch.device, stay: frozenset[int], tensor: torch.Tensor) -> torch.Tensor | _Packed:
    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided or tensor.device != device:
        return tensor
    if tensor.is_conj() or tensor.is_neg():
        return tensor
    length = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    if tensor.numel() == 0 or length * tensor.element_size() < _SMALLEST:
        return tensor
    if tensor.untyped_storage().data_ptr() in stay:
        return tensor
    span = tensor.as_strided((length,), (1,)).to("cpu", copy=True)
    shift = tensor.data_ptr() % _ALIGNMENT // tensor.element_size()
    return _Packed(span, tensor.shape, tensor.stride(), shift, device)


def _unpack(saved: torch.Tensor | _Packed) -> torch.Tensor:
    if isinstance(saved, torch.Tensor):
        return saved
    memory = saved.span.new_empty(saved.shift + len(saved.span), device=saved.device)
    memory[saved.shift :].copy_(saved.span)
    return memory.as_strided(saved.shape, saved.stride, saved.shift)


_OWN = (_pack.__code__, _unpack.__code__)
_REFUSING = inspect.unwrap(torch.autograd.graph.disable_saved_tensors_hooks).__code__
