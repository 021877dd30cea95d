"""The rows of an imported report: made while nothing is held, and the same as those of our own runs."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Text, cast, insert, select

from service.imports import rows
from service.imports import service as imports
from service.imports.cases import Cases
from service.models import Case
from service.results import evidence
from service.results.ingest import case_row
from tests.support import running_service
from tests.support.repository import PYTHON, GitRepository
from tests.support.running_service import RunningService
from worker.messages import CaseEvent, FailureClass, Outcome

ABOUT = {"repository": "demo", "commit": "main", "runtime": PYTHON, "suite": "nightly"}
REPORT = b'<testsuite><testcase classname="a" name="b"/><testcase classname="a" name="c"/></testsuite>'
EVENTS = [
    CaseEvent(1, "t/test_a.py::one[é-\U0001f600]", 0, Outcome.PASSED, duration_s=0.25),
    CaseEvent(1, "t/test_a.py::two", 1, Outcome.FAILED, failure_class=FailureClass.ASSERTION, duration_s=1e-9,
              message="1 == 2", traceback="E  'a' \"b\" %s %(x)s :y", properties={"n": [1, None, "ü"]},
              evidence={"loss": [0.1, 2]}, cleaned=True),
]  # fmt: skip


@pytest.mark.parametrize(
    ("module", "name"),
    [(imports, "read"), (imports, "cases"), (imports, "summarize"), (evidence, "digest"), (rows, "case_row")],
)
def test_nobody_waits_while_a_report_is_made_into_rows(
    tmp_path: Path,
    sqlite_url: str,
    broker_url: str,
    repo: GitRepository,
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
    name: str,
) -> None:
    """Whatever of an import takes a time that grows with the report, others write meanwhile; storing alone is left."""
    plain: Callable[..., Any] = getattr(module, name)
    held: list[bool] = []

    def watched(*given: Any, **named: Any) -> Any:
        other = sqlite3.connect(sqlite_url.partition("///")[2], timeout=1, isolation_level=None)
        try:
            other.execute("BEGIN IMMEDIATE")
            other.execute("ROLLBACK")
            held.append(False)
        except sqlite3.OperationalError:
            held.append(True)
        finally:
            other.close()
        return plain(*given, **named)

    with running_service.running(tmp_path / "data", sqlite_url, broker_url, sweep_s=3600) as service:
        service.post("/repositories", {"name": "demo", "url": str(repo.path)}, 201)
        monkeypatch.setattr(module, name, watched)
        answer = service.http.post("/api/v1/imports", params=ABOUT, content=REPORT)
    assert answer.status_code == 201, answer.text
    assert held
    assert not any(held)


def test_they_are_the_rows_of_our_own_runs(service: RunningService, registered: GitRepository) -> None:
    """To the byte in the database, on both: whatever a case holds."""
    service.submit("demo", "main", suites=["unit", "other"])
    driver = service.driver()
    ours, imported = driver.must_claim().assignment.attempt, driver.must_claim().assignment.attempt
    found = Cases(last=EVENTS[:1], earlier=EVENTS[1:])
    with service.database.write() as session:
        session.execute(insert(Case), [{**case_row(ours, EVENTS[1]), "last": False}, case_row(ours, EVENTS[0])])
        rows.rows_of(service.database.engine.dialect, found).store(session, imported)
    table = Case.__table__
    columns = [column for column in table.columns if column.key not in {"id", "attempt_id"}]
    shown = select(*columns, *(cast(column, Text).label(f"{column.key} as text") for column in columns))
    with service.database.read() as session:
        own, other = (
            session.execute(shown.where(table.c.attempt_id == attempt).order_by(table.c.id)).all()
            for attempt in (ours, imported)
        )
    assert len(own) == 2
    assert own == other
