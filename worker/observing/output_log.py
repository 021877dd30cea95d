"""The log of an attempt: everything that was printed, with a head and a tail kept and the middle counted."""

from __future__ import annotations

import threading
from collections import deque
from pathlib import Path


class OutputLog:
    """Takes bytes of any size and keeps the first ``head`` and the last ``tail`` of them."""

    def __init__(self, head: int, tail: int) -> None:
        self._lock = threading.Lock()
        self._head = bytearray()
        self._head_cap = head
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._tail_cap = tail
        self._cut = 0
        self.total = 0

    def feed(self, data: bytes) -> None:
        """Add what was printed."""
        with self._lock:
            self.total += len(data)
            room = self._head_cap - len(self._head)
            if room > 0:
                self._head += data[:room]
                data = data[room:]
            if data:
                self._tail.append(data)
                self._tail_size += len(data)
                self._trim()

    def note(self, text: str) -> None:
        """Add a line of the worker's own."""
        self.feed(f"[replaybench] {text}\n".encode("utf-8", "backslashreplace"))

    def _trim(self) -> None:
        while self._tail_size > self._tail_cap:
            over = self._tail_size - self._tail_cap
            first = self._tail.popleft()
            if len(first) > over:
                self._tail.appendleft(first[over:])
            cut = min(len(first), over)
            self._tail_size -= cut
            self._cut += cut

    def content(self) -> bytes:
        """What is kept, with a line in the middle that says how much is not."""
        with self._lock:
            middle = f"\n[replaybench] {self._cut} bytes cut here\n".encode() if self._cut else b""
            return bytes(self._head) + middle + b"".join(self._tail)

    def since(self, mark: int, most: int) -> str:
        """The last ``most`` bytes of what came after the first ``mark`` ones."""
        return self._last(min(most, self.total - mark)).decode("utf-8", "replace")

    def tail_text(self, most: int) -> str:
        """The last ``most`` bytes as text, begun at a character."""
        return self._last(most).decode("utf-8", "replace").lstrip("\ufffd")

    def _last(self, most: int) -> bytes:
        if most <= 0:
            return b""
        with self._lock:
            parts: list[bytes] = []
            size = 0
            for part in reversed(self._tail):
                if size >= most:
                    break
                parts.append(part)
                size += len(part)
            if size < most and not self._cut:
                parts.append(bytes(self._head))
            return b"".join(reversed(parts))[-most:]

    def write(self, path: Path) -> None:
        """Store what is kept."""
        path.write_bytes(self.content())


class Tee(OutputLog):
    """A log that keeps nothing and hands all on: a build shows in the attempt's log and in one of its own."""

    def __init__(self, *logs: OutputLog) -> None:
        super().__init__(0, 0)
        self._logs = logs

    def feed(self, data: bytes) -> None:
        for one in self._logs:
            one.feed(data)
