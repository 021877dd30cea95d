r"""Makes values fit for JSON and for every database: the one place where they are changed, and it says that it did so.

NUL and lone surrogates become a visible escape (``\x00``, ``\udc80``); what JSON lacks becomes its text or name, and
what is nested too deeply to be read back says that. The worker cleans what it sends, and the service what it gets.
Standard library only, like the messages.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
MOST_DEPTH = 60
"""Nesting below this, in a field of an event, becomes its text: evidence comes from tested code, and reading it back
recurses."""


class Cleaner:
    """Cleans the values of one record, and remembers whether it had to."""

    def __init__(self) -> None:
        self.cleaned = False

    def text(self, text: str, most: int | None = None) -> str:
        """The text without unstorable characters, and in at most ``most`` UTF-8 bytes: head and tail are kept."""
        fit = text if text.isascii() and "\0" not in text else _UNSTORABLE.sub(self._escape, text)
        return fit if most is None else _shorten(fit, most)

    def _escape(self, match: re.Match[str]) -> str:
        code = ord(match[0])
        return self._change(f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")

    def _change(self, new: str) -> str:
        self.cleaned = True
        return new

    def seconds(self, seconds: float) -> float:
        """A duration; 0 where it is no number."""
        if math.isfinite(seconds):
            return seconds
        self.cleaned = True
        return 0.0

    def data(self, value: Any, depth: int = 0) -> Any:
        """JSON data with every value in it cleaned."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, (Mapping, list, tuple)):
            return self._nested(value, depth)
        if value is None or isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
            return value
        return self._change(self.text(str(value)))

    def _nested(self, value: Mapping[Any, Any] | list[Any] | tuple[Any, ...], depth: int) -> Any:
        if depth > MOST_DEPTH:
            return self._change("nested too deeply")
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.data(item, depth + 1) for key, item in value.items()}
        return [self.data(item, depth + 1) for item in value]

    def mapping(self, value: Any, most: int) -> dict[str, Any]:
        """A mapping of JSON data, or a shortened text of it where it is larger than ``most`` bytes."""
        data: dict[str, Any] = self.data(value if isinstance(value, Mapping) else {"value": value})
        text = json.dumps(data)
        return data if len(text) <= most else {"cut": _shorten(text, most // 2)}


def clean_event(event: Mapping[str, Any]) -> dict[str, Any]:
    """An event's JSON data with every value in it cleaned; a case says whether that changed any."""
    cleaner = Cleaner()
    fit = {cleaner.text(str(key)): _field(cleaner, key, value) for key, value in event.items()}
    return fit | {"cleaned": True} if cleaner.cleaned and event.get("kind") == "case" else fit


def _field(cleaner: Cleaner, key: str, value: Any) -> Any:
    return cleaner.seconds(value) if key == "duration_s" and isinstance(value, float) else cleaner.data(value)


def _shorten(text: str, most: int) -> str:
    data = text.encode()
    if len(data) <= most:
        return text
    half = max(0, most - 64) // 2
    head, tail = data[:half].decode(errors="ignore"), data[len(data) - half :].decode(errors="ignore")
    return f"{head}\n… {len(data) - 2 * half} bytes cut …\n{tail}"
