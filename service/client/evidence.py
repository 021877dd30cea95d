"""A job's evidence as one document: the table, and behind each row its attempt with every case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from service.client.client import Client
from service.results import evidence
from service.results.schemas import TableOutput, TableRow
from service.results.table import result, result_so_far, skip_reason
from service.results.verdict import may_have_passed
from service.schemas import Output
from service.states import CellState, Origin, deciding
from worker.messages import FailureClass, Outcome, RuntimeSpec, Verdict

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
        """What does not follow: rows without an attempt of their own, attempts without a row, and whatever a row says
        that its attempt and cases do not."""
        known = {attempt.id: attempt for attempt in self.attempts}
        shown = Counter(row.attempt for row in self.table.rows)
        wrong = [
            f"{attempt.cell}: no row of the table is of attempt {key}"
            for key, attempt in known.items()
            if not shown[key]
        ]
        wrong += [f"attempt {key}: {count} rows are of it" for key, count in shown.items() if key and count > 1]
        for row in self.table.rows:
            attempt = known.get(row.attempt or 0)
            if attempt is None:
                wrong.append(f"{row.tree} / {row.runtime} / {row.suite}: no attempt")
            else:
                wrong += [f"{attempt.cell}: {fault}" for fault in _faults(row, attempt)]
        return wrong


def _faults(row: TableRow, attempt: ExportedAttempt) -> Iterator[str]:
    cases = [(case.node_id, case.occurrence, case.outcome, case.failure_class) for case in attempt.cases]
    digest = evidence.digest(attempt.tree, attempt.runtime, attempt.suite, cases, row.origin)
    if not digest == row.digest == attempt.digest:
        yield "the digest is not that of the cases"
    if dict(Counter(case.outcome for case in attempt.cases)) != row.counts:
        yield "the counts are not those of the cases"
    if attempt.origin is not row.origin:
        yield f"the row says {row.origin}, its attempt {attempt.origin}"
    for field, follows in _told(attempt).items():
        if getattr(row, field) != follows:
            yield f"the row's {field} is {getattr(row, field)!r}, and {follows!r} is what follows"
    yield from _faults_beside_cases(row, attempt)


def _faults_beside_cases(row: TableRow, attempt: ExportedAttempt) -> Iterator[str]:
    # Where no attempt decides, the verdict is the cell's own and says why.
    decides = attempt.verdict is not None and deciding([(attempt.id, attempt.verdict)]) is not None
    if decides and row.verdict is not attempt.verdict:
        yield f"the row's verdict is {row.verdict}, its attempt's {attempt.verdict}"
    if row.verdict is Verdict.PASSED and not may_have_passed(row.counts):
        yield "the verdict is passed, and the cases did not all pass"
    if not _says(row):
        yield f"the row's result is {row.result!r}, and its counts and verdict say something else"
    key, record = attempt.comparison_key, attempt.environment
    if key is not None and record is not None and evidence.comparison_key(record) != key:
        yield "the comparison key is not that of the environment's record"


def _told(attempt: ExportedAttempt) -> dict[str, object]:
    """What a row says of its attempt beside counts and verdict, by the row's fields."""
    runtime = RuntimeSpec.parse(attempt.runtime)
    skipped = [case.message for case in attempt.cases if case.outcome is Outcome.SKIPPED]
    unpassed = [case for case in attempt.cases if case.outcome is not Outcome.PASSED]
    return {
        "tree": attempt.cell.partition("/")[0],
        "runtime": runtime.title,
        "lightning": runtime.lightning,
        "suite": attempt.suite,
        "gpu": evidence.gpu_of(attempt.environment),
        "failure_classes": dict(Counter(case.failure_class for case in unpassed if case.failure_class)),
        "skip_reasons": dict(Counter(map(skip_reason, skipped))),
    }


def _says(row: TableRow) -> bool:
    """Whether a row's result is that of its counts and verdict. Why a cell could not be run stands in no case."""
    if row.verdict is None:
        return row.result in {result_so_far(row.counts, state) for state in CellState}
    said = result(row.counts, row.verdict)
    return row.result == said or (not row.counts and row.result.startswith(f"{said}: "))


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
