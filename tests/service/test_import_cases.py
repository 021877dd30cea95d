"""What a JUnit report's elements become: node ids, outcomes, classes, durations, occurrences, verdicts."""

from __future__ import annotations

import datetime
import subprocess
import sys
from pathlib import Path
from xml.sax.saxutils import quoteattr

import pytest

from service.imports.cases import LONGEST_MESSAGE, Cases, cases, seconds
from service.imports.nodes import Nodes
from service.imports.reading import read
from service.imports.summary import Summary, summarize
from worker.messages import CaseEvent, FailureClass, Outcome, Verdict

NOW = datetime.datetime(2026, 5, 1, tzinfo=datetime.UTC)


def of(*elements: str, files: tuple[str, ...] = (), **suite: str) -> Cases:
    """The cases of a suite with these elements."""
    return cases(read(report(*elements, **suite)), Nodes(files))


def report(*elements: str, **suite: str) -> bytes:
    """A report of one suite."""
    attributes = "".join(f" {key}={quoteattr(value)}" for key, value in suite.items())
    return f"<testsuites><testsuite{attributes}>{''.join(elements)}</testsuite></testsuites>".encode()


def one(inside: str = "", more: str = "") -> CaseEvent:
    """The one case that has this inside."""
    (event,) = of(f'<testcase classname="tests.test_x" name="test_a" {more}>{inside}</testcase>').last
    return event


def summary(*elements: str, **suite: str) -> Summary:
    """What a report amounts to."""
    found = read(report(*elements, **suite))
    return summarize(found, cases(found, Nodes()), NOW)


FILES = ("tests/test_x.py", "checks/parity.py", "checks/__init__.py", "a.b/cases.yaml", "test_dir/helpers.py")


@pytest.mark.parametrize(
    ("file", "classname", "name", "node_id"),
    [
        ("tests/test_x.py", "tests.test_x.TestA", "test_b[1]", "tests/test_x.py::TestA::test_b[1]"),
        ("tests/test_x.py", "tests.test_x", "test_b[a.b::c/d]", "tests/test_x.py::test_b[a.b::c/d]"),
        ("tests/test_x.py", "ci.tests.test_x.TestA.TestB", "t", "tests/test_x.py::TestA::TestB::t"),
        (r"tests\test_x.py", "tests.test_x", "t", "tests/test_x.py::t"),
        ("./tests/test_x.py", "tests.test_x", "t", "tests/test_x.py::t"),
        ("/home/ci/tests/test_new.py", "tests.test_new.TestA", "t", "tests/test_new.py::TestA::t"),
        (r"C:\ci\tests\test_x.py", "Suite", "t", "tests/test_x.py::Suite::t"),
        ("/elsewhere/unknown.cpp", "Suite", "t", "/elsewhere/unknown.cpp::Suite::t"),
        ("src/a.kt", "com.acme.FooTest", "t", "src/a.kt::com.acme.FooTest::t"),
        ("spec/a.js", "adds numbers", "t", "spec/a.js::adds numbers::t"),
        ("", "tests.test_x.TestA.TestB", "t[x]", "tests/test_x.py::TestA::TestB::t[x]"),
        ("", "checks.parity.Bits", "t", "checks/parity.py::Bits::t"),
        ("", "a.b.cases.yaml", "t", "a.b/cases.yaml::t"),
        ("", "gone.test_dir.test_y.TestA", "t", "gone/test_dir/test_y.py::TestA::t"),
        ("", "gone.parity_test", "t", "gone/parity_test.py::t"),
        ("", "com.acme.FooTest", "adds", "com.acme.FooTest::adds"),
        ("", "", "t", "t"),
        ("", "tests.test_x", "", "tests/test_x.py::(no name)"),
        ("", "", "", "(no name)"),
        ("", "." * 5000, "t", "." * 5000 + "::t"),
        ("", "a." * 50 + "test_x", "t", "a." * 50 + "test_x::t"),
        ("/" + "a/" * 50 + "test_x.py", "a.test_x", "t", "/" + "a/" * 50 + "test_x.py::a.test_x::t"),
    ],
)
def test_a_node_id_follows_from_file_class_name_and_name(file: str, classname: str, name: str, node_id: str) -> None:
    """By the documented rule; what the commit does not have is taken as pytest names files, or stays as it is."""
    assert Nodes(FILES).of(file, classname, name) == node_id


PYTEST = """
import pytest
class TestA:
    class TestB:
        @pytest.mark.parametrize("x", ["a.b", "c[d]::e/f"])
        def test_p(self, x): pass
@pytest.fixture
def bad():
    yield
    raise RuntimeError("teardown")
def test_late(bad, record_property): record_property("k", 3)
def test_twice(bad): assert 1 == 2
@pytest.mark.skip(reason="not today")
def test_skip(): pass
@pytest.mark.xfail(reason="known")
def test_xfail(): assert 0
@pytest.mark.xfail(reason="known", strict=True)
def test_strict(): pass
def test_raises(): raise ValueError("x")
"""


@pytest.mark.parametrize("family", ["xunit1", "xunit2"])
@pytest.mark.parametrize("files", [(), ("tests/test_x.py", "tests/test_broken.py")])
def test_both_of_pytests_families_give_the_same_cases(tmp_path: Path, family: str, files: tuple[str, ...]) -> None:
    """As pytest itself writes them; a case whose tear-down failed too is one case, as in a run of ours."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_x.py").write_text(PYTEST)
    (tmp_path / "tests" / "test_broken.py").write_text("import nothing_of_this_name")
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--continue-on-collection-errors", "-p", "no:cacheprovider", "-o",
         f"junit_family={family}", "--junit-xml=out.xml", "tests"],
        cwd=tmp_path, check=False, capture_output=True,
    )  # fmt: skip
    found = cases(read((tmp_path / "out.xml").read_bytes()), Nodes(files))
    assert {case.node_id.removeprefix("tests/"): (case.outcome, case.failure_class) for case in found.last} == {
        "test_broken.py": (Outcome.ERROR, FailureClass.COLLECTION),
        "test_x.py::TestA::TestB::test_p[a.b]": (Outcome.PASSED, None),
        "test_x.py::TestA::TestB::test_p[c[d]::e/f]": (Outcome.PASSED, None),
        "test_x.py::test_late": (Outcome.ERROR, FailureClass.EXCEPTION),
        "test_x.py::test_twice": (Outcome.FAILED, FailureClass.ASSERTION),
        "test_x.py::test_skip": (Outcome.SKIPPED, None),
        "test_x.py::test_xfail": (Outcome.XFAILED, None),
        "test_x.py::test_strict": (Outcome.FAILED, FailureClass.ASSERTION),
        "test_x.py::test_raises": (Outcome.FAILED, FailureClass.EXCEPTION),
    }
    assert len(found.last) == 9
    by_id = {case.node_id.partition("::")[2]: case for case in found.last}
    assert by_id["test_late"].properties == {"k": "3"}
    assert "failed on teardown" in by_id["test_twice"].traceback
    assert by_id["test_skip"].message == "not today"


@pytest.mark.parametrize(
    ("inside", "more", "outcome"),
    [
        ("", "", Outcome.PASSED),
        ("<failure/>", "", Outcome.FAILED),
        ("<error/>", "", Outcome.ERROR),
        ("<error/><failure/>", "", Outcome.FAILED),
        ("<skipped/>", "", Outcome.SKIPPED),
        ('<skipped type="pytest.xfail"/>', "", Outcome.XFAILED),
        ("<skipped/><failure/>", "", Outcome.FAILED),
        ("", 'status="notrun"', Outcome.SKIPPED),
        ("", 'status="run" result="suppressed"', Outcome.SKIPPED),
        ("", 'status="FAILED"', Outcome.FAILED),
        ("<system-out>x</system-out>", 'status="run" result="completed"', Outcome.PASSED),
        ('<properties><property name="replaybench.outcome" value="xpassed"/></properties>', "", Outcome.XPASSED),
        ('<properties><property name="replaybench.outcome" value="passed"/></properties><failure/>', "",
         Outcome.FAILED),
        ('<properties><property name="replaybench.outcome" value="crashed"/></properties><failure/>', "",
         Outcome.FAILED),
        ('<properties><property name="replaybench.outcome" value="crashed"/></properties><error/>', "",
         Outcome.CRASHED),
    ],
)  # fmt: skip
def test_an_outcome_is_what_the_element_says(inside: str, more: str, outcome: Outcome) -> None:
    """A property of ours can say it closer, and never another."""
    assert one(inside, more).outcome is outcome


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.25", (0.25, True)), ("", (0.0, True)), ("1e-05", (1e-05, True)), ("1,234.5", (1234.5, True)),
        ("7.", (7.0, True)), (".5", (0.5, True)), ("-1", (0.0, False)), ("NaN", (0.0, False)),
        ("Infinity", (0.0, False)), ("1e999", (0.0, False)), ("1e30", (0.0, False)), ("1_0", (0.0, False)),
        ("soon", (0.0, False)), ("0,5", (0.0, False)), ("٣", (0.0, False)), ("9" * 5000, (0.0, False)),
    ],
)  # fmt: skip
def test_a_duration_that_is_none_counts_as_nought_and_is_marked(text: str, expected: tuple[float, bool]) -> None:
    """Thousands may be grouped, as surefire writes them."""
    assert seconds(text) == expected
    case = one(more=f'time="{text}"')
    assert (case.duration_s, case.cleaned) == (expected[0], not expected[1])


def test_equal_ids_are_told_apart() -> None:
    """Over several suites and nested ones; a number that the report gives is kept where it is free."""
    same = '<testcase classname="t.test_x" name="a"/>'
    third = ('<testcase classname="t.test_x" name="a"><properties><property name="replaybench.occurrence" '
             'value="2"/></properties></testcase>')  # fmt: skip
    inner = f"<testsuite>{same}{third}<testsuite>{same}{third}</testsuite></testsuite>"
    found = of(same, inner, same)
    assert [case.occurrence for case in found.last] == [0, 1, 2, 3, 4, 5]
    assert {case.node_id for case in found.last} == {"t/test_x.py::a"}
    wild = third.replace('"2"', '"99999999999"')
    assert [case.occurrence for case in of(wild, wild).last] == [0, 1]


def test_runs_before_the_last_are_kept_and_do_not_count() -> None:
    """Surefire's words. A case that passed only when it ran again says so, and so does the attempt."""
    flaky = ('<testcase classname="F" name="a"><flakyFailure message="m1"><stackTrace>st</stackTrace><system-out>o'
             '</system-out></flakyFailure><flakyError message="m2"/></testcase>')  # fmt: skip
    bad = '<testcase classname="F" name="b"><failure message="f">t</failure><rerunFailure message="r"/></testcase>'
    found = of(flaky, bad)
    assert [(case.process, case.outcome) for case in found.last] == [(3, Outcome.PASSED), (2, Outcome.FAILED)]
    assert [(case.process, case.outcome, case.message, case.traceback) for case in found.earlier] == [
        (1, Outcome.FAILED, "m1", "st"), (2, Outcome.ERROR, "m2", ""), (1, Outcome.FAILED, "r", "")]  # fmt: skip
    assert found.counts == {"passed": 1, "failed": 1}
    told = summary(flaky)
    assert (told.verdict, told.detail) == (Verdict.PASSED, "passed only when run again: 1")


def test_texts_are_kept_and_long_ones_cut() -> None:
    """Message, traceback, properties and captured output; where there is no message, the text's first line is it."""
    case = one('<properties><property name="p">v</property><property value="w"/></properties><failure>\nfirst\nmore'
               "</failure><system-out>a</system-out><system-out>b</system-out>")  # fmt: skip
    assert (case.message, case.traceback) == ("first", "\nfirst\nmore")
    assert case.properties == {"p": "v", "": "w", "system-out": "ab"}
    both = one('<failure message="one">t1</failure><error message="two">t2</error>')
    assert (both.message, both.traceback) == ("one", "t1\n\ntwo\nt2")
    long = one(f'<failure message="{"x" * 10**6}"/>')
    assert len(long.message) < LONGEST_MESSAGE + 100
    assert long.cleaned
    assert f"{10**6 - LONGEST_MESSAGE} characters left out" in long.message


CASE, BAD, SKIP = '<testcase name="a"/>', '<testcase name="b"><failure/></testcase>', (
    '<testcase name="c"><skipped/></testcase>')  # fmt: skip
FAULT = '<testcase classname="replaybench" name="cell"><error type="replaybench.fault" message="no torch"/></testcase>'


@pytest.mark.parametrize(
    ("elements", "suite", "verdict"),
    [
        ((CASE,), {}, Verdict.PASSED),
        ((CASE, SKIP), {"failures": "0"}, Verdict.PASSED),
        ((CASE, BAD), {}, Verdict.FAILED),
        ((SKIP,), {}, Verdict.NO_CASES),
        ((), {}, Verdict.NO_CASES),
        ((), {"tests": "3"}, Verdict.NO_CASES),
        ((CASE,), {"failures": "1"}, Verdict.INCOMPLETE),
        ((CASE,), {"errors": "2"}, Verdict.INCOMPLETE),
        ((CASE, BAD), {"failures": "9"}, Verdict.FAILED),
        ((CASE,), {"failures": "none"}, Verdict.PASSED),
        ((CASE,), {"failures": ""}, Verdict.PASSED),
        ((CASE,), {"failures": "-1"}, Verdict.PASSED),
        ((CASE,), {"failures": "NaN"}, Verdict.PASSED),
        ((CASE,), {"failures": "00000000000000"}, Verdict.PASSED),
        ((CASE,), {"failures": "9999999"}, Verdict.INCOMPLETE),
        ((CASE,), {"failures": "99999999"}, Verdict.INCOMPLETE),
        ((CASE,), {"failures": "9" * 13, "errors": "9" * 13}, Verdict.INCOMPLETE),
        ((CASE,), {"failures": "9" * 10_000}, Verdict.INCOMPLETE),
        ((CASE,), {"failures": " 5 "}, Verdict.INCOMPLETE),
        ((CASE,), {"failures": "+5"}, Verdict.INCOMPLETE),
        ((CASE,), {"failures": "5.0"}, Verdict.INCOMPLETE),
        ((CASE,), {"failures": "1e3"}, Verdict.INCOMPLETE),
        ((CASE,), {"failures": "Infinity"}, Verdict.INCOMPLETE),
        ((CASE, FAULT), {"errors": "1"}, Verdict.INCOMPLETE),
        ((FAULT,), {}, Verdict.INCOMPLETE),
    ],
)
def test_the_verdict_is_by_the_rules_of_runs(
    elements: tuple[str, ...], suite: dict[str, str], verdict: Verdict
) -> None:
    """A report that counts failures which it does not have never passes."""
    assert summary(*elements, **suite).verdict is verdict


@pytest.mark.parametrize(
    ("stamp", "start"),
    [
        ("2026-04-30T10:00:00", "2026-04-30T10:00:00+00:00"),
        ("2026-04-30T10:00:00+02:00", "2026-04-30T08:00:00+00:00"),
        ("2026-04-30T10:00:00Z", "2026-04-30T10:00:00+00:00"),
        ("", "2026-04-30T23:59:58+00:00"),
        ("yesterday", "2026-04-30T23:59:58+00:00"),
        ("9999-12-31T23:59:59-23:59", "2026-04-30T23:59:58+00:00"),
        ("0001-01-01T00:00:00+23:59", "2026-04-30T23:59:58+00:00"),
    ],
)
def test_start_and_end_are_the_suites(stamp: str, start: str) -> None:
    """A time stamp that is none, or of no past run, is left out: then the end is now."""
    told = summary(CASE, timestamp=stamp, time="2")
    assert told.started_at.isoformat() == start
    assert (told.ended_at - told.started_at).total_seconds() == 2
