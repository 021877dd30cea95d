"""kill -9 of each part in the middle of a job: the job ends with every case reported once and the right table."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support import faults, fleet, postgres, system
from tests.support.waiting import wait_for

pytestmark = pytest.mark.long
STUBBORN = """\
import pathlib, signal, time
def test_1():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pathlib.Path({place!r}).touch()
    time.sleep(60)
"""
SHORT = {"REPLAYBENCH_LEASE_S": "4", "REPLAYBENCH_SWEEP_S": "0.5"}


@pytest.mark.parametrize("victim", ["worker", "broker", "serve"])
def test_a_job_survives_the_kill_of(victim: str, tmp_path: Path) -> None:
    """Killed after the first cases were stored, each part comes back and the table is that of an undisturbed run."""
    repo = faults.suite(tmp_path)
    with system.running(tmp_path, **SHORT) as it:
        job = it.submit(repo.path)
        it.wait_for_cases(job, 3, 20)
        it.kill(victim)
        faults.assert_whole(it, job, ["lost", "failed"] if victim == "worker" else ["failed"])


def test_a_killed_pytest_is_a_crash_and_the_rest_runs_in_a_fresh_process(tmp_path: Path) -> None:
    """One case is crashed, by SIGKILL; every other is there once, with the outcome of an undisturbed run."""
    repo = faults.suite(tmp_path)
    with fleet.running(tmp_path) as it:
        worker = it.worker()
        job = it.submit(repo.path)
        it.wait_for_cases(job, 3, 20)
        faults.pytest_of(worker.running.pid).send_signal(signal.SIGKILL)
        assert it.wait_for_end(job)["state"] == "failed"
        (row,) = it.get(f"/jobs/{job}/table")["rows"]
        found = {case["node_id"]: case["outcome"] for case in it.cases(row["attempt"])}
        (crashed,) = [node for node, outcome in found.items() if outcome == "crashed"]
        assert found == {**faults.OUTCOMES, crashed: "crashed"}
        assert it.verdicts(row["cell"]) == ["crashed"]
        processes = it.get(f"/attempts/{row['attempt']}")["processes"]
        assert [(process["signal"], process["exit_code"]) for process in processes] == [(9, None), (None, 1)]


def test_a_killed_keeper_says_nothing_of_the_tree(tmp_path: Path) -> None:
    """The worker's own child is gone, with all below it: the attempt is infrastructure, and the cell runs again."""
    repo = faults.suite(tmp_path)
    with fleet.running(tmp_path) as it:
        worker = it.worker()
        job = it.submit(repo.path)
        it.wait_for_cases(job, 3, 20)
        tested = faults.pytest_of(worker.running.pid)
        faults.keeper_of(worker.running.pid).send_signal(signal.SIGKILL)
        wait_for(lambda: not tested.is_running(), "the test process to go with its keeper")
        faults.assert_whole(it, job, ["infrastructure", "failed"])


def test_a_database_that_is_killed_and_recovers_loses_nothing(tmp_path: Path) -> None:
    """kill -9 of Postgres' postmaster under a running job. What was acknowledged is there, the rest comes from the
    worker's spool; no case is doubled, and the service needs no start."""
    repo = faults.suite(tmp_path)
    with postgres.serving() as server, fleet.running(tmp_path, server.url) as it:
        it.worker()
        job = it.submit(repo.path)
        it.wait_for_cases(job, 3, 20)
        server.end(signal.SIGKILL)
        wait_for(lambda: "service away" in it.workers[0].said, "the worker to notice")
        assert it.http.get("/api/v1/health").status_code == 503
        server.start()
        faults.assert_whole(it, job, ["failed"])


def test_a_second_request_to_stop_ends_a_worker_at_once(tmp_path: Path) -> None:
    """Even where the test ignores the first. Nothing of it is left, and the cell is handed back."""
    repo = faults.suite(tmp_path)
    repo.commit("stubborn", tests__test_cases_dot_py=STUBBORN.format(place=str(tmp_path / "deaf")))
    with fleet.running(tmp_path) as it:
        # Its test tells by a file of this machine that it is there.
        env = {"REPLAYBENCH_KILL_GRACE_S": "30", "REPLAYBENCH_STOP_GRACE_S": "60", "REPLAYBENCH_SANDBOX": "off"}
        worker = it.worker(**env)
        job = it.submit(repo.path)
        tested = faults.pytest_of(worker.running.pid)
        wait_for((tmp_path / "deaf").exists, "the case")
        worker.send(signal.SIGTERM)

        def asked_again() -> bool:  # signals of one kind that come together are one
            worker.send(signal.SIGTERM)
            return worker.running.poll() is not None

        wait_for(asked_again, "the worker to end at once", 10)
        assert worker.wait() == 128 + signal.SIGTERM
        wait_for(lambda: not tested.is_running(), "the test process to be gone")
        wait_for(lambda: it.get(f"/jobs/{job}/cells")[0]["state"] == "queued", "the cell to be handed back")


def test_a_worker_that_drains_finishes_what_it_holds(tmp_path: Path) -> None:
    """It claims nothing more, ends its attempt as if nothing were, and then itself."""
    repo = faults.suite(tmp_path)
    with fleet.running(tmp_path) as it:
        worker = it.worker(REPLAYBENCH_DRAIN_S="60")
        first = it.submit(repo.path)
        it.wait_for_cases(first, 3, 20)
        second = it.submit(repo.path)
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0
        faults.assert_whole(it, first, ["failed"])
        assert it.get(f"/jobs/{second}")["state"] == "waiting"
