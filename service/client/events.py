"""Server-sent events, read from lines of text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    """One event. ``id`` is the last one seen, as the standard has it, so it can be sent back after a break."""

    name: str
    data: str
    id: str | None


def parse(lines: Iterable[str], last_id: str | None = None) -> Iterator[Event]:
    """The events in a stream's lines; comments are dropped, and so is an event that the stream's end cut off."""
    name, data, current = "message", list[str](), last_id
    for line in lines:
        if not line:
            if data or name != "message":
                yield Event(name, "\n".join(data), current)
            name, data = "message", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "data":
            data.append(value)
        elif field == "id":
            current = value
