"""Nobody who has shown no good token gets a large body read into the service's memory."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from service.body_limit import UNPROVEN
from tests.support import forges, running_service
from tests.support.fixtures import sqlite_url as database_url
from tests.support.repository import GitRepository
from tests.support.running_service import RunningService

__all__ = ["database_url"]

PIECE = b" " * 2**16
PATHS = (
    "/api/v1/jobs", "/api/v1/repositories", "/api/v1/jobs/1/rerun", "/api/v1/worker/claim",
    "/api/v1/worker/attempts/1/batches", "/api/v1/worker/enroll",
)  # fmt: skip


@pytest.fixture
def service(tmp_path: Path, database_url: str, broker_url: str) -> Iterator[RunningService]:
    """A service that takes hooks."""
    with running_service.running(
        tmp_path / "data", database_url, broker_url, sweep_s=0.2, hook_secrets=forges.SECRET
    ) as it:
        yield it


def pieces(size: int) -> Iterator[bytes]:
    """A body that does not say how long it is."""
    yield b'{"pad": "'
    for _ in range(size // len(PIECE)):
        yield PIECE
    yield b'"}'


@pytest.mark.parametrize("path", PATHS)
def test_a_large_body_is_read_of_nobody_without_a_good_token(service: RunningService, path: str) -> None:
    """It is broken off behind the first MiB, with a word; what is smaller is refused as ever."""
    kind = {"Content-Type": "application/json"}
    with httpx.Client(base_url=service.url, headers=kind, timeout=60) as http:
        answer = http.post(path, content=pieces(2 * UNPROVEN))
        assert (answer.status_code, answer.json()["code"]) == (413, "too-large")
        assert "Authorization" in answer.json()["detail"]
        for token in ("no token of this service", "é"):
            wrong = {"Authorization": f"Bearer {token}".encode()}
            answer = http.post(path, content=pieces(2 * UNPROVEN), headers=wrong)
            assert (answer.status_code, answer.json()["code"]) == (401, "token-refused")
        assert http.post(path, content=pieces(UNPROVEN // 2)).status_code in {401, 422}


def test_a_large_body_with_a_good_token_is_read(service: RunningService, registered: GitRepository) -> None:
    """A probe of more than a MiB reaches those who look at it; its caller's scopes are the endpoint's to judge."""
    probe = base64.b64encode(b"+" * 2 * UNPROVEN).decode()
    body = {"repository": "demo", "trees": [{"ref": "main", "probe": probe}]}
    assert service.post("/jobs", body, expect=422)["code"] == "probe-refused"
    answer = service.worker_http.post("/api/v1/jobs", json=body)
    assert (answer.status_code, answer.json()["code"]) == (403, "scope-missing")


def test_a_forges_large_payload_is_read_without_a_token(service: RunningService) -> None:
    """Its proof is a signature over the whole of it."""
    headers = {"Content-Type": "application/json", "X-GitHub-Event": "push", "X-GitHub-Delivery": "1"}
    answer = httpx.post(f"{service.url}/hooks/github", content=pieces(2 * UNPROVEN), headers=headers, timeout=60)
    assert (answer.status_code, answer.json()["code"]) == (401, "hook-refused")


def test_wrong_tokens_before_large_bodies_are_counted(tmp_path: Path, sqlite_url: str, broker_url: str) -> None:
    """As they are before small ones: nobody guesses faster by sending more."""
    with running_service.running(tmp_path / "data", sqlite_url, broker_url, address_rate=3) as service:
        headers = {"Authorization": "Bearer no-token-of-this-service", "Content-Type": "application/json"}
        with httpx.Client(base_url=service.url, headers=headers, timeout=60) as http:
            said = [http.post("/api/v1/jobs", content=pieces(2 * UNPROVEN)) for _ in range(6)]
    assert said[0].json()["code"] == "token-refused"
    assert said[-1].json()["code"] == "rate-limited"
    assert int(said[-1].headers["Retry-After"]) > 0
