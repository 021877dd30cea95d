"""A submission that is sent again makes one job. On both databases."""

from __future__ import annotations

import datetime
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sqlalchemy import func, select, update

from service.clock import now
from service.models import IdempotencyKey
from tests.support.repository import GitRepository
from tests.support.running_service import RunningService
from tests.support.waiting import wait_for

BODY = {"repository": "demo", "trees": [{"ref": "main"}]}


def send(service: RunningService, key: str, **more: Any) -> tuple[int, Any]:
    """Submits under a key; gives the status and the answer."""
    answer = service.http.post("/api/v1/jobs", json={**BODY, **more}, headers={"Idempotency-Key": key})
    return answer.status_code, answer.json()


def test_the_same_key_and_body_give_the_same_job(service: RunningService, registered: GitRepository) -> None:
    """Also where the branch has moved since: it is the first submission that is asked for."""
    status, first = send(service, "k1")
    registered.commit("moved on")
    again, second = send(service, "k1", priority=0)  # what is the default may be said or not
    assert (status, again) == (201, 201)
    assert (first["id"], first["trees"]) == (second["id"], second["trees"])
    assert send(service, "k2")[1]["id"] != first["id"]
    assert len(service.get("/jobs")["items"]) == 2


def test_the_same_key_with_another_body_is_a_conflict(service: RunningService, registered: GitRepository) -> None:
    """Nothing is stored; a dry run has no key to keep; a refused submission leaves its key free."""
    assert send(service, "k1", dry_run=True)[0] == 200
    assert send(service, "k1", suites=["odd"])[1]["code"] == "suite-unknown"
    made = send(service, "k1")[1]
    status, problem = send(service, "k1", priority=5)
    assert (status, problem["code"]) == (409, "idempotency-conflict")
    assert f"job {made['id']}" in problem["detail"]
    assert len(service.get("/jobs")["items"]) == 1


def test_a_key_that_no_header_can_carry_is_refused(service: RunningService, registered: GitRepository) -> None:
    """Empty, too long, with a space."""
    for key in ("", "x" * 201, "a b"):
        assert send(service, key)[1]["code"] == "invalid-request", key


def test_many_at_once_make_one_job(service: RunningService, registered: GitRepository) -> None:
    """Those who come second wait for the first and get its job."""
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: send(service, "k1"), range(8)))
    assert {status for status, _ in answers} == {201}
    assert len({job["id"] for _, job in answers}) == 1
    assert len(service.get("/jobs")["items"]) == 1


def test_a_key_is_forgotten(service: RunningService, registered: GitRepository) -> None:
    """After its time it is free again, and its row goes."""
    first = send(service, "k1")[1]
    with service.database.write() as session:
        session.execute(update(IdempotencyKey).values(expires_at=now() - datetime.timedelta(seconds=1)))
    second = send(service, "k1")[1]
    assert second["id"] != first["id"]
    with service.database.write() as session:
        session.execute(update(IdempotencyKey).values(expires_at=now() - datetime.timedelta(seconds=1)))
    wait_for(lambda: _keys(service) == 0, "the sweep to remove the key")


def _keys(service: RunningService) -> int:
    with service.database.read() as session:
        return session.scalar(select(func.count()).select_from(IdempotencyKey)) or 0
