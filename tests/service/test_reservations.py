"""Devices are kept for a cell that needs several, so that a stream of cells that need one does not starve it."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from service.clock import now
from service.models import Cell, Worker
from service.workers import reservation
from tests.support import running_service
from tests.support.repository import GitRepository
from tests.support.running_service import RunningService, WorkerDriver
from tests.support.waiting import wait_for
from worker.messages import Device, Outcome

SUITES = """
schema = 1
[matrix]
runtimes = ["py3.11"]
suites = ["one"]
[suites.one]
kind = "cuda"
[suites.two]
kind = "cuda.2"
[suites.host]
[suites.nowhere]
kind = "cuda.2"
gpu = ["NVIDIA B300"]
"""
KINDS = ("cpu", "cuda", "cuda.2")


@pytest.fixture
def service(tmp_path: Path, database_url: str, broker_url: str) -> Iterator[RunningService]:
    """A service that keeps devices after five seconds, which no test waits for: cells are made older."""
    with running_service.running(
        tmp_path / "data", database_url, broker_url, sweep_s=0.2, lease_s=20, reserve_after_s=5
    ) as it:
        yield it


@pytest.fixture
def suites(registered: GitRepository) -> None:
    registered.commit("suites", replaybench_dot_toml=SUITES)


def cards(host: str, count: int = 2) -> tuple[Device, ...]:
    return tuple(Device(n, f"GPU-{host}{n}", "NVIDIA H200", 143771, "580.95", "13.0") for n in range(count))


def worker(service: RunningService, name: str, host: str, count: int = 2) -> WorkerDriver:
    return service.driver(name, kinds=KINDS, devices=cards(host, count))


def submit(service: RunningService, suite: str, **more: Any) -> int:
    return int(service.submit("demo", "main", suites=[suite], **more)["id"])


def grown_old(service: RunningService, job: int, seconds: float = 60) -> None:
    """As if the job's cells had waited for that long."""
    with service.database.write() as session:
        session.execute(
            update(Cell).where(Cell.job_id == job).values(queued_at=now() - datetime.timedelta(seconds=seconds))
        )


def suite_of(driver: WorkerDriver, *free: str) -> str | None:
    attempt = driver.claim(*free)
    return attempt.assignment.cell.suite.name if attempt else None


def test_a_cell_for_two_cards_gets_them_in_the_end(service: RunningService, suites: None) -> None:
    """Each card that comes free is kept, by all workers of the host, until there are two; cells for no card go on."""
    busy, other = worker(service, "w1", "a"), worker(service, "w2", "a")
    for _ in range(6):
        submit(service, "one")
    running = busy.must_claim("GPU-a0", "GPU-a1"), busy.must_claim("GPU-a1")
    job = submit(service, "two")
    assert suite_of(busy) is None
    submit(service, "host")
    third = busy.must_claim("GPU-a0")
    assert third.assignment.cell.suite.name == "one"  # it has not waited for long yet
    grown_old(service, job)
    assert suite_of(busy, "GPU-a0") == "host"
    assert suite_of(other, "GPU-a0") is None
    (cell,) = service.get(f"/jobs/{job}/cells")
    said = "waits for 2 free CUDA devices; worker w1 keeps its own free for it"
    wait_for(lambda: service.get(f"/jobs/{job}/cells")[0]["waiting_reason"] == said, "the reason")
    for attempt in (*running, third):
        attempt.run({"a": Outcome.PASSED})
    granted = other.must_claim("GPU-a0", "GPU-a1").assignment
    assert (granted.cell.id, granted.devices) == (cell["id"], ("GPU-a0", "GPU-a1"))
    assert service.get(f"/jobs/{job}/cells")[0]["waiting_reason"] is None
    assert suite_of(busy, "GPU-a0") == "one"


def test_one_host_keeps_cards_and_the_others_do_not(service: RunningService, suites: None) -> None:
    """Nor does one whose cards could never serve it; when the keeper is gone, another takes over."""
    first, second, small = worker(service, "w1", "a"), worker(service, "w2", "b"), worker(service, "w3", "c", 1)
    for _ in range(8):
        submit(service, "one")
    job = submit(service, "two")
    grown_old(service, job)
    assert suite_of(first, "GPU-a0") is None
    assert suite_of(second, "GPU-b0") == "one"
    assert suite_of(small, "GPU-c0") == "one"
    with service.database.write() as session:
        session.execute(
            update(Worker).where(Worker.name == "w1").values(seen_at=now() - datetime.timedelta(seconds=60))
        )
    assert suite_of(second, "GPU-b0") is None
    assert suite_of(first, "GPU-a0") == "one"
    assert suite_of(first, "GPU-a0", "GPU-a1") == "two"  # whoever has both first gets it
    assert suite_of(second, "GPU-b0") == "one"


def test_more_cards_than_are_kept_are_for_all(service: RunningService, suites: None) -> None:
    """An older cell that needs one card gets the third; what has a higher priority gets any."""
    driver = worker(service, "w1", "a", 3)
    older, job, urgent = submit(service, "one"), submit(service, "two"), submit(service, "one", priority=5)
    grown_old(service, older, 90)
    grown_old(service, job)

    def claimed(*free: str) -> tuple[int, tuple[str, ...]]:
        assignment = driver.must_claim(*free).assignment
        return assignment.cell.job, assignment.devices

    assert driver.claim() is None
    assert claimed("GPU-a0") == (urgent, ("GPU-a0",))
    assert driver.claim("GPU-a1", "GPU-a2") is not None  # the two, though the older one stands before it
    assert claimed("GPU-a0", "GPU-a1", "GPU-a2") == (older, ("GPU-a0",))


def test_cards_that_the_cell_cannot_use_are_not_kept_for_it(service: RunningService, suites: None) -> None:
    """Nor any, once too few of them are fit."""
    drained = (*cards("a", 2), dataclasses.replace(cards("a", 3)[2], drained="Xid 48"))
    driver = service.driver("w1", kinds=KINDS, devices=drained)
    job = submit(service, "two")
    grown_old(service, job)
    submit(service, "one")
    assert suite_of(driver, "GPU-a0") is None
    driver.beat(tuple(dataclasses.replace(card, drained="Xid 48" * card.index) for card in cards("a", 2)))
    assert suite_of(driver, "GPU-a0") == "one"


def test_cells_that_nobody_can_serve_hide_none_that_has_waited_behind_them(
    service: RunningService, suites: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are, and however urgent."""
    monkeypatch.setattr(reservation, "PAGE", 2)
    driver = worker(service, "w1", "a")
    for suite in ("nowhere", "nowhere", "nowhere", "nowhere", "nowhere", "two"):
        grown_old(service, submit(service, suite, priority=0 if suite == "two" else 5))
    submit(service, "one")
    assert suite_of(driver, "GPU-a0") is None
    assert suite_of(driver, "GPU-a0", "GPU-a1") == "two"
    assert suite_of(driver, "GPU-a0") == "one"
