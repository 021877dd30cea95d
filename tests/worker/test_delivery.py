"""Delivery against a real HTTP server that answers as a service in trouble does."""

from __future__ import annotations

import functools
import json
import math
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.worker.support import Repository, StubService, wait_for
from worker.client import BatchGap, Client, ContractMismatch, Fenced, Refused, Retryable, ServiceError, TooLarge
from worker.delivery import Delivery, deliver_leftover
from worker.encoding import encode
from worker.messages import (
    Assignment,
    AttemptEndedEvent,
    Batch,
    CaseEvent,
    Cause,
    EnvironmentEvent,
    Event,
    Outcome,
    Phase,
    PhaseEvent,
    ProcessEndedEvent,
    ProcessStartedEvent,
    UsageEvent,
)
from worker.spool import Spool, read

NEVER = threading.Event()


def case(number: int, **more: Any) -> CaseEvent:
    return CaseEvent(1, f"t.py::{number}", 0, Outcome.PASSED, **more)


@pytest.fixture
def client(service: StubService) -> Iterator[Client]:
    client = Client(service.url, "secret")
    yield client
    client.close()


Maker = Callable[..., Delivery]


@pytest.fixture
def deliver(client: Client, repository: Repository, tmp_path: Path) -> Maker:
    repository.commit({"a": "1"})
    cell = repository.cell()

    def make(stop: threading.Event | None = None, heartbeat_s: float = 0.1, log: str = "") -> Delivery:
        return Delivery(
            client,
            Assignment(5, 1, "lease", 30.0, cell),
            tmp_path / "5.jsonl",
            heartbeat_s=heartbeat_s,
            flush_s=0.02,
            log_tail=lambda most: log[-most:],
            stop=stop or threading.Event(),
        )

    return make


def numbers(events: list[Event]) -> list[str]:
    return [event.node_id.rpartition("::")[2] for event in events if isinstance(event, CaseEvent)]


def test_events_arrive_once_in_order_and_the_spool_goes(service: StubService, deliver: Maker, tmp_path: Path) -> None:
    """Numbers count from 1 without gaps."""
    delivery = deliver()
    for number in range(300):
        delivery.send(case(number))
    assert delivery.finish(NEVER, 0)
    assert numbers(service.events) == [str(number) for number in range(300)]
    assert sorted(service.stored) == list(range(1, len(service.stored) + 1))
    assert not (tmp_path / "5.jsonl").exists()


def test_an_idle_attempt_beats(service: StubService, deliver: Maker) -> None:
    """A heartbeat is a batch without events that repeats the last number; it tells the case and the log's tail."""
    delivery = deliver(log="hello")
    delivery.send(case(1))
    delivery.running("t.py::2")
    wait_for(lambda: len([batch for batch in service.batches if not batch.events]) >= 3, "heartbeats")
    beats = [batch for batch in service.batches if not batch.events]
    assert (beats[-1].seq, beats[-1].running) == (1, "t.py::2")
    assert [batch.log_tail for batch in service.batches if batch.log_tail] == ["hello"]
    assert delivery.finish(NEVER, 0)


@pytest.mark.parametrize("status", [500, 503, 429, 408])
def test_a_service_in_trouble_is_asked_again(service: StubService, deliver: Maker, status: int) -> None:
    """Nothing is lost and nothing doubled."""
    service.script = [(status, {"code": "busy"})] * 3
    delivery = deliver()
    for number in range(5):
        delivery.send(case(number))
    assert delivery.finish(NEVER, 0)
    assert numbers(service.events) == ["0", "1", "2", "3", "4"]


def test_a_fenced_attempt_stops_and_sends_nothing_more(service: StubService, deliver: Maker) -> None:
    """The run is told to stop; later events go nowhere."""
    stop = threading.Event()
    service.script = [(409, {"code": "fenced"})]
    delivery = deliver(stop)
    delivery.send(case(1))
    wait_for(stop.is_set, "the stop")
    delivery.send(case(2))
    assert delivery.finish(NEVER, 0)
    assert delivery.fenced
    assert service.events == []


def test_the_services_stop_reaches_the_run(service: StubService, deliver: Maker) -> None:
    """The attempt is told to end, and its last events still go out."""
    stop = threading.Event()
    service.stop = True
    delivery = deliver(stop)
    wait_for(stop.is_set, "the stop")
    assert delivery.cancelled
    delivery.send(AttemptEndedEvent(Cause.CANCELLED))
    assert delivery.finish(NEVER, 0)
    assert [event.kind for event in service.events] == ["attempt-ended"]


def test_a_gap_is_filled(service: StubService, deliver: Maker) -> None:
    """The service says which number is due, and gets it."""
    delivery = deliver()
    delivery.send(case(1))
    wait_for(lambda: service.stored, "the first batch")
    service.stored.clear()
    delivery.send(case(2))
    assert delivery.finish(NEVER, 0)
    assert numbers(service.events) == ["1", "2"]


def test_a_batch_too_large_is_halved(service: StubService, deliver: Maker) -> None:
    """Down to one event, whose long texts are left out rather than the case."""
    service.largest = 3000
    delivery = deliver()
    for number in range(40):
        delivery.send(case(number))
    delivery.send(case(99, traceback="x" * 9000))
    assert delivery.finish(NEVER, 0)
    assert numbers(service.events) == [*map(str, range(40)), "99"]


LARGE = [
    (case(99, traceback="x" * 9000), ["98", "99", "100"]),
    (CaseEvent(1, "t.py::" + "x" * 9000, 0, Outcome.PASSED), ["98", "x" * 506, "100"]),
    (EnvironmentEvent({"packages": "x" * 9000}), ["98"]),
    (AttemptEndedEvent(Cause.FINISHED, "x" * 9000), ["98"]),
]


@pytest.mark.parametrize("leftover", [False, True])
@pytest.mark.parametrize(("event", "kept"), LARGE, ids=["text", "id", "facts", "end"])
def test_an_event_too_large_keeps_nothing_waiting(
    service: StubService, client: Client, deliver: Maker, tmp_path: Path, event: Event, kept: list[str], leftover: bool
) -> None:
    """What of a case is too large is left out; where nothing can be, the attempt ends with the next step, rather than
    hold its slot for ever. The same where its worker was killed before it knew."""
    service.largest = 3000
    events = [case(98), event, case(100)]
    if leftover:
        spool = Spool(tmp_path / "6.jsonl", 5, "lease")
        for one in events:
            spool.append(encode([one]))
        spool.close()
        deliver_leftover(client, tmp_path / "6.jsonl")
    else:
        delivery = deliver()
        for one in events:
            delivery.send(one)
        assert delivery.finish(NEVER, 0)
    assert [name.partition("…")[0] for name in numbers(service.events)][: len(kept)] == kept
    ends = [one.detail for one in service.events if isinstance(one, AttemptEndedEvent)]
    assert [("413" in end, "REPLAYBENCH_BODY_CAP_BYTES" in end) for end in ends] == [(True, True)] * (len(kept) == 1)


def test_a_service_that_takes_no_event_at_all_frees_the_slot(service: StubService, deliver: Maker) -> None:
    """Whatever the size: the lease is left to run out."""
    service.largest = 10
    stop = threading.Event()
    delivery = deliver(stop)
    delivery.send(case(1))
    assert delivery.finish(NEVER, 0)
    assert (delivery.fenced, stop.is_set()) == (True, True)


def test_a_worker_that_stops_leaves_the_spool(client: Client, deliver: Maker, tmp_path: Path) -> None:
    """With the service away at the end, the next start delivers."""
    delivery = deliver()
    client._http.base_url = "http://127.0.0.1:9"
    delivery.send(case(1))
    stopping = threading.Event()
    stopping.set()
    assert not delivery.finish(stopping, 0.3)
    leftover = read(tmp_path / "5.jsonl")
    assert leftover is not None
    assert (leftover.attempt, leftover.token, len(leftover.groups)) == (5, "lease", 1)


def test_a_leftover_spool_is_delivered(service: StubService, client: Client, tmp_path: Path) -> None:
    """What the service has already it ignores; a line that a kill cut short is left out; splits keep their numbers."""
    spool = Spool(tmp_path / "s" / "5.jsonl", 5, "lease")
    spool.append(encode([case(1), case(2)]))
    spool.split(0)
    spool.append(encode([case(3)]))
    spool.close()
    with (tmp_path / "s" / "5.jsonl").open("a") as stream:
        stream.write('{"events": [{"kind": "ca')
    service.take(Batch("lease", 1, (case(1),)))
    assert deliver_leftover(client, tmp_path / "s" / "5.jsonl") == ""
    assert numbers(service.events) == ["1", "2", "3"]


@pytest.mark.parametrize("said", [True, False])
def test_a_leftover_knows_how_its_attempt_ended(
    service: StubService, client: Client, deliver: Maker, tmp_path: Path, said: bool
) -> None:
    """A worker that is killed while its logs wait for the service has not run the cell for nothing; where the last word
    came into the spool by itself it is there once."""
    service.script = [(503, {})] * 1000
    delivery = deliver()
    delivery.send(case(1))
    delivery.will_end(AttemptEndedEvent(Cause.FINISHED, "kept early"))
    if said:
        delivery.send(AttemptEndedEvent(Cause.FINISHED, "said"))
    words = ["t.py::1", "kept early", *(["said"] if said else [])]
    wait_for(lambda: all(word in (tmp_path / "5.jsonl").read_text() for word in words), "the spool")
    stopping = threading.Event()
    stopping.set()
    assert not delivery.finish(stopping, 0)
    service.script.clear()
    deliver_leftover(client, tmp_path / "5.jsonl")
    ends = [event.detail for event in service.events if isinstance(event, AttemptEndedEvent)]
    assert ends == (["said"] if said else ["kept early"])
    assert numbers(service.events) == ["1"]


@pytest.mark.parametrize("answer", [(409, {"code": "fenced"}), (404, {"code": "not-found"})])
def test_an_unwanted_leftover_is_given_up(
    service: StubService, client: Client, tmp_path: Path, answer: tuple[int, dict[str, str]]
) -> None:
    """Its lease is long lost."""
    spool = Spool(tmp_path / "5.jsonl", 5, "lease")
    spool.append(encode([case(1)]))
    spool.append(encode([case(2)]))
    spool.close()
    service.script = [answer]
    with pytest.raises(Fenced):
        deliver_leftover(client, tmp_path / "5.jsonl")
    assert len(service.paths) == 1


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((409, {"code": "fenced"}), Fenced),
        ((410, {}), Fenced),
        ((409, {"code": "batch-gap", "expected": 3}), BatchGap),
        ((409, {"code": "contract-mismatch"}), ContractMismatch),
        ((413, {}), TooLarge),
        ((422, {"detail": "wrong"}), Refused),
        ((401, {}), Refused),
        ((503, {}), Retryable),
        ((200, {"nonsense": 1}), Refused),
    ],
)
def test_problem_documents_become_typed_errors(
    service: StubService, client: Client, answer: tuple[int, dict[str, str]], error: type[ServiceError]
) -> None:
    """By their code first, then by the status."""
    service.script = [answer]
    with pytest.raises(error):
        client.post(5, Batch("lease", 1))


@pytest.mark.parametrize(
    ("header", "wait"), [("7", 7.0), ("86400", 60.0), ("", None), ("Wed, 21 Oct 2026 07:28:00 GMT", None), ("-3", None)]
)
@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_service_says_how_long_to_wait(status: int, header: str, wait: float | None) -> None:
    """Within reason, and not where it cannot be read."""

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(status, json={"code": "busy"}, headers={"Retry-After": header} if header else {})

    client = Client("http://service", "secret", httpx.MockTransport(answer))
    with pytest.raises(Retryable) as error:
        client.post(5, Batch("lease", 1))
    assert error.value.after_s == wait
    client.close()


def test_nobody_listening_is_worth_another_try() -> None:
    """With the address in the text."""
    client = Client("http://127.0.0.1:9", "secret")
    with pytest.raises(Retryable, match=r"127\.0\.0\.1:9"):
        client.post(5, Batch("lease", 1))
    client.close()


def test_a_spool_is_on_disk_before_it_is_sent(service: StubService, deliver: Maker, tmp_path: Path) -> None:
    """A kill between the two loses nothing."""
    service.script = [(503, {})] * 100
    delivery = deliver()
    delivery.send(case(1))
    wait_for(lambda: len(service.paths) >= 1, "the first try")
    lines = [json.loads(line) for line in (tmp_path / "5.jsonl").read_text().splitlines()]
    assert lines[1]["events"][0]["node_id"] == "t.py::1"
    service.script.clear()
    assert delivery.finish(NEVER, 0)


def test_a_full_disk_stops_the_attempt_and_loses_nothing(service: StubService, deliver: Maker, tmp_path: Path) -> None:
    """What cannot be kept on disk is still delivered from memory; the fault is said."""
    (tmp_path / "5.jsonl").symlink_to("/dev/full")
    stop = threading.Event()
    delivery = deliver(stop)
    delivery.send(case(1))
    wait_for(stop.is_set, "the stop")
    delivery.send(case(2))
    assert "No space left on device" in delivery.fault
    assert delivery.finish(NEVER, 0)
    assert numbers(service.events) == ["1", "2"]


def test_a_spool_that_cannot_be_made_is_a_fault_too(service: StubService, deliver: Maker, tmp_path: Path) -> None:
    """The attempt still gets its last word out."""
    (tmp_path / "5.jsonl").mkdir()
    delivery = deliver()
    delivery.send(case(1))
    assert delivery.finish(NEVER, 0)
    assert "5.jsonl" in delivery.fault
    assert numbers(service.events) == ["1"]


ODD: list[Event] = [
    case(1, duration_s=float("nan")),
    case(1, duration_s=float("inf"), message="why"),
    case(1, message="m\udcff", traceback="t\ud800"),
    case(1, properties={"k\udc80": [float("nan")]}, evidence={"e": -float("inf"), "p": Path("x"), "s": {1}}),
    CaseEvent(1, "t.py::\udcff::1", 0, Outcome.PASSED),
    CaseEvent(1, "t.py::1", 0, Outcome.PASSED, properties={"deep": functools.reduce(lambda x, _: [x], range(200), [])}),
    PhaseEvent(Phase.RUNNING),
    ProcessStartedEvent(1, "r\udcff"),
    ProcessEndedEvent(1, 0, None, 1, 1, True, "d\udcff"),
    EnvironmentEvent({"host": "h\udcff", "of": float("nan"), "gpus": [b"bytes"]}),
    UsageEvent({"gpus": [{"utilisation_mean_percent": float("nan"), "uuid": "u\udcff"}]}),
    AttemptEndedEvent(Cause.ENVIRONMENT, "the link a\udcff leads out of the tree"),
]


@pytest.mark.parametrize("event", ODD, ids=lambda event: event.kind)
def test_a_value_that_cannot_be_carried_keeps_nothing_from_being_sent(
    service: StubService, deliver: Maker, event: Event
) -> None:
    """It is told as it can be, a case says so, and all around it arrives as it was."""
    stop = threading.Event()
    delivery = deliver(stop)
    delivery.send(case(0))
    delivery.send(event)
    delivery.running("t.py::\udcff")
    delivery.send(case(2))
    delivery.will_end(AttemptEndedEvent(Cause.FINISHED, "a\udcff"))
    assert delivery.finish(NEVER, 0)
    first, told, last = service.events
    assert (first, last) == (case(0), case(2))
    assert type(told) is type(event)
    assert ascii(told).count("\\ud") == ascii(told).count("\\\\ud"), "a lone surrogate, and not its name"
    if isinstance(told, CaseEvent):
        assert (told.cleaned, math.isfinite(told.duration_s)) == (True, True)
    assert (delivery.fault, stop.is_set()) == ("", False)


def test_what_cannot_be_carried_does_not_keep_a_leftover_either(
    service: StubService, client: Client, tmp_path: Path
) -> None:
    """Whoever wrote the spool: it is delivered, not set aside."""
    spool = Spool(tmp_path / "5.jsonl", 5, "lease")
    spool.append([{"kind": "case", "process": 1, "node_id": "\udcff", "occurrence": 0, "outcome": "passed",
                   "duration_s": float("nan")}])  # fmt: skip
    spool.end({"kind": "attempt-ended", "cause": "finished", "detail": "\udcff"})
    spool.close()
    assert deliver_leftover(client, tmp_path / "5.jsonl") == ""
    assert [event.kind for event in service.events] == ["case", "attempt-ended"]


@pytest.mark.parametrize(
    "where",
    [
        "httpx.Client.request",
        "worker.client.decode",
        "worker.spool.Spool.append",
        "worker.batches.clean_event",
        "worker.delivery.Delivery._has_news",
    ],
)
def test_a_posting_thread_that_breaks_ends_the_attempt(
    service: StubService, deliver: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Wherever it does so: the run is told to stop and why, and so is the service. What was on disk stays there."""
    stop = threading.Event()
    delivery = deliver(stop)
    delivery.send(case(1))
    wait_for(lambda: service.stored, "the first batch")
    with monkeypatch.context() as patch:
        patch.setattr(where, lambda *_, **__: 1 / 0)
        delivery.send(case(2))
        wait_for(stop.is_set, "the stop")
    assert delivery.fault == "events can no longer be delivered: ZeroDivisionError: division by zero"
    delivery.send(AttemptEndedEvent(Cause.INFRASTRUCTURE, delivery.fault))
    assert not delivery.finish(NEVER, 0)
    assert read(tmp_path / "5.jsonl") is not None
    if where != "worker.client.decode":  # Then the service has the number already: it ignores what comes by it.
        assert service.events[-1] == AttemptEndedEvent(Cause.INFRASTRUCTURE, delivery.fault)


def test_why_a_posting_thread_broke_is_told_when_the_service_is_back(
    service: StubService, deliver: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been away just then; a worker that is told to stop waits no longer for it."""
    delivery = deliver()
    delivery.send(case(1))
    wait_for(lambda: service.stored, "the first batch")
    with monkeypatch.context() as patch:
        patch.setattr("worker.batches.clean_event", lambda *_: 1 / 0)
        delivery.send(case(2))
        wait_for(lambda: delivery.fault, "the fault")
    service.script = [(503, {"code": "busy"})] * 3
    assert not delivery.finish(NEVER, 0)
    assert service.events[-1] == AttemptEndedEvent(Cause.INFRASTRUCTURE, delivery.fault)
    assert not service.script
    service.script = [(503, {"code": "busy"})] * 3
    told = threading.Event()
    told.set()
    assert not delivery.finish(told, 0)
    assert len(service.script) == 2


def test_a_posting_thread_that_breaks_for_good_leaves_the_spool(
    client: Client, deliver: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where not even the reason can be sent."""
    monkeypatch.setattr(client, "post", lambda *_: 1 / 0)
    delivery = deliver()
    delivery.send(case(1))
    assert not delivery.finish(NEVER, 0)
    leftover = read(tmp_path / "5.jsonl")
    assert leftover is not None
    assert len(leftover.groups) == 1


def held(events: list[weakref.ref[Event]]) -> int:
    return sum(event() is not None for event in events)


def sent_apart(delivery: Delivery, service: StubService, count: int) -> list[weakref.ref[Event]]:
    """Send so many cases, each in a batch of its own, and keep none of them here."""
    watched = []
    for number in range(count):
        event = case(number)
        watched.append(weakref.ref[Event](event))
        delivery.send(event)
        del event
        wait_for(lambda: len(service.stored) > number, "the batch")  # noqa: B023 - it ends here
    return watched


def test_what_the_service_has_is_held_no_longer(service: StubService, deliver: Maker) -> None:
    """In memory: an attempt may take hours. What it lacks is."""
    delivery = deliver()
    watched = sent_apart(delivery, service, 5)
    wait_for(lambda: held(watched) == 0, "the acknowledged events to go")
    service.script = [(503, {})] * 1000
    waiting = case(9)
    watched = [weakref.ref[Event](waiting)]
    delivery.send(waiting)
    del waiting
    before = len(service.paths)
    wait_for(lambda: len(service.paths) > before + 1, "a second try")
    assert held(watched) == 1
    service.script.clear()
    assert delivery.finish(NEVER, 0)
    assert numbers(service.events) == ["0", "1", "2", "3", "4", "9"]


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_gap_among_what_was_let_go_of_is_filled_from_the_spool(
    service: StubService, deliver: Maker, lost: int
) -> None:
    """A service whose database was put back lacks the last batches: they come again, by their numbers, and split as
    they were."""
    delivery = deliver()
    wait_for(lambda: service.batches, "the first beat")
    service.largest = 1200
    with delivery._condition:  # in one batch, which the service then has halved
        delivery._fresh += [case(10, message="x" * 500), case(11, message="x" * 500)]
    wait_for(lambda: len(service.stored) == 2, "both halves")
    service.largest = 64 << 20
    delivery.send(case(12))
    wait_for(lambda: len(service.stored) == 3, "the third batch")
    before = dict(service.stored)
    for number in range(4 - lost, 4):
        del service.stored[number]
    delivery.send(case(13))
    assert delivery.finish(NEVER, 0)
    assert {number: service.stored[number] for number in before} == before
    assert numbers(service.events) == ["10", "11", "12", "13"]


@pytest.mark.parametrize("content", [None, "", '{"attempt": 5, "token": "lease"}\n'])
def test_a_gap_that_cannot_be_filled_ends_the_attempt(
    service: StubService, deliver: Maker, tmp_path: Path, content: str | None
) -> None:
    """With the batch, the file and the next step."""
    stop = threading.Event()
    delivery = deliver(stop)
    sent_apart(delivery, service, 2)
    path = tmp_path / "5.jsonl"
    path.unlink()
    if content is not None:
        path.write_text(content)
    service.stored.clear()
    delivery.send(case(2))
    wait_for(stop.is_set, "the stop")
    assert "the service lacks batch 1" in delivery.fault
    assert "5.jsonl cannot be read" in delivery.fault
    assert not delivery.finish(NEVER, 0)


@pytest.mark.parametrize(
    "content",
    [
        '{"attempt": 5, "token": "lease"}\n{"events": [{"kind": "of another release"}]}\n',
        '{"attempt": 5, "token": "lease"}\n{"group": []}\n',
        '["no", "spool"]\n',
        '{"attempt": 5, "tok',
        "",
    ],
)
def test_a_leftover_that_cannot_be_read_does_not_keep_a_worker_from_starting(
    service: StubService, client: Client, tmp_path: Path, content: str
) -> None:
    """It is said in the log, and passed over."""
    (tmp_path / "5.jsonl").write_text(content)
    deliver_leftover(client, tmp_path / "5.jsonl")
    assert service.paths == []


def test_a_proxy_for_the_outside_is_not_asked_for_this_machine(
    service: StubService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine behind a proxy runs the whole system on loopback."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    client = Client(service.url, "secret")
    assert client.post(5, Batch("lease", 0)).acknowledged == 0
    client.close()
