"""A socket that answers one git and what that git starts, and nobody else of the same user."""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path

_ADMITTED_S = 10.0
"""How long a caller that came before its git was named waits for that."""


class Gate:
    """Listens at ``path`` until it is closed. ``answer`` speaks with each caller that is let in."""

    def __init__(self, path: Path, answer: Callable[[socket.socket], None]) -> None:
        self.path = path
        self._answer = answer
        self._root: int | None = None
        self._named = threading.Event()
        self._open: list[socket.socket] = []
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen()
        threading.Thread(target=self._serve, name="git-gate", daemon=True).start()

    def admit(self, pid: int) -> None:
        """From now on, let in this process and those below it."""
        self._root = pid
        self._named.set()

    def close(self) -> None:
        """Answer nobody any more."""
        self._named.set()
        for one in (self._server, *self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _serve(self) -> None:
        while True:
            try:
                caller, _ = self._server.accept()
            except OSError:
                return
            self._open.append(caller)
            threading.Thread(target=self._let_in, args=(caller,), name="git-gate-caller", daemon=True).start()

    def _let_in(self, caller: socket.socket) -> None:
        with caller, contextlib.suppress(OSError):
            self._named.wait(_ADMITTED_S)
            if self._root is not None and _is_below(_peer(caller), self._root):
                self._answer(caller)


def _peer(caller: socket.socket) -> int | None:
    """Who calls; nothing where this system does not tell, and the folder's mode alone keeps others out."""
    if not sys.platform.startswith("linux"):
        return None
    pid: int = struct.unpack("3i", caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))[0]
    return pid


def _is_below(pid: int | None, root: int) -> bool:
    if pid is None:
        return True
    while pid > 1:
        if pid == root:
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
        except OSError:
            return False
    return False
