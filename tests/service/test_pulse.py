"""The service's own threads: no log that cannot be written ends them, and `/health` tells of one that stands still."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.dispatch.sweep import Sweep
from service.errors import PartStalled
from service.pulse import Pulse, check
from service.tokens import ensure
from tests.support import embedded, running_service
from tests.support.fixtures import sqlite_url as database_url
from tests.support.postgres import free_port
from tests.support.repository import GitRepository
from tests.support.waiting import wait_for

__all__ = ["database_url"]

HOOK = {"x-github-event": "push", "x-github-delivery": "1", "x-hub-signature-256": "sha256=0"}


@pytest.fixture(params=["full disk", "pipe without reader"])
def unwritable(request: pytest.FixtureRequest) -> Iterator[int]:
    """A file descriptor that takes no byte."""
    if request.param == "full disk":
        file = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, file = os.pipe()
        os.close(reader)
    yield file
    os.close(file)


@pytest.fixture
def silent(unwritable: int, tmp_path: Path, sqlite_url: str) -> Iterator[httpx.Client]:
    """A service that cannot log, and has something to tell at each turn: its broker is away."""
    port, data = free_port(), tmp_path / "data"
    env = embedded.environment(
        DATABASE_URL=sqlite_url,
        BROKER_URL=f"redis://127.0.0.1:{free_port()}/0",
        REPLAYBENCH_DATA_DIR=str(data),
        REPLAYBENCH_PORT=str(port),
        REPLAYBENCH_SWEEP_S="0.2",
    )
    headers = {"Authorization": f"Bearer {ensure(data).submit}"}
    argv = [sys.executable, "-m", "service.cli.main", "serve"]
    with subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=unwritable, stderr=unwritable) as process:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60) as http:
                wait_for(lambda: process.poll() is not None or _healthy(http), "the service to be well", 60)
                yield http
        finally:
            process.kill()


def _healthy(http: httpx.Client) -> bool:
    try:
        return http.get("/api/v1/health").status_code == 200
    except httpx.TransportError:
        return False


def test_a_log_that_cannot_be_written_costs_its_lines_and_nothing_else(
    silent: httpx.Client, repo: GitRepository
) -> None:
    """What is stored is answered as stored, what is refused as refused, and the sweep goes on."""
    made = silent.post("/api/v1/repositories", json={"name": "demo", "url": str(repo.path)})
    assert made.status_code == 201, made.text
    for _ in range(2):  # the sweep that explains the second one comes behind one that had something to tell
        job = silent.post("/api/v1/jobs", json={"repository": "demo", "trees": [{"ref": "main"}]})
        assert job.status_code == 201, job.text
        cells = f"/api/v1/jobs/{job.json()['id']}/cells"

        def told(path: str = cells) -> Any:
            return silent.get(path).json()[0]["waiting_reason"]

        wait_for(told, "the sweep to say why the cell waits", 30)
    refused = silent.post("/hooks/github", content=b"{}", headers=HOOK)
    assert (refused.status_code, refused.json()["code"]) == (401, "hook-refused")
    assert _healthy(silent)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_health_tells_of_a_thread_that_has_ended(
    tmp_path: Path, sqlite_url: str, broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it ended of: a load balancer or an operator learns of it."""
    dead = threading.Event()

    def end(_: Sweep) -> None:
        dead.set()
        raise SystemExit

    monkeypatch.setattr(Sweep, "once", end)
    with running_service.running(tmp_path / "data", sqlite_url, broker_url, sweep_s=0.05) as service:
        wait_for(dead.is_set, "the sweep")
        answer = wait_for(lambda: _unwell(service.http), "the health to tell")
    assert (answer.status_code, answer.json()["code"]) == (503, "part-stalled")
    assert "its thread 'sweep' has ended" in answer.json()["detail"]


def _unwell(http: httpx.Client) -> httpx.Response | None:
    answer = http.get("/api/v1/health")
    return answer if answer.status_code != 200 else None


def test_a_thread_that_hangs_is_told_until_it_gets_on() -> None:
    """One that was not started or was stopped is not missed."""
    time, leave = [0.0], threading.Event()
    pulse = Pulse(threading.Thread(target=leave.wait, name="slow"), 10, lambda: time[0])
    check([pulse])
    pulse.start()
    time[0] = 10
    check([pulse])
    time[0] = 11
    with pytest.raises(PartStalled, match="'slow' has not got on for 11 s"):
        check([pulse])
    pulse.beat()
    check([pulse])
    leave.set()
    pulse.thread.join()
    with pytest.raises(PartStalled, match="'slow' has ended"):
        check([pulse])
    pulse.stop()
    check([pulse])
