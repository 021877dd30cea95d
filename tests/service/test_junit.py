"""JUnit XML: it always parses, counts what the table counts, and never shows as passed what did not run."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from sqlalchemy import QueuePool

from service.database import Database
from service.results import export, junit
from service.results.schemas import CaseOutput
from tests.support.repository import GitRepository
from tests.support.running_service import RunningService
from worker.messages import AttemptEndedEvent, Cause, FailureClass, Outcome

EVERY_ODD = "".join(map(chr, [*range(32), 0x7F, 0x9F, 0xD800, 0xDFFF, 0xFFFE, 0xFFFF, 0x1F600, 0xE9]))
NASTY = [EVERY_ODD, "]]>", "<![CDATA[", "\x1b[31mred\x1b[0m", "a\"b'c&d<e>", "x" * 300_000, "--><!--", "::", ""]


def case(node_id: str, outcome: Outcome = Outcome.PASSED, text: str = "") -> CaseOutput:
    """An observation."""
    return CaseOutput(id=1, process=1, node_id=node_id, occurrence=0, outcome=outcome, last=True, failure_class=None,
                      duration_s=0.5, message=text, traceback=text, properties={}, evidence=None,
                      cleaned=False)  # fmt: skip


def parsed(document: str | bytes) -> ET.Element:
    """The document's root; strict about its encoding."""
    return ET.fromstring(document.encode() if isinstance(document, str) else document)  # noqa: S314 -- our own


@pytest.mark.parametrize("odd", NASTY, ids=range(len(NASTY)))
@pytest.mark.parametrize("outcome", list(Outcome))
def test_it_parses_whatever_it_holds(odd: str, outcome: Outcome) -> None:
    """As id, message, traceback, name, property or fault."""
    suite = junit.Suite(odd, {outcome: 1}, 1.0, odd, {odd: odd}, [case(f"a.py::{odd}", outcome, odd)], odd)
    root = parsed("".join(junit.document(odd, [suite])))
    assert len(root.findall("testsuite/testcase")) == (2 if odd else 1)


def test_line_breaks_and_marks_come_back_as_they_were() -> None:
    """An attribute's line break would otherwise be read as a space."""
    text = "one\n\ttwo\r\n<three> & \"four\" 'five' é 😀"
    root = parsed("".join(junit.document("j", [junit.Suite("s", {}, 0, "", {}, [case("a::b", Outcome.FAILED, text)])])))
    (failure,) = root.iter("failure")
    assert (failure.get("message"), failure.text) == (text, text)


def test_a_reader_who_is_slow_holds_no_connection(
    service: RunningService, registered: GitRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than there are connections are behind any piece of the text, and everybody else is served."""
    monkeypatch.setattr(export, "A_PAGE", 7)
    monkeypatch.setattr(export, "A_PIECE", 500)
    service.submit("demo", "main")
    attempt = service.driver().must_claim()
    attempt.run({f"t/test_a.py::c[{number}]": Outcome.PASSED for number in range(50)})
    own = Database(service.settings.database)
    pool = own.engine.pool
    assert isinstance(pool, QueuePool)
    readers = [export.of_job(own, attempt.assignment.cell.job) for _ in range(30)]
    readers += [export.of_attempt(own, attempt.assignment.attempt) for _ in range(30)]
    texts = [""] * len(readers)
    rounds = 0
    for pieces in itertools.zip_longest(*readers, fillvalue=""):
        rounds += 1
        texts = [text + piece for text, piece in zip(texts, pieces, strict=True)]
        assert pool.checkedout() == 0
    assert 2 < rounds < 50
    for text in texts:
        assert len(parsed(text).findall("testsuite/testcase")) == 50
    own.close()


def test_a_job_is_exported(service: RunningService, registered: GitRepository, tmp_path: Path) -> None:
    """Each cell is a suite; its sums are the table's; a case that failed says its class."""
    job = service.submit("demo", "main", suites=["unit", "other"])["id"]
    attempt = service.driver().must_claim()
    attempt.start(1_203)
    attempt.send(*(attempt.case(f"t/test_a.py::c[{number}]") for number in range(1_200)))
    attempt.send(
        attempt.case("t/test_a.py::bad", Outcome.FAILED, failure_class=FailureClass.ASSERTION, message="1 == 2"),
        attempt.case("t/test_a.py::gone", Outcome.SKIPPED, message="not today"),
        attempt.case("t/test_a.py::gone", Outcome.CRASHED, occurrence=1),
    )
    attempt.end(1_203, exit_code=1)
    answer = service.http.get(f"/api/v1/jobs/{job}/junit.xml")
    assert answer.headers["content-type"].startswith("application/xml")
    assert answer.headers["content-disposition"] == f'attachment; filename="job-{job}.xml"'
    ran, waits = parsed(answer.content).findall("testsuite")
    assert len(ran.findall("testcase")) == 1_203
    assert {key: ran.get(key) for key in ("tests", "failures", "errors", "skipped")} == {
        "tests": "1203", "failures": "1", "errors": "1", "skipped": "1"}  # fmt: skip
    (failure,) = ran.iter("failure")
    assert (failure.get("type"), failure.get("message")) == ("assertion", "1 == 2")
    assert [one.get("name") for one in ran.iter("testcase")][-2:] == ["gone", "gone (2)"]
    (error,) = waits.iter("error")
    assert error.get("message") == "no attempt: queued"
    one = service.http.get(f"/api/v1/attempts/{attempt.assignment.attempt}/junit.xml")
    assert len(list(parsed(one.content).iter("testcase"))) == 1_203


def test_what_could_not_run_is_an_error(service: RunningService, registered: GitRepository) -> None:
    """A cell whose environment could not be built has no case, and yet no reader takes it for passed."""
    job = service.submit("demo", "main")["id"]
    service.driver().must_claim().send(AttemptEndedEvent(Cause.ENVIRONMENT, "no torch\nlooked at 3 sources"))
    (suite,) = parsed(service.http.get(f"/api/v1/jobs/{job}/junit.xml").content).findall("testsuite")
    assert (suite.get("tests"), suite.get("errors")) == ("1", "1")
    (error,) = suite.iter("error")
    assert error.get("message") == "environment: no torch\nlooked at 3 sources"


def test_there_is_none_of_what_is_not_there(service: RunningService) -> None:
    """404 as a problem document, before anything is sent."""
    assert service.get("/jobs/9/junit.xml", 404)["code"] == "not-found"
    assert service.get("/attempts/9/junit.xml", 404)["code"] == "not-found"
