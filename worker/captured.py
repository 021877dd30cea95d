"""What pytest had captured of a process that ended in the middle of a case.

pytest points the descriptors 1 and 2 at temporary files without a name, so what a C library prints before it calls
``exit`` goes with the process. The plugin hands these two files over as soon as capturing has begun, through a socket
that it then closes; they are looked into only when the process did not come to its session's end. Nothing changes for
the tests.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Self

_MOST = 16 << 10
_NAMES = ("stdout", "stderr")


class Captured:
    """Receives the files of one process. ``child`` is the descriptor to pass on to it."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self.child = self._theirs.fileno()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ours.close()
        self._theirs.close()

    def texts(self) -> dict[str, bytes]:
        """The last of what stands in each of the files; nothing where none came, as with ``-s``."""
        found: dict[str, bytes] = {}
        with contextlib.suppress(BlockingIOError):
            _, files, _, _ = socket.recv_fds(self._ours, 1, len(_NAMES))
            for name, file in zip(_NAMES, files, strict=False):
                size = os.fstat(file).st_size
                if text := os.pread(file, _MOST, max(0, size - _MOST)):
                    found[name] = text
            for file in files:
                os.close(file)
        return found
