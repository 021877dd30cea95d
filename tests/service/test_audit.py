"""The audit: every change with a token is in it, and nothing that did not happen."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from service.access.scopes import Caller, Scope, granted
from service.audit import service as audit
from service.jobs import endpoints as jobs
from tests.support.repository import GitRepository
from tests.support.running_service import RunningService
from worker.messages import Outcome


def entries(service: RunningService, query: str = "") -> list[dict[str, Any]]:
    """The audit's latest entries, the earliest of them first."""
    found: list[dict[str, Any]] = service.get(f"/audit{query}")["items"]
    return found[::-1]


def test_every_change_has_its_entry(service: RunningService, registered: GitRepository) -> None:
    """Who, from where, what, on what, and some detail; what workers report and what only reads has none."""
    made = service.post("/tokens", {"name": "m.keller", "scopes": ["submit"]}, 201)
    with httpx.Client(base_url=service.url, headers={"Authorization": f"Bearer {made['token']}"}, timeout=60) as http:
        body = {"repository": "demo", "trees": [{"ref": "main"}], "suites": ["unit"]}
        assert http.post("/api/v1/jobs", json={**body, "dry_run": True}).status_code == 200
        job = http.post("/api/v1/jobs", json=body).json()["id"]
        service.driver().must_claim().run({"a": Outcome.FAILED})
        assert http.post(f"/api/v1/jobs/{job}/rerun", json={}).status_code == 200
        assert http.post(f"/api/v1/jobs/{job}/cancel").status_code == 200
        assert http.get("/api/v1/jobs").status_code == 200
    service.post(f"/tokens/{made['id']}/revoke")
    found = entries(service)
    assert [(entry["action"], entry["subject"], entry["actor"]) for entry in found] == [
        ("repository.register", "repository demo", "submit"),
        ("token.create", f"token {made['id']}", "submit"),
        ("job.submit", f"job {job}", "m.keller"),
        ("job.rerun", f"job {job}", "m.keller"),
        ("job.cancel", f"job {job}", "m.keller"),
        ("token.revoke", f"token {made['id']}", "submit"),
    ]
    assert {entry["prefix"] for entry in found if entry["actor"] == "m.keller"} == {made["prefix"]}
    assert {entry["address"] for entry in found} == {"127.0.0.1"}
    assert found[2]["detail"]["cells"] == 1
    assert made["token"] not in str(found)


def test_what_failed_is_not_in_it(service: RunningService, registered: GitRepository) -> None:
    """The entry is in the change's own transaction, and is rolled back with it."""
    assert service.http.post("/api/v1/jobs/99/cancel").status_code == 404
    assert service.http.post("/api/v1/repositories", json={"name": "demo", "url": "/other"}).status_code == 409
    assert [entry["action"] for entry in entries(service)] == ["repository.register"]


def test_a_change_that_its_endpoint_does_not_name_is_in_it_all_the_same(service: RunningService) -> None:
    """By method and path, so that a new endpoint cannot forget it; one that names it has one entry, not two."""
    caller = Caller("ci", granted([Scope.SUBMIT]), "token 1", "192.0.2.7")
    database = service.database.before_commit(lambda session: audit.ensure(session, caller, "POST", "/api/v1/new/1"))
    with database.write():
        pass
    with database.write() as session:
        audit.note(session, caller, "new.named", "new 1")
    assert [(entry["action"], entry["subject"]) for entry in entries(service)] == [
        ("post", "/api/v1/new/1"),
        ("new.named", "new 1"),
    ]


def test_an_endpoint_that_forgets_the_audit_is_in_it(
    service: RunningService, registered: GitRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the real service: who it was, and the call's method and path."""
    service.submit("demo", "main", suites=["unit"])
    monkeypatch.setattr(jobs, "audit", SimpleNamespace(note=lambda *_, **__: None))
    service.post("/jobs/1/cancel")
    last = entries(service)[-1]
    assert (last["actor"], last["action"], last["subject"]) == ("submit", "post", "/api/v1/jobs/1/cancel")


def test_it_comes_in_pages_and_by_subject_and_token(service: RunningService) -> None:
    """Newest first, each entry on one page, under a filter too."""
    caller = Caller("ci", granted([Scope.SUBMIT]), "token 1", "192.0.2.7", "rb_12345678")
    for number in range(7):
        with service.database.write() as session:
            audit.note(session, caller if number % 2 else Caller("x", frozenset(), ""), "job.cancel", f"job {number}")
    for query, count in (("", 7), ("&prefix=rb_12345678", 3), ("&subject=job%203", 1), ("&subject=none", 0)):
        seen: list[int] = []
        following: str | None = ""
        while following is not None:
            page = service.get(f"/audit?limit=2{query}&{following}")
            seen += [entry["id"] for entry in page["items"]]
            following = page["next"]
        assert len(seen) == count
        assert seen == sorted(set(seen), reverse=True)


def test_the_page_shows_it_with_everything_escaped(service: RunningService) -> None:
    """Newest first; a subject and a token lead to theirs alone."""
    with httpx.Client(base_url=service.url, headers=service.http.headers, timeout=60) as http:
        assert "Nothing has been changed yet" in http.get("/audit").text
        token = service.post("/tokens", {"name": "<b>ci</b>", "scopes": ["read"]}, 201)
        page = http.get("/audit").text
        assert "&lt;b&gt;ci&lt;/b&gt;" in page
        assert "<b>ci" not in page
        assert f'href="/audit?subject=token%20{token["id"]}"' in page
        assert "token.create" in http.get(f"/audit?subject=token%20{token['id']}").text
        assert "No such changes" in http.get("/audit?subject=job%201").text
