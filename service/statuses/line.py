"""How the courier sends statuses to forges."""

from __future__ import annotations

import datetime

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from service import credentials
from service.clock import now
from service.models import CommitStatus, ForgeLink
from service.outgoing import outbox
from service.outgoing.address import target
from service.outgoing.call import Request
from service.outgoing.courier import Parcel
from service.outgoing.retry import Again, Answer, Never, Step, Taken
from service.settings import Settings
from service.states import SendState
from service.statuses import forge
from service.statuses.forge import Told


class StatusLine:
    """Statuses: the latest wish of each row, and only where the forge does not show it already."""

    model = CommitStatus

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def ready(self, moment: datetime.datetime) -> ColumnElement[bool]:
        """What holds for statuses whose forge has not asked to be left alone."""
        paused = select(ForgeLink.repository_id).where(ForgeLink.paused_until > moment)
        return CommitStatus.repository_id.not_in(paused)

    def prepare(self, session: Session, row: CommitStatus) -> Request | Step:
        """The call that sets the status."""
        found = session.get(ForgeLink, row.repository_id)
        if found is None:
            return Never("the repository has no forge any more")
        if row.shown == _wish(row):
            return Taken("the forge shows it already")
        try:
            token = credentials.resolve(found.credential, target(found.api_url).host, self._settings)
        except credentials.CredentialUnusable as error:
            return Never(str(error))
        told = Told(row.commit, row.context, row.wanted, row.text, self._settings.page(f"/jobs/{row.job_id}"))
        # Until the answer is there, nobody knows what the forge shows.
        row.shown = None
        return Request(*forge.request_of(found.forge, found.api_url, found.project, token, told))

    def judge(self, session: Session, row: CommitStatus, answer: Answer) -> Step:
        """What the forge's answer means."""
        found = session.get(ForgeLink, row.repository_id)
        if found is None:
            return Never("the repository has no forge any more")
        return forge.read(found.forge, row.wanted, answer, now())

    def settle(
        self, session: Session, row: CommitStatus, step: Step, status: int | None, parcel: Parcel | None
    ) -> None:
        """Notes what became of it. A wish that came meanwhile is sent next."""
        moment = now()
        if isinstance(step, Again) and step.wait_s:
            self._pause(session, row, moment + self._longest(step.wait_s))
        step = outbox.note(row, step, status, moment, self._settings.delivery_give_up_s)
        if parcel is None:
            return
        newer = row.revision != parcel.revision
        if isinstance(step, Taken):
            row.posts, row.shown = row.posts + 1, None if newer else _wish(row)
        if newer and not isinstance(step, Again):
            row.state, row.tries, row.since, row.due_at = SendState.WAITING, 0, moment, moment

    def _longest(self, wait_s: float) -> datetime.timedelta:
        """A pause, never longer than anything is tried: who is asked again then may still ask for more."""
        return datetime.timedelta(seconds=min(wait_s, self._settings.delivery_give_up_s))

    def _pause(self, session: Session, row: CommitStatus, until: datetime.datetime) -> None:
        """Leaves the whole API alone: its limit is on the credential, which repositories share."""
        api = select(ForgeLink.api_url).where(ForgeLink.repository_id == row.repository_id).scalar_subquery()
        links = session.scalars(
            select(ForgeLink).where(ForgeLink.api_url == api).order_by(ForgeLink.repository_id).with_for_update()
        )
        for found in links:
            found.paused_until = max(found.paused_until or until, until)

    def tidy(self, session: Session) -> None:
        """Nothing: there is one row for each commit and context."""


def _wish(row: CommitStatus) -> str:
    return f"{row.job_id} {row.wanted} {row.text}"[:240]
