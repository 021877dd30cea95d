"""The log files of the embedded system's children."""

from __future__ import annotations

import json
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
    return phrase.encode() in _since(file, offset)


def sentences(file: Path, offset: int = 0) -> list[str]:
    """The lines of a log at or after a byte offset that are no JSON records."""
    lines = _since(file, offset).decode(errors="replace").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("{")]


def setting_warnings(file: Path, offset: int = 0) -> list[str]:
    """What the JSON records of a log, at or after a byte offset, warn of about a setting, which they name."""
    found = []
    for line in _since(file, offset).splitlines():
        try:
            record = json.loads(line)
        except ValueError:  # a sentence, or a line that is still being written
            continue
        if isinstance(record, dict) and "setting" in record and record.get("level") in {"warning", "error"}:
            found.append(f"{record['setting']}: {record.get('event')}: {record.get('reason')}")
    return found


def _since(file: Path, offset: int) -> bytes:
    try:
        with file.open("rb") as stream:
            stream.seek(offset)
            return stream.read()
    except FileNotFoundError:
        return b""
