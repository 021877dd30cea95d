"""Entity tags, ranges and digests: what a reader has already is not sent again, and what is sent can be checked."""

from __future__ import annotations

import base64
import hashlib
import os

import httpx
import pytest

from tests.support.repository import GitRepository
from tests.support.running_service import DrivenAttempt, RunningService
from worker.messages import Outcome

CONTENT = os.urandom(100_000)


@pytest.fixture
def attempt(service: RunningService, registered: GitRepository) -> DrivenAttempt:
    """An attempt that was granted just now."""
    service.submit("demo", "main")
    return service.driver().must_claim()


@pytest.fixture
def artifact(attempt: DrivenAttempt) -> str:
    """The path of an artifact of some bytes."""
    path = f"/api/v1/worker/attempts/{attempt.assignment.attempt}/artifacts/data.bin"
    put = attempt.service.worker_http.put(path, content=CONTENT, headers={"X-Lease": attempt.assignment.token})
    assert put.status_code == 201
    (found,) = attempt.service.get(f"/attempts/{attempt.assignment.attempt}")["artifacts"]
    return f"/api/v1/artifacts/{found['id']}"


def get(service: RunningService, path: str, **headers: str) -> httpx.Response:
    """Gets with headers."""
    return service.http.get(path, headers={key.replace("_", "-"): value for key, value in headers.items()})


@pytest.mark.parametrize("view", ["", "/cells", "/table", "/table?format=csv", "/table?format=markdown"])
def test_what_did_not_change_is_not_sent_again(attempt: DrivenAttempt, view: str) -> None:
    """304 without a body while nothing changes, and 200 with another tag after any change, be it a running case's."""
    service, path = attempt.service, f"/api/v1/jobs/{attempt.assignment.cell.job}{view}"
    first = get(service, path)
    tag = first.headers["etag"]
    for named in (tag, tag.removeprefix("W/"), f'"other", {tag}', "*"):
        same = get(service, path, If_None_Match=named)
        assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", tag), named
    for other in ('"other"', "", "nonsense", f'{tag[:-1]}x"'):
        assert get(service, path, If_None_Match=other).status_code == 200, other
    attempt.send(running="t.py::test_one")
    assert get(service, path, If_None_Match=tag).status_code == 200
    attempt.run({"a": Outcome.PASSED})
    last = get(service, path, If_None_Match=tag)
    assert last.status_code == 200
    assert last.headers["etag"] != tag
    assert last.content != first.content


def test_views_of_a_job_have_tags_of_their_own(attempt: DrivenAttempt) -> None:
    """No proxy can take one for another; a job that is not there is a 404, whatever is named."""
    job = f"/api/v1/jobs/{attempt.assignment.cell.job}"
    views = ("", "/cells", "/table", "/table?format=csv", "/table?format=markdown")
    assert len({get(attempt.service, job + view).headers["etag"] for view in views}) == len(views)
    for view in views:
        assert get(attempt.service, f"/api/v1/jobs/999{view}", If_None_Match="*").status_code == 404


def test_an_artifacts_digest_can_be_checked(service: RunningService, artifact: str) -> None:
    """`ETag` and `Repr-Digest` say the SHA-256 of the whole; who has it gets 304."""
    answer = get(service, artifact)
    digest = hashlib.sha256(answer.content).digest()
    assert answer.content == CONTENT
    assert answer.headers["etag"] == f'"{digest.hex()}"'
    assert answer.headers["repr-digest"] == f"sha-256=:{base64.b64encode(digest).decode()}:"
    assert answer.headers["accept-ranges"] == "bytes"
    same = get(service, artifact, If_None_Match=f'"{digest.hex()}"')
    assert (same.status_code, same.content) == (304, b"")


def test_an_artifact_can_be_had_in_parts(service: RunningService, artifact: str) -> None:
    """A download that broke goes on where it was; a part of other bytes than are stored is the whole instead."""
    size, tag = len(CONTENT), get(service, artifact).headers["etag"]
    for asked, start, end in (("0-9", 0, 10), ("99990-", 99_990, size), ("-5", size - 5, size), ("5-999999", 5, size)):
        part = get(service, artifact, Range=f"bytes={asked}", If_Range=tag)
        assert (part.status_code, part.content) == (206, CONTENT[start:end]), asked
        assert part.headers["content-range"] == f"bytes {start}-{end - 1}/{size}"
    assert get(service, artifact, Range="bytes=0-9", If_Range='"other"').status_code == 200


@pytest.mark.parametrize("asked", ["bytes=9-5", "bytes=x-y", "bytes=", "bytes=-", "lines=1-2", "bytes=0-1,5-6"])
def test_a_range_of_no_form_that_is_served_is_ignored(service: RunningService, artifact: str, asked: str) -> None:
    """The whole comes, as RFC 9110 has it for a `Range` that a server does not know."""
    answer = get(service, artifact, Range=asked)
    assert (answer.status_code, answer.content) == (200, CONTENT)


@pytest.mark.parametrize("asked", ["bytes=100000-", "bytes=200000-200001", "bytes=-0"])
def test_a_range_behind_the_end_is_refused(service: RunningService, artifact: str, asked: str) -> None:
    """By a problem document that says the size, unless the caller meant other bytes anyway."""
    answer = get(service, artifact, Range=asked)
    assert (answer.status_code, answer.json()["code"]) == (416, "range-refused")
    assert answer.headers["content-range"] == "bytes */100000"
    assert get(service, artifact, Range=asked, If_Range='"other"').status_code == 200
