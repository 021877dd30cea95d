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


@pytest.mark.long
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


def suite(inside: str, **attributes: str) -> str:
    """A suite of a report."""
    told = "".join(f" {key}={quoteattr(value)}" for key, value in attributes.items())
    return f"<testsuite{told}>{inside}</testsuite>"


def whole(content: str) -> Summary:
    """What a whole report amounts to."""
    found = read(content.encode())
    return summarize(found, cases(found, Nodes()), NOW)


NOT_RUN = '<testcase name="d" status="notrun"/>'


@pytest.mark.parametrize(
    ("content", "told", "here"),
    [
        (suite('<testcase time="abc"/>', tests="5"), 5, 1),
        (suite(CASE, tests="1,0"), 1, 1),
        (suite(CASE, tests=" 3.0 "), 3, 1),
        (suite(CASE + SKIP, tests="4", skipped="1"), 4, 2),
        (suite(CASE, tests="4", skipped="1", disabled="1"), 2, 1),
        (suite(suite(CASE, tests="1") + suite(CASE, tests="1"), tests="3"), 3, 2),
        (f"<testsuites>{suite(CASE, tests='2')}{suite(CASE * 4)}</testsuites>", 6, 5),
        (f"<testsuites>{suite(CASE, tests='1')}{suite('', tests='2')}</testsuites>", 3, 1),
        (f"<testsuites tests='4'>{suite(CASE, tests='2')}</testsuites>", 4, 1),
        (f"<testsuites tests='2'>{CASE}</testsuites>", 2, 1),
    ],
)
def test_a_total_that_the_cases_do_not_reach_is_no_pass(content: str, told: int, here: int) -> None:
    """Of a suite, of one among several, or of the whole; the text says how many are told and how many there."""
    found = whole(content)
    if told == here:
        assert found.verdict is Verdict.PASSED
        return
    assert (found.verdict, found.collected) == (Verdict.INCOMPLETE, told)
    assert f"the report tells of {told} cases and has {here}; import it whole" in found.detail


@pytest.mark.parametrize(
    "content",
    [
        suite(CASE + SKIP, tests="2", skipped="1"),
        suite(CASE + SKIP, tests="1", skipped="1"),  # skipped ones are not counted
        suite(CASE + SKIP, tests="2"),  # and not told, as of old googletest
        suite(CASE, tests="3", skipped="2"),  # counted and left out of the file, as gotestsum can
        suite(CASE, tests="3", skipped="1", disabled="1"),
        suite(CASE + NOT_RUN, tests="2", disabled="1"),  # googletest
        suite(suite(CASE, tests="1") + suite(CASE, tests="1"), tests="2"),  # PHPUnit
        suite(CASE * 3, tests="1"),
        suite(CASE, tests=""),
        f"<testsuites tests='2' disabled='0'>{suite(CASE, tests='1')}{suite(CASE, tests='1')}</testsuites>",
    ],
)
def test_producers_that_count_otherwise_pass(content: str) -> None:
    """Skipped or disabled cases counted or not, in the file or not; sums over nested suites; no total at all."""
    assert (whole(content).verdict, whole(content).detail) == (Verdict.PASSED, "")


@pytest.mark.parametrize("name", ["pytest", "mine"])
def test_subtests_that_pytest_counts_are_no_missing_cases(tmp_path: Path, name: str) -> None:
    """As pytest itself counts them, whatever the suite is called; what the totals tell is said."""
    (tmp_path / "test_x.py").write_text(
        "import unittest\nclass TestA(unittest.TestCase):\n    def test_b(self):\n"
        "        for i in range(3):\n            with self.subTest(i=i): pass\n"
    )
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", f"junit_suite_name={name}",
         "--junit-xml=out.xml", "test_x.py"], cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip
    found = whole((tmp_path / "out.xml").read_text())
    assert (found.verdict, found.collected) == (Verdict.PASSED, 1)
    assert found.detail.startswith("the report counts 4 and has 1 case; ")


def test_assertions_that_catch2_counts_are_no_missing_cases() -> None:
    """Its host name is always the same."""
    found = whole(f"<testsuites>{suite(CASE, tests='25', hostname='tbd')}</testsuites>")
    assert (found.verdict, found.collected) == (Verdict.PASSED, 1)
    assert "counts 25 and has 1 case" in found.detail


def test_failures_stay_failures_where_cases_are_missing() -> None:
    """And what is missing is said beside."""
    found = whole(suite(BAD, tests="5", failures="1"))
    assert (found.verdict, found.detail) == (
        Verdict.FAILED, "the report tells of 5 cases and has 1; import it whole")  # fmt: skip


@pytest.mark.parametrize("time", ["abc", "-5", "1e999", "NaN", "0,5"])
def test_a_time_that_is_none_is_told(time: str) -> None:
    """Of a case, and of a suite; each different one once, the first few of many."""
    found = whole(suite(f'<testcase time="{time}"/>' * 2))
    said = "the time is no length of time and counts as 0 s"
    assert (found.verdict, found.detail) == (Verdict.PASSED, f"of 2 cases {said}: {time!r}")
    assert whole(suite(CASE, time=time)).detail == f"of 1 suite {said}: {time!r}"
    many = "".join(f'<testcase time="x{index}"/>' for index in range(9))
    assert whole(suite(many)).detail == f"of 9 cases {said}: 'x0', 'x1', 'x2' and 6 more"


def test_other_numbers_that_are_none_are_told() -> None:
    """Time stamps and totals."""
    found = whole(suite(CASE, timestamp="yesterday", tests="many", failures="-1", errors="0", skipped=""))
    assert found.verdict is Verdict.PASSED
    assert found.detail == (
        "of 1 suite the time stamp is of no past run and left out: 'yesterday'; "
        "totals that are no counts are left out: 'tests=many', 'failures=-1'"
    )


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
