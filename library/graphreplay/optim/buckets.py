"""Which matrices share one chain of batched products, and how a weight becomes a matrix."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch

# A matrix padded to 16 times its rows wastes no more than what one more chain of launches costs a small network.
ROW_SPAN = 16


def is_matrix(weight: torch.Tensor) -> bool:
    """Whether the weight takes the Muon branch: (out, in) or (out, in, height, width), and not empty."""
    return weight.ndim in (2, 4) and weight.numel() > 0


def rate_factor(weight: torch.Tensor) -> float:
    """The s of the Muon step: sqrt(max(1, size[-2] / size[-1])) of the unflattened weight, so of a kernel's sides."""
    return math.sqrt(max(1.0, weight.size(-2) / weight.size(-1)))


def as_matrix(tensor: torch.Tensor) -> torch.Tensor:
    """(out, rest), in the order in which the tensor lies in memory, so that nothing is copied.

    A channels_last convolution gets its columns in the order height, width, in. Newton-Schulz does not mind, since
    NS(M P) = NS(M) P (ultralytics#26035: a reshape to the order in, height, width copies every weight in every step).
    """
    if _is_channels_last(tensor):
        tensor = tensor.permute(0, 2, 3, 1)
    return tensor.flatten(1)


def from_matrix(matrix: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The inverse: a view of a contiguous `matrix` in the shape of `like`, and with its strides where it is dense.

    Equal strides, those of dimensions of size 1 too, are what lets torch add all updates in one kernel.
    """
    if like.is_contiguous() or _is_channels_last(like):
        return matrix.as_strided(like.size(), like.stride())
    return matrix.view(like.size())


def _is_channels_last(tensor: torch.Tensor) -> bool:
    if tensor.ndim != 4 or tensor.is_contiguous():
        return False
    return tensor.is_contiguous(memory_format=torch.channels_last)


def buckets(weights: Sequence[torch.Tensor]) -> list[list[int]]:
    """Positions of the weights that go together: equal columns, s, device and dtype, rows spanning at most 16x."""
    alike: dict[tuple[object, ...], list[int]] = {}
    for index, weight in enumerate(weights):
        key = (weight.numel() // weight.size(0), rate_factor(weight), weight.device, weight.dtype)
        alike.setdefault(key, []).append(index)
    return [part for members in alike.values() for part in _split(members, weights)]


def _split(members: Iterable[int], weights: Sequence[torch.Tensor]) -> list[list[int]]:
    """Cut members, by their rows from few to many, wherever the span would be too wide."""
    parts: list[list[int]] = []
    for index in sorted(members, key=lambda member: weights[member].size(0)):
        if not parts or weights[index].size(0) > ROW_SPAN * weights[parts[-1][0]].size(0):
            parts.append([])
        parts[-1].append(index)
    return parts
