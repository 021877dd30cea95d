"""Writers that want the same rows wait in one order, on a database that locks rows: none is refused for a deadlock."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select, text, update

from service.models import CommitStatus, Job
from service.states import SendState
from service.statuses.text import PLAN_CONTEXT
from tests.support.forge_server import TOKEN
from tests.support.repository import GitRepository
from tests.support.running_service import RunningService
from tests.support.waiting import wait_for
from worker.encoding import encode
from worker.messages import CONTRACT, Capabilities, Registration

pytestmark = pytest.mark.parametrize("database_url", ["postgres"], indirect=True)

FORGE = {"forge": "gitea", "api_url": "https://git.example.org/api/v1", "project": "team/demo", "credential": TOKEN}


def blocked(service: RunningService) -> bool:
    """Whether somebody waits for a lock."""
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    with service.database.read() as session:
        return bool(session.scalar(waiting))


def test_a_worker_that_starts_again_holds_no_status_while_it_waits_for_a_job(
    service: RunningService, registered: GitRepository
) -> None:
    """Jobs of one commit share its status; a writer of the second one has its job's lock before it wants that."""
    service.http.put("/api/v1/repositories/demo/forge", json=FORGE).raise_for_status()
    jobs = [service.submit("demo", "main")["id"] for _ in range(2)]
    driver = service.driver("w1")
    attempts = [driver.must_claim() for _ in jobs]
    body = encode(Registration(CONTRACT, "w1", "another start", "host", Capabilities(("cpu",))))
    with ThreadPoolExecutor(1) as pool:
        with service.database.write() as session:
            session.execute(update(Job).where(Job.id == jobs[1]).values(revision=Job.revision + 1))
            call = pool.submit(service.worker_http.post, "/api/v1/worker/register", json=body)
            wait_for(lambda: blocked(service), "the worker to wait for the second job")
            session.scalars(select(CommitStatus).with_for_update()).all()
        assert call.result(60).status_code == 200
    verdicts = [service.get(f"/attempts/{attempt.assignment.attempt}")["verdict"] for attempt in attempts]
    assert verdicts == ["lost", "lost"]


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_a_forge_is_changed_while_a_job_asks_for_its_statuses(
    service: RunningService, registered: GitRepository, method: str
) -> None:
    """A job wants the status of its cells before that of its plan, whatever their names."""
    service.http.put("/api/v1/repositories/demo/forge", json=FORGE).raise_for_status()
    service.submit("demo", "main")
    with service.database.write() as session:
        known = session.scalars(select(CommitStatus)).one()
        columns = {column.name: getattr(known, column.name) for column in CommitStatus.__table__.columns}
        known.context = PLAN_CONTEXT
        session.flush()
        session.add(CommitStatus(**{**columns, "id": None}))
        session.flush()
        state = SendState.GAVE_UP if method == "PUT" else SendState.WAITING
        session.execute(update(CommitStatus).values(state=state, due_at=columns["due_at"].replace(year=2999)))
    lock = select(CommitStatus).with_for_update()
    with ThreadPoolExecutor(1) as pool:
        with service.database.write() as session:
            session.scalars(lock.where(CommitStatus.context != PLAN_CONTEXT)).one()
            url = "/api/v1/repositories/demo/forge"
            call = pool.submit(service.http.request, method, url, json=FORGE if method == "PUT" else None)
            wait_for(lambda: blocked(service), "the change to wait for the first status")
            session.scalars(lock.where(CommitStatus.context == PLAN_CONTEXT)).one()
        assert call.result(60).status_code < 300
