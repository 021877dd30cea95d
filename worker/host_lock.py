"""Locks between all workers of this host. Whoever waits says so once, and ends when the attempt is to."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from worker.errors import Stopped

_POLL_S = 0.2


@contextlib.contextmanager
def locked(path: Path, stop: threading.Event, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock at ``path``. ``waiting`` is called once where somebody else has it.

    Raises:
        Stopped: the attempt was asked to end before the lock was free.
    """
    lock = FileLock(path, thread_local=False)
    said = False
    while True:
        try:
            lock.acquire(timeout=0 if not said else _POLL_S, poll_interval=_POLL_S / 4)
            break
        except Timeout:
            if stop.is_set():
                raise Stopped("stopped while waiting for another attempt") from None
            if not said:
                said = True
                waiting()
    try:
        yield
    finally:
        lock.release()
