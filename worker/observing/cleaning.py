r"""Makes strings fit for every database: the one place where characters are replaced, and it says that it did so.

NUL and lone surrogates become a visible escape (``\x00``, ``\udc80``); numbers that JSON lacks become their names.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


class Cleaner:
    """Cleans the values of one record, and remembers whether it had to."""

    def __init__(self) -> None:
        self.cleaned = False

    def text(self, text: str, most: int | None = None) -> str:
        """The text without unstorable characters, and in at most ``most`` UTF-8 bytes: head and tail are kept."""
        fit = _UNSTORABLE.sub(self._escape, text)
        return fit if most is None else _shorten(fit, most)

    def _escape(self, match: re.Match[str]) -> str:
        self.cleaned = True
        code = ord(match[0])
        return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"

    def data(self, value: Any) -> Any:
        """JSON data with every string in it cleaned."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.data(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.data(item) for item in value]
        if isinstance(value, float) and not math.isfinite(value):
            self.cleaned = True
            return str(value)
        return value

    def mapping(self, value: Any, most: int) -> dict[str, Any]:
        """A mapping of JSON data, or a shortened text of it where it is larger than ``most`` bytes."""
        data: dict[str, Any] = self.data(value if isinstance(value, Mapping) else {"value": value})
        text = json.dumps(data)
        return data if len(text) <= most else {"cut": _shorten(text, most // 2)}


def _shorten(text: str, most: int) -> str:
    data = text.encode()
    if len(data) <= most:
        return text
    half = max(0, most - 64) // 2
    head, tail = data[:half].decode(errors="ignore"), data[len(data) - half :].decode(errors="ignore")
    return f"{head}\n… {len(data) - 2 * half} bytes cut …\n{tail}"
