"""A real service under uvicorn, and drivers that speak to it as people and workers do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from service import tokens
from service.app import create_app
from service.database import Database
from service.settings import Settings
from tests.support.postgres import free_port
from tests.support.waiting import wait_for
from worker.encoding import decode, encode
from worker.messages import (
    CONTRACT,
    Assignment,
    AttemptEndedEvent,
    Batch,
    Capabilities,
    CaseEvent,
    Cause,
    Claim,
    CollectedEvent,
    Device,
    Event,
    Heartbeat,
    Outcome,
    Phase,
    PhaseEvent,
    ProcessEndedEvent,
    ProcessStartedEvent,
    Registration,
)


@dataclass(frozen=True)
class RunningService:
    """A service that answers. ``http`` carries the submit token, ``worker_http`` the worker token."""

    url: str
    settings: Settings
    database: Database
    http: httpx.Client
    worker_http: httpx.Client

    def post(self, path: str, body: Any = None, expect: int = 200) -> Any:
        """Posts as a person; the status must be the expected one."""
        return _json(self.http.post(f"/api/v1{path}", json=body if body is not None else {}), expect)

    def get(self, path: str, expect: int = 200) -> Any:
        """Gets as a person."""
        return _json(self.http.get(f"/api/v1{path}"), expect)

    def submit(self, repository: str, *refs: str, **body: Any) -> Any:
        """Submits a job of refs and gives it."""
        return self.post("/jobs", {"repository": repository, "trees": [{"ref": ref} for ref in refs], **body}, 201)

    def driver(self, name: str = "w1", **capabilities: Any) -> WorkerDriver:
        """A registered worker that the test steers."""
        offered = Capabilities(**{"kinds": ("cpu",), **capabilities})
        body = Registration(CONTRACT, name, f"boot-{name}-{free_port()}", "host", offered)
        answer = _json(self.worker_http.post("/api/v1/worker/register", json=encode(body)), 200)
        return WorkerDriver(self, answer["worker"], body.boot)


@dataclass
class WorkerDriver:
    """Speaks a worker's side of the contract over HTTP, step by step."""

    service: RunningService
    worker: int
    boot: str

    def beat(self, devices: tuple[Device, ...] | None = None) -> None:
        """Gives a sign of life, and says how its devices are."""
        body = encode(Heartbeat(self.worker, self.boot, devices))
        _json(self.service.worker_http.post("/api/v1/worker/heartbeat", json=body), 204)

    def claim(self, *free: str) -> DrivenAttempt | None:
        """Claims one cell, or nothing."""
        body = encode(Claim(self.worker, self.boot, free))
        answer = self.service.worker_http.post("/api/v1/worker/claim", json=body)
        if answer.status_code == 204:
            return None
        return DrivenAttempt(self.service, decode(Assignment, _json(answer, 200)))

    def must_claim(self, *free: str) -> DrivenAttempt:
        """Claims one cell that must be there."""
        attempt = self.claim(*free)
        assert attempt is not None
        return attempt


@dataclass
class DrivenAttempt:
    """An attempt under a lease."""

    service: RunningService
    assignment: Assignment
    seq: int = 0
    log: list[Event] = field(default_factory=list)

    def send(self, *events: Event, expect: int = 200, seq: int | None = None, **extra: Any) -> Any:
        """Sends the next batch; without events, a heartbeat."""
        number = seq if seq is not None else self.seq + (1 if events else 0)
        body = Batch(self.assignment.token, number, events, **extra)
        path = f"/api/v1/worker/attempts/{self.assignment.attempt}/batches"
        answer = _json(self.service.worker_http.post(path, json=encode(body)), expect)
        if expect == 200:
            self.seq = max(self.seq, number)
        return answer

    def start(self, collected: int, process: int = 1) -> None:
        """Enters the running phase with that many cases collected."""
        if process == 1:
            self.send(PhaseEvent(Phase.PREPARING), PhaseEvent(Phase.RUNNING))
        self.send(ProcessStartedEvent(process), CollectedEvent(process, collected))

    def case(self, node_id: str, outcome: Outcome = Outcome.PASSED, process: int = 1, **extra: Any) -> CaseEvent:
        """An observation to send."""
        return CaseEvent(process, node_id, extra.pop("occurrence", 0), outcome, **extra)

    def end(self, collected: int, *, exit_code: int | None = 0, process: int = 1, cause: Cause = Cause.FINISHED,
            detail: str = "", **extra: Any) -> Any:  # fmt: skip
        """Ends the process and the attempt."""
        ended = ProcessEndedEvent(
            process, exit_code, extra.get("signal"), collected, collected, extra.get("finished", True)
        )
        return self.send(ended, AttemptEndedEvent(cause, detail))

    def run(self, outcomes: dict[str, Outcome]) -> None:
        """A whole attempt with these outcomes."""
        self.start(len(outcomes))
        self.send(*(self.case(node_id, outcome) for node_id, outcome in outcomes.items()))
        failing = any(outcome in (Outcome.FAILED, Outcome.ERROR) for outcome in outcomes.values())
        self.end(len(outcomes), exit_code=1 if failing else 0)


def _json(answer: httpx.Response, expect: int) -> Any:
    assert answer.status_code == expect, f"{answer.request.method} {answer.url}: {answer.status_code} {answer.text}"
    return answer.json() if answer.content else None


@contextmanager
def running(data_dir: Path, database_url: str, broker_url: str, **overrides: Any) -> Iterator[RunningService]:
    """A service for as long as the context lasts. Its callers are limited only where a test sets a rate."""
    port = free_port()
    given = {"token_rate": 0, "address_rate": 0, **overrides}
    settings = Settings(data_dir=data_dir, database_url=database_url, broker_url=broker_url, port=port, **given)
    app = create_app(settings)
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning", timeout_graceful_shutdown=2))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        wait_for(lambda: server.started or not thread.is_alive(), "the service to start")
        assert server.started, "the service ended at its start"
        known = tokens.ensure(data_dir)
        url = f"http://127.0.0.1:{port}"
        with (
            httpx.Client(base_url=url, headers={"Authorization": f"Bearer {known.submit}"}, timeout=60) as http,
            httpx.Client(base_url=url, headers={"Authorization": f"Bearer {known.worker}"}, timeout=60) as worker_http,
        ):
            yield RunningService(url, settings, app.state.database, http, worker_http)
    finally:
        server.should_exit = True
        thread.join(30)
