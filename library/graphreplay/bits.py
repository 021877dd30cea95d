"""Comparison of bits. `torch.equal` compares values: there NaN differs from itself, and 0.0 equals -0.0."""

from __future__ import annotations

import torch

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether both have the same shape, dtype and bits. Device and stride do not count."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    return torch.equal(as_integers(left), as_integers(right.to(left.device)))


def as_integers(tensor: torch.Tensor) -> torch.Tensor:
    """The bits of each element, in one row: integers of the same size; a complex number makes two."""
    flat = tensor.detach().contiguous().reshape(-1)
    if tensor.dtype.is_complex:
        flat = torch.view_as_real(flat).reshape(-1)
    return flat.view(_INTEGERS[flat.element_size()])
