"""Leases: renewed, lost, fenced, and granted anew by a service that was away. On both databases."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import redis
from sqlalchemy import select, text, update

from service.clock import now
from service.models import Attempt, Cell
from tests.support import running_service
from tests.support.repository import PYTHON, GitRepository
from tests.support.running_service import DrivenAttempt, RunningService
from tests.support.waiting import wait_for
from worker.encoding import encode
from worker.messages import CONTRACT, AttemptEndedEvent, Capabilities, Cause, Outcome, Registration


def lose(service: RunningService, attempt: DrivenAttempt) -> Any:
    """Has the lease run out and the reaper come, and gives the ended attempt."""

    def ended() -> Any:
        expire(service, attempt)  # again, since the first sweep of a service grants a full period
        found = service.get(f"/attempts/{attempt.assignment.attempt}")
        return found["state"] == "ended" and found

    return wait_for(ended, "the attempt to be reaped")


def expire(service: RunningService, attempt: DrivenAttempt) -> None:
    """Lets a lease run out, as if the worker had been silent for long."""
    with service.database.write() as session:
        lease = update(Attempt).where(Attempt.id == attempt.assignment.attempt)
        session.execute(lease.values(lease_expires_at=now()))


def cell_of(service: RunningService, attempt: DrivenAttempt) -> Any:
    """An attempt's cell."""
    return service.get(f"/cells/{attempt.assignment.cell.id}")


def test_a_lease_that_runs_out_is_lost_and_its_cell_queued_again(
    service: RunningService, registered: GitRepository, broker_url: str
) -> None:
    """The earlier attempt's late batch enters no table; a worker is woken; the second attempt decides."""
    job = service.submit("demo", "main")
    driver = service.driver()
    first = driver.must_claim()
    first.start(2)
    first.send(first.case("a::one", Outcome.FAILED))
    client = redis.Redis.from_url(broker_url)
    client.delete("cpu")
    assert lose(service, first)["verdict"] == "lost"
    wait_for(lambda: client.llen("cpu"), "a wake-up for the cell that waits again")
    client.close()
    assert cell_of(service, first)["state"] == "queued"
    assert first.send(first.case("a::two"), expect=409)["code"] == "fenced"
    second = driver.must_claim()
    assert (second.assignment.cell.id, second.assignment.number) == (first.assignment.cell.id, 2)
    assert first.send(AttemptEndedEvent(Cause.FINISHED), expect=409)["code"] == "fenced"
    second.run({"a::one": Outcome.PASSED, "a::two": Outcome.PASSED})
    (row,) = service.get(f"/jobs/{job['id']}/table")["rows"]
    assert (row["result"], row["attempts"], row["flaky"]) == ("2 passed", 2, False)
    attempts = service.get(f"/cells/{first.assignment.cell.id}/attempts")
    assert [(found["verdict"], found["deciding"], found["counts"]) for found in attempts] == [
        ("lost", False, {"failed": 1}),
        ("passed", True, {"passed": 2}),
    ]


def test_a_cell_is_handed_out_only_so_often(service: RunningService, registered: GitRepository) -> None:
    """Three lost or broken attempts, and the cell ends as infrastructure; run again, it has three more."""
    job = service.submit("demo", "main")
    driver = service.driver()
    for number in range(3):
        attempt = driver.must_claim()
        if number == 1:
            attempt.end(0, cause=Cause.INFRASTRUCTURE, detail="disk full")
        else:
            lose(service, attempt)
    assert driver.claim() is None
    (cell,) = service.get(f"/jobs/{job['id']}/cells")
    assert (cell["state"], cell["verdict"], cell["attempts"]) == ("ended", "infrastructure", 3)
    assert service.get(f"/jobs/{job['id']}")["state"] == "broken"
    service.post(f"/jobs/{job['id']}/rerun")
    driver.must_claim().run({"a": Outcome.PASSED})
    assert service.get(f"/jobs/{job['id']}")["state"] == "passed"


def test_a_worker_started_again_loses_its_leases_at_once(service: RunningService, registered: GitRepository) -> None:
    """Its earlier start may not claim, beat or write any more, and every cell of it waits again."""
    for _ in range(2):
        service.submit("demo", "main")
    before = service.driver("w1")
    attempts = [before.must_claim(), before.must_claim()]
    after = service.driver("w1")
    assert after.worker == before.worker
    for attempt in attempts:
        assert service.get(f"/attempts/{attempt.assignment.attempt}")["verdict"] == "lost"
        assert attempt.send(attempt.case("a"), expect=409)["code"] == "fenced"
    body = {"worker": before.worker, "boot": before.boot}
    for path in ("claim", "heartbeat"):
        answer = service.worker_http.post(f"/api/v1/worker/{path}", json=body)
        assert (answer.status_code, answer.json()["code"]) == (409, "worker-unknown")
    again = {after.must_claim().assignment.cell.id, after.must_claim().assignment.cell.id}
    assert again == {attempt.assignment.cell.id for attempt in attempts}


def test_a_service_that_was_away_grants_a_full_period_before_it_reaps(
    tmp_path: Path, database_url: str, broker_url: str, repo: GitRepository
) -> None:
    """Leases that ran out while no service listened hold still, and the worker goes on where it was."""
    settings: dict[str, Any] = {"sweep_s": 0.1, "lease_s": 3}
    with running_service.running(tmp_path / "data", database_url, broker_url, **settings) as service:
        service.post("/repositories", {"name": "demo", "url": str(repo.path)}, 201)
        service.submit("demo", "main")
        attempt = service.driver().must_claim()
        attempt.start(1)
    # Nobody sweeps here; the lease ran out long ago.
    with running_service.running(tmp_path / "data", database_url, broker_url, sweep_s=60, lease_s=3) as service:
        expire(service, attempt)
    with running_service.running(tmp_path / "data", database_url, broker_url, **settings) as service:
        service.submit("demo", "main")
        with redis.Redis.from_url(broker_url) as client:
            for _ in range(3):  # each sweep wakes a worker for the second job's cell
                client.delete("cpu")
                wait_for(lambda: client.llen("cpu"), "a sweep")
        resumed = DrivenAttempt(service, attempt.assignment, attempt.seq)
        resumed.send(resumed.case("a"))
        resumed.end(1)
        assert service.get(f"/attempts/{attempt.assignment.attempt}")["verdict"] == "passed"


def test_cancelling_a_lost_attempts_cell_ends_it(service: RunningService, registered: GitRepository) -> None:
    """A worker that vanishes after the cancel leaves a cancelled cell, not one that is queued again."""
    job = service.submit("demo", "main")
    attempt = service.driver().must_claim()
    service.post(f"/jobs/{job['id']}/cancel")
    lose(service, attempt)
    assert cell_of(service, attempt)["verdict"] == "cancelled"
    assert service.get(f"/jobs/{job['id']}")["state"] == "cancelled"


def test_claims_at_once_never_grant_one_cell_twice(service: RunningService, registered: GitRepository) -> None:
    """Eight workers that ask together share twelve cells without a double and without a loss."""
    for _ in range(12):
        service.submit("demo", "main")
    drivers = [service.driver(f"w{n}") for n in range(8)]

    def drain(number: int) -> list[int]:
        found = []
        while (attempt := drivers[number].claim()) is not None:
            found.append(attempt.assignment.cell.id)
        return found

    with ThreadPoolExecutor(8) as pool:
        granted = [cell for cells in pool.map(drain, range(8)) for cell in cells]
    while (attempt := drivers[0].claim()) is not None:  # what somebody else's lock hid for a moment
        granted.append(attempt.assignment.cell.id)
    assert len(granted) == len(set(granted)) == 12


def test_the_reaper_and_the_workers_never_wait_for_each_other(
    service: RunningService, registered: GitRepository
) -> None:
    """All leases of a job run out while their workers write: each attempt is either stored or lost, none is stuck."""
    registered.commit("many", replaybench_dot_toml="schema = 1\n" + "".join(f"[suites.s{n}]\n" for n in range(8)))
    job = service.submit("demo", "main", runtimes=[PYTHON])
    drivers = [service.driver(f"w{n}") for n in range(8)]
    attempts = [driver.must_claim() for driver in drivers]

    def write(attempt: DrivenAttempt) -> int:
        body = {"token": attempt.assignment.token, "seq": 0}
        path = f"/api/v1/worker/attempts/{attempt.assignment.attempt}/batches"
        for number in range(30):
            answer = service.worker_http.post(path, json={**body, "running": f"case {number}"})
            if answer.status_code != 200:
                return answer.status_code
            if number % 5 == 0:
                expire(service, attempt)
        return 200

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(write, attempts))
    assert set(answers) <= {200, 409}
    service.post(f"/jobs/{job['id']}/cancel")


def test_one_new_worker_that_registers_twice_at_once(service: RunningService) -> None:
    """Both calls get the same number."""
    body = encode(Registration(CONTRACT, "new", "boot", "host", Capabilities(("cpu",))))
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: service.worker_http.post("/api/v1/worker/register", json=body), range(4)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["worker"] for answer in answers}) == 1


def test_what_a_broken_worker_says_is_no_500(service: RunningService) -> None:
    """It is told that it is not understood, or not known."""
    whole: dict[str, Any] = {
        "register": encode(Registration(CONTRACT, "w", "b", "h", Capabilities(("cpu",)))),
        "claim": {"worker": 1, "boot": "b"},
        "heartbeat": {"worker": 1, "boot": "b"},
    }
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("register", {"name": "x" * 300}),
        ("register", {"boot": "x" * 300}),
        ("register", {"name": "a\0b"}),
        ("register", {"name": 5}),
        ("register", {"capabilities": {"kinds": ["a\0b"]}}),
        ("register", {"capabilities": {"kinds": ["cpu"], "host_runtimes": [{"python": "three"}]}}),
        ("claim", {"worker": 10**30}),
        ("claim", {"worker": -1}),
        ("heartbeat", {"worker": 10**30}),
        ("heartbeat", {"boot": "a\0b"}),
    ]
    for path, change in wrong:
        answer = service.worker_http.post(f"/api/v1/worker/{path}", json={**whole[path], **change})
        assert answer.status_code in (200, 409, 422), (path, change, answer.text)


def test_a_cell_that_somebody_else_writes_to_is_claimed_when_they_are_done(
    service: RunningService, registered: GitRepository
) -> None:
    """The sweep says of a cell why it waits; a claim at that moment must not go away with nothing."""
    service.submit("demo", "main")
    driver = service.driver()
    with ThreadPoolExecutor(1) as pool:
        with service.database.write() as session:
            cell = session.scalars(select(Cell).with_for_update(of=Cell)).one()
            cell.waiting_reason = "it is looked at"
            session.flush()
            claimed = pool.submit(driver.claim)
            assert_waits(service, claimed)
        assert claimed.result(30) is not None


def assert_waits(service: RunningService, claimed: Future[Any]) -> None:
    """The claim has reached the lock: on SQLite it waits for the only writer, on Postgres for the row."""
    if service.database.embedded:
        return

    def blocked() -> bool:
        with service.database.read() as other:
            waiting = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
            return bool(other.scalar(waiting)) or claimed.done()

    wait_for(blocked, "the claim to wait for the row")
    assert not claimed.done()
