"""Who may do what: nothing without a token, and nothing with the wrong one."""

from __future__ import annotations

import re
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from service import tokens
from service.app import create_app
from service.settings import Settings
from service.workers import views
from tests.support import running_service
from tests.support.fixtures import sqlite_url as database_url
from tests.support.repository import GitRepository
from tests.support.running_service import RunningService, WorkerDriver

__all__ = ["database_url"]
ENROLL = "/api/v1/worker/enroll"


def api(routes: list[BaseRoute]) -> list[tuple[str, str]]:
    """Every method and path under /api/v1 but health, with numbers for their parameters."""
    found = []
    for route in routes:
        if isinstance(route, APIRoute):
            if route.path.startswith("/api/v1/") and route.path != "/api/v1/health":
                found += [(method, re.sub(r"{\w+}", "1", route.path)) for method in route.methods]
        else:  # a router that was included
            found += api(
                list(getattr(route, "routes", None) or getattr(getattr(route, "original_router", None), "routes", []))
            )
    return found


def test_nothing_works_without_a_token(service: RunningService) -> None:
    """Every route of the API answers 401, whatever is sent, and says where a token is; a wrong one likewise."""
    routes = api(list(create_app(Settings(data_dir=service.settings.data_dir)).routes))
    assert len(routes) > 18, routes
    for method, path in routes:
        wanted = "tokens/worker" if path.startswith("/api/v1/worker/") else "tokens/submit"
        if path == ENROLL:
            wanted = "`replaybench workers enroll NAME`"
        with httpx.Client(base_url=service.url, timeout=60) as http:
            answer = http.request(method, path)
            assert (answer.status_code, answer.json()["code"]) == (401, "token-missing"), (method, path)
            assert answer.headers["www-authenticate"] == "Bearer"
            assert wanted in answer.json()["detail"]
            for value in ("Bearer x", "Bearer \xe4", "bearer rb_", "Basic x", "Bearer"):
                headers = {"Authorization": value.encode("latin-1")}
                assert http.request(method, path, headers=headers).status_code == 401, (method, path, value)
            assert (
                http.request(method, path, cookies=None, headers={"Cookie": "replaybench_session=x"}).status_code == 401
            )
            refused = http.request(method, path, headers={"Authorization": "Bearer rb_wrong"})
            assert (refused.status_code, refused.json()["code"]) == (401, "token-refused"), (method, path)


def scope_of(method: str, path: str) -> str:
    """The scope that a route asks for, by rule. A route that needs another says so here."""
    if path == ENROLL:
        return "enroll"
    if path.startswith("/api/v1/worker/"):
        return "worker"
    if path.startswith(("/api/v1/tokens", "/api/v1/audit", "/api/v1/workers/enrolments")):
        return "admin"
    if method != "GET" and path.startswith(("/api/v1/webhooks", "/api/v1/repositories/")):  # they hold credentials
        return "submit" if path.endswith("/redeliver") else "admin"
    return "read" if method == "GET" else "submit"


LETS_IN = {
    "read": {"read", "submit", "admin"},
    "submit": {"submit", "admin"},
    "worker": {"worker"},
    "admin": {"admin"},
    "enroll": set[str](),  # nobody asks for such a token by its scope
}
"""For each scope that a route asks for, the tokens that are let in."""


def test_no_route_works_without_its_scope(service: RunningService) -> None:
    """Every route, with a token of each scope: in with that scope or a wider one, else 403, which names the scope."""
    made = {
        scope: service.post("/tokens", {"name": scope, "scopes": [scope]}, 201)["token"]
        for scope in ("read", "submit", "worker", "admin")
    }
    for method, path in api(list(create_app(Settings(data_dir=service.settings.data_dir)).routes)):
        wanted = scope_of(method, path)
        for scope, token in made.items():
            # Nothing revokes token 1 on the way: this is the number that every path has, and "read" was made first.
            target = path.replace("/tokens/1/", "/tokens/99/")
            with httpx.Client(base_url=service.url, headers={"Authorization": f"Bearer {token}"}, timeout=60) as http:
                answer = http.request(method, target)
            if scope in LETS_IN[wanted]:
                assert answer.status_code not in {401, 403}, (method, path, scope, answer.text)
            else:
                assert (answer.status_code, answer.json()["code"]) == (403, "scope-missing"), (method, path, scope)
                assert answer.json()["scope"] == wanted


def test_the_openapi_document_says_what_needs_a_token(service: RunningService) -> None:
    """Everything under /api/v1 but health."""
    found = service.http.get("/openapi.json").json()
    assert found["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    for path, methods in ((path, methods) for path, methods in found["paths"].items() if path.startswith("/api/v1/")):
        for method, operation in methods.items():
            assert operation.get("security") == (None if path == "/api/v1/health" else [{"token": []}]), (method, path)


def test_the_submit_token_of_the_data_directory_administers_and_one_of_the_environment_does_not(
    tmp_path: Path, database_url: str, broker_url: str
) -> None:
    """Who reads the file owns everything; the other is what CI holds: it submits, reads and registers, as before."""
    given = "ci-token-" + "x" * 24
    for token, status in (("", 200), (given, 403)):
        data = tmp_path / f"data{status}"
        with running_service.running(data, database_url, broker_url, submit_token=token) as it:
            known = token or tokens.ensure(data).submit
            with httpx.Client(base_url=it.url, headers={"Authorization": f"Bearer {known}"}, timeout=60) as http:
                assert http.get("/api/v1/tokens").status_code == status
                assert http.get("/api/v1/jobs").status_code == 200
                body = {"name": "demo", "url": "/somewhere"}
                assert http.post("/api/v1/repositories", json=body).status_code == 201


def test_reading_can_be_public(tmp_path: Path, database_url: str, broker_url: str) -> None:
    """Everybody reads, API and pages, also with a cookie that is out of date; nobody changes or administers."""
    with (
        running_service.running(tmp_path / "data", database_url, broker_url, public_reading=True) as it,
        httpx.Client(base_url=it.url, timeout=60) as http,
    ):
        assert http.get("/api/v1/jobs").status_code == 200
        assert "Sign in" in http.get("/").text
        assert "data-next" not in http.get("/sign-in").text  # or the page would lead straight back
        for path in ("/api/v1/tokens", "/api/v1/audit"):
            assert http.get(path).json()["code"] == "token-missing"
        assert http.get("/audit").status_code == 303
        assert http.post("/api/v1/jobs/1/cancel").json()["code"] == "token-missing"
        assert http.get("/api/v1/jobs", headers={"Authorization": "Bearer wrong"}).status_code == 401
        http.cookies.set("replaybench_session", "out-of-date")
        assert http.get("/").status_code == 200


def test_health_needs_no_token_and_tells_nothing(service: RunningService) -> None:
    """A status, a version and the contract's number."""
    found = httpx.get(f"{service.url}/api/v1/health", timeout=60).json()
    assert found == {"status": "ok", "version": found["version"], "contract": 2}


def test_the_tokens_files_are_their_owners_alone(service: RunningService) -> None:
    """Mode 0600, made once, different from each other."""
    files = [tokens.path(service.settings.data_dir, scope) for scope in tokens.FILES]
    assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600, 0o600]
    assert stat.S_IMODE(files[0].parent.stat().st_mode) == 0o700
    known = tokens.ensure(service.settings.data_dir)
    assert known == tokens.ensure(service.settings.data_dir)
    assert known.submit != known.worker
    assert len(known.submit) > 40


def test_services_that_start_at_once_agree_on_the_tokens(tmp_path: Path) -> None:
    """Whoever is first, all read the same, and no draft is left."""
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: tokens.ensure(tmp_path), range(8)))
    assert len(found) == 1
    assert {file.name for file in (tmp_path / "tokens").iterdir()} == {"submit", "worker"}


def test_an_artifact_beyond_the_cap_is_refused_and_leaves_no_file(
    tmp_path: Path, database_url: str, broker_url: str, repo: GitRepository
) -> None:
    """Exactly the cap is taken; one byte more is a 413."""
    with running_service.running(tmp_path / "data", database_url, broker_url, artifact_cap_bytes=1000) as service:
        service.post("/repositories", {"name": "demo", "url": str(repo.path)}, 201)
        service.submit("demo", "main")
        driver: WorkerDriver = service.driver()
        attempt = driver.must_claim().assignment
        path = f"/api/v1/worker/attempts/{attempt.attempt}/artifacts/a.log"
        headers = {"X-Lease": attempt.token}
        refused = service.worker_http.put(path, content=b"x" * 1001, headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (413, "too-large")
        assert not [file for file in (tmp_path / "data/artifacts").rglob("*") if file.is_file()]
        assert service.worker_http.put(path, content=b"x" * 1000, headers=headers).status_code == 201


def test_a_body_beyond_the_cap_is_refused_while_it_is_read(tmp_path: Path, database_url: str, broker_url: str) -> None:
    """Also of a caller without a token, whose JSON would otherwise be read in whole first."""
    caps = {"body_cap_bytes": 2000, "artifact_cap_bytes": 1000}
    with running_service.running(tmp_path / "data", database_url, broker_url, **caps) as service:
        body = {"name": "demo", "url": "/" + "x" * 1900}
        assert service.http.post("/api/v1/repositories", json=body).status_code == 201
        body = {"name": "demo", "url": "/" + "x" * 2000}
        for http in (service.http, httpx.Client(base_url=service.url, timeout=60)):
            answer = http.post("/api/v1/repositories", json=body)
            assert (answer.status_code, answer.json()["code"]) == (413, "too-large")
            http.close()


def test_a_fault_of_ours_is_a_problem_document_too(service: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    """It tells nothing of the inside, and the service goes on."""

    def fail(*_: object) -> None:
        raise KeyError("inside")

    monkeypatch.setattr(views, "list_workers", fail)
    answer = service.http.get("/api/v1/workers")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert answer.headers["content-type"] == "application/problem+json"
    assert "inside" not in answer.text
    assert (
        httpx.get(f"{service.url}/api/v1/health", timeout=60).status_code == 200
    )  # the server closed the other connection


def test_a_refused_body_is_not_repeated(service: RunningService) -> None:
    """Where a key is missing, the answer names the keys that came and none of the values beside them."""
    answer = service.http.post("/api/v1/repositories", json={"url": "secret-value"})
    assert answer.status_code == 422
    assert "name" in answer.text
    assert "'url'" in answer.text
    assert "secret-value" not in answer.text


def test_no_page_loads_from_elsewhere(service: RunningService) -> None:
    """FastAPI's own pages about the API would, so they are not served; the document itself is."""
    assert service.http.get("/docs").status_code == 404
    assert service.http.get("/openapi.json").json()["info"]["title"] == "Replaybench"
