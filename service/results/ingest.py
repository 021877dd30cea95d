"""Stores a batch of an attempt's events, exactly once and only under its lease."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import func, insert, select, tuple_, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.access import secret
from service.access.scopes import Caller
from service.clock import now
from service.errors import BatchGap, BatchRefused, Fenced, NotFound
from service.jobs import changes
from service.models import Attempt, Case, Cell, Process, Tree, Worker
from service.results import evidence
from service.results.verdict import ProcessFacts, decide
from service.settings import Settings
from service.states import UNDECIDING, AttemptState, CellState, IllegalTransition, move_attempt, move_cell
from service.workers.enrolment import check_bound, check_contract
from service.workers.reaper import lose
from worker.messages import (
    AttemptEndedEvent,
    Batch,
    BatchAnswer,
    CaseEvent,
    CollectedEvent,
    EnvironmentEvent,
    Event,
    Outcome,
    PhaseEvent,
    ProcessEndedEvent,
    ProcessStartedEvent,
    UsageEvent,
)

INSERT_CASES = insert(Case)

LOOK_UP = 500
"""Earlier observations looked up in one statement; databases bound the number of parameters."""


def lock(session: Session, attempt_id: int, token: str, caller: Caller) -> tuple[Attempt, Cell]:
    """The attempt and its cell, locked, if the token is that of a lease which still holds.

    Raises:
        NotFound: there is no such attempt.
        WorkerMismatch: the caller's own token is bound to another worker.
        ContractMismatch: the worker registered with a service of another release, before this one was updated.
        Fenced: the attempt has ended, or the token is another's.
    """
    found = session.execute(
        select(Attempt.cell_id, Attempt.worker_id, Worker.name, Worker.contract)
        .join(Worker, Worker.id == Attempt.worker_id)
        .where(Attempt.id == attempt_id)
    ).one_or_none()
    if found is None:
        raise NotFound(f"there is no attempt {attempt_id}")
    check_bound(caller, found.name)
    check_contract(found.contract, f"worker {found.name!r}")
    session.execute(update(Worker).where(Worker.id == found.worker_id).values(seen_at=now()))
    cell = session.scalars(select(Cell).where(Cell.id == found.cell_id).with_for_update(of=Cell)).one()
    attempt = session.scalars(select(Attempt).where(Attempt.id == attempt_id)).one()
    if not secret.same(token, attempt.token):
        raise Fenced(f"the token is not that of attempt {attempt_id}; stop, and send nothing more")
    if attempt.state is AttemptState.ENDED:
        raise Fenced(f"attempt {attempt_id} has ended as {attempt.verdict}; stop, and send nothing more")
    return attempt, cell


def ingest(session: Session, attempt_id: int, batch: Batch, settings: Settings, caller: Caller) -> BatchAnswer:
    """Stores a batch and renews the lease; a batch that is stored already is only acknowledged.

    Raises:
        NotFound, WorkerMismatch, ContractMismatch, Fenced: as ``lock``; a batch behind the attempt's end that is
            stored already is acknowledged still.
        BatchGap: a number was left out; ``expected`` says which one is due.
        BatchRefused: the events contradict each other or what is stored.
    """
    done = _ended_before(session, attempt_id, batch)
    if done is not None:
        return done
    attempt, cell = lock(session, attempt_id, batch.token, caller)
    due = attempt.last_seq + 1
    if batch.events and batch.seq > due:
        raise BatchGap(f"batch {batch.seq} came where {due} is due; send that one first", expected=due)
    attempt.lease_expires_at = now() + datetime.timedelta(seconds=settings.lease_s)
    changed = batch.running != attempt.running_case or batch.log_tail is not None
    attempt.running_case = batch.running
    if batch.log_tail is not None:
        attempt.log_tail = batch.log_tail
    if batch.events and batch.seq == due:
        attempt.last_seq = due
        try:
            _apply(session, attempt, cell, batch.events, settings)
            session.flush()
        except IllegalTransition as error:
            raise BatchRefused(f"batch {due}: {error}; end the attempt and report the worker's fault") from error
        except IntegrityError as error:
            raise BatchRefused(
                f"batch {due} tells of a process or a case that the attempt has already, or twice: {error.orig}; end "
                "the attempt and report the worker's fault"
            ) from error
    elif changed:
        changes.touch(session, cell.job_id, [cell])
    return BatchAnswer(attempt.last_seq, settings.lease_s, attempt.stop_requested)


def _ended_before(session: Session, attempt_id: int, batch: Batch) -> BatchAnswer | None:
    """The answer to the last batch sent once more, whose first answer was lost on its way. A heartbeat is fenced."""
    if not batch.events:
        return None
    row = session.execute(
        select(Attempt.token, Attempt.state, Attempt.last_seq).where(Attempt.id == attempt_id)
    ).one_or_none()
    if row is None or row.state is not AttemptState.ENDED or batch.seq > row.last_seq:
        return None
    return BatchAnswer(row.last_seq, 0.0, True) if secret.same(batch.token, row.token) else None


def _apply(session: Session, attempt: Attempt, cell: Cell, events: Sequence[Event], settings: Settings) -> None:
    if any(isinstance(event, AttemptEndedEvent) for event in events[:-1]):
        raise IllegalTransition("something is told behind the attempt's end")
    cases = [event for event in events if isinstance(event, CaseEvent)]
    for process in sorted({case.process for case in cases}):
        _store_cases(session, attempt, [case for case in cases if case.process == process])
    settled = False
    for event in events:
        if isinstance(event, AttemptEndedEvent):
            _end(session, attempt, cell, event, settings)
            settled = True
        elif not isinstance(event, CaseEvent):
            HANDLERS[type(event)](session, attempt, cell, event)
    if not settled:
        changes.touch(session, cell.job_id, [cell])


def _phase(session: Session, attempt: Attempt, cell: Cell, event: PhaseEvent) -> None:  # noqa: ARG001 -- a handler
    attempt.state = move_attempt(attempt.state, AttemptState(event.phase))
    cell.state = move_cell(cell.state, CellState(event.phase))
    if attempt.state is AttemptState.RUNNING:
        attempt.started_at = now()


def _environment(session: Session, attempt: Attempt, cell: Cell, event: EnvironmentEvent) -> None:  # noqa: ARG001
    attempt.environment = dict(event.record)
    attempt.comparison_key = evidence.comparison_key(event.record)


def _process_started(session: Session, attempt: Attempt, cell: Cell, event: ProcessStartedEvent) -> None:  # noqa: ARG001
    session.add(Process(attempt_id=attempt.id, number=event.process, reason=event.reason, started_at=now()))


def _collected(session: Session, attempt: Attempt, cell: Cell, event: CollectedEvent) -> None:  # noqa: ARG001
    _process(session, attempt, event.process).collected = event.count
    if event.process == 1:
        attempt.collected = event.count


def _process_ended(session: Session, attempt: Attempt, cell: Cell, event: ProcessEndedEvent) -> None:  # noqa: ARG001
    process = _process(session, attempt, event.process)
    process.ended_at = now()
    process.exit_code, process.signal = event.exit_code, event.signal
    process.collected, process.reported = event.collected, event.reported
    process.finished, process.detail = event.finished, event.detail
    if event.process == 1:
        attempt.collected = event.collected


def _usage(session: Session, attempt: Attempt, cell: Cell, event: UsageEvent) -> None:  # noqa: ARG001
    attempt.usage = dict(event.record)


HANDLERS: dict[type, Callable[[Session, Attempt, Cell, Any], None]] = {
    PhaseEvent: _phase,
    EnvironmentEvent: _environment,
    ProcessStartedEvent: _process_started,
    CollectedEvent: _collected,
    ProcessEndedEvent: _process_ended,
    UsageEvent: _usage,
}


def _process(session: Session, attempt: Attempt, number: int) -> Process:
    session.flush()
    process = session.scalar(select(Process).where(Process.attempt_id == attempt.id, Process.number == number))
    if process is None:  # a worker that could not even start it still tells how it ended
        process = Process(attempt_id=attempt.id, number=number, started_at=now())
        session.add(process)
    return process


def _store_cases(session: Session, attempt: Attempt, events: Sequence[CaseEvent]) -> None:
    """Inserts the observations. One of a later process takes the place of an earlier one in the counts."""
    rows = [case_row(attempt.id, event) for event in events]
    counts = dict(attempt.counts)
    later = [(row["node_digest"], row["occurrence"]) for row in rows if row["process"] > 1]
    for start in range(0, len(later), LOOK_UP):
        keys = later[start : start + LOOK_UP]
        earlier = (
            Case.attempt_id == attempt.id,
            Case.last.is_(True),
            tuple_(Case.node_digest, Case.occurrence).in_(keys),
        )
        for outcome, number in session.execute(
            select(Case.outcome, func.count()).where(*earlier).group_by(Case.outcome)
        ):
            counts[outcome] = counts.get(outcome, 0) - number
        session.execute(
            update(Case).where(*earlier).values(last=False), execution_options={"synchronize_session": False}
        )
    for event in events:
        counts[event.outcome] = counts.get(event.outcome, 0) + 1
    attempt.counts = {outcome: counts[outcome] for outcome in Outcome if counts.get(outcome)}
    session.execute(INSERT_CASES, rows)


def case_row(attempt_id: int, event: CaseEvent) -> dict[str, Any]:
    """The row that an observation becomes."""
    return {
        "attempt_id": attempt_id,
        "process": event.process,
        "node_id": event.node_id,
        "node_digest": hashlib.sha256(event.node_id.encode()).hexdigest(),
        "occurrence": event.occurrence,
        "outcome": event.outcome,
        "last": True,
        "failure_class": event.failure_class,
        "duration_s": event.duration_s,
        "message": event.message,
        "traceback": event.traceback,
        "properties": dict(event.properties),
        "evidence": dict(event.evidence) if event.evidence is not None else None,
        "cleaned": event.cleaned,
    }


def _end(session: Session, attempt: Attempt, cell: Cell, event: AttemptEndedEvent, settings: Settings) -> None:
    session.flush()
    processes = session.scalars(select(Process).where(Process.attempt_id == attempt.id).order_by(Process.number))
    facts = [ProcessFacts(process.exit_code, process.signal, bool(process.finished)) for process in processes]
    verdict = decide(event.cause, facts, attempt.counts, attempt.collected)
    attempt.cause, attempt.detail = event.cause, event.detail
    attempt.digest = _digest(session, attempt, cell)
    if verdict in UNDECIDING:
        lose(session, cell, attempt, verdict, settings)
        return
    attempt.state = move_attempt(attempt.state, AttemptState.ENDED)
    attempt.verdict, attempt.ended_at, attempt.running_case = verdict, now(), None
    session.flush()
    changes.end_cell(session, cell, verdict)
    changes.settle(session, cell.job_id, [cell])


def _digest(session: Session, attempt: Attempt, cell: Cell) -> str:
    tree = session.scalar(select(Tree.digest).where(Tree.id == cell.tree_id)) or ""
    cases = session.execute(
        select(Case.node_id, Case.occurrence, Case.outcome, Case.failure_class).where(
            Case.attempt_id == attempt.id, Case.last.is_(True)
        )
    )
    return evidence.digest(tree, cell.runtime, cell.suite, cases)
