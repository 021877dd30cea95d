"""The sweep: says why a cell waits, wakes again what still waits, and never ends."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any

import pytest
import redis
from kombu.exceptions import OperationalError
from sqlalchemy import update

from service.clock import now
from service.dispatch import sweep
from service.dispatch.broker import Broker
from service.models import Attempt, Cell, Worker
from tests.support import proxy
from tests.support.fixtures import sqlite_url as database_url
from tests.support.repository import GitRepository
from tests.support.running_service import RunningService
from tests.support.waiting import wait_for
from worker.messages import Device, Outcome

__all__ = ["database_url"]


CUDA = 'schema = 1\n[matrix]\nruntimes = ["py3.11"]\n[suites.gpu]\nkind = "cuda"\n'


def reason(service: RunningService, job: Any) -> str | None:
    """Why the job's cell waits."""
    (cell,) = service.get(f"/jobs/{job['id']}/cells")
    found: str | None = cell["waiting_reason"]
    return found


def test_a_cell_that_nobody_can_serve_says_why(service: RunningService, registered: GitRepository) -> None:
    """No worker at all, then one that does not fit, then one that does; a reader of the job is told each time."""
    job = service.submit("demo", "main")
    revision = job["revision"]
    wait_for(lambda: "no worker is alive" in (reason(service, job) or ""), "the first reason")
    assert service.get(f"/jobs/{job['id']}")["revision"] > revision
    service.driver("gpu", kinds=("cuda",))
    said = "no live worker can serve it: gpu serves cuda, not cpu"
    wait_for(lambda: reason(service, job) == said, "the second reason")
    driver = service.driver("cpu")
    wait_for(lambda: reason(service, job) is None, "the reason to be taken back")
    with service.database.write() as session:
        long_ago = now() - datetime.timedelta(seconds=10 * service.settings.lease_s)
        session.execute(update(Worker).values(seen_at=long_ago))
    wait_for(lambda: "no worker is alive" in (reason(service, job) or ""), "silent workers to count as gone")
    driver.must_claim().run({"a": Outcome.PASSED})
    assert reason(service, job) is None


def test_a_cell_whose_cards_are_drained_says_so(service: RunningService, registered: GitRepository) -> None:
    """With each card's reason, as the worker tells it between two claims; it is taken back when one is fit again."""
    registered.commit("cards", replaybench_dot_toml=CUDA)
    fit = Device(1, "GPU-1", "NVIDIA H200", 143771, "580.95", "13.0")
    driver = service.driver("h200", kinds=("cuda",), devices=(fit,))
    job = service.submit("demo", "main")
    drained = dataclasses.replace(fit, drained="Xid 79 (the GPU has fallen off the bus)", xids=(79,))
    driver.beat((drained,))
    said = "no live worker can serve it: h200 has 0 of the 1 CUDA devices needed; GPU 1 drained: Xid 79"
    wait_for(lambda: (reason(service, job) or "").startswith(said), "the reason")
    assert driver.claim("GPU-1") is None
    (worker,) = service.get("/workers")
    assert (worker["capabilities"]["devices"][0]["xids"], worker["capabilities"]["kinds"]) == ([79], ["cuda"])
    driver.beat()
    assert driver.claim("GPU-1") is None
    driver.beat((fit,))
    wait_for(lambda: reason(service, job) is None, "the reason to be taken back")
    assert driver.must_claim("GPU-1").assignment.devices == ("GPU-1",)


def test_of_many_cells_that_wait_each_says_why(
    service: RunningService, registered: GitRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sweep looks at some, the next at those behind them: none waits in silence behind others."""
    monkeypatch.setattr(sweep, "LOOKED_AT", 3)
    job = service.submit("demo", "main", repeat=10)

    def all_say() -> bool:
        cells = service.get(f"/jobs/{job['id']}/cells")
        return all("no worker is alive" in (cell["waiting_reason"] or "") for cell in cells)

    wait_for(all_say, "every cell to say why it waits")


def test_a_lost_wake_up_is_sent_again_and_one_that_lies_unread_is_not(
    service: RunningService, registered: GitRepository, broker_url: str
) -> None:
    """Each kind that waits has one wake-up in its queue."""
    with redis.Redis.from_url(broker_url) as client:
        client.delete("cpu")
        service.submit("demo", "main")
        service.submit("demo", "main")
        assert client.llen("cpu") == 2
        client.delete("cpu")
        wait_for(lambda: client.llen("cpu"), "the sweep to wake again")
        service.driver()
        job = service.submit("demo", "main")
        wait_for(lambda: reason(service, job) is None, "a sweep")
        assert client.llen("cpu") == 2  # the sweep's and the submission's
        client.delete("cpu")


def test_a_row_that_cannot_be_read_does_not_end_the_sweep(service: RunningService, registered: GitRepository) -> None:
    """What a fault left in one cell holds nobody else's lease for ever."""
    broken, other = service.submit("demo", "main"), service.submit("demo", "main", priority=1)
    with service.database.write() as session:
        session.execute(update(Cell).where(Cell.job_id == broken["id"]).values(suite_spec={"odd": 1}))
    attempt = service.driver().must_claim()
    assert attempt.assignment.cell.job == other["id"]

    def ended() -> bool:
        with service.database.write() as session:
            session.execute(update(Attempt).values(lease_expires_at=now()))
        return bool(service.get(f"/attempts/{attempt.assignment.attempt}")["state"] == "ended")

    wait_for(ended, "the lease to be reaped")


def test_a_broker_that_goes_between_two_words_is_away_and_no_fault(broker_url: str) -> None:
    """What Redis' client raises in the middle of a connection is told as any other absence."""
    port = int(broker_url.rpartition(":")[2].partition("/")[0])
    with proxy.tunnel(port, cut=b"LLEN") as tunnel:
        sender = Broker(f"redis://127.0.0.1:{tunnel.port}/0")
        with pytest.raises(OperationalError):
            sender.waiting("cpu")
        sender.close()
