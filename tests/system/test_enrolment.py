"""A worker on another machine, from its enrolment to its end, at the command line as docs/operations.md has it."""

from __future__ import annotations

import json
import stat
import subprocess
from pathlib import Path

import pytest

from tests.support import faults, fleet
from tests.support.embedded import REPLAYBENCH, command, environment
from tests.support.fleet import Fleet

pytestmark = pytest.mark.long


def enroll(it: Fleet, name: str, file: Path) -> subprocess.CompletedProcess[str]:
    """Makes an enrolment token and exchanges it, through standard input."""
    made = command("workers", "enroll", name, REPLAYBENCH_URL=it.url, REPLAYBENCH_DATA_DIR=str(it.folder / "data"))
    assert made.returncode == 0, made.stderr
    assert f"replaybench worker --enroll TOKEN --service {it.url}" in made.stderr
    return exchange(it, made.stdout, file)


def exchange(it: Fleet, token: str, file: Path) -> subprocess.CompletedProcess[str]:
    """Runs `replaybench worker --enroll - --service URL`."""
    return subprocess.run(
        [*REPLAYBENCH, "worker", "--enroll", "-", "--service", it.url],
        input=token,
        env=environment(REPLAYBENCH_ENROLMENT_FILE=str(file)),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_worker_comes_in_by_enrolment_serves_and_is_put_out(tmp_path: Path) -> None:
    """Its file is for its user alone and all that it needs besides the broker; revoked in the middle of a cell, it ends
    with a clear word, and another worker runs the cell."""
    repo = faults.suite(tmp_path)
    file = tmp_path / "etc/worker.json"
    with fleet.running(tmp_path, REPLAYBENCH_LEASE_S="60") as it:
        done = enroll(it, "gpu-3", file)
        assert (done.returncode, done.stdout.startswith(f"enrolled as gpu-3 at {it.url}")) == (0, True), done.stderr
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        blank = {"REPLAYBENCH_SERVICE_URL": "", "REPLAYBENCH_WORKER_TOKEN_FILE": "", "REPLAYBENCH_WORKER_NAME": ""}
        enrolled = it.worker("enrolled", REPLAYBENCH_ENROLMENT_FILE=str(file), **blank)
        assert [worker["name"] for worker in it.get("/workers")] == ["gpu-3"]
        job = it.submit(repo.path)
        cell = it.wait_for_cases(job, 3, 20)["id"]
        (token,) = [found["id"] for found in it.get("/tokens") if found["name"] == "worker gpu-3"]
        revoke = command("tokens", "revoke", str(token), REPLAYBENCH_URL=it.url,
                         REPLAYBENCH_DATA_DIR=str(it.folder / "data"))  # fmt: skip
        assert revoke.returncode == 0, revoke.stderr
        assert it.verdicts(cell) == ["lost"]
        assert enrolled.wait() == 2
        assert "replaybench worker: " in enrolled.said
        assert "was revoked at" in enrolled.said
        it.worker("other")
        faults.assert_whole(it, job, ["lost", "failed"])
        enrolled.start()
        assert enrolled.wait() == 2, "it is refused at its next start, too"


def test_an_enrolment_that_does_not_work_says_why(tmp_path: Path) -> None:
    """A token that was used, a folder that cannot be written, an address that is none, another name than enrolled."""
    with fleet.running(tmp_path) as it:
        file = tmp_path / "worker.json"
        assert enroll(it, "gpu-3", file).returncode == 0
        kept = file.read_text()
        made = command("workers", "enroll", "gpu-4", REPLAYBENCH_URL=it.url,
                       REPLAYBENCH_DATA_DIR=str(it.folder / "data")).stdout  # fmt: skip
        unwritable = exchange(it, made, Path("/proc/nowhere/worker.json"))
        assert (unwritable.returncode, "REPLAYBENCH_ENROLMENT_FILE" in unwritable.stderr) == (2, True)
        assert exchange(it, made, tmp_path / "gpu-4.json").returncode == 0, "what could not be kept cost no token"
        again = exchange(it, made, file)
        assert (again.returncode, "was revoked" in again.stderr) == (2, True)
        assert file.read_text() == kept, "a refusal leaves the enrolment that was there"
        nowhere = command("worker", "--enroll", "x", "--service", "not-an-address")
        assert (nowhere.returncode, "give it as https://HOST:PORT" in nowhere.stderr) == (2, True)
        named = it.worker("gpu-9", start=False, REPLAYBENCH_ENROLMENT_FILE=str(file), REPLAYBENCH_WORKER_TOKEN_FILE="")
        named.start()
        assert named.wait() == 2
        assert "is that of worker 'gpu-3' and cannot speak for 'gpu-9'" in named.said
        assert json.loads(kept)["REPLAYBENCH_WORKER_TOKEN"] not in named.said
