"""Starts jobs when a schedule of the default branch is due. What is started is a row, so a moment comes once."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Iterable
from dataclasses import dataclass

import structlog
from sqlalchemy import select
from sqlalchemy.exc import OperationalError as DatabaseError

from service.clock import now
from service.database import Database
from service.errors import ServiceError
from service.hooks import service
from service.hooks.events import Happened
from service.hooks.planner import GIT_CALLS, STOP_S, Planner
from service.jobs import planning
from service.matrix.cron import Cron
from service.matrix.trigger import Schedule, TriggerEvent
from service.models import Repository, Trigger
from service.pulse import PATIENCE_S, Pulse
from service.repositories.mirrors import mirror_of
from service.settings import Settings

log = structlog.get_logger()

LOOK_BACK = datetime.timedelta(minutes=10)
"""A service that was down starts what came due meanwhile, up to this long after."""


@dataclass(frozen=True)
class Head:
    """What a default branch declares, at the commit that it has."""

    commit: str
    schedules: tuple[Schedule, ...]


class Scheduler:
    """A thread that looks at default branches until it is stopped. Two services may look at once."""

    def __init__(self, database: Database, planner: Planner, settings: Settings) -> None:
        self._database, self._planner, self._settings = database, planner, settings
        self._heads: dict[int, Head] = {}
        self._looked: dict[int, datetime.datetime] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)
        patience = settings.schedule_s + GIT_CALLS * settings.git_timeout_s + PATIENCE_S
        self._pulse = Pulse(self._thread, patience)
        self.pulses = (self._pulse,)

    def start(self) -> None:
        """Begins to look."""
        self._pulse.start()

    def stop(self) -> None:
        """Ends the thread. One that git holds longer is left alone: nothing is half done meanwhile."""
        self._pulse.stop()
        self._stop.set()
        self._thread.join(STOP_S)

    def _run(self) -> None:
        while not self._stop.wait(self._settings.schedule_s):
            self._pulse.beat()
            try:
                self.once(now())
            except DatabaseError as error:
                log.warning("scheduler-failed", error=str(error))
            except Exception:  # whatever it is, the next look may do better
                log.exception("scheduler-failed")

    def once(self, moment: datetime.datetime) -> None:
        """Starts what is due at a moment and has not been started."""
        with self._database.read() as session:
            known = select(Repository.id, Repository.url, Repository.created_at)
            repositories = session.execute(known.where(Repository.removed_at.is_(None))).all()
        for number, url, since in repositories:
            if self._stop.is_set():
                return
            self._pulse.beat()
            try:
                self._look(number, url, since, moment)
            except DatabaseError:
                raise
            except Exception:  # one odd repository must not end the schedules of all others
                log.exception("schedules-failed", repository=number)

    def _look(self, number: int, url: str, since: datetime.datetime, moment: datetime.datetime) -> None:
        # Since the last look, however long that took: repositories that do not answer hold up all others.
        after = max(since, min(moment - LOOK_BACK, self._looked.get(number, moment)))
        self._looked[number] = moment
        head = self._head(number, url)
        if head is None:
            return
        for schedule in head.schedules:
            due = latest_due(schedule.cron, after, moment)
            if due is not None:
                self._start(number, head.commit, schedule.line, due)

    def _head(self, repository_id: int, url: str) -> Head | None:
        """The default branch as it is now. Its file is read only when the branch has moved."""
        mirror = mirror_of(self._database, self._settings, repository_id, url)
        known = self._heads.get(repository_id)
        try:
            commit = mirror.default_head()
            if known is None or known.commit != commit:
                mirror.resolve(commit)
                known = Head(commit, planning.configuration(mirror, commit).triggers.schedules)
        except ServiceError as error:
            log.info("schedules-unread", repository=repository_id, error=error.detail)
            return None
        self._heads[repository_id] = known
        return known

    def _start(self, repository_id: int, commit: str, line: str, due: datetime.datetime) -> None:
        trigger = f"schedule:{line}@{due:%Y-%m-%dT%H:%MZ}"
        told = select(Trigger.id).where(Trigger.repository_id == repository_id, Trigger.trigger == trigger).limit(1)
        with self._database.read() as session:
            if session.scalar(told) is not None:
                return
        happened = Happened(TriggerEvent.SCHEDULE, commit, line, trigger, f"schedule:{line}")
        with self._database.write() as session:
            session.get(Repository, repository_id, with_for_update=True)  # another service may see a newer commit
            if session.scalar(told) is None:
                service.start(session, repository_id, happened, "schedule")
        self._planner.wake()


def latest_due(cron: Cron, after: datetime.datetime, until: datetime.datetime) -> datetime.datetime | None:
    """The last moment of a line after one and up to another; of several that were missed one is enough."""
    found = None
    for due in _due(cron, after, until):
        found = due
    return found


def _due(cron: Cron, after: datetime.datetime, until: datetime.datetime) -> Iterable[datetime.datetime]:
    due = cron.next_after(after)
    while due is not None and due <= until:
        yield due
        due = cron.next_after(due)
