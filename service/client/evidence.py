"""A job's evidence as one document: the table, and behind each row its attempt with every case."""

from __future__ import annotations

from typing import Any

from service.client.client import Client
from service.results import evidence
from service.results.schemas import TableOutput
from service.schemas import Output
from service.states import Origin
from worker.messages import FailureClass, Outcome, Verdict

SCHEMA = 1


class ExportedCase(Output):
    """The observation of a case that counts."""

    node_id: str
    occurrence: int
    outcome: Outcome
    failure_class: FailureClass | None
    duration_s: float
    message: str
    evidence: dict[str, Any] | None


class ExportedAttempt(Output):
    """The attempt behind a row. ``digest`` is over ``tree``, ``runtime``, ``suite`` and the cases.

    Where ``origin`` is ``imported``, it is over that word too: no run of ours has the digest, and who changes the word
    changes the digest.
    """

    id: int
    cell: str
    tree: str
    runtime: str
    suite: str
    verdict: Verdict | None
    digest: str | None
    comparison_key: str | None
    environment: dict[str, Any] | None
    origin: Origin = Origin.RUN
    usage: dict[str, Any] | None = None
    cases: list[ExportedCase]


class Export(Output):
    """A job's table with what it was made from. It can be checked without the service."""

    schema_version: int = SCHEMA
    table: TableOutput
    attempts: list[ExportedAttempt]

    def unproven(self) -> list[str]:
        """What does not follow from the cases: rows without an attempt, or with another digest or other counts."""
        known = {attempt.id: attempt for attempt in self.attempts}
        wrong = []
        for row in self.table.rows:
            attempt = known.get(row.attempt or 0)
            if attempt is None:
                wrong.append(f"{row.tree} / {row.runtime} / {row.suite}: no attempt")
                continue
            cases = [(case.node_id, case.occurrence, case.outcome, case.failure_class) for case in attempt.cases]
            if evidence.digest(attempt.tree, attempt.runtime, attempt.suite, cases, row.origin) != row.digest:
                wrong.append(f"{attempt.cell}: the digest is not that of the cases")
            if attempt.origin is not row.origin:
                wrong.append(f"{attempt.cell}: the row says {row.origin}, its attempt {attempt.origin}")
            counts = {outcome: sum(case.outcome == outcome for case in attempt.cases) for outcome in Outcome}
            if {outcome: count for outcome, count in counts.items() if count} != row.counts:
                wrong.append(f"{attempt.cell}: the counts are not those of the cases")
        return wrong


def export(client: Client, job: int) -> Export:
    """The evidence of a job as it stands."""
    table = client.table(job)
    cells = {cell.id: cell for cell in client.cells(job)}
    attempts = []
    for row in table.rows:
        if row.attempt is None:
            continue
        attempt, cell = client.attempt(row.attempt), cells[row.cell]
        attempts.append(
            ExportedAttempt(
                id=attempt.id,
                cell=cell.name,
                tree=attempt.tree,
                runtime=cell.runtime,
                suite=cell.suite,
                verdict=attempt.verdict,
                digest=row.digest,
                comparison_key=attempt.comparison_key,
                environment=attempt.environment,
                origin=row.origin,
                usage=attempt.usage,
                cases=[ExportedCase.model_validate(case) for case in client.cases(row.attempt)],
            )
        )
    return Export(table=table, attempts=attempts)
