"""How a worker on another machine comes by a token of its own, and how it loses it.

An admin makes an enrolment token: it is bound to a worker's name, short-lived, and good for one exchange. The worker
exchanges it for a worker token that is bound to the same name.
"""

from __future__ import annotations

import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.access import service as access
from service.access.schemas import NewToken
from service.access.scopes import Caller, Scope
from service.audit import service as audit
from service.clock import now
from service.errors import ContractMismatch, TokenRefused, WorkerMismatch
from service.models import AccessToken, Worker
from service.workers import reaper
from service.workers.schemas import EnrolmentInput
from worker.messages import CONTRACT, Enrolled, Enrolment

REVOKED = "the token that the worker came with was revoked"
GONE = "revoked"
"""The boot nonce of a worker whose token was revoked: no start of it has this one."""


def create(session: Session, body: EnrolmentInput, made_by: str) -> NewToken:
    """A token that a worker of this name exchanges for its own, once."""
    until = now() + datetime.timedelta(minutes=body.minutes)
    return access.make(session, f"enrolment of {body.worker}", [Scope.ENROLL], made_by, until, body.worker)


def exchange(session: Session, caller: Caller, body: Enrolment) -> tuple[Enrolled, list[int]]:
    """Makes the worker's own token, and ends the enrolment token and whatever tokens the worker had before; also gives
    the attempts of those, for ``reaper.lose_all``.

    Raises:
        ContractMismatch: the worker is of another release; the enrolment token stays good.
        TokenRefused: it was used meanwhile.
    """
    check_contract(body.contract, f"the worker on {body.host!r}")
    row = session.get_one(AccessToken, caller.token_id, with_for_update=True)
    if row.revoked_at is not None or row.worker is None:
        raise TokenRefused(f"The enrolment token {row.prefix}… was used already; have an admin make another.")
    row.used_at = now()
    earlier = select(AccessToken).where(AccessToken.worker == row.worker, AccessToken.revoked_at.is_(None))
    held: list[int] = []
    for token in session.scalars(earlier.order_by(AccessToken.id).with_for_update()).all():
        access.revoke(session, token.id)
        if token is not row:
            audit.note(session, caller, "token.revoke", f"token {token.id}", name=token.name, prefix=token.prefix)
        held += fence(session, token.id)
    made = access.make(session, f"worker {row.worker}", [Scope.WORKER], row.created_by, None, row.worker)
    told = {"worker": row.worker, "host": body.host, "prefix": made.prefix, "token": made.id}
    audit.note(session, caller, "worker.enroll", f"token {row.id}", **told)
    return Enrolled(row.worker, made.token), held


def fence(session: Session, token_id: int) -> list[int]:
    """Has the workers that registered with a token register anew, and gives what they run, for ``reaper.lose_all``."""
    attempts: list[int] = []
    held = select(Worker).where(Worker.token_id == token_id).order_by(Worker.id).with_for_update()
    for worker in session.scalars(held).all():
        worker.boot, worker.token_id = GONE, None
        session.flush()
        attempts += reaper.running(session, worker.id)
    return attempts


def check_bound(caller: Caller, name: str) -> None:
    """Lets a caller speak for the worker of this name.

    Raises:
        WorkerMismatch: its token is bound to another one.
    """
    if caller.worker is not None and caller.worker != name:
        raise WorkerMismatch(
            f"The token {caller.prefix}… is that of worker {caller.worker!r} and cannot speak for {name!r}; set "
            "REPLAYBENCH_WORKER_NAME to the enrolled name, or enroll this worker."
        )


def check_contract(contract: int, who: str) -> None:
    """Lets a worker speak whose contract is this service's.

    Raises:
        ContractMismatch: it is of another release.
    """
    if contract != CONTRACT:
        raise ContractMismatch(
            f"{who} speaks contract {contract}, this service {CONTRACT}; install the same release on both"
        )
