"""Many writers at once lose nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.repository import GitRepository
from tests.support.running_service import RunningService
from worker.messages import Outcome


@pytest.mark.long
def test_workers_that_write_at_once_lose_nothing(service: RunningService, registered: GitRepository) -> None:
    """Eight workers claim, stream and heartbeat side by side while readers read: no call fails, no case is lost."""
    jobs = [service.submit("demo", "main") for _ in range(16)]

    def work(number: int) -> int:
        driver, done = service.driver(f"w{number}"), 0
        while (attempt := driver.claim()) is not None:
            attempt.start(40)
            for start in range(0, 40, 4):
                attempt.send(*(attempt.case(f"t.py::c{start + i}") for i in range(4)))
                attempt.send()
                service.get("/jobs")
            attempt.end(40)
            done += 1
        return done

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(work, range(8))) == 16
    for job in jobs:
        assert service.get(f"/jobs/{job['id']}")["counts"] == {Outcome.PASSED: 40}
        assert service.get(f"/jobs/{job['id']}")["state"] == "passed"
