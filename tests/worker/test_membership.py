"""A worker's entry: patient with a service that is away, and careful with what the dead left."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from worker.client import Client
from worker.encoding import encode
from worker.membership import Membership
from worker.messages import CONTRACT, Capabilities, CaseEvent, Outcome, Registration
from worker.spool import Spool


class Impatient(threading.Event):
    """Waits for nothing."""

    def wait(self, timeout: float | None = None) -> bool:  # noqa: ARG002 - the base class's
        return self.is_set()


@pytest.fixture
def leftover(tmp_path: Path) -> Path:
    spool = Spool(tmp_path / "5.jsonl", 5, "lease")
    spool.append(encode([CaseEvent(1, "t.py::1", 0, Outcome.PASSED)]))
    spool.close()
    return tmp_path / "5.jsonl"


def lost(path: Path, why: str) -> None:
    raise AssertionError(f"{path} was set aside: {why}")


def enter(
    answer: Callable[[httpx.Request], httpx.Response],
    leftovers: list[Path],
    set_aside: Callable[[Path, str], None] = lost,
) -> bool:
    client = Client("http://service", "secret", httpx.MockTransport(answer))
    registration = Registration(CONTRACT, "w", "boot", "host", Capabilities(("cpu",)))
    try:
        return Membership(client, registration, Impatient()).enter(leftovers, set_aside)
    finally:
        client.close()


def test_a_service_that_is_away_for_hours_is_waited_for_and_gets_what_was_left(leftover: Path) -> None:
    """However often it is asked in vain, the leftover is delivered before the worker registers."""
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.url.path.rpartition("/")[2])
        if len(seen) <= 2000:
            raise httpx.ConnectError("nobody there")
        if seen[-1] == "batches":
            return httpx.Response(200, json={"acknowledged": 1, "lease_s": 30.0, "stop": False})
        return httpx.Response(200, json={"worker": 7, "heartbeat_s": 1.0})

    assert enter(answer, [leftover])
    assert seen[2000:] == ["batches", "register"]


@pytest.mark.parametrize(
    ("status", "code"),
    [(401, "token-refused"), (403, "worker-mismatch"), (409, "contract-mismatch")],
)
def test_a_worker_that_the_service_refuses_says_so_once_and_ends(status: int, code: str) -> None:
    """By a heartbeat: its token was revoked, or the service was updated. It does not ask for ever."""
    calls: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        calls.append(request.url.path.rpartition("/")[2])
        if calls[-1] == "register" and len(calls) == 1:
            return httpx.Response(200, json={"worker": 7, "heartbeat_s": 0.01})
        return httpx.Response(status, json={"code": code, "detail": "no more of you"})

    stopping = threading.Event()
    client = Client("http://service", "secret", httpx.MockTransport(answer))
    registration = Registration(CONTRACT, "w", "boot", "host", Capabilities(("cpu",)))
    membership = Membership(client, registration, stopping, on_refused=stopping.set)
    assert membership.enter([], lost)
    membership.beat_in_background()
    assert stopping.wait(10)
    assert "no more of you" in membership.refusal
    assert calls == ["register", "heartbeat"]
    client.close()


def test_a_worker_that_was_forgotten_registers_again() -> None:
    """A restored database knows it no more; that is no refusal."""
    calls: list[str] = []
    again = threading.Event()

    def answer(request: httpx.Request) -> httpx.Response:
        calls.append(request.url.path.rpartition("/")[2])
        if calls[-1] == "register":
            if len(calls) > 1:
                again.set()
            return httpx.Response(200, json={"worker": 7, "heartbeat_s": 0.01})
        return httpx.Response(409, json={"code": "worker-unknown"})

    stopping = threading.Event()
    client = Client("http://service", "secret", httpx.MockTransport(answer))
    membership = Membership(client, Registration(CONTRACT, "w", "boot", "host", Capabilities(("cpu",))), stopping)
    assert membership.enter([], lost)
    membership.beat_in_background()
    assert again.wait(10)
    stopping.set()
    assert membership.refusal == ""


def test_a_leftover_that_the_service_breaks_over_is_set_aside_in_the_end(leftover: Path) -> None:
    """One bad spool does not keep a worker out for ever, and what it holds is not lost. The others go before it."""
    good = leftover.with_name("6.jsonl")
    good.write_text(leftover.read_text().replace('"attempt": 5', '"attempt": 6'))
    seen: list[str] = []
    aside: dict[Path, str] = {}

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.url.path.partition("/worker/")[2])
        if seen[-1] == "attempts/5/batches":
            return httpx.Response(500)
        if seen[-1] == "attempts/6/batches":
            return httpx.Response(200, json={"acknowledged": 1, "lease_s": 30.0, "stop": False})
        return httpx.Response(200, json={"worker": 7, "heartbeat_s": 1.0})

    assert enter(answer, [leftover, good], aside.__setitem__)
    assert seen == ["attempts/5/batches", "attempts/6/batches", *["attempts/5/batches"] * 19, "register"]
    assert list(aside) == [leftover]
    assert "broke over it 20 times" in aside[leftover]


@pytest.mark.parametrize(
    ("status", "code", "kept"), [(409, "fenced", 0), (404, "not-found", 0), (422, "batch-refused", 1)]
)
def test_a_leftover_that_is_refused_is_set_aside_unless_its_attempt_is_over(
    leftover: Path, status: int, code: str, kept: int
) -> None:
    """A cell whose lease was lost runs again; anything else that the service does not take may be all there is."""
    aside: dict[Path, str] = {}

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/batches"):
            return httpx.Response(status, json={"code": code})
        return httpx.Response(200, json={"worker": 7, "heartbeat_s": 1.0})

    assert enter(answer, [leftover], aside.__setitem__)
    assert len(aside) == kept


def test_a_leftover_that_cannot_be_read_is_set_aside(leftover: Path) -> None:
    """Another release may have written it."""
    leftover.write_text('{"attempt": 5, "token": "lease"}\n{"happenings": []}\n')
    aside: dict[Path, str] = {}
    assert enter(lambda _: httpx.Response(200, json={"worker": 7, "heartbeat_s": 1.0}), [leftover], aside.__setitem__)
    assert "is no spool" in aside[leftover]
