"""Fills a database with as many jobs, cells, attempts and cases as a benchmark needs, without the service."""

from __future__ import annotations

from typing import Any

from sqlalchemy import insert, text

from service.clock import now
from service.database import Database
from service.models import Attempt, Cell, Job, Repository, Tree, Worker
from service.states import AttemptState, CellState, JobState
from worker.encoding import encode
from worker.messages import Capabilities, SuiteSpec, Verdict

COMMIT = "b" * 40
LEASE = "0" * 32


def lay_ground(database: Database) -> None:
    """A repository, a tree, a worker and a job of one cell: number 1 each."""
    with database.write() as session:
        moment = now()
        session.execute(insert(Repository), {"name": "demo", "url": "/none", "created_at": moment})
        tree = {"repository_id": 1, "commit": COMMIT, "digest": "d" * 40, "created_at": moment}
        session.execute(insert(Tree), tree)
        session.execute(insert(Worker), [_worker(0)])
        session.execute(insert(Job), [_job()])
        session.execute(insert(Cell), [_cell(1, 0)])


def add_attempt(database: Database, number: int) -> int:
    """One more attempt of the first cell; gives its number."""
    with database.write() as session:
        row = {**_attempt(1, 1, AttemptState.RUNNING), "number": number + 1}
        attempt = Attempt(**row)
        session.add(attempt)
        session.flush()
        return attempt.id


def fill(database: Database, *, jobs: int, cells: int, cases: int) -> None:
    """Ended jobs on an empty Postgres. The indexes of the cases are made when the rows are there."""
    lay_ground(database)
    with database.write() as session:
        session.execute(insert(Job), [_job() for _ in range(jobs - 1)])
        rows = [_cell(job, position) for job in range(1, jobs + 1) for position in range(cells)][1:]
        session.execute(insert(Cell), rows)
        session.execute(text("UPDATE cells SET state = 'ended', verdict = 'failed', ended_at = now()"))
        session.execute(text("UPDATE jobs SET state = 'failed', started_at = created_at, ended_at = created_at"))
        counts = {"failed": cases // 10, "passed": cases - cases // 10}
        ended = {"state": AttemptState.ENDED, "verdict": Verdict.FAILED, "ended_at": now(), "deciding": True,
                 "counts": counts, "collected": cases}  # fmt: skip
        session.execute(
            insert(Attempt), [{**_attempt(cell, 1, AttemptState.ENDED), **ended} for cell in range(1, jobs * cells + 1)]
        )
    _fill_cases(database, jobs * cells, cases)


def _fill_cases(database: Database, attempts: int, cases: int) -> None:
    with database.engine.begin() as connection:
        kept = connection.execute(
            text("SELECT indexdef FROM pg_indexes WHERE tablename = 'cases' AND indexname LIKE 'ix_%'")
        ).scalars()
        definitions = list(kept)
        names = connection.execute(
            text("SELECT indexname FROM pg_indexes WHERE tablename = 'cases' AND indexname LIKE 'ix_%'")
        ).scalars()
        for name in list(names):
            connection.exec_driver_sql(f'DROP INDEX "{name}"')
        connection.exec_driver_sql("SET maintenance_work_mem = '512MB'")
        connection.execute(
            text(
                """
                INSERT INTO cases (attempt_id, process, node_id, node_digest, occurrence, outcome, last, failure_class,
                                   duration_s, message, traceback, properties, evidence, cleaned)
                SELECT attempt, 1, 'tests/test_parity.py::test_case[' || number || ']',
                       encode(sha256(('tests/test_parity.py::test_case[' || number || ']')::bytea), 'hex'), 0,
                       CASE WHEN number % 10 = 0 THEN 'failed' ELSE 'passed' END, true,
                       CASE WHEN number % 10 = 0 THEN 'assertion' END, 0.01,
                       CASE WHEN number % 10 = 0 THEN 'AssertionError: 1 == 2' ELSE '' END, '', '{}', NULL, false
                FROM generate_series(1, :attempts) AS attempt, generate_series(1, :cases) AS number
                """
            ),
            {"attempts": attempts, "cases": cases},
        )
        for definition in definitions:
            connection.exec_driver_sql(definition)
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("VACUUM ANALYZE")


def add_workers(database: Database, count: int) -> list[tuple[str, dict[str, Any]]]:
    """Workers, every second with a live attempt, and what each one's heartbeat is: path and body."""
    lay_ground(database)
    with database.write() as session:
        session.execute(insert(Worker), [_worker(number) for number in range(1, count)])
        session.execute(insert(Cell), [_cell(1, position) for position in range(1, count)])
        session.execute(text("UPDATE cells SET state = 'running'"))
        live = [_attempt(number, number, AttemptState.RUNNING) for number in range(2, count + 1, 2)]
        session.execute(insert(Attempt), live)
    idle = "/api/v1/worker/heartbeat"
    return [
        (f"/api/v1/worker/attempts/{worker // 2}/batches", {"token": LEASE, "seq": 0, "events": []})
        if worker % 2 == 0
        else (idle, {"worker": worker, "boot": f"boot{worker - 1}"})
        for worker in range(1, count + 1)
    ]


def _worker(number: int) -> dict[str, Any]:
    return {"name": f"w{number}", "boot": f"boot{number}", "host": "host", "registered_at": now(), "seen_at": now(),
            "capabilities": encode(Capabilities(kinds=("cpu",)))}  # fmt: skip


def _job() -> dict[str, Any]:
    return {"repository_id": 1, "state": JobState.RUNNING, "request": {}, "created_at": now(), "started_at": now()}


def _cell(job: int, position: int) -> dict[str, Any]:
    suite = f"suite{position % 5}"
    return {"job_id": job, "repository_id": 1, "tree_id": 1, "position": position, "suite": suite, "kind": "cpu",
            "name": f"{COMMIT[:7]}/py3.11-torch2.9.1-cu129/{suite}", "runtime": "py3.11-torch2.9.1-cu129",
            "priority": 0, "suite_spec": encode(SuiteSpec(suite, ("tests",))), "install": [], "failure_rules": [],
            "state": CellState.RUNNING, "queued_at": now()}  # fmt: skip


def _attempt(cell: int, worker: int, state: AttemptState) -> dict[str, Any]:
    return {"cell_id": cell, "number": 1, "worker_id": worker, "token": LEASE, "state": state, "claimed_at": now(),
            "started_at": now(), "lease_expires_at": now().replace(year=now().year + 1), "counts": {},
            "environment": {"gpus": [{"model": "NVIDIA H200"}], "driver": "570", "torch": "2.9.1"}}  # fmt: skip
