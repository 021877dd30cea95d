"""The client against real servers, some of which misbehave."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.client.client import Client
from service.client.errors import ClientError, InputError, ProblemError, UnreachableError
from service.jobs.schemas import JobInput
from tests.support import running_service
from tests.support.repository import GitRepository
from tests.support.running_service import RunningService
from worker.messages import Outcome

Answer = tuple[int, str, bytes]
Serve = Callable[[Callable[[BaseHTTPRequestHandler], Answer]], str]


@pytest.fixture
def service(tmp_path: Path, broker_url: str) -> Iterator[RunningService]:
    url = f"sqlite:///{tmp_path / 'replaybench.db'}"
    with running_service.running(tmp_path / "data", url, broker_url, sweep_s=0.2, lease_s=20) as it:
        yield it


@pytest.fixture
def client(service: RunningService) -> Iterator[Client]:
    token = service.http.headers["Authorization"].removeprefix("Bearer ")
    with Client(service.url, token) as it:
        yield it


@pytest.fixture
def serve() -> Iterator[Serve]:
    """A server that answers as a function says."""
    servers = []

    def start(answer: Callable[[BaseHTTPRequestHandler], Answer]) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, kind, body = answer(self)
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the base class's name
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        servers.append((server, thread))
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_job_from_submission_to_its_cases(service: RunningService, client: Client, registered: GitRepository) -> None:
    job = service.submit("demo", "main", suites=["unit"])
    service.driver().must_claim().run({"a": Outcome.PASSED, "b": Outcome.FAILED})
    seen = list(client.follow(job["id"]))
    assert seen[-1].job.state == "failed"
    (cell,) = client.cells(job["id"])
    assert cell == client.cell(cell.id)
    (attempt,) = client.attempts(cell.id)
    assert [case.node_id for case in client.cases(attempt.id)] == ["a", "b"]
    assert [case.node_id for case in client.cases(attempt.id, outcome="failed")] == ["b"]
    assert client.table(job["id"]).rows[0].result == "1 failed, 1 passed"
    assert client.jobs().items == [client.job(job["id"])]
    assert [worker.name for worker in client.workers()] == ["w1"]


def test_a_refusal_carries_the_stable_code(client: Client) -> None:
    with pytest.raises(ProblemError, match="404 not-found") as refused:
        client.job(99)
    assert (refused.value.status, refused.value.code) == (404, "not-found")


def test_without_a_token_nothing_but_health(service: RunningService) -> None:
    with Client(service.url) as stranger:
        assert stranger.health()["status"] == "ok"
        with pytest.raises(ProblemError, match="token-missing"):
            stranger.jobs()
    with Client(service.url, "wrong") as stranger, pytest.raises(ProblemError, match=f"{service.url}: .*token-refused"):
        stranger.jobs()


def test_nobody_there_is_said_with_the_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as once:
        port = once.getsockname()[1]
    with (
        Client(f"http://127.0.0.1:{port}") as client,
        pytest.raises(UnreachableError, match=rf"no service answers at http://127.0.0.1:{port} .*`replaybench up`"),
    ):
        client.jobs()


@pytest.mark.parametrize("url", ["localhost:8321", "ftp://x", "nonsense", "http://[::1"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ClientError, match=r"give it as http://HOST:PORT"):
        Client(url).health()


def test_a_path_prefix_stays(serve: Serve) -> None:
    asked = []

    def answer(request: BaseHTTPRequestHandler) -> Answer:
        asked.append(request.path)
        return 200, "application/json", b'{"status": "ok"}'

    url = serve(answer)
    with Client(f"{url}/behind/a/proxy/") as client:
        client.health()
        assert client.page("/jobs/1") == f"{url}/behind/a/proxy/jobs/1"
    assert asked == ["/behind/a/proxy/api/v1/health"]


def test_an_answer_of_somebody_else_is_told_apart(serve: Serve) -> None:
    gateway = serve(lambda _: (502, "text/html", b"<h1>Bad gateway</h1>"))
    with Client(gateway) as client, pytest.raises(ProblemError, match="502 no-problem-document"):
        client.jobs()
    stranger = serve(lambda _: (200, "text/html", b"<h1>Hello</h1>"))
    with Client(stranger) as client, pytest.raises(ClientError, match="the service's answer to jobs is not what this"):
        client.jobs()


def test_a_broken_stream_is_taken_up_where_it_was(
    service: RunningService, client: Client, registered: GitRepository, serve: Serve
) -> None:
    job = service.submit("demo", "main", suites=["unit"])
    snapshot = json.dumps({"job": client.job(job["id"]).model_dump(mode="json"), "cells": []}).encode()
    asked: list[str | None] = []

    def answer(request: BaseHTTPRequestHandler) -> Answer:
        asked.append(request.headers.get("Last-Event-ID"))
        events = b"event: snapshot\nid: 4\ndata: " + snapshot + b"\n\n"
        if len(asked) == 2:
            return 503, "text/html", b"the service starts again"
        return 200, "text/event-stream", events + (b"event: end\nid: 5\ndata: {}\n\n" if len(asked) == 3 else b"")

    with Client(serve(answer)) as other:
        assert len(list(other.follow(1))) == 2
    assert asked == [None, "4", "4"]


def test_a_stream_that_stays_away_is_given_up(serve: Serve) -> None:
    away = serve(lambda _: (503, "text/plain", b""))
    with Client(away, patience_s=0.3) as client, pytest.raises(UnreachableError):
        list(client.follow(1))


def test_a_stream_of_a_job_that_is_not_there_is_refused_at_once(client: Client) -> None:
    with pytest.raises(ProblemError, match="404"):
        list(client.follow(99))


def test_a_probe_arrives_byte_for_byte() -> None:
    job = JobInput.model_validate(
        {"repository": "demo", "trees": [{"ref": "main"}, {"ref": "main", "probe": "/wD+Cg=="}]}
    )
    assert [tree.probe for tree in job.trees] == [None, b"\xff\x00\xfe\n"]
    assert JobInput.model_validate_json(job.model_dump_json()) == job


def test_a_submission_without_an_answer_is_sent_again_and_makes_one_job(
    service: RunningService, client: Client, registered: GitRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is lost on its way once; the client asks again under the same key."""
    send, keys = client._http.request, []

    def lossy(method: str, path: str, **options: Any) -> httpx.Response:
        answer = send(method, path, **options)
        keys.append(options["headers"]["Idempotency-Key"])
        if len(keys) == 1:
            raise httpx.ReadError("the connection broke")
        return answer

    monkeypatch.setattr(client._http, "request", lossy)
    made = client.submit(JobInput(repository="demo", trees=[{"ref": "main"}]))
    assert len(keys) == 2
    assert len(set(keys)) == 1
    assert [job["id"] for job in service.get("/jobs")["items"]] == [made.id]


@pytest.mark.parametrize(
    ("call", "key"),
    [
        (lambda client: client.rerun(1, [-1]), "cells.0"),
        (lambda client: client.approve(1, "x" * 201), "approved_by"),
        (lambda client: client.add_repository("A B", "/x"), "name"),
    ],
)
def test_what_no_request_can_be_made_of_is_an_error_of_the_client(call: Callable[[Client], object], key: str) -> None:
    """And nothing is sent: no service is there."""
    with Client("http://127.0.0.1:1") as client, pytest.raises(InputError, match=rf"^{key}: ") as refused:
        call(client)
    assert [".".join(map(str, one["loc"])) for one in refused.value.problems] == [key]
