"""Plans the jobs that started by themselves. The database is the queue, so a restart loses nothing."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import structlog
from sqlalchemy import select
from sqlalchemy.exc import OperationalError as DatabaseError
from sqlalchemy.orm import Session

from service.clock import now
from service.database import Database
from service.errors import (
    NO_ROOM,
    CommitUnreachable,
    ConfigurationMissing,
    JobEnded,
    MirrorFailed,
    RefRefused,
    ServiceError,
)
from service.hooks.events import Happened, cut
from service.hooks.later import Later
from service.jobs import changes, notices, planning
from service.jobs import service as jobs
from service.jobs.schemas import JobInput, TreeInput
from service.matrix.trigger import TriggerEvent
from service.models import Job, Repository, Trigger
from service.pulse import PATIENCE_S, Pulse
from service.repositories.mirror import Mirror
from service.repositories.mirrors import mirror_of
from service.settings import Settings
from service.states import ENDED_JOB_STATES, JobState
from worker.encoding import decode

log = structlog.get_logger()

AT_ONCE = 100
STOP_S = 10.0
GIT_CALLS = 6
"""Calls of git in one turn that may each take as long as a setting lets them, before somebody looks."""
LONGEST_DETAIL = 4000
NOT_YET = "not planned yet, and tried again: {}"
APPROVAL = "it comes from a fork and waits for an approval by a person who may submit: `replaybench approve {}`"


@dataclass(frozen=True)
class Waiting:
    """A job that waits for its plan, with what is needed to make it."""

    job: int
    repository_id: int
    repository: str
    url: str
    trigger_id: int
    line: str | None
    happened: Happened
    requested_by: str | None
    label: str | None
    reason: str | None
    again: bool
    """Whether the event had happened before, and its job was cancelled."""


@dataclass(frozen=True)
class Rival:
    """A job of the same line as another: one of the two replaces the other."""

    job: int
    happened: Happened


class Planner:
    """A thread that plans until it is stopped. Every step is idempotent: two services may plan at once."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database, self._settings = database, settings
        self._later = Later(settings.plan_give_up_s)
        self._wake, self._stopped = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="planner", daemon=True)
        patience = settings.sweep_s + GIT_CALLS * settings.git_timeout_s + PATIENCE_S
        self._pulse = Pulse(self._thread, patience)
        self.pulses = (self._pulse,)

    def start(self) -> None:
        """Begins to plan."""
        self._pulse.start()

    def wake(self) -> None:
        """Has it look at once."""
        self._wake.set()

    def stop(self) -> None:
        """Ends the thread. One that git holds longer is left alone: its job is planned at the next start."""
        self._pulse.stop()
        self._stopped = True
        self._wake.set()
        self._thread.join(STOP_S)

    def _run(self) -> None:
        while not self._stopped:
            self._pulse.beat()
            try:
                self.once()
            except DatabaseError as error:
                log.warning("planner-failed", error=str(error))
            except Exception:  # one wrong row must not end the planning of all others
                log.exception("planner-failed")
            self._wake.wait(self._settings.sweep_s)
            self._wake.clear()

    def once(self) -> None:
        """Plans what waits, in the order of its arrival.

        Where a repository does not answer, it is not asked again in the same turn for its other jobs, since
        each call may take as long as git is let.
        """
        moment = now()
        with self._database.read() as session:
            waiting = find(session, self._later.not_due(moment))
        self._later.keep({one.job for one in waiting}, moment)
        away: dict[int, str] = {}
        for one in sorted(waiting, key=lambda one: self._later.failed_itself(one.job)):
            if self._stopped:
                return
            self._pulse.beat()
            known = away.get(one.repository_id)
            try:
                reason = known or self._settle(one)
                if reason is not None:
                    away[one.repository_id] = reason
                    self._defer(one.job, reason, itself=known is None)
            except DatabaseError as error:  # it is tried again; meanwhile those behind it have their turn
                log.warning("planner-failed", job=one.job, error=str(error))

    def _settle(self, waiting: Waiting) -> str | None:
        """Plans a job, or ends it with the reason why there is no plan. A text where that may pass."""
        try:
            self._plan(waiting)
        except ConfigurationMissing as error:
            self._end(waiting.job, JobState.CANCELLED, error.detail)
        except MirrorFailed as error:
            return error.detail
        except ServiceError as error:
            self._end(waiting.job, JobState.BROKEN, error.detail)
        except DatabaseError:
            raise
        except Exception as error:  # a fault of ours: without an end, the job would be tried for ever
            if isinstance(error, OSError) and error.errno in NO_ROOM:
                return f"the service's disk is full: {error}"
            log.exception("planning-failed", job=waiting.job)
            self._end(waiting.job, JobState.BROKEN, "the service has a fault here; its log has the traceback")
        return None

    def _defer(self, job_id: int, reason: str, *, itself: bool) -> None:
        given_up = self._later.failed(job_id, reason, now(), itself=itself)
        if given_up is not None:
            self._end(job_id, JobState.BROKEN, given_up.reason)
            return
        log.warning("planning-deferred", job=job_id, reason=reason)
        detail = cut(NOT_YET.format(reason), LONGEST_DETAIL)
        with self._database.write() as session:
            job = locked(session, job_id)
            if job is not None and job.detail != detail:
                job.detail = detail
                changes.touch(session, job_id, [])

    def _plan(self, waiting: Waiting) -> None:
        mirror = mirror_of(self._database, self._settings, waiting.repository_id, waiting.url)
        body = choose(waiting, mirror)
        if isinstance(body, str):
            self._end(waiting.job, JobState.CANCELLED, body)
            return
        plan = planning.plan(body, mirror, self._settings)
        rivals = self._rivals(waiting)
        newer = next((rival.job for rival in rivals if overtook(rival.happened, waiting.happened, mirror)), None)
        if newer is not None:
            self._end(waiting.job, JobState.CANCELLED, superseded_by(newer), replaced=True)
            return
        if waiting.again and (left := left_behind(waiting.happened, mirror)):
            self._end(waiting.job, JobState.CANCELLED, left, replaced=True)
            return
        self._supersede(waiting, rivals)
        with self._database.write() as session:
            store(session, waiting, body, plan)

    def _end(self, job_id: int, state: JobState, detail: str, *, replaced: bool = False) -> None:
        """Ends a job without cells. One that was ``replaced`` counts as cancelled by request: it may happen again."""
        with self._database.write() as session:
            job = locked(session, job_id)
            if job is not None:
                job.state, job.detail, job.ended_at = state, cut(detail, LONGEST_DETAIL), now()
                job.cancel_requested_at = job.ended_at if replaced else None
                changes.touch(session, job_id, [])
                notices.note_plan(session, job, JobState.PLANNING)

    def _rivals(self, waiting: Waiting) -> list[Rival]:
        """The jobs of the same line that were heard of earlier and have not ended."""
        if waiting.line is None:
            return []
        with self._database.read() as session:
            rows = session.execute(
                select(Job.id, Trigger.happened)
                .join(Trigger, Trigger.job_id == Job.id)
                .where(
                    Trigger.repository_id == waiting.repository_id,
                    Trigger.line == waiting.line,
                    Trigger.id < waiting.trigger_id,
                    Job.state.not_in(ENDED_JOB_STATES),
                )
                .order_by(Job.id)
            ).all()
        return [Rival(job_id, decode(Happened, happened)) for job_id, happened in rows]

    def _supersede(self, waiting: Waiting, rivals: Iterable[Rival]) -> None:
        """Cancels what the new job replaces, each in a transaction of its own: locks are of one job at a time."""
        for rival in rivals:
            with contextlib.suppress(JobEnded), self._database.write() as session:
                jobs.cancel(session, rival.job, superseded_by(waiting.job))


def superseded_by(job: int) -> str:
    """Why a job ended that another one replaces."""
    return f"superseded by job {job}"


def overtook(earlier: Happened, later: Happened, mirror: Mirror) -> bool:
    """Whether what was heard of earlier happened behind what was heard of later: forges promise no order.

    A commit is newer than another whose place it took, or the place of one that has it in its history.
    """
    if later.before is not None and (later.before == earlier.commit or mirror.contains(later.before, earlier.commit)):
        return False
    if earlier.before == later.commit:
        return True
    return later.before is not None and earlier.commit != later.commit and mirror.contains(earlier.commit, later.commit)


def left_behind(happened: Happened, mirror: Mirror) -> str | None:
    """Why a push that is told again is no new one: its branch is elsewhere, so it was told late by another hook.

    Raises:
        MirrorFailed: the repository did not answer.
    """
    if happened.event is not TriggerEvent.PUSH:
        return None
    try:
        head = mirror.resolve(f"refs/heads/{happened.ref}")
    except CommitUnreachable:
        return f"branch {happened.ref!r} is there no more"
    return (
        None if head == happened.commit else f"branch {happened.ref!r} is at {head[:12]} and no longer at this commit"
    )


def find(session: Session, later: Collection[int] = ()) -> list[Waiting]:
    """The jobs that wait for a plan, save those of ``later``, earliest first."""
    rows = session.execute(
        select(Job, Trigger, Repository)
        .join(Trigger, Trigger.job_id == Job.id)
        .join(Repository, Repository.id == Job.repository_id)
        .where(Job.state == JobState.PLANNING, Job.id.not_in(later))
        .order_by(Job.id)
        .limit(AT_ONCE)
    ).all()
    return [
        Waiting(
            job.id,
            repository.id,
            repository.name,
            repository.url,
            trigger.id,
            trigger.line,
            decode(Happened, trigger.happened),
            job.requested_by,
            job.label,
            job.reason,
            trigger.trigger != decode(Happened, trigger.happened).trigger,
        )
        for job, trigger, repository in rows
    ]


def choose(waiting: Waiting, mirror: Mirror) -> JobInput | str:
    """What the tree's own rules start on the event; a text where they start nothing.

    Raises:
        ServiceError: the commit or its configuration cannot be had.
    """
    happened = waiting.happened
    commit = mirror.resolve(happened.commit)
    triggers = planning.configuration(mirror, commit).triggers
    changed = _changed(mirror, commit, happened) if triggers.asks_for_paths(happened.event) else None
    rule = triggers.choose(happened.event, happened.ref, changed)
    if rule is None:
        return f"[trigger] of replaybench.toml at {commit[:12]} starts nothing on {happened.event} of {happened.ref!r}"
    return JobInput(
        repository=waiting.repository,
        trees=[TreeInput(ref=commit)],
        suites=list(rule.suites) or None,
        runtimes=list(rule.runtimes) or None,
        requested_by=waiting.requested_by,
        label=waiting.label,
        reason=waiting.reason,
    )


def _changed(mirror: Mirror, commit: str, happened: Happened) -> frozenset[str] | None:
    if happened.base is None:
        return None
    try:
        base = mirror.resolve(happened.base)
    except (CommitUnreachable, RefRefused):  # pushed away: then nobody can say what changed
        return None
    return mirror.changed(base, commit, since_fork=happened.since_fork)


def locked(session: Session, job_id: int) -> Job | None:
    """The job's row, locked, if it still waits for its plan."""
    job = session.get(Job, job_id, with_for_update=True)
    return job if job is not None and job.state is JobState.PLANNING else None


def store(session: Session, waiting: Waiting, body: JobInput, plan: planning.Plan) -> None:
    """Gives the job its cells, or has it wait for an approval."""
    job = locked(session, waiting.job)
    if job is None:
        return
    trigger = session.get_one(Trigger, waiting.trigger_id)
    if trigger.needs_approval and trigger.approved_at is None:
        job.state, job.detail = JobState.WAITING, APPROVAL.format(job.id)
    else:
        jobs.fill(session, job, body, plan)
    changes.touch(session, job.id, [])
    notices.note_plan(session, job, JobState.PLANNING)
