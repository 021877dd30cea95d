"""Brings an attempt's events to the service: in numbered batches, in order, each on disk before it is sent.

One thread posts. While the service is away, batches wait in the spool and are tried again with back-off; the run goes
on. A heartbeat is a batch without events that repeats the last number. When the answer says ``fenced`` the lease is
lost: the attempt is stopped and nothing more is sent.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

import structlog

from worker.client import BatchGap, Client, ContractMismatch, Fenced, Refused, Retryable, ServiceError, TooLarge
from worker.encoding import decode, encode
from worker.messages import Assignment, AttemptEndedEvent, Batch, CaseEvent, Cause, Event
from worker.spool import Leftover, Spool, read, split

log = structlog.get_logger()

BATCH_BYTES = 512 << 10
BATCH_EVENTS = 500
_BACKOFF_S = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0)
_LOG_TAIL = 8 << 10
_LOG_LOOK_S = 1.0
_ID = 1 << 10
_CUT = "too large for the service: left out"
_TOO_SMALL = (
    "the service answers 413 to a single event: raise REPLAYBENCH_BODY_CAP_BYTES there, or the limit of the proxy "
    "before it"
)


class Delivery:
    """The way of one attempt's events to the service."""

    def __init__(
        self,
        client: Client,
        assignment: Assignment,
        path: Path,
        *,
        heartbeat_s: float,
        flush_s: float,
        log_tail: Callable[[int], str],
        stop: threading.Event,
    ) -> None:
        self.fenced = False
        self.cancelled = False
        self.lease_until = time.monotonic() + assignment.lease_s
        self._client = client
        self._assignment = assignment
        self._path = path
        self._spool = Spool(path, assignment.attempt, assignment.token)
        self._heartbeat_s, self._flush_s = heartbeat_s, flush_s
        self._log_tail, self._sent_tail = log_tail, ""
        self._stop = stop
        self._running: str | None = None
        self._sent_running: str | None = None
        self._condition = threading.Condition()
        self._fresh: list[Event] = []
        self._groups: list[list[Event]] = []
        self._end: AttemptEndedEvent | None = None
        self._acknowledged = 0
        self._answered = True
        self._look_at_log = 0.0
        self._closing = False
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"delivery-{assignment.attempt}", daemon=True)
        self._thread.start()

    @property
    def fault(self) -> str:
        """Why events can no longer be kept on disk, if so. The attempt is stopped then."""
        return self._spool.fault

    @property
    def reachable(self) -> bool:
        """Whether the service answered last time."""
        return self._answered

    def send(self, event: Event) -> None:
        """Hand an event over; it is on its way within the flush interval."""
        with self._condition:
            self._fresh.append(event)
            self._condition.notify()

    def will_end(self, event: AttemptEndedEvent) -> None:
        """Keep on disk how the attempt ends, before its logs are uploaded: with the service away that can take hours,
        and a worker that is killed meanwhile must not have run it for nothing."""
        with self._condition:
            self._end = event
            self._condition.notify()

    def running(self, node_id: str | None) -> None:
        """Say which case is under way."""
        self._running = node_id

    def finish(self, give_up: threading.Event, grace_s: float) -> bool:
        """Wait until everything is acknowledged or the lease is lost. Whether nothing is left to deliver: once
        ``give_up`` is set it waits for the grace only, and then the spool stays for the worker's next start, as it does
        where the posting thread broke."""
        with self._condition:
            self._closing = True
            self._condition.notify()
        deadline: float | None = None
        while self._thread.is_alive():
            self._thread.join(0.1)
            if give_up.is_set():
                deadline = deadline or time.monotonic() + grace_s
                if time.monotonic() > deadline:
                    self._abandoned.set()
                    self._thread.join(1.0)
                    break
        if self.fenced or self._delivered():
            self._spool.delete()
            return True
        self._spool.close()
        return False

    def _delivered(self) -> bool:
        return not self._fresh and self._acknowledged == len(self._groups)

    def _work(self) -> None:
        next_word = time.monotonic() + self._heartbeat_s
        failures = 0
        while not (self.fenced or self._abandoned.is_set()):
            self._gather(next_word, hurry=failures > 0)
            pending = self._acknowledged < len(self._groups)
            if self._closing and self._delivered():
                return
            if not pending and time.monotonic() < next_word and not self._has_news():
                continue
            try:
                self._post()
                self._answered, failures = True, 0
                next_word = time.monotonic() + self._heartbeat_s
            except Retryable as error:
                wait = error.after_s or _BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)]
                self._answered, failures = False, failures + 1
                log.warning("service away", attempt=self._assignment.attempt, error=str(error), wait_s=wait)
                self._abandoned.wait(min(wait, self._heartbeat_s))
                next_word = time.monotonic()

    def _has_news(self) -> bool:
        """Whether the case under way is another one, or (looked at once a second) the log has grown."""
        if self._running != self._sent_running:
            return True
        return time.monotonic() > self._look_at_log and self._log_tail(_LOG_TAIL) != self._sent_tail

    def _gather(self, until: float, *, hurry: bool) -> None:
        """Take in fresh events: wait for the first, then a moment for more, and put them on disk."""
        with self._condition:
            if not self._fresh and not self._closing and self._acknowledged == len(self._groups):
                self._condition.wait(min(self._flush_s, max(0.0, until - time.monotonic())))
            if self._fresh and not self._closing and not hurry:
                self._condition.wait_for(lambda: self._closing, self._flush_s)
            fresh, self._fresh = self._fresh, []
        for group in _grouped(fresh):
            self._spool.append(encode(group))
            self._groups.append(group)
        if (end := self._end) is not None:
            self._end = None
            self._spool.end(encode(end))
        if self.fault:
            self._stop.set()

    def _post(self) -> None:
        """Post the next group, or a heartbeat where all are acknowledged."""
        place = self._acknowledged
        events = self._groups[place] if place < len(self._groups) else []
        tail, running = self._log_tail(_LOG_TAIL), self._running
        try:
            news = tail if tail != self._sent_tail else None
            batch = Batch(self._assignment.token, place + bool(events), tuple(events), running, news)
            answer = self._client.post(self._assignment.attempt, batch)
        except (Fenced, Refused, ContractMismatch) as error:
            log.warning("service takes no more of this attempt", attempt=self._assignment.attempt, error=str(error))
            self.fenced = True
            self._stop.set()
            return
        except BatchGap as gap:
            self._acknowledged = min(max(0, gap.expected - 1), len(self._groups))
            raise Retryable(str(gap)) from gap
        except TooLarge:
            self._shrink(place)
            return
        self._sent_tail, self._sent_running = tail, running
        self._look_at_log = time.monotonic() + _LOG_LOOK_S
        self._acknowledged = min(max(answer.acknowledged, place + bool(events)), len(self._groups))
        self.lease_until = time.monotonic() + answer.lease_s
        if answer.stop and not self.cancelled:
            self.cancelled = True
            self._stop.set()

    def _shrink(self, place: int) -> None:
        """The service found a batch too large: halve it, or shorten its only event."""
        if place >= len(self._groups):
            self._sent_tail = self._log_tail(_LOG_TAIL)
            return
        if len(self._groups[place]) > 1:
            self._spool.split(place)
        if not _made_smaller(self._groups, place):
            log.error("the service takes nothing of this attempt", attempt=self._assignment.attempt, why=_TOO_SMALL)
            self.fenced = True
        if self.fenced or isinstance(self._groups[place][-1], AttemptEndedEvent):
            self._stop.set()


def _made_smaller(groups: list[list[Event]], place: int) -> bool:
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
    return AttemptEndedEvent(Cause.INFRASTRUCTURE, _TOO_SMALL)


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


def deliver_leftover(client: Client, path: Path) -> str:
    """Post what a killed worker left in a spool. Why the service does not have it, for a person; empty where it has it.

    Raises:
        Retryable: the service is away, or breaks over it.
        Fenced: the service wants no more of this attempt: it has ended, or is gone.
    """
    try:
        if (leftover := read(path)) is not None:
            groups = [list(decode(Batch, {"token": "", "seq": 0, "events": group}).events) for group in leftover.groups]
            _post_all(client, leftover, groups)
    except (Retryable, Fenced):
        raise
    except (ServiceError, ValueError, OSError) as error:
        if isinstance(error, Refused) and error.status == HTTPStatus.NOT_FOUND:
            raise Fenced(str(error)) from error
        return f"{type(error).__name__}: {error}"
    return ""


def _post_all(client: Client, leftover: Leftover, groups: list[list[Event]]) -> None:
    """Post a dead worker's batches; one that it had not come to halve is halved here."""
    place = 0
    while place < len(groups):
        try:
            client.post(leftover.attempt, Batch(leftover.token, place + 1, tuple(groups[place])))
        except TooLarge:
            if not _made_smaller(groups, place):
                raise
        else:
            place += 1
