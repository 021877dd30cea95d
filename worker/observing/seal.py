"""Tells the plugin's own lines from whatever else lands in the events' file. Pure: no files, no clock.

Each line is ``SEAL NUMBER JSON``; the seal is an HMAC over number and JSON under a key that the plugin alone was given.
So a child of a test that finds the file and writes into it is seen, and so is a line that was lost. No secret keeps a
test from the plugin's memory: both share a process.
"""

from __future__ import annotations

import hashlib
import hmac

KEY_BYTES = 32
_SEAL = 32


def seal(key: bytes, number: int, data: bytes) -> bytes:
    """The line of an event."""
    text = b"%d %s" % (number, data)
    return hmac.new(key, text, hashlib.sha256).hexdigest()[:_SEAL].encode() + b" " + text


class Opener:
    """Takes the lines of one process in their order."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._seen = 0
        self.foreign = 0
        self.lost = 0

    def open(self, line: bytes) -> bytes | None:
        """The JSON of a line, once; nothing where the plugin did not write it."""
        if not line.strip():
            return None
        number, data = self._parts(line)
        if data is None:
            self.foreign += 1
            return None
        if number <= self._seen:  # The file was cut or copied, and is read again.
            return None
        self.lost += number - self._seen - 1
        self._seen = number
        return data

    def _parts(self, line: bytes) -> tuple[int, bytes | None]:
        _, _, text = line.partition(b" ")
        number, _, data = text.partition(b" ")
        if (
            not number.isdigit()
            or len(number) > 18
            or not hmac.compare_digest(seal(self._key, int(number), data), line)
        ):
            return 0, None
        return int(number), data

    @property
    def complaint(self) -> str:
        """What was wrong with the file, as a sentence; empty where nothing was."""
        parts = []
        if self.foreign:
            parts.append(f"{self.foreign} lines were written to the events' file by something else and passed over")
        if self.lost:
            parts.append(f"{self.lost} events were lost")
        return "; ".join(parts)
