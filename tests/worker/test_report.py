"""Lines of the plugin become events: the pure part, with inputs that no well-behaved run makes."""

from __future__ import annotations

import json

import pytest

from worker.messages import CaseEvent, FailureClass, Outcome, ProcessEndedEvent
from worker.observing.classify import classify
from worker.observing.cleaning import Cleaner
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
