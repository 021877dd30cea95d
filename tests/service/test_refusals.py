"""What the framework refuses by itself: with a code that stays, the value, and what to do, as every other refusal."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.fixtures import sqlite_url as database_url  # noqa: F401 -- it does not matter which database
from tests.support.running_service import RunningService

JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"repository": "\xff"}', "not UTF-8: byte 0xff after 16 bytes"),
        (b'{"repository": "\xc3', "not UTF-8: byte 0xc3 after 16 bytes"),
        (b'{"repository": ' + b"9" * 5000 + b"}", "cannot be read: Exceeds the limit"),
        (b"[" * 200_000, "nested too deeply"),
    ],
    ids=["bad byte", "cut", "long number", "deep"],
)
@pytest.mark.parametrize("path", ["/api/v1/jobs", "/api/v1/repositories"])
def test_a_body_of_which_nothing_can_be_made(service: RunningService, path: str, content: bytes, says: str) -> None:
    """It is told where it breaks, and what to send."""
    answer = service.http.post(path, content=content, headers=JSON)
    told = answer.json()
    assert (answer.status_code, told["status"], told["code"]) == (400, 400, "body-unreadable")
    assert says in told["detail"]
    assert "/openapi.json" in told["detail"]
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/api/v1/nope"), ("POST", "/nope"), ("DELETE", "/api/v1/jobs/1/x")]
)
def test_a_path_that_nothing_serves(service: RunningService, method: str, path: str) -> None:
    """It is told with its method, and where all paths are."""
    answer = service.http.request(method, path)
    assert (answer.status_code, answer.json()["code"]) == (404, "no-such-path")
    assert f"no {method} {path} here" in answer.json()["detail"]
    assert "/openapi.json" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/api/v1/jobs"),
        ("DELETE", "/api/v1/jobs/1"),
        ("PATCH", "/api/v1/repositories/demo"),
        ("GET", "/api/v1/jobs/1/rerun"),
        ("POST", "/api/v1/health"),
        ("PUT", "/api/v1/webhooks/deliveries"),  # which a path with a parameter fits too
        ("GET", "/api/v1/repositories/demo/credential"),
    ],
)
def test_a_method_that_the_path_is_not_served_for(service: RunningService, method: str, path: str) -> None:
    """`Allow` names all that it is served for, as the OpenAPI document has them, and so does the text."""
    answer = service.http.request(method, path)
    told = answer.json()
    assert (answer.status_code, told["code"]) == (405, "method-not-allowed")
    allowed = answer.headers["allow"].split(", ")
    assert allowed == told["allowed"] == served(service, path)
    assert told["detail"] == f"{method} is not allowed at {path}; use {' or '.join(allowed)}"


def served(service: RunningService, path: str) -> list[str]:
    """The methods of a path by the document."""
    paths: dict[str, Any] = service.http.get("/openapi.json").json()["paths"]

    def fits(template: str) -> bool:
        parts, told = path.split("/"), template.split("/")
        return len(parts) == len(told) and all(b.startswith("{") or a == b for a, b in zip(parts, told, strict=True))

    best = min((template for template in paths if fits(template)), key=lambda template: template.count("{"))
    return sorted(method.upper() for method in paths[best])


def test_a_page_that_is_sent_another_method_is_a_page_with_allow(service: RunningService) -> None:
    """For whoever reads pages."""
    answer = service.http.post("/workers", headers={"Accept": "text/html"})
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET")
    assert answer.headers["content-type"].startswith("text/html")
    assert "POST is not allowed at /workers; use GET" in answer.text


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "application/xml", None])
def test_json_that_is_not_said_to_be_json(service: RunningService, kind: str | None) -> None:
    """It is not guessed at; the answer says which type came and which to send, and repeats nothing of the body."""
    headers = {"Content-Type": kind} if kind else {}
    body = json.dumps({"name": "demo", "url": "/secret"}).encode()
    answer = service.http.post("/api/v1/repositories", content=body, headers=headers)
    told = answer.json()
    assert (answer.status_code, told["code"]) == (415, "media-type-refused")
    assert (repr(kind) if kind else "no Content-Type") in told["detail"]
    assert "send it with 'Content-Type: application/json'" in told["detail"]
    assert "secret" not in answer.text
