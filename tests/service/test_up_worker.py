"""The embedded system with its worker, in the middle of a job."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import embedded, repository
from tests.support.embedded import Embedded, alive
from tests.support.waiting import wait_for

pytestmark = pytest.mark.long

SLEEPER = """\
import os, pathlib, time
def test_sleeps():
    draft = pathlib.Path({place!r} + ".new")
    draft.write_text(str(os.getpid()))
    draft.rename({place!r})
    time.sleep(600)
"""


def settings(tmp_path: Path) -> dict[str, str]:
    """Without the sandbox: its tests tell by a file of this machine which process they are."""
    return {"REPLAYBENCH_CACHE_DIR": str(tmp_path / "cache"), "REPLAYBENCH_SANDBOX": "off"}


@pytest.fixture
def system(tmp_path: Path) -> Iterator[Embedded]:
    with embedded.up(tmp_path, **settings(tmp_path)) as it:
        it.wait_ready()
        yield it


@pytest.fixture
def tested(system: Embedded, tmp_path: Path) -> int:
    """The number of a test process that runs for a submitted job."""
    place = tmp_path / "tested.pid"
    repo = repository.make(tmp_path / "repo", cases=SLEEPER.format(place=str(place)))
    data = str(system.data_dir)
    submitted = embedded.command("submit", "--suite", "unit", "--json", cwd=repo.path, REPLAYBENCH_DATA_DIR=data)
    assert submitted.returncode == 0, submitted.stderr
    assert json.loads(submitted.stdout)["id"] == 1
    wait_for(place.exists, "the test to start", 120)
    return int(place.read_text())


def test_a_killed_supervisor_takes_worker_and_test_with_it(system: Embedded, tested: int) -> None:
    children = system.children()
    assert sorted(children) == ["broker", "serve", "worker"]
    assert alive(tested)
    system.end(signal.SIGKILL)
    wait_for(lambda: not any(alive(pid) for pid in [*children.values(), tested]), "the end of all of them")


def test_a_request_to_stop_ends_the_test_and_all_else(system: Embedded, tested: int) -> None:
    children = system.children()
    assert system.end() == 0
    assert not any(alive(pid) for pid in [*children.values(), tested])


def test_a_job_survives_a_stop(system: Embedded, tested: int, tmp_path: Path) -> None:
    system.end()
    (tmp_path / "tested.pid").unlink()
    with embedded.up(tmp_path, **settings(tmp_path)) as again:
        again.wait_ready()
        wait_for((tmp_path / "tested.pid").exists, "the test to start again", 120)
        shown = embedded.command("jobs", "--json", REPLAYBENCH_DATA_DIR=str(again.data_dir))
        assert json.loads(shown.stdout)[0]["state"] == "running"
