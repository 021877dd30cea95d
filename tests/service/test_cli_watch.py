"""Following a job at the command line, and the exit codes that its end stands for."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import embedded, running_service
from tests.support.embedded import REPLAYBENCH
from tests.support.repository import GitRepository
from tests.support.running_service import RunningService
from tests.support.waiting import wait_for
from worker.messages import Cause, Outcome


@pytest.fixture
def service(tmp_path: Path, broker_url: str) -> Iterator[RunningService]:
    url = f"sqlite:///{tmp_path / 'replaybench.db'}"
    with running_service.running(tmp_path / "data", url, broker_url, sweep_s=0.2, lease_s=20) as it:
        yield it


@pytest.fixture
def settings(service: RunningService, registered: GitRepository) -> dict[str, str]:
    """What the command line needs to know; one job of one cell waits."""
    service.submit("demo", "main", suites=["unit"])
    return {"REPLAYBENCH_URL": service.url, "REPLAYBENCH_DATA_DIR": str(service.settings.data_dir)}


@pytest.mark.parametrize(
    ("outcomes", "code", "state"),
    [({"a": Outcome.PASSED}, 0, "passed"), ({"a": Outcome.PASSED, "b": Outcome.FAILED}, 1, "failed")],
)
def test_a_job_that_ran_exits_as_its_cases_went(
    service: RunningService, settings: dict[str, str], outcomes: dict[str, Outcome], code: int, state: str
) -> None:
    service.driver().must_claim().run(outcomes)
    done = embedded.command("watch", "1", **settings)
    assert done.returncode == code, done.stderr
    assert f"job 1 {state}: {service.url}/jobs/1" in done.stdout
    assert "1 passed" in done.stdout
    assert ("FAILED b in " in done.stdout) is (code == 1)


def test_a_job_that_could_not_run_exits_2(service: RunningService, settings: dict[str, str]) -> None:
    attempt = service.driver().must_claim()
    attempt.end(0, cause=Cause.ENVIRONMENT, detail="torch==9.9 is nowhere")
    done = embedded.command("watch", "1", **settings)
    assert done.returncode == 2, done.stderr
    assert "job 1 broken" in done.stdout
    assert "torch==9.9 is nowhere" in done.stdout


def test_the_cases_that_were_not_observed_are_named(service: RunningService, settings: dict[str, str]) -> None:
    """A job is broken by them too, and their message says why: the process ended in the middle of one."""
    attempt = service.driver().must_claim()
    attempt.start(2)
    attempt.send(attempt.case("a"))
    attempt.send(attempt.case("b", Outcome.NOT_OBSERVED, message="exit code 3 in the middle of this case"))
    attempt.end(2)
    done = embedded.command("watch", "1", **settings)
    assert done.returncode == 2, done.stdout
    assert "NOT OBSERVED b in " in done.stdout
    assert "exit code 3 in the middle" in done.stdout


def test_a_cancelled_job_exits_130(service: RunningService, settings: dict[str, str]) -> None:
    service.post("/jobs/1/cancel")
    done = embedded.command("watch", "1", "--json", **settings)
    assert done.returncode == 130
    assert json.loads(done.stdout)["state"] == "cancelled"


def test_a_pipe_gets_a_line_for_each_change(service: RunningService, settings: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "watch.out"
    with out.open("wb") as stream:
        watching = subprocess.Popen(
            [*REPLAYBENCH, "watch", "1"], env=embedded.environment(**settings), stdout=stream, stderr=stream
        )
    wait_for(lambda: "queued" in out.read_text(), "the first line")
    attempt = service.driver().must_claim()
    attempt.start(1)
    wait_for(lambda: "running" in out.read_text(), "the news of the start")
    attempt.send(attempt.case("a"))
    attempt.end(1)
    assert watching.wait(30) == 0
    assert "\x1b" not in out.read_text()


def test_ctrl_c_leaves_the_job_running_and_says_so(service: RunningService, settings: dict[str, str]) -> None:
    with subprocess.Popen(
        [*REPLAYBENCH, "watch", "1"],
        env=embedded.environment(**settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as watching:
        assert watching.stdout is not None
        assert watching.stderr is not None
        assert "waiting" in watching.stdout.readline()
        watching.send_signal(signal.SIGINT)
        said = watching.stderr.read()
    assert watching.returncode == 130
    assert said == "note: job 1 goes on; `replaybench watch 1` follows it again, `replaybench cancel 1` ends it\n"
    assert service.get("/jobs/1")["state"] == "waiting"


def test_a_terminal_gets_a_table_that_changes(service: RunningService, settings: dict[str, str]) -> None:
    master, terminal = pty.openpty()
    with subprocess.Popen(
        [*REPLAYBENCH, "watch", "1"],
        env=embedded.environment(TERM="xterm", COLUMNS="150", LINES="40", **settings),
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    ) as watching:
        os.close(terminal)
        written = b""  # what is read at once may end within a letter
        while b"queued" not in written:
            written += os.read(master, 65536)
        service.driver().must_claim().run({"a": Outcome.PASSED})
        try:
            while part := os.read(master, 65536):
                written += part
        except OSError:  # how Linux says that the other end of a terminal is closed
            pass
        os.close(master)
    shown = written.decode()
    assert watching.returncode == 0, shown
    assert "0 of 1 cell ended" in shown
    assert f"job 1 passed: {service.url}/jobs/1" in shown
    assert "\x1b[" in shown
