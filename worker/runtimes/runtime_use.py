"""Who uses a runtime or a cache: attempts hold it together, who builds or throws it away holds it alone. Locks of this
host.

The time of last use is that of the lock's file, beside the runtime: nothing within it is ever written again. Where the
cache cannot be written, nobody can throw a runtime away, and no lock is needed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from worker.errors import Stopped

_POLL_S = 0.2


class Use:
    """One holder's side of a runtime's lock. It goes with its process, however that ends."""

    def __init__(self, home: Path) -> None:
        self.path = home.with_name(home.name + ".use")
        try:
            self._fd: int | None = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError:
            self._fd = None

    def share(self) -> bool:
        """Hold it as one of many, and note the use. Whether nobody holds it alone; whoever does may hand it down."""
        if not self._lock(fcntl.LOCK_SH):
            return False
        with contextlib.suppress(OSError):
            os.utime(self.path)
        return True

    def alone(self) -> bool:
        """Hold it alone, if nobody else holds it."""
        return self._lock(fcntl.LOCK_EX)

    def wait_alone(self, stop: threading.Event) -> None:
        """Hold it alone, once everybody else has let go.

        Raises:
            Stopped: the attempt was asked to end before.
        """
        _wait(self.alone, stop, "the users of a damaged runtime")

    def wait_share(self, stop: threading.Event) -> None:
        """Hold it as one of many, once nobody holds it alone.

        Raises:
            Stopped: the attempt was asked to end before.
        """
        _wait(self.share, stop, "another attempt that makes room on the disk")

    def release(self) -> None:
        """Let go."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _lock(self, kind: int) -> bool:
        if self._fd is None:
            return True
        try:
            fcntl.flock(self._fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def _wait(hold: Callable[[], bool], stop: threading.Event, whom: str) -> None:
    while not hold():
        if stop.is_set():
            raise Stopped(f"stopped while waiting for {whom}")
        time.sleep(_POLL_S)


def last_used(home: Path) -> float:
    """When a runtime was used last, in seconds since the epoch; 0 where nobody knows."""
    for path in (home.with_name(home.name + ".use"), home / "ready.json"):
        with contextlib.suppress(OSError):
            return path.stat().st_mtime
    return 0.0
