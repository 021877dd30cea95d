"""The OpenAPI document: its errors are those that are sent, its examples fit, and the service does what it says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from service.errors import ServiceError
from tests.support.fixtures import sqlite_url as database_url  # noqa: F401 -- it does not matter which database
from tests.support.repository import GitRepository, make
from tests.support.running_service import RunningService
from worker.messages import Outcome

EXCLUDED = ",".join((
    "ignored_auth",  # without a token every call is a 401, which test_access shows; the check takes 404 for no check
    "unsupported_method",  # Starlette answers 405 as it should, except to methods of no standard
    "positive_data_acceptance",  # a body of the right shape may name an unknown ref, suite or pattern: that is a 422
))  # fmt: skip

CONFIG = """\
schema = 1
[matrix]
runtimes = ["py3.9", "py3.11"]
suites = ["gate"]
[suites.gate]
paths = ["tests"]
"""


@pytest.fixture
def document(service: RunningService) -> dict[str, Any]:
    """The document that the running service gives."""
    found: dict[str, Any] = service.http.get("/openapi.json").json()
    return found


@pytest.fixture
def demo(service: RunningService, tmp_path: Path) -> GitRepository:
    """The repository that the examples speak of, registered."""
    repo = make(tmp_path / "examples", config=CONFIG)
    service.post("/repositories", {"name": "graphreplay", "url": str(repo.path)}, 201)
    return repo


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Path, method and operation, of each."""
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield path, method, operation


def examples(node: Any) -> Iterator[tuple[dict[str, Any], Any]]:
    """Every schema with an example of it, wherever it stands."""
    if isinstance(node, list):
        for item in node:
            yield from examples(item)
    if not isinstance(node, dict):
        return
    if "schema" in node and isinstance(node.get("examples"), dict):
        yield from ((node["schema"], example["value"]) for example in node["examples"].values())
    elif isinstance(node.get("examples"), list):
        yield from ((node, example) for example in node["examples"])
    for item in node.values():
        yield from examples(item)


def test_every_example_fits_its_schema(document: dict[str, Any]) -> None:
    """Those of bodies, of fields and of errors."""
    found = list(examples(document))
    assert len(found) > 30
    for schema, example in found:
        whole = {**{key: value for key, value in schema.items() if key != "examples"},
                 "components": document["components"]}  # fmt: skip
        jsonschema_rs.validator_for(whole).validate(example)


def test_every_example_of_a_body_is_taken(
    service: RunningService, document: dict[str, Any], demo: GitRepository
) -> None:
    """What the document proposes to send works as it stands."""
    for example in document["components"]["schemas"]["JobInput"]["examples"]:
        service.post("/jobs", example, 200 if example.get("dry_run") else 201)
    for example in document["paths"]["/api/v1/imports"]["post"]["requestBody"]["content"]["application/xml"][
        "examples"
    ].values():
        about = {"repository": "graphreplay", "commit": "main", "runtime": "py3.11", "suite": "gate"}
        answer = service.http.post("/api/v1/imports", params=about, content=example["value"])
        assert (answer.status_code, answer.json()["state"]) == (201, "failed")


def test_every_error_is_told(document: dict[str, Any]) -> None:
    """Each code stands in the enumeration, and each operation names the problem documents that it can answer with."""
    codes = set(document["components"]["schemas"]["Problem"]["properties"]["code"]["enum"])
    assert {kind.code for kind in ServiceError.__subclasses__()} <= codes
    told = {
        code
        for response in document["components"]["responses"].values()
        for code in response["content"]["application/problem+json"]["examples"]
    }
    assert codes == told
    for path, method, operation in operations(document):
        assert "HTTPValidationError" not in str(operation), (path, method)
        assert "503" in operation["responses"], (path, method)


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("who", ["people", "workers"])
def test_the_service_does_what_its_document_says(service: RunningService, demo: GitRepository, who: str) -> None:
    """Schemathesis sends what fits and what does not: no 5xx, and no status, header or body that the document lacks."""
    service.submit("graphreplay", "main")
    service.submit("graphreplay", "main")
    service.driver().must_claim().run({"a": Outcome.PASSED, "b": Outcome.FAILED})
    # 502 says that somebody else's git server cannot be fetched from.
    config = '[checks.not_a_server_error]\nexpected-statuses = ["2xx", "3xx", "4xx", 502]\n'
    (service.settings.data_dir / "schemathesis.toml").write_text(config)
    http = service.http if who == "people" else service.worker_http
    chosen = ("--exclude-path-regex", "^/api/v1/worker/|/stream$")
    if who == "workers":
        chosen = ("--include-path-regex", "^/api/v1/worker/")
    done = subprocess.run(
        [Path(sys.executable).with_name("schemathesis"), "run", f"{service.url}/openapi.json",
         "-H", f"Authorization: {http.headers['Authorization']}", *chosen,
         "--phases", "examples,coverage,fuzzing", "--max-examples", "25", "--max-time", "40", "--seed", "1",
         "--exclude-checks", EXCLUDED, "--request-timeout", "20", "--no-color",
         "--generation-database", "none", "--suppress-health-check", "all"],
        capture_output=True, text=True, check=False, cwd=service.settings.data_dir,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]
