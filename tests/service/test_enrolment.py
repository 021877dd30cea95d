"""Enrolment: a token that is good once becomes a worker's own, which speaks for that worker alone and can be revoked.

On both databases.
"""

from __future__ import annotations

import datetime
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from sqlalchemy import update

from service.clock import now
from service.models import AccessToken, Worker
from tests.support.repository import GitRepository
from tests.support.running_service import DrivenAttempt, RunningService
from worker.encoding import decode, encode
from worker.messages import CONTRACT, Assignment, Capabilities, Claim, Enrolment, Heartbeat, Registration


class Enrolled:
    """A worker that came in by enrolment and speaks with its own token."""

    def __init__(self, service: RunningService, token: str, name: str) -> None:
        self.service, self.name, self.token = service, name, token
        self.worker = 0

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        """A call with its own token."""
        headers["Authorization"] = f"Bearer {self.token}"
        return httpx.post(f"{self.service.url}/api/v1/worker/{path}", json=body, headers=headers, timeout=60)

    def register(self, name: str | None = None) -> httpx.Response:
        """Says its first word, or another's."""
        body = Registration(CONTRACT, name or self.name, f"boot-{self.name}", "host", Capabilities(("cpu",)))
        answer = self.post("register", encode(body))
        if answer.status_code == 200:
            self.worker = answer.json()["worker"]
        return answer

    def claim(self) -> DrivenAttempt:
        """A cell, which must be there."""
        answer = self.post("claim", encode(Claim(self.worker, f"boot-{self.name}")))
        assert answer.status_code == 200, answer.text
        return DrivenAttempt(self.service, decode(Assignment, answer.json()))

    def beat(self, attempt: DrivenAttempt) -> httpx.Response:
        """A heartbeat of an attempt, whoever's it is."""
        return self.post(
            f"attempts/{attempt.assignment.attempt}/batches", {"token": attempt.assignment.token, "seq": 0}
        )


def exchange(service: RunningService, token: str, contract: int = CONTRACT) -> httpx.Response:
    """An enrolment token for a worker's own."""
    headers = {"Authorization": f"Bearer {token}"}
    body = encode(Enrolment(contract, "host"))
    return httpx.post(f"{service.url}/api/v1/worker/enroll", json=body, headers=headers, timeout=60)


def enrol(service: RunningService, name: str) -> Enrolled:
    """A worker that enrolled under a name."""
    made = service.post("/workers/enrolments", {"worker": name}, 201)
    answer = exchange(service, made["token"])
    assert answer.status_code == 200, answer.text
    assert answer.json()["worker"] == name
    return Enrolled(service, answer.json()["token"], name)


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json().get("code", "")


def test_an_enrolment_token_is_good_once(service: RunningService) -> None:
    """Of eight that come together one gets the worker's token, and nobody later."""
    made = service.post("/workers/enrolments", {"worker": "gpu-1", "minutes": 5}, 201)
    left = datetime.datetime.fromisoformat(made["expires_at"]) - datetime.datetime.fromisoformat(made["created_at"])
    assert round(left.total_seconds()) == 300
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: exchange(service, made["token"]), range(8)))
    assert sorted(answer.status_code for answer in answers) == [200] + [401] * 7
    assert code(exchange(service, made["token"])) == (401, "token-refused")


def test_an_enrolment_token_is_good_for_nothing_else_and_not_for_long(service: RunningService) -> None:
    """It neither reads nor registers; it expires; it can be revoked; nobody makes one by asking for its scope."""
    made = service.post("/workers/enrolments", {"worker": "gpu-1"}, 201)
    headers = {"Authorization": f"Bearer {made['token']}"}
    assert httpx.get(f"{service.url}/api/v1/jobs", headers=headers, timeout=60).status_code == 403
    assert Enrolled(service, made["token"], "gpu-1").register().status_code == 403
    assert service.http.post("/api/v1/tokens", json={"name": "x", "scopes": ["enroll"]}).status_code == 422
    with service.database.write() as session:
        session.execute(update(AccessToken).values(expires_at=now()))
    assert code(exchange(service, made["token"])) == (401, "token-expired")
    other = service.post("/workers/enrolments", {"worker": "gpu-1"}, 201)
    service.post(f"/tokens/{other['id']}/revoke")
    assert code(exchange(service, other["token"])) == (401, "token-refused")


def test_only_an_admin_enrolls(service: RunningService) -> None:
    """Not who submits, and not a worker."""
    submitter = service.post("/tokens", {"name": "ci", "scopes": ["submit"]}, 201)["token"]
    for token in (submitter, service.worker_http.headers["Authorization"].removeprefix("Bearer ")):
        answer = httpx.post(
            f"{service.url}/api/v1/workers/enrolments",
            json={"worker": "x"},
            headers={"Authorization": f"Bearer {token}"},
            timeout=60,
        )
        assert code(answer) == (403, "scope-missing")


def test_a_worker_of_another_release_keeps_its_enrolment_token(service: RunningService) -> None:
    """It is refused with both numbers, and enrolls once it is updated."""
    made = service.post("/workers/enrolments", {"worker": "gpu-1"}, 201)
    refused = exchange(service, made["token"], CONTRACT + 1)
    assert code(refused) == (409, "contract-mismatch")
    assert exchange(service, made["token"]).status_code == 200


def test_a_workers_token_speaks_for_that_worker_alone(service: RunningService, registered: GitRepository) -> None:
    """It cannot register, beat, claim, report or store artifacts as another, whose lease token it even knows."""
    service.submit("demo", "main")
    one, other = enrol(service, "gpu-1"), enrol(service, "gpu-2")
    assert code(one.register("gpu-2")) == (403, "worker-mismatch")
    assert one.register().status_code == other.register().status_code == 200
    attempt = other.claim()
    boot = "boot-gpu-2"
    assert code(one.post("heartbeat", encode(Heartbeat(other.worker, boot)))) == (403, "worker-mismatch")
    assert code(one.post("claim", encode(Claim(other.worker, boot)))) == (403, "worker-mismatch")
    assert code(one.beat(attempt)) == (403, "worker-mismatch")
    stored = httpx.put(
        f"{service.url}/api/v1/worker/attempts/{attempt.assignment.attempt}/artifacts/log.txt",
        content=b"x",
        headers={"Authorization": f"Bearer {one.token}", "X-Lease": attempt.assignment.token},
        timeout=60,
    )
    assert code(stored) == (403, "worker-mismatch")
    assert other.beat(attempt).status_code == 200


def test_a_revoked_token_takes_the_workers_leases_at_once(service: RunningService, registered: GitRepository) -> None:
    """Its attempt is lost, the cell goes to another worker, and no word of it is taken; others are left alone."""
    for _ in range(2):
        service.submit("demo", "main")
    one, other = enrol(service, "gpu-1"), enrol(service, "gpu-2")
    one.register()
    other.register()
    lost, kept = one.claim(), other.claim()
    (token,) = [found["id"] for found in service.get("/tokens") if found["name"] == "worker gpu-1"]
    service.post(f"/tokens/{token}/revoke")
    found = service.get(f"/attempts/{lost.assignment.attempt}")
    assert (found["verdict"], found["detail"]) == ("lost", "the token that the worker came with was revoked")
    assert one.beat(lost).status_code == 401
    assert lost.send(expect=409)["code"] == "fenced"
    assert other.beat(kept).status_code == 200
    assert other.claim().assignment.cell.id == lost.assignment.cell.id


def test_enrolling_a_name_again_ends_the_token_before(service: RunningService, registered: GitRepository) -> None:
    """A machine that was set up anew takes its name over, and what the old one runs is lost."""
    service.submit("demo", "main")
    before = enrol(service, "gpu-1")
    before.register()
    attempt = before.claim()
    after = enrol(service, "gpu-1")
    assert code(before.register()) == (401, "token-refused")
    assert service.get(f"/attempts/{attempt.assignment.attempt}")["verdict"] == "lost"
    assert after.register().status_code == 200
    assert after.worker == before.worker


def test_it_is_all_in_the_audit(service: RunningService) -> None:
    """Who made the enrolment, which worker used it, and no token."""
    worker = enrol(service, "gpu-1")
    found = service.get("/audit")["items"]
    assert [(entry["action"], entry["actor"], entry["detail"]["worker"]) for entry in found] == [
        ("worker.enroll", "enrolment of gpu-1", "gpu-1"),
        ("worker.enrolment", "submit", "gpu-1"),
    ]
    assert worker.token not in str(found)
    states = {token["name"]: (token["state"], token["worker"]) for token in service.get("/tokens")}
    assert states == {"worker gpu-1": ("active", "gpu-1"), "enrolment of gpu-1": ("revoked", "gpu-1")}


@pytest.mark.parametrize("path", ["heartbeat", "claim", "batches"])
def test_an_update_of_the_service_refuses_workers_that_run_on(
    service: RunningService, registered: GitRepository, path: str
) -> None:
    """A worker that registered with the release before is told so by every call, not by the next registration alone."""
    service.submit("demo", "main")
    driver = service.driver()
    attempt = driver.must_claim()
    with service.database.write() as session:
        session.execute(update(Worker).values(contract=CONTRACT - 1))
    if path == "batches":
        assert attempt.send(expect=409)["code"] == "contract-mismatch"
        return
    body = {"worker": driver.worker, "boot": driver.boot}
    answer = service.worker_http.post(f"/api/v1/worker/{path}", json=body)
    assert code(answer) == (409, "contract-mismatch")
    assert f"contract {CONTRACT - 1}, this service {CONTRACT}" in answer.json()["detail"]
