"""A log as a page shows it: what a terminal would show in the end, and never more lines than a tab can hold."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ESCAPES = re.compile(
    r"\x1b(?:"
    r"\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movement
    r"|\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC: titles, hyperlinks
    r"|[PX^_][^\x1b]*(?:\x1b\\)?"  # DCS, SOS, PM, APC
    r"|[ -/]*[0-~]"  # two-character sequences
    r")"
)
MAX_CHARS = 512 * 1024
MAX_LINE = 2000


@dataclass(frozen=True)
class Window:
    """The last lines of a log. ``left_out`` counts the earlier lines of the same text that are not shown."""

    lines: tuple[str, ...]
    left_out: int

    @property
    def text(self) -> str:
        """The lines, each ended."""
        return "".join(f"{line}\n" for line in self.lines)


def plain(text: str) -> str:
    """The text without terminal sequences."""
    return _ESCAPES.sub("", text)


def settle(line: str) -> str:
    """What is left of a line after its carriage returns: of a progress bar, its last state."""
    for part in reversed(line.split("\r")):
        if part:
            return part
    return ""


def window(text: str, lines: int = 400) -> Window:
    """The end of a log, ready to show. Lines beyond MAX_LINE characters lose their ends."""
    cut = len(text) > MAX_CHARS
    settled = [settle(line) for line in plain(text[-MAX_CHARS:]).split("\n")]
    if cut:
        settled = settled[1:]  # its beginning is missing
    if settled and not settled[-1]:
        settled.pop()
    shown = tuple(line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]}…" for line in settled[-lines:])
    return Window(shown, text[:-MAX_CHARS].count("\n") + cut + len(settled) - len(shown))
