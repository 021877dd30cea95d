"""The way of one attempt, with real git, uv and pytest; the service is a stub that stores what it gets."""

from __future__ import annotations

import base64
import dataclasses
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.worker.support import Repository, StubService, wait_for
from worker.attempt import Host, run_attempt
from worker.client import Client
from worker.host_runtime import probe_hosts
from worker.messages import (
    Assignment,
    AttemptEndedEvent,
    CaseEvent,
    Cause,
    EnvironmentEvent,
    Phase,
    PhaseEvent,
    ProcessEndedEvent,
    RuntimeSpec,
    SuiteSpec,
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


def test_a_built_runtime_says_so_and_hands_its_log_on(host: Host, service: StubService, repository: Repository) -> None:
    """Without a host runtime that fits, uv builds one."""
    repository.commit(SUITE)
    built = dataclasses.replace(host, hosts={}, tools=dataclasses.replace(host.tools, cache=host.folder / "cache"))
    (host.folder / "cache").mkdir(parents=True)
    run(built, repository, install=("./thing",))
    (environment,) = [event for event in service.events if isinstance(event, EnvironmentEvent)]
    assert environment.record["origin"] == "built"
    assert b"installing pytest" in service.artifacts["runtime.log"]
    assert ended(service).cause is Cause.FINISHED


def test_a_runtime_that_cannot_be_is_environment(host: Host, service: StubService, repository: Repository) -> None:
    """No test is blamed; the log tells why."""
    repository.commit(SUITE)
    run(dataclasses.replace(host, tools=dataclasses.replace(host.tools, builds=False)), repository,
        runtime=RuntimeSpec("3.99"))  # fmt: skip
    assert ended(service).cause is Cause.ENVIRONMENT
    assert "py3.99" in ended(service).detail
    assert b"REPLAYBENCH_BUILDS" in service.artifacts["log.txt"]


def test_an_install_line_that_fails_is_environment(host: Host, service: StubService, repository: Repository) -> None:
    """With the line and uv's words."""
    repository.commit(SUITE)
    run(host, repository, install=("./nothing-here",))
    assert ended(service).cause is Cause.ENVIRONMENT
    assert "nothing-here" in ended(service).detail


def test_a_tree_that_differs_is_infrastructure(host: Host, service: StubService, repository: Repository) -> None:
    """Nothing of it runs."""
    repository.commit(SUITE)
    run(host, repository, tree="3" * 40)
    assert ended(service).cause is Cause.INFRASTRUCTURE
    assert "3333" in ended(service).detail
    assert not any(isinstance(event, CaseEvent) for event in service.events)


def test_missing_data_is_infrastructure(host: Host, service: StubService, repository: Repository) -> None:
    """With the setting to set."""
    repository.commit(SUITE)
    run(host, repository, suite=SuiteSpec("gate", ("tests",), mounts=("coco",)))
    assert ended(service).cause is Cause.INFRASTRUCTURE
    assert "REPLAYBENCH_MOUNTS" in ended(service).detail


SLOW = {"tests/test_it.py": "import time\ndef test_1(): pass\ndef test_2(): time.sleep(60)\ndef test_3(): pass\n"}


def in_thread(host: Host, repository: Repository, service: StubService) -> threading.Thread:
    thread = threading.Thread(target=run, args=(host, repository))
    thread.start()
    wait_for(lambda: any(batch.running and batch.running.endswith("test_2") for batch in service.batches), "test_2")
    return thread


def test_a_cancelled_attempt_ends_soon(host: Host, service: StubService, repository: Repository) -> None:
    """The answer to a heartbeat stops it; what had not run is said so."""
    repository.commit(SLOW)
    thread = in_thread(host, repository, service)
    service.stop = True
    thread.join(15)
    assert ended(service).cause is Cause.CANCELLED
    assert [event.outcome for event in service.events if isinstance(event, CaseEvent)] == [
        "passed",
        "not-observed",
        "not-observed",
    ]


def test_a_worker_that_stops_hands_its_cell_back(host: Host, service: StubService, repository: Repository) -> None:
    """As infrastructure, so that the service queues it again."""
    repository.commit(SLOW)
    thread = in_thread(host, repository, service)
    host.stopping.set()
    thread.join(15)
    assert ended(service).cause is Cause.INFRASTRUCTURE
    assert ended(service).detail == "the worker was stopped"


def test_a_fenced_attempt_goes_quietly(host: Host, service: StubService, repository: Repository) -> None:
    """No artifact, no last word, no spool."""
    repository.commit(SLOW)
    thread = in_thread(host, repository, service)
    service.script = [(409, {"code": "fenced"})] * 100
    thread.join(15)
    assert not thread.is_alive()
    assert service.artifacts == {}
    assert not any(isinstance(event, AttemptEndedEvent) for event in service.events)
    assert list(host.spool.iterdir()) == []


def test_a_service_that_is_away_meanwhile_gets_everything_later(
    host: Host, service: StubService, repository: Repository
) -> None:
    """The run goes on, and the events wait."""
    repository.commit(SUITE)
    service.script = [(503, {})] * 8
    run(host, repository, install=("./thing",))
    assert len([event for event in service.events if isinstance(event, CaseEvent)]) == 3
    assert ended(service).cause is Cause.FINISHED


def test_a_probe_is_run_and_noted(host: Host, service: StubService, repository: Repository) -> None:
    """The patched tree is what is tested."""
    repository.commit(SUITE)
    head = repository.git("rev-parse", "HEAD").decode().strip()
    repository.commit({"thing/thing/__init__.py": "VALUE = 2\n"})
    probe, tree = repository.git("diff", head, "HEAD"), repository.tree()
    repository.git("reset", "--quiet", "--hard", head)
    run(host, repository, install=("./thing",), probe=base64.b64encode(probe).decode(), probe_digest="1f2e", tree=tree)
    cases = {
        event.node_id.rpartition("::")[2]: event.outcome for event in service.events if isinstance(event, CaseEvent)
    }
    assert cases == {"test_good": "failed", "test_bad": "passed", "test_skipped": "skipped"}
    (environment,) = [event for event in service.events if isinstance(event, EnvironmentEvent)]
    assert environment.record["probe_digest"] == "1f2e"


def test_a_warm_attempt_costs_little(host: Host, service: StubService, repository: Repository) -> None:
    """Checkout, runtime and overlay of a warm cell together stay under a second."""
    repository.commit(SUITE)
    run(host, repository)
    service.stored.clear()
    began = time.monotonic()
    thread = threading.Thread(target=run, args=(host, repository))
    thread.start()
    wait_for(lambda: PhaseEvent(Phase.RUNNING) in service.events, "the running phase")
    seconds = time.monotonic() - began
    thread.join()
    assert seconds < 1.0
