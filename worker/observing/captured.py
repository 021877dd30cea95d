"""The channel between the worker and the plugin of one pytest process, beside the events' file.

Down it goes the key by which the plugin seals its lines. Up it come the files that pytest captures into: pytest points
the descriptors 1 and 2 at temporary files without a name, so what a C library prints before it calls ``exit`` would go
with the process. They are looked into only when the process did not come to its session's end, and for their size,
which is a sign of life. The plugin closes the socket before any of the tests' own code runs; nothing changes for the
tests.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from typing import Self

from worker.observing.seal import KEY_BYTES

_MOST = 16 << 10
_NAMES = ("stdout", "stderr")


class Captured:
    """Hands the key to one process and receives its files. ``child`` is the descriptor to pass on to it."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._files: list[int] = []
        self.child = self._theirs.fileno()
        self.key = secrets.token_bytes(KEY_BYTES)
        self._ours.sendall(self.key)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ours.close()
        self._theirs.close()
        for file in self._files:
            os.close(file)

    def size(self) -> int:
        """How much stands in the files."""
        return sum(os.fstat(file).st_size for file in self._received())

    def texts(self) -> dict[str, bytes]:
        """The last of what stands in each of the files; nothing where none came, as with ``-s``."""
        found: dict[str, bytes] = {}
        for name, file in zip(_NAMES, self._received(), strict=False):
            size = os.fstat(file).st_size
            if text := os.pread(file, _MOST, max(0, size - _MOST)):
                found[name] = text
        return found

    def _received(self) -> list[int]:
        if not self._files:
            with contextlib.suppress(BlockingIOError):
                self._files = socket.recv_fds(self._ours, 1, len(_NAMES))[1]
        return self._files
