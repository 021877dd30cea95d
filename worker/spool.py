"""Keeps an attempt's batches on disk until the service has them, so that a killed worker's last words are not lost.

A spool is a file of JSON lines: the attempt and its lease token, then one line per group of events. A group's place is
its batch number. ``split`` lines record that the service found a batch too large, so that a reader of the file comes to
the same numbers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

Group = list[Any]
"""Encoded events that go in one batch."""


def split(groups: list[list[T]], place: int) -> None:
    """Replace one group by its two halves."""
    group = groups[place]
    middle = len(group) // 2
    groups[place : place + 1] = [group[:middle], group[middle:]]


class Spool:
    """The spool of one attempt, open for writing."""

    def __init__(self, path: Path, attempt: int, token: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._stream = path.open("a", encoding="ascii")
        self._write({"attempt": attempt, "token": token})

    def _write(self, line: Any) -> None:
        self._stream.write(json.dumps(line) + "\n")
        self._stream.flush()

    def append(self, group: Group) -> None:
        self._write({"events": group})

    def split(self, place: int) -> None:
        self._write({"split": place})

    def close(self) -> None:
        self._stream.close()

    def delete(self) -> None:
        self.close()
        self._path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Leftover:
    """A spool that another worker process left behind."""

    path: Path
    attempt: int
    token: str
    groups: list[Group]


def read(path: Path) -> Leftover | None:
    """What a spool file holds; a last line that was cut short by a kill is left out. Nothing where no line is whole."""
    lines: list[Any] = []
    for line in path.read_text(encoding="ascii", errors="replace").splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            break
    if not lines:
        return None
    groups: list[Group] = []
    for line in lines[1:]:
        if "split" in line:
            split(groups, line["split"])
        else:
            groups.append(line["events"])
    return Leftover(path, lines[0]["attempt"], lines[0]["token"], groups)
