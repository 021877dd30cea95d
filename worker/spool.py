"""Keeps an attempt's batches on disk until the service has them, so that a killed worker's last words are not lost.

A spool is a file of JSON lines: the attempt and its lease token, then one line per group of events. A group's place is
its batch number. ``split`` lines record that the service found a batch too large, so that a reader of the file comes to
the same numbers. An ``end`` line has the attempt's last event while its logs are still on their way.
"""

from __future__ import annotations

import contextlib
import io
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
    """The spool of one attempt, open for writing. ``fault`` says why it can no longer be written, if so: after a line
    that was cut short nothing more is added, and what follows is held in memory alone."""

    def __init__(self, path: Path, attempt: int, token: str) -> None:
        self.fault = ""
        self._path = path
        self._stream: io.FileIO | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._stream = path.open("ab", buffering=0)
        except OSError as error:
            self._fail(error)
        self._write({"attempt": attempt, "token": token})

    def _write(self, line: Any) -> None:
        if self._stream is None:
            return
        data = json.dumps(line).encode("ascii") + b"\n"
        try:
            while data:  # A disk that is nearly full takes a part first.
                data = data[self._stream.write(data) :]
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        self.fault = f"the spool {self._path} cannot be written: {error.strerror}; make room on the worker's disk"
        self.close()

    def append(self, group: Group) -> None:
        self._write({"events": group})

    def split(self, place: int) -> None:
        self._write({"split": place})

    def end(self, event: Any) -> None:
        """Note how the attempt ends, before that can be sent: a reader takes it for the last event if none came."""
        self._write({"end": event})

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def delete(self) -> None:
        self.close()
        with contextlib.suppress(OSError):  # One that stays is looked after by the next start.
            self._path.unlink()


@dataclass(frozen=True)
class Leftover:
    """A spool that another worker process left behind."""

    path: Path
    attempt: int
    token: str
    groups: list[Group]


def read(path: Path) -> Leftover | None:
    """What a spool file holds; a last line that was cut short by a kill is left out. Nothing where no line is whole.

    Raises:
        ValueError: its lines are whole, and no spool's: another release may have left it.
    """
    lines: list[Any] = []
    for line in path.read_text(encoding="ascii", errors="replace").splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            break
    if not lines:
        return None
    groups: list[Group] = []
    end: Any = None
    try:
        for line in lines[1:]:
            if "split" in line:
                split(groups, line["split"])
            elif "end" in line:
                end = line["end"]
            else:
                groups.append(line["events"])
        if end is not None and not any(event["kind"] == end["kind"] for event in (groups[-1] if groups else [])):
            groups.append([end])
        return Leftover(path, lines[0]["attempt"], lines[0]["token"], groups)
    except (LookupError, TypeError) as error:
        raise ValueError(f"{path} is no spool: {type(error).__name__}: {error}") from error
