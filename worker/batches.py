"""The batches of an attempt by their numbers: on disk from the first moment, in memory until the service has them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from worker.cleaning import clean_event
from worker.encoding import decode, encode
from worker.errors import InfrastructureFault
from worker.messages import AttemptEndedEvent, Batch, CaseEvent, Cause, Event
from worker.spool import Group, Spool, read, split

E = TypeVar("E", bound=Event)

BATCH_BYTES = 512 << 10
BATCH_EVENTS = 500
_ID = 1 << 10
_CUT = "too large for the service: left out"
TOO_SMALL = (
    "the service answers 413 to a single event: raise REPLAYBENCH_BODY_CAP_BYTES there, or the limit of the proxy "
    "before it"
)


class Batches:
    """What of an attempt is on its way. A batch's place counts from 0, its number from 1.

    ``acknowledged`` is how many of them the service has. Those are let go of: the spool still has them, should it ask
    for one again."""

    def __init__(self, path: Path, attempt: int, token: str) -> None:
        self.acknowledged = 0
        self._path = path
        self._spool = Spool(path, attempt, token)
        self._held: list[list[Event]] = []
        self._first = 0  # the place of the first that is held

    @property
    def fault(self) -> str:
        """Why events can no longer be kept on disk, if so."""
        return self._spool.fault

    @property
    def pending(self) -> bool:
        """Whether the service lacks any."""
        return self.acknowledged < self._count

    @property
    def _count(self) -> int:
        return self._first + len(self._held)

    def due(self) -> list[Event]:
        """The events of the first batch that the service lacks; none where it has all."""
        return self._held[self.acknowledged - self._first] if self.pending else []

    def add(self, events: Sequence[Event]) -> None:
        """Make batches of events, and put them on disk."""
        for group in _grouped([sendable(event) for event in events]):
            self._spool.append(encode(group))
            self._held.append(group)

    def will_end(self, event: AttemptEndedEvent) -> None:
        """Note on disk how the attempt ends, before that can be sent."""
        self._spool.end(encode(sendable(event)))

    def acknowledge(self, count: int) -> None:
        """The service has the first so many."""
        self.acknowledged = max(self.acknowledged, min(count, self._count))
        if not self.fault:  # What may not be on disk is still held here.
            del self._held[: self.acknowledged - self._first]
            self._first = self.acknowledged

    def back_to(self, number: int) -> None:
        """Go on with the batch of this number, which the service says it lacks, whatever it had said before.

        Raises:
            InfrastructureFault: that is one which had been let go of, and the spool cannot be read.
        """
        place = min(max(0, number - 1), self._count)
        if place < self._first:
            self._held[:0] = self._from_disk(place)
            self._first = place
        self.acknowledged = place

    def _from_disk(self, place: int) -> list[list[Event]]:
        """The batches from a place on to the first that is held."""
        try:
            leftover = read(self._path)
            groups = leftover.groups[place : self._first] if leftover else []
            if len(groups) == self._first - place:
                return [events_of(group) for group in groups]
            why = f"it ends before number {self._first}"
        except (OSError, ValueError) as error:
            why = f"{type(error).__name__}: {error}"
        raise InfrastructureFault(
            f"the service lacks batch {place + 1}, which it had acknowledged, and the spool {self._path} cannot be "
            f"read: {why}. Look at the service's database and at the worker's disk"
        )

    def shrink(self) -> bool:
        """The service found the batch that is due too large: see ``made_smaller``."""
        place = self.acknowledged - self._first
        if len(self._held[place]) > 1:
            self._spool.split(self.acknowledged)
        return made_smaller(self._held, place)

    def close(self) -> None:
        """Leave the spool to the worker's next start."""
        self._spool.close()

    def delete(self) -> None:
        """Remove the spool: nothing in it is wanted any more."""
        self._spool.delete()


def sendable(event: E) -> E:
    """The event with every value in it one that JSON, UTF-8 and a database can carry: a single other would keep all
    that follows from being sent."""
    data = encode(event)
    fit = clean_event(data)
    return event if fit == data else decode(type(event), fit)


def events_of(group: Group) -> list[Event]:
    """The events of a spool's group.

    Raises:
        ValueError: they are none.
    """
    return [sendable(event) for event in decode(Batch, {"token": "", "seq": 0, "events": group}).events]


def made_smaller(groups: list[list[Event]], place: int) -> bool:
    """Halve a batch that the service found too large, or shorten its only event; one that cannot be shortened ends the
    attempt, for what follows would wait behind it for ever. Whether there was anything left to do."""
    if len(groups[place]) > 1:
        split(groups, place)
        return True
    (event,) = groups[place]
    if (short := _shortened(event)) == event:
        return False
    groups[place] = [short]
    return True


def _shortened(event: Event) -> Event:
    if isinstance(event, CaseEvent) and (
        event.traceback != _CUT and (event.traceback or event.properties or event.evidence)
    ):
        return dataclasses.replace(event, traceback=_CUT, properties={}, evidence=None, message=_CUT)
    if isinstance(event, CaseEvent) and len(event.node_id) > _ID:
        name = f"{event.node_id[: _ID // 2]}… sha256 {hashlib.sha256(event.node_id.encode()).hexdigest()[:16]}"
        return dataclasses.replace(event, node_id=name, message=_CUT, cleaned=True)
    return AttemptEndedEvent(Cause.INFRASTRUCTURE, TOO_SMALL)


def _grouped(events: list[Event]) -> list[list[Event]]:
    """The events in groups that make batches of a moderate size."""
    groups: list[list[Event]] = []
    size = 0
    for event in events:
        length = len(json.dumps(encode(event)))
        if not groups or len(groups[-1]) >= BATCH_EVENTS or size + length > BATCH_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(event)
        size += length
    return groups
