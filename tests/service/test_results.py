"""The way of a job through the API: submit, claim, stream, table."""

from __future__ import annotations

from tests.support.repository import GitRepository
from tests.support.running_service import RunningService
from worker.messages import Outcome


def test_a_job_ends_with_the_table_of_its_cases(service: RunningService, registered: GitRepository) -> None:
    """A failing case makes the job failed, and the row reads like the engineering log's."""
    job = service.submit("demo", "main")
    attempt = service.driver().must_claim()
    attempt.run({"tests/a.py::one": Outcome.PASSED, "tests/a.py::two": Outcome.FAILED})
    assert service.get(f"/jobs/{job['id']}")["state"] == "failed"
    row = service.get(f"/jobs/{job['id']}/table")["rows"][0]
    assert row["result"] == "1 failed, 1 passed"
