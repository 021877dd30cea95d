"""Cards under a real worker process: two cells on two cards at once, both for one, and drained ones left alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import broker
from tests.support.nvml import Cards, card
from tests.worker.support import PYTHON, Repository, StubService, wait_for
from worker.encoding import encode
from worker.gpus.devices import DevicePool
from worker.messages import Assignment, Device, RuntimeSpec, SuiteSpec

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def broker_url() -> Iterator[str]:
    with broker.running() as url:
        yield url


@pytest.fixture
def cards(tmp_path: Path) -> Cards:
    return Cards(tmp_path / "cards.json", card(0), card(1))


@pytest.fixture
def env(service: StubService, broker_url: str, tmp_path: Path, uv: str, cards: Cards) -> dict[str, str]:
    return {
        **os.environ,
        "BROKER_URL": broker_url,
        "REPLAYBENCH_SERVICE_URL": service.url,
        "REPLAYBENCH_WORKER_TOKEN": "secret",
        "REPLAYBENCH_CACHE_DIR": str(tmp_path / "cache"),
        "REPLAYBENCH_HOST_RUNTIMES": sys.executable,
        "REPLAYBENCH_UV": uv,
        "REPLAYBENCH_KILL_GRACE_S": "0.5",
        "REPLAYBENCH_GPU_RECHECK_S": "0.1",
        # Its tests meet in a folder of this machine.
        "REPLAYBENCH_SANDBOX": "off",
        **cards.env,
    }


@pytest.fixture
def worker(env: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Starts a worker."""
    started: list[subprocess.Popen[str]] = []

    def start(**more: str) -> None:
        with (tmp_path / "log").open("ab") as log:
            command = [sys.executable, "-m", "worker"]
            process = subprocess.Popen(command, cwd=ROOT, env=env | more, stdout=subprocess.PIPE, stderr=log, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "worker ready\n", (tmp_path / "log").read_text()

    yield start
    for process in started:
        process.terminate()
        with process:
            assert process.wait(20) == 0


def drained(service: StubService) -> list[str] | None:
    """Why each card gets no cell, as the service was last told."""
    told = [beat["devices"] for beat in service.heartbeats if beat["devices"] is not None]
    registered = [each["capabilities"]["devices"] for each in service.registrations]
    return [device["drained"] for device in (registered + told)[-1]]


MEET = """
import os, pathlib, time
def test_1():
    here = pathlib.Path({folder!r})
    mine = os.environ["CUDA_VISIBLE_DEVICES"]
    (here / mine).touch()
    deadline = time.monotonic() + 20
    while len(list(here.iterdir())) < {count}:
        assert time.monotonic() < deadline, "the other one does not run at the same time"
        time.sleep(0.02)
"""


def assignment(repository: Repository, attempt: int, kind: str, *devices: str) -> Any:
    cell = repository.cell(runtime=RuntimeSpec(PYTHON), suite=SuiteSpec("gate", ("tests",), kind=kind))
    return encode(Assignment(attempt, 1, "lease", 30.0, cell, devices))


def idle(folder: Path, uuids: list[str]) -> bool:
    """Whether nobody holds a card."""
    pool = DevicePool(tuple(Device(0, uuid, "", 0, "", "") for uuid in uuids), folder)
    with pool.looking() as free:
        return free == tuple(uuids)


def outcomes(service: StubService) -> list[str]:
    return [event.outcome for event in service.events if event.kind == "case"]


@pytest.mark.long
def test_two_cells_run_on_two_cards_at_once_and_one_on_both(
    worker: Callable[..., None], service: StubService, repository: Repository, cards: Cards, tmp_path: Path
) -> None:
    """Each sees its own card, by UUID; each waits for the other to be there."""
    met = tmp_path / "met"
    met.mkdir()
    repository.commit({"tests/test_it.py": MEET.format(folder=str(met), count=2)})
    first, second = cards.uuids
    service.separate = True
    service.assignments += [assignment(repository, 5, "cuda", second), assignment(repository, 6, "cuda")]
    worker()
    wait_for(lambda: len(service.ended) == 2, "both attempts")
    assert sorted(path.name for path in met.iterdir()) == sorted(cards.uuids)
    assert outcomes(service) == ["passed", "passed"]
    free = [set(claim["free_devices"]) for claim in service.claims]
    assert free[:2] == [{first, second}, {first}]
    for path in met.iterdir():
        path.unlink()
    repository.commit({"tests/test_it.py": MEET.format(folder=str(met), count=1)})
    wait_for(lambda: idle(tmp_path / "cache" / "devices", cards.uuids), "both cards to be given back")
    service.assignments.append(assignment(repository, 7, "cuda.2", first, second))
    worker(REPLAYBENCH_WORKER_NAME="another")
    wait_for(lambda: len(service.ended) == 3, "the attempt on both")
    assert [path.name for path in met.iterdir()] == [f"{first},{second}"]


@pytest.mark.long
def test_a_card_that_breaks_is_told_at_once_and_offered_no_more(
    worker: Callable[..., None], service: StubService, cards: Cards, env: dict[str, str]
) -> None:
    """Until the operator clears it; one that somebody else uses is offered again when they are gone."""
    cards.set(1, processes=[[os.getpid(), 5000]])
    worker()
    (registration,) = service.registrations
    first, second = registration["capabilities"]["devices"]
    assert (first["drained"], second["drained"].startswith("in use by ")) == ("", True)
    assert (first["ecc_volatile"], first["cuda"], first["memory_free_mib"]) == (0, "13.0", 143171)
    assert {tuple(claim["free_devices"]) for claim in service.claims} == {(cards.uuids[0],)}
    cards.set(1, processes=[])
    wait_for(lambda: drained(service) == ["", ""], "the second card to be fit again")
    cards.xid(0, 79)
    wait_for(lambda: (drained(service) or [""])[0].startswith("Xid 79 (the GPU has fallen off the bus), "), "the Xid")
    service.claims.clear()
    worker(REPLAYBENCH_WORKER_NAME="another")
    assert {tuple(claim["free_devices"]) for claim in service.claims} == {(cards.uuids[1],)}

    def command(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "worker", *words]
        return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=30, check=False)

    told = json.loads(command("gpus").stdout)
    assert [one["fault"][:6] for one in told] == ["Xid 79", ""]
    assert command("clear", "0").stdout.startswith(f"cleared: {cards.uuids[0]}: Xid 79")
    wait_for(lambda: drained(service) == ["", ""], "the first card to be fit again")
    assert command("clear", "0").returncode == 2
    assert command("clear").returncode == 2
