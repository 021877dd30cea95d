"""The database: transactions, wake-ups after them, and what a failing thread or request leaves behind."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Select, TextClause, select, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from service import database as database_module
from service.clock import now
from service.database import Database
from service.dispatch import outbox
from service.models import HookSecret, Worker
from tests.support import running_service
from tests.support.repository import GitRepository
from tests.support.running_service import RunningService
from worker.encoding import encode
from worker.messages import Batch


def worker(name: str) -> Worker:
    """A worker's row."""
    return Worker(name=name, boot="b", host="h", capabilities={}, registered_at=now(), seen_at=now())


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("statement", [text("SELECT * FROM workers"), select(Worker)], ids=["core", "orm"])
def test_a_read_that_fails_half_way_leaves_no_lock(database_url: str, statement: TextClause | Select[Worker]) -> None:
    """The connection that an exception left in the middle of its rows can write at once, also after somebody else."""
    database, other = Database(database_url), Database(database_url)
    with database.write() as session:
        session.add_all([worker("one"), worker("two")])
    try:
        with database.read() as session:
            session.execute(statement)
            raise KeyError
    except KeyError as caught:
        failed = caught  # its traceback holds the unread rows, as a thread that died of it does
    with other.write() as session:
        session.add(worker("three"))
    with database.write() as session:
        session.add(worker("four"))
    with database.read() as session:
        assert len(session.scalars(select(Worker)).all()) == 4
    assert failed
    database.close()
    other.close()


def test_more_calls_at_once_than_the_service_has_threads(service: RunningService, registered: GitRepository) -> None:
    """A hundred heartbeats of one attempt at once all end: none waits for a thread while it holds what others need."""
    service.submit("demo", "main")
    attempt = service.driver().must_claim()
    attempt.start(1)
    path = f"{service.url}/api/v1/worker/attempts/{attempt.assignment.attempt}/batches"
    headers = dict(service.worker_http.headers)
    with (
        httpx.Client(limits=httpx.Limits(max_connections=None), timeout=25, headers=headers) as http,
        ThreadPoolExecutor(100) as pool,
    ):
        bodies = [encode(Batch(attempt.assignment.token, attempt.seq, running=f"case {n}")) for n in range(100)]
        assert {answer.status_code for answer in pool.map(lambda body: http.post(path, json=body), bodies)} == {200}


def test_a_commit_sends_its_wake_ups_and_a_rollback_sends_none(database_url: str) -> None:
    """Wake-ups are sent once, after the commit, and forgotten with a transaction that fails."""
    sent: list[Sequence[str]] = []
    database = Database(database_url, sent.append)
    with database.write() as session:
        session.add(worker("one"))
        outbox.wake(session, "cuda")
        outbox.wake(session, "cpu")
        assert sent == []
    assert sent == [["cpu", "cuda"]]
    with contextlib.suppress(KeyError), database.write() as session:
        session.add(worker("two"))
        outbox.wake(session, "cpu")
        raise KeyError
    assert sent == [["cpu", "cuda"]]
    with database.read() as session:
        assert [found.name for found in session.scalars(select(Worker))] == ["one"]
    database.close()


def test_no_error_repeats_a_value(database_url: str) -> None:
    """Errors are logged with their text, and what is stored may be a webhook's secret or a forge's credential."""
    database = Database(database_url)
    secret = HookSecret(repository_id=7, secret="s3cr3t-of-a-hook", created_at=now())
    failing: list[Callable[[Session], object]] = [
        lambda session: session.execute(text("INSERT INTO nowhere VALUES (:secret)"), {"secret": secret.secret}),
        lambda session: session.merge(secret) and session.flush(),
    ]
    for fail in failing:
        with pytest.raises(SQLAlchemyError) as caught, database.write() as session:
            fail(session)
        assert secret.secret not in f"{caught.value}{caught.value!r}"
    database.close()


def test_a_database_that_stays_locked_is_a_503_and_nothing_is_stored(
    tmp_path: Path, broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The problem says so, and the same call works when the lock is gone."""
    monkeypatch.setattr(database_module, "BUSY_S", 0.2)
    url = f"sqlite:///{tmp_path / 'replaybench.db'}"
    body = {"name": "demo", "url": "/nowhere"}
    with running_service.running(tmp_path / "data", url, broker_url, sweep_s=60) as service:
        holder = Database(url)
        with holder.write() as session:
            session.add(worker("one"))
            session.flush()
            answer = service.http.post("/api/v1/repositories", json=body)
        holder.close()
        assert (answer.status_code, answer.json()["code"]) == (503, "database-unavailable")
        assert answer.headers["retry-after"] == "1"
        assert service.get("/repositories") == []
        service.post("/repositories", body, 201)


def test_a_database_that_is_away_is_a_503(tmp_path: Path, broker_url: str) -> None:
    """Health says so without a token, every other call with one, and the service stays up."""
    with running_service.running(tmp_path / "data", "postgres://nobody@127.0.0.1:1/none", broker_url) as service:
        for path in ("health", "jobs", "workers"):
            answer = service.http.get(f"/api/v1/{path}")
            assert (answer.status_code, answer.json()["code"]) == (503, "database-unavailable")
            assert "nobody" not in answer.text


def test_a_connection_that_outlives_its_database_is_closed_when_it_is_given_back(database_url: str) -> None:
    """A service that stops does not wait for its slowest request."""
    database = Database(database_url)
    with database.read() as session:
        session.execute(text("SELECT 1"))
        connection = session.connection().connection.dbapi_connection
        database.close()
        session.execute(text("SELECT 1"))
    if database.embedded:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")
    else:
        assert connection.closed
