"""The random generators that a network's code may draw from: the device's, and those of the host."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch


def random_state(device: torch.device) -> torch.Tensor:
    """The state of the device's random generator."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def set_random_state(state: torch.Tensor, device: torch.device) -> None:
    """Bring the device's random generator back to `state`."""
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)


class HostGenerators:
    """The state of the host's global generators at one moment: torch's, Python's, and numpy's where it is imported.

    Not seen are generators that a network holds itself, as objects of `random.Random` or `numpy.random.Generator`.
    """

    def __init__(self) -> None:
        self._torch = torch.get_rng_state()
        self._python = random.getstate()
        self._numpy = _numpy_state()

    def moved(self) -> bool:
        """Whether anybody has drawn from one of them since."""
        if not torch.equal(self._torch, torch.get_rng_state()) or self._python != random.getstate():
            return True
        return _comparable(self._numpy) != _comparable(_numpy_state())

    def restore(self) -> None:
        """Bring them back."""
        torch.set_rng_state(self._torch)
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)


def _numpy_state() -> tuple[Any, ...] | None:
    numpy = sys.modules.get("numpy")
    return None if numpy is None else numpy.random.get_state()


def _comparable(state: tuple[Any, ...] | None) -> list[object]:
    """The parts of numpy's state; `==` of its array would have no single answer."""
    return [part.tobytes() if hasattr(part, "tobytes") else part for part in state or ()]
