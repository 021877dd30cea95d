"""Reads what a JUnit document of an attempt or a job is made of, page after page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from service.clock import elapsed_s
from service.database import Database
from service.jobs import views as jobs
from service.jobs.schemas import CellOutput
from service.results import junit, views
from service.results.schemas import AttemptOutput, CaseOutput
from service.results.usage import cards_of
from service.states import AttemptState
from worker.messages import Outcome, Verdict

A_PAGE = 500
A_PIECE = 64 << 10
"""Characters that are sent at once, at least, but for the end."""
SAID_BY_CASES = {Verdict.CRASHED: Outcome.CRASHED, Verdict.TIMED_OUT: Outcome.TIMED_OUT}
"""Verdicts that a case of that outcome says already."""
SHOWN = ("host", "driver", "cuda", "python", "torch", "lightning", "tree", "probe_digest", "origin")


def of_attempt(database: Database, attempt_id: int) -> Iterator[str]:
    """An attempt's document.

    Raises:
        NotFound: there is no such attempt; said before the first piece.
    """
    with database.read() as session:
        attempt = views.get_attempt(session, attempt_id)
        cell = jobs.get_cell(session, attempt.cell)
    return _pieces(database, cell.name, [(cell, attempt)])


def of_job(database: Database, job_id: int) -> Iterator[str]:
    """A job's document: a suite for each cell, of the attempt that its table shows.

    Raises:
        NotFound: there is no such job; said before the first piece.
    """
    with database.read() as session:
        cells = jobs.list_cells(session, job_id)
        shown = [(cell, views.get_attempt(session, cell.attempt) if cell.attempt else None) for cell in cells]
    return _pieces(database, f"job {job_id}", shown)


def _pieces(database: Database, name: str, parts: list[tuple[CellOutput, AttemptOutput | None]]) -> Iterator[str]:
    return joined(junit.document(name, (_suite(database, cell, attempt) for cell, attempt in parts)))


def joined(pieces: Iterable[str]) -> Iterator[str]:
    """The same text in pieces of some size: each is sent by itself, at the cost of a thread's turn."""
    held: list[str] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= A_PIECE:
            yield "".join(held)
            held, size = [], 0
    if held:
        yield "".join(held)


def _suite(database: Database, cell: CellOutput, attempt: AttemptOutput | None) -> junit.Suite:
    if attempt is None:
        return junit.Suite(
            cell.name, {}, 0.0, cell.queued_at.isoformat(), {"cell": str(cell.id)}, (), _fault(None, cell)
        )
    begun, record = attempt.started_at or attempt.claimed_at, attempt.environment or {}
    properties = {
        "cell": str(cell.id),
        "attempt": str(attempt.id),
        "state": str(attempt.state),
        "verdict": str(attempt.verdict or ""),
        "gpu": cell.gpu or "",
        **{key: str(record[key]) for key in SHOWN if record.get(key)},
        **{f"usage of {card.name}": str(card) for card in cards_of(attempt.usage)},
    }
    return junit.Suite(
        name=cell.name,
        counts=attempt.counts,
        duration_s=elapsed_s(begun, attempt.ended_at) if attempt.ended_at else 0.0,
        started=begun.isoformat(),
        properties=properties,
        cases=_cases(database, attempt.id),
        fault=_fault(attempt, cell),
    )


def _fault(attempt: AttemptOutput | None, cell: CellOutput) -> str:
    """What is wrong beside the cases; empty where they say it all."""
    if attempt is None:
        return f"no attempt: {cell.verdict or cell.state}"
    if attempt.state is not AttemptState.ENDED:
        return f"not ended yet: {attempt.state}"
    if attempt.verdict in (Verdict.PASSED, Verdict.FAILED):
        return ""
    if attempt.verdict in SAID_BY_CASES and attempt.counts.get(SAID_BY_CASES[attempt.verdict]):
        return ""
    return f"{attempt.verdict}: {attempt.detail}" if attempt.detail else str(attempt.verdict)


def _cases(database: Database, attempt_id: int) -> Iterator[CaseOutput]:
    # Whoever reads slowly must hold no connection meanwhile: there are some dozens for everybody.
    after, more = 0, True
    while more:
        with database.read() as session:
            page = views.list_cases(session, attempt_id, after=after, limit=A_PAGE)
        yield from page.items
        more = page.next is not None
        after = page.items[-1].id if page.items else 0
