"""Takes deliveries: proves them, claims them once, starts their jobs. Nothing here waits for git."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import delete, or_, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.clock import now
from service.errors import ApprovalNotNeeded, HookStartsNothing, NotFound, NothingToRerun
from service.hooks.events import Again, Happened, Heard, Malformed, Nothing
from service.hooks.forge import Forge, Provider, likeness, proven
from service.jobs import changes
from service.jobs import service as jobs
from service.models import Cell, Delivery, HookSecret, Job, Repository, Trigger
from service.settings import Settings
from service.states import CellState, DeliveryState, JobState
from worker.encoding import decode, encode

VALID_SECRETS = 2
"""A repository's newest secrets that count: the new one, and the old one until the forge knows the new."""

TIMES = "^"
"""Between an event and how often it has happened. No branch, tag or schedule has it in its name."""

NOBODY = "no repository signs with this, but the time for the comparison is spent all the same"


def prove(
    session: Session,
    settings: Settings,
    forge: Forge,
    payload: Mapping[str, Any] | None,
    headers: Mapping[str, str],
    signed: bytes,
) -> int | None:
    """The number of the repository that the delivery is proven to be about, 0 where its payload cannot be read.

    ``None`` for every other: which of both was wrong, repository or signature, is not told.
    """
    everybodys = [secret for secret in settings.hook_secrets.split(",") if secret]
    if payload is None:
        return 0 if proven(forge, headers, signed, everybodys) else None
    addresses = forge.addresses(payload)
    rows = session.execute(select(Repository.id, Repository.url).where(Repository.removed_at.is_(None))).all()
    alike = {number: max((likeness(url, address) for address in addresses), default=0) for number, url in rows}
    found = sorted((number for number in alike if alike[number]), key=lambda number: (-alike[number], number))
    for number in found:
        own = _secrets(session, number)
        if proven(forge, headers, signed, own or everybodys):
            return number
    if not found:
        proven(forge, headers, signed, [NOBODY, *everybodys])
    return None


def _secrets(session: Session, repository_id: int) -> Sequence[str]:
    newest = select(HookSecret.secret).where(HookSecret.repository_id == repository_id).order_by(HookSecret.id.desc())
    return session.scalars(newest.limit(VALID_SECRETS)).all()


def add_secret(session: Session, repository_id: int) -> HookSecret:
    """A new secret of a repository. The one before it counts until there is another; older ones are forgotten."""
    secret = HookSecret(repository_id=repository_id, secret=secrets.token_urlsafe(32), created_at=now())
    session.add(secret)
    session.flush()
    newest = (
        select(HookSecret.id)
        .where(HookSecret.repository_id == repository_id)
        .order_by(HookSecret.id.desc())
        .limit(VALID_SECRETS)
    )
    kept = session.scalars(newest).all()
    session.execute(
        delete(HookSecret).where(HookSecret.repository_id == repository_id, HookSecret.id.not_in(list(kept)))
    )
    return secret


def drop_secret(session: Session, repository_id: int, secret_id: int) -> None:
    """Forgets a secret of a repository; one that is not there is forgotten already."""
    session.execute(delete(HookSecret).where(HookSecret.repository_id == repository_id, HookSecret.id == secret_id))


def take(
    session: Session, forge: Forge, provider: Provider, delivery: str, event: str, repository_id: int,
    payload: Mapping[str, Any],
) -> Delivery:  # fmt: skip
    """The row of a proven delivery. One that is there already changes nothing."""
    row = Delivery(
        provider=provider,
        delivery=delivery,
        event=event,
        repository_id=repository_id,
        state=DeliveryState.IGNORED,
        received_at=now(),
    )
    try:
        with session.begin_nested():
            session.add(row)
    except IntegrityError:
        known = select(Delivery).where(Delivery.provider == provider, Delivery.delivery == delivery)
        return session.scalars(known).one()
    try:
        heard: Heard = forge.read(event, payload)
    except Malformed as error:
        row.state, row.detail = DeliveryState.REFUSED, str(error)
        return row
    if isinstance(heard, Nothing):
        row.detail = heard.reason
        return row
    row.heard = encode(heard)
    if isinstance(heard, Happened):
        row.job_id, new = start(session, repository_id, heard, provider)
        row.state = DeliveryState.STARTED if new else DeliveryState.DUPLICATE
    else:
        _again(session, row, heard)
    return row


def start(session: Session, repository_id: int, happened: Happened, source: str) -> tuple[int, bool]:
    """The job of an event, to be planned, and whether it is new: an event has one job, however often it is told.

    A branch that went to a commit, away and there again tells the very event of the first time. So one whose job was
    cancelled meanwhile, or is about to be, has happened again.
    """
    known = _told(session, repository_id, happened)
    if known and not _undone(session, known[0]):
        return known[0].job_id, False
    job = Job(
        repository_id=repository_id,
        state=JobState.PLANNING,
        planned=False,
        label=happened.label,
        requested_by=happened.who or source,
        reason=f"{source}: {happened.trigger}, commit {happened.commit}",
        request={},
        created_at=now(),
    )
    trigger = Trigger(
        repository_id=repository_id,
        commit=happened.commit,
        trigger=f"{happened.trigger}{TIMES}{len(known) + 1}" if known else happened.trigger,
        line=happened.line,
        happened=encode(happened),
        needs_approval=happened.from_fork,
    )
    if known:  # a person looked at this very commit
        trigger.approved_at, trigger.approved_by = known[0].approved_at, known[0].approved_by
    try:
        with session.begin_nested():
            session.add(job)
            session.flush()
            trigger.job_id = job.id
            session.add(trigger)
    except IntegrityError:  # another delivery was first at this moment
        return _told(session, repository_id, happened)[0].job_id, False
    return job.id, True


def _told(session: Session, repository_id: int, happened: Happened) -> Sequence[Trigger]:
    """The times that an event happened, the latest first."""
    return session.scalars(
        select(Trigger)
        .where(
            Trigger.repository_id == repository_id,
            Trigger.commit == happened.commit,
            or_(
                Trigger.trigger == happened.trigger,
                Trigger.trigger.startswith(f"{happened.trigger}{TIMES}", autoescape=True),
            ),
        )
        .order_by(Trigger.id.desc())
    ).all()


def _undone(session: Session, trigger: Trigger) -> bool:
    """Whether what an event started comes to no result: cancelled, or behind in its line and thereby cancelled soon.

    A job that ended for the tree's own reasons would do so again.
    """
    job = session.get_one(Job, trigger.job_id)
    if job.cancel_requested_at is not None:
        return job.state is JobState.CANCELLED or not job.state.ended
    if job.state.ended or trigger.line is None:
        return False
    newer = select(Trigger.id).where(
        Trigger.repository_id == trigger.repository_id, Trigger.line == trigger.line, Trigger.id > trigger.id
    )
    return session.scalar(newer.limit(1)) is not None


def _again(session: Session, row: Delivery, heard: Again) -> None:
    latest = select(Trigger.job_id).where(
        Trigger.repository_id == row.repository_id, Trigger.commit == heard.commit
    ).order_by(Trigger.id.desc()).limit(1)  # fmt: skip
    row.job_id = session.scalar(latest)
    if row.job_id is None:
        row.state, row.detail = DeliveryState.IGNORED, f"commit {heard.commit[:12]} has no job that a hook started"
        return
    try:
        run_again(session, row.job_id)
    except NothingToRerun as error:
        row.state, row.detail = DeliveryState.IGNORED, error.detail
    else:
        row.state, row.detail = DeliveryState.AGAIN, ""


def run_again(session: Session, job_id: int) -> None:
    """Runs again what did not pass, and where all passed, all.

    Raises:
        NothingToRerun: nothing of the job has ended, or it is still stopping.
    """
    try:
        jobs.rerun(session, job_id, None)
    except NothingToRerun:
        ended = session.scalars(select(Cell.id).where(Cell.job_id == job_id, Cell.state == CellState.ENDED)).all()
        jobs.rerun(session, job_id, ended)


def redeliver(session: Session, delivery_id: int) -> Delivery:
    """Does again what the delivery asked for.

    Raises:
        NotFound: there is no such delivery.
        HookStartsNothing: it asked for nothing.
        NothingToRerun: its job still waits or runs.
    """
    row = session.get(Delivery, delivery_id)
    if row is None:
        raise NotFound(f"there is no delivery {delivery_id}")
    if row.heard is None:
        raise HookStartsNothing(f"delivery {delivery_id} starts nothing: {row.detail}")
    if row.job_id is not None:
        run_again(session, row.job_id)
        row.state, row.detail = DeliveryState.AGAIN, ""
    else:
        _again(session, row, decode(Again, row.heard))
    return row


def approve(session: Session, job_id: int, by: str | None) -> None:
    """Lets a job from a fork run. It holds for this commit alone: the next one waits again.

    Raises:
        NotFound: there is no such job.
        ApprovalNotNeeded: it does not wait for an approval.
    """
    job = session.get(Job, job_id, with_for_update=True)
    if job is None:
        raise NotFound(f"there is no job {job_id}")
    trigger = session.scalar(select(Trigger).where(Trigger.job_id == job_id))
    if trigger is None or not trigger.needs_approval or trigger.approved_at is not None or job.state.ended:
        raise ApprovalNotNeeded(f"job {job_id} is {job.state} and does not wait for an approval")
    trigger.approved_at, trigger.approved_by = now(), by
    job.state, job.detail = JobState.PLANNING, None
    changes.touch(session, job_id, [])
