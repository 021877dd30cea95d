"""A wall clock that is set: no healthy attempt is lost, no dead one is kept, and no duration is negative."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import structlog
from sqlalchemy import select, update

from service.clock import now
from service.dispatch.broker import Broker
from service.dispatch.clock_steps import Clocks
from service.dispatch.sweep import Sweep
from service.models import Attempt, Worker
from tests.support import running_service
from tests.support.repository import GitRepository
from tests.support.running_service import DrivenAttempt, RunningService
from worker.messages import Outcome

LEASE_S = 45.0


@dataclass
class Hands:
    """Two clocks: one that is set, one that is not."""

    wall: datetime.datetime
    steady: float = 0.0

    def wait(self, seconds: float) -> None:
        """Lets time pass on both."""
        self.wall += datetime.timedelta(seconds=seconds)
        self.steady += seconds

    def set(self, seconds: float) -> None:
        """Sets the wall clock alone."""
        self.wall += datetime.timedelta(seconds=seconds)

    @property
    def clocks(self) -> Clocks:
        """What compares them."""
        return Clocks(lambda: self.wall, lambda: self.steady)


@pytest.fixture
def service(tmp_path: Path, database_url: str, broker_url: str) -> Iterator[RunningService]:
    """A service whose own sweep waits for longer than the test takes."""
    with running_service.running(tmp_path / "data", database_url, broker_url, sweep_s=3600, lease_s=LEASE_S) as it:
        yield it


@pytest.fixture
def attempt(service: RunningService, registered: GitRepository) -> DrivenAttempt:
    """An attempt that was claimed."""
    service.submit("demo", "main")
    return service.driver().must_claim()


@pytest.fixture
def hands() -> Hands:
    """Clocks that show this moment."""
    return Hands(now())


@pytest.fixture
def sweep(service: RunningService, hands: Hands, broker_url: str) -> Iterator[Sweep]:
    """A sweep by those clocks, which has been at it for longer than a lease."""
    broker = Broker(broker_url)
    sweep = Sweep(service.database, broker, service.settings, hands.clocks)
    for _ in range(30):
        sweep.once()
        hands.wait(2)
        renew(service, hands)
    yield sweep
    broker.close()


def renew(service: RunningService, hands: Hands) -> None:
    """Writes a heartbeat's lease, by these clocks."""
    until = hands.wall + datetime.timedelta(seconds=LEASE_S)
    with service.database.write() as session:
        session.execute(update(Attempt).values(lease_expires_at=until))
        session.execute(update(Worker).values(seen_at=hands.wall))


def state(service: RunningService, attempt: DrivenAttempt) -> str:
    """The attempt's state, or if it has ended, how."""
    found = service.get(f"/attempts/{attempt.assignment.attempt}")
    return str(found["verdict"] or found["state"])


@pytest.mark.parametrize("step_s", [120, 3600, 86_400 * 400, -120, -3600])
def test_no_step_of_the_clock_loses_a_healthy_attempt_or_keeps_a_dead_one(
    service: RunningService, attempt: DrivenAttempt, hands: Hands, sweep: Sweep, step_s: float
) -> None:
    """From the step on each live lease has its full period, by the clock as it is now; deadlines count what passed."""
    hands.set(step_s)
    with structlog.testing.capture_logs() as said:
        sweep.once()
    told = [entry for entry in said if entry["event"] == "clock-stepped"]
    assert [round(entry["step_s"]) for entry in told] == [step_s]
    with service.database.read() as session:
        until = session.scalars(select(Attempt.lease_expires_at)).one()
    assert (until - hands.wall).total_seconds() == LEASE_S
    hands.wait(2)
    with structlog.testing.capture_logs() as said:
        sweep.once()
    assert [entry for entry in said if entry["event"] in {"clock-stepped", "lease-expired", "attempt-stuck"}] == []
    assert state(service, attempt) == "claimed"
    for _ in range(int(LEASE_S / 2) + 1):  # nobody is heard from any more
        hands.wait(2)
        sweep.once()
    assert state(service, attempt) == "lost"


def test_a_deadline_counts_what_passed_also_behind_a_step(
    service: RunningService, attempt: DrivenAttempt, hands: Hands, sweep: Sweep
) -> None:
    """A worker that beats and does not get on is ended when its time is over, and not before."""
    hands.set(3600)
    passed = 60.0
    while state(service, attempt) == "claimed" and passed < 2 * service.settings.claimed_s:
        sweep.once()
        hands.wait(2)
        renew(service, hands)
        passed += 2
    assert state(service, attempt) == "infrastructure"
    assert passed >= service.settings.claimed_s


def test_slow_turns_and_slewed_clocks_are_no_steps(hands: Hands) -> None:
    """Time that passed on both, however long, and parts of a second."""
    clocks = hands.clocks
    assert (clocks.look().silence_s, clocks.look().step_s) == (None, 0)
    clocks.keep(clocks.look())
    for passed in (2, 0.1, 90_000):
        hands.wait(passed)
        hands.set(0.5)
        look = clocks.look()
        assert (look.silence_s, look.step_s) == (pytest.approx(passed), 0)
        hands.wait(30)  # what the turn itself took
        clocks.keep(look)


def test_a_step_that_could_not_be_dealt_with_is_told_again(hands: Hands) -> None:
    """A database that is away when it is seen must not make it forgotten."""
    clocks = hands.clocks
    clocks.keep(clocks.look())
    hands.set(-100)
    assert clocks.look().step_s == clocks.look().step_s == -100


@pytest.mark.parametrize("step_s", [-3600])
def test_no_duration_is_negative(service: RunningService, attempt: DrivenAttempt, step_s: float) -> None:
    """In the table, its texts and the JUnit export."""
    attempt.run({"a::one": Outcome.PASSED})
    with service.database.write() as session:
        found = session.get_one(Attempt, attempt.assignment.attempt)
        found.ended_at = (found.started_at or found.claimed_at) + datetime.timedelta(seconds=step_s)
    job = attempt.assignment.cell.job
    assert service.get(f"/jobs/{job}/table")["rows"][0]["duration_s"] == 0
    for path in ("table?format=markdown", "table?format=csv", "junit.xml"):
        answer = service.http.get(f"/api/v1/jobs/{job}/{path}")
        assert answer.status_code == 200
        assert f"{step_s:.0f}" not in answer.text
