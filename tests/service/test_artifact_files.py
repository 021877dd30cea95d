"""The files behind artifacts: what a killed service had begun goes, and a disk without room is said."""

from __future__ import annotations

import errno
import hashlib
import os
import time
from pathlib import Path

import pytest

from service.results import artifacts
from tests.support import running_service
from tests.support.fixtures import sqlite_url as database_url
from tests.support.repository import PYTHON, GitRepository
from tests.support.running_service import DrivenAttempt, RunningService

__all__ = ["database_url"]


def put(service: RunningService, attempt: DrivenAttempt) -> tuple[int, str]:
    """Uploads an artifact; status and code."""
    path = f"/api/v1/worker/attempts/{attempt.assignment.attempt}/artifacts/log.txt"
    answer = service.worker_http.put(path, content=b"x" * 100, headers={"X-Lease": attempt.assignment.token})
    return answer.status_code, answer.json()["code"] if answer.content else ""


def test_what_a_killed_service_had_begun_to_write_is_removed_at_the_start(
    tmp_path: Path, database_url: str, broker_url: str
) -> None:
    """What was written to within the hour stays: another service may share the directory."""
    folder = tmp_path / "data/artifacts"
    (folder / "ab").mkdir(parents=True)
    old, fresh, whole = folder / "draft-0123", folder / "draft-4567", folder / "ab/abcd"
    for file in (old, fresh, whole):
        file.write_bytes(b"half")
    for file in (old, whole):
        os.utime(file, (time.time() - 7200,) * 2)
    with running_service.running(tmp_path / "data", database_url, broker_url):
        assert [file.exists() for file in (old, fresh, whole)] == [False, True, True]


def full(*_: object, **__: object) -> None:
    """What the kernel says where a disk has no room."""
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("act", ["fsync", "mkdir", "replace"])
def test_a_report_for_which_there_is_no_room_is_imported_later(
    service: RunningService, registered: GitRepository, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    """As an artifact is: 503 with a code, nothing stored, no draft left behind, whatever needed the room."""
    about = {"repository": "demo", "commit": "main", "runtime": PYTHON, "suite": "nightly"}
    report = b'<testsuite><testcase classname="a" name="b"/></testsuite>'

    def post() -> tuple[int, str]:
        answer = service.http.post("/api/v1/imports", params=about, content=report)
        return answer.status_code, answer.json().get("code", "")

    assert post() == (201, "")  # the repository's mirror is there from now on
    artifacts.file_of(service.settings.data_dir, hashlib.sha256(report).hexdigest()).unlink()
    with monkeypatch.context() as patch:
        patch.setattr(artifacts.os if act == "fsync" else artifacts.Path, act, full)
        assert post() == (503, "disk-full")
    assert not list(artifacts.folder(service.settings.data_dir).glob("draft-*"))
    assert len(service.get("/jobs")["items"]) == 1
    assert post() == (201, "")


def test_an_artifact_for_which_there_is_no_room_is_sent_again(
    service: RunningService, registered: GitRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """503 with a code and no draft left behind; with room again it is taken."""
    service.submit("demo", "main")
    attempt = service.driver().must_claim()
    with monkeypatch.context() as patch:
        patch.setattr(artifacts.os, "fsync", full)
        assert put(service, attempt) == (503, "disk-full")
    assert not list(artifacts.folder(service.settings.data_dir).glob("draft-*"))
    assert put(service, attempt) == (201, "")


def test_an_error_of_a_file_that_is_no_full_disk_is_a_fault(
    service: RunningService, registered: GitRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is told to make room for what is broken otherwise."""

    def broken(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    about = {"repository": "demo", "commit": "main", "runtime": PYTHON, "suite": "nightly"}
    with monkeypatch.context() as patch:
        patch.setattr(artifacts.os, "fsync", broken)
        answer = service.http.post("/api/v1/imports", params=about, content=b"<testsuite/>")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
