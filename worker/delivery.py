"""Brings an attempt's events to the service: in numbered batches, in order, each on disk before it is sent.

One thread posts. While the service is away, batches wait in the spool and are tried again with back-off; the run goes
on. A heartbeat is a batch without events that repeats the last number. When the answer says ``fenced`` the lease is
lost: the attempt is stopped and nothing more is sent.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

import structlog

from worker.batches import TOO_SMALL, Batches, events_of, made_smaller
from worker.cleaning import Cleaner
from worker.client import BatchGap, Client, ContractMismatch, Fenced, Refused, Retryable, ServiceError, TooLarge
from worker.messages import Assignment, AttemptEndedEvent, Batch, Cause, Event
from worker.spool import Leftover, read

log = structlog.get_logger()

_BACKOFF_S = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0)
_LOG_TAIL = 8 << 10
_REASON = 2 << 10
_LOG_LOOK_S = 1.0


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
        self._batches = Batches(path, assignment.attempt, assignment.token)
        self._heartbeat_s, self._flush_s = heartbeat_s, flush_s
        self._log_tail, self._sent_tail = log_tail, ""
        self._stop = stop
        self._running: str | None = None
        self._sent_running: str | None = None
        self._condition = threading.Condition()
        self._fresh: list[Event] = []
        self._end: AttemptEndedEvent | None = None
        self._broke = ""
        self._answered = True
        self._look_at_log = 0.0
        self._closing = False
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"delivery-{assignment.attempt}", daemon=True)
        self._thread.start()

    @property
    def fault(self) -> str:
        """Why events can no longer be kept on disk, or no longer be delivered, if so. The attempt is stopped then."""
        return self._broke or self._batches.fault

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
        self._running = None if node_id is None else Cleaner().text(node_id)

    def finish(self, give_up: threading.Event, grace_s: float) -> bool:
        """Wait until everything is acknowledged or the lease is lost. Whether nothing is left to deliver: once
        ``give_up`` is set it waits for the grace only, and then the spool stays for the worker's next start, as it does
        where the posting thread broke; then the service is told that alone."""
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
        if self._broke:
            self._say_why(give_up)
        if self.fenced or (self._delivered() and not self._broke):
            self._batches.delete()
            return True
        self._batches.close()
        return False

    def _say_why(self, give_up: threading.Event) -> None:
        """Tell the service why no more comes, in the place of the batch that is due: else the lease runs out and nobody
        learns the reason. While the service is away, try again for as long as the lease may hold."""
        attempt = self._assignment.attempt
        end = AttemptEndedEvent(Cause.INFRASTRUCTURE, self._broke)
        batch = Batch(self._assignment.token, self._batches.acknowledged + 1, (end,))
        for wait in itertools.chain(_BACKOFF_S, itertools.repeat(_BACKOFF_S[-1])):
            try:
                self._client.post(attempt, batch)
                return
            except Retryable as error:
                log.warning("the service does not know yet why delivery broke", attempt=attempt, error=str(error))
                if time.monotonic() + wait > self.lease_until or give_up.wait(wait):
                    return
            except Exception:  # as unforeseen as what broke before
                log.exception("the service does not know why delivery broke", attempt=attempt)
                return

    def _delivered(self) -> bool:
        return not self._fresh and not self._batches.pending

    def _work(self) -> None:
        try:
            self._deliver()
        except Exception as error:  # whatever was overlooked: without this thread the attempt would run on unheard
            log.exception("delivery broke", attempt=self._assignment.attempt)
            why = f"events can no longer be delivered: {type(error).__name__}: {error}"
            self._broke = Cleaner().text(why, _REASON)
            self._stop.set()

    def _deliver(self) -> None:
        next_word = time.monotonic() + self._heartbeat_s
        failures = 0
        while not (self.fenced or self._abandoned.is_set()):
            self._gather(next_word, hurry=failures > 0)
            if self._closing and self._delivered():
                return
            if not self._batches.pending and time.monotonic() < next_word and not self._has_news():
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
            if not self._fresh and not self._closing and not self._batches.pending:
                self._condition.wait(min(self._flush_s, max(0.0, until - time.monotonic())))
            if self._fresh and not self._closing and not hurry:
                self._condition.wait_for(lambda: self._closing, self._flush_s)
            fresh, self._fresh = self._fresh, []
        self._batches.add(fresh)
        if (end := self._end) is not None:
            self._end = None
            self._batches.will_end(end)
        if self.fault:
            self._stop.set()

    def _post(self) -> None:
        """Post the next group, or a heartbeat where all are acknowledged."""
        events = self._batches.due()
        number = self._batches.acknowledged + bool(events)
        tail, running = self._log_tail(_LOG_TAIL), self._running
        try:
            news = tail if tail != self._sent_tail else None
            batch = Batch(self._assignment.token, number, tuple(events), running, news)
            answer = self._client.post(self._assignment.attempt, batch)
        except (Fenced, Refused, ContractMismatch) as error:
            log.warning("service takes no more of this attempt", attempt=self._assignment.attempt, error=str(error))
            self.fenced = True
            self._stop.set()
            return
        except BatchGap as gap:
            self._batches.back_to(gap.expected)
            raise Retryable(str(gap)) from gap
        except TooLarge:
            self._shrink()
            return
        self._sent_tail, self._sent_running = tail, running
        self._look_at_log = time.monotonic() + _LOG_LOOK_S
        self._batches.acknowledge(max(answer.acknowledged, number))
        self.lease_until = time.monotonic() + answer.lease_s
        if answer.stop and not self.cancelled:
            self.cancelled = True
            self._stop.set()

    def _shrink(self) -> None:
        """The service found a batch too large: halve it, or shorten its only event."""
        if not self._batches.pending:
            self._sent_tail = self._log_tail(_LOG_TAIL)
            return
        if not self._batches.shrink():
            log.error("the service takes nothing of this attempt", attempt=self._assignment.attempt, why=TOO_SMALL)
            self.fenced = True
        if self.fenced or isinstance(self._batches.due()[-1], AttemptEndedEvent):
            self._stop.set()


def deliver_leftover(client: Client, path: Path) -> str:
    """Post what a killed worker left in a spool. Why the service does not have it, for a person; empty where it has it.

    Raises:
        Retryable: the service is away, or breaks over it.
        Fenced: the service wants no more of this attempt: it has ended, or is gone.
    """
    try:
        if (leftover := read(path)) is not None:
            _post_all(client, leftover, [events_of(group) for group in leftover.groups])
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
            if not made_smaller(groups, place):
                raise
        else:
            place += 1
