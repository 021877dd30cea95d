r"""Makes a batch storable before it is read. Pure: no database, no framework.

A worker cleans what it sends. One that does not must not lose the other cases of its batch, so what no database stores
is made visible here as the worker does it: NUL and lone surrogates become ``\x00`` and ``\udc80``, numbers that JSON
lacks become their names. A case whose values were changed says so.
"""

from __future__ import annotations

import math
import re
from typing import Any

UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
MOST_DEPTH = 60
"""Nesting below this becomes its text: evidence comes from tested code, and reading it back recurses."""
MOST_INTEGER = 2**31 - 1


class _Cleaner:
    def __init__(self) -> None:
        self.changed = False

    def value(self, value: Any, depth: int = 0) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, float) and not math.isfinite(value):
            return self._change(str(value))
        if isinstance(value, (dict, list)) and depth > MOST_DEPTH:
            return self._change("nested too deeply")
        if isinstance(value, dict):
            return {self._text(str(key)): self.value(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list):
            return [self.value(item, depth + 1) for item in value]
        return value

    def _text(self, text: str) -> str:
        if text.isascii() and "\0" not in text:
            return text
        fit = UNSTORABLE.sub(lambda match: f"\\x{ord(match[0]):02x}" if match[0] == "\0" else _escape(match[0]), text)
        return fit if fit == text else self._change(fit)

    def _change(self, new: str) -> str:
        self.changed = True
        return new


def _escape(character: str) -> str:
    return f"\\u{ord(character):04x}"


def clean(batch: Any) -> Any:
    """A batch's JSON data with every text and number in it storable.

    Raises:
        ValueError: an event's own number is none that a column holds; the text names the event, the key and the value.
    """
    if not isinstance(batch, dict) or not isinstance(batch.get("events", []), list):
        return _Cleaner().value(batch)
    rest = _Cleaner().value({key: value for key, value in batch.items() if key != "events"})
    return {**rest, "events": [_event(index, event) for index, event in enumerate(batch.get("events", []))]}


def _event(index: int, event: Any) -> Any:
    if not isinstance(event, dict):
        return event
    for key, value in event.items():
        if isinstance(value, int) and abs(value) > MOST_INTEGER:
            raise ValueError(f"events[{index}].{key} = {value!r:.40}: no number that a process or a case can have")
    cleaner = _Cleaner()
    duration = event.get("duration_s")
    if isinstance(duration, float) and not math.isfinite(duration):
        event, cleaner.changed = {**event, "duration_s": 0.0}, True
    fit: dict[str, Any] = cleaner.value(event)
    return {**fit, "cleaned": True} if cleaner.changed and event.get("kind") == "case" else fit
