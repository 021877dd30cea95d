"""A consumer is dead when a wake-up lies unread beside a free slot and nothing moves; a busy or slow one is not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from service.dispatch.broker import Broker
from tests.support import broker, proxy
from tests.support.broker import BrokerServer
from tests.worker.support import wait_for
from worker.consumer_watch import ConsumerWatch
from worker.tasks import make_app

LIMIT_S = 0.8


@dataclass
class StubServer:
    """Stands for the worker's slots; no consumer belongs to it, so no wake-up is ever taken."""

    busy: int = 0
    free: bool = True
    asked: int = 0
    served: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def serve(self) -> int:
        with self.lock:
            self.served += 1
        return 0


@pytest.fixture
def server() -> Iterator[BrokerServer]:
    with broker.serving() as it:
        yield it


Watch = Callable[..., threading.Event]


@pytest.fixture
def watch() -> Iterator[Watch]:
    stopping, apps = threading.Event(), list[Any]()

    def start(url: str, stub: StubServer, limit_s: float = LIMIT_S) -> threading.Event:
        dead = threading.Event()
        app = make_app(url, ("lab", "cpu"), stub.serve)
        apps.append(app)
        ConsumerWatch(app, ("lab", "cpu"), stub, stopping, limit_s=limit_s, on_dead=dead.set).start()  # type: ignore[arg-type]
        return dead

    yield start
    stopping.set()
    wait_for(lambda: all(thread.name != "consumer-watch" for thread in threading.enumerate()), "the watch to end")
    for app in apps:
        app.close()


def wake(server: BrokerServer) -> None:
    sender = Broker(server.url)
    sender.send(["cpu"])
    sender.close()


def test_a_wake_up_that_nobody_takes_says_that_the_consumer_is_dead(server: BrokerServer, watch: Watch) -> None:
    """In any queue of the worker; nothing is said while none lies there."""
    dead = watch(server.url, StubServer())
    assert not dead.wait(3 * LIMIT_S)
    wake(server)
    assert dead.wait(20)


@pytest.mark.long
def test_a_worker_without_a_free_slot_takes_none_and_is_well(server: BrokerServer, watch: Watch) -> None:
    """Until a slot is free again."""
    stub = StubServer(busy=1, free=False)
    dead = watch(server.url, stub)
    wake(server)
    assert not dead.wait(3 * LIMIT_S)
    stub.busy, stub.free = 0, True
    assert dead.wait(20)


def test_a_consumer_that_takes_some_is_well(server: BrokerServer, watch: Watch) -> None:
    """However many lie there."""
    stub = StubServer()
    dead = watch(server.url, stub)
    wake(server)

    def goes_on() -> bool:
        stub.asked += 1
        return dead.wait(LIMIT_S / 20)

    assert not any(goes_on() for _ in range(60))


def test_a_deaf_worker_with_an_attempt_claims_unasked_and_ends_later(server: BrokerServer, watch: Watch) -> None:
    """One of two slots is taken."""
    stub = StubServer(busy=1, free=True)
    dead = watch(server.url, stub)
    wake(server)
    wait_for(lambda: stub.served, "a claim that nobody asked for")
    assert not dead.is_set()
    stub.busy = 0
    assert dead.wait(20)


@pytest.mark.parametrize("away", ["not there", "gone between two words"])
def test_while_the_broker_is_away_the_worker_claims_unasked(server: BrokerServer, watch: Watch, away: str) -> None:
    """And the watch lives on: with the broker back, it sees a dead consumer."""
    stub = StubServer()
    wake(server)
    if away == "not there":
        server.end()
        dead = watch(server.url, stub)
        wait_for(lambda: stub.served > 2, "claims")
        assert not dead.is_set()
        server.start()
        wake(server)
        assert dead.wait(20)
        return
    with proxy.tunnel(server.port, cut=b"LLEN") as tunnel:
        dead = watch(f"redis://127.0.0.1:{tunnel.port}/0", stub)
        wait_for(lambda: stub.served > 2, "claims")
        assert not dead.is_set()
