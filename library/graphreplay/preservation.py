"""Warm-up and capture run the network, but must leave no trace: what they move is put back, exactly once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from graphreplay.errors import UnrecordableError
from graphreplay.labels import Label
from graphreplay.wiring import Wiring


class Preservation:
    """The state of a network and of the random generators at one moment.

    The copies of weights and buffers are kept on the host: while a recording is made, the device's memory is scarce.
    """

    def __init__(self, wiring: Wiring, device: torch.device) -> None:
        self._device = device
        self._attributes = [(module, dict(vars(module))) for module in wiring.modules]
        self._buffers = [(store, key, held, _on_host(held)) for store, key, held in wiring.buffers()]
        self._weights = [(held, held._version, _on_host(held)) for held in wiring.parameters()]
        self._random = random_state(device)
        self._cpu = torch.get_rng_state()
        self._python = random.getstate()

    def require_unchanged(self) -> None:
        """Refuse what a replay could not do again.

        Raises:
            UnrecordableError: The passes since then drew random numbers on the host, or replaced state of a module.
        """
        if not torch.equal(self._cpu, torch.get_rng_state()) or self._python != random.getstate():
            raise UnrecordableError(Label.RANDOM)
        for module, before in self._attributes:
            changed = sorted(key for key in _changes(before, vars(module)))
            if changed:
                raise UnrecordableError(Label.STATE, f"{type(module).__name__}.{changed[0]}")
        if any(store[key] is not held for store, key, held, _ in self._buffers):
            raise UnrecordableError(Label.STATE, "a buffer is replaced instead of written in place")
        if any(held._version != version for held, version, _ in self._weights):
            raise UnrecordableError(Label.STATE, "a weight is written in the forward")

    def moved_buffers(self) -> list[torch.Tensor]:
        """The buffers that the passes since then have given other values."""
        moved = {id(held): held for _, _, held, copy in self._buffers if not torch.equal(copy, held.detach().cpu())}
        return list(moved.values())

    def draws_on_device(self) -> bool:
        """Whether the passes since then drew random numbers on the GPU."""
        return not torch.equal(self._random, random_state(self._device))

    def restore(self) -> None:
        """Put everything back."""
        for module, before in self._attributes:
            for key in _changes(before, vars(module)):
                vars(module).pop(key, None)
            vars(module).update(before)
        with torch.no_grad():
            for store, key, held, copy in self._buffers:
                store[key] = held
                held.copy_(copy)
            for held, version, copy in self._weights:
                # Writing raises the version counter, on which native backwards still to come rely.
                if held._version != version:
                    held.copy_(copy)
        set_random_state(self._random, self._device)
        torch.set_rng_state(self._cpu)
        random.setstate(self._python)


def random_state(device: torch.device) -> torch.Tensor:
    """The state of the device's random generator."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def set_random_state(state: torch.Tensor, device: torch.device) -> None:
    """Bring the device's random generator back to `state`."""
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True)


def _changes(before: dict[str, object], now: dict[str, object]) -> set[str]:
    """The names whose values are not the same objects any more."""
    return {key for key in before.keys() | now.keys() if before.get(key, _MISSING) is not now.get(key, _MISSING)}


_MISSING = object()


@contextmanager
def preserved(wiring: Wiring, device: torch.device) -> Iterator[Preservation]:
    """Restore the network's state and the random generators when the block ends, also when it fails."""
    state = Preservation(wiring, device)
    try:
        yield state
    finally:
        state.restore()
