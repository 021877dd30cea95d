"""Lines of the plugin become events: the pure part, with inputs that no well-behaved run makes."""

from __future__ import annotations

import json
import math

import pytest

from worker.cleaning import MOST_DEPTH, Cleaner, clean_event
from worker.encoding import encode
from worker.messages import CaseEvent, FailureClass, Outcome, ProcessEndedEvent
from worker.observing.classify import classify
from worker.observing.report import EVIDENCE_BYTES, MESSAGE_BYTES, TRACEBACK_BYTES, End, Names, ProcessReport


def line(event: str, **fields: object) -> bytes:
    return json.dumps({"e": event, **fields}).encode()


def started(*cases: tuple[str, int]) -> ProcessReport:
    report = ProcessReport(1, lambda _: None, Names())
    report.feed(line("cases", cases=cases))
    return report


def finished(index: int, outcome: str = "passed", **more: object) -> bytes:
    fields = {"duration": 0.1, "message": "", "traceback": "", "properties": {}, "exception": {}}
    return line("finished", index=index, outcome=outcome, **(fields | more))


@pytest.mark.parametrize(
    "noise", [b"", b"not json", b"[1]", b"null", b'{"e": "nothing"}', b'{"e": "started", "index": 99}', b'{"e": 5}',
              b'{"e": "finished"}', b"\xff\xfe"],
)  # fmt: skip
def test_noise_in_the_file_is_passed_over(noise: bytes) -> None:
    """A test may write into it."""
    assert started(("a", 0)).feed(noise) == []


def test_a_case_is_observed_once_a_process() -> None:
    """A plugin that reports twice does not count twice."""
    report = started(("a", 0))
    assert len(report.feed(finished(0))) == 1
    assert report.feed(finished(0, "failed")) == []


def test_texts_have_their_caps() -> None:
    """In bytes, with head and tail kept."""
    report = started(("a", 0))
    exception = {"type": "E", "bases": [], "evidence": {"x": "y" * 200_000}}
    (event,) = report.feed(finished(0, "failed", message="ü" * 9000, traceback="t" * 99_999, exception=exception))
    assert isinstance(event, CaseEvent)
    assert len(event.message.encode()) <= MESSAGE_BYTES
    assert len(event.traceback) <= TRACEBACK_BYTES
    assert len(json.dumps(event.evidence)) <= EVIDENCE_BYTES
    assert event.message.startswith("ü")
    assert event.message.endswith("ü")


def test_an_id_of_a_megabyte_is_kept_whole() -> None:
    """It is the case's key."""
    report = started(("a" * (1 << 20), 0))
    (event,) = report.feed(finished(0))
    assert isinstance(event, CaseEvent)
    assert len(event.node_id) == 1 << 20


def test_the_end_says_what_was_not_observed() -> None:
    """Each collected case is there once, the process's end comes last."""
    report = started(("a", 0), ("a", 1), ("b", 0))
    report.feed(line("started", index=0))
    report.feed(finished(0))
    report.feed(line("started", index=1))
    events = report.ended(End(None, 9))
    assert [(e.occurrence, e.outcome) for e in events if isinstance(e, CaseEvent)] == [
        (1, Outcome.CRASHED),
        (0, Outcome.NOT_OBSERVED),
    ]
    end = events[-1]
    assert isinstance(end, ProcessEndedEvent)
    assert (end.signal, end.collected, end.reported, end.detail) == (9, 3, 2, "ended by SIGKILL")
    assert report.rest() == [("b", 0)]


@pytest.mark.parametrize(("lost", "ended"), [(False, True), (True, False)])
def test_a_process_whose_events_were_lost_has_not_finished(lost: bool, ended: bool) -> None:
    """So that it cannot pass: what was lost may have been a case."""
    report = started(("a", 0))
    report.feed(finished(0))
    report.feed(line("session-finished", exit=0))
    end = report.ended(End(0, None, lost=lost, notes=("2 events were lost",)))[-1]
    assert isinstance(end, ProcessEndedEvent)
    assert end.finished is ended
    assert "2 events were lost" in end.detail


def test_cleaning_is_visible_and_nested() -> None:
    """NUL, lone surrogates and numbers that JSON lacks, in keys and values at any depth."""
    cleaner = Cleaner()
    assert cleaner.data({"a\0": ["\ud800", float("nan"), {"x": -float("inf")}], "n": 1}) == {
        r"a\x00": [r"\ud800", "nan", {"x": "-inf"}],
        "n": 1,
    }
    assert cleaner.cleaned
    untouched = Cleaner()
    assert untouched.data({"ok": "ä\x1b[31m\r"}) == {"ok": "ä\x1b[31m\r"}
    assert not untouched.cleaned


def nested(levels: int) -> object:
    value: object = 1
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


@pytest.mark.parametrize("outcome", ["passed", "failed", "error", "skipped", "xfailed", "crashed"])
@pytest.mark.parametrize(
    "details",
    [
        {"properties": {"deep": nested(600)}},
        {"properties": nested(601)},
        {"exception": {"type": "a.B", "bases": [], "evidence": nested(601)}},
        {"exception": {"type": "a.B", "bases": [], "evidence": {"deep": nested(600)}}},
        {"exception": {"type": "a.B", "bases": 5}},
        {"exception": {"type": "a.B", "failure_class": nested(600)}},
        {"exception": ["no", "mapping"]},
        {"exception": None, "properties": None, "traceback": None},
        {"duration": float("nan")},
        {"duration": -float("inf")},
        {"duration": 10**400},
        {"duration": "long"},
        {"duration": None},
    ],
)
def test_no_detail_takes_a_finished_case_along(outcome: str, details: dict[str, object]) -> None:
    """Whatever the plugin sends with it: the outcome and the message are told, and what is told can be sent."""
    report = started(("a", 0), ("b", 0))
    (event,) = report.feed(finished(0, outcome, **({"message": "why"} | details)))
    assert isinstance(event, CaseEvent)
    assert (event.node_id, event.outcome, event.message) == ("a", outcome, "why")
    assert math.isfinite(event.duration_s)
    json.dumps(encode(event), allow_nan=False)
    assert report.unobserved() == [("b", 0)]


@pytest.mark.parametrize("sign", ["", "-"])
def test_a_number_too_long_for_python_is_told_as_its_digits(sign: str) -> None:
    """A suite may have lifted Python's limit for itself."""
    report = started(("a", 0))
    digits = sign + "9" * 5000
    (event,) = report.feed(finished(0, properties={"n": "HERE"}).replace(b'"HERE"', digits.encode()))
    assert isinstance(event, CaseEvent)
    assert event.properties == {"n": digits}


def test_what_lies_too_deep_is_said_and_the_rest_kept() -> None:
    """To the depth that the service keeps, and the case says that it was changed."""
    for levels, cleaned in ((MOST_DEPTH, False), (MOST_DEPTH + 1, True)):
        (event,) = started(("a", 0)).feed(finished(0, properties={"n": 1, "deep": nested(levels)}))
        assert isinstance(event, CaseEvent)
        assert (event.properties["n"], event.cleaned) == (1, cleaned)
        assert ("nested too deeply" in json.dumps(event.properties)) is cleaned
        assert clean_event(encode(event)) == encode(event)


@pytest.mark.parametrize(
    ("exception", "expected"),
    [
        ({"type": "a.B", "failure_class": "non-finite"}, FailureClass.NON_FINITE),
        ({"type": "builtins.ValueError", "text": "bits differ"}, FailureClass.BITWISE_MISMATCH),
        ({"type": "torch.OutOfMemoryError", "bases": ["OutOfMemoryError", "RuntimeError"]}, FailureClass.OUT_OF_MEMORY),
        ({"type": "builtins.RuntimeError", "text": "CUDA error: an illegal memory access"}, FailureClass.CUDA_ERROR),
        ({"type": "builtins.RuntimeError", "text": "cuDNN error: CUDNN_STATUS_BAD_PARAM"}, FailureClass.CUDA_ERROR),
        ({"type": "torch.AcceleratorError", "bases": ["AcceleratorError"]}, FailureClass.CUDA_ERROR),
        ({"type": "x.MyAssertion", "bases": ["MyAssertion", "AssertionError"]}, FailureClass.ASSERTION),
        ({"type": "_pytest.outcomes.Failed", "bases": ["Failed"]}, FailureClass.ASSERTION),
        ({"type": "builtins.ValueError", "bases": ["ValueError"], "text": "CUDA is nice"}, FailureClass.EXCEPTION),
        ({"type": "a.B", "failure_class": ["no"], "bases": []}, FailureClass.EXCEPTION),
    ],
)
def test_classes(exception: dict[str, object], expected: FailureClass) -> None:
    """The exception's own word, then the tree's rules, then what is known."""
    assert classify(exception, "", lambda text: FailureClass.BITWISE_MISMATCH if "bits" in text else None) is expected
