"""Rate limits: of each token, and of each address without one. Workers are never made to wait."""

from __future__ import annotations

from pathlib import Path

import httpx

from service.access import rate
from service.access.rate import Rate, address_key
from tests.support import forges, running_service
from tests.support.fixtures import sqlite_url as database_url
from tests.support.repository import GitRepository
from worker.messages import Outcome

__all__ = ["database_url"]


class Clock:
    """A clock that is put forward by hand."""

    def __init__(self) -> None:
        self.moment = 1000.0

    def __call__(self) -> float:
        return self.moment


def test_a_minutes_worth_may_come_at_once_and_no_more() -> None:
    """Then one call for each share of the minute that passes; each key by itself."""
    clock = Clock()
    limit = Rate(6, clock)
    assert [limit.take("a") for _ in range(6)] == [0.0] * 6
    assert round(limit.take("a"), 3) == 10.0
    assert limit.take("b") == 0.0
    clock.moment += 10
    assert limit.take("a") == 0.0
    assert round(limit.take("a"), 3) == 10.0
    clock.moment += 3600
    assert [limit.take("a") > 0 for _ in range(7)] == [False] * 6 + [True]


def test_zero_sets_no_limit() -> None:
    """However often."""
    limit = Rate(0, Clock())
    assert not any(limit.take("a") for _ in range(10_000))


def test_a_flood_of_addresses_does_not_fill_the_memory() -> None:
    """Those who called least are forgotten; who is at the limit stays there."""
    clock = Clock()
    limit = Rate(2, clock)
    assert [limit.take("busy") > 0 for _ in range(3)] == [False, False, True]
    for number in range(2 * rate.MOST):
        limit.take(f"address {number}")
    assert len(limit._good_at) <= rate.MOST
    assert limit.take("busy") > 0


def test_an_ipv6_network_counts_as_one_address() -> None:
    """A host has a whole /64; an IPv4 address counts as itself, however it is spelled."""
    assert address_key("2001:db8::1") == address_key("2001:db8::ffff:1") != address_key("2001:db8:0:1::1")
    assert address_key("::ffff:192.0.2.1") == address_key("192.0.2.1") != address_key("192.0.2.2")
    assert address_key("fe80::1%eth0") == address_key("fe80::2")
    assert address_key("") == "address "


def test_a_token_that_calls_too_often_is_told_when_to_come_back(
    tmp_path: Path, database_url: str, broker_url: str
) -> None:
    """429 with Retry-After, as problem document and as page; another token goes on."""
    with running_service.running(tmp_path / "data", database_url, broker_url, token_rate=20) as service:
        other = service.post("/tokens", {"name": "other", "scopes": ["read"]}, 201)["token"]
        answers = [service.http.get("/api/v1/jobs") for _ in range(25)]
        assert answers[0].status_code == 200
        refused = answers[-1]
        assert (refused.status_code, refused.json()["code"]) == (429, "rate-limited")
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert refused.json()["retry_after_s"] == int(refused.headers["retry-after"])
        page = service.http.get("/")
        assert (page.status_code, "retry-after" in page.headers) == (429, True)
        assert (
            httpx.get(
                f"{service.url}/api/v1/jobs", headers={"Authorization": f"Bearer {other}"}, timeout=60
            ).status_code
            == 200
        )


def test_wrong_tokens_are_counted_by_address_and_right_ones_from_there_go_on(
    tmp_path: Path, database_url: str, broker_url: str
) -> None:
    """Guessing ends soon, also in the sign-in form; whoever has a token at the same address notices nothing."""
    with running_service.running(tmp_path / "data", database_url, broker_url, address_rate=10) as service:
        with httpx.Client(base_url=service.url, timeout=60) as http:
            wrong = [http.get("/api/v1/jobs", headers={"Authorization": f"Bearer {n}"}) for n in range(15)]
            assert [answer.status_code for answer in (wrong[0], wrong[-1])] == [401, 429]
            assert http.post("/sign-in", data={"token": "wrong"}).status_code == 429
            assert http.get("/api/v1/jobs").status_code == 429
            assert http.get("/api/v1/health").status_code == 200
        assert service.http.get("/api/v1/jobs").status_code == 200


def test_hooks_that_nothing_proves_are_counted_too_and_proven_ones_go_on(
    tmp_path: Path, database_url: str, broker_url: str, repo: GitRepository
) -> None:
    """Many repositories of one forge call from one address: a wrong secret of one keeps out none of the others."""
    rates = {"address_rate": 10, "hook_secrets": forges.SECRET}
    with running_service.running(tmp_path / "data", database_url, broker_url, **rates) as service:
        service.post("/repositories", {"name": "demo", "url": str(repo.path)}, 201)
        payload = {"repository": {"clone_url": str(repo.path)}}
        wrong = [forges.post(service.url, "github", "ping", payload, secret="wrong" * 4) for _ in range(15)]
        assert [answer.status_code for answer in (wrong[0], wrong[-1])] == [401, 429]
        assert forges.post(service.url, "github", "ping", payload).status_code == 202


def test_workers_are_never_made_to_wait(
    tmp_path: Path, database_url: str, broker_url: str, repo: GitRepository
) -> None:
    """Heartbeats and batches pass, however narrow the limits and whatever else comes from the worker's address."""
    rates = {"token_rate": 10, "address_rate": 10}
    with running_service.running(tmp_path / "data", database_url, broker_url, **rates) as service:
        service.post("/repositories", {"name": "demo", "url": str(repo.path)}, 201)
        job = service.submit("demo", "main", suites=["unit"])["id"]
        for _ in range(15):
            httpx.get(f"{service.url}/api/v1/jobs", timeout=60)
        attempt = service.driver().must_claim()
        attempt.start(1)
        for _ in range(30):
            attempt.send()
        attempt.send(attempt.case("a", Outcome.PASSED))
        attempt.end(1)
        assert service.get(f"/jobs/{job}")["state"] == "passed"
