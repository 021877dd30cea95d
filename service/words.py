"""How texts and numbers are said in short. Pure: no database, no framework."""

from __future__ import annotations


def brief(text: str, width: int) -> str:
    """The first line that says something, in at most ``width`` characters; one that goes on ends in an ellipsis.

    ``brief`` in ``pages.js`` does the same.
    """
    line = next((" ".join(line.split()) for line in text.splitlines() if line.strip()), "")
    if len(line) <= width:
        return line
    head = line[: width - 1]
    words = head if line[width - 1] == " " else head.rpartition(" ")[0]
    return (words if len(words) > width // 2 else head).rstrip() + "…"


def number(count: int, one: str, many: str = "") -> str:
    """``1 cell``, ``3 cells``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
