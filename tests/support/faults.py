"""What the tests of faults share: a suite with a known table, and the look at that table when all is over."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from tests.support import repository
from tests.support.repository import GitRepository
from tests.support.system import Api
from tests.support.waiting import wait_for

COUNT = 24
CASES = """\
import time
import pytest

@pytest.mark.parametrize("number", range(24))
def test_case(number):
    time.sleep(0.1)
    assert number % 8 != 7, "every eighth fails"
"""
OUTCOMES = {
    f"tests/test_cases.py::test_case[{number}]": "failed" if number % 8 == 7 else "passed" for number in range(COUNT)
}
RESULT = "3 failed, 21 passed"


def suite(folder: Path) -> GitRepository:
    """A repository with that suite."""
    return repository.make(folder / "repo", cases=CASES)


def assert_whole(api: Api, job: int, verdicts: Sequence[str], deadline_s: float = 90.0) -> Any:
    """The job's end: the table of an undisturbed run, every case once, and attempts with these verdicts, the last of
    which decides. Gives the row."""
    assert api.wait_for_end(job, deadline_s)["state"] == "failed"
    (row,) = api.get(f"/jobs/{job}/table")["rows"]
    assert row["result"] == RESULT
    assert [(case["node_id"], case["outcome"]) for case in sorted(api.cases(row["attempt"]), key=_number)] == [
        *OUTCOMES.items()
    ]
    attempts = api.get(f"/cells/{row['cell']}/attempts")
    assert [attempt["verdict"] for attempt in attempts] == list(verdicts)
    assert [attempt["deciding"] for attempt in attempts] == [False] * (len(verdicts) - 1) + [True]
    return row


def _number(case: Any) -> int:
    return int(case["node_id"].partition("[")[2].rstrip("]"))


def pytest_of(worker: int) -> psutil.Process:
    """The pytest process below a worker."""
    return _below(worker, lambda line: "replaybench_plugin" in line and "keeper.py" not in line)


def keeper_of(worker: int) -> psutil.Process:
    """The keeper of that pytest process."""
    return _below(worker, lambda line: "replaybench_plugin" in line and "keeper.py" in line)


def _below(worker: int, fits: Callable[[str], bool]) -> psutil.Process:
    def look() -> psutil.Process | None:
        for process in psutil.Process(worker).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if fits(" ".join(process.cmdline())):
                    return process
        return None

    return wait_for(look, "the test process", 60)
