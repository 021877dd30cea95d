"""Claims: who gets which cell, in which order, and for how long. The database does not matter to this."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from service.models import Attempt
from tests.support import repository
from tests.support.fixtures import sqlite_url as database_url
from tests.support.repository import PYTHON, GitRepository
from tests.support.running_service import RunningService
from worker.encoding import encode
from worker.messages import CONTRACT, Capabilities, Device, Outcome, Registration, RuntimeSpec

__all__ = ["database_url"]


@pytest.fixture
def two(service: RunningService, registered: GitRepository, tmp_path: Path) -> Iterator[RunningService]:
    """The service with a second repository ``other``."""
    other = repository.make(tmp_path / "other")
    service.post("/repositories", {"name": "other", "url": str(other.path)}, 201)
    return service


def test_the_order_of_claims(two: RunningService) -> None:
    """Priority first, then the repository with the fewest cells under way, then the time of queueing."""
    jobs = [two.submit("demo", "main")["id"] for _ in range(3)]
    late = two.submit("other", "main")["id"]
    urgent = two.submit("demo", "main", priority=5)["id"]
    driver = two.driver()
    order = [driver.must_claim().assignment.cell.job for _ in range(5)]
    assert order == [urgent, late, *jobs]


FIVE = f'schema = 1\n[matrix]\nruntimes = ["{PYTHON}"]\n' + "".join(f"[suites.s{n}]\n" for n in range(5))


def test_a_big_job_starves_no_other_repository(two: RunningService, registered: GitRepository) -> None:
    """500 cells came first. One slot that runs cell after cell still takes turns between the repositories."""
    registered.commit("five suites", replaybench_dot_toml=FIVE)
    big = two.submit("demo", "main", repeat=100)["id"]
    assert two.get(f"/jobs/{big}")["cells"] == {"queued": 500}
    small = two.submit("other", "main", repeat=3)["id"]
    driver = two.driver()
    order = []
    for _ in range(8):
        attempt = driver.must_claim()
        order.append(attempt.assignment.cell.job)
        attempt.run({"a": Outcome.PASSED})
    assert order == [big, small, big, small, big, small, big, big]


def test_a_repository_that_waits_long_takes_no_more_than_its_turn(two: RunningService) -> None:
    """With several slots, too: under way and served last decide, not who asked first."""
    big = two.submit("demo", "main", repeat=20)["id"]
    small = two.submit("other", "main", repeat=2)["id"]
    driver = two.driver()
    assert [driver.must_claim().assignment.cell.job for _ in range(5)] == [big, small, big, small, big]


def test_what_is_run_again_stands_behind_what_waited_before(service: RunningService, registered: GitRepository) -> None:
    """A cell's number is no ticket: the time of its queueing is."""
    first = service.submit("demo", "main")["id"]
    driver = service.driver()
    driver.must_claim().run({"a": Outcome.FAILED})
    second = service.submit("demo", "main")["id"]
    service.post(f"/jobs/{first}/rerun")
    assert [driver.must_claim().assignment.cell.job for _ in range(2)] == [second, first]


SUITES = f"""
schema = 1
[matrix]
runtimes = ["{PYTHON}"]
[suites.gpu]
kind = "cuda"
[suites.pair]
kind = "cuda.2"
[suites.data]
mounts = ["coco"]
[suites.web]
network = true
[suites.lab]
kind = "lab"
"""


def test_a_worker_gets_only_what_it_can_serve(service: RunningService, registered: GitRepository) -> None:
    """Kind, free devices, mounts, network and host runtimes decide, whatever waits before."""
    registered.commit("suites", replaybench_dot_toml=SUITES)
    job = service.submit("demo", "main")
    devices = tuple(Device(n, f"GPU-{n}", "NVIDIA H200", 143771, "570.1", "12.8") for n in range(2))

    def suites(name: str, *free: str, **offered: Any) -> list[str]:
        driver, found = service.driver(name, **offered), []
        while (attempt := driver.claim(*free)) is not None:
            found.append(attempt.assignment.cell.suite.name)
        return found

    assert suites("plain", network=False) == []
    host = (RuntimeSpec("3.10"),)
    assert suites("host", builds=False, host_runtimes=host, kinds=("lab",)) == []
    assert suites("lab", builds=False, host_runtimes=(RuntimeSpec.parse(PYTHON),), kinds=("lab",)) == ["lab"]
    assert suites("busy", kinds=("cuda", "cuda.2"), devices=devices) == []
    assert suites("half", "GPU-1", kinds=("cuda.2", "cuda"), devices=devices) == ["gpu"]
    assert suites("whole", "GPU-0", "GPU-1", kinds=("cuda.2",), devices=devices) == ["pair"]
    assert suites("data", mounts=("coco",), network=False) == ["data"]
    assert suites("web") == ["web"]
    assert service.get(f"/jobs/{job['id']}")["cells"] == {"claimed": 5}


def test_a_worker_of_another_release_is_refused(service: RunningService) -> None:
    """With both numbers in the text."""
    body = encode(Registration(CONTRACT + 1, "w1", "boot", "host", Capabilities(("cpu",))))
    answer = service.worker_http.post("/api/v1/worker/register", json=body)
    assert (answer.status_code, answer.json()["code"]) == (409, "contract-mismatch")
    assert f"contract {CONTRACT + 1}, this service {CONTRACT}" in answer.json()["detail"]


def test_a_worker_that_says_its_word_again_keeps_its_leases(service: RunningService, registered: GitRepository) -> None:
    """The same start registers again when its first answer was lost."""
    service.submit("demo", "main")
    driver = service.driver()
    attempt = driver.must_claim()
    body = Registration(CONTRACT, "w1", driver.boot, "host", Capabilities(("cpu",)))
    assert service.worker_http.post("/api/v1/worker/register", json=encode(body)).json()["worker"] == driver.worker
    attempt.run({"a": Outcome.PASSED})


def test_a_heartbeat_renews_the_lease(service: RunningService, registered: GitRepository) -> None:
    """Its answer says for how long, counted from now; what it says of the running case is shown."""
    service.submit("demo", "main")
    attempt = service.driver().must_claim()

    def expires() -> datetime.datetime:
        with service.database.read() as session:
            return session.scalars(select(Attempt.lease_expires_at)).one()

    before = expires()
    assert attempt.send(running="a::one", log_tail="tail") == {"lease_s": 20.0, "acknowledged": 0, "stop": False}
    assert expires() > before
    shown = service.get(f"/attempts/{attempt.assignment.attempt}")
    assert (shown["running_case"], shown["log_tail"]) == ("a::one", "tail")
