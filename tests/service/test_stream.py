"""The live stream of a job, and what views cost: as many queries for many cells as for few."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import event

from service.jobs import views as jobs
from service.results import views as results
from tests.support.fixtures import sqlite_url as database_url
from tests.support.repository import PYTHON, GitRepository
from tests.support.running_service import RunningService
from worker.messages import Outcome

__all__ = ["database_url"]


def events(lines: Iterator[str]) -> Iterator[tuple[str, int, Any]]:
    """The stream's events as (kind, id, data)."""
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            key, _, value = line.partition(": ")
            fields[key] = value
        elif "event" in fields:
            yield fields["event"], int(fields["id"]), json.loads(fields["data"])
            fields = {}


def test_a_stream_is_a_snapshot_then_changes_then_the_end(service: RunningService, registered: GitRepository) -> None:
    """Ids are the job's revisions and grow; a change brings only the cells that changed; the stream closes itself."""
    job = service.submit("demo", "main", suites=["unit", "other"])
    driver = service.driver()
    with service.http.stream("GET", f"/api/v1/jobs/{job['id']}/stream") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert (answer.headers["cache-control"], answer.headers["x-accel-buffering"]) == ("no-store", "no")
        stream = events(answer.iter_lines())
        kind, first, data = next(stream)
        assert (kind, len(data["cells"]), data["job"]["revision"]) == ("snapshot", 2, first)
        attempt = driver.must_claim()
        seen = []
        for kind, number, data in stream:
            seen.append((kind, number))
            # The sweep may tell, before the claim or with it, that no cell waits for want of a worker any more.
            if attempt.assignment.cell.id in [cell["id"] for cell in data["cells"] if cell["state"] == "claimed"]:
                break
        attempt.run({"a": Outcome.PASSED})
        service.post(f"/jobs/{job['id']}/cancel")
        rest = [(kind, number, data) for kind, number, data in stream]
    assert [kind for kind, *_ in rest[:-1]] == ["change"] * (len(rest) - 1)
    assert rest[-1][0] == "end"
    numbers = [first, *(number for _, number in seen), *(number for _, number, _ in rest[:-1])]
    assert numbers == sorted(set(numbers))
    assert rest[-2][2]["job"]["state"] == "cancelled"


def test_who_comes_back_gets_a_snapshot(service: RunningService, registered: GitRepository) -> None:
    """Whatever id the reader saw last; of an ended job the snapshot and the end."""
    job = service.submit("demo", "main")
    service.driver().must_claim().run({"a": Outcome.PASSED})
    path = f"/api/v1/jobs/{job['id']}/stream"
    with service.http.stream("GET", path, headers={"Last-Event-ID": "1"}) as answer:
        found = list(events(answer.iter_lines()))
    assert [kind for kind, *_ in found] == ["snapshot", "end"]
    assert found[0][2]["cells"][0]["verdict"] == "passed"
    assert service.get("/jobs/99/stream", 404)["code"] == "not-found"


@pytest.fixture
def queries(service: RunningService) -> Callable[[Callable[[], object]], int]:
    """Counts the statements that a view costs, and not those of the sweep that goes on beside it."""

    def count(view: Callable[[], object]) -> int:
        statements: list[str] = []
        ours = threading.get_ident()

        def note(*arguments: Any) -> None:
            if threading.get_ident() == ours and not arguments[2].startswith("BEGIN"):
                statements.append(arguments[2])

        event.listen(service.database.engine, "before_cursor_execute", note)
        view()
        event.remove(service.database.engine, "before_cursor_execute", note)
        return len(statements)

    return count


def test_a_view_costs_a_fixed_number_of_queries(
    service: RunningService, registered: GitRepository, queries: Callable[[Callable[[], object]], int]
) -> None:
    """Table, cells and listing of a job of twenty cells, all of them run twice, cost what those of one cell do."""
    registered.commit("many", replaybench_dot_toml="schema = 1\n" + "".join(f"[suites.s{n}]\n" for n in range(20)))
    driver = service.driver()
    small = service.submit("demo", "main", suites=["s0"], runtimes=[PYTHON])["id"]
    large = service.submit("demo", "main", runtimes=[PYTHON])["id"]
    for _ in range(2):
        while (attempt := driver.claim()) is not None:
            attempt.run({"a": Outcome.FAILED, "b": Outcome.SKIPPED})
        for job in (small, large):
            service.post(f"/jobs/{job}/rerun")
    with service.database.read() as session:
        for view in (results.job_table, jobs.list_cells, jobs.get_job, lambda s, job: jobs.snapshot(s, job, 0)):
            costs = [queries(lambda job=job, view=view: view(session, job)) for job in (small, large)]
            assert costs[0] == costs[1] > 0
        assert queries(lambda: jobs.list_jobs(session, limit=1)) == queries(lambda: jobs.list_jobs(session))
