"""Reads the events' file of one pytest process: a bounded piece a turn, since its tests can write anything into it."""

from __future__ import annotations

import os
from typing import BinaryIO

TURN_BYTES = 1 << 20
LINE_BYTES = 16 << 20
"""Of one event. The plugin cuts all that it tells but a case's id, and JSON takes up to 12 bytes for a character."""


class EventLines:
    """The whole lines of a growing file.

    Attributes:
        more: whether the last turn left something for the next one.
        too_long: how many lines were dropped for their length.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._file = stream.fileno()
        self._place = 0
        self._begun: list[bytes] = []
        self._begun_bytes = 0
        self._dropping = False
        self.more = False
        self.too_long = 0

    def read(self) -> list[bytes]:
        """What ended since the last turn. A file that a test has cut is read from its start: lines are known by
        number."""
        size = os.fstat(self._file).st_size
        self._place = self._next_data(0 if size < self._place else self._place, size)
        data = os.pread(self._file, TURN_BYTES, self._place)
        self._place += len(data)
        self.more = self._place < size
        first, *others = data.split(b"\n")
        lines = []
        for piece in others:
            lines += self._ended(first)
            first = piece
        self._keep(first)
        return lines

    def _next_data(self, place: int, size: int) -> int:
        """Past a hole: a file can be made longer than any disk without a byte in it."""
        try:
            return os.lseek(self._file, place, os.SEEK_DATA)
        except OSError:  # Nothing but a hole, or the file's end.
            return size

    def _ended(self, last: bytes) -> list[bytes]:
        self._keep(last)
        lines = [] if self._dropping else [b"".join(self._begun)]
        self._begun, self._begun_bytes, self._dropping = [], 0, False
        return lines

    def _keep(self, piece: bytes) -> None:
        """Keep a piece of a line that has not ended, as long as it may still be an event."""
        self._begun_bytes += len(piece)
        if self._begun_bytes <= LINE_BYTES:
            self._begun.append(piece)
        elif not self._dropping:
            self._begun, self._dropping = [], True
            self.too_long += 1

    @property
    def complaint(self) -> str:
        """What was dropped, as a sentence; empty where nothing was."""
        if not self.too_long:
            return ""
        return (
            f"{self.too_long} lines of more than {LINE_BYTES >> 20} MiB in the events' file were passed over: no event "
            "is that long"
        )
