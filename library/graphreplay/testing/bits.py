"""How two states differ, in bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import torch

from graphreplay.bits import as_integers, same_bits


def ulp_distance(left: torch.Tensor, right: torch.Tensor) -> int | None:
    """The largest distance between two floating-point tensors of one shape and dtype, in units in the last place.

    One step to the next representable value is 1, and so is 0.0 to -0.0. Pairs in which either is NaN are left out.

    Returns:
        None when there is nothing to measure: another dtype or shape, no float, or only NaN.
    """
    if left.shape != right.shape or left.dtype != right.dtype or not left.dtype.is_floating_point:
        return None
    left, right = left.detach().cpu().reshape(-1), right.detach().cpu().reshape(-1)
    keep = ~(left.isnan() | right.isnan())
    if not keep.any():
        return None
    a, b = _ordinal(left[keep]), _ordinal(right[keep])
    # Ordinals of float64 fill int64, so a difference may not fit: find the place in float64, count in Python's ints.
    place = int((a.double() - b.double()).abs().argmax())
    return abs(int(a[place]) - int(b[place]))


def _ordinal(values: torch.Tensor) -> torch.Tensor:
    """Each float's rank among all floats of its dtype, as int64; -0.0 comes just below 0.0."""
    bits = as_integers(values).to(torch.int64)
    if values.element_size() == 1:
        bits = torch.where(bits > 127, bits - 256, bits)
    lowest = -(2 ** (8 * values.element_size() - 1))
    return torch.where(bits < 0, ~bits + lowest, bits)


@dataclass(frozen=True)
class Difference:
    """How two states differ.

    Attributes:
        tensor: The first tensor that differs, in the order of the left state.
        differing: How many differ, those that only one state has included.
        of: How many there are in both states together.
        largest_ulp: The largest distance in any of them, in units in the last place; None where it has no meaning.
        step: The first step whose loss differs, from 0; None if no loss does.
    """

    tensor: str
    differing: int
    of: int
    largest_ulp: int | None
    step: int | None = None

    def evidence(self) -> dict[str, object]:
        """The difference in terms of JSON."""
        return asdict(self)

    def __str__(self) -> str:
        step = "" if self.step is None else f", from step {self.step}"
        counts = f"{self.differing} of {self.of} tensors differ"
        return f"{counts}, first {self.tensor}, by up to {self.largest_ulp} ULP{step}"


def compare(left: Mapping[str, torch.Tensor], right: Mapping[str, torch.Tensor]) -> Difference | None:
    """The difference of two states, by the tensors' names; None when all bits are the same."""
    names = list(left) + [name for name in right if name not in left]
    both = [name for name in names if name in left and name in right]
    same = {name for name in both if same_bits(left[name], right[name])}
    differing = [name for name in names if name not in same]
    if not differing:
        return None
    both = [name for name in both if name not in same]
    distances = [distance for name in both if (distance := ulp_distance(left[name], right[name])) is not None]
    return Difference(differing[0], len(differing), len(names), max(distances, default=None))
