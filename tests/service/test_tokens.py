"""Tokens: made, shown once, used, expired, revoked; and browsers that sign in with them."""

from __future__ import annotations

import datetime
import hashlib
import re
from typing import Any

import httpx
import pytest
from sqlalchemy import select, update

from service.clock import now
from service.jobs import stream
from service.models import AccessToken
from tests.support.repository import GitRepository
from tests.support.running_service import RunningService


def make(service: RunningService, *scopes: str, **more: Any) -> dict[str, Any]:
    """A new token with these scopes, as the answer that shows it."""
    made: dict[str, Any] = service.post("/tokens", {"name": "ci", "scopes": list(scopes), **more}, 201)
    return made


def client(service: RunningService, token: str) -> httpx.Client:
    """Somebody with a token."""
    return httpx.Client(base_url=service.url, headers={"Authorization": f"Bearer {token}"}, timeout=60)


def change(service: RunningService, token: int, **values: Any) -> None:
    """Changes a token's row behind the service's back, as time would."""
    with service.database.write() as session:
        session.execute(update(AccessToken).where(AccessToken.id == token).values(**values))


def test_a_token_is_shown_once_and_stored_as_a_digest(service: RunningService) -> None:
    """The answer has it; the list and the row have its prefix, and the row its SHA-256."""
    made = make(service, "submit", "worker", "submit")
    assert re.fullmatch(r"rb_[A-Za-z0-9_-]{43}", made["token"])
    assert made["prefix"] == made["token"][:11]
    assert made["scopes"] == ["submit", "worker"]
    listed = service.get("/tokens")
    assert listed == [{key: value for key, value in made.items() if key != "token"}]
    assert listed[0]["created_by"] == "submit"
    with service.database.read() as session:
        row = session.scalars(select(AccessToken)).one()
    assert row.digest == hashlib.sha256(made["token"].encode()).hexdigest()
    assert made["token"] not in [str(value) for value in vars(row).values()]
    assert service.http.post("/api/v1/tokens", json={"name": "x", "scopes": ["read"]}).headers["cache-control"] == (
        "no-store"
    )


def test_tokens_expire(service: RunningService) -> None:
    """After 90 days where nothing else is said, never where `null` is; the answer then has a code of its own."""
    made, forever = make(service, "read"), make(service, "read", days=None)
    left = datetime.datetime.fromisoformat(made["expires_at"]) - datetime.datetime.fromisoformat(made["created_at"])
    assert round(left.total_seconds() / 86400) == 90
    assert forever["expires_at"] is None
    with client(service, made["token"]) as http:
        assert http.get("/api/v1/jobs").status_code == 200
        change(service, made["id"], expires_at=now() - datetime.timedelta(seconds=1))
        refused = http.get("/api/v1/jobs")
        assert (refused.status_code, refused.json()["code"]) == (401, "token-expired")
        assert made["prefix"] in refused.json()["detail"]
        assert made["token"] not in refused.text
    assert [token["state"] for token in service.get("/tokens")] == ["active", "expired"]


def test_a_revoked_token_is_refused_from_then_on(service: RunningService) -> None:
    """Its row stays, and revoking it twice changes nothing."""
    made = make(service, "submit")
    with client(service, made["token"]) as http:
        assert http.get("/api/v1/jobs").status_code == 200
        revoked = service.post(f"/tokens/{made['id']}/revoke")
        assert revoked["state"] == "revoked"
        assert http.get("/api/v1/jobs").json()["code"] == "token-refused"
    assert service.post(f"/tokens/{made['id']}/revoke")["revoked_at"] == revoked["revoked_at"]
    assert service.http.post("/api/v1/tokens/99/revoke").json()["code"] == "not-found"


@pytest.mark.parametrize("ended", ["revoked_at", "expires_at"])
def test_a_live_stream_ends_with_its_token(
    service: RunningService, registered: GitRepository, monkeypatch: pytest.MonkeyPatch, ended: str
) -> None:
    """It is one call that lasts for hours; whoever comes again is refused, and other readers notice nothing."""
    monkeypatch.setattr(stream, "CHECK_S", 0.2)
    job = service.submit("demo", "main")["id"]
    path, made, other = f"/api/v1/jobs/{job}/stream", make(service, "read"), make(service, "read")
    with client(service, made["token"]) as http, client(service, other["token"]) as another:
        with http.stream("GET", path, timeout=30) as answer, another.stream("GET", path, timeout=30) as still:
            lines, others = answer.iter_lines(), still.iter_lines()
            assert (next(lines), next(others)) == ("event: snapshot", "event: snapshot")
            change(service, made["id"], **{ended: now()})
            assert "event: end" not in list(lines)
            service.post(f"/jobs/{job}/cancel")
            assert "event: end" in list(others)
        assert http.get(path).status_code == 401


def test_the_last_use_is_noted_once_a_minute(service: RunningService) -> None:
    """The first call notes it, calls within a minute do not, one after it does."""
    made = make(service, "read")

    def used() -> Any:
        with client(service, made["token"]) as http:
            assert http.get("/api/v1/jobs").status_code == 200
        return service.get("/tokens")[0]["used_at"]

    first = used()
    assert first is not None
    assert used() == first
    change(service, made["id"], used_at=now() - datetime.timedelta(seconds=61))
    assert used() > first


@pytest.mark.parametrize(
    "body",
    [
        {"name": "", "scopes": ["read"]},
        {"name": "x", "scopes": []},
        {"name": "x", "scopes": ["root"]},
        {"name": "x", "scopes": ["read"], "days": 0},
        {"name": "a\nb", "scopes": ["read"]},
    ],
)
def test_a_token_that_makes_no_sense_is_not_made(service: RunningService, body: dict[str, Any]) -> None:
    """422, and no row."""
    assert service.http.post("/api/v1/tokens", json=body).status_code == 422
    assert service.get("/tokens") == []


@pytest.mark.parametrize(("scope", "cancels"), [("read", 403), ("submit", 404), ("admin", 404)])
def test_a_browser_may_do_what_its_token_may(service: RunningService, scope: str, cancels: int) -> None:
    """The cookie is the token, for no longer than the token is good; the audit is for admins."""
    made = make(service, scope, days=7)
    with httpx.Client(base_url=service.url, headers={"Sec-Fetch-Site": "same-origin"}, timeout=60) as browser:
        answer = browser.post("/sign-in", data={"token": made["token"]})
        assert answer.status_code == 303
        assert browser.cookies["replaybench_session"] == made["token"]
        age = re.search(r"Max-Age=(\d+)", answer.headers["set-cookie"])
        assert age is not None
        assert 6 * 86400 < int(age[1]) <= 7 * 86400
        assert browser.get("/workers").status_code == 200
        assert ('href="/audit"' in browser.get("/workers").text) is (scope == "admin")
        assert browser.get("/audit").status_code == (200 if scope == "admin" else 403)
        assert browser.post("/api/v1/jobs/1/cancel").status_code == cancels
        service.post(f"/tokens/{made['id']}/revoke")
        assert browser.get("/workers").status_code == 303


def test_a_stored_worker_token_works_and_is_no_way_into_the_pages(service: RunningService) -> None:
    """It registers a worker; the sign-in refuses it and sets no cookie."""
    made = make(service, "worker")
    with client(service, made["token"]) as http:
        assert http.post("/api/v1/worker/register", json={}).status_code == 422
        refused = http.post("/sign-in", data={"token": made["token"]})
    assert refused.status_code == 401
    assert "set-cookie" not in refused.headers
