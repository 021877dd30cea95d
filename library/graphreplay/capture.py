"""One capture of CUDA work into a graph, and the way back out of a capture that failed."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch

# A graph whose capture failed stays alive to the end of the process: on torch up to 2.11 the pinned-memory allocator
# keeps a filter that points into it (fixed by pytorch#180395).
_abandoned: list[torch.cuda.CUDAGraph] = []


class Recorder:
    """Captures for one device, all on one stream and into one memory pool.

    What must stay constant: the stream. The pool's memory is reused between captures only on the same stream, and the
    warm-up runs on it too, so that cuBLAS takes its workspace for it from ordinary memory, before any capture.
    The pool is replaced when a capture failed, since its state is unknown then. Recordings made before keep theirs.
    Owned until the end: every graph, also those of recordings that were given up. Destroying one clears the cuBLAS
    workspace of the whole stream, under the others (pytorch#193402), so all go together with the recorder.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: list[torch.cuda.CUDAGraph] = []

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
    def capture(self, graph: torch.cuda.CUDAGraph) -> Iterator[None]:
        """Capture the block into `graph`. Call it on the capture stream.

        `torch.cuda.graph` is not used because it leaves the capture stream current when the end of a capture fails.
        The error mode is thread_local: in the global one the cudaHostAlloc of a DataLoader's pin-memory thread breaks
        the capture and kills that thread.
        """
        self._graphs.append(graph)
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            yield
        finally:
            try:
                graph.capture_end()
            except RuntimeError:
                self._abandon(graph)
                raise

    def _abandon(self, graph: torch.cuda.CUDAGraph) -> None:
        """Bring allocator and random generator out of the state of capture, and go on with a fresh pool."""
        _abandoned.append(graph)
        try:
            torch._C._cuda_endAllocateToPool(self.device.index, self._pool)
            torch._C._cuda_releasePool(self.device.index, self._pool)
        except RuntimeError:
            # torch 2.12 and later has ended it already, and says so by this error.
            pass
        self._pool = torch.cuda.graph_pool_handle()
        _finish_generator_capture(self.device)


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
