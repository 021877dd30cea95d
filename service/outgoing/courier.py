"""Sends what waits in the outbox: threads of the service that claim, call and note. No job ever waits for them."""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import structlog
from sqlalchemy import ColumnElement
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from service.clock import now
from service.database import Database
from service.outgoing import call, outbox
from service.outgoing.address import AddressRefused, Private
from service.outgoing.retry import Again, Answer, Never, Step
from service.pulse import PATIENCE_S, Pulse
from service.settings import Settings

log = structlog.get_logger()

T = TypeVar("T")

TIDY_S = 3600.0
THREADS = 4
"""Receivers that may be slow at once before others wait for them."""


@dataclass(frozen=True)
class Parcel:
    """A claimed row, ready to be sent. ``revision`` is that of the row's wish."""

    row: int
    claim: str
    request: call.Request
    revision: int = 0


class Line(Protocol):
    """One kind of thing that is sent. All but ``judge`` happen in a transaction, and none calls anybody."""

    model: Any

    def ready(self, moment: datetime.datetime) -> ColumnElement[bool]:
        """What holds for rows whose receiver has not asked to be left alone."""

    def prepare(self, session: Session, row: Any) -> call.Request | Step:
        """The call that sends a row, or what becomes of it without one."""

    def judge(self, session: Session, row: Any, answer: Answer) -> Step:
        """What an answer means."""

    def settle(self, session: Session, row: Any, step: Step, status: int | None, parcel: Parcel | None) -> None:
        """Notes what became of a try; without a parcel, nothing was sent."""

    def tidy(self, session: Session) -> None:
        """Forgets what is old."""


class Courier:
    """The threads. Several services may have them on one database."""

    def __init__(self, database: Database, settings: Settings, lines: Sequence[Line]) -> None:
        self._database, self._settings, self._lines = database, settings, lines
        self._stop = threading.Event()
        private = Private.parse(settings.private_targets)
        self._bounds = call.Bounds(private, settings.delivery_timeout_s, self._stop.is_set)
        patience = settings.delivery_s + settings.delivery_timeout_s + PATIENCE_S
        self.pulses = tuple(Pulse(self._thread(number), patience) for number in range(THREADS))

    def start(self) -> None:
        """Begins to send."""
        for pulse in self.pulses:
            pulse.start()

    def stop(self) -> None:
        """Breaks off calls, gives their rows back, and waits for the threads."""
        for pulse in self.pulses:
            pulse.stop()
        self._stop.set()
        for pulse in self.pulses:
            pulse.thread.join()

    def _thread(self, number: int) -> threading.Thread:
        return threading.Thread(target=self._run, args=(number,), name=f"courier-{number}", daemon=True)

    def _run(self, number: int) -> None:
        tidy_at, pulse = 0.0, self.pulses[number]
        while not self._stop.wait(self._settings.delivery_s):
            for line in self._lines:
                try:
                    pulse.beat()
                    while not self._stop.is_set() and self.once(line):
                        pulse.beat()
                    if time.monotonic() >= tidy_at:
                        tidy_at = time.monotonic() + TIDY_S
                        self._tidy()
                except OperationalError as error:
                    log.warning("delivery-failed", error=str(error))
                except Exception:  # one wrong row must not end the sending of all others
                    log.exception("delivery-failed")

    def _tidy(self) -> None:
        for line in self._lines:
            with self._database.write() as session:
                line.tidy(session)

    def once(self, line: Line) -> bool:
        """Sends one row, if one is due."""
        moment = now()
        ready = line.ready(moment)
        with self._database.read() as session:
            if not outbox.any_due(session, line.model, moment, ready):
                return False
        parcel = self._claim(line, moment, ready)
        if parcel is None:
            return False
        if isinstance(parcel, Parcel):
            self._send(line, parcel)
        return True

    def _claim(self, line: Line, moment: datetime.datetime, ready: ColumnElement[bool]) -> Parcel | bool | None:
        with self._database.write() as session:
            row = outbox.claim(session, line.model, moment, ready)
            if row is None or row.claim is None:
                return None
            request = _sound(lambda: line.prepare(session, row))
            if not isinstance(request, call.Request):
                line.settle(session, row, request, None, None)
                return True
            return Parcel(row.id, row.claim, request, getattr(row, "revision", 0))

    def _send(self, line: Line, parcel: Parcel) -> None:
        answer: Answer | Step
        try:
            answer = call.post(parcel.request, self._bounds)
        except AddressRefused as error:
            answer = Never(str(error))
        except call.Unanswered as error:
            answer = Again(str(error))
        except call.Stopped:
            answer = Again("")
        with self._database.write() as session:
            row = outbox.held(session, line.model, parcel.row, parcel.claim)
            if row is None:  # removed, or the claim lapsed while this machine slept
                return
            if self._stop.is_set() and isinstance(answer, Again):
                outbox.release(row)
                return
            status = answer.status if isinstance(answer, Answer) else None
            step = _sound(lambda: line.judge(session, row, answer)) if isinstance(answer, Answer) else answer
            line.settle(session, row, step, status, parcel)
            log.info(
                "delivery", kind=line.model.__tablename__, row=row.id, state=row.state, status=status, detail=row.detail
            )


def _sound(act: Callable[[], T]) -> T | Never:
    """What an act gives, or where we have a fault in it, that the row is given up: it would be the first for ever."""
    try:
        return act()
    except Exception:  # whatever the fault is, the rows behind this one go on
        log.exception("delivery-fault")
        return Never("the service has a fault here; its log has the traceback")
