"""How a worker's slots claim: one after the other, and none in another's way."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import worker.serve
from tests.worker.support import Repository, wait_for
from worker.attempt import Host
from worker.client import Client
from worker.encoding import encode
from worker.gpus.devices import DevicePool
from worker.membership import Membership
from worker.messages import CONTRACT, Assignment, Capabilities, CellSpec, Device, Registration, SuiteSpec
from worker.runtimes.runtime import Tools
from worker.serve import Server
from worker.settings import Settings

TWO = tuple(Device(index, f"GPU-{index}", "H200", 1, "580", "13.0") for index in range(2))
LONG_S = "60"


class AnyDevice:
    """The health of cards that are all fit."""

    def check(self, _uuid: str) -> str:
        return ""

    def devices(self) -> tuple[Device, ...]:
        return TWO


@contextmanager
def serving(tmp_path: Path, answer: Callable[[httpx.Request], httpx.Response]) -> Iterator[Server]:
    """A server of two slots and two cards, whose service is a function."""
    client = Client("http://service", "secret", httpx.MockTransport(answer))
    settings = Settings(
        BROKER_URL="redis://nowhere", REPLAYBENCH_SERVICE_URL="http://service", REPLAYBENCH_WORKER_TOKEN="secret"
    )
    stopping = threading.Event()
    health: Any = AnyDevice()
    host = Host(settings, client, Tools("uv", tmp_path, 1.0), {}, tmp_path, tmp_path, 1.0, stopping, health=health)
    registration = Registration(CONTRACT, "w", "boot", "host", Capabilities(("cuda",)))
    server = Server(host, Membership(client, registration, stopping), DevicePool(TWO, tmp_path / "devices"), 2)
    try:
        yield server
    finally:
        stopping.set()
        assert server.wait_idle(20)
        client.close()


def asked_for(request: httpx.Request) -> list[str]:
    """The devices that a claim calls free."""
    free: list[str] = json.loads(request.content)["free_devices"]
    return free


def handing_out(
    cell: CellSpec, device: str, claims: list[list[str]], first: httpx.Response
) -> Callable[[httpx.Request], httpx.Response]:
    """A service that answers the first claim so, gives the next one the cell, and has no more. It notes what each claim
    calls free."""

    def answer(request: httpx.Request) -> httpx.Response:
        claims.append(asked_for(request))
        if len(claims) == 1:
            return first
        if len(claims) == 2:
            return httpx.Response(200, json=encode(Assignment(5, 1, "lease", 30.0, cell, (device,))))
        return httpx.Response(204)

    return answer


@pytest.mark.parametrize("status", [429, 503])
def test_a_claim_that_is_to_wait_keeps_no_other_slot_from_claiming(
    tmp_path: Path, repository: Repository, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For as long as the service asks one slot to wait, the next one is offered every device, and gets its cell."""
    repository.commit({"a": "b"})
    cell = repository.cell(suite=SuiteSpec("gate", ("tests",), kind="cuda"))
    claims: list[list[str]] = []
    ran: list[tuple[str, ...]] = []
    monkeypatch.setattr(
        worker.serve, "run_attempt", lambda _1, devices, _2: ran.append(tuple(device.uuid for device in devices))
    )

    wait = httpx.Response(status, headers={"Retry-After": LONG_S})
    with serving(tmp_path, handing_out(cell, "GPU-1", claims, wait)) as server:
        waiting = threading.Thread(target=server.serve)
        waiting.start()
        wait_for(lambda: claims, "the first claim")
        other = threading.Thread(target=server.serve)
        other.start()
        other.join(20)
        assert not other.is_alive()
        assert waiting.is_alive()
    waiting.join(20)
    assert claims == [["GPU-0", "GPU-1"]] * 3
    assert ran == [("GPU-1",)]


def test_what_another_slot_took_meanwhile_is_not_offered_again(
    tmp_path: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second try chooses anew: a device is never leased twice."""
    repository.commit({"a": "b"})
    cell = repository.cell(suite=SuiteSpec("gate", ("tests",), kind="cuda"))
    claims: list[list[str]] = []
    running, over = threading.Event(), threading.Event()

    def run(*_: Any) -> None:
        running.set()
        assert over.wait(20)

    monkeypatch.setattr(worker.serve, "run_attempt", run)
    with serving(tmp_path, handing_out(cell, "GPU-0", claims, httpx.Response(503))) as server:
        waits = server._host.stopping.wait

        def wait_until_the_other_runs(_timeout: float) -> bool:
            return running.wait(20) and waits(0)

        monkeypatch.setattr(server._host.stopping, "wait", wait_until_the_other_runs)
        waiting = threading.Thread(target=server.serve)
        waiting.start()
        wait_for(lambda: claims, "the first claim")
        other = threading.Thread(target=server.serve)
        other.start()
        waiting.join(20)
        assert not waiting.is_alive()
        over.set()
        other.join(20)
    assert claims[:3] == [["GPU-0", "GPU-1"], ["GPU-0", "GPU-1"], ["GPU-1"]]


def test_a_worker_that_drains_while_its_claim_waits_claims_nothing_more(tmp_path: Path) -> None:
    """Draining means that what runs goes on and nothing is added; nobody waits for the claim."""
    claims: list[list[str]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        claims.append(asked_for(request))
        return httpx.Response(503, headers={"Retry-After": LONG_S})

    with serving(tmp_path, answer) as server:
        waiting = threading.Thread(target=server.serve)
        waiting.start()
        wait_for(lambda: claims, "the claim")
        server.draining.set()
        wait_for(lambda: not server.busy, "the slot to be free")
    waiting.join(20)
    assert len(claims) == 1
