"""Captures CUDA work of one device into graphs, orders their replays, and leads back out of a failed capture."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TypeVar

import torch

Result = TypeVar("Result")

# A graph whose capture failed stays alive to the end of the process: on torch up to 2.11 the pinned-memory allocator
# keeps a filter that points into it (fixed by pytorch#180395).
_abandoned: list[torch.cuda.CUDAGraph] = []

# How many streams torch has; it hands them out in turn, so that two `Stream` objects may be one stream.
_STREAMS = 32
_recorders: weakref.WeakSet[Recorder] = weakref.WeakSet()


class Graph(Protocol):
    """What a capture gives."""

    def replay(self) -> None:
        """Do the captured work again, on the current stream of the device it was captured on."""


class Recorder:
    """Captures for one device, all on one stream and into one memory pool.

    The device need not be the current one.

    What must stay constant: the stream. The pool's memory is reused between captures only on the same stream, and the
    warm-up runs on it too, so that cuBLAS takes its workspace for it from ordinary memory, before any capture.
    The pool is replaced when a capture failed, since its state is unknown then. Recordings made before keep theirs.
    Owned until the end: every graph, also those of recordings that were given up. From torch 2.12 on, destroying one
    clears the cuBLAS workspace of the whole stream, under the others (pytorch#193402), so all go together with the
    recorder, and no two recorders share a stream.

    Attributes:
        kind: The type of device that it captures on.
    """

    kind = "cuda"

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = _stream_of_its_own(device)
        _recorders.add(self)
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: list[torch.cuda.CUDAGraph] = []
        self._holds_memory = False
        self._last: torch.cuda.Stream | None = None

    @property
    def holds_memory(self) -> bool:
        """Whether the pool has memory of a capture, which lies idle while nothing is replayed."""
        return self._holds_memory

    @contextmanager
    def on_stream(self) -> Iterator[None]:
        """Run the block on the capture stream, after the caller's work so far and before what the caller does next."""
        caller = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(caller)
        try:
            with torch.cuda.stream(self.stream):
                yield
        finally:
            caller.wait_stream(self.stream)

    @contextmanager
    def in_pool(self) -> Iterator[None]:
        """Let the block, on the capture stream, use the pool's idle memory. What it allocates must not outlive it.

        Without it a warm-up would need as much memory again as the pool has already. Not for the first one: what
        libraries allocate at their first use and keep, like cuBLAS its workspaces, belongs into ordinary memory.
        """
        if not self._holds_memory:
            yield
            return
        leave = _way_out_of_pools()
        torch._C._cuda_beginAllocateCurrentStreamToPool(self.device.index, self._pool)
        try:
            yield
        finally:
            leave(self.device.index, self._pool)
            torch._C._cuda_releasePool(self.device.index, self._pool)

    def on_device(self) -> AbstractContextManager[object]:
        """Make the device the current one for the block: a capture registers the current device's generator."""
        return torch.cuda.device(self.device)

    def wait(self) -> None:
        """Wait until the device has finished."""
        torch.cuda.synchronize(self.device)

    def settle(self) -> None:
        """Wait, and give cached memory back to the device: each stream and pool has a cache of its own."""
        self.wait()
        torch.cuda.empty_cache()

    def is_capturing(self) -> bool:
        """Whether the caller captures a graph of its own, on the device's current stream."""
        if torch.cuda.current_device() == self.device.index:
            return torch.cuda.is_current_stream_capturing()
        with self.on_device():
            return torch.cuda.is_current_stream_capturing()

    def follow(self) -> None:
        """Order what the caller does next behind the last replay, which may have run on another of its streams, in the
        same memory."""
        current = torch.cuda.current_stream(self.device)
        if self._last is not None and self._last != current:
            current.wait_stream(self._last)
        self._last = current

    def capture(self, work: Callable[[], Result]) -> tuple[Graph, Result]:
        """Capture what `work` does, and return its result too. Call it on the capture stream.

        `torch.cuda.graph` is not used because it leaves the capture stream current when the end of a capture fails.
        The error mode is thread_local: in the global one the cudaHostAlloc of a DataLoader's pin-memory thread breaks
        the capture and kills that thread.
        """
        graph = torch.cuda.CUDAGraph()
        self._graphs.append(graph)
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            result = work()
        finally:
            try:
                graph.capture_end()
            except RuntimeError:
                self._abandon(graph)
                raise
        self._holds_memory = True
        return graph, result

    def _abandon(self, graph: torch.cuda.CUDAGraph) -> None:
        """Bring allocator and random generator out of the state of capture, and go on with a fresh pool."""
        _abandoned.append(graph)
        try:
            _way_out_of_pools()(self.device.index, self._pool)
            torch._C._cuda_releasePool(self.device.index, self._pool)
        except RuntimeError:
            # torch 2.12 and later has ended it already, and says so by this error.
            pass
        self._pool = torch.cuda.graph_pool_handle()
        self._holds_memory = False
        _finish_generator_capture(self.device)


def _way_out_of_pools() -> Callable[[int, object], None]:
    """What ends the allocation into a pool, called with the device's index and the pool. Torch 2.6 had another name."""
    now = getattr(torch._C, "_cuda_endAllocateToPool", None)
    return now or torch._C._cuda_endAllocateCurrentStreamToPool


def _stream_of_its_own(device: torch.device) -> torch.cuda.Stream:
    """A stream on which no other recorder captures, as long as there are that many."""
    taken = {recorder.stream for recorder in _recorders if recorder.device == device}
    streams = [torch.cuda.Stream(device)]
    while streams[-1] in taken and len(streams) < _STREAMS:
        streams.append(torch.cuda.Stream(device))
    return streams[-1]


def _finish_generator_capture(device: torch.device) -> None:
    """Make a trivial capture that succeeds: its end tells the generator that capturing is over (pytorch#190308)."""
    value = torch.zeros(1, device=device)
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(capture_error_mode="thread_local")
        value.add_(1)
        graph.capture_end()
    torch.cuda.current_stream(device).wait_stream(stream)


@contextmanager
def quiet_collector() -> Iterator[None]:
    """Collect garbage before the block and none within: a finalizer may free memory or end a graph during a capture."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
