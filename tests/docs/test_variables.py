"""A variable with the project's prefix that nobody reads is said at the start, with the name that was meant."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import service.variables
import worker.variables
from tests.support import embedded
from tests.support.waiting import wait_for

ROOT = Path(__file__).resolve().parent.parent.parent
BOTH = {"REPLAYBENCH_URL", "REPLAYBENCH_TOKEN", "REPLAYBENCH_ENROLMENT_FILE"}


def test_each_side_knows_what_the_other_reads() -> None:
    """A setting that is added on one side is no stranger to the other."""
    assert BOTH | worker.variables.own() == service.variables.OTHERS
    assert BOTH | service.variables.own() - {"REPLAYBENCH_WORKER_TOKEN"} == worker.variables.OTHERS


@pytest.mark.parametrize("side", [service.variables, worker.variables], ids=["service", "worker"])
def test_the_name_that_was_meant_is_told(side: object) -> None:
    """Whichever side reads it; what is like nothing is told too; what is known or is no business of ours is not."""
    known = service.variables.own() | worker.variables.own() | BOTH
    assert side.unread([*known, "DATABASE_URL", "HOME"]) == []  # type: ignore[attr-defined]
    assert side.unread(["REPLAYBENCH_LEASES_S", "REPLAYBENCH_HOST_RUNTIME", "REPLAYBENCH_XYZZY"]) == [  # type: ignore[attr-defined]
        "REPLAYBENCH_HOST_RUNTIME is no setting and is not read; did you mean REPLAYBENCH_HOST_RUNTIMES?",
        "REPLAYBENCH_LEASES_S is no setting and is not read; did you mean REPLAYBENCH_LEASE_S?",
        "REPLAYBENCH_XYZZY is no setting and is not read",
    ]


def test_a_person_who_starts_it_sees_it(tmp_path: Path) -> None:
    """At `up`'s terminal, and in the log of a service and of a worker that start alone."""
    with embedded.up(tmp_path, "--no-worker", REPLAYBENCH_LEASES_S="3") as up:
        up.wait_ready()
        assert "REPLAYBENCH_LEASES_S is no setting and is not read; did you mean REPLAYBENCH_LEASE_S?" in up.said
        log = up.data_dir / "logs/service.log"
        wait_for(lambda: "did you mean REPLAYBENCH_LEASE_S?" in log.read_text(), "the service's own word")
    alone = subprocess.run(
        [sys.executable, "-m", "worker"],
        env=embedded.environment(REPLAYBENCH_CPU_SLOT="2", XDG_CONFIG_HOME=str(tmp_path)),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=ROOT,
    )
    assert alone.returncode == 2  # nothing else is set
    assert "did you mean REPLAYBENCH_CPU_SLOTS?" in alone.stderr
