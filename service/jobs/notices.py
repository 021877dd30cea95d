"""What others are told of a job's change, written down in the transaction of the change itself."""

from __future__ import annotations

from sqlalchemy.orm import Session

from service.models import Job
from service.states import JobState
from service.statuses import service as statuses
from service.webhooks import service as webhooks


def note(session: Session, job: Job, before: JobState | None, *, begun: bool = False) -> None:
    """After a job or one of its cells changed state: asks for statuses and events. Calls nobody.

    ``before`` is the job's state before, ``begun`` whether its first cell was claimed just now.
    """
    statuses.note(session, job)
    _events(session, job, before, begun=begun)


def note_plan(session: Session, job: Job, before: JobState | None) -> None:
    """After a job without cells changed state, and when one that a hook started has got its cells."""
    statuses.note_plan(session, job)
    if not job.planned:
        _events(session, job, before, begun=False)


def _events(session: Session, job: Job, before: JobState | None, *, begun: bool) -> None:
    for event in webhooks.events(before, job.state, begun=begun):
        webhooks.note(session, job, event)
