"""Replay without a GPU: all of it is real but the graphs, which run the captured Python again.

For the tests and timings of what replay does on the host; it proves nothing of a GPU. A network with dropout retires
here, since on the CPU it draws its random numbers on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Generic

import torch

from graphreplay.capture import Graph, Recorder, Result
from graphreplay.network import NetworkReplay
from graphreplay.structure import flatten


class Again(Generic[Result]):
    """In a graph's place: does the work again and writes its tensors over those of the first time, as a graph would."""

    def __init__(self, work: Callable[[], Result]) -> None:
        self._work = work
        self.result = work()
        # Others may empty the result's containers.
        self._first = _tensors(self.result)

    def replay(self) -> None:
        """Do it."""
        with torch.enable_grad():
            again = _tensors(self._work())
        for target, source in zip(self._first, again, strict=True):
            once = tuple(slice(1) if stride == 0 else slice(None) for stride in target.stride())
            target.data[once].copy_(source[once])


def _tensors(result: object) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    # A forward's result has its tensors in a list beside their places.
    flatten(result[1] if isinstance(result, tuple) and isinstance(result[-1], list) else result, found)
    # A gradient's uses are counted, so no second tensor may hold its memory; an output's graph must not live on.
    return [tensor.detach() if tensor.requires_grad else tensor for tensor in found]


class HostRecorder(Recorder):
    """A recorder for the CPU: no streams, no pool."""

    kind = "cpu"

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # There is no pool whose memory could lie idle.
        self._holds_memory = False

    @contextmanager
    def on_stream(self) -> Iterator[None]:
        yield

    def on_device(self) -> AbstractContextManager[object]:
        return nullcontext()

    def wait(self) -> None: ...

    def settle(self) -> None: ...

    def is_capturing(self) -> bool:
        return False

    def follow(self) -> None: ...

    def capture(self, work: Callable[[], Result]) -> tuple[Graph, Result]:
        again = Again(work)
        return again, again.result


class Rehearsal(NetworkReplay):
    """A `NetworkReplay` for networks on the CPU."""

    recorder_type = HostRecorder
