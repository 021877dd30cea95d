"""A full disk, under the worker and under the service: said, survived, and over when there is room again."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import faults, fleet
from tests.support.waiting import wait_for

pytestmark = pytest.mark.long


@contextmanager
def small_disk(place: Path, mebibytes: int) -> Iterator[Path]:
    """A file system of this size, where this user may mount one."""
    place.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("may not mount a file system")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk: Path) -> Path:
    """Fills a file system to the last byte."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as out, contextlib.suppress(OSError):
        while True:
            out.write(b"\0" * (1 << 16))
    return filler


def test_a_worker_whose_disk_is_full_blames_no_test(tmp_path: Path) -> None:
    """It fills up in the middle: the attempt is infrastructure, with the disk in its detail. With room again the cell
    runs to its end on the same worker."""
    repo = faults.suite(tmp_path)
    with small_disk(tmp_path / "cache-w1", 64) as disk, fleet.running(tmp_path, REPLAYBENCH_CLAIM_CAP="1000") as it:
        it.worker(REPLAYBENCH_FREE_BYTES=str(1 << 20))
        job = it.submit(repo.path)
        cell = it.wait_for_cases(job, 3, 20)["id"]
        filler = fill(disk)
        wait_for(lambda: "infrastructure" in it.verdicts(cell), "the attempt to end for its disk")
        detail = it.get(f"/cells/{cell}/attempts")[0]["detail"]
        assert "No space left on device" in detail or "cannot be written" in detail
        filler.unlink()
        assert it.wait_for_end(job)["state"] == "failed"
        (row,) = it.get(f"/jobs/{job}/table")["rows"]
        assert row["result"] == faults.RESULT
        verdicts = it.verdicts(cell)
        assert set(verdicts[:-1]) == {"infrastructure"}
        assert verdicts[-1] == "failed"


def test_a_service_whose_disk_is_full_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    """Database and artifacts lie on it. Nothing is acknowledged that is not stored: batches are answered 503 and wait
    in the worker's spool, pages can still be read; with room again the job ends as if nothing had been."""
    repo = faults.suite(tmp_path)
    with small_disk(tmp_path / "data", 24) as disk, fleet.running(tmp_path, REPLAYBENCH_LEASE_S="6") as it:
        worker = it.worker()
        job = it.submit(repo.path)
        it.wait_for_cases(job, 3, 20)
        filler = fill(disk)
        wait_for(lambda: "service away" in worker.said, "a batch to be refused")
        assert it.get(f"/jobs/{job}")["state"] == "running"
        filler.unlink()
        faults.assert_whole(it, job, ["failed"])
        attempt = it.get(f"/jobs/{job}/table")["rows"][0]["attempt"]
        (log,) = it.get(f"/attempts/{attempt}")["artifacts"]
        content = it.http.get(f"/api/v1/artifacts/{log['id']}").content
        assert len(content) == log["size"]
        assert not list((disk / "artifacts").glob("draft-*"))
