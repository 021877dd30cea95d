"""The way of one attempt, with real git, uv and pytest; the service is a stub that stores what it gets."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.worker.support import Repository, StubService
from worker.attempt import Host, run_attempt
from worker.client import Client
from worker.host_runtime import probe_hosts
from worker.messages import (
    Assignment,
    AttemptEndedEvent,
    CaseEvent,
    Cause,
    EnvironmentEvent,
    ProcessEndedEvent,
)
from worker.runtime import Tools
from worker.settings import Settings

SUITE = {
    "tests/test_it.py": """
import pytest
import thing

def test_good():
    assert thing.VALUE == 1

def test_bad():
    assert thing.VALUE == 2

@pytest.mark.skip(reason="not now")
def test_skipped():
    pass
""",
    "thing/pyproject.toml": """
[project]
name = "thing"
version = "0.3"
[build-system]
requires = ["uv_build>=0.9,<0.14"]
build-backend = "uv_build"
[tool.uv.build-backend]
module-name = "thing"
module-root = ""
""",
    "thing/thing/__init__.py": "VALUE = 1\n",
}


@pytest.fixture
def host(service: StubService, shared_cache: Path, tmp_path: Path, uv: str) -> Iterator[Host]:
    settings = Settings(
        BROKER_URL="redis://nowhere",
        REPLAYBENCH_SERVICE_URL=service.url,
        REPLAYBENCH_WORKER_TOKEN="secret",
        REPLAYBENCH_CACHE_DIR=shared_cache,
        REPLAYBENCH_KILL_GRACE_S=0.5,
    )
    client = Client(service.url, "secret")
    yield Host(
        settings=settings,
        client=client,
        tools=Tools(uv, shared_cache, 120.0),
        hosts=probe_hosts([Path(sys.executable)]),
        folder=tmp_path / "attempts",
        spool=tmp_path / "spool",
        heartbeat_s=0.3,
        stopping=threading.Event(),
    )
    client.close()


def run(host: Host, repository: Repository, **cell: Any) -> None:
    run_attempt(Assignment(5, 1, "lease", 30.0, repository.cell(**cell)), (), host)


def ended(service: StubService) -> AttemptEndedEvent:
    event = service.events[-1]
    assert isinstance(event, AttemptEndedEvent)
    return event


def test_an_attempt_streams_every_step_and_case(host: Host, service: StubService, repository: Repository) -> None:
    """Phases, environment, cases and the end arrive in order; the tree's package comes from the install line."""
    repository.commit(SUITE)
    run(host, repository, install=("./thing",))
    kinds = [event.kind for event in service.events]
    assert kinds[:3] == ["phase", "environment", "phase"]
    assert kinds[3:5] == ["process-started", "collected"]
    assert kinds[-2:] == ["process-ended", "attempt-ended"]
    cases = {
        event.node_id.rpartition("::")[2]: event.outcome for event in service.events if isinstance(event, CaseEvent)
    }
    assert cases == {"test_good": "passed", "test_bad": "failed", "test_skipped": "skipped"}
    (process,) = [event for event in service.events if isinstance(event, ProcessEndedEvent)]
    assert (process.exit_code, process.collected, process.reported, process.finished) == (1, 3, 3, True)
    assert ended(service).cause is Cause.FINISHED
    (environment,) = [event for event in service.events if isinstance(event, EnvironmentEvent)]
    assert environment.record["packages"]["thing"] == "0.3"
    assert environment.record["origin"] == "host"
    assert b"1 failed, 1 passed, 1 skipped" in service.artifacts["log.txt"]
    assert list(host.folder.iterdir()) == []
    assert list(host.spool.iterdir()) == []
