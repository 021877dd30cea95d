"""How the pages say things: durations, moments, long names, and characters that cannot be seen."""

from __future__ import annotations

import datetime
import json
import math
import re
from typing import Any

# Controls except tab and newline, what hides or reorders text (the bidirectional overrides of "Trojan Source"), and
# lone surrogates, which no UTF-8 answer can carry.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


def visible(text: str) -> str:
    """The text with every character that could not be seen shown as a symbol: NUL as ``␀``, ESC as ``␛``."""
    return _UNSEEN.sub(_symbol, text)


def _symbol(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def middle(text: str, width: int) -> str:
    """The text in at most ``width`` characters. Its end says more than its beginning: a node id's parameters."""
    if len(text) <= width:
        return text
    head = (width - 1) // 3
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def clip(text: str, limit: int) -> str:
    """The text, its middle left out beyond ``limit`` characters, so that no page grows by megabytes."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters left out …\n{text[-half:]}"


def elapsed(since: datetime.datetime, until: datetime.datetime) -> float:
    """Seconds between two moments, each cut to its millisecond: a browser keeps no more of them."""
    tick, epoch = datetime.timedelta(milliseconds=1), datetime.datetime.fromtimestamp(0, datetime.UTC)
    return ((until - epoch) // tick - (since - epoch) // tick) / 1000


def span(seconds: float | None) -> str:
    """A duration as the log writes it: ``80 ms``, ``4.2 s``, ``12 min 10 s``, ``2 h 5 min``.

    ``span`` in ``pages.js`` says the same: both round halves up, by the same floating-point steps.
    """
    if seconds is None:
        return ""
    seconds = max(0.0, seconds)
    if seconds < 1:
        return f"{math.floor(seconds * 1000 + 0.5)} ms"
    if seconds < 9.95:
        return f"{math.floor(seconds * 10 + 0.5) / 10:.1f} s"
    whole = math.floor(seconds + 0.5)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def ago(then: datetime.datetime, now: datetime.datetime) -> str:
    """``just now``, ``5 min ago``, ``3 h ago``, and after a day the date."""
    seconds = (now - then).total_seconds()
    if seconds < 60:
        return "just now"
    if seconds < 3600:
        return f"{int(seconds // 60)} min ago"
    if seconds < 86400:
        return f"{int(seconds // 3600)} h ago"
    return f"{then:%Y-%m-%d}"


def moment(then: datetime.datetime) -> str:
    """A moment in UTC, to the second."""
    return f"{then.astimezone(datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"


def size(count: int) -> str:
    """A number of bytes for people: ``812 B``, ``3.4 MiB``."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def pretty(data: Any) -> str:
    """Evidence and records as indented JSON."""
    return json.dumps(data, indent=2, ensure_ascii=False, default=str)
