"""Schedules: read from the default branch, started once a moment, on both databases."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from service.hooks.planner import Planner
from service.hooks.schedules import Scheduler, latest_due
from service.jobs import planning
from service.matrix import cron
from service.matrix.config import TreeConfig
from service.repositories.mirror import Mirror
from tests.support.repository import CONFIG, GitRepository
from tests.support.running_service import RunningService
from tests.support.waiting import wait_for

NIGHTLY = """
[[trigger.schedule]]
cron = "30 2 * * *"
suites = ["other"]
"""


@pytest.fixture
def scheduler(service: RunningService) -> Scheduler:
    """A second scheduler on the service's database, whose clock the test sets."""
    return Scheduler(service.database, Planner(service.database, service.settings), service.settings)


def tomorrow(hour: int, minute: int) -> datetime.datetime:
    """A moment behind the repository's registration."""
    day = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
    return day.replace(hour=hour, minute=minute, second=0, microsecond=0)


def jobs(service: RunningService) -> list[Any]:
    """All jobs, once none is planning."""

    def done() -> Any:
        found = service.get("/jobs")["items"]
        return None if any(job["state"] == "planning" for job in found) else [found]

    return wait_for(done, "the jobs to be planned")[0]  # type: ignore[no-any-return]


def test_a_due_schedule_starts_one_job(
    service: RunningService, registered: GitRepository, scheduler: Scheduler
) -> None:
    """On the default branch's commit, with the line's own suites, however often it is looked at, and by whom."""
    head = registered.commit("nightly", replaybench_dot_toml=CONFIG + NIGHTLY)
    scheduler.once(tomorrow(2, 29))
    assert jobs(service) == []
    for moment in (tomorrow(2, 30), tomorrow(2, 31)):
        scheduler.once(moment)
    Scheduler(service.database, Planner(service.database, service.settings), service.settings).once(tomorrow(2, 35))
    (job,) = jobs(service)
    assert (job["state"], job["trees"], job["requested_by"]) == ("waiting", [head[:7]], "schedule")
    assert [cell["suite"] for cell in service.get(f"/jobs/{job['id']}/cells")] == ["other"]
    # The branch moved within the minutes that are looked back at: the moment was told all the same.
    newer = registered.commit("newer")
    scheduler.once(tomorrow(2, 36))
    assert len(jobs(service)) == 1
    scheduler.once(tomorrow(2, 30) + datetime.timedelta(days=1))
    assert [(one["trees"], one["state"]) for one in jobs(service)] == [
        ([newer[:7]], "waiting"),
        ([head[:7]], "cancelled"),
    ]


def test_other_branches_schedule_nothing(
    service: RunningService, registered: GitRepository, scheduler: Scheduler
) -> None:
    """A line that a topic branch adds counts when it is merged; a broken file or a lost remote harms no other."""
    registered.git("checkout", "-q", "-b", "topic")
    registered.commit("nightly", replaybench_dot_toml=CONFIG + NIGHTLY)
    registered.git("checkout", "-q", "main")
    service.post("/repositories", {"name": "gone", "url": "/no/such/repository.git"}, 201)
    scheduler.once(tomorrow(2, 30))
    assert jobs(service) == []


def test_an_odd_repository_harms_no_other(
    service: RunningService, registered: GitRepository, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the fault with one: those behind it have their schedules."""
    service.post("/repositories", {"name": "behind", "url": str(registered.path)}, 201)
    registered.commit("nightly", replaybench_dot_toml=CONFIG + NIGHTLY)
    read = planning.configuration

    def faulty(mirror: Mirror, commit: str) -> TreeConfig:
        if mirror.repository_id == 1:
            raise ValueError("a fault of ours")
        return read(mirror, commit)

    monkeypatch.setattr(planning, "configuration", faulty)
    scheduler.once(tomorrow(2, 30))
    monkeypatch.undo()
    assert [job["repository"] for job in jobs(service)] == ["behind"]


def test_a_slow_look_misses_nothing(service: RunningService, registered: GitRepository, scheduler: Scheduler) -> None:
    """Repositories that do not answer may hold a look up for longer than is looked back at."""
    registered.commit("nightly", replaybench_dot_toml=CONFIG + NIGHTLY)
    scheduler.once(tomorrow(2, 29))
    scheduler.once(tomorrow(2, 50))
    assert len(jobs(service)) == 1
    fresh = Scheduler(service.database, Planner(service.database, service.settings), service.settings)
    fresh.once(tomorrow(2, 50) + datetime.timedelta(days=1))
    assert len(jobs(service)) == 1, "what came due while the service was down is started for some minutes alone"


def test_of_what_was_missed_the_latest_is_enough() -> None:
    """After a pause a line of every minute starts one job and not ten."""
    start = datetime.datetime(2026, 11, 30, 5, 0, tzinfo=datetime.UTC)
    end = start + datetime.timedelta(minutes=9, seconds=30)
    assert latest_due(cron.parse("* * * * *"), start, end) == start + datetime.timedelta(minutes=9)
    assert latest_due(cron.parse("0 5 * * *"), start, end) is None
