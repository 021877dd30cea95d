"""A suite that works against its own worker: the job still ends, and the next one finds a free slot."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import repository, system

CONFIG = f"""\
schema = 1
[matrix]
runtimes = ["{repository.PYTHON}"]
[suites.hostile]
paths = ["tests/test_cases.py"]
cell_timeout_s = 3
"""

CASES = """\
import os, signal, time
def test_stop_the_parent(): os.kill(os.getppid(), signal.SIGSTOP)
def test_hang(): time.sleep(600)
"""


@pytest.mark.long
def test_a_suite_that_stops_its_keeper_runs_out_of_its_time(tmp_path: Path) -> None:
    """The cell limit ends it, and the job behind it runs."""
    repo = repository.make(tmp_path / "repo", config=CONFIG, cases=CASES)
    with system.running(tmp_path) as it:
        first, second = it.submit(repo.path), it.submit(repo.path)
        for job in (first, second):
            assert it.wait_for_end(job)["state"] == "failed"
            row = it.get(f"/jobs/{job}/table")["rows"][0]
            assert (row["verdict"], row["counts"]) == ("timed-out", {"passed": 1, "not-observed": 1})
