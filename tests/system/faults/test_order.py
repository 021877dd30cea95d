"""Deliveries that are doubled, lost, late or out of order are taken in once, and a wrong clock harms nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import faults, fleet, proxy
from tests.support.waiting import wait_for

pytestmark = pytest.mark.long

SKEW = """\
import time
_time, _ns = time.time, time.time_ns
time.time = lambda: _time() + {shift}
time.time_ns = lambda: _ns() + {shift} * 10**9
open({marker!r}, "a").close()
"""


def test_doubled_lost_and_late_deliveries_are_taken_in_once(tmp_path: Path) -> None:
    """Between worker and service every second call is sent twice, loses its answer, or comes again when later ones have
    gone through."""
    repo = faults.suite(tmp_path)
    with fleet.running(tmp_path) as it, proxy.mischief(it.url) as bad:
        it.worker(REPLAYBENCH_SERVICE_URL=bad.url, REPLAYBENCH_FLUSH_S="0.05")
        for _ in range(2):
            faults.assert_whole(it, it.submit(repo.path), ["failed"])
        assert {"double", "lose", "late"} <= set(bad.done)
        assert len(bad.done) > 24
        log = it.get("/attempts/1")["artifacts"]
        assert [artifact["name"] for artifact in log] == ["log.txt"]


@pytest.mark.parametrize("years", [-30, 30])
def test_a_worker_whose_clock_is_wrong_by_years_is_served_all_the_same(tmp_path: Path, years: int) -> None:
    """Leases run on the service's clock, limits and durations on monotonic ones: no time is negative, none is long."""
    repo = faults.suite(tmp_path)
    (tmp_path / "skew").mkdir()
    (tmp_path / "skew/sitecustomize.py").write_text(
        SKEW.format(shift=years * 365 * 86400, marker=str(tmp_path / "shifted"))
    )
    with fleet.running(tmp_path) as it:
        usual = it.worker("usual", start=False)
        it.worker(PYTHONPATH=f"{tmp_path / 'skew'}:{usual.env['PYTHONPATH']}", REPLAYBENCH_PASS_ENV="PYTHONPATH")
        job = it.submit(repo.path)
        row = faults.assert_whole(it, job, ["failed"])
        assert (tmp_path / "shifted").exists()
        attempt = it.get(f"/attempts/{row['attempt']}")
        assert attempt["claimed_at"] <= attempt["started_at"] <= attempt["ended_at"]
        assert all(0 <= case["duration_s"] < 60 for case in it.cases(row["attempt"]))
        wait_for(lambda: it.get("/workers")[0]["live"], "the worker to count as live")
