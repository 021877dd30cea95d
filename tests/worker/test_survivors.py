"""Processes that outlived their keeper are found by the environment that they were given, and by nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from worker.isolation.survivors import end_survivors

SLEEP = [sys.executable, "-c", "print(flush=True); import time; time.sleep(120)"]


def started(cwd: Path, **more: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        SLEEP, cwd=cwd, env={**os.environ, **more}, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_only_what_was_given_a_place_in_the_folder_is_ended(tmp_path: Path) -> None:
    """Somebody who looks around in there, or works in a folder whose name begins alike, is left alone."""
    ours, beside = tmp_path / "boot" / "5", tmp_path / "boot" / "55"
    for folder in (ours, beside):
        folder.mkdir(parents=True)
    by_home = started(tmp_path, HOME=f"{ours}/home")
    by_temporary = started(tmp_path, TMPDIR=f"{ours}/scratch")
    visitor = started(ours, HOME=str(tmp_path))
    neighbour = started(beside, HOME=f"{beside}/home")
    processes = [by_home, by_temporary, visitor, neighbour]
    try:
        assert sorted(end_survivors(ours)) == sorted([by_home.pid, by_temporary.pid])
        assert [process.wait(10) for process in (by_home, by_temporary)] == [-9, -9]
        assert [process.poll() for process in (visitor, neighbour)] == [None, None]
        assert end_survivors(ours) == []
    finally:
        for process in processes:
            process.kill()
            process.communicate()
