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

    Holds copies of weights and buffers while a recording is made, so for that time the network is there twice.
    """

    def __init__(self, wiring: Wiring, device: torch.device) -> None:
        self._device = device
        self._attributes = [(module, dict(vars(module))) for module in wiring.modules]
        self._buffers = [(store, key, held, held.detach().clone()) for store, key, held in wiring.buffers()]
        self._weights = [(held, held._version, held.detach().clone()) for held in wiring.parameters()]
        self._cuda = torch.cuda.get_rng_state(device)
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

    def draws_on_device(self) -> bool:
        """Whether the passes since then drew random numbers on the GPU."""
        return not torch.equal(self._cuda, torch.cuda.get_rng_state(self._device))

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
        torch.cuda.set_rng_state(self._cuda, self._device)
        torch.set_rng_state(self._cpu)
        random.setstate(self._python)


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
