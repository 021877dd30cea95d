"""The log files of the embedded system's children."""

from __future__ import annotations

from pathlib import Path

KEPT = 3


def rotate(file: Path) -> None:
    """Makes room for a new log: ``NAME.log`` becomes ``NAME.log.1``, and so on up to ``KEPT``."""
    for number in range(KEPT - 1, 0, -1):
        older = file.with_name(f"{file.name}.{number}")
        if older.exists():
            older.replace(file.with_name(f"{file.name}.{number + 1}"))
    if file.exists():
        file.replace(file.with_name(f"{file.name}.1"))


def tail(file: Path, lines: int = 20, most_bytes: int = 16384) -> str:
    """The last lines of a log."""
    try:
        with file.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(max(0, size - most_bytes))
            text = stream.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def says(file: Path, phrase: str, offset: int = 0) -> bool:
    """Whether a log holds a phrase at or after a byte offset."""
    try:
        with file.open("rb") as stream:
            stream.seek(offset)
            return phrase.encode() in stream.read()
    except FileNotFoundError:
        return False
