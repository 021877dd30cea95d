"""Deadlines of workers that are heard from and do not get on: claimed, preparing and running each have their own.

On both databases.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support import running_service
from tests.support.repository import PYTHON, GitRepository
from tests.support.running_service import DrivenAttempt
from tests.support.waiting import wait_for
from worker.messages import Outcome, Phase, PhaseEvent

CONFIG = f"""\
schema = 1
[matrix]
runtimes = ["{PYTHON}"]
[suites.unit]
cell_timeout_s = 1
"""


@contextmanager
def beating(attempt: DrivenAttempt) -> Iterator[list[int]]:
    """Heartbeats of an attempt, as a live worker sends them; gives the statuses of the answers."""
    over, answers = threading.Event(), list[int]()
    path = f"/api/v1/worker/attempts/{attempt.assignment.attempt}/batches"
    body = {"token": attempt.assignment.token, "seq": attempt.seq}

    def beat() -> None:
        while not over.wait(0.1):
            answers.append(attempt.service.worker_http.post(path, json=body).status_code)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield answers
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize(
    ("reached", "tight"),
    [("claimed", "claimed_s"), ("preparing", "preparing_s"), ("running", "overtime_s")],
)
def test_a_worker_that_beats_and_does_not_get_on_loses_its_attempt(
    tmp_path: Path, database_url: str, broker_url: str, repo: GitRepository, reached: str, tight: str
) -> None:
    """Its heartbeats are fenced, the cell goes to the next worker, and the attempt says where it hung."""
    repo.commit("limits", replaybench_dot_toml=CONFIG)
    settings: dict[str, Any] = {"sweep_s": 0.1, "lease_s": 1.0, tight: 1.0}
    with running_service.running(tmp_path / "data", database_url, broker_url, **settings) as service:
        service.post("/repositories", {"name": "demo", "url": str(repo.path)}, 201)
        service.submit("demo", "main")
        attempt = service.driver("stuck").must_claim()
        if reached != "claimed":
            attempt.send(PhaseEvent(Phase.PREPARING))
        if reached == "running":
            attempt.send(PhaseEvent(Phase.RUNNING))
        with beating(attempt) as answers:
            wait_for(lambda: 409 in answers, "the attempt to be fenced")
        found = service.get(f"/attempts/{attempt.assignment.attempt}")
        assert found["verdict"] == "infrastructure"
        assert found["detail"].startswith(f"the worker was heard from, but {reached} for longer than ")
        again = service.driver("well").must_claim()
        assert again.assignment.cell.id == attempt.assignment.cell.id
        again.run({"a": Outcome.PASSED})


@pytest.mark.long
def test_a_worker_that_gets_on_has_all_the_time_of_its_suite(
    tmp_path: Path, database_url: str, broker_url: str, repo: GitRepository
) -> None:
    """The deadline of one phase does not run on in the next."""
    settings: dict[str, Any] = {"sweep_s": 0.1, "lease_s": 2, "claimed_s": 0.5, "preparing_s": 4}
    with running_service.running(tmp_path / "data", database_url, broker_url, **settings) as service:
        service.post("/repositories", {"name": "demo", "url": str(repo.path)}, 201)
        service.submit("demo", "main")
        attempt = service.driver().must_claim()
        attempt.send(PhaseEvent(Phase.PREPARING))
        began = time.monotonic()
        with beating(attempt) as answers:
            wait_for(lambda: len(answers) > 8, "the claim's deadline to pass")
        attempt.send(PhaseEvent(Phase.RUNNING))
        with beating(attempt) as more:
            wait_for(lambda: more and time.monotonic() - began > 4.5, "the preparation's deadline to pass")
        assert set(answers + more) == {200}
        assert service.get(f"/attempts/{attempt.assignment.attempt}")["state"] == "running"


def test_a_service_that_was_away_blames_no_worker_for_what_it_could_not_hear(
    tmp_path: Path, database_url: str, broker_url: str, repo: GitRepository
) -> None:
    """What the worker did meanwhile lies in its spool: it has a lease's time to tell, whatever the deadlines say."""
    settings: dict[str, Any] = {"sweep_s": 0.1, "lease_s": 3.0, "claimed_s": 0.2}
    with running_service.running(tmp_path / "data", database_url, broker_url, **settings) as service:
        service.post("/repositories", {"name": "demo", "url": str(repo.path)}, 201)
        service.submit("demo", "main")
        attempt = service.driver().must_claim()
    with running_service.running(tmp_path / "data", database_url, broker_url, **settings) as service:
        resumed = DrivenAttempt(service, attempt.assignment, attempt.seq)
        with beating(resumed) as answers:
            wait_for(lambda: len(answers) > 8, "several sweeps")
        resumed.send(PhaseEvent(Phase.PREPARING), PhaseEvent(Phase.RUNNING))
        assert set(answers) == {200}
