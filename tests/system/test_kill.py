"""kill -9 of each part in the middle of a job: the job ends with every case reported once and the right table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import repository, system
from tests.support.waiting import wait_for

CASES = """\
import time
import pytest

@pytest.mark.parametrize("number", range(24))
def test_case(number):
    time.sleep(0.15)
    assert number % 8 != 7, "every eighth fails"
"""


@pytest.mark.long
@pytest.mark.parametrize("victim", ["worker", "broker", "serve"])
def test_a_job_survives_the_kill_of(victim: str, tmp_path: Path) -> None:
    """Killed after the first cases were stored, each part comes back and the table is that of an undisturbed run."""
    repo = repository.make(tmp_path / "repo", cases=CASES)
    with system.running(tmp_path, REPLAYBENCH_LEASE_S="4", REPLAYBENCH_SWEEP_S="0.5") as it:
        job = it.submit(repo.path)

        def some_stored() -> Any:
            (cell,) = it.get(f"/jobs/{job}/cells")
            return cell if 3 <= sum(cell["counts"].values()) < 20 else None

        wait_for(some_stored, "the first cases to be stored", 60)
        it.kill(victim)
        ended = it.wait_for_end(job)

        assert ended["state"] == "failed"
        row = it.get(f"/jobs/{job}/table")["rows"][0]
        assert row["result"] == "3 failed, 21 passed"
        cases = it.cases(row["attempt"])
        assert sorted(case["node_id"] for case in cases) == sorted(
            f"tests/test_cases.py::test_case[{n}]" for n in range(24)
        )
        attempts = it.get(f"/cells/{row['cell']}/attempts")
        assert [attempt["verdict"] for attempt in attempts] == (
            ["lost", "failed"] if victim == "worker" else ["failed"]
        )
        assert [attempt["deciding"] for attempt in attempts][-1]
