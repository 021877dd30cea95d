"""Jobs: cancelled, run again, listed page by page. On both databases."""

from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.support.repository import GitRepository
from tests.support.running_service import RunningService
from worker.messages import Cause, Outcome


def states(service: RunningService, job: Any) -> list[tuple[str, str | None]]:
    """State and verdict of each of a job's cells."""
    return [(cell["state"], cell["verdict"]) for cell in service.get(f"/jobs/{job['id']}/cells")]


def test_a_cancelled_job_ends_what_waits_and_stops_what_runs(
    service: RunningService, registered: GitRepository
) -> None:
    """The worker is told in its next answer; an ended job can't be cancelled."""
    job = service.submit("demo", "main", suites=["unit", "other"])
    attempt = service.driver().must_claim()
    attempt.start(2)
    assert service.post(f"/jobs/{job['id']}/cancel")["state"] == "running"
    assert states(service, job) == [("running", None), ("ended", "cancelled")]
    assert attempt.send()["stop"]
    assert attempt.send(attempt.case("a"))["stop"]
    service.post(f"/jobs/{job['id']}/cancel")  # once more while it stops changes nothing
    attempt.end(2, exit_code=None, cause=Cause.CANCELLED)
    assert service.get(f"/jobs/{job['id']}")["state"] == "cancelled"
    assert service.post(f"/jobs/{job['id']}/cancel", expect=409)["code"] == "job-ended"
    assert service.post("/jobs/99/cancel", expect=404)["code"] == "not-found"
    assert service.driver("w2").claim() is None


def test_only_what_did_not_pass_runs_again(service: RunningService, registered: GitRepository) -> None:
    """Earlier attempts stay, the later one decides, and a case on which they disagree makes the row flaky."""
    job = service.submit("demo", "main", suites=["unit", "other"])
    driver = service.driver()
    first, second = driver.must_claim(), driver.must_claim()
    first.run({"a": Outcome.FAILED, "b": Outcome.PASSED})
    assert service.post(f"/jobs/{job['id']}/rerun")["state"] == "running"
    second.run({"a": Outcome.PASSED})
    assert service.get(f"/jobs/{job['id']}")["state"] == "running"
    again = driver.must_claim()
    assert driver.claim() is None
    assert (again.assignment.cell.id, again.assignment.number) == (first.assignment.cell.id, 2)
    again.run({"a": Outcome.PASSED, "b": Outcome.PASSED})
    assert service.get(f"/jobs/{job['id']}")["state"] == "passed"
    attempts = service.get(f"/cells/{first.assignment.cell.id}/attempts")
    assert [(found["verdict"], found["deciding"]) for found in attempts] == [("failed", False), ("passed", True)]
    rows = service.get(f"/jobs/{job['id']}/table")["rows"]
    assert [(row["flaky"], row["attempts"], row["result"]) for row in rows] == [
        (True, 2, "2 passed"),
        (False, 1, "1 passed"),
    ]
    markdown = service.http.get(f"/api/v1/jobs/{job['id']}/table?format=markdown").text
    assert "| 2 passed (flaky) |" in markdown
    assert service.post(f"/jobs/{job['id']}/rerun", expect=409)["code"] == "nothing-to-rerun"


def test_a_job_that_is_still_stopping_is_run_again_when_it_has_stopped(
    service: RunningService, registered: GitRepository
) -> None:
    """Until then it says when to ask again, whichever cells are meant; nothing of the cancelled run gets into it."""
    job = service.submit("demo", "main", suites=["unit", "other"])
    driver = service.driver()
    attempt = driver.must_claim()
    attempt.start(2)
    cells = [cell["id"] for cell in service.get(f"/jobs/{job['id']}/cells")]
    service.post(f"/jobs/{job['id']}/cancel")
    before = service.get(f"/jobs/{job['id']}")
    for body in ({}, {"cells": cells}, {"cells": cells[1:]}):
        answer = service.http.post(f"/api/v1/jobs/{job['id']}/rerun", json=body)
        said = answer.json()
        assert (answer.status_code, said["code"]) == (409, "job-stopping")
        assert answer.headers["Retry-After"] == str(said["retry_after_s"])
        assert f"in {said['retry_after_s']} s" in said["detail"]
    assert service.get(f"/jobs/{job['id']}") == before
    assert driver.claim() is None
    attempt.end(2, cause=Cause.CANCELLED)
    assert service.get(f"/jobs/{job['id']}")["state"] == "cancelled"
    service.post(f"/jobs/{job['id']}/rerun")
    for _ in range(2):
        driver.must_claim().run({"a": Outcome.PASSED})
    assert service.get(f"/jobs/{job['id']}")["state"] == "passed"


def test_chosen_cells_run_again_also_where_they_passed(service: RunningService, registered: GitRepository) -> None:
    """A cell of another job, one that waits, and none at all are refused."""
    job, other = service.submit("demo", "main"), service.submit("demo", "main")
    (cell,), (foreign,) = (service.get(f"/jobs/{each['id']}/cells") for each in (job, other))
    assert service.post(f"/jobs/{job['id']}/rerun", {"cells": [cell["id"]]}, 409)["code"] == "nothing-to-rerun"
    service.driver().must_claim().run({"a": Outcome.PASSED})
    assert service.post(f"/jobs/{job['id']}/rerun", {"cells": [foreign["id"]]}, 404)["code"] == "not-found"
    assert service.post(f"/jobs/{job['id']}/rerun", {"cells": []}, 409)["code"] == "nothing-to-rerun"
    assert service.post(f"/jobs/{job['id']}/rerun", {"cells": [10**30]}, 422)["code"] == "invalid-request"
    assert service.post(f"/jobs/{job['id']}/rerun", {"cells": [cell["id"]]})["state"] == "waiting"


def test_a_cancelled_second_run_leaves_the_first_ones_word(service: RunningService, registered: GitRepository) -> None:
    """One attempt decides a cell: where the second never began, it is still the first."""
    job = service.submit("demo", "main")
    service.driver().must_claim().run({"a": Outcome.FAILED})
    service.post(f"/jobs/{job['id']}/rerun")
    assert states(service, job) == [("queued", None)]
    service.post(f"/jobs/{job['id']}/cancel")
    assert states(service, job) == [("ended", "failed")]
    assert service.get(f"/jobs/{job['id']}")["state"] == "failed"


def pages(service: RunningService, path: str, limit: int) -> list[Any]:
    """Everything of a listing, page by page, while more is stored between the pages."""
    found, query = [], ""
    while True:
        page = service.get(f"{path}?limit={limit}{query}")
        assert 0 < len(page["items"]) <= limit
        found += page["items"]
        if page["next"] is None:
            return found
        query = f"&{page['next']}"


def test_pages_of_jobs_are_whole_and_without_doubles(service: RunningService, registered: GitRepository) -> None:
    """Newest first; jobs that arrive meanwhile come before all pages and shift none."""
    known = [service.submit("demo", "main")["id"] for _ in range(5)]
    first = service.get("/jobs?limit=2")
    new = [service.submit("demo", "main")["id"] for _ in range(3)]
    second = service.get(f"/jobs?limit=2&{first['next']}")
    third = service.get(f"/jobs?limit=2&{second['next']}")
    assert [job["id"] for page in (first, second, third) for job in page["items"]] == known[::-1]
    assert third["next"] is None
    assert [job["id"] for job in pages(service, "/jobs", 3)] == [*new[::-1], *known[::-1]]
    for query in ("limit=0", "limit=501", "before=0", f"before={10**30}", "before=x"):
        assert service.get(f"/jobs?{query}", 422)["code"] == "invalid-request"


def test_pages_of_cases_are_whole_and_without_doubles(service: RunningService, registered: GitRepository) -> None:
    """In the order of their storing, also while more are stored, and by outcome."""
    service.submit("demo", "main")
    attempt = service.driver().must_claim()
    attempt.start(30)
    path = f"/attempts/{attempt.assignment.attempt}/cases"
    attempt.send(*(attempt.case(f"c{n}") for n in range(10)))
    found, query = [], ""
    for batch in range(1, 3):
        page = service.get(f"{path}?limit=7{query}")
        found += page["items"]
        query = f"&{page['next']}"
        attempt.send(*(attempt.case(f"c{batch * 10 + n}", Outcome.SKIPPED) for n in range(10)))
    while query:
        page = service.get(f"{path}?limit=7{query}")
        found += page["items"]
        query = f"&{page['next']}" if page["next"] else ""
    assert [case["node_id"] for case in found] == [f"c{n}" for n in range(30)]
    assert len(pages(service, path, 30)) == 30
    assert len(service.get(f"{path}?outcome=skipped")["items"]) == 20
    assert service.get("/attempts/99/cases", 404)["code"] == "not-found"
    assert service.get(f"/attempts/{10**30}", 422)["code"] == "invalid-request"


def test_one_new_tree_submitted_by_many_at_once(service: RunningService, registered: GitRepository) -> None:
    """Every submission succeeds, and all are of one tree."""
    (registered.path / "new.txt").write_text("x\n")
    trees = [{"ref": "main", "probe": base64.b64encode(registered.diff()).decode()}]
    with ThreadPoolExecutor(6) as pool:
        jobs = list(pool.map(lambda _: service.post("/jobs", {"repository": "demo", "trees": trees}, 201), range(6)))
    assert len({job["id"] for job in jobs}) == 6
    assert len({tuple(job["trees"]) for job in jobs}) == 1


def test_a_table_in_three_forms(service: RunningService, registered: GitRepository) -> None:
    """JSON, Markdown and CSV say the same of a job of two suites, one of which waits still."""
    job = service.submit("demo", "main", suites=["unit", "other"])
    attempt = service.driver().must_claim()
    attempt.start(3)
    skipped = [attempt.case(name, Outcome.SKIPPED, message="not today") for name in ("b", "c")]
    attempt.send(attempt.case("a", Outcome.FAILED), *skipped)
    attempt.end(3, exit_code=1)
    # Either: a claim passes over a cell that the sweep writes to just then.
    ran = attempt.assignment.cell.suite.name
    rows = {row["suite"]: row for row in service.get(f"/jobs/{job['id']}/table")["rows"]}
    assert rows[ran]["skip_reasons"] == {"not today": 2}
    assert rows.pop(ran)["result"] == "1 failed, 2 skipped"
    assert [row["result"] for row in rows.values()] == ["queued"]
    markdown = service.http.get(f"/api/v1/jobs/{job['id']}/table?format=markdown")
    assert markdown.headers["content-type"].startswith("text/markdown")
    assert "| Suite | Result |" in markdown.text
    assert f"| {ran} | 1 failed, 2 skipped |" in markdown.text
    assert "| 2 x not today |" in markdown.text
    text = service.http.get(f"/api/v1/jobs/{job['id']}/table?format=csv")
    assert text.headers["content-type"].startswith("text/csv")
    assert len(text.text.splitlines()) == 3
    assert service.get(f"/jobs/{job['id']}/table?format=xml", 422)["code"] == "invalid-request"
    assert service.get("/jobs/99/table", 404)["code"] == "not-found"
