"""Batches: stored once, in order, under a lease; whatever a worker sends, no 500. On both databases."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from service.client.client import Client
from service.client.evidence import export
from tests.support.repository import GitRepository
from tests.support.running_service import DrivenAttempt, RunningService
from worker.encoding import encode
from worker.messages import (
    AttemptEndedEvent,
    Batch,
    CaseEvent,
    Cause,
    CollectedEvent,
    EnvironmentEvent,
    FailureClass,
    Outcome,
    Phase,
    PhaseEvent,
    ProcessEndedEvent,
    ProcessStartedEvent,
    UsageEvent,
)


@pytest.fixture
def attempt(service: RunningService, registered: GitRepository) -> DrivenAttempt:
    """An attempt that was granted just now."""
    service.submit("demo", "main")
    return service.driver().must_claim()


def cases(attempt: DrivenAttempt, query: str = "") -> list[dict[str, Any]]:
    """The attempt's stored observations."""
    found: list[dict[str, Any]] = attempt.service.get(f"/attempts/{attempt.assignment.attempt}/cases{query}")["items"]
    return found


def shown(attempt: DrivenAttempt) -> dict[str, Any]:
    """The attempt as it stands."""
    found: dict[str, Any] = attempt.service.get(f"/attempts/{attempt.assignment.attempt}")
    return found


def post(attempt: DrivenAttempt, *events: Any, expect: int = 200, **more: Any) -> Any:
    """Posts events as they are, valid or not; JSON's escapes carry what UTF-8 does not."""
    body = {"token": attempt.assignment.token, "seq": attempt.seq + 1, "events": list(events), **more}
    path = f"/api/v1/worker/attempts/{attempt.assignment.attempt}/batches"
    headers = {"Content-Type": "application/json"}
    answer = attempt.service.worker_http.post(path, content=json.dumps(body), headers=headers)
    assert answer.status_code == expect, answer.text[:2000]
    if expect == 200:
        attempt.seq += 1
    return answer.json()


def case(node_id: str, **values: Any) -> dict[str, Any]:
    """A case's event as JSON data."""
    return {"kind": "case", "process": 1, "node_id": node_id, "occurrence": 0, "outcome": "passed", **values}


def test_a_batch_is_stored_once_however_often_it_comes(attempt: DrivenAttempt) -> None:
    """A doubled one is acknowledged, one that is early is told which is due, the last one is acknowledged for ever."""
    attempt.start(2)
    assert attempt.send(attempt.case("a")) == {"acknowledged": 3, "lease_s": 20.0, "stop": False}
    for seq in (1, 2, 3):
        assert attempt.send(attempt.case("other"), seq=seq)["acknowledged"] == 3
    gap = attempt.send(attempt.case("b"), seq=5, expect=409)
    assert (gap["code"], gap["expected"]) == ("batch-gap", 4)
    attempt.send(attempt.case("b"))
    last = (ProcessEndedEvent(1, 0, None, 2, 2, True), AttemptEndedEvent(Cause.FINISHED))
    attempt.send(*last)
    assert attempt.send(*last, seq=attempt.seq)["acknowledged"] == attempt.seq
    assert attempt.send(attempt.case("c"), seq=attempt.seq + 1, expect=409)["code"] == "fenced"
    assert [found["node_id"] for found in cases(attempt)] == ["a", "b"]
    assert (shown(attempt)["counts"], shown(attempt)["verdict"]) == ({"passed": 2}, "passed")


def test_another_token_is_fenced(attempt: DrivenAttempt) -> None:
    """Before and after the end, and an attempt that there is not is a 404."""
    path = f"/api/v1/worker/attempts/{attempt.assignment.attempt}/batches"
    http = attempt.service.worker_http
    wrong = encode(Batch("0" * 32, 1, (PhaseEvent(Phase.RUNNING),)))
    assert http.post(path, json=wrong).json()["code"] == "fenced"
    attempt.run({"a": Outcome.PASSED})
    assert http.post(path, json=wrong).json()["code"] == "fenced"
    assert http.post(path.replace("attempts/", "attempts/99"), json=wrong).status_code == 404
    assert http.post(path.replace("attempts/", f"attempts/{10**20}"), json=wrong).status_code == 422


@pytest.mark.parametrize("batches", [1, 2])
def test_a_second_process_takes_the_place_of_the_first(attempt: DrivenAttempt, batches: int) -> None:
    """Also within one batch: the last observation counts, both are kept, and equal ids stay apart."""
    attempt.start(3)
    first = [
        attempt.case("a"),
        attempt.case("b", Outcome.NOT_OBSERVED),
        attempt.case("b", Outcome.FAILED, occurrence=1),
    ]
    second = [
        ProcessStartedEvent(2, "a sticky CUDA error"),
        CollectedEvent(2, 1),
        CaseEvent(2, "b", 0, Outcome.FAILED, FailureClass.BITWISE_MISMATCH),
    ]
    for events in [[*first, *second]] if batches == 1 else [first, second]:
        attempt.send(*events)
    assert shown(attempt)["counts"] == {"failed": 2, "passed": 1}
    attempt.end(1, exit_code=1, process=2)
    assert [(found["process"], found["node_id"], found["occurrence"]) for found in cases(attempt)] == [
        (1, "a", 0), (1, "b", 1), (2, "b", 0),
    ]  # fmt: skip
    every = cases(attempt, "?last=false")
    assert len(every) == 4
    (earlier,) = [found for found in every if not found["last"]]
    assert (earlier["process"], earlier["outcome"], earlier["last"]) == (1, "not-observed", False)
    found = shown(attempt)
    assert (found["verdict"], found["collected"]) == ("failed", 3)
    assert [process["reason"] for process in found["processes"]] == ["", "a sticky CUDA error"]
    (row,) = attempt.service.get(f"/jobs/{attempt.assignment.cell.job}/table")["rows"]
    assert row["failure_classes"] == {"bitwise-mismatch": 1}


def test_what_was_never_observed_is_counted(attempt: DrivenAttempt) -> None:
    """It makes the attempt incomplete, never passed."""
    attempt.start(2)
    attempt.send(attempt.case("a"), attempt.case("b", Outcome.NOT_OBSERVED))
    attempt.end(2)
    (row,) = attempt.service.get(f"/jobs/{attempt.assignment.cell.job}/table")["rows"]
    assert (row["verdict"], row["result"]) == ("incomplete", "1 passed, 1 not observed (incomplete)")


def test_a_node_id_of_megabytes(attempt: DrivenAttempt) -> None:
    """It is stored whole, and told apart from one that differs in its last character."""
    attempt.start(2)
    ids = ["t.py::x[" + "ä€" * 500_000 + end for end in ("1]", "2]")]
    attempt.send(*map(attempt.case, ids))
    assert [found["node_id"] for found in cases(attempt)] == ids


def test_a_worker_that_does_not_clean_loses_nothing(attempt: DrivenAttempt) -> None:
    """What no database stores is made visible, the case says so, and the other cases of the batch are as they were."""
    attempt.start(5)
    deep: Any = "x"
    for _ in range(200):
        deep = [deep]
    post(
        attempt,
        case("plain", properties={"n": 1.5, "ä": ["€", None, True]}),
        case("n\0ul", message="a\0b", traceback="\ud800", outcome="failed", properties={"k\0": "\udc80"}),
        case("numbers", duration_s=float("nan"), evidence={"ulp": float("inf"), "other": -float("inf"), "n": 10**30}),
        case("deep", evidence={"deep": deep}),
        {"kind": "environment", "record": {"host": "h\0", "gpus": 5, "driver": "\ud800"}},
        running="r\0",
        log_tail="l\ud800\0",
    )
    plain, nul, numbers, nested = cases(attempt)
    assert (plain["cleaned"], plain["properties"]) == (False, {"n": 1.5, "ä": ["€", None, True]})
    assert (nul["node_id"], nul["message"], nul["traceback"]) == ("n\\x00ul", "a\\x00b", "\\ud800")
    assert nul["properties"] == {"k\\x00": "\\udc80"}
    assert (numbers["duration_s"], numbers["evidence"]) == (0.0, {"ulp": "inf", "other": "-inf", "n": 10**30})
    assert "nested too deeply" in json.dumps(nested["evidence"])
    assert nul["cleaned"]
    assert numbers["cleaned"]
    assert nested["cleaned"]
    found = shown(attempt)
    assert (found["running_case"], found["log_tail"]) == ("r\\x00", "l\\ud800\\x00")
    assert found["environment"]["host"] == "h\\x00"


def test_a_batch_that_cannot_be_is_refused_and_leaves_no_trace(attempt: DrivenAttempt) -> None:
    """Each contradiction is a 422 that says what is wrong, and the right batch of the same number is taken then."""
    attempt.start(1)
    attempt.send(attempt.case("a"))
    ended = {"kind": "attempt-ended", "cause": "finished"}
    for wrong in (
        [case("a")],  # the same case in the same process
        [case("b"), case("b")],
        [{"kind": "process-started", "process": 1}],
        [{"kind": "phase", "phase": "preparing"}],  # it runs already
        [{"kind": "phase", "phase": "running"}],
        [ended, ended],
        [ended, case("b")],
    ):
        assert post(attempt, case("new"), *wrong, expect=422)["code"] == "batch-refused"
    for wrong in (
        [case("b", outcome="odd")],
        [case("b", occurrence=2**40)],
        [case("b", process=-(10**30))],
        [{"kind": "odd"}],
        [5],
        ["x"],
        [{"kind": "process-ended", "process": 1, "exit_code": 2**33, "signal": None, "collected": 1, "reported": 1,
          "finished": True}],
        [case("b")] * 500 + [case("b", outcome="\ud800")] * 500,
    ):  # fmt: skip
        document = post(attempt, *wrong, expect=422)
        assert document["code"] == "invalid-request"
        assert len(json.dumps(document)) < 100_000
    assert post(attempt, expect=422, events={"a": 1})["code"] == "invalid-request"
    assert [found["node_id"] for found in cases(attempt)] == ["a"]
    attempt.end(1)
    assert shown(attempt)["verdict"] == "passed"


def test_the_environment_makes_the_comparison_key(attempt: DrivenAttempt) -> None:
    """The record is stored whole, and the table names the GPU."""
    gpus = [{"model": "NVIDIA H200", "uuid": "GPU-1"}]
    record = {"gpus": gpus, "driver": "570.1", "torch": "2.9.1+cu129", "lightning": "2.6.0", "packages": {"a": "1"}}
    attempt.send(EnvironmentEvent(record))
    attempt.run({"a": Outcome.PASSED})
    assert shown(attempt)["environment"] == record
    assert shown(attempt)["comparison_key"] == "NVIDIA H200 / 570.1 / 2.9.1+cu129 / 2.6.0"
    (row,) = attempt.service.get(f"/jobs/{attempt.assignment.cell.job}/table")["rows"]
    assert row["gpu"] == "NVIDIA H200"


def test_an_environment_that_cannot_be_built_says_why(attempt: DrivenAttempt) -> None:
    """No process, no case: the table quotes the first line of the detail, and the job is broken."""
    attempt.send(AttemptEndedEvent(Cause.ENVIRONMENT, "no torch 2.9.1+cu129\nlooked at 3 sources"))
    job = attempt.assignment.cell.job
    (row,) = attempt.service.get(f"/jobs/{job}/table")["rows"]
    assert row["result"] == "environment: no torch 2.9.1+cu129"
    assert attempt.service.get(f"/jobs/{job}")["state"] == "broken"


def put(attempt: DrivenAttempt, name: str, content: bytes, token: str | None = None) -> tuple[int, str]:
    """Puts an artifact; gives the status and the code."""
    path = f"/api/v1/worker/attempts/{attempt.assignment.attempt}/artifacts/{name}"
    headers = {"X-Lease": token or attempt.assignment.token}
    answer = attempt.service.worker_http.put(path, content=content, headers=headers)
    return answer.status_code, answer.json()["code"] if answer.content else ""


def test_an_artifact_is_stored_once(attempt: DrivenAttempt) -> None:
    """The same bytes again are no error, other bytes are; one that is too large or has a bad name leaves no file."""
    assert put(attempt, "output.log", b"hello <script>") == (201, "")
    assert put(attempt, "output.log", b"hello <script>") == (200, "")
    assert put(attempt, "output.log", b"other") == (409, "artifact-conflict")
    assert put(attempt, "other.log", b"x", token="0" * 32) == (409, "fenced")
    for name in ("..%2f..%2fx", "..", "%2e%2e", ".hidden", "a%00b", "a%0d%0ab", "x" * 201, "a b"):
        assert put(attempt, name, b"x")[0] in (404, 405), name
    kept = {file.name for file in (attempt.service.settings.data_dir / "artifacts").rglob("*") if file.is_file()}
    assert kept == {hashlib.sha256(content).hexdigest() for content in (b"hello <script>", b"other")}
    (artifact,) = shown(attempt)["artifacts"]
    assert (artifact["name"], artifact["size"]) == ("output.log", 14)


def test_an_artifact_is_saved_and_never_shown_as_a_page(attempt: DrivenAttempt) -> None:
    """Its headers say attachment, no sniffing, no script; bytes that are gone are a 404."""
    put(attempt, "page.html", b"<script>alert(1)</script>")
    (artifact,) = shown(attempt)["artifacts"]
    answer = attempt.service.http.get(f"/api/v1/artifacts/{artifact['id']}")
    assert answer.content == b"<script>alert(1)</script>"
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == 'attachment; filename="page.html"'
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"] == "sandbox"
    digest = artifact["sha256"]
    (attempt.service.settings.data_dir / "artifacts" / digest[:2] / digest).unlink()
    assert attempt.service.get(f"/artifacts/{artifact['id']}", 404)["code"] == "not-found"
    assert attempt.service.get("/artifacts/999", 404)["code"] == "not-found"


def test_what_an_attempt_took_of_its_gpus_is_kept_and_shown(service: RunningService, registered: GitRepository) -> None:
    """In its record, the exported evidence, the JUnit document and the cell's page; an odd record breaks none."""
    service.submit("demo", "main")
    card = {
        "index": 0, "uuid": "GPU-1", "memory_peak_bytes": 3 * 2**30, "memory_source": "processes",
        "memory_total_bytes": 140 * 2**30, "utilisation_mean_percent": 41.5, "utilisation_max_percent": 97,
        "xids": [31],
    }  # fmt: skip
    attempt = service.driver().must_claim()
    attempt.start(1)
    attempt.send(attempt.case("a"), UsageEvent({"samples": 3, "gpus": [card, 5, {"xids": 7}]}))
    attempt.end(1)
    said = "3.0 of 140.0 GiB of memory at most", "busy 41.5 % on average, 97 % at most", "Xid 31"
    number = attempt.assignment.attempt
    assert service.get(f"/attempts/{number}")["usage"]["gpus"][0] == card
    junit = service.http.get(f"/api/v1/attempts/{number}/junit.xml").text
    page = service.http.get("/cells/1").text
    for words in said:
        assert words in junit
        assert words in page
    with Client(service.url, service.http.headers["authorization"].removeprefix("Bearer ")) as client:
        (row,) = export(client, 1).attempts
    assert (row.usage or {})["gpus"][0] == card
