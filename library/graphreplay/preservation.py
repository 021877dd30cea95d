"""Warm-up and capture run the network, but must leave no trace: what they move is put back, exactly once."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import Any

import torch
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from graphreplay.bits import same_bits
from graphreplay.errors import UnrecordableError
from graphreplay.generators import HostGenerators, random_state, set_random_state
from graphreplay.labels import Label
from graphreplay.wiring import Wiring

_MISSING = object()


class Preservation:
    """The state of a network and of the random generators at one moment.

    The copies of weights and buffers are kept on the host: while a recording is made, the device's memory is scarce.
    """

    def __init__(self, wiring: Wiring, device: torch.device) -> None:
        self._device = device
        self._attributes = [(module, dict(vars(module))) for module in wiring.modules]
        held = chain.from_iterable(before.values() for _, before in self._attributes)
        self._containers = [(container, _Contents(container)) for container in _containers(held)]
        self._buffers = [(store, key, _Values(held)) for store, key, held in wiring.buffers()]
        self._weights = [_Values(held) for held in wiring.parameters()]
        self._random = random_state(device)
        self._host = HostGenerators()

    def require_unchanged(self) -> None:
        """Refuse what a replay could not do again.

        Raises:
            UnrecordableError: The passes since then drew random numbers on the host, or replaced state of a module.
        """
        if self._host.moved():
            raise UnrecordableError(Label.RANDOM)
        for module, before in self._attributes:
            changed = sorted(key for key in _changes(before, vars(module)))
            if changed:
                raise UnrecordableError(Label.STATE, f"{type(module).__name__}.{changed[0]}")
        for store, key, values in self._buffers:
            if key not in store or store[key] is not values.held or values.moved():
                raise UnrecordableError(Label.STATE, f"buffer {key} is replaced instead of written in place")
        for container, contents in self._containers:
            if contents.differ(container):
                raise UnrecordableError(Label.STATE, f"a {type(container).__name__} that a module holds is filled")
        if any(weight.moved() or weight.written() or weight.differ() for weight in self._weights):
            raise UnrecordableError(Label.STATE, "a weight is written in the forward")

    def moved_buffers(self) -> list[torch.Tensor]:
        """The buffers that the passes since then have given other values."""
        moved = (values.held for _, _, values in self._buffers if values.differ())
        return list({id(held): held for held in moved}.values())

    def draws_on_device(self) -> bool:
        """Whether the passes since then drew random numbers on the GPU."""
        return not torch.equal(self._random, random_state(self._device))

    def restore(self) -> None:
        """Put everything back."""
        for module, before in self._attributes:
            for key in _changes(before, vars(module)):
                vars(module).pop(key, None)
            vars(module).update(before)
        for container, contents in self._containers:
            if contents.differ(container):
                contents.restore(container)
        for store, key, values in self._buffers:
            store[key] = values.held
            values.restore()
        for weight in self._weights:
            weight.restore()
        set_random_state(self._random, self._device)
        self._host.restore()


class _Values:
    """One tensor of the network: its memory, its values, and the version counter, on which native backwards that are
    still to come rely."""

    def __init__(self, held: torch.Tensor) -> None:
        self.held = held
        self._memory = held.detach()
        self._copy = held.detach().to("cpu", copy=True)
        self._counter = ExitStack()
        if not held.is_inference():
            self._counter.enter_context(_unsafe_preserve_version_counter(held))
        self._version = 0 if held.is_inference() else held._version

    def moved(self) -> bool:
        """Whether it has other memory, as by `held.data = ...`."""
        return self.held.data_ptr() != self._memory.data_ptr()

    def written(self) -> bool:
        """Whether torch has seen it being written. It does not see what goes through `held.data`."""
        return not self.held.is_inference() and self.held._version != self._version

    def differ(self) -> bool:
        """Whether the values are others, in bits."""
        return not same_bits(self._copy, self.held)

    def restore(self) -> None:
        """Put memory and values back, and the counter: what awaits its backward finds all as it was."""
        if self.moved():
            self.held.data = self._memory
        if self.written() or self.differ():
            with torch.no_grad():
                self._memory.copy_(self._copy)
        self._counter.close()


# Of these exact types, whose methods are known to do nothing else.
_SEQUENCES = (list, deque)
_MAPPINGS = (dict, OrderedDict, defaultdict, Counter)
_FILLED = (*_SEQUENCES, *_MAPPINGS, set)


def _containers(values: Iterable[Any]) -> list[Any]:
    """The containers of Python's own within `values`, down to those within others, each once.

    Modules keep their parameters, buffers, children and hooks in such ones too.
    """
    found: dict[int, Any] = {}
    left = list(values)
    while left:
        value = left.pop()
        if type(value) in _FILLED and id(value) not in found:
            found[id(value)] = value
            left.extend(value.values() if type(value) in _MAPPINGS else value)
        elif type(value) is tuple:
            left.extend(value)
    return list(found.values())


class _Contents:
    """What one container held at one moment, by identity."""

    def __init__(self, container: Any) -> None:
        self._held = _held(container)

    def differ(self, container: Any) -> bool:
        """Whether it holds something else now, or in another order."""
        now = _held(container)
        return len(now) != len(self._held) or any(one is not other for one, other in zip(now, self._held, strict=True))

    def restore(self, container: Any) -> None:
        """Put it back."""
        container.clear()
        if type(container) in _MAPPINGS:
            half = len(self._held) // 2
            container.update(zip(self._held[:half], self._held[half:], strict=True))
        elif type(container) is set:
            container.update(self._held)
        else:
            container.extend(self._held)


def _held(container: Any) -> Sequence[object]:
    """Keys and then values, or elements."""
    return [*container, *container.values()] if type(container) in _MAPPINGS else list(container)


def _changes(before: dict[str, object], now: dict[str, object]) -> set[str]:
    """The names whose values are not the same objects any more."""
    return {key for key in before.keys() | now.keys() if before.get(key, _MISSING) is not now.get(key, _MISSING)}


@contextmanager
def preserved(wiring: Wiring, device: torch.device) -> Iterator[Preservation]:
    """Restore the network's state and the random generators when the block ends, also when it fails."""
    state = Preservation(wiring, device)
    try:
        yield state
    finally:
        state.restore()
