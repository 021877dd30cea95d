"""Parts that are stopped for a while and go on: SIGSTOP, and a service that is away."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.support import faults, fleet, repository
from tests.support.waiting import wait_for

pytestmark = pytest.mark.long


def test_a_worker_that_sleeps_past_its_lease_is_fenced_when_it_wakes(tmp_path: Path) -> None:
    """The cell waits again meanwhile. Awake, the worker stops that attempt, of which no late word enters a table, and
    claims the cell anew."""
    repo = faults.suite(tmp_path)
    with fleet.running(tmp_path) as it:
        worker = it.worker()
        job = it.submit(repo.path)
        cell = it.wait_for_cases(job, 3, 20)
        worker.send(signal.SIGSTOP)
        wait_for(lambda: it.verdicts(cell["id"]) == ["lost"], "the lease to run out")
        first = it.get(f"/cells/{cell['id']}/attempts")[0]
        worker.send(signal.SIGCONT)
        faults.assert_whole(it, job, ["lost", "failed"])
        assert it.get(f"/attempts/{first['id']}")["counts"] == first["counts"]
        assert len(it.cases(first["id"])) == sum(first["counts"].values())


def test_a_worker_that_sleeps_for_less_than_its_lease_goes_on(tmp_path: Path) -> None:
    """Nothing of it is seen afterwards."""
    repo = faults.suite(tmp_path)
    with fleet.running(tmp_path, REPLAYBENCH_LEASE_S="20") as it:
        worker = it.worker()
        job = it.submit(repo.path)
        it.wait_for_cases(job, 3, 20)
        worker.send(signal.SIGSTOP)
        time.sleep(2)  # how long it sleeps is the fault itself
        worker.send(signal.SIGCONT)
        faults.assert_whole(it, job, ["failed"])


def test_a_service_that_sleeps_past_every_lease_blames_no_worker(tmp_path: Path) -> None:
    """Awake, it gives each lease a full period before it reaps; what was seen meanwhile comes out of the spool."""
    repo = faults.suite(tmp_path)
    with fleet.running(tmp_path) as it:
        it.worker()
        job = it.submit(repo.path)
        it.wait_for_cases(job, 3, 20)
        it.service.send(signal.SIGSTOP)
        time.sleep(6)  # a lease is 4 s
        it.service.send(signal.SIGCONT)
        faults.assert_whole(it, job, ["failed"])


def test_a_service_that_is_away_while_a_whole_cell_runs_hears_all_of_it(tmp_path: Path) -> None:
    """Away for longer than a lease, from the first cases to past the last. The spool waits with what the service had
    not heard, and goes when it was delivered."""
    repo = faults.suite(tmp_path)
    with fleet.running(tmp_path) as it:
        worker = it.worker()
        job = it.submit(repo.path)
        it.wait_for_cases(job, 1, 20)
        tested = faults.pytest_of(worker.running.pid)
        it.service.end(signal.SIGKILL)
        wait_for(lambda: not tested.is_running(), "the suite to end")
        (spool,) = (tmp_path / "cache-w1/spool").glob("*/*.jsonl")
        time.sleep(5)  # a lease is 4 s
        it.start_service()
        faults.assert_whole(it, job, ["failed"])
        wait_for(lambda: not spool.exists(), "the spool to go")


def test_a_spool_outlives_worker_and_service(tmp_path: Path) -> None:
    """Both are killed when the suite is over and the service has not heard of its end. Started again, worker first,
    the worker delivers what lay in its spool: the first attempt decides, and nothing runs twice."""
    repo = faults.suite(tmp_path)
    with fleet.running(tmp_path, REPLAYBENCH_LEASE_S="60") as it:
        worker = it.worker()
        job = it.submit(repo.path)
        it.wait_for_cases(job, 1, 20)
        it.service.end(signal.SIGKILL)
        (spool,) = (tmp_path / "cache-w1/spool").glob("*/*.jsonl")
        wait_for(lambda: '"attempt-ended"' in spool.read_text(), "the attempt's end in the spool", 60)
        worker.end(signal.SIGKILL)
        worker.start()
        wait_for(lambda: "service not there yet" in worker.said, "the worker to look for the service")
        it.start_service()
        faults.assert_whole(it, job, ["failed"])
        assert not spool.exists()


def test_of_two_workers_one_that_dies_leaves_its_cells_to_the_other(tmp_path: Path) -> None:
    """It is never started again. Twelve cells, two at a time; each ends, and what it held is done by the other."""
    repo = repository.make(tmp_path / "repo", cases="import time\ndef test_1(): time.sleep(0.5)\n")
    with fleet.running(tmp_path) as it:
        dies, _ = it.worker("dies"), it.worker("lives")
        job = it.submit(repo.path, repeat=12)
        wait_for(lambda: it.get(f"/jobs/{job}")["cells"].get("running", 0) == 2, "both to run")
        dies.end(signal.SIGKILL)
        assert it.wait_for_end(job)["state"] == "passed"
        verdicts = sorted(tuple(it.verdicts(cell["id"])) for cell in it.get(f"/jobs/{job}/cells"))
        assert verdicts == [("lost", "passed")] + [("passed",)] * 11
