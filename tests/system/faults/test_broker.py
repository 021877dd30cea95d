"""The broker carries wake-ups only: whatever becomes of it, what waits in the database is run."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from celery import Celery

from tests.support import embedded, faults, fleet, proxy, system
from tests.support.waiting import wait_for
from worker.messages import WAKE_TASK

pytestmark = pytest.mark.long


def test_a_broker_that_comes_back_empty_loses_no_job(tmp_path: Path) -> None:
    """Killed with every wake-up in it, started again with nothing. The worker's consumer finds back, and is woken."""
    repo = faults.suite(tmp_path)
    with fleet.running(tmp_path) as it:
        worker = it.worker(start=False)
        job = it.submit(repo.path)
        it.broker.end(signal.SIGKILL)
        it.broker.start()
        it.start(worker)
        faults.assert_whole(it, job, ["failed"])
        it.broker.end(signal.SIGKILL)
        it.broker.start()
        faults.assert_whole(it, it.submit(repo.path), ["failed"])
        assert worker.running.poll() is None


def test_jobs_are_run_while_there_is_no_broker(tmp_path: Path) -> None:
    """The worker claims without being woken, and hears again when the broker is back."""
    repo = faults.suite(tmp_path)
    with fleet.running(tmp_path) as it:
        worker = it.worker(REPLAYBENCH_DEAF_S="20")
        it.broker.end(signal.SIGKILL)
        faults.assert_whole(it, it.submit(repo.path), ["failed"])
        it.broker.start()
        faults.assert_whole(it, it.submit(repo.path), ["failed"])
        assert worker.running.poll() is None


@pytest.mark.parametrize("slots", [1, 2])
def test_a_broker_that_is_away_when_an_attempt_ends_leaves_no_deaf_worker(tmp_path: Path, slots: int) -> None:
    """The wake-up of that attempt must not count as under way for ever. Nobody claims unasked here once the broker is
    back, so the second job is one that the worker heard of. Where another slot listens meanwhile, the loss is seen at
    once, and nothing is made of the wake-up under way: no complaint and no file."""
    repo, temporary = faults.suite(tmp_path), tmp_path / "temporary"
    temporary.mkdir()
    with fleet.running(tmp_path) as it:
        worker = it.worker(REPLAYBENCH_DEAF_S="3600", REPLAYBENCH_CPU_SLOTS=str(slots), TMPDIR=str(temporary))
        job = it.submit(repo.path)
        it.wait_for_cases(job, 1, 20)
        it.broker.end(signal.SIGKILL)
        faults.assert_whole(it, job, ["failed"])
        it.broker.start()
        faults.assert_whole(it, it.submit(repo.path), ["failed"])
        assert worker.running.poll() is None
        assert "UNABLE TO RESTORE" not in worker.said
        assert not [file.name for file in temporary.iterdir() if file.is_file()]


def test_a_broker_that_sleeps_holds_nothing_up_for_long(tmp_path: Path) -> None:
    """Stopped in the middle, it answers nobody: a submission is taken all the same, and both jobs end."""
    repo = faults.suite(tmp_path)
    with fleet.running(tmp_path) as it:
        it.worker(REPLAYBENCH_DEAF_S="20")
        first = it.submit(repo.path)
        it.wait_for_cases(first, 3, 20)
        process = it.broker.process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        second = it.submit(repo.path)
        faults.assert_whole(it, first, ["failed"])
        process.send_signal(signal.SIGCONT)
        faults.assert_whole(it, second, ["failed"])


def test_a_consumer_that_is_deaf_ends_its_worker(tmp_path: Path) -> None:
    """Its connections to the broker became black holes, as behind a firewall that forgot them: the process lives and
    beats, and no wake-up reaches it. It ends itself, so that who looks after it starts another. The job runs once,
    claimed unasked before that or by the next start."""
    repo = faults.suite(tmp_path)
    with fleet.running(tmp_path) as it, proxy.tunnel(it.broker.port) as tunnel:
        url = f"redis://127.0.0.1:{tunnel.port}/0"
        worker = it.worker(BROKER_URL=url, REPLAYBENCH_DEAF_S="1.5")
        faults.assert_whole(it, it.submit(repo.path), ["failed"])
        assert tunnel.swallow()
        job = it.submit(repo.path)
        assert worker.wait(60) == 75
        assert "takes no wake-ups any more" in worker.said
        it.start(worker)
        faults.assert_whole(it, job, ["failed"])


def test_a_deaf_worker_ends_no_attempt_that_runs(tmp_path: Path) -> None:
    """Of its two slots one is busy: it claims for the other by itself, and ends when neither runs."""
    repo = faults.suite(tmp_path)
    with fleet.running(tmp_path) as it, proxy.tunnel(it.broker.port) as tunnel:
        url = f"redis://127.0.0.1:{tunnel.port}/0"
        worker = it.worker(BROKER_URL=url, REPLAYBENCH_DEAF_S="1", REPLAYBENCH_CPU_SLOTS="2")
        first = it.submit(repo.path)
        it.wait_for_cases(first, 1, 20)
        assert tunnel.swallow()
        second = it.submit(repo.path)
        for job in (first, second):
            faults.assert_whole(it, job, ["failed"])
        it.broker_push("cpu")
        assert worker.wait(60) == 75


def test_up_starts_a_worker_again_however_often_it_dies(tmp_path: Path) -> None:
    """Six deaths within a minute, as cells that kill their worker bring about, end nothing but the worker."""
    repo = faults.suite(tmp_path)
    with system.running(tmp_path, REPLAYBENCH_LEASE_S="4", REPLAYBENCH_SWEEP_S="0.5") as it:
        for number in range(1, 7):
            it.kill("worker")
            wait_for(lambda: it.up.said.count("worker is up again") == number, "another worker", 60)  # noqa: B023
        assert it.up.said.count("worker died by SIGKILL") == 6
        faults.assert_whole(it, it.submit(repo.path), ["failed"])
        assert it.up.process.poll() is None


class Harm:
    """What a pickle of somebody who reached the broker could do."""

    def __init__(self, place: str) -> None:
        self.place = place

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (self.place,)


def test_a_pickled_message_is_refused_and_harmless(tmp_path: Path) -> None:
    """It is not unpickled; the worker says so, lives on, and serves what comes behind it."""
    repo = faults.suite(tmp_path)
    harmed = tmp_path / "harmed"
    with fleet.running(tmp_path) as it:
        worker = it.worker()
        foe = Celery("foe", broker=it.broker.url, set_as_current=False)
        foe.conf.update(task_serializer="pickle", accept_content=["pickle"])
        foe.send_task(WAKE_TASK, args=[Harm(str(harmed))], queue="cpu")
        foe.close()
        faults.assert_whole(it, it.submit(repo.path), ["failed"])
        assert not harmed.exists()
        assert worker.running.poll() is None
        wait_for(lambda: "pickle" in worker.said, "the worker's word on it")


def test_a_worker_of_another_release_ends_with_a_clear_word(tmp_path: Path) -> None:
    """Whichever of both is newer: both numbers, what to do, exit code 2."""
    with fleet.running(tmp_path) as it:
        for change in (-1, 1):
            worker = it.worker(f"other{change}", start=False)
            worker.argv = (*worker.argv[:2], "-c", OTHER.format(change=change))
            worker.start()
            assert worker.wait(60) == 2
            assert "speaks contract" in worker.said
            assert "install the same release on both" in worker.said
        assert embedded.alive(it.service.running.pid)


OTHER = """\
import sys
import worker.messages
worker.messages.CONTRACT += {change}
from worker.__main__ import main
sys.argv = ["worker"]
sys.exit(main())
"""
